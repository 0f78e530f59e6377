package timeline

import (
	"cmp"
	"net/netip"
	"slices"
	"time"

	"github.com/lasthop/lasthop/probe/model"
)

const (
	// linger is how long a finding must be absent before it closes, so that it stays open between bursts of traffic.
	linger = 5 * time.Second
	// maxClosed bounds the closed findings that are kept.
	maxClosed = 100
	// mostChanges bounds the changes of a finding.
	mostChanges = 4
)

type tracker struct {
	ids    int
	open   []*model.Tracked
	closed []model.Tracked // latest first
	// known is what is known of the open findings besides, by ID.
	known map[int]*past
	// waiting are findings that have not opened yet.
	waiting []candidate
}

// past is an open finding as it was when it was surest. It is mended if the configuration changed and no longer shows it.
type past struct {
	best   model.Finding
	mended bool
}

type candidate struct {
	model.Finding
	since time.Time // the first judgement in a row that had it
	began time.Time // when what that judgement rests on began
	lost  uint64    // what its cause lost since
}

// judgement holds the results of Diagnose at one point.
type judgement struct {
	at     time.Time
	window time.Duration
	// whole is of the window, current of the part since the configuration last
	// changed, which took steady, and recent of its last few seconds.
	whole, current, recent []model.Finding
	steady                 time.Duration
	// former are findings on losses whose cause the configuration no longer has.
	former []model.Finding
	// verdict is that of the window, since that of what was counted since the judgement before.
	verdict, since model.Verdict
	// unchanged is when the configuration before the present one was last seen.
	unchanged time.Time
	// changed: the configuration is another than at the judgement before, which was made at before.
	changed bool
	before  time.Time
	// lately is when the last few seconds began, lasted whether several points in them showed what recent is of.
	lately time.Time
	lasted bool
}

// began is when what shows a finding began: the first drop that it claims, under the present configuration. What is
// not proven is inferred from all of the shortest window that shows it.
func (j *judgement) began(f model.Finding) time.Time {
	first, _, _ := lostTo(&j.verdict, &f)
	switch {
	case first.Before(j.unchanged) && !first.IsZero():
		// One that is known to be changed by somebody was as before until the first change that the kernel notified of.
		changed := model.Find(j.verdict.On.Changes, func(c model.Change) bool { return len(f.Made()) > 0 && c.At.After(j.unchanged) })
		return model.Either(changed.At.IsZero(), j.unchanged, changed.At)
	case !first.IsZero():
		return first
	case f.Confidence == model.Proven:
		return j.at
	case within(f, j.recent):
		return j.lately
	}
	return j.at.Add(-j.window)
}

// judge opens, updates and closes findings.
//
// A finding of the window opens once the present configuration shows it too: drops from before a repair stay in
// the window but are no new finding. A finding that is not proven must be seen twice, since a reply may be in
// flight. Where replies stopped just now, the last few seconds may open a finding that the window does not show
// yet, if there is no other finding for its pods.
func (t *tracker) judge(j judgement) {
	seen := map[*model.Tracked]bool{}
	var waiting []candidate
	consider := func(f model.Finding, evident bool) {
		if x := t.match(&f, seen); x != nil {
			if seen[x] = true; evident || j.steady < linger {
				t.see(x, f, &j)
			} else {
				// What remains in the window is from before the repair.
				t.end(x)
			}
			return
		}
		c, again := t.awaited(f, &j)
		covered := slices.ContainsFunc(t.open, func(x *model.Tracked) bool { return covers(x.Finding, f) })
		if covered && f.Confidence != model.Proven {
			// A smaller silent part means that traffic is recovering.
			waiting = append(waiting, c)
			return
		}
		// A finding that persists for so long is current, whatever changes meanwhile.
		again = again || j.lasted && within(f, j.recent)
		if evident && (again || f.Confidence == model.Proven) || j.at.Sub(c.since) >= 2*max(j.window, Short) {
			seen[t.begin(c, j.at)] = true
			return
		}
		waiting = append(waiting, c)
	}
	for _, f := range j.whole {
		consider(f, within(f, j.current) || within(f, j.recent))
	}
	for _, f := range j.recent {
		if !within(f, j.whole) && (t.match(&f, nil) != nil || t.alone(f, j.whole)) {
			consider(f, true)
		}
	}
	for _, f := range j.former {
		first, last, _ := lostTo(&j.since, &f)
		if x := t.match(&f, nil); x != nil {
			t.see(x, f, &j)
			x.Finding, x.Last, t.known[x.ID].mended = t.known[x.ID].best, last, true
			continue
		}
		// It will not be seen again.
		c, again := t.awaited(f, &j)
		c.began = model.Either(again, c.began, first)
		x := t.begin(c, last)
		seen[x], t.known[x.ID].mended = true, true
	}
	for _, x := range t.open {
		if j.changed && !seen[x] && x.Last.Equal(j.before) {
			t.known[x.ID].mended = true
		}
	}
	t.waiting = waiting
	t.close(j.at)
}

