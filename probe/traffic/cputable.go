package traffic

import (
	"fmt"
	"maps"
	"os"
	"strconv"
	"strings"

	"golang.org/x/sys/unix"
)

// cpuTable mirrors a table that the programs fill: each CPU has its own entries. A word of 32 bits in each entry is
// part of its key: 0 in a free entry, retired in one that is about to be freed, which no program finds any more.
//
// E is an entry, K its key, N its counts.
type cpuTable[E shared, K comparable, N counts[N]] struct {
	m    *mapped // by CPU, then entry
	cpus int
	size int // of an entry
	word int // offset of the word
	// key is false for an entry that is free or retired.
	key   func(*E) (K, bool)
	count func(*E) N
	// freed, if not nil, is called with each entry that was freed.
	freed func(cpu int, k K)

	// most is how many entries the fullest CPU had in use, keys how many keys there were.
	most, keys int
	// base are counts of entries that were retired. retiring are these entries, until they are free.
	base     map[K]N
	retiring map[K]*retirement[N]
}

type counts[N any] interface {
	comparable
	plus(N) N
}

type retirement[N any] struct {
	base, count N // before it was retired
	at          []place
}

type place struct{ cpu, off int }

const retired = ^uint32(0)

func newCPUTable[E shared, K comparable, N counts[N]](m *mapped, cpus, size, word int, key func(*E) (K, bool), count func(*E) N) *cpuTable[E, K, N] {
	return &cpuTable[E, K, N]{
		m: m, cpus: cpus, size: size, word: word, key: key, count: count,
		base: map[K]N{}, retiring: map[K]*retirement[N]{},
	}
}

func (t *cpuTable[E, K, N]) entries() int { return t.m.stride / t.size }

func (t *cpuTable[E, K, N]) crowded() bool { return nearlyFull(t.most, t.entries()) }

func (t *cpuTable[E, K, N]) each(f func(place, K, *E)) {
	t.most = 0
	for cpu := range t.cpus {
		used := 0
		for i := range t.entries() {
			p := place{cpu, cpu*t.m.stride + i*t.size}
			// Most are free.
			if t.m.load32(p.off+t.word) == 0 {
				continue
			}
			e := one[E](t.m, p.off)
			if k, ok := t.key(&e); ok {
				f(p, k, &e)
				used++
			}
		}
		t.most = max(t.most, used)
	}
}

// sums adds up the counts of each key over CPUs.
func (t *cpuTable[E, K, N]) sums() map[K]N {
	out := make(map[K]N, t.keys)
	maps.Copy(out, t.base)
	t.each(func(_ place, k K, e *E) { out[k] = out[k].plus(t.count(e)) })
	t.keys = len(out)
	return out
}

// retire hides the entries that match from the programs. A program that has found one before may still count in it.
func (t *cpuTable[E, K, N]) retire(match func(K) bool) {
	t.each(func(p place, k K, e *E) {
		if !match(k) {
			return
		}
		r := t.retiring[k]
		if r == nil {
			r = &retirement[N]{base: t.base[k]}
			t.retiring[k] = r
		}
		t.m.store32(p.off+t.word, retired)
		r.count, r.at = r.count.plus(t.count(e)), append(r.at, p)
		t.base[k] = r.base.plus(r.count)
	})
}

// release frees retired entries. No program may count in them any more. Counts that
// did not change meanwhile are forgotten.
func (t *cpuTable[E, K, N]) release() {
	for k, r := range t.retiring {
		var n N
		for _, p := range r.at {
			n = n.plus(t.free(p, k))
		}
		if n == r.count {
			delete(t.base, k)
		} else {
			t.base[k] = r.base.plus(n)
		}
	}
	clear(t.retiring)
}

// forget frees the entries that match, in which no program may count meanwhile.
func (t *cpuTable[E, K, N]) forget(match func(K) bool) {
	t.each(func(p place, k K, _ *E) {
		if match(k) {
			t.free(p, k)
		}
	})
	maps.DeleteFunc(t.retiring, func(k K, r *retirement[N]) bool {
		if !match(k) {
			return false
		}
		for _, p := range r.at {
			t.free(p, k)
		}
		return true
	})
	maps.DeleteFunc(t.base, func(k K, _ N) bool { return match(k) })
}

// free clears an entry, gives it back to the programs, and returns its counts.
func (t *cpuTable[E, K, N]) free(p place, k K) N {
	const word = 4
	e := one[E](t.m, p.off)
	n := t.count(&e)
	t.m.clear(p.off, t.word)
	t.m.clear(p.off+t.word+word, t.size-t.word-word)
	t.m.store32(p.off+t.word, 0)
	if t.freed != nil {
		t.freed(p.cpu, k)
	}
	return n
}

// quiesce waits until every program that runs now has ended: a program holds the RCU read lock, for which
// membarrier(2) waits. It fails on kernels with CPUs without a tick (nohz_full).
func quiesce() error {
	const global = 1 // MEMBARRIER_CMD_GLOBAL
	if _, _, errno := unix.Syscall(unix.SYS_MEMBARRIER, global, 0, 0); errno != 0 {
		return fmt.Errorf("wait for programs: %w", errno)
	}
	return nil
}

// presentCPUs is the highest id of a present CPU, plus one. Possible CPUs can be many more: an Azure D2s_v3 has 2
// CPUs present, and 128 possible. Packets on a CPU that is plugged in later are counted as lost.
func presentCPUs() (int, error) {
	b, err := os.ReadFile("/sys/devices/system/cpu/present")
	if err != nil {
		return 0, fmt.Errorf("count CPUs: %w", err)
	}
	return parseCPUs(string(b))
}

// parseCPUs returns the last CPU of a kernel's list of CPUs, plus one. Lists are
// in ascending order: 0-3,6 (Documentation/admin-guide/cputopology.rst).
func parseCPUs(list string) (int, error) {
	s := strings.TrimSpace(list)
	s = s[strings.LastIndexAny(s, ",-")+1:]
	last, err := strconv.ParseUint(s, 10, 16)
	if err != nil {
		return 0, fmt.Errorf("count CPUs: parse list %q: %w", list, err)
	}
	return int(last) + 1, nil
}
