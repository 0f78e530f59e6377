package join

import (
	"cmp"
	"net/netip"
	"slices"

	"github.com/lasthop/lasthop/probe/diagnose"
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
	// noCard: nothing from or for one node's pods passes its network card.
	noCard
	// fromPods: what one node's pods send is dropped.
	fromPods
	// filtered: what passes between some ends of two nodes.
	filtered
)

// fault is one that may be between the nodes.
type fault struct {
	shape shape
	// row is the range that the missing route is for, node the one whose card or pods
	// it is about, and with to the two of a filter.
	row      netip.Prefix
	node, to *node
}

// faults are those that would lose the packets of a way.
func (w *way) faults() []fault {
	var out []fault
	if r := w.toRange(); r.IsValid() {
		if w.pair.Routed {
			out = append(out, fault{shape: noTable}, fault{shape: noRow, row: r})
		}
		out = append(out, fault{shape: noCard, node: w.to})
	}
	if w.fromRange().IsValid() {
		out = append(out, fault{shape: noCard, node: w.from}, fault{shape: fromPods, node: w.from})
	}
	return append(out, fault{shape: filtered, node: w.from, to: w.to})
}

func (f fault) compare(g fault) int {
	name := func(n *node) string {
		if n == nil {
			return ""
		}
		return n.name()
	}
	return cmp.Or(cmp.Compare(f.shape, g.shape), comparePrefix(f.row, g.row), cmp.Compare(name(f.node), name(g.node)), cmp.Compare(name(f.to), name(g.to)))
}

// extent is what would be lost by a fault, of some ways.
type extent struct {
	ways int
	// dst is one of the destinations, several that there are others.
	dst                netip.Addr
	several            bool
	rows               map[netip.Prefix]bool
	senders, receivers map[*node]bool
	fromFault, toFault bool
}

// alike is what ways have in common whose packets the same faults lose.
type alike struct {
	from, to         *node
	row              netip.Prefix
	fromPods, routed bool
}

// extents are those of all faults that would lose the packets of some of the ways.
func extents(ways []*way) map[fault]*extent {
	type group struct {
		first   *way
		ways    int
		several bool
	}
	groups := map[alike]*group{}
	for _, w := range ways {
		k := alike{w.from, w.to, w.toRange(), w.fromRange().IsValid(), w.pair.Routed}
		if groups[k] == nil {
			groups[k] = &group{first: w}
		}
		g := groups[k]
		g.ways++
		g.several = g.several || w.dst() != g.first.dst()
	}
	out := map[fault]*extent{}
	for k, g := range groups {
		for _, f := range g.first.faults() {
			e := out[f]
			if e == nil {
				e = &extent{dst: g.first.dst(), rows: map[netip.Prefix]bool{}, senders: map[*node]bool{}, receivers: map[*node]bool{}}
				out[f] = e
			}
			e.ways += g.ways
			e.several = e.several || g.several || e.dst != g.first.dst()
			e.rows[k.row], e.senders[k.from], e.receivers[k.to] = true, true, true
			e.fromFault, e.toFault = e.fromFault || k.from == f.node, e.toFault || k.to == f.node
		}
	}
	return out
}

// shows reports whether the lost packets have the shape of the fault, and not that of
// a smaller one: that one address is silent shows no more than that.
func (e *extent) shows(s shape) bool {
	switch s {
	case noTable:
		return len(e.rows) > 1
	case noRow:
		return e.several
	case noCard:
		return e.fromFault && e.toFault
	case fromPods:
		return len(e.receivers) > 1
	}
	return true
}

// guess is the fault between the nodes that is taken for the cause.
type guess struct {
	fault
	// rows are the ranges to which routes are missing.
	rows []netip.Prefix
	// rivals explain as much and nothing refutes them. struck are refuted, each with
	// what refutes it.
	rivals []fault
	struck []refuted
	// port is what alone is lost between the ends, where that is so.
	port *diagnose.Asked
	// large: what alone is lost is large.
	large bool
	// via is a node that gets the packets instead, and sends them back.
	via *node
	// route is the sender's own, which has a wrong next hop.
	route *diagnose.NodeRoute
}

type refuted struct {
	fault
	By example
}

// example are packets that arrived at a node or, where there are none, that did not.
type example struct {
	At       *node
	Packets  uint64
	Src, Dst netip.Addr
}

func (e example) set() bool { return e.At != nil }

