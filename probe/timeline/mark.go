package timeline

import (
	"cmp"
	"hash/maphash"
	"net/netip"
	"slices"
	"time"

	"github.com/lasthop/lasthop/probe/model"
)

// mark holds the counts at a point, at a whole one after its state was read.
type mark struct {
	at time.Time
	// early is set where the state was read before: what it shows may be of that time.
	early bool
	counts
	rules ruleCounts
	totals
	// conntrack are the kernel's totals.
	conntrack model.Conntrack
	// gaps are the compared sources that were not read whole.
	gaps []model.Source
}

// counts are the counters of a Traffic. Entries are keyed by hash, so that many marks fit in memory.
type counts struct {
	hops                    list[hopCounts]
	peers                   list[peerCounts]
	macs, arp, drops, pairs list[uint64]
	lost                    model.Lost
}

// compared are the sources whose counters a window shows as differences.
var compared = []string{
	model.SourceEbtables, model.SourceNAT, model.SourceConntrack, model.SourceQueues, model.SourceStats, model.SourceCilium,
}

// gapsOf returns the compared sources that were not read whole.
func gapsOf(s *model.Snapshot) []model.Source {
	return slices.DeleteFunc(slices.Clone(s.Sources), func(src model.Source) bool {
		return src.Status == model.OK || !slices.Contains(compared, src.Name)
	})
}

// unread reports whether a source was not read whole at the mark.
func (m *mark) unread(source string) bool {
	return slices.ContainsFunc(m.gaps, func(s model.Source) bool { return s.Name == source })
}

// over returns the sources of a window that begins with the mark. None has a better status than it had then.
func (m *mark) over(now []model.Source) []model.Source {
	now = slices.Clone(now)
	for _, gap := range m.gaps {
		why := gap.Detail
		gap.Detail = "at the start of the window: " + why
		i := slices.IndexFunc(now, func(s model.Source) bool { return s.Name == gap.Name })
		if i < 0 {
			now = append(now, gap)
			continue
		}
		switch {
		case now[i].Detail == why: // once suffices
		case now[i].Detail != "":
			now[i].Detail += "; " + gap.Detail
		default:
			now[i].Detail = gap.Detail
		}
		if now[i].Status == model.OK {
			// The present state was read; what was added is unknown.
			now[i].Status = model.Partial
		}
	}
	return now
}

type hopCounts struct{ packets, bytes, syn, synack, rst, icmpErrors, fromInside, fromUplink, ttls uint64 }

type peerCounts struct{ out, in model.PeerCount }

// list is sorted by key. A key may occur several times.
type list[V comparable] []entry[V]

type entry[V comparable] struct {
	key   uint64
	value V
}

// seed makes hashes valid within this process only.
var seed = maphash.MakeSeed()

func newList[T any, V comparable](from []T, of func(*T) (uint64, V)) list[V] {
	all, out := make(list[V], len(from)), make(list[V], len(from))
	// Entries are large: their places are sorted, and each is moved once.
	order := make([]entry[int], len(from))
	for i := range from {
		all[i].key, all[i].value = of(&from[i])
		order[i] = entry[int]{all[i].key, i}
	}
	slices.SortFunc(order, func(a, b entry[int]) int { return cmp.Or(cmp.Compare(a.key, b.key), a.value-b.value) })
	for i, o := range order {
		out[i] = all[o.value]
	}
	return out
}

func (l list[V]) of(key uint64) (v V) {
	if i, ok := l.find(key); ok {
		v = l[i].value
	}
	return v
}

// since are the entries that were not so before. Both are sorted.
func (l list[V]) since(before list[V]) list[V] {
	same := func(e entry[V]) bool {
		for len(before) > 0 && before[0].key < e.key {
			before = before[1:]
		}
		return len(before) > 0 && before[0] == e
	}
	return slices.Clone(slices.DeleteFunc(slices.Clone(l), same)) // no larger than it has to be
}

func (l list[V]) find(key uint64) (int, bool) {
	return slices.BinarySearchFunc(l, key, func(e entry[V], k uint64) int { return cmp.Compare(e.key, k) })
}

type hopKey struct {
	addr    netip.Addr
	prefix  netip.Prefix
	ifindex int
	dir     model.Direction
	side    model.Side
}

func keyOf(h *model.HopCount) hopKey { return hopKey{h.Addr, h.Prefix, h.IfIndex, h.Direction, h.Side} }

func hashOf(k hopKey) uint64 { return maphash.Comparable(seed, k) }

func hopID(h *model.HopCount) uint64 { return hashOf(keyOf(h)) }

