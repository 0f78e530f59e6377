package timeline

import (
	"cmp"
	"hash/maphash"
	"net/netip"
	"slices"
	"time"

	"github.com/lasthop/lasthop/probe/model"
)

// mark is what had been counted at a whole point, after its state was read.
// Things are known by hashes, so that many marks fit.
type mark struct {
	at    time.Time
	hops  list[hopCounts]
	peers list[peerCounts]
	macs  list[uint64]
	arp   list[uint64]
	drops list[uint64]
	lost  model.Lost
	rules ruleCounts
	// conntrack are statistics since the beginning.
	conntrack model.Conntrack
	// gaps are the sources of what is compared that were not read whole.
	gaps []model.Source
}

// compared are the sources of which a window tells what was added since.
var compared = []string{model.SourceEbtables, model.SourceNAT, model.SourceConntrack}

// gapsOf are the sources of a snapshot that no difference can be told from
// whole.
func gapsOf(s *model.Snapshot) []model.Source {
	var out []model.Source
	for _, src := range s.Sources {
		if src.Status != model.OK && slices.Contains(compared, src.Name) {
			out = append(out, src)
		}
	}
	return out
}

// unread reports whether a source was not read whole at the mark.
func (m *mark) unread(source string) bool {
	return slices.ContainsFunc(m.gaps, func(s model.Source) bool { return s.Name == source })
}

// over are the sources of a window that begins with the mark: none is better
// than it was then.
func (m *mark) over(now []model.Source) []model.Source {
	now = slices.Clone(now)
	for _, gap := range m.gaps {
		gap.Detail = "when the window began: " + gap.Detail
		i := slices.IndexFunc(now, func(s model.Source) bool { return s.Name == gap.Name })
		if i < 0 {
			now = append(now, gap)
			continue
		}
		if now[i].Detail != "" {
			gap.Detail = now[i].Detail + "; " + gap.Detail
		}
		now[i].Detail = gap.Detail
		if now[i].Status == model.OK {
			// What there is now was read, what was added since is not known.
			now[i].Status = model.Partial
		}
	}
	return now
}

type hopCounts struct{ packets, bytes, syn, synack, rst, icmpErrors, inner, outer, ttls uint64 }

type peerCounts struct{ out, in model.PeerCount }

// list is sorted by key. A key may be in it several times.
type list[V any] []entry[V]

type entry[V any] struct {
	key   uint64
	value V
}

// seed makes hashes that are the same in this process only.
var seed = maphash.MakeSeed()

func newList[T, V any](from []T, of func(*T) (uint64, V)) list[V] {
	out := make(list[V], len(from))
	for i := range from {
		out[i].key, out[i].value = of(&from[i])
	}
	slices.SortStableFunc(out, func(a, b entry[V]) int { return cmp.Compare(a.key, b.key) })
	return out
}

// of is the value of a key, the zero value if there is none.
func (l list[V]) of(key uint64) (v V) {
	if i, ok := l.find(key); ok {
		v = l[i].value
	}
	return v
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

func hopID(h *model.HopCount) uint64 {
	return maphash.Comparable(seed, hopKey{h.Addr, h.Prefix, h.IfIndex, h.Direction, h.Side})
}

func peerID(p *model.Peer) uint64 {
	return maphash.Comparable(seed, struct {
		local, remote netip.Addr
		ifindex       int
	}{p.Local, p.Remote, p.IfIndex})
}

func macID(p model.MACPair) uint64 {
	p.Packets = 0
	return maphash.Comparable(seed, p)
}

func arpID(a model.ARPCount) uint64 {
	a.Packets = 0
	return maphash.Comparable(seed, a)
}

func dropID(d model.Drop) uint64 {
	d.Packets, d.First, d.Last, d.Link = 0, time.Time{}, time.Time{}, ""
	return maphash.Comparable(seed, d)
}

func hopMark(h *model.HopCount) (uint64, hopCounts) {
	return hopID(h), hopCounts{h.Packets, h.Bytes, h.SYN, h.SYNACK, h.RST, h.ICMPErrors, h.FromInside, h.FromUplink, h.TTLs}
}

func peerMark(p *model.Peer) (uint64, peerCounts) { return peerID(p), peerCounts{p.Out, p.In} }

func macMark(p *model.MACPair) (uint64, uint64) { return macID(*p), p.Packets }

func arpMark(a *model.ARPCount) (uint64, uint64) { return arpID(*a), a.Packets }

func dropMark(d *model.Drop) (uint64, uint64) { return dropID(*d), d.Packets }

// overlay replaces what moved.
func (l *list[V]) overlay(moved list[V]) {
	for _, e := range moved {
		i, ok := l.find(e.key)
		if ok {
			(*l)[i] = e
		} else {
			*l = slices.Insert(*l, i, e)
		}
	}
}

func newMark(p model.Point) *mark {
	s := p.Snapshot
	t, after := &s.Traffic, &p.After
	m := &mark{
		at:    s.Window.End,
		hops:  newList(t.Hops, hopMark),
		peers: newList(t.Peers, peerMark),
		macs:  newList(t.MACs, macMark),
		arp:   newList(t.ARP, arpMark),
		drops: newList(t.Drops, dropMark),
		lost:  t.Lost,
		rules: newRuleCounts(s), conntrack: s.Conntrack,
		gaps: gapsOf(s),
	}
	if p.Ready.IsZero() {
		return m
	}
	m.at = p.Ready
	m.hops.overlay(newList(after.Hops, hopMark))
	m.peers.overlay(newList(after.Peers, peerMark))
	m.macs.overlay(newList(after.MACs, macMark))
	m.arp.overlay(newList(after.ARP, arpMark))
	m.drops.overlay(newList(after.Drops, dropMark))
	m.lost = after.Lost
	return m
}

// fold takes over the TTLs of a mark that is forgotten, whose time now belongs
// to this one's.
func (m *mark) fold(older *mark) {
	for _, e := range older.hops {
		if e.value.ttls == 0 {
			continue
		}
		if i, ok := m.hops.find(e.key); ok {
			m.hops[i].value.ttls |= e.value.ttls
		}
	}
}

// Moved are the entries of now that are not the same in before, and what was
// lost as of now.
func Moved(before, now *model.Traffic) model.Traffic {
	return model.Traffic{
		Hops: fresh(before.Hops, now.Hops), Peers: fresh(before.Peers, now.Peers), MACs: fresh(before.MACs, now.MACs),
		ARP: fresh(before.ARP, now.ARP), Drops: fresh(before.Drops, now.Drops), Lost: now.Lost,
	}
}

func fresh[T comparable](before, now []T) []T {
	seen := make(map[T]struct{}, len(before))
	for _, x := range before {
		seen[x] = struct{}{}
	}
	var out []T
	for _, x := range now {
		if _, ok := seen[x]; !ok {
			out = append(out, x)
		}
	}
	return out
}
