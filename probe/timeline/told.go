package timeline

import (
	"cmp"
	"slices"
	"time"

	"github.com/lasthop/lasthop/probe/model"
)

// Told is what to tell of a window: what was judged of it as a whole, with the times at
// which a continuous observation had it open; behind that comes what it had open besides,
// of warning or worse. Of one that may be older than the window, First is zero.
func Told(judged []model.Finding, tracked []model.Tracked) []model.Finding {
	out := slices.Clone(judged)
	// A part of a wider finding meets that: what is open comes first, then the worst.
	tracked = slices.Clone(tracked)
	slices.SortStableFunc(tracked, func(a, b model.Tracked) int {
		return cmp.Or(rank(a.Closed)-rank(b.Closed), model.WorstFirst(&a.Finding, &b.Finding))
	})
	open := map[int]bool{}
	for x := range model.Each(tracked) {
		i := slices.IndexFunc(out, func(f model.Finding) bool { return same(f, x.Finding) })
		if i < 0 {
			if x.Severity.Rank() < model.Warning.Rank() || slices.ContainsFunc(out, func(f model.Finding) bool { return part(x, &f) }) {
				continue
			}
			i, out = len(out), append(out, x.Finding)
		}
		f := &out[i]
		if f.Times == 0 || x.First.Before(f.Opened) {
			f.Opened = x.First
		}
		f.Times++
		if open[i] = open[i] || !x.Closed; open[i] {
			f.Closed = time.Time{}
		} else if x.Last.After(f.Closed) {
			f.Closed = x.Last
		}
	}
	return out
}

// Besides adds to what is told what was judged of a part of the window alone. The end of a
// part that ends with the window is zero.
func Besides(told, judged []model.Finding, part model.Window) []model.Finding {
	for _, f := range judged {
		known := func(g model.Finding) bool { return same(f, g) || covers(g, f) }
		if f.Severity.Rank() >= model.Warning.Rank() && !slices.ContainsFunc(told, known) {
			f.Opened, f.Closed, f.Times = part.Start, part.End, 1
			told = append(told, f)
		}
	}
	return told
}

func rank(closed bool) int {
	if closed {
		return 1
	}
	return 0
}

// part reports whether what closed was a part of another finding, which was open at the
// time or soon after: single addresses are seen to be silent before their range is.
func part(x *model.Tracked, of *model.Finding) bool {
	return covers(*of, x.Finding) && (of.Closed.IsZero() || !x.First.After(of.Closed)) && !x.Last.Add(linger).Before(of.Opened)
}
