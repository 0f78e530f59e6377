package pod

import (
	"cmp"
	"maps"
	"net/netip"
	"slices"
	"time"

	"github.com/lasthop/lasthop/probe/fault"
	"github.com/lasthop/lasthop/probe/model"
	"github.com/lasthop/lasthop/probe/node"
	"github.com/lasthop/lasthop/probe/path"
	"github.com/lasthop/lasthop/probe/words"
)

// together is how long two pods must have had an address at once before it is
// no handing over: the former pod's interface may outlive its lease.
const together = 3 * time.Second

// DuplicatePodIP reports addresses that two pods have, or a pod and the node or another machine.
var DuplicatePodIP = fault.Kind{Code: "DuplicatePodIP", Severity: model.Critical, Find: duplicatePodIP, Decides: true,
	Ends:    fault.Hops{model.HopRoute, model.HopNeighbor, model.HopBridge, model.HopPod},
	Objects: fault.Objects{"addr", "answer.Addr"},
	Else:    fault.Else{"DuplicatePodIP-contested", "DuplicatePodIP-source !route"}}

func duplicatePodIP(v *fault.Input) {
	for _, a := range node.Sorted(v.Owners) {
		var near node.Groups[node.Domain, []*model.Pod]
		for _, p := range liveHolders(v.Index, a) {
			node.Put(&near, v.DomainOf(p, a), p)
		}
		for _, holders := range near.All() {
			if len(*holders) > 1 {
				v.Report(duplicate(v.Index, a, *holders))
			}
		}
		for _, p := range v.Owners[a] {
			if l := v.Own[a]; l != nil && p.Up && !a.IsLinkLocalUnicast() && l == v.BridgeOf(p) && l.Has(a) {
				v.Report(asGateway(v.Index, a, p, l))
			} else if l != nil && p.Up && !a.IsLinkLocalUnicast() {
				v.Report(asNode(v, a, p, l))
			}
		}
	}
	contested(v)
	fault.ReportBy(v, func(d *model.Drop) (own, pod netip.Addr) {
		if d.Is(model.OwnSource) && v.Own[d.Src] != nil && v.Outer[d.IfIndex] && !v.InPod(d).IsValid() && v.Classifier.Lost(d) {
			own, pod = d.Src, v.Pod(d)
		}
		return own, pod
	}, func(own netip.Addr, l *node.Lost) fault.Fault {
		f, link := fault.Fault{Page: "DuplicatePodIP-source", Lost: l}, l.Drops[0].Link
		f.Facts = words.Facts{"addr": own, "own": v.Own[own], "link": link, "route": ownRoute(v.Index, own)}
		f.LastHopAlive = v.Place(link, model.Ingress)
		return f
	})
}

// liveHolders are the pods that have had the address up for some time, one of each namespace.
func liveHolders(v *node.Index, a netip.Addr) []*model.Pod {
	var out []*model.Pod
	for _, p := range v.Owners[a] {
		l := v.ByIndex[p.LinkIndex]
		if l == nil || !l.Up || !p.Up || !v.PresentWholeWindow(p) && v.Window.End.Sub(p.Since) < together {
			continue
		}
		same := func(o *model.Pod) bool { return o.LinkIndex == p.LinkIndex || o.Netns != 0 && o.Netns == p.Netns }
		if !slices.ContainsFunc(out, same) {
			out = append(out, p)
		}
	}
	return out
}

func duplicate(v *node.Index, a netip.Addr, holders []*model.Pod) fault.Fault {
	f := fault.Fault{Facts: words.Facts{"addr": a, "holders": holders}, Claims: lostToDuplicateIP(a)}
	f.Pods = []netip.Addr{a}
	// Whoever of them is asked or replied to, it may be the other that hears it, or nobody.
	f.Silences = node.SilencesAll(f.Pods)
	r := v.Lookup(a)
	if r == nil {
		return f
	}
	// The route's link leads to one of them or, where that is a bridge, the neighbour entry.
	link := v.LinkName(r.IfIndex)
	f.LastHopAlive = v.Place(link, model.Egress)
	if v.Has(model.SourceRoutes) {
		f.Facts["link"] = link
		if n := v.NeighborAt(a, r.IfIndex); n != nil && path.Resolved(n) {
			f.Facts["mac"], f.Facts["holder"] = n.MAC, v.Owner(n.MAC)
		}
	}
	return f
}

