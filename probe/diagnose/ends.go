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

// Ends is, in brief, what a node saw of its traffic with others: what a comparison
// with the nodes at the other ends needs.
type Ends struct {
	// Node are the node's own addresses, Pods those of its running pods. Of a Fresh
	// one, which did not live through the window, silence proves nothing.
	Node, Pods, Fresh map[netip.Addr]bool
	// Gone says when pods were last seen that went during the window, by addresses that no
	// other pod has taken.
	Gone map[netip.Addr]time.Time
	// PodsKnown: the node has no other pods. Tracked: all its flows are known.
	PodsKnown, Tracked bool
	// Ranges are the node's pod ranges that the network needs a route to; none where
	// the network works in another way. Networks are those on link at the uplinks.
	Ranges, Networks []netip.Prefix
	// Own are all ranges that are known to be of the node's pods, and of no other's.
	Own []netip.Prefix
	// Uplink is the link by which most leaves.
	Uplink model.Place
	// Pairs are sorted by their addresses.
	Pairs []EndPair
	// Unwatched says why the node's silence proves nothing; empty where it does.
	Unwatched string
	// Returned are packets from and for ranges of other nodes' pods that came in by an
	// uplink and left by one again.
	Returned map[Transit]uint64
	// Leaving and Arriving are the packets by uplinks for and from ranges of other
	// nodes' pods.
	Leaving, Arriving map[netip.Prefix]Volume
	// Delivered are the packets that were handed to the link of each pod.
	Delivered map[netip.Addr]uint64
	// Uncounted are local addresses of which packets went uncounted, Folded the ranges
	// from which packets came to a local address without their single source.
	Uncounted map[netip.Addr]bool
	Folded    map[netip.Addr][]netip.Prefix
	// Rows are the routes to Ranges, Table what gives the subnet its table.
	Rows, Table []model.Row
	// Tunnel is of the links by which packets for other nodes' pods go within others; not
	// set where there is none.
	Tunnel Tunnel
	// Gateways are the next hops of the node's routes.
	Gateways map[netip.Addr]bool
	// Began are connections with others that began in the window, sorted by their keys: of many those
	// with the least, so that two nodes have the same.
	Began []Began
	// Dropped are packets for the node's own addresses, which may carry a tunnel, that its
	// kernel dropped.
	Dropped []model.Drop
	// Given are source addresses that are not the node's and that it gave to flows of
	// the window, with the pods that these are of.
	Given map[netip.Addr][]netip.Addr
	// uplinks are the indexes of these links.
	uplinks map[int]bool
}

// Tunnel is what a node's tunnels carry, which at uplinks is counted for the nodes.
type Tunnel struct {
	Links []TunnelLink
	// Into are the packets for each range of other nodes' pods, OutOf those from it,
	// and For those for each of this node's pods.
	Into, OutOf map[netip.Prefix]uint64
	For         map[netip.Addr]uint64
	// Silent are pairs whose connections of the window go by it and get no reply.
	Silent []EndPair
}

// TunnelLink is the link of one of a node's tunnels.
type TunnelLink struct {
	model.Place
	Kind string
	MAC  model.MAC
	Up   bool
}

// Volume is a number of packets and of their bytes.
type Volume struct{ Packets, Bytes uint64 }

// Transit is what packets between others are counted by: the range that they are
// from, or for.
type Transit struct {
	Range netip.Prefix
	Side  model.Side
}

// EndPair is the traffic of a local address with a remote one, over all uplinks. A thousand
// nodes' are held at once, so what few differ in is shared.
type EndPair struct {
	Local, Remote netip.Addr
	*EndRoute
	Counts
	// Silent: packets that want a reply left, and nothing shows that any arrived.
	Silent bool
	// First and Last are when packets were seen to leave: the window's ends where that
	// is not known.
	First, Last time.Time
	// Asked are the protocols and ports of the flows between the two.
	Asked []Asked
}

