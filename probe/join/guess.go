package join

import (
	"cmp"
	"maps"
	"net/netip"
	"slices"

	"github.com/lasthop/lasthop/probe/model"
)

// shape is which packets a fault between the nodes loses.
type shape int

// The shapes. Of those that explain as much the first is taken.
const (
	// noTable: no route to any node's pods.
	noTable shape = iota
	// noRow: none to one node's pods.
	noRow
	// ipForwardingOff: nothing from or for one node's pods passes its NIC.
	ipForwardingOff
	// fromPods: what one node's pods send is dropped.
	fromPods
	// filtered: what passes between some ends of two nodes.
	filtered
)

// suspect is a fault that may be between the nodes.
type suspect struct {
	shape shape
	// Row is the range that the missing route is for, Node the one whose NIC or pods
	// it is about, and with to the two of a filter.
	Row      netip.Prefix
	Node, to *node
	// network is the one that the route is missing in, where that matters.
	network netip.Prefix
}

// alike is what legs have in common whose packets the same faults lose.
type alike struct {
	from, to         *node
	row              netip.Prefix
	fromPods, routed bool
}

func (w *leg) alike() alike {
	return alike{w.from, w.to, w.toRange(), w.fromRange().IsValid(), w.pair.Routed}
}

// faults are those that would lose the packets of such legs.
func (k alike) faults() []suspect {
	var out []suspect
	if k.row.IsValid() {
		if k.routed {
			out = append(out, suspect{shape: noTable}, suspect{shape: noRow, Row: k.row})
		}
		out = append(out, suspect{shape: ipForwardingOff, Node: k.to})
	}
	if k.fromPods {
		out = append(out, suspect{shape: ipForwardingOff, Node: k.from}, suspect{shape: fromPods, Node: k.from})
	}
	return append(out, suspect{shape: filtered, Node: k.from, to: k.to})
}

func (f suspect) compare(g suspect) int {
	return cmp.Or(cmp.Compare(f.shape, g.shape), netip.Prefix.Compare(f.Row, g.Row),
		cmp.Compare(f.Node.String(), g.Node.String()), cmp.Compare(f.to.String(), g.to.String()))
}

// group is lost legs that are alike.
type group struct {
	alike
	legs int
	// dst is one of the destinations, several that there are others.
	dst     netip.Addr
	several bool
}

// extents are what would be lost by each fault, of some legs.
func extents(legs []*leg) map[suspect][]*group {
	groups := map[alike]*group{}
	for _, w := range legs {
		k := w.alike()
		if groups[k] == nil {
			groups[k] = &group{alike: k, dst: w.dst()}
		}
		g := groups[k]
		g.legs, g.several = g.legs+1, g.several || g.dst != w.dst()
	}
	out := map[suspect][]*group{}
	for _, g := range groups {
		for _, f := range g.faults() {
			out[f] = append(out[f], g)
		}
	}
	return out
}

func count(lost []*group) int {
	return model.Sum(lost, func(g *group) int { return g.legs })
}

// shownBy reports whether lost packets have the shape of the fault, and not that of
// a smaller one: that one address is silent shows no more than that.
func (f suspect) shownBy(lost []*group) bool {
	some := func(is func(*group) bool) bool { return slices.ContainsFunc(lost, is) }
	switch f.shape {
	case noTable:
		return some(func(g *group) bool { return g.row != lost[0].row })
	case noRow:
		return some(func(g *group) bool { return g.several || g.dst != lost[0].dst })
	case ipForwardingOff:
		return some(func(g *group) bool { return g.from == f.Node }) && some(func(g *group) bool { return g.to == f.Node })
	case fromPods:
		return some(func(g *group) bool { return g.to != lost[0].to })
	}
	return false
}

// guess is the fault between the nodes that is taken for the cause.
type guess struct {
	suspect
	// rivals explain as much and nothing refutes them. refuted are what does, each with what refutes it.
	rivals  []suspect
	refuted []refutation
	// ports are those of which alone flows are lost between the ends, where that is so.
	ports []model.Asked
	// large: what alone is lost is large. some: a part of everything is lost.
	large, some bool
	// via is a node that gets the packets instead, and sends them back.
	via *node
}

