// Package timeline turns the points of an observation, live or recorded, into readings: it computes windows from
// cumulative counters, diagnoses them, and tracks findings from when they open to when they close.
//
// It is pure: it takes the time from the points.
package timeline

import (
	"cmp"
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
	// changed is the first mark with the present configuration, nil if it never changed; unchanged is when
	// the one before was seen last.
	changed   *mark
	unchanged time.Time
	setup     setup
	keys      keeper
	// state is that of the latest reading.
	state lastState

	// whole is the snapshot of the latest whole point, since what was counted after it.
	whole   *model.Snapshot
	since   model.Verdict
	settled []settled

	tracker tracker
	// opened is set where the latest judgement opened a finding.
	opened  bool
	doubts  doubts
	rarely  bool
	series  series
	judged  time.Time
	verdict model.Verdict
	last    model.Point
}

// New returns a timeline with readings over the window, 0 for all.
func New(diagnose Diagnose, window time.Duration) *Timeline {
	return &Timeline{diagnose: diagnose, window: window}
}

// Doubting has a timeline follow what counts alone show of losses. Where the state is read rarely, what is judged of the last
// seconds begins with them.
func (t *Timeline) Doubting(rarely bool) *Timeline {
	t.rarely, t.doubts = rarely, doubts{open: map[uint64]*doubt{}, vain: map[netip.Addr]patience{}}
	return t
}

// SetWindow sets the window of later readings, 0 for all since the start or the last Reset.
func (t *Timeline) SetWindow(d time.Duration) { t.window = max(d, 0) }

// Reset lets "all" begin at the latest point and forgets closed findings.
func (t *Timeline) Reset() {
	switch {
	case t.last.Snapshot == nil:
		return
	case t.last.Whole:
		t.origin = t.marks[len(t.marks)-1]
	default:
		t.origin = newMark(t.last, &t.keys)
	}
	t.marks, t.moves, t.before, t.tracker.closed = []*mark{t.origin}, nil, t.origin.counts, nil
}

// Add takes the next point and returns its reading. Only whole points are
// diagnosed; other readings have the findings of the latest whole point.
func (t *Timeline) Add(p model.Point) model.Reading {
	t.begin(p)
	t.series.add(p.Snapshot)
	base := t.base(p.Snapshot.Window.End, t.window, margin)
	s := t.cut(base, p, &t.state)
	if p.Whole {
		before, latest := t.setup, newMark(p, &t.keys)
		t.setup = newSetup(p.Snapshot, &t.keys)
		changed := !before.same(t.setup)
		t.doubts.see(p.Snapshot, &t.before, &latest.counts)
		former, changed := t.account(latest, changed)
		if changed {
			t.changed, t.unchanged = latest, t.marks[len(t.marks)-1].at
		}
		t.judge(s, base, changed, former)
		t.remember(latest)
	} else {
		t.move(p.Snapshot)
	}
	return t.reading(s)
}

// Note takes a point that is not whole. Its reading has no window and no rates.
func (t *Timeline) Note(p model.Point) model.Reading {
	t.Count(p)
	return t.bare()
}

// Doubt reports whether the counts alone make a judgement due: packets that got no reply, or were dropped, in a way that was
// not judged yet.
func (t *Timeline) Doubt() bool {
	due, _ := t.doubts.due()
	return due
}

// Doubtful reports whether the next point may make a judgement due, so that it should come soon.
func (t *Timeline) Doubtful() bool {
	_, fresh := t.doubts.due()
	return fresh
}

// Count takes the next point without a reading: windows know when counters moved, and it is not judged.
func (t *Timeline) Count(p model.Point) {
	t.begin(p)
	if p.Whole {
		t.whole = p.Snapshot
		t.remember(newMark(p, &t.keys))
	} else {
		t.move(p.Snapshot)
	}
}

func (t *Timeline) begin(p model.Point) {
	t.last = p
	if t.whole == nil {
		t.whole, t.setup = p.Snapshot, newSetup(p.Snapshot, &t.keys)
	}
	if t.origin == nil {
		// What the kernel counts since it started is compared with the first reading
		// of it. What lasthop counts starts from zero.
		s := p.Snapshot
		t.origin = &mark{at: s.Window.Start, rules: newRuleCounts(s, &t.keys), totals: totalsOf(s), conntrack: s.Conntrack, gaps: gapsOf(s)}
	}
}

// Unsettled reports whether the latest whole point shows a change: a new configuration, or a finding that may open or just
// did, since the first silent addresses may be part of more.
func (t *Timeline) Unsettled() bool {
	return len(t.tracker.waiting) > 0 || t.opened || t.changed != nil && t.changed == t.marks[len(t.marks)-1]
}

