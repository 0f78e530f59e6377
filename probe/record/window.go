package record

import (
	"cmp"
	"slices"
	"sort"
	"time"

	"github.com/lasthop/lasthop/probe/model"
	"github.com/lasthop/lasthop/probe/timeline"
)

// Window returns the snapshot of the last d of a recording, all of it if d is 0.
// It ends at the last reading with state of its own.
func (f *File) Window(d time.Duration) (*model.Snapshot, error) {
	last := f.lastWhole()
	r, _, err := f.watch(f.before(last, d), last, nil)
	return r.Snapshot, err
}

// Span is the snapshot of the part of a recording between two times, as far as it goes: from one
// reading to another. Between readings with state, the state is that of the one before.
func (f *File) Span(w model.Window) (*model.Snapshot, error) {
	last := min(sort.Search(f.Len(), func(n int) bool { return !f.At(n).Before(w.End) }), f.Len()-1)
	first := max(sort.Search(last, func(n int) bool { return f.At(n).After(w.Start) })-1, 0)
	r, _, err := f.watch(first, last, nil)
	return r.Snapshot, err
}

// Told is Window, with the findings that a continuous observation of the window would
// have told: those open at its end, and those that had closed by then. The First of one that
// may be older than the window is zero. Each reading with state is judged.
func (f *File) Told(d time.Duration, diagnose timeline.Diagnose) (s *model.Snapshot, told []model.Tracked, err error) {
	last := f.lastWhole()
	r, began, err := f.watch(f.before(last, d), last, diagnose)
	for x := range model.Each(r.Findings) {
		if !x.First.After(began) {
			x.First = time.Time{}
		}
	}
	return r.Snapshot, r.Findings, err
}

// watch gives a timeline the readings from one to another, and returns the reading over all
// of them, and when they were first judged.
func (f *File) watch(first, last int, diagnose timeline.Diagnose) (r model.Reading, began time.Time, err error) {
	n := first
	t := timeline.New(func(s *model.Snapshot) (none model.Verdict) {
		if diagnose == nil || n == first {
			// What was before the window is not judged.
			return none
		}
		if began.IsZero() {
			began = s.Window.End
		}
		return diagnose(s)
	}, cmp.Or(f.Head.Window, timeline.Short))
	for ; n <= last; n++ {
		judged := diagnose != nil && f.Whole(n)
		if diagnose == nil && n > first && !f.Whole(n) && !f.recent(n, last) {
			continue
		}
		// Between the ends of what is judged once only the counts matter.
		recorded, err := f.reading(n, judged || n == first || n == last)
		if err != nil {
			return r, began, err
		}
		recorded.Point.Whole = recorded.Point.Whole || n == first
		if judged {
			t.Add(recorded.Point)
		} else {
			t.Count(recorded.Point)
		}
		if n == first && f.later(n) {
			t.Reset()
		}
	}
	t.SetWindow(0)
	r, _ = t.Again()
	return r, began, nil
}

// later reports whether packets had been counted before a reading.
func (f *File) later(n int) bool {
	return n > 0 || f.Head.Began.Before(f.At(0)) && !f.Head.Began.IsZero()
}

// recent reports whether what moved at a reading matters to the windows that end with another: when a counter
// moved first is known to the second as far back as the shortest of them, and then by readings with state.
func (f *File) recent(n, end int) bool { return f.At(end).Sub(f.At(n)) <= 2*timeline.Short }

// Within returns what was counted between two readings: inner between the outermost ones within a window, outer
// between the next ones around another, as far as the recording goes. Both are nil where no two readings are within.
func (f *File) Within(within, around model.Window) (inner, outer *model.Snapshot, err error) {
	first, err := f.reading(0, false)
	if err != nil {
		return nil, nil, err
	}
	begin := *first.Point.Snapshot
	if !f.later(0) {
		// Nothing was counted when it began, before the first reading.
		begin.Window.End, begin.Traffic = begin.Window.Start, model.Traffic{}
	}
	at := func(n int) time.Time {
		if n == 0 {
			return begin.Window.End
		}
		return f.At(n - 1)
	}
	next := func(t time.Time) int { return sort.Search(f.Len()+1, func(n int) bool { return !at(n).Before(t) }) }
	last := func(t time.Time) int {
		return max(0, sort.Search(f.Len()+1, func(n int) bool { return at(n).After(t) })-1)
	}
	before, a, b, after := last(around.Start), next(within.Start), last(within.End), min(next(around.End), f.Len())
	if a >= b {
		return nil, nil, nil
	}
	points := map[int]model.Point{0: {Snapshot: &begin}}
	for _, n := range []int{before, a, b, after} {
		if _, read := points[n]; read {
			continue
		}
		r, err := f.reading(n-1, false)
		if err != nil {
			return nil, nil, err
		}
		points[n] = r.Point
	}
	return timeline.Counted(points[a], points[b]), timeline.Counted(points[before], points[after]), nil
}

// Samples calls take with the samples of dropped packets in each reading of a Window. Most occur in several readings.
func (f *File) Samples(d time.Duration, take func([]model.Sample) error) error {
	last := f.lastWhole()
	first := f.before(last, d)
	for n := first; n <= last; n++ {
		r, err := f.Reading(n)
		if err != nil {
			return err
		}
		samples := slices.DeleteFunc(slices.Clone(r.Point.Snapshot.Traffic.Samples), func(s model.Sample) bool {
			return first > 0 && s.Time.Before(f.At(first))
		})
		if err := take(samples); err != nil {
			return err
		}
	}
	return nil
}

// lastWhole returns the last reading with state of its own. The first has.
func (f *File) lastWhole() int {
	n := f.Len() - 1
	for !f.Whole(n) {
		n--
	}
	return n
}

// before returns the latest reading with state that is at least d before last, or the first.
func (f *File) before(last int, d time.Duration) int {
	for n := last - 1; n > 0 && d > 0; n-- {
		if f.Whole(n) && f.At(last).Sub(f.At(n)) >= d {
			return n
		}
	}
	return 0
}
