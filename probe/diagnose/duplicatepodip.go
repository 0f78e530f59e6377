package diagnose

import (
	"cmp"
	"maps"
	"net/netip"
	"slices"
	"time"

	"github.com/lasthop/lasthop/probe/model"
	"github.com/lasthop/lasthop/probe/path"
)

// together is how long two pods must have had an address at once before it is
// no handing over: the former pod's interface may outlive its lease.
const together = 3 * time.Second

func findDuplicatePodIP(v *view) {
	for _, a := range sorted(v.Owners) {
		if holders := liveHolders(v.index, a); len(holders) > 1 {
			v.report(duplicate(v.index, a, holders))
		}
		for _, p := range v.Owners[a] {
			if l := v.Own[a]; l != nil && p.Up && !a.IsLinkLocalUnicast() && l == v.bridgeOf(p) && l.Has(a) {
				v.report(asGateway(v.index, a, p, l))
			} else if l != nil && p.Up && !a.IsLinkLocalUnicast() {
				v.report(asNode(v, a, p, l))
			}
		}
	}
	contested(v)
	reportBy(v, func(d *model.Drop) (own, pod netip.Addr) {
		if d.Is(model.OwnSource) && v.nodeAddrs[d.Src] && v.Outer[d.IfIndex] && v.drops.Lost(d) {
			own, pod = d.Src, v.pod(d)
		}
		return own, pod
	}, func(own netip.Addr, l *lost) finding {
		f, link := finding{page: "DuplicatePodIP-source", lost: l}, l.drops[0].Link
		f.facts = facts{"addr": own, "own": v.Own[own], "link": link, "route": v.ownRoute(own)}
		f.LastHopAlive = v.place(link, model.Ingress)
		return f
	})
}

// liveHolders are the pods that have had the address up for some time, one of each namespace.
func liveHolders(v *index, a netip.Addr) []*model.Pod {
	var out []*model.Pod
	for _, p := range v.Owners[a] {
		l := v.ByIndex[p.LinkIndex]
		if l == nil || !l.Up || !p.Up || !v.presentWholeWindow(p) && v.Window.End.Sub(p.Since) < together {
			continue
		}
		same := func(o *model.Pod) bool { return o.LinkIndex == p.LinkIndex || o.Netns != 0 && o.Netns == p.Netns }
		if !slices.ContainsFunc(out, same) {
			out = append(out, p)
		}
	}
	return out
}

func duplicate(v *index, a netip.Addr, holders []*model.Pod) finding {
	f := finding{facts: facts{"addr": a, "holders": holders}, claims: lostToDuplicateIP(a)}
	f.Pods = []netip.Addr{a}
	// Whoever of them is asked or replied to, it may be the other that hears it, or nobody.
	f.silences = silencesAll(f.Pods)
	r := v.lookup(a)
	if r == nil {
		return f
	}
	// The route's link leads to one of them or, where that is a bridge, the neighbour entry.
	link := v.linkName(r.IfIndex)
	f.LastHopAlive = v.place(link, model.Egress)
	if v.Has(model.SourceRoutes) {
		f.facts["link"] = link
		if n := v.NeighborAt(a, r.IfIndex); n != nil && path.Resolved(n) {
			f.facts["mac"], f.facts["holder"] = n.MAC, v.owner(n.MAC)
		}
	}
	return f
}

// asGateway is the finding on a pod that has an address of its own bridge, where its neighbours have their gateway.
func asGateway(v *index, a netip.Addr, p *model.Pod, b *model.Link) finding {
	f := finding{page: "DuplicatePodIP-gateway"}
	type believer struct {
		Pod   *model.Pod
		State string
	}
	var believers []believer
	affected := addrSet{a: true}
	for o := range model.Each(v.Pods) {
		for g := range model.Each(o.Gateways) {
			if g.Addr == a && g.MAC == p.MAC {
				believers = append(believers, believer{o, g.State})
			}
			if g.Addr == a {
				affected.add(podAddrs(o)...)
			}
		}
	}
	f.facts = facts{"addr": a, "pod": p, "bridge": b, "believers": believers}
	f.Pods, f.LastHopAlive = sorted(affected), v.place(b.Name, model.Ingress)
	f.cutOff, f.claims = f.Pods, func(d *model.Drop) bool {
		return lostToDuplicateIP(a)(d) || p.Netns != 0 && d.Netns == p.Netns || affected[d.Src] && d.Is(model.OtherHost)
	}
	return f
}