// between explains ways on which packets are lost between the nodes, each time by the
// fault that explains most of them and that nothing refutes.
func (j *joint) between(open []*way, passed *passes) []*cause {
	returning := slices.DeleteFunc(slices.Clone(j.nodes), func(n *node) bool { return n.out || len(n.Returned) == 0 })
	var out []*cause
	open, out = misrouted(open)
	open = slices.DeleteFunc(slices.Clone(open), func(w *way) bool {
		via := j.returns(returning, w)
		if via == nil {
			return false
		}
		at := slices.IndexFunc(out, func(c *cause) bool { return c.guess.via == via && c.guess.row == w.toRange() })
		if at < 0 {
			at = len(out)
			out = append(out, &cause{node: via, guess: &guess{fault: fault{shape: noRow, row: w.toRange()}, rows: []netip.Prefix{w.toRange()}, via: via}})
		}
		out[at].lost = append(out[at].lost, w)
		return true
	})
	for len(open) > 0 {
		all := extents(open)
		best := fault{shape: filtered}
		for f, e := range all {
			if f.shape != filtered && e.shows(f.shape) && !passed.refutes(f, e).set() && (best.shape == filtered ||
				cmp.Or(cmp.Compare(all[best].ways, e.ways), f.compare(best)) < 0) {
				best = f
			}
		}
		if best.shape == filtered {
			return append(out, j.filters(open, passed)...)
		}
		var mine, rest []*way
		for _, w := range open {
			if slices.Contains(w.faults(), best) {
				mine = append(mine, w)
			} else {
				rest = append(rest, w)
			}
		}
		open, out = rest, append(out, newCause(best, mine, passed))
	}
	return out
}

// returns is the one of some nodes that gets a way's packets in place of the one that has
// their destination, and sends them back into the network; nil where none does.
func (j *joint) returns(some []*node, w *way) *node {
	if !w.pair.Routed || !w.toRange().IsValid() {
		return nil
	}
	var from *node
	for _, n := range some {
		switch {
		case n == w.from || n == w.to:
		case n.Returned[diagnose.Transit{Range: w.toRange(), Side: model.AsDestination}] >= minLost:
			return n
		case n.Returned[diagnose.Transit{Range: w.fromRange(), Side: model.AsSource}] >= minLost && j.onlyLost(w):
			from = n
		}
	}
	return from
}

// onlyLost reports whether all that is lost of what the way's pod range sends is for
// one range: then it is what somebody else gets from there.
func (j *joint) onlyLost(w *way) bool {
	for _, t := range j.talks {
		for _, o := range []*way{t.there, t.back} {
			if o != nil && o.state == lost && o.fromRange() == w.fromRange() && o.toRange() != w.toRange() {
				return false
			}
		}
	}
	return true
}

// filters are the causes of what nothing larger explains: one for the addresses of a node
// that several others do not reach, even if some do or replies arrive, as through a filter
// that remembers who is replied to; one for those that do not reach several others, and one
// for each two nodes.
func (j *joint) filters(open []*way, passed *passes) []*cause {
	by := map[fault][]*way{}
	var order []fault
	into := others(open, func(w *way) (netip.Addr, *node) { return w.dst(), w.from })
	outOf := others(open, func(w *way) (netip.Addr, *node) { return w.src(), w.to })
	arrive, leave := map[netip.Addr]bool{}, map[netip.Addr]bool{}
	for _, w := range j.ways {
		if w.state == arrived {
			arrive[w.dst()], leave[w.src()] = true, true
		}
	}
	for _, w := range open {
		f := fault{shape: filtered, node: w.from, to: w.to}
		switch {
		case into[w.dst()] > 1:
			f.node = nil
		case outOf[w.src()] > 1:
			f.to = nil
		}
		if by[f] == nil {
			order = append(order, f)
		}
		by[f] = append(by[f], w)
	}
	slices.SortFunc(order, fault.compare)
	var out []*cause
	for _, f := range order {
		c := newCause(f, by[f], passed)
		c.severed = map[netip.Addr]bool{}
		for _, w := range c.lost {
			c.severed[w.dst()], c.severed[w.src()] = !arrive[w.dst()], !leave[w.src()]
		}
		out = append(out, c)
	}
	return out
}

// others are how many nodes are at the other ends of lost ways, by the address at one end.
func others(lost []*way, end func(*way) (netip.Addr, *node)) map[netip.Addr]int {
	nodes, out := map[netip.Addr]map[*node]bool{}, map[netip.Addr]int{}
	for _, w := range lost {
		a, other := end(w)
		if nodes[a] == nil {
			nodes[a] = map[*node]bool{}
		}
		nodes[a][other] = true
		out[a] = len(nodes[a])
	}
	return out
}

