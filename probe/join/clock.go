package join

import (
	"cmp"
	"net/netip"
	"slices"
	"time"

	"github.com/lasthop/lasthop/probe/model"
)

// setClocks sets how far the nodes' clocks are ahead of each other, as connections tell that began in the
// windows of two. Clocks of which nothing tells are taken as right. A node whose window then overlaps with no
// other's is not compared: what it does not see may have been before, or come later.
func setClocks(nodes []*node) {
	in := compared(nodes)
	known, seen := map[*node]bool{}, map[uint64][]*node{}
	for _, n := range in {
		for _, b := range n.Began {
			seen[b.Key] = append(seen[b.Key], n)
		}
	}
	for _, first := range in {
		if known[first] {
			continue
		}
		known[first] = true
		for todo := []*node{first}; len(todo) > 0; todo = todo[1:] {
			// Few nodes have connections with this one.
			met := model.SetOf(model.Flat(todo[0].Began, func(b model.Began) []*node { return seen[b.Key] }))
			for _, o := range in {
				if !met[o] || known[o] {
					continue
				}
				by, unsure, ok := clocks(o.Began, todo[0].Began)
				if !ok {
					continue
				}
				if by.Abs() <= listed {
					// A connection may be listed that much later than it began.
					by, unsure = 0, 0
				}
				known[o], o.ahead, o.unsure = true, todo[0].ahead+by, todo[0].unsure+unsure
				todo = append(todo, o)
			}
		}
	}
	for _, n := range in {
		n.seen.Ahead = n.ahead
		if len(in) > 1 && !slices.ContainsFunc(in, func(o *node) bool {
			return o != n && overlaps(n, o, n.seen.Window.Start, n.seen.Window.End)
		}) {
			n.out, n.seen.Reason = true, cmp.Or(n.blind,
				"its window overlaps no other, and no common connection shows that the clocks differ")
		}
	}
}

const (
	// listed is the longest time between two lists of a node's connections.
	listed = 10 * time.Second
	// minTold is how many connections must tell the same of two clocks: single ones may be two that have the same ports.
	minTold = 3
)

// clocks is how far the clock of one node is ahead of another's, and how unsure that is, by the connections between the
// two that both saw begin; false where these do not tell. What is in the first list of a window began at some time
// before it, while the node's links were attached to. So it counts only where later lists have too few.
func clocks(a, b []model.Began) (by, unsure time.Duration, ok bool) {
	var all, later []time.Duration
	if len(a) == 0 || len(b) == 0 {
		return 0, 0, false
	}
	earlier := func(x, y model.Began) int { return x.At.Compare(y.At) }
	firstA, firstB := slices.MinFunc(a, earlier).At, slices.MinFunc(b, earlier).At
	begun := model.Table(b, func(y *model.Began) (uint64, model.Began) { return y.Key, *y })
	for _, x := range a {
		y, both := begun[x.Key]
		if !both || x.Here == y.Here {
			continue
		}
		all = append(all, x.At.Sub(y.At))
		if x.At.After(firstA) && y.At.After(firstB) {
			later = append(later, x.At.Sub(y.At))
		}
	}
	if len(later) >= minTold {
		all = later
	}
	if len(all) == 0 {
		return 0, 0, false
	}
	slices.Sort(all)
	by = all[len(all)/2]
	same := 0
	for _, d := range all {
		if off := (d - by).Abs(); off <= listed/2 {
			same, unsure = same+1, max(unsure, off)
		}
	}
	return by, unsure, same >= minTold && 2*same > len(all)
}

// overlaps reports whether some time on a node's clock is long enough within another's
// window for what is not seen there to mean anything.
func overlaps(n, far *node, first, last time.Time) bool {
	from := slices.MaxFunc([]time.Time{first.Add(-n.ahead), far.begin()}, time.Time.Compare)
	to := slices.MinFunc([]time.Time{last.Add(-n.ahead), far.end()}, time.Time.Compare)
	least := overlap
	if n.ahead != far.ahead {
		least += n.unsure + far.unsure
	}
	return to.Sub(from) >= least
}

// span is what a node counted in a part of its window, or in all of it.
type span struct {
	window model.Window
	// pairs are of the node's pairs, in their order; nil where they are what these have.
	pairs             []model.Counts
	leaving, arriving map[netip.Prefix]model.Volume
}

