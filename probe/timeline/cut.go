package timeline

import (
	"net/netip"
	"slices"
	"time"

	"github.com/lasthop/lasthop/probe/model"
)

// Between returns the snapshot of the window between two whole points of an
// observation. The state of the first was read before its counts.
func Between(first, last model.Point) *model.Snapshot {
	k := new(keeper)
	return cut{base: newMark(first, k), state: new(lastState), keys: k}.snapshot(last.Snapshot)
}

// Counted returns the window between any two points with its traffic alone. Whole or not, a point has all counts.
func Counted(first, last model.Point) *model.Snapshot {
	at := first.Snapshot.Window.End
	c := cut{base: &mark{at: at, counts: newCounts(&first.Snapshot.Traffic)}}
	return &model.Snapshot{Window: model.Window{Start: at, End: last.Snapshot.Window.End}, Traffic: c.traffic(&last.Snapshot.Traffic)}
}

// cut returns the snapshot of the window from a mark to p. state is that of the last such cut.
func (t *Timeline) cut(base *mark, p model.Point, state *lastState) *model.Snapshot {
	before := func(m *mark) bool { return !m.at.After(base.at) }
	whole := slices.DeleteFunc(slices.Clone(t.marks), before)
	between := slices.Concat(whole, slices.DeleteFunc(slices.Clone(t.moves), before))
	slices.SortStableFunc(between, func(a, b *mark) int { return a.at.Compare(b.at) })
	earlier := model.Filter(whole, func(m *mark) bool { return m.at.Before(p.Snapshot.Window.End) })
	return cut{base: base, whole: whole, earlier: earlier, between: between, state: state, keys: &t.keys}.snapshot(p.Snapshot)
}

// cut computes the snapshot of a window.
type cut struct {
	base *mark
	// between are the marks within the window, oldest first, whole those of whole points, earlier of these those before the
	// window's last point: a counter's TTLs are those since the whole point before.
	between, whole, earlier []*mark
	state                   *lastState
	keys                    *keeper
}

func (c cut) snapshot(now *model.Snapshot) *model.Snapshot {
	s := *now
	s.Window.Start, s.Traffic = c.base.at, c.traffic(&now.Traffic)
	s.Sources = c.base.over(s.Sources)
	listed := c.base.at
	if c.base.early {
		// What was first listed with the next state may be older than the window.
		listed = s.Window.End
		if len(c.whole) > 0 {
			listed = c.whole[0].at
		}
	}
	c.state.set(&s, c.base, listed, c.keys)
	c.base.compare(&s)
	then := c.base.conntrack
	if c.base.unread(model.SourceConntrack) {
		// What was counted since is unknown, so the differences are zero.
		then = s.Conntrack
	}
	// The table's size and limit are the present ones.
	s.Conntrack = difference(then, s.Conntrack, func(c *model.Conntrack) []*uint64 {
		return []*uint64{&c.InsertFailed, &c.Drop, &c.EarlyDrop, &c.Invalid, &c.SearchRestart, &c.Found, &c.Insert, &c.ErrorPacket}
	})
	s.PastPods = slices.DeleteFunc(slices.Clone(s.PastPods), func(p model.Pod) bool { return p.Until.Before(c.base.at.Add(-Middle)) })
	return &s
}

func (c cut) traffic(now *model.Traffic) model.Traffic {
	out := *now
	out.Lost = lostSince(c.base.lost, now.Lost)
	out.Hops = since(now.Hops, c.hop)
	out.Peers = since(now.Peers, c.peer)
	out.Drops = since(now.Drops, c.drop)
	out.MACs = since(now.MACs, func(p *model.MACPair) bool { return subtract(&p.Packets, c.base.macs.of(macID(*p))) })
	out.ARP = since(now.ARP, func(a *model.ARPCount) bool { return subtract(&a.Packets, c.base.arp.of(arpID(*a))) })
	out.Pairs = since(now.Pairs, func(p *model.PairCount) bool { return subtract(&p.Packets, c.base.pairs.of(pairID(*p))) })
	out.Samples = since(now.Samples, func(s *model.Sample) bool { return !s.Time.Before(c.base.at) })
	return out
}

// since returns the entries for which counted returns true. counted changes an entry to what was counted since.
func since[T any](now []T, counted func(*T) bool) []T {
	out := make([]T, 0, len(now))
	for _, x := range now {
		if counted(&x) {
			out = append(out, x)
		}
	}
	return out
}