// begin opens a finding.
func (t *tracker) begin(c candidate, last time.Time) *model.Tracked {
	t.ids++
	x := &model.Tracked{Finding: c.Finding, ID: t.ids, First: c.began, Last: last, Lost: max(c.lost, c.Packets)}
	if t.known == nil {
		t.known = map[int]*past{}
	}
	t.known[x.ID] = &past{best: c.Finding}
	t.supersede(c.Finding)
	t.open = append(t.open, x)
	return x
}

// see takes a finding for seen again.
func (t *tracker) see(x *model.Tracked, f model.Finding, j *judgement) {
	was := t.known[x.ID]
	// Another program may have done again what was undone.
	for _, e := range was.best.Made() {
		if now := f.Made(); !slices.ContainsFunc(now, func(g model.Evidence) bool { return g.Text == e.Text }) && len(now) < mostChanges {
			f.Evidence = append(slices.Clip(f.Evidence), e)
		}
	}
	surer := cmp.Compare(f.Confidence.Rank(), was.best.Confidence.Rank())
	if was.mended = false; surer > 0 || surer == 0 && f.Packets >= was.best.Packets {
		was.best = f
	}
	_, _, lost := lostTo(&j.since, &f)
	x.Finding, x.Last, x.Lost = f, j.at, max(x.Lost+lost, f.Packets)
}

func (t *tracker) close(now time.Time) {
	for _, x := range slices.Clone(t.open) {
		if now.Sub(x.Last) >= linger {
			t.end(x)
		}
	}
}

// end closes a finding, and leaves it as it was when it was surest.
func (t *tracker) end(x *model.Tracked) {
	if was := t.known[x.ID]; was != nil {
		x.Finding, x.Mended = was.best, was.mended
		delete(t.known, x.ID)
	}
	x.Closed = true
	t.open = slices.DeleteFunc(t.open, func(y *model.Tracked) bool { return x == y })
	t.closed = slices.Insert(t.closed, 0, *x)
	t.closed = t.closed[:min(len(t.closed), maxClosed)]
}

// awaited returns the finding as a candidate, and whether it was one before.
func (t *tracker) awaited(f model.Finding, j *judgement) (candidate, bool) {
	_, _, lost := lostTo(&j.since, &f)
	if c := model.First(t.waiting, func(c *candidate) bool { return c.Same(&f) }); c != nil {
		return candidate{f, c.since, c.began, c.lost + lost}, true
	}
	return candidate{f, j.at, j.began(f), lost}, false
}

// match returns the open finding that f continues: one of as many pods and peers, or else one of the same cause.
func (t *tracker) match(f *model.Finding, taken map[*model.Tracked]bool) *model.Tracked {
	var found *model.Tracked
	for _, x := range t.open {
		switch {
		case taken[x] || !f.Same(&x.Finding):
		case slices.Equal(f.Pods, x.Pods) && slices.Equal(f.Peers, x.Peers):
			return x
		default:
			found = cmp.Or(found, x)
		}
	}
	return found
}

// supersede ends unproven findings that f, which opens now, covers: single
// addresses are seen to be silent before their range is.
func (t *tracker) supersede(f model.Finding) {
	for _, x := range slices.Clone(t.open) {
		if x.Confidence != model.Proven && covers(f, x.Finding) {
			t.end(x)
		}
	}
}

// covers reports whether wide includes all peers of narrow, and some of its pods.
func covers(wide, narrow model.Finding) bool {
	return len(narrow.Peers) > 0 && model.Meet(wide.Pods, narrow.Pods) && !slices.ContainsFunc(narrow.Peers, func(p netip.Prefix) bool {
		return !slices.ContainsFunc(wide.Peers, func(q netip.Prefix) bool { return q.Bits() <= p.Bits() && q.Contains(p.Addr()) })
	})
}

func within(f model.Finding, list []model.Finding) bool {
	return slices.ContainsFunc(list, func(g model.Finding) bool { return f.Same(&g) })
}

// alone reports whether no other finding, in list or open, concerns the pods of f.
func (t *tracker) alone(f model.Finding, list []model.Finding) bool {
	shares := func(g model.Finding) bool {
		return len(g.Pods) == 0 || len(f.Pods) == 0 || model.Meet(g.Pods, f.Pods)
	}
	return !slices.ContainsFunc(list, shares) && !slices.ContainsFunc(t.open, func(x *model.Tracked) bool { return shares(x.Finding) })
}

// findings returns the open findings in the order of Diagnose, then the closed.
func (t *tracker) findings() []model.Tracked {
	out := model.Map(t.open, func(x *model.Tracked) model.Tracked { return *x })
	slices.SortStableFunc(out, func(a, b model.Tracked) int {
		return cmp.Or(model.WorstFirst(&a.Finding, &b.Finding), a.First.Compare(b.First),
			cmp.Compare(b.Confidence.Rank(), a.Confidence.Rank()), cmp.Compare(a.Code, b.Code),
			slices.CompareFunc(a.Pods, b.Pods, netip.Addr.Compare), cmp.Compare(a.ID, b.ID))
	})
	return append(out, t.closed...)
}
