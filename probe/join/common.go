package join

import (
	"cmp"
	"net/netip"
	"slices"
	"time"

	"github.com/lasthop/lasthop/probe/diagnose"
	"github.com/lasthop/lasthop/probe/model"
)

// span is what a node counted in a part of its window, or in all of it.
type span struct {
	window model.Window
	// pairs are of the node's pairs, in their order; nil where they are what these have.
	pairs             []diagnose.Counts
	leaving, arriving map[netip.Prefix]diagnose.Volume
}

// counts are those of one of the node's pairs; none where i is -1.
func (n *node) counts(s *span, i int) *diagnose.Counts {
	switch {
	case i < 0:
		return &diagnose.Counts{}
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

// cut sets what nodes counted in the time common to them, where some of the ways between
// them need it, and reports whether there are any: counts of different times are not compared.
func (j *joint) cut(ways []*way) bool {
	c := j.commonTime()
	member, want := map[*node]bool{}, map[*node]bool{}
	for _, n := range c.nodes {
		member[n] = n.source.Within != nil
	}
	for _, n := range j.in {
		if len(j.in) > 1 && !slices.Contains(c.nodes, n) {
			n.seen.Reason = cmp.Or(n.blind, "its window has hardly any time in common with those of the others: what share of packets arrives is not known")
		}
	}
	for _, w := range ways {
		if member[w.from] && member[w.to] && w.needsCut() {
			want[w.from], want[w.to] = true, true
		}
	}
	list := chosen(c.nodes, func(n *node) bool { return want[n] })
	onAllCPUs(len(list), func(i int) { list[i].cutTo(c) })
	return len(list) > 0
}

// needsCut reports whether the way's counts may show that packets are lost, or show that they
// arrive which were sent at another time.
func (w *way) needsCut() bool {
	if w.state != arrived {
		return false
	}
	a, b := w.from.seen.Window.Duration(), w.to.seen.Window.Duration()
	return w.pair.Silent || w.to.Pair(w.dst(), w.src()).Silent || w.shrinks() || len(w.untracked()) > 0 || 4*min(a, b) < 3*max(a, b)
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

// comparable reports whether what the way's ends counted is of one time, or may be: a source
// that has no part of its window is taken for one of the same time.
func (w *way) comparable() bool {
	return w.shared || w.from.source.Within == nil || w.to.source.Within == nil || !w.needsCut()
}
