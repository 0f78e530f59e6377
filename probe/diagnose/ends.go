package diagnose

import (
	"cmp"
	"fmt"
	"hash/fnv"
	"maps"
	"net/netip"
	"slices"
	"time"

	"github.com/lasthop/lasthop/probe/model"
	"github.com/lasthop/lasthop/probe/words"
)

// Observe is what a snapshot holds of the node's traffic with others, and Diagnose, without the Rows in the fixes.
func Observe(s *model.Snapshot) (*model.Ends, []model.Finding) {
	v := newView(s)
	found := v.judge()
	e := &model.Ends{
		Node: v.nodeAddrs, PodsKnown: s.Has(model.SourcePods), Tracked: s.Has(model.SourceConntrack),
		Pods: map[netip.Addr]bool{}, Fresh: maps.Clone(v.past), Ranges: v.ownCIDRs(), Networks: v.onLink,
		Uplink: v.place(v.uplink(), model.Egress), Returned: map[model.Transit]uint64{}, Delivered: map[netip.Addr]uint64{},
		Leaving: map[netip.Prefix]model.Volume{}, Arriving: map[netip.Prefix]model.Volume{},
		Uncounted: map[netip.Addr]bool{}, Folded: map[netip.Addr][]netip.Prefix{},
		Table: v.tableRow(), Given: map[netip.Addr][]netip.Addr{},
		Unwatched: words.Title("unwatched", facts{
			"missing": s.Status(model.SourceTC) == model.Missing, "partial": !s.Has(model.SourceTC),
			"gaps": s.Traffic.Lost.Gaps,
		}),
		Tunnel: newTunnel(v.index), Gone: map[netip.Addr]time.Time{}, Gateways: v.nextHops, Uplinks: map[int]bool{},
	}
	for _, p := range v.ranges.local {
		if e.Rows = append(e.Rows, v.row(nil, v.Node.Name, p, NodeIP)); v.ownRange(p.Addr()) {
			e.Own = append(e.Own, p)
		}
	}
	for i := range v.ByIndex {
		e.Uplinks[i] = v.isUplink(i)
	}
	delete(e.Gateways, netip.Addr{})
	for _, set := range []map[netip.Addr]bool{e.Node, v.past} {
		for a := range set {
			e.Uncounted[a] = s.Traffic.Lost.Of(a).Peers > 0
		}
	}
	for _, p := range v.folded {
		e.Folded[p.Local] = append(e.Folded[p.Local], p.Range)
	}
	for a, owners := range v.Owners {
		e.Pods[a], e.Uncounted[a] = true, s.Traffic.Lost.Of(a).Peers > 0
		if !slices.ContainsFunc(owners, v.presentWholeWindow) {
			e.Fresh[a] = true
		}
	}
	for p := range model.Each(s.PastPods) {
		for _, a := range podAddrs(p) {
			if !e.Pods[a] && p.Until.After(e.Gone[a]) {
				e.Gone[a] = p.Until
			}
		}
	}
	for h := range model.Each(s.Traffic.Hops) {
		l := v.ByIndex[h.IfIndex]
		switch {
		case v.isTunnel(h.IfIndex):
			e.Tunnel.Add(h)
		case h.Prefix.IsValid() && v.isUplink(h.IfIndex):
			e.AddRange(h)
		case h.Addr.IsValid() && h.Direction == model.Egress && h.Side == model.AsDestination && l != nil &&
			l.Role == model.RolePodLink:
			e.Delivered[h.Addr] += h.Packets
		}
	}
	for f := range model.Each(s.Flows) {
		if src, a := f.Original.Src, f.Reply.Dst; v.givenAway(f) && !slices.Contains(e.Given[a], src) {
			e.Given[a] = append(e.Given[a], src)
		}
	}
	for d := range model.Each(s.Traffic.Drops) {
		if v.nodeAddrs[d.Dst] && v.drops.Lost(d) {
			e.Dropped = append(e.Dropped, *d)
		}
	}
	e.Pairs, e.Began, e.Tunnel.Silent = endPairs(v.index), began(v.index), v.silentThrough()
	return e, found
}

// maxBegan bounds the connections by which clocks are compared.
const maxBegan = 1024

func began(v *index) []model.Began {
	own := func(a netip.Addr) bool { return v.nodeAddrs[a] || len(v.Owners[a]) > 0 || v.past[a] }
	var out []model.Began
	add := func(f *model.Flow, src, dst netip.AddrPort) {
		here := own(src.Addr())
		if here == own(dst.Addr()) || !src.Addr().IsGlobalUnicast() || !dst.Addr().IsGlobalUnicast() {
			return
		}
		h := fnv.New64a()
		fmt.Fprint(h, f.Proto, src, dst)
		out = append(out, model.Began{Key: h.Sum64(), At: f.Start, Here: here})
	}
	for f := range model.Each(v.Flows) {
		if f.Start.IsZero() || f.Proto != tcp && f.Proto != udp {
			continue
		}
		// As it comes in, and as it leaves.
		in, from := netip.AddrPortFrom(f.Original.Src, f.Original.SrcPort),
			netip.AddrPortFrom(f.Original.Dst, f.Original.DstPort)
		out, to := netip.AddrPortFrom(f.Reply.Dst, f.Reply.DstPort), netip.AddrPortFrom(f.Reply.Src, f.Reply.SrcPort)
		add(f, in, from)
		if in != out || from != to {
			add(f, out, to)
		}
	}
	slices.SortFunc(out, func(a, b model.Began) int { return cmp.Or(cmp.Compare(a.Key, b.Key), a.At.Compare(b.At)) })
	return slices.Clone(out[:min(len(out), maxBegan)])
}

