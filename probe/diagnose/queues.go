package diagnose

import (
	"net/netip"
	"slices"

	"github.com/lasthop/lasthop/probe/model"
)

// sentTraffic are the counts without the packets that were dropped in the queue of a
// link at whose egress they had been counted: what is left was sent. Which of the
// packets these are is not known, so that none of what is told apart is surely left.
func sentTraffic(s *model.Snapshot) model.Traffic {
	t := s.Traffic
	queued, untold := queuedDrops(s), untoldDrops(s)
	if len(queued)+len(untold) == 0 {
		return t
	}
	node := map[netip.Addr]bool{}
	for _, l := range s.Links {
		for _, a := range l.Addresses {
			node[a.Addr()] = true
		}
	}
	type end struct {
		addr    netip.Addr
		ifindex int
		side    model.Side
	}
	type ends struct {
		pair
		ifindex int
	}
	byEnd, byPair := map[end]uint64{}, map[ends]uint64{}
	for _, d := range queued {
		byEnd[end{d.Src, d.IfIndex, model.AsSource}] += d.Packets
		byEnd[end{d.Dst, d.IfIndex, model.AsDestination}] += d.Packets
		byPair[ends{pair{d.Src, d.Dst}, d.IfIndex}] += d.Packets
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
		n := byPair[ends{pair{p.Local, p.Remote}, p.IfIndex}]
		if node[p.Local] {
			n += untold[p.IfIndex]
		}
		less(n, &p.Out.Packets, &p.Out.Requests, &p.Out.Replies, &p.Out.Other)
	}
	return t
}

// queuedDrops are the node's drops in the queues of links.
func queuedDrops(s *model.Snapshot) []*model.Drop {
	return chosen(s.Traffic.Drops, func(d *model.Drop) bool {
		return d.Queued() && (d.Netns == 0 || s.Node.Netns == 0 || d.Netns == s.Node.Netns)
	})
}

// untoldDrops are, by link, what overfull queues dropped beside the packets of pods:
// packets with an address of the node's, which are counted for no pod.
func untoldDrops(s *model.Snapshot) map[int]uint64 {
	out := map[int]uint64{}
	for q := range model.Each(s.Queues) {
		if overfull(q) {
			out[q.IfIndex] = q.DropsDelta
		}
	}
	for _, d := range queuedDrops(s) {
		if n, ok := out[d.IfIndex]; ok {
			out[d.IfIndex] = n - min(n, d.Packets)
		}
	}
	return out
}

// droppedShare is the part of the packets, one in so many, from which on a queue's drops
// are a fault: TCP finds the rate of a limit by fewer.
const droppedShare = 10

// overfull reports whether a queue dropped a notable part of what came to it.
func overfull(q *model.Queue) bool {
	return q.DropsDelta >= manyRefused && q.DropsDelta*droppedShare >= q.SentDelta+q.DropsDelta
}