// Counts are the packets of a pair.
type Counts struct{ Out, In model.PeerCount }

// EndRoute is where the packets of pairs go.
type EndRoute struct {
	// Link is the tunnel's link by which they leave; empty where uplinks count them.
	Link string
	// Routed: the node hands the packets to its default gateway.
	Routed bool
	// Via is the route of the node's own by which they leave; nil where it has none for
	// Remote's range alone.
	Via *NodeRoute
	// Range is the range of another node's pods that holds Remote; not valid where that
	// is no other node's pod.
	Range netip.Prefix
	// Behind are pods whose packets go with the node's address.
	Behind []netip.Addr
	// Onward are those addresses that the node translates Local to in flows of the window
	// that Remote began and that got no reply.
	Onward []netip.Addr
}

// Pair is that of two addresses; an empty one where there is none.
func (e *Ends) Pair(local, remote netip.Addr) *EndPair {
	if i := e.Index(local, remote); i >= 0 {
		return &e.Pairs[i]
	}
	return &EndPair{EndRoute: &EndRoute{}}
}

// Index is that of a pair, -1 if there is none.
func (e *Ends) Index(local, remote netip.Addr) int {
	i, found := slices.BinarySearchFunc(e.Pairs, EndPair{Local: local, Remote: remote}, comparePairs)
	if !found {
		return -1
	}
	return i
}

func comparePairs(a, b EndPair) int {
	return cmp.Or(a.Local.Compare(b.Local), a.Remote.Compare(b.Remote))
}

// Asked is a port that flows of the window are to, 0 for a protocol without ports.
type Asked struct {
	Proto uint8
	Port  uint16
	// Here: the remote end began them, and the port is the local end's.
	Here bool
	// Replied and Unreplied are how many. First and Last are when the unreplied began.
	Replied, Unreplied int
	First, Last        time.Time
}

// Same reports whether both are of one port.
func (a Asked) Same(b Asked) bool { return a.Proto == b.Proto && a.Port == b.Port && a.Here == b.Here }

// MaxAsked bounds the ports of one pair.
const MaxAsked = 8

