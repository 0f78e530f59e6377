package main

import (
	"cmp"
	"fmt"
	"runtime"
	"sync"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"github.com/lasthop/lasthop/probe/collect/stats"
	"github.com/lasthop/lasthop/probe/collect/sysctl"
	"github.com/lasthop/lasthop/probe/model"
	"github.com/lasthop/lasthop/probe/netns"
	"github.com/lasthop/lasthop/probe/node"
)

// Windows of labs run side by side, since most of a window is waiting. What needs a CPU all the while, such as bringing
// a lab up or judging a snapshot forty times, takes turns: two for each CPU, so that windows get one when they need it.
var turns = make(chan struct{}, 2*runtime.NumCPU())

// inTurn runs f when it is its turn.
func inTurn(f func()) {
	turns <- struct{}{}
	defer func() { <-turns }()
	f()
}

const (
	// burst is the CPU time by which fit measures. A thread that shares its CPU gets it in slices of some milliseconds.
	burst = 6 * time.Millisecond
	// tolerable is how many times longer than on an idle machine a burst may take. Labs answer in time at this.
	tolerable = 5.0
	// pause is between two measurements of a busy machine, patience how long it may stay so.
	pause, patience = 600 * time.Millisecond, 15 * time.Minute
)

// next is held by who waits for the machine to be fit. One after the other is let go on, each after a measurement of its
// own, and to wait takes no CPU from those that were.
var next sync.Mutex

// fit waits until the machine is fit for a window of a lab: until a burst of work does not take much longer than the CPU
// time that it needs, and the kernel has room for neighbours. If it stays unfit, the test fails for that, which is
// nobody's verdict. It is no retry: a window that has begun counts. The lab's traffic does not run meanwhile: it would
// keep the machine busy.
func fit(t *testing.T) {
	t.Helper()
	next.Lock()
	defer next.Unlock()
	for began := time.Now(); ; time.Sleep(pause) {
		why := cmp.Or(busy(t), crowded(t))
		if why == "" {
			return
		}
		if time.Since(began) > patience {
			t.Fatalf("the machine is unfit for a test, for %v: %s", patience, why)
		}
	}
}

// busy says that a burst of work takes too long, if it does.
func busy(t *testing.T) string {
	t.Helper()
	if slower := slowdown(t); slower > tolerable {
		return fmt.Sprintf("work takes %.1f times as long as alone (at most %.1f is fit)", slower, tolerable)
	}
	return ""
}

// crowded says that a table of neighbours is nearly full, if one is. All network namespaces of the machine share it,
// those that are not of these tests too, and a lab without an entry loses packets by no fault of its own.
func crowded(t *testing.T) string {
	t.Helper()
	ns, err := netns.Current()
	if err != nil {
		t.Fatal(err)
	}
	defer ns.Close() //nolint:errcheck // It was only read.
	counted, err := stats.Read(ns, nil, nil)
	if err != nil {
		t.Fatal(err)
	}
	settings, err := sysctl.Read(ns)
	if err != nil {
		t.Fatal(err)
	}
	v := node.New(&model.Snapshot{Sysctls: settings})
	for table := range model.Each(counted.Tables) {
		family := model.Either(table.Is6(), "ipv6", "ipv4")
		limit, known := v.Limit("net." + family + ".neigh.default.gc_thresh3")
		if known && table.Entries > limit-limit/8 {
			return fmt.Sprintf("the kernel's %s has %d of at most %d entries", table.Name, table.Entries, limit)
		}
	}
	return ""
}

// slowdown is the time that a burst of work takes, by its CPU time.
func slowdown(t *testing.T) float64 {
	t.Helper()
	runtime.LockOSThread()
	defer runtime.UnlockOSThread()
	spent := func() time.Duration {
		var ts unix.Timespec
		if err := unix.ClockGettime(unix.CLOCK_THREAD_CPUTIME_ID, &ts); err != nil {
			t.Fatal(err)
		}
		return time.Duration(ts.Nano())
	}
	from, began := spent(), time.Now()
	for spent()-from < burst { //nolint:revive // The work is to ask for the time.
	}
	return float64(time.Since(began)) / float64(spent()-from)
}
