package record

import (
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
	n := f.before(last, d)
	first, err := f.Reading(n)
	if err != nil {
		return nil, err
	}
	if n == 0 {
		// All since the start: what lasthop counts began with zero.
		s := *first.Point.Snapshot
		s.Traffic = model.Traffic{}
		first.Point = model.Point{Snapshot: &s, Ready: s.Window.Start}
	}
	now, err := f.Reading(last)
	if err != nil {
		return nil, err
	}
	return timeline.Between(first.Point, now.Point), nil
}

// Within returns what was counted between two readings: inner between the outermost ones
// within a window, outer between the next ones around another, as far as the recording goes.
// Both are nil where no two readings are within.
func (f *File) Within(within, around model.Window) (inner, outer *model.Snapshot, err error) {
	first, err := f.Reading(0)
	if err != nil {
		return nil, nil, err
	}
	// Nothing was counted when it began, before the first reading.
	begin := *first.Point.Snapshot
	begin.Window.End, begin.Traffic = begin.Window.Start, model.Traffic{}
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
		r, err := f.Reading(n - 1)
		if err != nil {
			return nil, nil, err
		}
		points[n] = r.Point
	}
	return timeline.Counted(points[a], points[b]), timeline.Counted(points[before], points[after]), nil
}

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
