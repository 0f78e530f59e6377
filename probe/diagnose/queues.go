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
	var queued []*model.Drop
	for d := range model.Each(t.Drops) {
		if d.Queued() && (d.Netns == 0 || s.Node.Netns == 0 || d.Netns == s.Node.Netns) {
			queued = append(queued, d)
		}
	}
	if len(queued) == 0 {
		return t
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
	less := func(n *uint64, by uint64) { *n -= min(*n, by) }
	for h := range model.Each(t.Hops) {
		if n := byEnd[end{h.Addr, h.IfIndex, h.Side}]; n > 0 && h.Direction == model.Egress {
			less(&h.Packets, n)
			less(&h.SYN, n)
			less(&h.SYNACK, n)
			less(&h.FromInside, n)
			less(&h.FromUplink, n)
		}
	}
	for p := range model.Each(t.Peers) {
		if n := byPair[ends{pair{p.Local, p.Remote}, p.IfIndex}]; n > 0 {
			less(&p.Out.Packets, n)
			less(&p.Out.Requests, n)
			less(&p.Out.Replies, n)
			less(&p.Out.Other, n)
		}
	}
	return t
}

// queue is that of a link, nil where it has none.
func (v *view) queue(ifindex int) *model.Queue {
	i := slices.IndexFunc(v.Queues, func(q model.Queue) bool { return q.IfIndex == ifindex })
	if i < 0 {
		return nil
	}
	return &v.Queues[i]
}
