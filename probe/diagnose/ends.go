package diagnose

import (
	"cmp"
	"fmt"
	"hash/fnv"
	"maps"
	"net/netip"
	"slices"
	"time"

	"github.com/lasthop/lasthop/probe/fault/nat"
	"github.com/lasthop/lasthop/probe/model"
	"github.com/lasthop/lasthop/probe/node"
	"github.com/lasthop/lasthop/probe/words"
)

// Observe is what a snapshot holds of the node's traffic with others, and the findings, without the Rows in the fixes.
func Observe(s *model.Snapshot) (*model.Ends, []model.Finding) {
	v := newInput(s)
	found := judge(v)
	e := &model.Ends{
		Node: node.SetOf(node.Sorted(v.Own)), PodsKnown: s.Has(model.SourcePods), Tracked: s.Has(model.SourceConntrack),
		Pods: map[netip.Addr]bool{}, Fresh: maps.Clone(v.Classifier.Past), Ranges: v.OwnCIDRs(), Networks: v.OnLink,
		Uplink: v.Place(v.Uplink(), model.Egress), Returned: map[model.Transit]uint64{}, Delivered: map[netip.Addr]uint64{},
		Leaving: map[netip.Prefix]model.Volume{}, Arriving: map[netip.Prefix]model.Volume{},
		Uncounted: map[netip.Addr]bool{}, Folded: map[netip.Addr][]netip.Prefix{},
		Table: v.TableRow(), Given: map[netip.Addr][]netip.Addr{},
		Unwatched: words.Title("unwatched", words.Facts{
			"missing": s.Status(model.SourceTC) == model.Missing, "partial": !s.Has(model.SourceTC),
			"gaps": s.Traffic.Lost.Gaps, "alone": len(v.UplinkList) == 0,
		}),
		Elsewhere: elsewhere(v.Index),
		Tunnel:    node.NewTunnel(v.Index), Gone: map[netip.Addr]time.Time{}, Gateways: v.NextHops, Uplinks: map[int]bool{},
	}
	for _, p := range v.Ranges.Local {
		if e.Rows = append(e.Rows, v.Row(nil, v.Node.Name, p, node.NodeIP)); v.OwnRange(p.Addr()) {
			e.Own = append(e.Own, p)
		}
	}
	for i := range v.ByIndex {
		e.Uplinks[i] = v.IsUplink(i)
	}
	delete(e.Gateways, netip.Addr{})
	for _, set := range []map[netip.Addr]bool{e.Node, v.Classifier.Past} {
		for a := range set {
			e.Uncounted[a] = s.Traffic.Lost.Of(a).Peers > 0
		}
	}
	for _, p := range v.Folded {
		e.Folded[p.Local] = append(e.Folded[p.Local], p.Range)
	}
	for a, owners := range v.Owners {
		e.Pods[a], e.Uncounted[a] = true, s.Traffic.Lost.Of(a).Peers > 0
		if !slices.ContainsFunc(owners, v.PresentWholeWindow) {
			e.Fresh[a] = true
		}
	}
	for p := range model.Each(s.PastPods) {
		for _, a := range node.PodAddrs(p) {
			if !e.Pods[a] && p.Until.After(e.Gone[a]) {
				e.Gone[a] = p.Until
			}
		}
	}
	for h := range model.Each(s.Traffic.Hops) {
		l := v.ByIndex[h.IfIndex]
		switch {
		case v.IsTunnel(h.IfIndex):
			e.Tunnel.Add(h)
		case h.Prefix.IsValid() && v.IsUplink(h.IfIndex):
			e.AddRange(h)
		case h.Addr.IsValid() && h.Direction == model.Egress && h.Side == model.AsDestination && l != nil &&
			l.Role == model.RolePodLink:
			e.Delivered[h.Addr] += h.Packets
		}
	}
	for f := range model.Each(s.Flows) {
		if src, a := f.Original.Src, f.Reply.Dst; nat.GivenAway(v.Index, f) && !slices.Contains(e.Given[a], src) {
			e.Given[a] = append(e.Given[a], src)
		}
	}
	for d := range model.Each(s.Traffic.Drops) {
		if v.Own[d.Dst] != nil && v.Classifier.Lost(d) || v.IsUplink(d.IfIndex) {
			e.Dropped = append(e.Dropped, *d)
		}
	}
	e.Pairs, e.Began, e.Tunnel.Silent = endPairs(v.Index), began(v.Index), silentThrough(v.Index)
	return e, found
}

