package join

import (
	"cmp"
	"slices"
	"time"

	"github.com/lasthop/lasthop/probe/diagnose"
)

// setClocks sets how far the nodes' clocks are ahead of each other, as connections tell
// that began in the windows of two. Clocks of which nothing tells are taken as right.
// A node whose window then overlaps with no other's is not compared: what it does not
// see may have been before, or come later.
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
			met := map[*node]bool{}
			for _, b := range todo[0].Began {
				for _, o := range seen[b.Key] {
					met[o] = true
				}
			}
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
		if len(in) > 1 && !slices.ContainsFunc(in, func(o *node) bool {
			return o != n && overlaps(n, o, n.seen.Window.Start, n.seen.Window.End)
		}) {
			n.out, n.seen.Reason = true, cmp.Or(n.blind, "its window overlaps with no other's, and no connections seen by several nodes show that their clocks differ")
		}
	}
}

const (
	// listed is the longest time between two lists of a node's connections.
	listed = 10 * time.Second
	// minTold is how many connections must tell the same of two clocks: single ones may
	// be two that have the same ports.
	minTold = 3
)

// clocks is how far the clock of one node is ahead of another's, and how unsure that is,
// by the connections between the two that both saw begin; false where these do not tell.
// What is in the first list of a window began at some time before it, while the node's
// links were attached to. So it counts only where later lists have too few.
func clocks(a, b []diagnose.Began) (by, unsure time.Duration, ok bool) {
	var all, later []time.Duration
	if len(a) == 0 || len(b) == 0 {
		return 0, 0, false
	}
	earlier := func(x, y diagnose.Began) int { return x.At.Compare(y.At) }
	firstA, firstB := slices.MinFunc(a, earlier).At, slices.MinFunc(b, earlier).At
	for len(a) > 0 && len(b) > 0 {
		switch {
		case a[0].Key < b[0].Key:
			a = a[1:]
		case a[0].Key > b[0].Key:
			b = b[1:]
		default:
			if a[0].Here != b[0].Here {
				by := a[0].At.Sub(b[0].At)
				all = append(all, by)
				if a[0].At.After(firstA) && b[0].At.After(firstB) {
					later = append(later, by)
				}
			}
			a, b = a[1:], b[1:]
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
	from, to := first.Add(-n.ahead), last.Add(-n.ahead)
	if start := far.seen.Window.Start.Add(-far.ahead); start.After(from) {
		from = start
	}
	if end := far.seen.Window.End.Add(-far.ahead); end.Before(to) {
		to = end
	}
	least := overlap
	if n.ahead != far.ahead {
		least += n.unsure + far.unsure
	}
	return to.Sub(from) >= least
}
