// Package timeline turns the points of an observation, live or recorded, into readings: it computes windows from
// cumulative counters, diagnoses them, and tracks findings from when they open to when they close.
//
// It is pure: it takes the time from the points.
package timeline

import (
	"net/netip"
	"slices"
	"time"

	"github.com/lasthop/lasthop/probe/model"
)

// The windows besides "all since the start". A timeline keeps what the longest needs.
const (
	Short  = 10 * time.Second
	Middle = time.Minute
	Long   = 5 * time.Minute
)

// Diagnose judges a snapshot.
type Diagnose func(*model.Snapshot) model.Verdict

// Timeline keeps the counts of earlier points, fewer the older they are. It is not safe for concurrent use.
type Timeline struct {
	diagnose Diagnose
	window   time.Duration
	// origin is the mark at which "all" begins.
	origin *mark
	// marks are sorted, oldest first.
	marks []*mark
	// moves are marks of the latest points that are not whole, each with what counted since
	// the point before alone; before has the counts of the last point, whole or not.
	moves  []*mark
	before counts
	// changed is the first mark with the present configuration, nil if it never changed.
	changed *mark
	setup   setup
	keys    keeper
	// state is that of the latest reading.
	state lastState

	tracker tracker
	series  series
	judged  time.Time
	verdict model.Verdict
	last    model.Point
}

// New returns a timeline with readings over the window, 0 for all.
func New(diagnose Diagnose, window time.Duration) *Timeline {
	return &Timeline{diagnose: diagnose, window: window}
}

// SetWindow sets the window of later readings, 0 for all since the start or the last Reset.
func (t *Timeline) SetWindow(d time.Duration) { t.window = max(d, 0) }

// Reset lets "all" begin at the latest whole point and forgets closed findings.
func (t *Timeline) Reset() {
	if len(t.marks) == 0 {
		return
	}
	t.origin = t.marks[len(t.marks)-1]
	t.marks = []*mark{t.origin}
	t.tracker.closed = nil
}

// Add takes the next point and returns its reading. Only whole points are
// diagnosed; other readings have the findings of the latest whole point.
func (t *Timeline) Add(p model.Point) model.Reading {
	t.begin(p)
	t.series.add(p.Snapshot)
	base := t.base(p.Snapshot.Window.End, t.window)
	s := t.cut(base, p, &t.state)
	if p.Whole {
		before := t.setup
		t.setup = newSetup(p.Snapshot, &t.keys)
		changed := before != nil && !before.same(t.setup)
		t.judge(s, base, changed)
		t.remember(p)
		if changed {
			t.changed = t.marks[len(t.marks)-1]
		}
	} else {
		t.move(p.Snapshot)
	}
	return t.reading(s)
}

// Note takes a point that is not whole. Its reading has no window, and no rates but those of drops.
func (t *Timeline) Note(p model.Point) model.Reading {
	t.Count(p)
	t.series.add(p.Snapshot)
	return t.bare()
}

// Count takes the next point without a reading: windows know when counters moved, and it is not judged.
func (t *Timeline) Count(p model.Point) {
	t.begin(p)
	if p.Whole {
		t.remember(p)
	} else {
		t.move(p.Snapshot)
	}
}

func (t *Timeline) begin(p model.Point) {
	t.last = p
	if t.origin == nil {
		// What the kernel counts since it started is compared with the first reading
		// of it. What lasthop counts starts from zero.
		s := p.Snapshot
		t.origin = &mark{at: s.Window.Start, rules: newRuleCounts(s, &t.keys), overflows: overflowsOf(s), conntrack: s.Conntrack, gaps: gapsOf(s)}
	}
}

// Unsettled reports whether the latest whole point shows a change: a new configuration, or a finding that may open.
func (t *Timeline) Unsettled() bool {
	return len(t.tracker.waiting) > 0 || t.changed != nil && t.changed == t.marks[len(t.marks)-1]
}

// Again returns the reading of the latest point over the present window, without a new diagnosis.
func (t *Timeline) Again() (model.Reading, bool) {
	if t.last.Snapshot == nil {
		return model.Reading{}, false
	}
	base := t.base(t.last.Snapshot.Window.End, t.window)
	if base.at.After(t.last.Snapshot.Window.End) {
		return model.Reading{}, false
	}
	return t.reading(t.cut(base, t.last, &t.state)), true
}