// minus is what was counted since. A counter that is lower restarted from zero.
func minus(now, before uint64) uint64 { return model.Either(now < before, now, now-before) }

// subtract changes a counter to what was counted since, and reports whether it was anything.
func subtract(n *uint64, before uint64) bool {
	*n = minus(*n, before)
	return *n > 0
}

// difference is now with minus of those counters that of names.
func difference[T any](before, now T, of func(*T) []*uint64) T {
	then := of(&before)
	for i, n := range of(&now) {
		*n = minus(*n, *then[i])
	}
	return now
}

func (c cut) hop(h *model.HopCount) bool {
	id := hopID(h)
	b, total := c.base.hops.of(id), h.Packets
	if !subtract(&h.Packets, b.packets) {
		return false
	}
	if total >= b.packets {
		h.Bytes, h.SYN, h.SYNACK = minus(h.Bytes, b.bytes), minus(h.SYN, b.syn), minus(h.SYNACK, b.synack)
		h.RST, h.ICMPErrors = minus(h.RST, b.rst), minus(h.ICMPErrors, b.icmpErrors)
		h.FromInside, h.FromUplink = minus(h.FromInside, b.fromInside), minus(h.FromUplink, b.fromUplink)
	}
	// The first set of a window that begins between two states holds what came before, too.
	var ttls uint64
	before := model.Either(c.base.early, b.ttls, 0)
	for _, m := range c.earlier {
		ttls, before = ttls|m.hops.of(id).ttls&^before, 0
	}
	h.TTLs = ttls | h.TTLs&^before
	h.First = c.first(h.First, h.Last, func(m *mark) bool { return m.hops.of(id).packets > b.packets })
	return true
}

func (c cut) peer(p *model.Peer) bool {
	id := peerID(p)
	b := c.base.peers.of(id)
	if p.Out.Packets < b.out.Packets || p.In.Packets < b.in.Packets {
		b = peerCounts{}
	}
	p.Out, p.In = peerSince(b.out, p.Out), peerSince(b.in, p.In)
	if none := (model.PeerCount{}); p.Out == none && p.In == none {
		return false
	}
	if p.Out.Packets == 0 {
		p.FirstOut, p.LastOut = time.Time{}, time.Time{}
	} else {
		p.FirstOut = c.first(p.FirstOut, p.LastOut, func(m *mark) bool { return m.peers.of(id).out.Packets > b.out.Packets })
	}
	if p.In.Packets == 0 {
		p.LastIn = time.Time{}
	}
	return true
}

func peerSince(b, now model.PeerCount) model.PeerCount {
	c := model.NewPeerCount(minus(now.Packets, b.Packets), minus(now.Requests, b.Requests), minus(now.Replies, b.Replies), minus(now.ICMPErrors, b.ICMPErrors))
	c.Fragments = minus(now.Fragments, b.Fragments)
	return c
}

func (c cut) drop(d *model.Drop) bool {
	id := dropID(d)
	b := c.base.drops.of(id)
	if !subtract(&d.Packets, b) {
		return false
	}
	d.First = c.first(d.First, d.Last, func(m *mark) bool { return m.drops.of(id) > b })
	return true
}

// first is when a counter first moved in the window, or later: the first mark at
// which more was true. ever and last are when it first and last moved at all.
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
	out := difference(b, now, func(l *model.Lost) []*uint64 {
		return []*uint64{&l.Events, &l.Counters, &l.MACs, &l.Others, &l.Unparsed, &l.Malformed, &l.Missed, &l.Gaps}
	})
	out.Addrs = nil
	lost := model.Table(b.Addrs, func(l *model.AddrLoss) (netip.Addr, model.AddrLoss) { return l.Addr, *l })
	for _, l := range now.Addrs {
		l = difference(lost[l.Addr], l, func(l *model.AddrLoss) []*uint64 {
			return []*uint64{&l.Hops, &l.Peers, &l.Pairs, &l.Drops, &l.MACs}
		})
		if l != (model.AddrLoss{Addr: l.Addr}) {
			out.Addrs = append(out.Addrs, l)
		}
	}
	before := model.Table(b.Detail, func(u *model.Uncounted) (string, uint64) { return u.Why, u.Packets })
	out.Detail = nil
	for _, u := range now.Detail {
		if subtract(&u.Packets, before[u.Why]) {
			out.Detail = append(out.Detail, u)
		}
	}
	return out
}