// elsewhere are the node's addresses that another machine may have as well, as anycast and load balancers that leave the
// destination as it is have it.
func elsewhere(v *node.Index) map[netip.Addr]bool {
	out := map[netip.Addr]bool{}
	for l := range model.Each(v.Links) {
		for _, a := range l.Addresses {
			if !v.IsUplink(l.Index) && (a.IsSingleIP() || l.Name == "lo") && !model.InAny(v.OnLink, a.Addr()) &&
				!model.InAny(v.Ranges.Local, a.Addr()) {
				out[a.Addr()] = true
			}
		}
	}
	return out
}

// maxBegan bounds the connections by which clocks are compared.
const maxBegan = 1024

func began(v *node.Index) []model.Began {
	own := func(a netip.Addr) bool { return v.Own[a] != nil || len(v.Owners[a]) > 0 || v.Classifier.Past[a] }
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
		if f.Start.IsZero() || f.Proto != model.TCP && f.Proto != model.UDP {
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

func endPairs(v *node.Index) []model.EndPair {
	asked, onward := askedPorts(v), onward(v)
	routes, reflected := map[netip.Addr]*model.EndRoute{}, v.Reflected()
	// Most remote addresses are alike, and each is kept for as long as nodes are compared.
	type likeness struct {
		routed bool
		to     netip.Prefix
	}
	alike := map[likeness]*model.EndRoute{}
	for p := range model.Each(v.Peers) {
		if routes[p.Remote] == nil {
			k := likeness{v.ByDefaultRoute(p.Remote), v.Remote(p.Remote)}
			if alike[k] == nil {
				alike[k] = &model.EndRoute{Routed: k.routed, Range: k.to}
			}
			routes[p.Remote] = alike[k]
		}
	}
	out := make([]model.EndPair, 0, len(v.Peers))
	for p := range model.Each(v.Peers) {
		if v.IsTunnel(p.IfIndex) {
			// What a tunnel carries is not counted by pair: see Tunnel.
			continue
		}
		e := model.EndPair{
			Local: p.Local, Remote: p.Remote, EndRoute: routes[p.Remote], Counts: model.Counts{Out: p.Out, In: p.In},
			Silent: v.Unanswered(p) && !v.LeftWithWrongMAC(p),
			First:  v.Window.Start, Last: v.Window.End, Asked: asked[node.Pair{Local: p.Local, Remote: p.Remote}],
		}
		if reflected[p.Local] {
			// What leaves is what came in.
			e.Out, e.Silent = model.PeerCount{}, false
		}
		if !p.FirstOut.IsZero() && !p.LastOut.IsZero() {
			e.First, e.Last = p.FirstOut, p.LastOut
		}
		if pods, to := v.FlowsOf(p).Pods, onward[node.Pair{Local: p.Local, Remote: p.Remote}]; v.Own[p.Local] != nil && len(pods)+len(to) > 0 {
			own := *e.EndRoute
			own.Onward, own.Behind = to, node.Sorted(pods)
			e.EndRoute = &own
		}
		out = append(out, e)
	}
	slices.SortFunc(out, model.ComparePairs)
	return out
}

// onward are the addresses that the node translates its own to, by the ends of the flows.
func onward(v *node.Index) map[node.Pair][]netip.Addr {
	out := map[node.Pair][]netip.Addr{}
	for f := range model.Each(v.Flows) {
		k, to := node.Pair{Local: f.Original.Dst, Remote: f.Original.Src}, f.Reply.Src
		if !f.Start.IsZero() && !f.Replied && v.Own[k.Local] != nil && to != k.Local && !slices.Contains(out[k], to) {
			out[k] = append(out[k], to)
		}
	}
	return out
}

// askedPorts are the ports of the flows of the window between the peers' ends, as
// the uplinks see them, whichever end began.
func askedPorts(v *node.Index) map[node.Pair][]model.Asked {
	out := map[node.Pair][]model.Asked{}
	add := func(k node.Pair, f *model.Flow, port uint16, here bool) {
		if v.FlowStates[k] == nil {
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
		}
		out[k] = list
	}
	for f := range model.Each(v.Flows) {
		if !f.Start.IsZero() {
			add(node.Pair{Local: f.Reply.Dst, Remote: f.Reply.Src}, f, f.Reply.SrcPort, false)
			add(node.Pair{Local: f.Original.Dst, Remote: f.Original.Src}, f, f.Original.DstPort, true)
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

// Besides is Judge with what other nodes know, without the Rows in the fixes. Evidence of theirs has their names.
func Besides(s *model.Snapshot, others node.Beyond) []model.Finding {
	with := *s
	others.Nodes = model.Filter(others.Nodes, func(n model.ClusterNode) bool {
		return model.First(s.Cluster.Nodes, func(o *model.ClusterNode) bool { return model.Meet(o.Addresses, n.Addresses) }) == nil
	})
	with.Cluster.Nodes = slices.Concat(s.Cluster.Nodes, others.Nodes)
	v := newInput(&with)
	v.Others = others
	return judge(v)
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

// RemoteRanges lists the other nodes' pod ranges: first those that packets and
// flows in the snapshot suggest, then the others that are known, each sorted.
func RemoteRanges(s *model.Snapshot) []netip.Prefix {
	v := node.New(s)
	// Many flows have few addresses.
	addrs := map[netip.Addr]bool{}
	for p := range model.Each(v.Traffic.Peers) {
		addrs[p.Remote] = true
	}
	for f := range model.Each(s.Flows) {
		addrs[f.Original.Dst], addrs[f.Reply.Src], addrs[f.Original.Src] = true, true, true
	}
	seen := map[netip.Prefix]bool{}
	for a := range addrs {
		seen[v.Remote(a)] = true
	}
	delete(seen, netip.Prefix{})
	known := map[netip.Prefix]bool{}
	for _, n := range v.Ranges.Nodes {
		if !seen[n.Prefix] {
			known[n.Prefix] = true
		}
	}
	return append(slices.SortedFunc(maps.Keys(seen), netip.Prefix.Compare),
		slices.SortedFunc(maps.Keys(known), netip.Prefix.Compare)...)
}

// silentThrough are the tunnels' pairs without a reply, with when their connections began.
func silentThrough(v *node.Index) (out []model.EndPair) {
	at := map[node.Pair]int{}
	for p := range model.Each(v.Peers) {
		if v.IsTunnel(p.IfIndex) && v.Unanswered(p) {
			at[node.Pair{Local: p.Local, Remote: p.Remote}] = len(out)
			route := &model.EndRoute{Link: v.LinkName(p.IfIndex)}
			e := model.EndPair{Local: p.Local, Remote: p.Remote, EndRoute: route, Counts: model.Counts{Out: p.Out}, Silent: true}
			out = append(out, e)
		}
	}
	for f := range model.Each(v.Flows) {
		if i, silent := at[node.Pair{Local: f.Reply.Dst, Remote: f.Reply.Src}]; silent && !f.Replied && !f.Start.IsZero() {
			stretch(&out[i].First, &out[i].Last, f.Start)
		}
	}
	slices.SortFunc(out, model.ComparePairs)
	return out
}
