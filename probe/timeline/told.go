package timeline

import (
	"cmp"
	"net/netip"
	"slices"
	"time"

	"github.com/lasthop/lasthop/probe/model"
)

// Told is what to tell of a window: what was judged of it as a whole, with the times at
// which a continuous observation had it open; behind that comes what it had open besides,
// of warning or worse. Of one that may be older than the window, First is zero.
func Told(judged []model.Finding, tracked []model.Tracked) []model.Finding {
	out := Standing(judged, tracked)
	// A part of a wider finding meets that: what is open comes first, then the worst.
	tracked = slices.Clone(tracked)
	slices.SortStableFunc(tracked, func(a, b model.Tracked) int {
		return cmp.Or(rank(a.Closed)-rank(b.Closed), model.WorstFirst(&a.Finding, &b.Finding))
	})
	open := map[int]bool{}
	for x := range model.Each(tracked) {
		i := slices.IndexFunc(out, func(f model.Finding) bool { return f.Same(&x.Finding) })
		if i < 0 {
			x.Packets = max(x.Packets, x.Lost)
			if x.Severity.Rank() < model.Warning.Rank() || slices.ContainsFunc(out, func(f model.Finding) bool { return part(x, &f) }) {
				continue
			}
			i, out = len(out), append(out, x.Finding)
		}
		f := &out[i]
		if x.Confidence.Rank() > f.Confidence.Rank() {
			// The state at the end knows less.
			opened, closed, times := f.Opened, f.Closed, f.Times
			*f = x.Finding
			f.Opened, f.Closed, f.Times = opened, closed, times
		} else if made := x.Made(); len(made) > 0 && len(f.Made()) == 0 {
			// The agent that saw the change ended before the window did.
			f.Why, f.Evidence = x.Why, append(made, f.Evidence...)
		}
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

// Standing are those of what was judged of a window as a whole that the state at its end did not mislead: of what closed in
// it, the time at which it was open knows as much, and keeps it apart from what else was lost.
func Standing(judged []model.Finding, tracked []model.Tracked) []model.Finding {
	return slices.DeleteFunc(slices.Clone(judged), func(f model.Finding) bool {
		open := func(x model.Tracked) bool {
			return f.Same(&x.Finding) && (!x.Closed || x.Confidence.Rank() < f.Confidence.Rank() || len(f.Nodes) > 0)
		}
		return !slices.ContainsFunc(tracked, open) && slices.ContainsFunc(tracked, func(x model.Tracked) bool { return misjudged(&f, &x) })
	})
}

// misjudged reports whether a finding of the whole window is about losses that one accounts for which closed: what made
// them is not in the state at the window's end. One on packets that go astray, nobody knows to whom, may be about any.
func misjudged(f *model.Finding, x *model.Tracked) bool {
	astray := f.Is(model.Astray) && len(f.Peers) == 0 && x.Severity.Rank() >= f.Severity.Rank()
	return x.Closed && (astray || OneLoss(f, &x.Finding))
}

// OneLoss reports whether a finding is about losses that another one, as serious at least, accounts for: of its pods and peers,
// or of its peers, which the other has for pods, and from which it hears nothing.
func OneLoss(f, by *model.Finding) bool {
	meet := func(a, b []netip.Prefix) bool {
		return len(a) == 0 || len(b) == 0 || slices.ContainsFunc(a, func(p netip.Prefix) bool { return slices.ContainsFunc(b, p.Overlaps) })
	}
	beside := func(p netip.Prefix) bool { return !slices.Contains(model.Hosts(by.Pods), p) }
	return by.Severity.Rank() >= max(f.Severity.Rank(), model.Warning.Rank()) && (model.Meet(f.Pods, by.Pods) && meet(f.Peers, by.Peers) ||
		f.Is(model.Unheard) && len(f.Peers) > 0 && !slices.ContainsFunc(f.Peers, beside) && meet(model.Hosts(f.Pods), by.Peers))
}

// Besides adds to what is told what was judged of a part of the window alone. The end of a
// part that ends with the window is zero.
func Besides(told, judged []model.Finding, part model.Window) []model.Finding {
	for _, f := range judged {
		known := func(g model.Finding) bool { return f.Same(&g) || covers(g, f) }
		if f.Severity.Rank() >= model.Warning.Rank() && !slices.ContainsFunc(told, known) {
			f.Opened, f.Closed, f.Times = part.Start, part.End, 1
			told = append(told, f)
		}
	}
	return told
}

func rank(closed bool) int { return model.Either(closed, 1, 0) }

// part reports whether what closed was a part of another finding, which was open at the
// time or soon after: single addresses are seen to be silent before their range is. What a proof puts down to an object of
// its own, such as another rule, is no part.
func part(x *model.Tracked, of *model.Finding) bool {
	return (x.Cause == "" || x.Confidence != model.Proven) && x.Confidence.Rank() <= of.Confidence.Rank() && covers(*of, x.Finding) &&
		of.Severity.Rank() >= x.Severity.Rank() &&
		(of.Closed.IsZero() || !x.First.After(of.Closed)) && !x.Last.Add(linger).Before(of.Opened)
}
