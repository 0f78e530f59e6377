package traffic

import (
	"errors"
	"fmt"
	"maps"
	"time"

	"github.com/cilium/ebpf"
	"golang.org/x/sys/unix"
)

// table mirrors a BPF hash map of packet counts, whose size is bounded.
type table[K comparable] struct {
	m       *ebpf.Map
	entries map[K]*tally
	// keys and values take what one system call reads.
	keys   []K
	values []uint64
	// count is what an entry's value counts: the value itself, unless it only says where the count is.
	count func(value uint64) uint64
}

// batch is how many entries one system call reads.
const batch = 256

type tally struct {
	packets uint64
	// base was counted before the kernel's entry was deleted and added again.
	base        uint64
	first, last time.Time
}

func newTable[K comparable](m *ebpf.Map) table[K] {
	return table[K]{
		m: m, entries: map[K]*tally{}, keys: make([]K, batch), values: make([]uint64, batch),
		count: func(value uint64) uint64 { return value },
	}
}

func (t table[K]) poll(now time.Time) error {
	var cursor ebpf.MapBatchCursor
	for {
		n, err := t.m.BatchLookup(&cursor, t.keys, t.values, nil)
		if err != nil && !errors.Is(err, ebpf.ErrKeyNotExist) {
			return fmt.Errorf("read counters of %s: %w", t.m, err)
		}
		for i, key := range t.keys[:n] {
			e := t.entries[key]
			if e == nil {
				e = &tally{first: now}
				t.entries[key] = e
			}
			if n := e.base + t.count(t.values[i]); n != e.packets {
				e.packets, e.last = n, now
			}
		}
		if err != nil {
			return nil
		}
	}
}

func (t table[K]) crowded() bool { return nearlyFull(len(t.entries), int(t.m.MaxEntries())) }

// evict deletes the entries that which names by their key and when they last changed.
// freed, if not nil, is called with each, its value and what that counted.
func (t table[K]) evict(which func(key K, last time.Time) bool, freed func(key K, value, count uint64)) error {
	var errs []error
	maps.DeleteFunc(t.entries, func(key K, e *tally) bool {
		if !which(key, e.last) {
			return false
		}
		var value uint64
		err := lookupAndDelete(t.m, key, &value)
		if errors.Is(err, ebpf.ErrKeyNotExist) {
			return true // it went before, and its last count came late
		}
		if err != nil {
			errs = append(errs, err)
			return false
		}
		n := t.count(value)
		if freed != nil {
			freed(key, value, n)
		}
		if e.base+n == e.packets {
			return true
		}
		// It has just changed.
		e.base += n
		e.packets = e.base
		return false
	})
	if err := errors.Join(errs...); err != nil {
		return fmt.Errorf("make room: %w", err)
	}
	return nil
}

// lookupAndDelete takes an entry from a hash map. Before Linux 5.14 this takes two
// calls, and what a program counts between them is lost.
func lookupAndDelete(m *ebpf.Map, key, value any) error {
	if err := m.LookupAndDelete(key, value); !errors.Is(err, ebpf.ErrNotSupported) && !errors.Is(err, unix.EINVAL) {
		return err
	}
	if err := m.Lookup(key, value); err != nil {
		return err
	}
	return m.Delete(key)
}

func nearlyFull(n, size int) bool { return n > size/4*3 }