// Again returns the reading of the latest point over the present window, without a new diagnosis.
func (t *Timeline) Again() (model.Reading, bool) {
	if t.last.Snapshot == nil {
		return model.Reading{}, false
	}
	base := t.base(t.last.Snapshot.Window.End, t.window, margin)
	if base.at.After(t.last.Snapshot.Window.End) {
		return model.Reading{}, false
	}
	return t.reading(t.cut(base, t.last, &t.state)), true
}

// All returns the snapshot of all since the start or the last Reset, and the findings. A point was taken before.
func (t *Timeline) All() (model.Snapshot, []model.Tracked) {
	return *t.cut(t.origin, t.last, &t.state), t.tracker.findings()
}

func (t *Timeline) reading(s *model.Snapshot) model.Reading {
	r := t.bare()
	if t.last.Whole {
		r.Since = t.since
	}
	r.Snapshot = s
	return r
}

// bare is a reading of the latest point, without a window.
func (t *Timeline) bare() model.Reading {
	s := t.last.Snapshot
	r := model.Reading{At: s.Window.End, Findings: t.tracker.findings(), Judged: t.judged, Verdict: t.verdict, Point: t.last}
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

// judge diagnoses the window, and the part of it since the configuration last changed, unless it changed just now. former
// are the findings that the configuration before makes.
func (t *Timeline) judge(s *model.Snapshot, base *mark, changed bool, former []model.Finding) {
	now := s.Window.End
	if now.Sub(t.last.Snapshot.Window.Start) < grounds {
		return
	}
	before := t.judged
	t.settled = slices.DeleteFunc(t.settled, func(x settled) bool { return now.Sub(x.at) > Long+Middle })
	judged := func(s *model.Snapshot, since *mark) model.Verdict { return t.diagnose(t.unsettled(s, since.at)) }
	t.judged, t.verdict = now, judged(s, base)
	t.inherit()
	j := judgement{at: now, window: s.Window.Duration(), verdict: t.verdict, since: t.since, former: former,
		unchanged: t.unchanged, changed: changed, before: before, whole: t.verdict.Findings}
	defer t.track(&j)
	if changed {
		return
	}
	j.current = j.whole
	since := base
	if t.changed != nil && t.changed.at.After(base.at) {
		since = t.changed
		j.current = judged(t.cut(since, t.last, new(lastState)), since).Findings
	}
	j.steady, j.recent, j.lately = now.Sub(since.at), j.current, since.at
	m := t.base(now, recent, 0)
	if at := t.doubts.lately(); t.rarely && !at.IsZero() && at.After(m.at.Add(-slack)) {
		m = t.base(now, now.Sub(at), 0)
		j.lasted = now.Sub(at) >= recent-slack
	}
	if m.at.After(since.at) {
		j.lately, j.recent = m.at, judged(t.cut(m, t.last, new(lastState)), m).Findings
	}
}

// track opens and closes findings, and takes what was doubted for judged.
func (t *Timeline) track(j *judgement) {
	opened := t.tracker.ids
	t.tracker.judge(*j)
	t.opened = t.tracker.ids > opened
	t.doubts.judge(t.opened || slices.ContainsFunc(t.tracker.waiting, func(c candidate) bool {
		return c.Severity.Rank() >= model.Warning.Rank()
	}))
}

// slack is how much shorter than requested a window may be.
const slack = time.Second / 2

// base returns the mark at which a window begins: that of the latest whole point that is old enough, or of a later point
// if that one is older by more than apart.
func (t *Timeline) base(now time.Time, window, apart time.Duration) *mark {
	if window == 0 {
		return t.origin
	}
	latest := func(list []*mark) *mark {
		for _, m := range slices.Backward(list) {
			if now.Sub(m.at) >= window-slack {
				return m
			}
		}
		return nil
	}
	whole, moved := cmp.Or(latest(t.marks), t.origin), latest(t.moves)
	if moved == nil || moved.at.Sub(whole.at) <= apart {
		return whole
	}
	m := *whole
	m.at, m.early = moved.at, true
	for _, x := range t.moves {
		if x.at.After(whole.at) && !x.at.After(moved.at) {
			m.counts = m.with(x.counts)
		}
	}
	return &m
}

// remember adds the mark of a whole point, and removes marks that no window will begin at.
func (t *Timeline) remember(latest *mark) {
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
	now := newCounts(&s.Traffic)
	t.doubts.see(s, &t.before, &now)
	t.moves, t.before = append(t.moves, &mark{at: s.Window.End, counts: now.since(t.before)}), now
	t.moves = slices.DeleteFunc(t.moves, func(m *mark) bool { return s.Window.End.Sub(m.at) > Short+margin })
}

// superfluous reports whether no window needs the mark, given the next mark and the kept ones before it.
func (t *Timeline) superfluous(m, next *mark, kept []*mark, now time.Time) bool {
	if now.Sub(next.at) >= Long {
		return true
	}
	if len(kept) == 0 || now.Sub(next.at) <= Short+margin { // later points may rest on it
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
