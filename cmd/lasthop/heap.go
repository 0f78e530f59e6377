package main

import (
	"fmt"
	"math"
	"os"
	"runtime/debug"
	"runtime/metrics"

	"github.com/KimMachineGun/automemlimit/memlimit"
	"github.com/prometheus/procfs"
	"golang.org/x/sys/unix"

	"github.com/lasthop/lasthop/cmd/joint"
	"github.com/lasthop/lasthop/probe/model"
)

// leastMemory is with how much, in bytes, every command can observe the state of a node with up to 250 pods: with less,
// the kernel kills the process without a word (docs/internals/benchmarks.md).
const leastMemory = 32 << 20

// checkMemory refuses to start below a limit of a cgroup that observing surely exceeds, and has garbage collected more
// often near a limit above that.
func checkMemory() error {
	if limit, err := memlimit.FromCgroup(); err == nil && limit < leastMemory {
		return fmt.Errorf("cannot observe: the memory of this cgroup is limited to %d MiB, and observing takes %d or more; in a pod: %s",
			limit>>20, leastMemory>>20, model.MoreMemory)
	}
	joint.LimitMemory(math.MaxInt64)
	return nil
}

// collectOften has garbage collected while there is little of it: each pair that an audit follows leaves some, and on a large
// node as much would gather as the snapshot takes.
func collectOften() {
	if os.Getenv("GOGC") == "" {
		debug.SetGCPercent(40)
	}
}

// allowGarbage has garbage collected once there is as much of it as is in use, divided by
// share, but not before there is least of it.
func allowGarbage(least, share uint64) {
	live := []metrics.Sample{{Name: "/gc/heap/live:bytes"}}
	metrics.Read(live)
	if os.Getenv("GOGC") == "" {
		debug.SetGCPercent(int(max(100/share, 100*least/max(live[0].Value.Uint64(), least, 1))))
	}
}

// rest gives back what is not in use until there is more to do: garbage, and the pages of the program that are mapped,
// most of which its start alone needed. Those that it needs again are mapped again, mostly without reading the file.
func rest() {
	debug.FreeOSMemory()
	self, _ := procfs.Self()
	exe, _ := self.Executable()
	maps, _ := self.ProcMaps()
	for _, m := range maps {
		if !m.Perms.Write && m.Pathname == exe { // as it is in the file
			_, _, _ = unix.Syscall(unix.SYS_MADVISE, m.StartAddr, m.EndAddr-m.StartAddr, unix.MADV_DONTNEED)
		}
	}
}