// asGateway is the finding on a pod that has an address of its own bridge, where its neighbours have their gateway.
func asGateway(v *node.Index, a netip.Addr, p *model.Pod, b *model.Link) fault.Fault {
	f := fault.Fault{Page: "DuplicatePodIP-gateway"}
	type believer struct {
		Pod   *model.Pod
		State string
	}
	var believers []believer
	affected := node.AddrSet{a: true}
	for o := range model.Each(v.Pods) {
		for g := range model.Each(o.Gateways) {
			if g.Addr == a && g.MAC == p.MAC {
				believers = append(believers, believer{o, g.State})
			}
			if g.Addr == a {
				affected.Add(node.PodAddrs(o)...)
			}
		}
	}
	f.Facts = words.Facts{"addr": a, "pod": p, "bridge": b, "believers": believers}
	if len(node.OwnIn(p, a.Is6())) > 1 {
		f.Facts["further"] = model.Find(p.Addresses, func(x netip.Prefix) bool { return x.Addr() == a })
	}
	f.Pods, f.LastHopAlive = node.Sorted(affected), v.Place(b.Name, model.Ingress)
	f.CutOff, f.Claims = f.Pods, func(d *model.Drop) bool {
		return lostToDuplicateIP(a)(d) || p.Netns != 0 && d.Netns == p.Netns || affected[d.Src] && d.Is(model.OtherHost)
	}
	return f
}

// asNode is the finding on a pod that has an address of the node: the node takes what is for the pod, and
// refuses what the pod sends as its own.
func asNode(v *fault.Input, a netip.Addr, p *model.Pod, l *model.Link) fault.Fault {
	claims := lostToDuplicateIP(a)
	f := fault.Fault{Page: "DuplicatePodIP-node", Claims: claims}
	f.Lost = v.LostTo(func(d *model.Drop) bool { return claims(d) && v.Classifier.Lost(d) })
	f.Facts = words.Facts{"pod": p, "link": l, "addr": model.Host(a), "route": ownRoute(v.Index, a),
		// Without it the node is cut off, or its pods are.
		"needed": v.Outer[l.Index] && firstOf(l, a) || slices.ContainsFunc(v.Pods, func(o model.Pod) bool {
			return slices.ContainsFunc(o.Gateways, func(g model.Neighbor) bool { return g.Addr == a })
		})}
	if own := model.First(l.Addresses, func(x *netip.Prefix) bool { return x.Addr() == a }); own != nil {
		f.Facts["addr"] = *own
	}
	f.Pods, f.CutOff, f.LastHopAlive = []netip.Addr{a}, []netip.Addr{a}, v.Place(p.Link, model.Ingress)
	return f
}

// firstOf reports whether an address is the first of its family that a link has: what the node itself sends has it.
func firstOf(l *model.Link, a netip.Addr) bool {
	return model.Find(l.Addresses, func(x netip.Prefix) bool { return x.Addr().Is4() == a.Is4() }).Addr() == a
}

