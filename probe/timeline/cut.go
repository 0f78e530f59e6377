package timeline

import (
	"slices"
	"strconv"
	"strings"
	"time"

	"github.com/lasthop/lasthop/probe/model"
)

// Between is the snapshot of what went on between two whole points of an
// observation. The first one's state was read before its counts.
func Between(first, last model.Point) *model.Snapshot {
	return cut{base: newMark(first)}.snapshot(last.Snapshot)
}

// cut is what went on since a mark.
func (t *Timeline) cut(base *mark, p model.Point) *model.Snapshot {
	i := slices.IndexFunc(t.marks, func(m *mark) bool { return m.at.After(base.at) })
	if i < 0 {
		i = len(t.marks)
	}
	return cut{base: base, between: t.marks[i:]}.snapshot(p.Snapshot)
}

// cut is one difference under way.
type cut struct {
	base *mark
	// between are the later marks, the oldest first.
	between []*mark
}

func (c cut) snapshot(now *model.Snapshot) *model.Snapshot {
	s := *now
	s.Window.Start = c.base.at
	s.Traffic = c.traffic(&now.Traffic)
	s.Sources = c.base.over(s.Sources)
	c.base.compareRules(&s)
	flowsUnread := c.base.unread(model.SourceConntrack)
	if flowsUnread {
		// Nothing was counted since that is known.
		s.Conntrack = since(s.Conntrack, s.Conntrack)
	} else {
		s.Conntrack = since(c.base.conntrack, s.Conntrack)
	}
	s.Flows = slices.Clone(s.Flows)
	for i := range s.Flows {
		if flowsUnread || !s.Flows[i].Start.After(c.base.at) {
			s.Flows[i].Start = time.Time{}
		}
	}
	s.PastPods = slices.DeleteFunc(slices.Clone(s.PastPods), func(p model.Pod) bool { return p.Until.Before(c.base.at) })
	return &s
}

func (c cut) traffic(now *model.Traffic) model.Traffic {
	out := *now
	out.Lost = lostSince(c.base.lost, now.Lost)
	out.Hops, out.Peers, out.MACs, out.ARP, out.Drops, out.Samples = nil, nil, nil, nil, nil, nil
	for i := range now.Hops {
		if h, ok := c.hop(now.Hops[i]); ok {
			out.Hops = append(out.Hops, h)
		}
	}
	for i := range now.Peers {
		if p, ok := c.peer(now.Peers[i]); ok {
			out.Peers = append(out.Peers, p)
		}
	}
	for _, p := range now.MACs {
		if p.Packets = minus(p.Packets, c.base.macs.of(macID(p))); p.Packets > 0 {
			out.MACs = append(out.MACs, p)
		}
	}
	for _, a := range now.ARP {
		if a.Packets = minus(a.Packets, c.base.arp.of(arpID(a))); a.Packets > 0 {
			out.ARP = append(out.ARP, a)
		}
	}
	for i := range now.Drops {
		if d, ok := c.drop(now.Drops[i]); ok {
			out.Drops = append(out.Drops, d)
		}
	}
	for _, s := range now.Samples {
		if !s.Time.Before(c.base.at) {
			out.Samples = append(out.Samples, s)
		}
	}
	return out
}

// minus is what was counted since. A counter that fell began anew.
func minus(now, before uint64) uint64 {
	if now < before {
		return now
	}
	return now - before
}

func (c cut) hop(h model.HopCount) (model.HopCount, bool) {
	id := hopID(&h)
	b, total := c.base.hops.of(id), h.Packets
	if h.Packets = minus(h.Packets, b.packets); h.Packets == 0 {
		return h, false
	}
	if total >= b.packets {
		h.Bytes, h.SYN, h.SYNACK = minus(h.Bytes, b.bytes), minus(h.SYN, b.syn), minus(h.SYNACK, b.synack)
		h.RST, h.ICMPErrors = minus(h.RST, b.rst), minus(h.ICMPErrors, b.icmpErrors)
		h.FromInside, h.FromUplink = minus(h.FromInside, b.inner), minus(h.FromUplink, b.outer)
	}
	for _, m := range c.between {
		h.TTLs |= m.hops.of(id).ttls
	}
	h.First = c.first(h.First, h.Last, func(m *mark) bool { return m.hops.of(id).packets > b.packets })
	return h, true
}

