// Package growth holds what is pure to how much more work a larger input takes. Only tests import it.
//
// It counts and never measures time, so that a busy machine changes nothing. Any test
// counts allocations. Loops that allocate nothing are seen where the test is built with
// the counters of Go's coverage (make growth): then each statement that is executed counts.
package growth

import (
	"bufio"
	"cmp"
	"fmt"
	"maps"
	"os"
	"os/exec"
	"path/filepath"
	"runtime"
	"slices"
	"strings"
	"testing"
)

const (
	// times the size may take at most most times the work.
	times, most = 4, 5
	// only is what a test that runs itself again is told: the size to do alone.
	only = "LASTHOP_GROWTH"
)

// Test does the work on an input of size one and on one four times as large, and fails where that takes more than five
// times as much. What prepare does is not counted. What it returns does the work, and asserts the answer.
func Test(t *testing.T, prepare func(scale int) (work func())) {
	t.Helper()
	if scale := os.Getenv(only); scale != "" {
		prepare(len(scale))()
		return
	}
	if testing.Short() {
		prepare(1)() // The answer is asserted, no growth.
		return
	}
	small, large := allocated(prepare(1)), allocated(prepare(times))
	t.Logf("allocated: %d bytes, %.2f times as many for %d times the input", small, float64(large)/float64(small), times)
	if large > most*small {
		t.Errorf("%d bytes are allocated, and %d for %d times the input", small, large, times)
	}
	if testing.CoverMode() == "" {
		return
	}
	one, four := executed(t, t.TempDir(), 1), executed(t, t.TempDir(), times)
	small, large = sum(one), sum(four)
	t.Logf("executed: %d statements, %.2f times as many for %d times the input", small, float64(large)/float64(small), times)
	if small == 0 || large > most*small {
		t.Errorf("%d statements are executed, and %d for %d times the input; most grew\n%s", small, large, times, grown(one, four))
	}
}

func allocated(work func()) uint64 {
	var before, after runtime.MemStats
	runtime.ReadMemStats(&before)
	work()
	runtime.ReadMemStats(&after)
	return after.TotalAlloc - before.TotalAlloc
}

// executed is how many statements of each block of code this test executes, with an input
// of one size, in a process of its own.
func executed(t *testing.T, dir string, scale int) map[string]uint64 {
	t.Helper()
	profile := filepath.Join(dir, "profile")
	pattern := "^" + strings.ReplaceAll(t.Name(), "/", "$/^") + "$"
	cmd := exec.Command("/proc/self/exe", "-test.run", pattern, "-test.coverprofile", profile)
	cmd.Env = append(os.Environ(), only+"="+strings.Repeat("x", scale))
	if out, err := cmd.CombinedOutput(); err != nil {
		t.Fatalf("at size %d: %v\n%s", scale, err, out)
	}
	f, err := os.Open(profile)
	if err != nil {
		t.Fatal(err)
	}
	defer func() { _ = f.Close() }()
	blocks := map[string]uint64{}
	for lines := bufio.NewScanner(f); lines.Scan(); {
		var block string
		var statements, count uint64
		// The first line is the mode.
		if n, _ := fmt.Sscan(lines.Text(), &block, &statements, &count); n == 3 {
			blocks[block] += statements * count
		}
	}
	return blocks
}

func sum(blocks map[string]uint64) (n uint64) {
	for _, count := range blocks {
		n += count
	}
	return n
}

// grown are the blocks that more than the input's growth of statements comes from.
func grown(one, four map[string]uint64) string {
	beyond := func(block string) int64 { return int64(four[block]) - times*int64(one[block]) }
	order := slices.SortedFunc(maps.Keys(four), func(a, b string) int { return cmp.Compare(beyond(b), beyond(a)) })
	var out strings.Builder
	for _, block := range order[:min(10, len(order))] {
		fmt.Fprintf(&out, "%s: %d, then %d\n", block, one[block], four[block])
	}
	return out.String()
}
