package record

import (
	"cmp"
	"slices"
	"time"

	"github.com/lasthop/lasthop/probe/model"
	"github.com/lasthop/lasthop/probe/timeline"
)

// Window returns the snapshot of the last d of a recording, all of it if d is 0.
// It ends at the last reading with state of its own.
func (f *File) Window(d time.Duration) (*model.Snapshot, error) {
	r, _, err := f.watch(d, nil)
	return r.Snapshot, err
}

// Told is Window, with the findings that a continuous observation of the window would
// have told: those open at its end, and those that had closed by then. A finding that it
// had at began was there before. Each reading with state is judged.
func (f *File) Told(d time.Duration, diagnose timeline.Diagnose) (s *model.Snapshot, told []model.Tracked, began time.Time, err error) {
	r, began, err := f.watch(d, diagnose)
	return r.Snapshot, r.Findings, began, err
}

// watch gives a timeline the readings of the last d, and returns the reading over all of
// them, and when they were first judged.
func (f *File) watch(d time.Duration, diagnose timeline.Diagnose) (r model.Reading, began time.Time, err error) {
	last := f.lastWhole()
	first := f.before(last, d)
	n := first
	t := timeline.New(func(s *model.Snapshot) []model.Finding {
		if diagnose == nil || n == first {
			// What was before the window is not judged.
			return nil
		}
		if began.IsZero() {
			began = s.Window.End
		}
		return diagnose(s)
	}, cmp.Or(f.Head.Window, timeline.Short))
	for ; n <= last; n++ {
		if diagnose == nil && !f.Whole(n) && !f.recent(n, last) {
			continue
		}
		recorded, err := f.Reading(n)
		if err != nil {
			return r, began, err
		}
		t.Add(recorded.Point)
		if n == first && n > 0 {
			t.Reset()
		}
	}
	t.SetWindow(0)
	r, _ = t.Again()
	return r, began, nil
}

// recent reports whether what moved at a reading matters to the windows that end with
// another: when a counter moved first is known to the second as far back as the shortest
// of them, and then by readings with state.
func (f *File) recent(n, end int) bool { return f.At(end).Sub(f.At(n)) <= 2*timeline.Short }

// Samples calls take with the samples of dropped packets in each reading of a
// Window. Most occur in several readings.
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

// before returns the latest reading with state that is at least d before last, or
// the first.
func (f *File) before(last int, d time.Duration) int {
	for n := last - 1; n > 0 && d > 0; n-- {
		if f.Whole(n) && f.At(last).Sub(f.At(n)) >= d {
			return n
		}
	}
	return 0
}
