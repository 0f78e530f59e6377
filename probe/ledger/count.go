package ledger

import (
	"net/netip"
	"slices"
	"strings"

	"github.com/lasthop/lasthop/probe/model"
)

// tally is one counter at the four readings: two at each edge of the window.
type tally struct{ begin, began, last, end uint64 }

func (t tally) plus(u tally) tally {
	return tally{t.begin + u.begin, t.began + u.began, t.last + u.last, t.end + u.end}
}

// minus stays at zero where counters that were read one after the other
// disagree.
func (t tally) minus(u tally) tally {
	return tally{less(t.begin, u.begin), less(t.began, u.began), less(t.last, u.last), less(t.end, u.end)}
}

func less(a, b uint64) uint64 { return a - min(a, b) }

// window is what was counted between the first and the third reading.
func (t tally) window() uint64 { return less(t.last, t.begin) }

// early is what came surely after all began and before anything ended: such
// packets have had the time to come out. late is what may have been these.
func (t tally) early() uint64 { return less(t.last, t.began) }
func (t tally) late() uint64  { return less(t.end, t.begin) }

// edge is what was counted while the readings were taken.
func (t tally) edge() uint64 { return t.late() - min(t.late(), t.early()) }

// at adds what a reading has, which is numbered in their order.
func (t *tally) at(reading int, n uint64) {
	*[...]*uint64{&t.begin, &t.began, &t.last, &t.end}[reading] += n
}

// each calls f for every reading of the snapshot's counters. Where no edge was
// read, counting began with nothing and ended with the last.
func each(s *model.Snapshot, f func(reading int, t *model.Traffic)) {
	f(2, &s.Traffic)
	if !s.Edges.Read {
		f(3, &s.Traffic)
		return
	}
	f(0, &s.Edges.Start)
	f(1, &s.Edges.StartAgain)
	f(3, &s.Edges.EndAgain)
}

// count adds to the tally of a key.
func count[K comparable](m map[K]tally, k K, reading int, n uint64) {
	t := m[k]
	t.at(reading, n)
	m[k] = t
}

func (b *books) countHops() {
	each(b.Snapshot, func(reading int, t *model.Traffic) {
		for i := range t.Hops {
			h := &t.Hops[i]
			if !h.Addr.IsValid() {
				continue
			}
			c := b.open(keyOf(h.Addr, h.IfIndex, h.Direction, h.Side))
			c.all.at(reading, h.Packets)
			c.inner.at(reading, h.FromInside)
			c.forwarded.at(reading, h.FromInside+h.FromUplink)
		}
		for i := range t.Peers {
			if p := &t.Peers[i]; b.node[p.Local] {
				count(b.arrived, p.Remote, reading, p.In.Packets+p.In.ICMPErrors)
			}
		}
		for i := range t.MACs {
			m := &t.MACs[i]
			c := b.open(keyOf(m.Addr, m.IfIndex, m.Direction, m.Side))
			at := slices.IndexFunc(c.macs, func(x macTally) bool { return x.dst == m.Dst })
			if at < 0 {
				at = len(c.macs)
				c.macs = append(c.macs, macTally{dst: m.Dst})
			}
			c.macs[at].at(reading, m.Packets)
		}
	})
}

// open gives the counts of a place.
func (b *books) open(k hopKey) *hop {
	h := b.hops[k]
	if h == nil {
		h = &hop{hopKey: k}
		b.hops[k], b.at[k.link] = h, append(b.at[k.link], h)
	}
	return h
}

// dropID is what makes a drop the same in two readings.
type dropID struct {
	ends      ends
	proto     uint8
	reason    model.Reason
	location  string
	link      int
	netns     uint32
	frameMACs model.MAC
}

func idOf(d *model.Drop) dropID {
	return dropID{ends{d.Src, d.Dst}, d.Proto, d.Reason, d.Location, d.IfIndex, d.Netns, d.DstMAC}
}

// countDrops files each drop under both of its ends.
func (b *books) countDrops(causes []model.DropCause) {
	tallies := map[dropID]tally{}
	each(b.Snapshot, func(reading int, t *model.Traffic) {
		for i := range t.Drops {
			count(tallies, idOf(&t.Drops[i]), reading, t.Drops[i].Packets)
		}
	})
	file := func(drop *model.Drop, cause model.DropCause) {
		id := idOf(drop)
		t, left := tallies[id]
		if !left {
			return
		}
		delete(tallies, id)
		d := dropTally{drop, cause, t}
		b.drops[d.Src] = append(b.drops[d.Src], d)
		if d.Dst != d.Src {
			b.drops[d.Dst] = append(b.drops[d.Dst], d)
		}
	}
	for i := range b.Traffic.Drops {
		var cause model.DropCause
		if i < len(causes) {
			cause = causes[i]
		}
		file(&b.Traffic.Drops[i], cause)
	}
	// What was dropped for the first time after the window had come in
	// before.
	for i := range b.Edges.EndAgain.Drops {
		file(&b.Edges.EndAgain.Drops[i], model.DropCause{})
	}
}

// fate is what a drop means to an account.
type fate int

