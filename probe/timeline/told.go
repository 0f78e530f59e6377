package timeline

import (
	"slices"
	"time"

	"github.com/lasthop/lasthop/probe/model"
)

// Told is what to tell of a window: what was judged of it as a whole, with the times at
// which a continuous observation had it open, and what that had open besides, of warning
// or worse. Of what was there when it began to judge, the opening is
// not known.
func Told(judged []model.Finding, tracked []model.Tracked, began time.Time) []model.Finding {
	out := slices.Clone(judged)
	// What is open comes before what has closed, and within each the worst, so that a part
	// of a wider finding meets that.
	tracked = slices.Clone(tracked)
	slices.SortStableFunc(tracked, func(a, b model.Tracked) int {
		switch {
		case a.Closed != b.Closed && b.Closed:
			return -1
		case a.Closed != b.Closed:
			return 1
		}
		return model.WorstFirst(&a.Finding, &b.Finding)
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
		first := x.First
		if !first.After(began) {
			first = time.Time{}
		}
		if f.Times == 0 || first.Before(f.Opened) {
			f.Opened = first
		}
		f.Times++
		open[i] = open[i] || !x.Closed
		if f.Closed = later(f.Closed, x.Last); open[i] {
			f.Closed = time.Time{}
		}
	}
	return out
}

func later(a, b time.Time) time.Time {
	if a.After(b) {
		return a
	}
	return b
}

// part reports whether what closed was a part of another finding, which was open at the
// time or soon after: single addresses are seen to be silent before their range is.
func part(x *model.Tracked, of *model.Finding) bool {
	return covers(*of, x.Finding) && (of.Closed.IsZero() || !x.First.After(of.Closed)) && !x.Last.Add(linger).Before(of.Opened)
}