func (c cut) peer(p model.Peer) (model.Peer, bool) {
	id := peerID(&p)
	b := c.base.peers.of(id)
	if p.Out.Packets < b.out.Packets || p.In.Packets < b.in.Packets {
		b = peerCounts{}
	}
	p.Out, p.In = peerSince(b.out, p.Out), peerSince(b.in, p.In)
	none := model.PeerCount{}
	if p.Out == none && p.In == none {
		return p, false
	}
	if p.Out.Packets == 0 {
		p.FirstOut, p.LastOut = time.Time{}, time.Time{}
	} else {
		p.FirstOut = c.first(p.FirstOut, p.LastOut, func(m *mark) bool { return m.peers.of(id).out.Packets > b.out.Packets })
	}
	if p.In.Packets == 0 {
		p.LastIn = time.Time{}
	}
	return p, true
}

func peerSince(b, now model.PeerCount) model.PeerCount {
	n := model.PeerCount{
		Packets: minus(now.Packets, b.Packets), Requests: minus(now.Requests, b.Requests),
		Replies: minus(now.Replies, b.Replies), ICMPErrors: minus(now.ICMPErrors, b.ICMPErrors),
	}
	// Each was read by itself while it moved.
	if told := n.Requests + n.Replies; told < n.Packets {
		n.Other = n.Packets - told
	}
	return n
}

func (c cut) drop(d model.Drop) (model.Drop, bool) {
	id := dropID(d)
	b := c.base.drops.of(id)
	if d.Packets = minus(d.Packets, b); d.Packets == 0 {
		return d, false
	}
	d.First = c.first(d.First, d.Last, func(m *mark) bool { return m.drops.of(id) > b })
	return d, true
}

// first is when something of the window was first seen, never earlier than it
// was: at the first mark that had more of it. ever and last are when it was
// seen first and last of all.
func (c cut) first(ever, last time.Time, more func(*mark) bool) time.Time {
	if ever.After(c.base.at) {
		return ever
	}
	for _, m := range c.between {
		if more(m) && m.at.Before(last) {
			return m.at
		}
	}
	return last
}

func lostSince(b, now model.Lost) model.Lost {
	out := model.Lost{
		Events: minus(now.Events, b.Events), Counters: minus(now.Counters, b.Counters),
		MACs: minus(now.MACs, b.MACs), Unparsed: minus(now.Unparsed, b.Unparsed),
	}
	before := map[string]uint64{}
	for _, d := range b.Detail {
		n, what := loss(d)
		before[what] = n
	}
	for _, d := range now.Detail {
		n, what := loss(d)
		if n = minus(n, before[what]); n > 0 {
			out.Detail = append(out.Detail, strconv.FormatUint(n, 10)+" "+what)
		}
	}
	return out
}

// loss takes a detail of a loss apart: a number and what there was of it.
func loss(detail string) (uint64, string) {
	number, what, _ := strings.Cut(detail, " ")
	n, err := strconv.ParseUint(number, 10, 64)
	if err != nil {
		return 1, detail
	}
	return n, what
}

// since turns statistics into what was added since. The table's size and limit
// are as they are now.
func since(b, now model.Conntrack) model.Conntrack {
	now.InsertFailed = minus(now.InsertFailed, b.InsertFailed)
	now.Drop = minus(now.Drop, b.Drop)
	now.EarlyDrop = minus(now.EarlyDrop, b.EarlyDrop)
	now.Invalid = minus(now.Invalid, b.Invalid)
	now.SearchRestart = minus(now.SearchRestart, b.SearchRestart)
	now.Found = minus(now.Found, b.Found)
	now.Insert = minus(now.Insert, b.Insert)
	now.ErrorPacket = minus(now.ErrorPacket, b.ErrorPacket)
	return now
}