const (
	elsewhere fate = iota // before the packet came in, or after it was handed over
	lost                  // the packet itself
	spilt                 // after it was counted as out
	copied                // perhaps a copy of it only
)

// fateOf tells what a drop is to the balance between the links of pods and
// those that lead off the node.
func (b *books) fateOf(d *dropTally, a *account) fate {
	inNode := d.Netns == b.Node.Netns
	switch {
	case !inNode && d.Netns != a.pod.Netns && d.Reason == "OTHERHOST":
		return copied
	case !inNode && (d.Netns == a.pod.Netns || b.owners[d.Dst][d.Netns]):
		return elsewhere
	case !inNode:
		return copied
	case d.Expected && d.Reason == "OTHERHOST":
		return copied
	case d.Expected && d.Reason == "NETFILTER_DROP":
		// A ban; or the second copy of what a promiscuous bridge delivers.
		if b.owners[d.Dst] != nil {
			return copied
		}
		return lost
	case d.Expected && d.Reason != "NEIGH_FAILED":
		// What a transport or a socket frees was delivered.
		return elsewhere
	case d.Reason == "XDP", d.Reason == "CPU_BACKLOG":
		// Before the hook where the packet would be counted.
		return elsewhere
	case a.direction == model.FromPod && b.node[d.Dst]:
		// It had been counted as the node's.
		return spilt
	}
	l := b.links[d.IfIndex]
	switch {
	case l == nil:
		return lost
	case d.Reason == "OTHERHOST" && l.Kind == "bridge":
		// What a bridge hands up besides forwarding it.
		return copied
	case transmits(d.Drop) && (b.doors[l.Index] != nil || slices.Contains(b.outer, l.Index)):
		return spilt
	}
	return lost
}

// transmits reports whether a function frees what is on its way out of a link,
// which is after the hook where it is counted.
func transmits(d *model.Drop) bool {
	if d.Reason == "TC_EGRESS" || strings.HasPrefix(string(d.Reason), "QDISC_") {
		return true
	}
	for _, prefix := range []string{"__dev_queue_xmit", "__dev_xmit_skb", "__dev_forward_skb", "____dev_forward_skb", "validate_xmit",
		"dev_hard_start_xmit", "sch_direct_xmit", "kfree_skb_list"} {
		if strings.HasPrefix(d.Location, prefix) {
			return true
		}
	}
	return strings.HasSuffix(d.Location, "_xmit") || strings.HasSuffix(d.Location, "_enqueue")
}

// takeDrops takes the drops of an account's packets from its rest. Those of
// copies wait until it is known how much is missing.
func (b *books) takeDrops(a *account, mine func(*model.Drop) bool) {
	var own []*dropTally
	most := map[ends]int{}
	for _, addr := range a.addrs {
		for i := range b.drops[addr] {
			d := &b.drops[addr][i]
			if !mine(d.Drop) {
				continue
			}
			switch b.fateOf(d, a) {
			case lost:
				if a.direction == model.ToPod && b.node[d.Src] {
					own = append(own, d)
					continue
				}
				a.take(d.tally)
				a.drop(d, d.window())
			case spilt:
				b.takeBack(a, d)
				a.drop(d, d.window())
			case copied:
				// One packet may leave several: the busiest place
				// tells how many it were at most.
				k := ends{d.Src, d.Dst}
				if at, seen := most[k]; !seen {
					most[k] = len(a.copies)
					a.copies = append(a.copies, d)
				} else if d.late() > a.copies[at].late() {
					a.copies[at] = d
				}
			}
		}
	}
	for _, d := range own {
		b.takeOwn(a, d)
	}
}

// takeOwn takes a drop of what bears an address of the node: another pod's
// packet that is missing, or one of the node's own, which nobody saw before.
func (b *books) takeOwn(a *account, d *dropTally) {
	missing := min(max(a.rest, 0), int64(d.late()))
	a.rest, a.counted = a.rest-missing, a.counted-missing
	a.drop(d, d.window())
	for i := range a.in {
		if a.in[i].place == model.PlaceNode {
			a.in[i].tally = a.in[i].plus(d.minus(tally{last: uint64(missing), end: uint64(missing)}))
		}
	}
}

type ends struct{ src, dst netip.Addr }

// takeBack takes a drop from the part that had it as out. What the node itself
// sends is counted there only, and so is in as well.
func (b *books) takeBack(a *account, d *dropTally) {
	place := model.PlaceOutside
	switch {
	case a.direction == model.FromPod && b.node[d.Dst]:
		place = model.PlaceNode
	case b.doors[d.IfIndex] != nil:
		place = model.PlacePods
	case a.direction == model.ToPod:
		place = model.PlaceOutsideAgain
	}
	for i := range a.out {
		if a.out[i].place == place {
			a.out[i].tally = a.out[i].minus(d.tally)
		}
	}
}

func (a *account) drop(d *dropTally, n uint64) {
	if n > 0 {
		a.drops[model.LedgerDrop{Reason: d.Reason, Location: d.Location, Code: d.Code, Expected: d.Expected}] += n
	}
}
