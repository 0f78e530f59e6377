package ledger

import (
	"net/netip"
	"slices"

	"github.com/lasthop/lasthop/probe/loss"
	"github.com/lasthop/lasthop/probe/model"
)

// tally is one counter at the four readings: two at each edge of the window.
type tally [4]uint64

// The readings, in their order.
const (
	start = iota
	startAgain
	end
	endAgain
)

func (t tally) plus(u tally) tally {
	for i := range t {
		t[i] += u[i]
	}
	return t
}

// minus stays at zero where counters that were read one after the other disagree.
func (t tally) minus(u tally) tally {
	for i := range t {
		t[i] = less(t[i], u[i])
	}
	return t
}

func less(a, b uint64) uint64 { return a - min(a, b) }

// window is what was counted between the first and the third reading.
func (t tally) window() uint64 { return less(t[end], t[start]) }

// early is what surely came after the window began and before it ended: such
// packets have had the time to come out. late is what may have been these.
func (t tally) early() uint64 { return less(t[end], t[startAgain]) }
func (t tally) late() uint64  { return less(t[endAgain], t[start]) }

// edge is what was counted while the readings were taken.
func (t tally) edge() uint64 { return less(t.late(), t.early()) }

// each calls f for every reading of the snapshot's counters. Where no edge was
// read, counting began at zero, and the third reading is the last.
func each(s *model.Snapshot, f func(reading int, t *model.Traffic)) {
	f(end, &s.Traffic)
	if !s.Edges.Read {
		f(endAgain, &s.Traffic)
		return
	}
	f(start, &s.Edges.Start)
	f(startAgain, &s.Edges.StartAgain)
	f(endAgain, &s.Edges.EndAgain)
}

func count[K comparable](m map[K]tally, k K, reading int, n uint64) {
	t := m[k]
	t[reading] += n
	m[k] = t
}

func (b *balance) countHops() {
	each(b.Snapshot, func(reading int, t *model.Traffic) {
		for i := range t.Hops {
			if h := &t.Hops[i]; h.Addr.IsValid() {
				c := b.openHop(keyOf(h.Addr, h.IfIndex, h.Direction, h.Side))
				c.all[reading] += h.Packets
				c.inner[reading] += h.FromInside
				c.forwarded[reading] += h.FromInside + h.FromUplink
			}
		}
		for i := range t.Peers {
			if p := &t.Peers[i]; b.node[p.Local] {
				count(b.arrived, p.Far(), reading, p.In.Packets+p.In.ICMPErrors)
			}
		}
		for m := range model.Each(t.MACs) {
			c := b.openHop(keyOf(m.Addr, m.IfIndex, m.Direction, m.Side))
			if c.macs == nil {
				c.macs = map[model.MAC]tally{}
			}
			count(c.macs, m.Dst, reading, m.Packets)
		}
	})
}

func (b *balance) openHop(k hopKey) *hop {
	h := b.hops[k]
	if h == nil {
		h = &hop{hopKey: k}
		b.hops[k], b.byLink[k.link], b.byAddr[k.addr] = h, append(b.byLink[k.link], h), append(b.byAddr[k.addr], h)
	}
	return h
}

// countDrops indexes each drop by both of its addresses.
func (b *balance) countDrops(causes []model.DropCause) {
	tallies := map[model.Drop]tally{}
	each(b.Snapshot, func(reading int, t *model.Traffic) {
		for i := range t.Drops {
			count(tallies, t.Drops[i].Key(), reading, t.Drops[i].Packets)
		}
	})
	add := func(drop *model.Drop, cause model.DropCause) {
		k := drop.Key()
		t, left := tallies[k]
		if !left {
			return
		}
		delete(tallies, k)
		cause.Object = "" // a row has all of one code
		d := dropTally{drop, cause, t}
		b.drops[d.Src] = append(b.drops[d.Src], d)
		if d.Dst != d.Src {
			b.drops[d.Dst] = append(b.drops[d.Dst], d)
		}
	}
	causes = append(slices.Clip(causes), make([]model.DropCause, len(b.Traffic.Drops))...)
	for i := range b.Traffic.Drops {
		add(&b.Traffic.Drops[i], causes[i])
	}
	// A packet that was the first of its kind to be dropped, and after the window, had come in before.
	for d := range model.Each(b.Edges.EndAgain.Drops) {
		add(d, model.DropCause{Ordinary: model.ExcusedRecent})
	}
}

type effect int

