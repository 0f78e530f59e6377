// Package timeline turns the points of an observation, live or recorded, into
// readings: it cuts windows out of counts that only grow, has them judged, and
// follows findings from when they open to when they close.
//
// It is pure: time is that of the points.
package timeline

import (
	"slices"
	"time"

	"github.com/lasthop/lasthop/probe/model"
)

// Windows that are offered beside "all since the beginning", the shortest
// first. A timeline remembers as much as the longest needs.
const (
	Short  = 10 * time.Second
	Middle = time.Minute
	Long   = 5 * time.Minute
)

// Diagnose judges a snapshot.
type Diagnose func(*model.Snapshot) []model.Finding

// Timeline remembers counts at earlier points, fewer the older they are. It is
// not safe for concurrent use.
type Timeline struct {
	diagnose Diagnose
	window   time.Duration
	// origin is where "all" begins.
	origin *mark
	// marks are the oldest first.
	marks []*mark
	// changed is the first mark with the configuration that there is now, if
	// it was another before.
	changed *mark
	setup   setup

	tracker tracker
	series  series
	judged  time.Time
	last    model.Point
}

// New gives a timeline whose readings are of the window; 0 is all.
func New(diagnose Diagnose, window time.Duration) *Timeline {
	return &Timeline{diagnose: diagnose, window: window}
}

// SetWindow chooses the window of the readings that follow; 0 is all since the
// beginning or the last Reset.
func (t *Timeline) SetWindow(d time.Duration) { t.window = max(d, 0) }

// Reset lets "all" begin at the latest whole point, and forgets what closed.
func (t *Timeline) Reset() {
	if len(t.marks) == 0 {
		return
	}
	t.origin = t.marks[len(t.marks)-1]
	t.marks = []*mark{t.origin}
	t.tracker.closed = nil
}

// Add takes the next point and gives its reading. Only whole points are
// judged; findings of others are those of the latest that was.
func (t *Timeline) Add(p model.Point) model.Reading {
	now := p.Snapshot.Window.End
	t.last = p
	if t.origin == nil {
		// The rules are the first that are known, the counts those of the
		// beginning.
		t.origin = &mark{at: p.Snapshot.Window.Start, rules: newRuleCounts(p.Snapshot), gaps: gapsOf(p.Snapshot)}
	}
	t.series.add(p.Snapshot)
	base := t.base(now, t.window)
	s := t.cut(base, p)
	if p.Whole {
		changed := t.notice(p.Snapshot)
		t.judge(s, base, changed)
		t.remember(p)
		if changed {
			t.changed = t.marks[len(t.marks)-1]
		}
	}
	return t.reading(s)
}

// Unsettled reports whether the latest whole point shows a change: another
// configuration, or what may become a finding.
func (t *Timeline) Unsettled() bool {
	return len(t.tracker.waiting) > 0 || t.changed != nil && t.changed == t.marks[len(t.marks)-1]
}

// Again gives the latest point's reading over the window as it is chosen now.
// Nothing is judged anew.
func (t *Timeline) Again() (model.Reading, bool) {
	if t.last.Snapshot == nil {
		return model.Reading{}, false
	}
	base := t.base(t.last.Snapshot.Window.End, t.window)
	if base.at.After(t.last.Snapshot.Window.End) {
		return model.Reading{}, false
	}
	return t.reading(t.cut(base, t.last)), true
}

func (t *Timeline) reading(s *model.Snapshot) model.Reading {
	r := model.Reading{
		At: s.Window.End, Snapshot: s, Findings: t.tracker.findings(), Judged: t.judged,
		Series: t.series.list(t.last.Snapshot.Traffic.Hops), Point: t.last,
	}
	if s.Status(model.SourceDrops) != model.Missing {
		r.Drops = slices.Clone(t.series.drops.rates)
	}
	return r
}

// notice reports whether the node is configured otherwise than at the whole
// point before.
func (t *Timeline) notice(s *model.Snapshot) bool {
	before := t.setup
	t.setup = newSetup(s)
	return before != nil && !before.same(t.setup)
}

// The times that opening a finding takes, beside its window.
const (
	// recent is the window in which a silence that has just begun shows,
	// which a longer one hides behind the answers before it.
	recent = 4 * time.Second
	// grounds is how long must have been observed before anything is judged.
	grounds = 2 * time.Second
)

// judge has the window judged, and beside it what of it speaks of the node as
// it is now; when that has only just changed, nothing does.
func (t *Timeline) judge(s *model.Snapshot, base *mark, changed bool) {
	now := s.Window.End
	if now.Sub(t.last.Snapshot.Window.Start) < grounds {
		return
	}
	j := judgement{at: now, window: s.Window.Duration(), whole: t.diagnose(s)}
	t.judged = now
	if changed {
		t.tracker.judge(j)
		return
	}
	j.current = j.whole
	since := base
	if t.changed != nil && t.changed.at.After(base.at) {
		since = t.changed
		j.current = t.diagnose(t.cut(since, t.last))
	}
	j.steady = now.Sub(since.at)
	j.recent = j.current
	if m := t.base(now, recent); m.at.After(since.at) {
		j.recent = t.diagnose(t.cut(m, t.last))
	}
	t.tracker.judge(j)
}

// slack is how much shorter than asked for a window may be.
const slack = time.Second / 2

// base is the mark that a window begins with: the newest that is old enough.
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

// remember keeps the point's counts, and forgets those of marks that no window
// will begin with.
func (t *Timeline) remember(p model.Point) {
	t.marks = append(t.marks, newMark(p))
	now := t.marks[len(t.marks)-1].at
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

// superfluous reports whether no window needs the mark, given the next one and
// those kept before it.
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

// margin is how much longer than needed marks are kept close together: as long
// as the slowest reading of the state lets one wait for the next.
const margin = 10 * time.Second

func sameSlot(a, b *mark, slot time.Duration) bool {
	return a.at.Truncate(slot).Equal(b.at.Truncate(slot))
}
