package record

import (
	"errors"
	"slices"
	"time"

	"github.com/lasthop/lasthop/probe/model"
	"github.com/lasthop/lasthop/probe/timeline"
)

// Window returns the snapshot of the last d of a recording, all of it if d is 0.
// It ends at the last reading with state of its own.
func (f *File) Window(d time.Duration) (*model.Snapshot, error) {
	last := f.lastWhole()
	t := timeline.New(func(*model.Snapshot) []model.Finding { return nil }, d)
	for _, n := range []int{0, f.before(last, d), last} {
		r, err := f.Reading(n)
		if err != nil {
			return nil, err
		}
		reading := t.Add(r.Point)
		if n == last {
			return reading.Snapshot, nil
		}
	}
	return nil, errors.New("a recording without a whole reading")
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
