package record

import (
	"errors"
	"time"

	"github.com/lasthop/lasthop/probe/model"
	"github.com/lasthop/lasthop/probe/timeline"
)

// Window is the snapshot of the last so long of a recording, 0 for all of it.
// It ends with the last reading that has state of its own.
func (f *File) Window(d time.Duration) (*model.Snapshot, error) {
	last := f.Len() - 1
	for !f.Whole(last) {
		last--
	}
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

// before is the latest reading with state so long before another, or the first.
func (f *File) before(last int, d time.Duration) int {
	for n := last - 1; n > 0 && d > 0; n-- {
		if f.Whole(n) && f.At(last).Sub(f.At(n)) >= d {
			return n
		}
	}
	return 0
}