// counts are those of one of the node's pairs; none where i is -1.
func (n *node) counts(s *span, i int) *model.Counts {
	switch {
	case i < 0:
		return &model.Counts{}
	case s.pairs == nil:
		return &n.Pairs[i].Counts
	}
	return &s.pairs[i]
}

// common is a time that nodes were recorded in, by the first node's clock. What is sure to be
// of that time by all their clocks is later by the margin and ends as much earlier.
type common struct {
	model.Window
	margin time.Duration
	nodes  []*node
}

// commonTime is the time for which the most pairs of nodes were recorded together; no nodes
// where that is too short to mean anything.
func (j *joint) commonTime() common {
	in := slices.Clone(j.in)
	slices.SortStableFunc(in, func(a, b *node) int { return b.end().Compare(a.end()) })
	var best common
	most := 0.0
	for _, first := range in {
		var nodes []*node
		for _, n := range in {
			if n.begin().After(first.begin()) {
				continue
			}
			nodes = append(nodes, n)
			long, pairs := n.end().Sub(first.begin()), float64(len(nodes)*(len(nodes)-1))
			if weight := long.Seconds() * pairs; long >= overlap && weight > most {
				most, best = weight, common{Window: model.Window{Start: first.begin(), End: n.end()}, nodes: slices.Clone(nodes)}
			}
		}
	}
	for _, n := range best.nodes {
		if n.ahead != best.nodes[0].ahead {
			best.margin = max(best.margin, n.unsure+best.nodes[0].unsure)
		}
	}
	return best
}

// longer is how much longer the node was watched than another, as a factor.
func (n *node) longer(o *node) float64 {
	return n.seen.Window.Duration().Seconds() / max(1, o.seen.Window.Duration().Seconds())
}

// begin and end are when the node was recorded, by the first node's clock.
func (n *node) begin() time.Time { return n.seen.Window.Start.Add(-n.ahead) }
func (n *node) end() time.Time   { return n.seen.Window.End.Add(-n.ahead) }

// cut sets what nodes counted in the time common to them, where some of the legs between
// them need it, and reports whether there are any: counts of different times are not compared.
func (j *joint) cut(legs []*leg) bool {
	c := j.commonTime()
	member, want := model.SetOf(model.Filter(c.nodes, func(n *node) bool { return n.source.Within != nil })), map[*node]bool{}
	for _, n := range j.in {
		if len(j.in) > 1 && !slices.Contains(c.nodes, n) {
			n.seen.Reason = cmp.Or(n.blind,
				"its window hardly overlaps the others': the share of packets that arrive is unknown")
		}
	}
	for _, w := range legs {
		if member[w.from] && member[w.to] && w.needsCut() {
			want[w.from], want[w.to] = true, true
		}
	}
	list := model.Filter(c.nodes, func(n *node) bool { return want[n] })
	onAllCPUs(len(list), func(i int) { list[i].cutTo(c) })
	return len(list) > 0
}

// needsCut reports whether the leg's counts may show that packets are lost, or show that they
// arrive which were sent at another time.
func (w *leg) needsCut() bool {
	if w.state != arrived {
		return false
	}
	a, b := w.from.seen.Window.Duration(), w.to.seen.Window.Duration()
	return w.pair.Silent || w.to.Pair(w.dst(), w.src()).Silent || w.shrinks() || w.losesFragments() || w.flows.n > 0 ||
		4*min(a, b) < 3*max(a, b)
}

// cutTo sets what the node counted in a part of its window: within it, and around it.
func (n *node) cutTo(c common) {
	around := model.Window{Start: c.Start.Add(n.ahead), End: c.End.Add(n.ahead)}
	if c.margin == 0 && around.Start.Equal(n.seen.Window.Start) && around.End.Equal(n.seen.Window.End) {
		n.inner, n.outer = n.whole, n.whole
		return
	}
	within := model.Window{Start: around.Start.Add(c.margin), End: around.End.Add(-c.margin)}
	inner, outer, err := n.source.Within(within, around)
	if err != nil || inner == nil {
		return
	}
	n.inner, n.outer = n.span(inner), n.span(outer)
}

func (n *node) span(s *model.Snapshot) *span {
	pairs, leaving, arriving := n.Counted(&s.Traffic)
	return &span{s.Window, pairs, leaving, arriving}
}

// comparable reports whether what the leg's ends counted is of one time, or may be: a source
// that has no part of its window is taken for one of the same time.
func (w *leg) comparable() bool {
	return w.shared || w.from.source.Within == nil || w.to.source.Within == nil || !w.needsCut()
}
