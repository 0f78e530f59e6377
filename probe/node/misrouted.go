package node

import (
	"net/netip"
	"slices"

	"github.com/lasthop/lasthop/probe/model"
	"github.com/lasthop/lasthop/probe/path"
	"github.com/lasthop/lasthop/probe/words"
)

// MisroutedPod is a pod whose address the node routes elsewhere.
type MisroutedPod struct {
	Pod  *model.Pod
	Addr netip.Addr
	// Query was answered with decision.
	Query    path.Query
	Decision path.Decision
	// Rules send other packets for the pod to the same wrong place.
	Rules []*model.RoutingRule
	// First is the pod's address that the node routes to it, where this is a further one of the interface.
	First netip.Addr
	// Facts are what shows it, seen that packets for the pod went elsewhere.
	Facts words.Facts
	Seen  bool
}

// findMisroutedPods lists the addresses of pods that some packet would miss.
func (v *Index) findMisroutedPods() []MisroutedPod {
	sources := model.Table(v.Peers, func(p *model.Peer) (local, remote netip.Addr) { return p.Local, p.Remote })
	// What another pod of the node sends leaves it, or the reverse path filter refuses what is for that.
	inside := map[netip.Addr][]netip.Addr{}
	asks := func(from, to netip.Addr) {
		if len(v.Owners[from]) > 0 && len(v.Owners[to]) > 0 && from != to {
			inside[to] = append(inside[to], from)
		}
	}
	for p := range model.Each(v.Peers) {
		asks(p.Local, p.Remote)
	}
	for d := range model.Each(v.Traffic.Drops) {
		if d.Is(model.ReverseFiltered) {
			asks(d.Dst, d.Src)
		}
	}
	// The addresses with which the node sends are the lowest of each IP version that is on link at an uplink.
	own := map[bool]netip.Addr{}
	for _, a := range slices.Backward(Sorted(v.Own)) {
		if model.InAny(v.OnLink, a) {
			own[a.Is4()] = a
		}
	}
	var out []MisroutedPod
	for i := range v.Pods {
		p := &v.Pods[i]
		// A link that is down takes its route along: that is another cause.
		if l := v.ByIndex[p.LinkIndex]; l == nil || !l.Up || !p.Up || l.Role == model.RoleUplink {
			continue
		}
		before, routed := len(out), map[bool]netip.Addr{}
		for _, a := range PodAddrs(p) {
			if !a.IsGlobalUnicast() {
				continue
			}
			var m MisroutedPod
			list := model.Map(inside[a], func(from netip.Addr) path.Query { return v.SentBy(from, a) })
			for _, q := range append(askers(v, i, a, sources[a], own[a.Is4()]), list...) {
				d := v.Routing().Lookup(q)
				if len(d.Unsure) > 0 || !v.Misses(&d, a) {
					continue
				}
				if m.Pod == nil {
					m = MisroutedPod{Pod: p, Addr: a, Query: q, Decision: d}
				}
				if r := d.Rule; r != nil && r.Table != MainTable && r.Priority > 0 && !slices.Contains(m.Rules, r) {
					m.Rules = append(m.Rules, r)
				}
			}
			if m.Pod != nil {
				out = append(out, m)
			} else {
				routed[a.Is4()] = a
			}
		}
		for i := range out[before:] {
			m := &out[before+i]
			m.First = routed[m.Addr.Is4()]
		}
	}
	return out
}

// askers are packets for a pod's address as they come from off the node, from the node itself, and from another
// pod that the node is a router for. remote and own are senders of the first two, where there are any.
func askers(v *Index, pod int, a, remote, own netip.Addr) []path.Query {
	var out []path.Query
	family := func(g *model.Neighbor) bool { return g.Addr.Is4() == a.Is4() }
	if g := model.First(v.Gateways, family); g != nil && !remote.IsValid() {
		remote = g.Addr
	}
	if up := v.AnUplink(); up != 0 && remote.IsValid() && remote.Is4() == a.Is4() {
		out = append(out, path.Query{Src: remote, Dst: a, In: v.NatLink(up)})
	}
	if own.IsValid() {
		out = append(out, path.Query{Src: own, Dst: a})
	}
	other := &v.Pods[(pod+1)%len(v.Pods)]
	like := SameFamily(PodAddrs(other), a)
	if l := v.Router(other); l != nil && l != v.Router(&v.Pods[pod]) && len(like) > 0 {
		out = append(out, path.Query{Src: like[0], Dst: a, In: l.Name})
	}
	return out
}

// Misses reports whether a decision leads away from all pods that hold the address.
func (v *Index) Misses(d *path.Decision, a netip.Addr) bool {
	return v.Routing().Misses(d, v.Owners[a])
}
