package record

import (
	"cmp"
	"fmt"
	"slices"
	"sort"
	"time"

	"github.com/lasthop/lasthop/probe/model"
	"github.com/lasthop/lasthop/probe/timeline"
)

// Window returns the snapshot of the last d of a recording, all of it if d is 0. It ends at the last reading.
func (f *File) Window(d time.Duration) (model.Snapshot, error) {
	s, _, _, err := f.watch(f.before(d), f.Len()-1, nil)
	return s, err
}

// Span is the snapshot of the part of a recording between two times, as far as it goes: from one reading to another.
// It is an error if nothing was read by its end.
func (f *File) Span(w model.Window) (model.Snapshot, error) {
	if w.End.Before(f.At(0)) {
		return model.Snapshot{}, fmt.Errorf("read recording: no state of the node was read by %s; choose a window that "+
			"ends after %s", w.End.Format(time.RFC3339), f.At(0).Format(time.RFC3339))
	}
	last := min(sort.Search(f.Len(), func(n int) bool { return !f.At(n).Before(w.End) }), f.Len()-1)
	first := max(sort.Search(last, func(n int) bool { return f.At(n).After(w.Start) })-1, 0)
	s, _, _, err := f.watch(first, last, nil)
	return s, err
}

// Told is Window, with the findings that a continuous observation of the window would
// have told: those open at its end, and those that had closed by then. The First of one that
// may be older than the window is zero. Each reading with state is judged.
func (f *File) Told(d time.Duration, diagnose timeline.Diagnose) (s model.Snapshot, told []model.Tracked, err error) {
	s, told, began, err := f.watch(f.before(d), f.Len()-1, diagnose)
	for x := range model.Each(told) {
		if !x.First.After(began) {
			x.First = time.Time{}
		}
	}
	return s, told, err
}

// watch gives a timeline the readings from one to another, and returns the snapshot over all of them: of what these
// counted, with the state that was read last by then. told is what was judged of them, began when that began.
func (f *File) watch(
	first, last int, diagnose timeline.Diagnose,
) (s model.Snapshot, told []model.Tracked, began time.Time, err error) {
	n := first
	t := timeline.New(func(s *model.Snapshot) (none model.Verdict) {
		if diagnose == nil || n == first {
			return none // what was before the window is not judged
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
		r, err := f.reading(n, judged || n == first || n == last)
		if err == nil && n == first {
			err = f.begin(&r.Point, first, last)
		}
		switch {
		case err != nil:
			return s, nil, began, err
		case judged:
			t.Add(r.Point)
		default:
			t.Count(r.Point)
		}
		if n == first && f.later(n) {
			t.Reset()
		}
	}
	s, told = t.All()
	return s, told, began, nil
}

// begin prepares the point in which a window begins. Where that has no state of its own it gets the rules of the state
// before: what they counted last is then what is known of what they do in the window.
func (f *File) begin(p *model.Point, first, last int) error {
	if p.Ready.After(f.At(last)) {
		p.Ready, p.After = time.Time{}, model.Traffic{}
	}
	n := f.frames[last].state
	if n > first || n == 0 {
		return nil
	}
	before, err := f.Reading(f.frames[n-1].state)
	if err != nil {
		return err
	}
	s := before.Point.Snapshot
	p.Snapshot.FrameRules, p.Snapshot.PacketRules, p.Snapshot.Chains = s.FrameRules, s.PacketRules, s.Chains
	return nil
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
	first := f.before(d)
	for n := first; n < f.Len(); n++ {
		r, err := f.reading(n, false)
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

// before returns the latest reading that is at least d before the last, or the first.
func (f *File) before(d time.Duration) int {
	last := f.Len() - 1
	if d <= 0 {
		return 0
	}
	return max(sort.Search(last, func(n int) bool { return f.At(last).Sub(f.At(n)) < d })-1, 0)
}
