package model

import (
	"cmp"
	"net/netip"
	"slices"
	"time"
)

// Ends is, in brief, what a node saw of its traffic with others: what a comparison
// with the nodes at the other ends needs.
type Ends struct {
	// Node are the node's own addresses, Pods those of its running pods. Of a Fresh
	// one, which did not live through the window, silence proves nothing.
	Node, Pods, Fresh map[netip.Addr]bool
	// Gone says when pods were last seen that went during the window, by addresses that no other pod has taken.
	Gone map[netip.Addr]time.Time
	// Elsewhere are addresses of the node that another machine may have as well: on its loopback, or single ones
	// outside its networks.
	Elsewhere map[netip.Addr]bool
	// PodsKnown: the node has no other pods. Tracked: all its flows are known.
	PodsKnown, Tracked bool
	// Ranges are the node's pod ranges that the network needs a route to; none where
	// the network works in another way. Networks are those on link at the uplinks.
	Ranges, Networks []netip.Prefix
	// Own are all ranges that are known to be of the node's pods, and of no other's.
	Own []netip.Prefix
	// Uplink is the link by which most leaves.
	Uplink Place
	// Pairs are sorted by their addresses.
	Pairs []EndPair
	// Unwatched says why the node's silence proves nothing; empty where it does.
	Unwatched string
	// Returned are packets from and for ranges of other nodes' pods that came in by an uplink and left by one again.
	Returned map[Transit]uint64
	// Leaving and Arriving are the packets by uplinks for and from ranges of other nodes' pods.
	Leaving, Arriving map[netip.Prefix]Volume
	// Delivered are the packets that were handed to the link of each pod.
	Delivered map[netip.Addr]uint64
	// Uncounted are local addresses of which packets went uncounted, Folded the ranges
	// from which packets came to a local address without their single source.
	Uncounted map[netip.Addr]bool
	Folded    map[netip.Addr][]netip.Prefix
	// Rows are the routes to Ranges, Table what gives the subnet its table.
	Rows, Table []Row
	// Tunnel is of the links by which packets for other nodes' pods go within others; not set where there is none.
	Tunnel Tunnel
	// Gateways are the next hops of the node's routes.
	Gateways map[netip.Addr]bool
	// Began are connections with others that began in the window, sorted by their keys: of many those
	// with the least, so that two nodes have the same.
	Began []Began
	// Dropped are packets that the node's kernel dropped: those of uplinks, and those for the node's own addresses that
	// are lost, which may carry a tunnel.
	Dropped []Drop
	// Given are source addresses that are not the node's and that it gave to flows of
	// the window, with the pods that these are of.
	Given map[netip.Addr][]netip.Addr
	// Uplinks are the indexes of these links.
	Uplinks map[int]bool
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
	Place
	Kind string
	MAC  MAC
	Up   bool
}

// Volume is a number of packets and of their bytes.
type Volume struct{ Packets, Bytes uint64 }

// Transit is what packets between others are counted by: the range that they are from, or for.
type Transit struct {
	Range netip.Prefix
	Side  Side
}

// EndPair is the traffic of a local address with a remote one, over all uplinks. A thousand
// nodes' are held at once, so what few differ in is shared.
type EndPair struct {
	Local, Remote netip.Addr
	*EndRoute
	Counts
	// Silent: packets that want a reply left, and nothing shows that any arrived.
	Silent bool
	// First and Last are when packets were seen to leave: the window's ends where that is not known.
	First, Last time.Time
	// Asked are the protocols and ports of the flows between the two.
	Asked []Asked
}

// Counts are the packets of a pair.
type Counts struct{ Out, In PeerCount }

// EndRoute is where the packets of pairs go.
type EndRoute struct {
	// Link is the tunnel's link by which they leave; empty where uplinks count them.
	Link string
	// Routed: the node hands the packets to its default gateway.
	Routed bool
	// Range is the range of another node's pods that holds Remote; not valid where that is no other node's pod.
	Range netip.Prefix
	// Behind are pods whose packets go with the node's address.
	Behind []netip.Addr
	// Onward are those addresses that the node translates Local to in flows of the window
	// that Remote began and that got no reply.
	Onward []netip.Addr
}

// NodeRoute is a node's own route to pods of another.
type NodeRoute struct {
	Dst     netip.Prefix
	Gateway netip.Addr
	Link    string
	Table   int
	// Protocol is that of Route.
	Protocol string
	// Router: a default route has the same next hop, which may lead to all pods.
	Router bool
	// Text is the route as ip(8) prints it.
	Text string
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
	i, found := slices.BinarySearchFunc(e.Pairs, EndPair{Local: local, Remote: remote}, ComparePairs)
	return Either(found, i, -1)
}

// ComparePairs orders pairs by their addresses.
func ComparePairs(a, b EndPair) int {
	return cmp.Or(a.Local.Compare(b.Local), a.Remote.Compare(b.Remote))
}

