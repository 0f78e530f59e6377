package traffic

import (
	"errors"
	"fmt"
	"maps"
	"time"

	"github.com/cilium/ebpf"
)

// table mirrors a BPF hash map of packet counts, whose size is bounded.
type table[K comparable] struct {
	m       *ebpf.Map
	entries map[K]*tally
}

// tally is the count of one entry.
type tally struct {
	packets uint64
	// base was counted before the kernel's entry was deleted and added again.
	base        uint64
	first, last time.Time
}

func newTable[K comparable](m *ebpf.Map) table[K] {
	return table[K]{m: m, entries: map[K]*tally{}}
}

// value returns a buffer for a value of the map, and a function that returns
// the count in it, summed over CPUs.
func (t table[K]) value() (buf any, count func() uint64) {
	if t.m.Type() == ebpf.PerCPUHash {
		var perCPU []uint64
		return &perCPU, func() uint64 { return sum(perCPU) }
	}
	var n uint64
	return &n, func() uint64 { return n }
}

func sum(perCPU []uint64) (n uint64) {
	for _, c := range perCPU {
		n += c
	}
	return n
}

func (t table[K]) poll(now time.Time) error {
	var key K
	buf, count := t.value()
	it := t.m.Iterate()
	for it.Next(&key, buf) {
		e := t.entries[key]
		if e == nil {
			e = &tally{first: now}
			t.entries[key] = e
		}
		if n := e.base + count(); n != e.packets {
			e.packets, e.last = n, now
		}
	}
	// Programs that add keys can make the iteration abort. They delete none,
	// so the next poll reads the rest.
	if err := it.Err(); err != nil && !errors.Is(err, ebpf.ErrIterationAborted) {
		return fmt.Errorf("read counters of %s: %w", t.m, err)
	}
	return nil
}

// evict deletes the entries that have not changed since then, if the map is
// more than three quarters full.
func (t table[K]) evict(since time.Time) error {
	if !nearlyFull(len(t.entries), int(t.m.MaxEntries())) {
		return nil
	}
	var errs []error
	buf, count := t.value()
	maps.DeleteFunc(t.entries, func(key K, e *tally) bool {
		if !e.last.Before(since) {
			return false
		}
		if err := t.m.LookupAndDelete(key, buf); err != nil {
			errs = append(errs, err)
			return false
		}
		if e.base+count() == e.packets {
			return true
		}
		// It has just changed.
		e.base += count()
		return false
	})
	if err := errors.Join(errs...); err != nil {
		return fmt.Errorf("make room: %w", err)
	}
	return nil
}

func nearlyFull(n, size int) bool { return n > size/4*3 }