type refutation struct {
	suspect
	By example
}

// example are packets that arrived at a node or, where there are none, that did not; From another, if it is recorded.
type example struct {
	At, From *node
	Packets  uint64
	Src, Dst netip.Addr
}

func (e example) set() bool { return e.At != nil }

// between explains legs on which packets are lost between the nodes, each time by the
// fault that explains most of them and that nothing refutes.
func (j *joint) between(open []*leg, passed passes) {
	for len(open) > 0 {
		all := extents(open)
		best, most := suspect{shape: filtered}, 0
		for f, lost := range all {
			if n := count(lost); f.shownBy(lost) && !passed.refute(f, lost).set() &&
				(n > most || n == most && f.compare(best) < 0) {
				best, most = f, n
			}
		}
		if most == 0 {
			j.filters(open, passed)
			return
		}
		mine, rest := model.Split(open, func(w *leg) bool { return slices.Contains(w.alike().faults(), best) })
		j.causes, open = append(j.causes, newCause(best, mine, passed)), rest
	}
}

// misrouted makes causes of routes that lead to a node which sends the packets back, and leaves the legs that these do not
// explain.
func (j *joint) misrouted(open []*leg) []*leg {
	returning := model.Filter(j.in, func(n *node) bool { return len(n.Returned) > 0 })
	return model.Filter(open, func(w *leg) bool {
		row := w.toRange()
		via := j.returns(returning, w)
		if via != nil {
			g := &guess{suspect: suspect{shape: noRow, Row: row}, via: via}
			c := j.cause([2]any{via, row}, cause{node: via, guess: g, rows: []netip.Prefix{row}})
			c.lost = append(c.lost, w)
		}
		return via == nil
	})
}

// returns is the one of some nodes that gets a leg's packets in place of the one that has
// their destination, and sends them back into the network; nil where none does.
func (j *joint) returns(some []*node, w *leg) *node {
	if !w.pair.Routed || !w.toRange().IsValid() {
		return nil
	}
	var from *node
	for _, n := range some {
		switch {
		case n == w.from || n == w.to:
		case n.Returned[model.Transit{Range: w.toRange(), Side: model.AsDestination}] >= minLost:
			return n
		case n.Returned[model.Transit{Range: w.fromRange(), Side: model.AsSource}] >= minLost && j.onlyLost(w):
			from = n
		}
	}
	return from
}

// onlyLost reports whether all that is lost of what the leg's pod range sends is for
// one range: then it is what somebody else gets from there.
func (j *joint) onlyLost(w *leg) bool {
	return !slices.ContainsFunc(j.legs, func(o *leg) bool {
		return o.isLost() && o.fromRange() == w.fromRange() && o.toRange() != w.toRange()
	})
}

// filters makes causes of what nothing larger explains: one for the addresses of a node that several others do
// not reach, even if some do or replies arrive, as through a filter that remembers who is replied to; one for
// those that do not reach several others, and one for each two nodes.
func (j *joint) filters(open []*leg, passed passes) {
	type end struct {
		addr netip.Addr
		to   bool
	}
	others, passing := map[end]map[*node]bool{}, map[end]bool{}
	for _, w := range open {
		model.Include(others, end{w.dst(), true}, w.from, true)
		model.Include(others, end{w.src(), false}, w.to, true)
	}
	for _, w := range j.legs {
		if w.state == arrived {
			passing[end{w.dst(), true}], passing[end{w.src(), false}] = true, true
		}
	}
	by := map[suspect][]*leg{}
	for _, w := range open {
		f := suspect{shape: filtered, Node: w.from, to: w.to}
		switch {
		case len(others[end{w.dst(), true}]) > 1:
			f.Node = nil
		case len(others[end{w.src(), false}]) > 1:
			f.to = nil
		}
		by[f] = append(by[f], w)
	}
	for _, f := range slices.SortedFunc(maps.Keys(by), suspect.compare) {
		c := newCause(f, by[f], passed)
		c.severed = map[netip.Addr]bool{}
		for _, w := range c.lost {
			c.severed[w.dst()], c.severed[w.src()] = !passing[end{w.dst(), true}], !passing[end{w.src(), false}]
		}
		j.causes = append(j.causes, c)
	}
}