// Observe is what a snapshot holds of the node's traffic with others, and Diagnose, without
// the Rows in the fixes.
func Observe(s *model.Snapshot) (*Ends, []model.Finding) {
	v := newView(s)
	found := v.judge()
	e := &Ends{
		Node: v.nodeAddrs, PodsKnown: s.Has(model.SourcePods), Tracked: s.Has(model.SourceConntrack),
		Pods: map[netip.Addr]bool{}, Fresh: maps.Clone(v.past), Ranges: v.ownCIDRs(), Networks: v.onLink,
		Uplink: v.place(v.uplink(), model.Egress), Returned: map[Transit]uint64{}, Delivered: map[netip.Addr]uint64{},
		Leaving: map[netip.Prefix]Volume{}, Arriving: map[netip.Prefix]Volume{},
		Uncounted: map[netip.Addr]bool{}, Folded: map[netip.Addr][]netip.Prefix{},
		Table: v.tableRow(), Given: map[netip.Addr][]netip.Addr{},
		Unwatched: words.Title("unwatched", facts{
			"missing": s.Status(model.SourceTC) == model.Missing, "partial": !s.Has(model.SourceTC),
			"gaps": s.Traffic.Lost.Gaps,
		}),
		Tunnel: newTunnel(v), Gone: map[netip.Addr]time.Time{}, Gateways: v.nextHops, uplinks: map[int]bool{},
	}
	for _, p := range v.ranges.local {
		e.Rows = append(e.Rows, v.row(nil, v.Node.Name, p, NodeIP))
	}
	for i := range v.links {
		e.uplinks[i] = v.isUplink(i)
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
	for a, owners := range v.pods {
		e.Pods[a], e.Uncounted[a] = true, s.Traffic.Lost.Of(a).Peers > 0
		if !slices.ContainsFunc(owners, v.stood) {
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
		l := v.links[h.IfIndex]
		switch {
		case v.isTunnel(h.IfIndex):
			e.Tunnel.add(h)
		case h.Prefix.IsValid() && v.isUplink(h.IfIndex):
			e.addRange(h)
		case h.Addr.IsValid() && h.Direction == model.Egress && h.Side == model.AsDestination && l != nil && l.Role == model.RolePodLink:
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
	for _, p := range v.ranges.local {
		if v.ownRange(p.Addr()) {
			e.Own = append(e.Own, p)
		}
	}
	e.Pairs, e.Began = endPairs(v), began(v)
	e.Tunnel.silent(v)
	return e, found
}

// Counted is what part of a window counted of each of the pairs, and the packets for and from
// ranges then.
func (e *Ends) Counted(t *model.Traffic) (pairs []Counts, leaving, arriving map[netip.Prefix]Volume) {
	pairs = make([]Counts, len(e.Pairs))
	for p := range model.Each(mergePeers(t.Peers, func(i int) bool { return e.uplinks[i] })) {
		i := e.Index(p.Local, p.Remote)
		if i < 0 {
			continue
		}
		if pairs[i].In = p.In; e.Pairs[i].Out != (model.PeerCount{}) {
			// Otherwise what leaves is what came in.
			pairs[i].Out = p.Out
		}
	}
	part := Ends{Returned: map[Transit]uint64{}, Leaving: map[netip.Prefix]Volume{}, Arriving: map[netip.Prefix]Volume{}}
	for h := range model.Each(t.Hops) {
		if h.Prefix.IsValid() && e.uplinks[h.IfIndex] {
			part.addRange(h)
		}
	}
	return pairs, part.Leaving, part.Arriving
}

// addRange adds what was counted of a range at an uplink.
func (e *Ends) addRange(h *model.HopCount) {
	if h.Direction == model.Egress && h.FromUplink > 0 {
		e.Returned[Transit{h.Prefix, h.Side}] += h.FromUplink
	}
	var to map[netip.Prefix]Volume
	switch {
	case h.Direction == model.Egress && h.Side == model.AsDestination:
		to = e.Leaving
	case h.Direction == model.Ingress && h.Side == model.AsSource:
		to = e.Arriving
	default:
		return
	}
	n := to[h.Prefix]
	to[h.Prefix] = Volume{n.Packets + h.Packets, n.Bytes + h.Bytes}
}

// Sees reports whether the node would have counted packets from a remote address to a
// local one, so that their absence proves that none came.
func (e *Ends) Sees(local, remote netip.Addr) bool {
	return e.Unwatched == "" && (e.Node[local] || e.Pods[local]) && !e.Fresh[local] && !e.Uncounted[local] && !inAny(e.Folded[local], remote)
}

// Began is when a connection between the node or its pods and others began, by the
// node's clock. Key is the same on each node that it passes.
type Began struct {
	Key uint64
	At  time.Time
	// Here: the end that began it is the node's own, or its pod's. So it is for one of two
	// nodes: an address that both have is not one end.
	Here bool
}

// maxBegan bounds the connections by which clocks are compared.
const maxBegan = 1024

func began(v *view) []Began {
	own := func(a netip.Addr) bool { return v.nodeAddrs[a] || len(v.pods[a]) > 0 || v.past[a] }
	var out []Began
	add := func(f *model.Flow, src, dst netip.AddrPort) {
		here := own(src.Addr())
		if here == own(dst.Addr()) || !src.Addr().IsGlobalUnicast() || !dst.Addr().IsGlobalUnicast() {
			return
		}
		h := fnv.New64a()
		fmt.Fprint(h, f.Proto, src, dst)
		out = append(out, Began{h.Sum64(), f.Start, here})
	}
	for f := range model.Each(v.Flows) {
		if f.Start.IsZero() || f.Proto != tcp && f.Proto != udp {
			continue
		}
		// As it comes in, and as it leaves.
		in, from := netip.AddrPortFrom(f.Original.Src, f.Original.SrcPort), netip.AddrPortFrom(f.Original.Dst, f.Original.DstPort)
		out, to := netip.AddrPortFrom(f.Reply.Dst, f.Reply.DstPort), netip.AddrPortFrom(f.Reply.Src, f.Reply.SrcPort)
		add(f, in, from)
		if in != out || from != to {
			add(f, out, to)
		}
	}
	slices.SortFunc(out, func(a, b Began) int { return cmp.Or(cmp.Compare(a.Key, b.Key), a.At.Compare(b.At)) })
	return slices.Clone(out[:min(len(out), maxBegan)])
}

func endPairs(v *view) []EndPair {
	asked, behind, onward := askedPorts(v), v.unrepliedFlows(), v.onward()
	routes, reflected := map[netip.Addr]*EndRoute{}, v.reflected()
	for p := range model.Each(v.peers) {
		if routes[p.Remote] == nil {
			r := &EndRoute{Routed: v.byDefaultRoute(p.Remote), Range: v.remote(p.Remote)}
			if r.Range.IsValid() && !r.Routed {
				r.Via = v.nodeRoute(v.sentBy(p), r.Range)
			}
			routes[p.Remote] = r
		}
	}
	out := make([]EndPair, 0, len(v.peers))
	for p := range model.Each(v.peers) {
		if v.isTunnel(p.IfIndex) {
			// What a tunnel carries is not counted by pair: see Tunnel.
			continue
		}
		e := EndPair{
			Local: p.Local, Remote: p.Remote, EndRoute: routes[p.Remote], Counts: Counts{p.Out, p.In}, Silent: v.unanswered(p) && !v.sentAstray(p),
			First: v.Window.Start, Last: v.Window.End, Asked: asked[pair{p.Local, p.Remote}],
		}
		if reflected[p.Local] {
			// What leaves is what came in.
			e.Out, e.Silent = model.PeerCount{}, false
		}
		if !p.FirstOut.IsZero() && !p.LastOut.IsZero() {
			e.First, e.Last = p.FirstOut, p.LastOut
		}
		if m, to := behind[pair{p.Local, p.Remote}], onward[pair{p.Local, p.Remote}]; v.nodeAddrs[p.Local] && (m != nil || to != nil) {
			own := *e.EndRoute
			if own.Onward = to; m != nil {
				own.Behind = sorted(m.pods)
			}
			e.EndRoute = &own
		}
		out = append(out, e)
	}
	slices.SortFunc(out, comparePairs)
	return out
}

// onward are the addresses that the node translates its own to, by the ends of the flows.
func (v *view) onward() map[pair][]netip.Addr {
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
func askedPorts(v *view) map[pair][]Asked {
	out := map[pair][]Asked{}
	add := func(k pair, f *model.Flow, port uint16, here bool) {
		if v.flows[k] == nil {
			return
		}
		list, one := out[k], Asked{Proto: f.Proto, Port: port, Here: here}
		at := slices.IndexFunc(list, one.Same)
		switch {
		case at < 0 && len(list) == MaxAsked:
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
		slices.SortFunc(list, func(a, b Asked) int {
			here := map[bool]int{true: 1}
			return cmp.Or(here[a.Here]-here[b.Here], cmp.Compare(a.Proto, b.Proto), cmp.Compare(a.Port, b.Port))
		})
	}
	return out
}

// Beyond is what other nodes know, and this one does not see.
type Beyond struct {
	// Explains reports whether the silence between a local and a remote address has its
	// cause there; nil where none does.
	Explains func(local, remote netip.Addr) bool
	// Vacant are addresses of their pods' ranges that no pod has, with the node that
	// says so.
	Vacant map[netip.Addr]string
}

// Besides is Diagnose with what other nodes know, without the Rows in the fixes. Evidence of
// theirs has their names.
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