func endPairs(v *index) []model.EndPair {
	asked, behind, onward := askedPorts(v), v.unrepliedFlows(), v.onward()
	routes, reflected := map[netip.Addr]*model.EndRoute{}, v.reflected()
	// Most remote addresses are alike, and each is kept for as long as nodes are compared.
	type likeness struct {
		routed bool
		to     netip.Prefix
	}
	alike := map[likeness]*model.EndRoute{}
	for p := range model.Each(v.peers) {
		if routes[p.Remote] == nil {
			r := &model.EndRoute{Routed: v.byDefaultRoute(p.Remote), Range: v.remote(p.Remote)}
			if r.Range.IsValid() && !r.Routed {
				r.Via = v.nodeRoute(v.sentBy(p.Local, p.Remote), r.Range)
			}
			if k := (likeness{r.Routed, r.Range}); r.Via == nil {
				alike[k] = cmp.Or(alike[k], r)
				r = alike[k]
			}
			routes[p.Remote] = r
		}
	}
	out := make([]model.EndPair, 0, len(v.peers))
	for p := range model.Each(v.peers) {
		if v.isTunnel(p.IfIndex) {
			// What a tunnel carries is not counted by pair: see Tunnel.
			continue
		}
		e := model.EndPair{
			Local: p.Local, Remote: p.Remote, EndRoute: routes[p.Remote], Counts: model.Counts{Out: p.Out, In: p.In},
			Silent: v.unanswered(p) && !v.leftWithWrongMAC(p),
			First:  v.Window.Start, Last: v.Window.End, Asked: asked[pair{p.Local, p.Remote}],
		}
		if reflected[p.Local] {
			// What leaves is what came in.
			e.Out, e.Silent = model.PeerCount{}, false
		}
		if !p.FirstOut.IsZero() && !p.LastOut.IsZero() {
			e.First, e.Last = p.FirstOut, p.LastOut
		}
		if m, to := behind[pair{p.Local, p.Remote}], onward[pair{p.Local, p.Remote}]; v.nodeAddrs[p.Local] &&
			(m != nil || to != nil) {
			own := *e.EndRoute
			if own.Onward = to; m != nil {
				own.Behind = sorted(m.pods)
			}
			e.EndRoute = &own
		}
		out = append(out, e)
	}
	slices.SortFunc(out, model.ComparePairs)
	return out
}

// onward are the addresses that the node translates its own to, by the ends of the flows.
func (v *index) onward() map[pair][]netip.Addr {
	out := map[pair][]netip.Addr{}
	for f := range model.Each(v.Flows) {
		k, to := pair{f.Original.Dst, f.Original.Src}, f.Reply.Src
		if !f.Start.IsZero() && !f.Replied && v.nodeAddrs[k.local] && to != k.local && !slices.Contains(out[k], to) {
			out[k] = append(out[k], to)
		}
	}
	return out
}

// askedPorts are the ports of the flows of the window between the peers' ends, as
// the uplinks see them, whichever end began.
func askedPorts(v *index) map[pair][]model.Asked {
	out := map[pair][]model.Asked{}
	add := func(k pair, f *model.Flow, port uint16, here bool) {
		if v.flows[k] == nil {
			return
		}
		list, one := out[k], model.Asked{Proto: f.Proto, Port: port, Here: here}
		at := slices.IndexFunc(list, one.Same)
		switch {
		case at < 0 && len(list) == model.MaxAsked:
			return
		case at < 0:
			at, list = len(list), append(list, one)
		}
		a := &list[at]
		if f.Replied {
			a.Replied++
		} else {
			a.Unreplied++
			stretch(&a.First, &a.Last, f.Start)
		}
		out[k] = list
	}
	for f := range model.Each(v.Flows) {
		if !f.Start.IsZero() {
			add(pair{f.Reply.Dst, f.Reply.Src}, f, f.Reply.SrcPort, false)
			add(pair{f.Original.Dst, f.Original.Src}, f, f.Original.DstPort, true)
		}
	}
	for _, list := range out {
		slices.SortFunc(list, func(a, b model.Asked) int {
			here := map[bool]int{true: 1}
			return cmp.Or(here[a.Here]-here[b.Here], cmp.Compare(a.Proto, b.Proto), cmp.Compare(a.Port, b.Port))
		})
	}
	return out
}

// Beyond is what other nodes know, and this one does not see.
type Beyond struct {
	// Explains reports whether the silence between a local and a remote address has its cause there; nil where none does.
	Explains func(local, remote netip.Addr) bool
	// Vacant are addresses of their pods' ranges that no pod has, with the node that says so.
	Vacant map[netip.Addr]string
}

// Besides is Diagnose with what other nodes know, without the Rows in the fixes. Evidence of theirs has their names.
func Besides(s *model.Snapshot, others Beyond) []model.Finding {
	v := newView(s)
	v.others = others
	return v.judge()
}

// stretch makes a time a part of what is between two others.
func stretch(first, last *time.Time, at time.Time) {
	if first.IsZero() || at.Before(*first) {
		*first = at
	}
	if at.After(*last) {
		*last = at
	}
}