// Asked is a port that flows of the window are to, 0 for a protocol without ports.
type Asked struct {
	Proto uint8
	Port  uint16
	// Here: the remote end began them, and the port is the local end's.
	Here bool
	// Replied and Unreplied are how many.
	Replied, Unreplied int
}

// Same reports whether both are of one port.
func (a Asked) Same(b Asked) bool { return a.Proto == b.Proto && a.Port == b.Port && a.Here == b.Here }

// MaxAsked bounds the ports of one pair.
const MaxAsked = 8

// Began is when a connection between the node or its pods and others began, by the
// node's clock. Key is the same on each node that it passes.
type Began struct {
	Key uint64
	At  time.Time
	// Here: the end that began it is the node's own, or its pod's. So it is for one of two
	// nodes: an address that both have is not one end.
	Here bool
}

// Sees reports whether the node would have counted packets from a remote address to a
// local one, so that their absence proves that none came.
func (e *Ends) Sees(local, remote netip.Addr) bool {
	return e.Unwatched == "" && (e.Node[local] || e.Pods[local]) && !e.Fresh[local] && !e.Uncounted[local] && !InAny(e.Folded[local], remote)
}

// Counted is what part of a window counted of each of the pairs, and the packets for and from ranges then.
func (e *Ends) Counted(t *Traffic) (pairs []Counts, leaving, arriving map[netip.Prefix]Volume) {
	pairs = make([]Counts, len(e.Pairs))
	for p := range Each(MergePeers(t.Peers, func(i int) bool { return e.Uplinks[i] })) {
		i := e.Index(p.Local, p.Remote)
		if i < 0 {
			continue
		}
		if pairs[i].In = p.In; e.Pairs[i].Out != (PeerCount{}) {
			// Otherwise what leaves is what came in.
			pairs[i].Out = p.Out
		}
	}
	part := Ends{Returned: map[Transit]uint64{}, Leaving: map[netip.Prefix]Volume{}, Arriving: map[netip.Prefix]Volume{}}
	for h := range Each(t.Hops) {
		if h.Prefix.IsValid() && e.Uplinks[h.IfIndex] {
			part.AddRange(h)
		}
	}
	return pairs, part.Leaving, part.Arriving
}

// AddRange adds what was counted of a range at an uplink.
func (e *Ends) AddRange(h *HopCount) {
	if h.Direction == Egress && h.FromUplink > 0 {
		e.Returned[Transit{h.Prefix, h.Side}] += h.FromUplink
	}
	var to map[netip.Prefix]Volume
	switch {
	case h.Direction == Egress && h.Side == AsDestination:
		to = e.Leaving
	case h.Direction == Ingress && h.Side == AsSource:
		to = e.Arriving
	default:
		return
	}
	n := to[h.Prefix]
	to[h.Prefix] = Volume{n.Packets + h.Packets, n.Bytes + h.Bytes}
}

// Add adds what was counted at a tunnel's link.
func (t *Tunnel) Add(h *HopCount) {
	switch {
	case h.Prefix.IsValid() && h.Direction == Egress && h.Side == AsDestination:
		t.Into[h.Prefix] += h.Packets
	case h.Prefix.IsValid() && h.Direction == Ingress && h.Side == AsSource:
		t.OutOf[h.Prefix] += h.Packets
	case h.Addr.IsValid() && h.Direction == Ingress && h.Side == AsDestination:
		t.For[h.Addr] += h.Packets
	}
}

// MergePeers sums what went between two addresses over all uplinks: an answer may return by another than the
// question left by. The link is the one that most left by.
func MergePeers(list []Peer, uplink func(ifindex int) bool) []Peer {
	at := make(map[[2]netip.Addr]int, len(list))
	out := make([]Peer, 0, len(list))
	// most is how much left by the link of each of out.
	var most []uint64
	for _, p := range list {
		if !uplink(p.IfIndex) {
			continue
		}
		k := [2]netip.Addr{p.Local, p.Remote}
		i, seen := at[k]
		if !seen {
			at[k] = len(out)
			out, most = append(out, p), append(most, p.Out.Packets)
			continue
		}
		m := &out[i]
		if p.Out.Packets > most[i] {
			most[i], m.IfIndex, m.Link = p.Out.Packets, p.IfIndex, p.Link
		}
		if m.FirstOut.IsZero() || !p.FirstOut.IsZero() && p.FirstOut.Before(m.FirstOut) {
			m.FirstOut = p.FirstOut
		}
		if p.LastOut.After(m.LastOut) {
			m.LastOut = p.LastOut
		}
		if p.LastIn.After(m.LastIn) {
			m.LastIn = p.LastIn
		}
		m.Out, m.In = addCounts(m.Out, p.Out), addCounts(m.In, p.In)
	}
	return out
}

func addCounts(a, b PeerCount) PeerCount {
	return PeerCount{
		Packets: a.Packets + b.Packets, Requests: a.Requests + b.Requests, Replies: a.Replies + b.Replies,
		Other: a.Other + b.Other, ICMPErrors: a.ICMPErrors + b.ICMPErrors, Fragments: a.Fragments + b.Fragments,
	}
}