// newCause is the cause of lost legs, with what else would explain them all.
func newCause(f suspect, legs []*leg, passed passes) *cause {
	g, c := &guess{suspect: f}, &cause{node: f.Node, lost: legs}
	for other, lost := range extents(legs) {
		by := passed.refute(other, lost)
		switch {
		case other == f && f.shape <= noRow:
			c.rows = model.With(nil, model.Map(lost, func(g *group) netip.Prefix { return g.row })...)
		case other == f:
		case other.shape == filtered || count(lost) < len(legs) || other.shape == noTable && f.shape != noTable:
		case by.set():
			g.refuted = append(g.refuted, refutation{other, by})
		default:
			g.rivals = append(g.rivals, other)
		}
	}
	slices.SortFunc(c.rows, netip.Prefix.Compare)
	slices.SortFunc(g.rivals, suspect.compare)
	slices.SortFunc(g.refuted, func(a, b refutation) int { return a.compare(b.suspect) })
	if c.guess = g; f.shape == ipForwardingOff {
		c.rows = f.Node.Ranges
	}
	return c
}

// passes are packets that arrived though some faults would have lost them: one example for each.
type passes map[suspect]example

// carried reports whether the network of a node carries packets for pods of others.
func (p passes) carried(n *node) bool {
	return p.refute(suspect{shape: noTable}, []*group{{alike: alike{from: n}}}).set()
}

func (p passes) note(f suspect, e example) { p[f] = clearest(p[f], e) }

// passes are those of the legs, and of what went to and came from nodes that were not watched.
func (j *joint) passes() passes {
	p, seen := passes{}, map[alike]bool{}
	for _, w := range j.legs {
		k := w.alike()
		if w.state != arrived || seen[k] {
			continue
		}
		seen[k] = true
		text := example{w.to, w.from, w.got(), w.src(), w.dst()}
		for _, f := range k.faults() {
			switch f.shape {
			case ipForwardingOff, fromPods:
				p.note(f, text)
			case noRow:
				for _, f.network = range w.from.Networks {
					p.note(f, text)
					// With any row there is a table.
					p.note(suspect{shape: noTable, network: f.network}, p[f])
				}
			}
		}
	}
	for _, n := range j.in {
		for pair := range model.Each(n.Pairs) {
			if pair.In.Packets == 0 || !n.rangeOf(pair.Local).IsValid() {
				continue
			}
			text := example{n, nil, pair.In.Packets, pair.Remote, pair.Local}
			p.note(suspect{shape: ipForwardingOff, Node: n}, text)
			if pair.In.Replies > 0 {
				p.note(suspect{shape: fromPods, Node: n}, text)
				if pair.Routed && pair.Range.IsValid() {
					p.note(suspect{shape: noTable}, text)
				}
			}
		}
	}
	return p
}

// refute is what arrived though the fault would have lost it; not set where nothing did.
// A missing route is that of one network: others may have another table.
func (p passes) refute(f suspect, lost []*group) example {
	if f.shape > noRow {
		return p[f]
	}
	var found example
	for _, g := range lost {
		for _, f.network = range g.from.Networks {
			found = clearest(found, p[f])
		}
	}
	if found.set() {
		return found
	}
	f.network = netip.Prefix{}
	return p[f]
}

// clearest is the example of two that has the most packets.
func clearest(a, b example) example {
	if !a.set() || b.set() && cmp.Or(cmp.Compare(a.Packets, b.Packets), b.Src.Compare(a.Src), b.Dst.Compare(a.Dst),
		cmp.Compare(b.At.String(), a.At.String())) < 0 {
		return b
	}
	return a
}