func peerID(p *model.Peer) uint64 {
	return maphash.Comparable(seed, struct {
		local, remote netip.Addr
		far           netip.Prefix
		ifindex       int
	}{p.Local, p.Remote, p.Range, p.IfIndex})
}

func macID(p model.MACPair) uint64 {
	p.Packets = 0
	return maphash.Comparable(seed, p)
}

func arpID(a model.ARPCount) uint64 {
	a.Packets = 0
	return maphash.Comparable(seed, a)
}

func dropID(d *model.Drop) uint64 { return maphash.Comparable(seed, d.Key()) }

func pairID(p model.PairCount) uint64 {
	p.Packets = 0
	return maphash.Comparable(seed, p)
}

func newCounts(t *model.Traffic) counts {
	return counts{
		hops: newList(t.Hops, func(h *model.HopCount) (uint64, hopCounts) {
			return hopID(h), hopCounts{h.Packets, h.Bytes, h.SYN, h.SYNACK, h.RST, h.ICMPErrors, h.FromInside, h.FromUplink, h.TTLs}
		}),
		peers: newList(t.Peers, func(p *model.Peer) (uint64, peerCounts) { return peerID(p), peerCounts{p.Out, p.In} }),
		drops: newList(t.Drops, func(d *model.Drop) (uint64, uint64) { return dropID(d), d.Packets }),
		macs:  newList(t.MACs, func(p *model.MACPair) (uint64, uint64) { return macID(*p), p.Packets }),
		arp:   newList(t.ARP, func(a *model.ARPCount) (uint64, uint64) { return arpID(*a), a.Packets }),
		pairs: newList(t.Pairs, func(p *model.PairCount) (uint64, uint64) { return pairID(*p), p.Packets }),
		lost:  t.Lost,
	}
}

// since are the counters that moved.
func (c counts) since(before counts) counts {
	return counts{
		hops: c.hops.since(before.hops), peers: c.peers.since(before.peers), drops: c.drops.since(before.drops),
		macs: c.macs.since(before.macs), arp: c.arp.since(before.arp), pairs: c.pairs.since(before.pairs), lost: c.lost,
	}
}

// with are the counters as of a later time, at which some had moved.
func (c counts) with(moved counts) counts {
	return counts{
		hops: c.hops.with(moved.hops), peers: c.peers.with(moved.peers), drops: c.drops.with(moved.drops),
		macs: c.macs.with(moved.macs), arp: c.arp.with(moved.arp), pairs: c.pairs.with(moved.pairs), lost: moved.lost,
	}
}

// with is the list with newer entries. Both are sorted.
func (l list[V]) with(newer list[V]) list[V] {
	out := make(list[V], 0, len(l)+len(newer))
	for _, e := range l {
		for len(newer) > 0 && newer[0].key < e.key {
			out, newer = append(out, newer[0]), newer[1:]
		}
		if len(newer) > 0 && newer[0].key == e.key {
			e, newer = newer[0], newer[1:]
		}
		out = append(out, e)
	}
	return append(out, newer...)
}

func newMark(p model.Point, k *keeper) *mark {
	s := p.Snapshot
	m := &mark{
		at: s.Window.End, early: !p.Whole,
		counts: newCounts(&s.Traffic), rules: newRuleCounts(s, k), totals: totalsOf(s), conntrack: s.Conntrack, gaps: gapsOf(s),
	}
	if !p.Ready.IsZero() {
		m.at, m.counts = p.Ready, m.with(newCounts(&p.After))
	}
	return m
}

// fold adds the TTLs of an older mark that is removed. Its time belongs to the mark m now.
func (m *mark) fold(older *mark) {
	for _, e := range older.hops {
		if i, ok := m.hops.find(e.key); ok {
			m.hops[i].value.ttls |= e.value.ttls
		}
	}
}

// Moved returns the entries of now that differ from before, and the losses as of now.
func Moved(before, now *model.Traffic) model.Traffic {
	return model.Traffic{
		Hops: moved(before.Hops, now.Hops), Peers: moved(before.Peers, now.Peers), MACs: moved(before.MACs, now.MACs),
		ARP: moved(before.ARP, now.ARP), Drops: moved(before.Drops, now.Drops), Pairs: moved(before.Pairs, now.Pairs), Lost: now.Lost,
	}
}

func moved[T comparable](before, now []T) []T {
	seen := model.SetOf(before)
	return slices.Clone(model.Filter(now, func(x T) bool { return !seen[x] })) // no larger than it has to be
}