// ownRoute is the route by which the node takes an address for its own that its link has not.
func ownRoute(v *node.Index, a netip.Addr) *node.ShownRoute {
	if v.Own[a].Has(a) {
		return nil
	}
	return v.Shown(model.First(v.Routes, func(r *model.Route) bool { return r.Dst.Addr() == a && path.MakesOwn(r) }))
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
func contested(v *fault.Input) {
	if !v.Has(model.SourcePods, model.SourceLinks, model.SourceTC) {
		return
	}
	answers, claimed, proxies := map[node.Binding]*model.ARPCount{}, map[model.MAC]netip.Addr{}, map[model.MAC]bool{}
	for a := range model.Each(v.Traffic.ARP) {
		// What leaves a port may be a rule's answer, or the node's own; what comes in is somebody's.
		if !a.Reply || a.Direction != model.Ingress || a.MAC.IsZero() {
			continue
		}
		if other, ok := claimed[a.MAC]; ok && other != a.Addr {
			proxies[a.MAC] = true
		}
		claimed[a.MAC] = a.Addr
		if k := (node.Binding{Addr: a.Addr, MAC: a.MAC}); foreign(v.Index, a) && (answers[k] == nil || a.Packets > answers[k].Packets) {
			answers[k] = a
		}
	}
	list := slices.SortedFunc(maps.Values(answers), func(a, b *model.ARPCount) int {
		return cmp.Or(model.MAC.Compare(a.MAC, b.MAC), a.Addr.Compare(b.Addr))
	})
	for _, a := range list {
		// A machine that has the node's address too may well have one of its own.
		if a.Packets >= node.MinPackets && (!proxies[a.MAC] || ownAddress(v.Index, a.Addr) != nil) {
			v.Report(contest(v.Index, a))
		}
	}
}

// foreign reports whether an ARP answer is for a pod that was there through the window, or for the node itself,
// by a MAC that is neither of this node nor the fabric's, which answers for all.
func foreign(v *node.Index, a *model.ARPCount) bool {
	if _, known := v.MACNames[a.MAC]; known || v.IsGatewayMAC(a.MAC) {
		return false
	}
	own := ownAddress(v, a.Addr)
	return own != nil && v.OnSameLink(a.IfIndex, own.Index) ||
		len(v.PodMACs(a.Addr)) > 0 && !v.Classifier.Past[a.Addr] && v.PresentWholeWindow(v.Owners[a.Addr][0])
}

// ownAddress is the link that leads off the node and has an address as its first one, or had it through the window;
// nil where none does. Further ones may be virtual, and move from node to node, but not again and again.
func ownAddress(v *node.Index, a netip.Addr) *model.Link {
	return model.First(v.Links, func(l *model.Link) bool {
		i := slices.IndexFunc(l.Addresses, func(x netip.Prefix) bool { return x.Addr() == a })
		held := i > 0 && i < len(l.Since) && !l.Since[i].After(v.Window.Start)
		return v.Outer[l.Index] && (i == 0 || held || i > 0 && timesLost(v, a) > 1)
	})
}

// timesLost is how often the node lost an address in the window.
func timesLost(v *node.Index, a netip.Addr) int {
	return len(model.Chosen(v.Changes, func(c *model.Change) bool {
		return c.Kind == model.ChangedAddress && c.Deleted && c.Dst.Addr() == a && c.At.After(v.Window.Start)
	}))
}

// contest is the finding on a pod's address or the node's own, which another machine has too.
func contest(v *node.Index, a *model.ARPCount) fault.Fault {
	f := fault.Fault{Page: "DuplicatePodIP-contested", Facts: words.Facts{"answer": a}}
	f.LastHopAlive = v.Place(a.Link, model.Ingress)
	if own := ownAddress(v, a.Addr); own != nil {
		everything := v.AllSilent()
		f.Facts["own"], f.Facts["virtual"], f.Facts["lost"] = own, !firstOf(own, a.Addr), timesLost(v, a.Addr)
		f.Claims = func(d *model.Drop) bool {
			return d.Is(model.OtherHost) && d.Link == a.Link || d.Is(model.NoSocket) && d.Dst == a.Addr
		}
		f.Silences = func(asker netip.Addr, _ netip.Prefix) bool { return everything || asker == a.Addr }
		return f
	}
	f.Facts["pod"], f.Pods = v.Owners[a.Addr][0], []netip.Addr{a.Addr}
	f.Claims, f.About = lostToDuplicateIP(a.Addr), node.Binding{Addr: a.Addr, MAC: a.MAC}
	f.Effects = []any{f.About}
	return f
}
