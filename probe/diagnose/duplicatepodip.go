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

// DuplicatePodIP is the code of this finding.
const DuplicatePodIP model.Code = "DuplicatePodIP"

var duplicatePodIP = kind{
	code:     DuplicatePodIP,
	severity: model.Critical,
	find:     findDuplicatePodIP,
	ends:     []model.HopKind{model.HopRoute, model.HopNeighbor, model.HopBridge, model.HopPod},
}

// together is how long two pods must have had an address at once before it is
// no handing over: the former pod's interface may outlive its lease.
const together = 3 * time.Second

func findDuplicatePodIP(v *view) []finding {
	var out []finding
	for _, a := range sorted(v.pods) {
		if holders := liveHolders(v, a); len(holders) > 1 {
			out = append(out, duplicate(v, a, holders))
		}
		for _, p := range v.pods[a] {
			if b := v.bridgeOf(p); b != nil && p.Up && !a.IsLinkLocalUnicast() && v.holds(b.Name, a) {
				out = append(out, asGateway(v, a, p, b))
			}
		}
	}
	return append(out, contested(v)...)
}

// liveHolders are the pods that have had the address up for some time, one of each
// namespace.
func liveHolders(v *view, a netip.Addr) []*model.Pod {
	var out []*model.Pod
	for _, p := range v.pods[a] {
		l := v.links[p.LinkIndex]
		if l == nil || !l.Up || !p.Up || !v.stood(p) && v.Window.End.Sub(p.Since) < together {
			continue
		}
		same := func(o *model.Pod) bool {
			return o.LinkIndex == p.LinkIndex || o.Netns != 0 && o.Netns == p.Netns
		}
		if !slices.ContainsFunc(out, same) {
			out = append(out, p)
		}
	}
	return out
}

func duplicate(v *view, a netip.Addr, holders []*model.Pod) finding {
	f := finding{facts: facts{"addr": a, "holders": holders}, claims: confused(a)}
	f.Pods = []netip.Addr{a}
	r := v.lookup(a)
	if r == nil {
		return f
	}
	// The route's link leads to one of them or, where that is a bridge, the neighbour entry.
	link := v.linkName(r.IfIndex)
	f.LastHopAlive = v.place(link, model.Egress)
	if v.Has(model.SourceRoutes) {
		f.facts["link"] = link
		n := model.First(v.Neighbors, func(n *model.Neighbor) bool {
			return n.Addr == a && n.IfIndex == r.IfIndex && path.Resolved(n)
		})
		if n != nil {
			f.facts["mac"], f.facts["holder"] = n.MAC, v.owner(n.MAC)
		}
	}
	return f
}

// asGateway is the finding on a pod that has an address of its own bridge, where its
// neighbours have their gateway.
func asGateway(v *view, a netip.Addr, p *model.Pod, b *model.Link) finding {
	f := finding{page: "DuplicatePodIP-gateway"}
	type believer struct {
		Pod   *model.Pod
		State string
	}
	var believers []believer
	misled := map[netip.Addr]bool{a: true}
	for o := range model.Each(v.Pods) {
		for g := range model.Each(o.Gateways) {
			if g.Addr != a {
				continue
			}
			if g.MAC == p.MAC {
				believers = append(believers, believer{o, g.State})
			}
			for _, x := range podAddrs(o) {
				misled[x] = true
			}
		}
	}
	f.facts = facts{"addr": a, "pod": p, "bridge": b, "believers": believers}
	f.Pods, f.LastHopAlive = sorted(misled), v.place(b.Name, model.Ingress)
	f.cutOff, f.claims = f.Pods, func(d *model.Drop) bool {
		return confused(a)(d) || p.Netns != 0 && d.Netns == p.Netns || misled[d.Src] && d.OtherHost()
	}
	return f
}

// confused accounts for what becomes of packets of an address with two owners:
// they come to the wrong one, or from the one that the route does not lead to.
func confused(a netip.Addr) func(*model.Drop) bool {
	return func(d *model.Drop) bool {
		return (d.Dst == a || d.Src == a) &&
			(d.OtherHost() || d.NoSocket() || d.NeighborFailed() || d.ReverseFiltered() || d.OwnSource())
	}
}

// contested finds pods of this node for which somebody beyond it answers ARP
// as well.
func contested(v *view) []finding {
	if !v.Has(model.SourcePods, model.SourceLinks, model.SourceTC) {
		return nil
	}
	answers := map[belief]*model.ARPCount{}
	claimed := map[model.MAC]netip.Addr{}
	proxies := map[model.MAC]bool{}
	for a := range model.Each(v.Traffic.ARP) {
		// What leaves a port may be a rule's answer, or the node's own; what
		// comes in is somebody's.
		if !a.Reply || a.Direction != model.Ingress || a.MAC.IsZero() {
			continue
		}
		if other, ok := claimed[a.MAC]; ok && other != a.Addr {
			proxies[a.MAC] = true
		}
		claimed[a.MAC] = a.Addr
		if !foreign(v, a) {
			continue
		}
		if k := (belief{a.Addr, a.MAC}); answers[k] == nil || a.Packets > answers[k].Packets {
			answers[k] = a
		}
	}
	var out []finding
	list := slices.SortedFunc(maps.Values(answers), func(a, b *model.ARPCount) int {
		return cmp.Or(compareMAC(a.MAC, b.MAC), a.Addr.Compare(b.Addr))
	})
	for _, a := range list {
		// A machine that has the node's address too may well have one of its own.
		if a.Packets >= minPackets && (!proxies[a.MAC] || v.ownAddress(a.Addr) != nil) {
			out = append(out, contest(v, a))
		}
	}
	return out
}

// foreign reports whether an ARP answer is for a pod that stood through the
// window, or for the node itself, by a MAC that is neither of this node nor the fabric's,
// which answers for all.
func foreign(v *view, a *model.ARPCount) bool {
	if _, known := v.macs[a.MAC]; known || v.isGatewayMAC(a.MAC) {
		return false
	}
	own := v.ownAddress(a.Addr)
	return own != nil && v.onSameLink(a.IfIndex, own.Index) ||
		len(v.podMACs(a.Addr)) > 0 && !v.past[a.Addr] && v.stood(v.pods[a.Addr][0])
}

// ownAddress is the link that leads off the node and has an address as its first one;
// nil where none does. Further ones may be virtual, and move from node to node.
func (v *view) ownAddress(a netip.Addr) *model.Link {
	return model.First(v.Links, func(l *model.Link) bool {
		return v.outer[l.Index] && len(l.Addresses) > 0 && l.Addresses[0].Addr() == a
	})
}

// contest is the finding on a pod's address or the node's own, which another machine has too.
func contest(v *view, a *model.ARPCount) finding {
	f := finding{page: "DuplicatePodIP-contested", facts: facts{"answer": a}}
	f.LastHopAlive = v.place(a.Link, model.Ingress)
	if own := v.ownAddress(a.Addr); own != nil {
		everything := v.allSilent()
		f.facts["own"] = own
		f.claims = func(d *model.Drop) bool { return d.OtherHost() && d.Link == a.Link }
		f.silences = func(asker netip.Addr, _ netip.Prefix) bool { return everything || asker == a.Addr }
		return f
	}
	f.facts["pod"], f.Pods = v.pods[a.Addr][0], []netip.Addr{a.Addr}
	f.claims, f.cause = confused(a.Addr), belief{a.Addr, a.MAC}
	return f
}