const (
	notCounted effect = iota // before the packet came in, or after it was delivered
	missing                  // the packet itself
	afterOut                 // after it was counted as out
	copied                   // perhaps a copy of it only
)

// effectOf is a drop's effect on the balance between pod links and the links that lead off the node.
func (b *balance) effectOf(d *dropTally, r *row) effect {
	if d.Range.IsValid() && d.Range.Bits() == 0 {
		// Their other ends are not known, nor whether these are the node's.
		return copied
	}
	if d.Netns != b.Node.Netns {
		return model.Either(d.Netns == r.pod.Netns || !d.Is(model.OtherHost) && b.netns[d.Dst][d.Netns], notCounted, copied)
	}
	switch class := b.classes.Class(d.Drop); {
	case class == loss.Copy:
		return copied
	case class == loss.PodGone && d.Is(model.OtherHost):
		return copied
	case class == loss.ByDesign && d.Code == "":
		// A rule dropped it by design: a ban, or the second copy of a frame that a promiscuous bridge delivers twice.
		return model.Either(b.netns[d.Dst] != nil, copied, missing)
	case class != loss.Lost && class != loss.PodGone && class != loss.PodStarting && class != loss.Closed && class != loss.ByDesign:
		return notCounted
	case d.Is(model.AtXDP | model.BacklogFull):
		// Before the hook where the packet would be counted.
		return notCounted
	case r.direction == model.FromPod && b.node[d.Dst]:
		// It had been counted as the node's.
		return afterOut
	}
	switch l := b.links[d.IfIndex]; {
	case l == nil:
		return missing
	case d.Is(model.OtherHost) && l.Kind == "bridge":
		// A bridge hands up frames that it forwards as well.
		return copied
	case d.Is(model.Transmitting) && (b.podLinks[l.Index] != nil || slices.Contains(b.outer, l.Index)):
		return afterOut
	}
	return missing
}

// subtractDrops takes the drops of a row's packets from its rest; of is the address
// that must be the pod's. Drops of copies wait until it is known how much is missing.
func (b *balance) subtractDrops(r *row, of func(*model.Drop) netip.Addr) {
	var ofNode []*dropTally
	busiest := map[[2]netip.Addr]int{}
	for _, a := range r.addrs {
		for d := range model.Each(b.drops[a]) {
			if of(d.Drop) != a {
				continue
			}
			switch b.effectOf(d, r) {
			case missing:
				if r.direction == model.ToPod && b.node[d.Src] {
					ofNode = append(ofNode, d)
					continue
				}
				r.subtract(d.tally)
				r.drop(d, d.window())
			case afterOut:
				b.takeBack(r, d)
				r.drop(d, d.window())
			case copied:
				// One packet may leave several copies: the place with the most
				// bounds how many packets there were.
				k := [2]netip.Addr{d.Src, d.Dst}
				if at, seen := busiest[k]; !seen {
					busiest[k] = len(r.copies)
					r.copies = append(r.copies, d)
				} else if d.late() > r.copies[at].late() {
					r.copies[at] = d
				}
			}
		}
	}
	for _, d := range ofNode {
		r.subtractOfNode(d)
	}
}

// subtractOfNode takes a drop whose source is an address of the node: either a translated packet of another pod, which
// is missing, or one that the node itself sent, which no hop counted before.
func (r *row) subtractOfNode(d *dropTally) {
	n := min(max(r.rest, 0), int64(d.late()))
	r.rest, r.counted = r.rest-n, r.counted-n
	r.drop(d, d.window())
	for i := range r.in {
		if r.in[i].place == model.PlaceNode {
			r.in[i].tally = r.in[i].plus(d.minus(tally{end: uint64(n), endAgain: uint64(n)}))
		}
	}
}

// takeBack takes a drop from the part that counted it as out. Packets that the
// node itself sends are counted there only, and so are in as well.
func (b *balance) takeBack(r *row, d *dropTally) {
	place := model.PlaceOutside
	switch {
	case r.direction == model.FromPod && b.node[d.Dst]:
		place = model.PlaceNode
	case b.podLinks[d.IfIndex] != nil:
		place = model.PlacePods
	case r.direction == model.ToPod:
		place = model.PlaceOutsideAgain
	}
	for i := range r.out {
		if r.out[i].place == place {
			r.out[i].tally = r.out[i].minus(d.tally)
		}
	}
}

func (r *row) drop(d *dropTally, n uint64) {
	if n > 0 {
		r.drops[model.LedgerDrop{Reason: d.Reason, Location: d.Location, DropCause: d.DropCause}] += n
	}
}
