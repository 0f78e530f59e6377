package node

import (
	"net/netip"
	"slices"

	"github.com/lasthop/lasthop/probe/model"
)

// sentTraffic are the counts without the packets that were dropped in the queue of a
// link at whose egress they had been counted: what is left was sent. Which of the
// packets these are is not known, so that none of what is told apart is surely left.
func sentTraffic(s *model.Snapshot) model.Traffic {
	t, queued, untold := s.Traffic, QueuedDrops(s), UntoldDrops(s)
	if len(queued)+len(untold) == 0 {
		return t
	}
	node := model.SetOf(model.Flat(s.Links, func(l model.Link) []netip.Addr {
		return model.Map(l.Addresses, netip.Prefix.Addr)
	}))
	type end struct {
		addr    netip.Addr
		ifindex int
		side    model.Side
	}
	type ends struct {
		Pair
		ifindex int
	}
	byEnd, byPair := map[end]uint64{}, map[ends]uint64{}
	for _, d := range queued {
		byEnd[end{d.Src, d.IfIndex, model.AsSource}] += d.Packets
		byEnd[end{d.Dst, d.IfIndex, model.AsDestination}] += d.Packets
		byPair[ends{Pair{d.Src, d.Dst}, d.IfIndex}] += d.Packets
	}
	t.Hops, t.Peers = slices.Clone(t.Hops), slices.Clone(t.Peers)
	less := func(by uint64, counts ...*uint64) {
		for _, n := range counts {
			*n -= min(*n, by)
		}
	}
	for h := range model.Each(t.Hops) {
		if h.Direction == model.Egress {
			less(byEnd[end{h.Addr, h.IfIndex, h.Side}], &h.Packets, &h.SYN, &h.SYNACK, &h.FromInside, &h.FromUplink)
		}
	}
	for p := range model.Each(t.Peers) {
		n := byPair[ends{Pair{p.Local, p.Remote}, p.IfIndex}]
		if node[p.Local] {
			n += untold[p.IfIndex]
		}
		less(n, &p.Out.Packets, &p.Out.Requests, &p.Out.Replies, &p.Out.Other)
	}
	return t
}

// QueuedDrops are the node's drops in the queues of links.
func QueuedDrops(s *model.Snapshot) []*model.Drop {
	return model.Chosen(s.Traffic.Drops, func(d *model.Drop) bool {
		return d.Is(model.Queued) && (d.Netns == 0 || s.Node.Netns == 0 || d.Netns == s.Node.Netns)
	})
}

// UntoldDrops are, by link, what overfull queues dropped beside the packets of pods:
// packets with an address of the node's, which are counted for no pod.
func UntoldDrops(s *model.Snapshot) map[int]uint64 {
	out := map[int]uint64{}
	for q := range model.Each(s.Queues) {
		if Overfull(q) {
			out[q.IfIndex] = q.DropsDelta
		}
	}
	for _, d := range QueuedDrops(s) {
		if n, ok := out[d.IfIndex]; ok {
			out[d.IfIndex] = n - min(n, d.Packets)
		}
	}
	return out
}

// DroppedShare is the part of the packets, one in so many, from which on a queue's drops
// are a fault: TCP finds the rate of a limit by fewer.
const DroppedShare = 10

// Overfull reports whether a queue dropped a notable part of what came to it.
func Overfull(q *model.Queue) bool {
	return q.DropsDelta >= ManyRefused && q.DropsDelta*DroppedShare >= q.SentDelta+q.DropsDelta
}