func (t *Timeline) reading(s *model.Snapshot) model.Reading {
	r := t.bare()
	r.Snapshot, r.Series = s, t.series.list(t.last.Snapshot.Traffic.Hops)
	return r
}

// bare is a reading of the latest point, without a window.
func (t *Timeline) bare() model.Reading {
	s := t.last.Snapshot
	r := model.Reading{
		At: s.Window.End, Findings: t.tracker.findings(), Judged: t.judged, Verdict: t.verdict, Point: t.last,
	}
	if s.Status(model.SourceDrops) != model.Missing {
		r.Drops = slices.Clone(t.series.drops.rates)
		r.Lost = make(map[netip.Addr][]float64, len(t.series.pods))
		for a, x := range t.series.pods {
			r.Lost[a] = slices.Clone(x.rates)
		}
	}
	return r
}

const (
	// recent is a window short enough to show that replies stopped just now. A longer one still contains replies.
	recent = 4 * time.Second
	// grounds is the observation time needed before the first diagnosis.
	grounds = 2 * time.Second
)

// judge diagnoses the window, and the part of it since the configuration last changed, unless it changed just now.
func (t *Timeline) judge(s *model.Snapshot, base *mark, changed bool) {
	now := s.Window.End
	if now.Sub(t.last.Snapshot.Window.Start) < grounds {
		return
	}
	t.judged, t.verdict = now, t.diagnose(s)
	j := judgement{at: now, window: s.Window.Duration(), whole: t.verdict.Findings}
	if changed {
		t.tracker.judge(j)
		return
	}
	j.current = j.whole
	since := base
	if t.changed != nil && t.changed.at.After(base.at) {
		since = t.changed
		j.current = t.diagnose(t.cut(since, t.last, new(lastState))).Findings
	}
	j.steady = now.Sub(since.at)
	j.recent = j.current
	j.lately = since.at
	if m := t.base(now, recent); m.at.After(since.at) {
		j.lately = m.at
		j.recent = t.diagnose(t.cut(m, t.last, new(lastState))).Findings
	}
	t.tracker.judge(j)
}

// slack is how much shorter than requested a window may be.
const slack = time.Second / 2

// base returns the mark at which a window begins: the latest that is old enough.
func (t *Timeline) base(now time.Time, window time.Duration) *mark {
	if window == 0 {
		return t.origin
	}
	for i := len(t.marks) - 1; i >= 0; i-- {
		if now.Sub(t.marks[i].at) >= window-slack {
			return t.marks[i]
		}
	}
	return t.origin
}

// remember adds a mark for the point, and removes marks that no window will begin at.
func (t *Timeline) remember(p model.Point) {
	latest := newMark(p, &t.keys)
	t.marks, t.before = append(t.marks, latest), latest.counts
	now := latest.at
	var kept []*mark
	for i, m := range t.marks {
		if i+1 == len(t.marks) || m == t.origin || !t.superfluous(m, t.marks[i+1], kept, now) {
			kept = append(kept, m)
			continue
		}
		t.marks[i+1].fold(m)
	}
	t.marks = kept
}

// move remembers which counters moved since the last point.
func (t *Timeline) move(s *model.Snapshot) {
	now := spansOf(&s.Traffic)
	t.moves = append(t.moves, &mark{at: s.Window.End, counts: now.since(t.before)})
	t.before = now
	t.moves = slices.DeleteFunc(t.moves, func(m *mark) bool { return s.Window.End.Sub(m.at) > Short+margin })
}

// superfluous reports whether no window needs the mark, given the next mark and the kept ones before it.
func (t *Timeline) superfluous(m, next *mark, kept []*mark, now time.Time) bool {
	if now.Sub(next.at) >= Long {
		return true
	}
	if len(kept) == 0 {
		return false
	}
	before, age := kept[len(kept)-1], now.Sub(m.at)
	return age > Middle+margin && sameSlot(before, m, Middle) || age > Short+margin && sameSlot(before, m, Short)
}

// margin is how much longer than a window its closely spaced marks are kept. It
// covers the longest interval between two whole points.
const margin = 10 * time.Second

func sameSlot(a, b *mark, slot time.Duration) bool {
	return a.at.Truncate(slot).Equal(b.at.Truncate(slot))
}