// newCause is the cause of lost ways, with what else would explain them all.
func newCause(f fault, ways []*way, passed *passes) *cause {
	g := &guess{fault: f}
	all := extents(ways)
	if f.shape != filtered {
		for r := range all[f].rows {
			if r.IsValid() {
				g.rows = append(g.rows, r)
			}
		}
	}
	slices.SortFunc(g.rows, comparePrefix)
	for other, e := range all {
		if other == f || other.shape == filtered || e.ways < len(ways) || other.shape == noTable && f.shape != noTable {
			continue
		}
		if by := passed.refutes(other, e); by.set() {
			g.struck = append(g.struck, refuted{other, by})
		} else {
			g.rivals = append(g.rivals, other)
		}
	}
	slices.SortFunc(g.rivals, fault.compare)
	slices.SortFunc(g.struck, func(a, b refuted) int { return a.compare(b.fault) })
	return &cause{guess: g, node: f.node, lost: ways}
}

// passes are packets that arrived though some faults would have lost them: one
// example for each.
type passes struct {
	by map[fault]example
	// into are those for a range, by the network that they were sent from. A missing
	// route is that of one network: others may have another table.
	into map[netip.Prefix]map[netip.Prefix]example
	// table says whether there is one for a node.
	table map[*node]bool
}

// carried reports whether the network of a node carries packets for pods of others.
func (p *passes) carried(n *node) bool {
	is, known := p.table[n]
	if !known {
		is = p.refutes(fault{shape: noTable}, &extent{senders: map[*node]bool{n: true}}).set()
		p.table[n] = is
	}
	return is
}

func (j *joint) passes() *passes {
	p := &passes{by: map[fault]example{}, into: map[netip.Prefix]map[netip.Prefix]example{}, table: map[*node]bool{}}
	for _, w := range j.ways {
		if w.state != arrived {
			continue
		}
		var text example
		for _, f := range w.faults() {
			if f.shape == filtered || f.shape == noTable || p.by[f].set() {
				continue
			}
			if !text.set() {
				text = example{w.to, w.got(), w.src(), w.dst()}
			}
			if f.shape != noRow {
				p.by[f] = text
				continue
			}
			if p.into[f.row] == nil {
				p.into[f.row] = map[netip.Prefix]example{}
			}
			for _, n := range w.from.Networks {
				if !p.into[f.row][n].set() {
					p.into[f.row][n] = text
				}
			}
		}
	}
	j.passesBeyond(p)
	return p
}

// passesBeyond adds what went to and came from nodes that were not watched.
func (j *joint) passesBeyond(p *passes) {
	for _, n := range j.nodes {
		if n.out {
			continue
		}
		card, pods, table := fault{shape: noCard, node: n}, fault{shape: fromPods, node: n}, fault{shape: noTable}
		for pair := range model.Each(n.Pairs) {
			if pair.In.Packets == 0 || !n.rangeOf(pair.Local).IsValid() {
				continue
			}
			note := func(f fault) {
				if !p.by[f].set() {
					p.by[f] = example{n, pair.In.Packets, pair.Remote, pair.Local}
				}
			}
			note(card)
			if pair.In.Replies > 0 {
				note(pods)
				if pair.Routed && pair.Range.IsValid() {
					note(table)
				}
			}
		}
	}
}

// refutes is what arrived though the fault would have lost it; not set where nothing
// did.
func (p *passes) refutes(f fault, e *extent) example {
	if f.shape != noRow && f.shape != noTable {
		return p.by[f]
	}
	var found []example
	rows := e.rows
	if f.shape == noTable {
		// With any row there is a table.
		rows = map[netip.Prefix]bool{}
		for row := range p.into {
			rows[row] = true
		}
	}
	for row := range rows {
		for n := range e.senders {
			for _, network := range n.Networks {
				if text := p.into[row][network]; text.set() {
					found = append(found, text)
				}
			}
		}
	}
	if len(found) > 0 {
		return slices.MinFunc(found, func(a, b example) int {
			return cmp.Or(cmp.Compare(b.Packets, a.Packets), a.Src.Compare(b.Src), a.Dst.Compare(b.Dst), cmp.Compare(a.At.name(), b.At.name()))
		})
	}
	return p.by[f]
}

func comparePrefix(a, b netip.Prefix) int {
	return cmp.Or(a.Addr().Compare(b.Addr()), cmp.Compare(a.Bits(), b.Bits()))
}