// asNode is the finding on a pod that has an address of the node: the node takes what is for the pod, and
// refuses what the pod sends as its own.
func asNode(v *view, a netip.Addr, p *model.Pod, l *model.Link) finding {
	claims := lostToDuplicateIP(a)
	f := finding{page: "DuplicatePodIP-node", claims: claims}
	f.lost = v.lostTo(func(d *model.Drop) bool { return claims(d) && v.drops.Lost(d) })
	f.facts = facts{"pod": p, "link": l, "addr": model.Host(a), "route": v.ownRoute(a)}
	if own := model.First(l.Addresses, func(x *netip.Prefix) bool { return x.Addr() == a }); own != nil {
		f.facts["addr"] = *own
	}
	f.Pods, f.cutOff, f.LastHopAlive = []netip.Addr{a}, []netip.Addr{a}, v.place(p.Link, model.Ingress)
	return f
}

// ownRoute is the route by which the node takes an address for its own that its link has not.
func (v *index) ownRoute(a netip.Addr) *shownRoute {
	if v.Own[a].Has(a) {
		return nil
	}
	return v.shown(model.First(v.Routes, func(r *model.Route) bool { return r.Dst.Addr() == a && path.MakesOwn(r) }))
}

// lostToDuplicateIP accounts for what becomes of packets of an address with two owners:
// they come to the wrong one, or from the one that the route does not lead to.
func lostToDuplicateIP(a netip.Addr) func(*model.Drop) bool {
	return func(d *model.Drop) bool {
		return (d.Dst == a || d.Src == a) &&
			(d.Is(model.OtherHost | model.NoSocket | model.NeighborFailed | model.ReverseFiltered | model.OwnSource))
	}
}

// contested finds pods of this node for which somebody beyond it answers ARP as well.
func contested(v *view) {
	if !v.Has(model.SourcePods, model.SourceLinks, model.SourceTC) {
		return
	}
	answers := map[binding]*model.ARPCount{}
	claimed := map[model.MAC]netip.Addr{}
	proxies := map[model.MAC]bool{}
	for a := range model.Each(v.Traffic.ARP) {
		// What leaves a port may be a rule's answer, or the node's own; what comes in is somebody's.
		if !a.Reply || a.Direction != model.Ingress || a.MAC.IsZero() {
			continue
		}
		if other, ok := claimed[a.MAC]; ok && other != a.Addr {
			proxies[a.MAC] = true
		}
		claimed[a.MAC] = a.Addr
		if k := (binding{a.Addr, a.MAC}); foreign(v.index, a) && (answers[k] == nil || a.Packets > answers[k].Packets) {
			answers[k] = a
		}
	}
	list := slices.SortedFunc(maps.Values(answers), func(a, b *model.ARPCount) int {
		return cmp.Or(model.MAC.Compare(a.MAC, b.MAC), a.Addr.Compare(b.Addr))
	})
	for _, a := range list {
		// A machine that has the node's address too may well have one of its own.
		if a.Packets >= minPackets && (!proxies[a.MAC] || v.ownAddress(a.Addr) != nil) {
			v.report(contest(v.index, a))
		}
	}
}

// foreign reports whether an ARP answer is for a pod that was there through the window, or for the node itself,
// by a MAC that is neither of this node nor the fabric's, which answers for all.
func foreign(v *index, a *model.ARPCount) bool {
	if _, known := v.macs[a.MAC]; known || v.isGatewayMAC(a.MAC) {
		return false
	}
	own := v.ownAddress(a.Addr)
	return own != nil && v.onSameLink(a.IfIndex, own.Index) ||
		len(v.PodMACs(a.Addr)) > 0 && !v.past[a.Addr] && v.presentWholeWindow(v.Owners[a.Addr][0])
}

// ownAddress is the link that leads off the node and has an address as its first one;
// nil where none does. Further ones may be virtual, and move from node to node.
func (v *index) ownAddress(a netip.Addr) *model.Link {
	return model.First(v.Links, func(l *model.Link) bool {
		return v.Outer[l.Index] && len(l.Addresses) > 0 && l.Addresses[0].Addr() == a
	})
}

// contest is the finding on a pod's address or the node's own, which another machine has too.
func contest(v *index, a *model.ARPCount) finding {
	f := finding{page: "DuplicatePodIP-contested", facts: facts{"answer": a}}
	f.LastHopAlive = v.place(a.Link, model.Ingress)
	if own := v.ownAddress(a.Addr); own != nil {
		everything := v.allSilent()
		f.facts["own"] = own
		f.claims = func(d *model.Drop) bool { return d.Is(model.OtherHost) && d.Link == a.Link }
		f.silences = func(asker netip.Addr, _ netip.Prefix) bool { return everything || asker == a.Addr }
		return f
	}
	f.facts["pod"], f.Pods = v.Owners[a.Addr][0], []netip.Addr{a.Addr}
	f.claims, f.cause = lostToDuplicateIP(a.Addr), binding{a.Addr, a.MAC}
	return f
}
