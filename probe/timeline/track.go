package timeline

import (
	"cmp"
	"net/netip"
	"slices"
	"time"

	"github.com/lasthop/lasthop/probe/model"
)

const (
	// linger is how long a finding must be gone before it closes, so that
	// one whose traffic comes in bursts stays one.
	linger = 5 * time.Second
	// maxClosed is how many closed findings are remembered.
	maxClosed = 100
)

// tracker follows findings from judgement to judgement.
type tracker struct {
	ids    int
	open   []*model.Tracked
	closed []model.Tracked // the latest first
	// waiting are findings that did not yet open; the first judgement of
	// several that had them.
	waiting []candidate
}

type candidate struct {
	model.Finding
	since time.Time
}

// judgement is what Diagnose says at one point.
type judgement struct {
	at     time.Time
	window time.Duration
	// whole is of the window, current of that part of it, steady long, in
	// which the node was configured as it is now, recent of the last few
	// seconds of that.
	whole, current, recent []model.Finding
	steady                 time.Duration
}

// judge opens, changes and closes findings.
//
// What the window shows opens a finding once the node as it is configured now
// shows it too: drops that outlive their cause in the window are not a new
// one. What is not proven must be seen twice, since an answer may be under way.
// A silence that the window does not show yet may open one by the last few
// seconds, if nothing else is found of its pods.
func (t *tracker) judge(j judgement) {
	seen := map[*model.Tracked]bool{}
	var waiting []candidate
	consider := func(f model.Finding, evident bool) {
		if x := t.match(f, seen); x != nil {
			if seen[x] = true; evident || j.steady < linger {
				x.Finding, x.Last = f, j.at
			} else {
				// What is left of it is from before it was mended.
				t.end(x)
			}
			return
		}
		c, again := t.awaited(f, j.at)
		if f.Confidence != model.Proven && t.remnant(f) {
			waiting = append(waiting, c)
			return
		}
		// What stays for so long is of now, whatever changes meanwhile.
		if evident && (again || f.Confidence == model.Proven) || j.at.Sub(c.since) >= 2*max(j.window, Short) {
			t.ids++
			x := &model.Tracked{Finding: f, ID: t.ids, First: j.at, Last: j.at}
			t.supersede(f)
			t.open = append(t.open, x)
			seen[x] = true
			return
		}
		waiting = append(waiting, c)
	}
	for _, f := range j.whole {
		consider(f, within(f, j.current) || within(f, j.recent))
	}
	for _, f := range j.recent {
		if !within(f, j.whole) && (t.match(f, nil) != nil || t.alone(f, j.whole)) {
			consider(f, true)
		}
	}
	t.waiting = waiting
	t.close(j.at)
}

// close ends the findings that are gone for long enough.
func (t *tracker) close(now time.Time) {
	for _, x := range slices.Clone(t.open) {
		if now.Sub(x.Last) >= linger {
			t.end(x)
		}
	}
}

func (t *tracker) end(x *model.Tracked) {
	x.Closed = true
	t.open = slices.DeleteFunc(t.open, func(y *model.Tracked) bool { return x == y })
	t.closed = slices.Insert(t.closed, 0, *x)
	t.closed = t.closed[:min(len(t.closed), maxClosed)]
}

// awaited is the finding as one that may open, and whether it was one before.
func (t *tracker) awaited(f model.Finding, now time.Time) (candidate, bool) {
	for _, c := range t.waiting {
		if same(c.Finding, f) {
			return candidate{f, c.since}, true
		}
	}
	return candidate{f, now}, false
}

// match is the open finding that f continues: of the same cause, or else about
// some of the same pods and peers.
func (t *tracker) match(f model.Finding, taken map[*model.Tracked]bool) *model.Tracked {
	for _, alike := range []func(a, b model.Finding) bool{exactly, same} {
		for _, x := range t.open {
			if !taken[x] && alike(x.Finding, f) {
				return x
			}
		}
	}
	return nil
}

func exactly(a, b model.Finding) bool {
	return a.Code == b.Code && a.Title == b.Title && slices.Equal(a.Pods, b.Pods) && slices.Equal(a.Peers, b.Peers)
}

// same reports whether two findings are of one cause, whose extent may differ.
func same(a, b model.Finding) bool {
	if a.Code != b.Code {
		return false
	}
	pods, peers := sharing(a.Pods, b.Pods), sharing(a.Peers, b.Peers)
	return a.Title == b.Title && (pods || peers) || pods && peers
}

// sharing reports whether the lists have something in common, as two empty
// ones do.
func sharing[T comparable](a, b []T) bool {
	return len(a) == 0 && len(b) == 0 || slices.ContainsFunc(a, func(x T) bool { return slices.Contains(b, x) })
}

// remnant reports whether an open finding is about all that f is about: where
// only a part is silent any more, the rest is on its way to be well.
func (t *tracker) remnant(f model.Finding) bool {
	return slices.ContainsFunc(t.open, func(x *model.Tracked) bool { return covers(x.Finding, f) })
}

// supersede ends what is not proven and only a part of what opens now: single
// addresses fall silent before their range is seen to.
func (t *tracker) supersede(f model.Finding) {
	for _, x := range slices.Clone(t.open) {
		if x.Confidence != model.Proven && covers(f, x.Finding) {
			t.end(x)
		}
	}
}

// covers reports whether wide is about all the peers that narrow is about, and
// some of its pods.
func covers(wide, narrow model.Finding) bool {
	return len(narrow.Peers) > 0 && sharing(wide.Pods, narrow.Pods) && !slices.ContainsFunc(narrow.Peers, func(p netip.Prefix) bool {
		return !slices.ContainsFunc(wide.Peers, func(q netip.Prefix) bool { return q.Bits() <= p.Bits() && q.Contains(p.Addr()) })
	})
}

func within(f model.Finding, list []model.Finding) bool {
	return slices.ContainsFunc(list, func(g model.Finding) bool { return same(f, g) })
}

// alone reports whether nothing is found of the finding's pods, neither in the
// window nor before.
func (t *tracker) alone(f model.Finding, list []model.Finding) bool {
	shares := func(g model.Finding) bool {
		return len(g.Pods) == 0 || len(f.Pods) == 0 || slices.ContainsFunc(g.Pods, func(a netip.Addr) bool { return slices.Contains(f.Pods, a) })
	}
	return !slices.ContainsFunc(list, shares) && !slices.ContainsFunc(t.open, func(x *model.Tracked) bool { return shares(x.Finding) })
}

// findings are the open ones, in the order of Diagnose, then the closed.
func (t *tracker) findings() []model.Tracked {
	out := make([]model.Tracked, 0, len(t.open)+len(t.closed))
	for _, x := range t.open {
		out = append(out, *x)
	}
	slices.SortStableFunc(out, func(a, b model.Tracked) int {
		return cmp.Or(
			cmp.Compare(b.Severity.Rank(), a.Severity.Rank()),
			cmp.Compare(b.Confidence.Rank(), a.Confidence.Rank()),
			cmp.Compare(a.Code, b.Code),
			slices.CompareFunc(a.Pods, b.Pods, netip.Addr.Compare),
			cmp.Compare(a.ID, b.ID),
		)
	})
	return append(out, t.closed...)
}
