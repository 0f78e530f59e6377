package joint

import (
	"os"
	"runtime/debug"

	"github.com/KimMachineGun/automemlimit/memlimit"
)

// heapShare is how many sixteenths of a cgroup's memory Go may use. The others are for BPF maps, the pages of the
// program, and what the kernel holds for the process.
const heapShare = 10

// LimitMemory has garbage collected more often near a limit, or near that of the cgroup.
func LimitMemory(limit int64) {
	if cgroup, err := memlimit.FromCgroup(); err == nil {
		limit = int64(min(uint64(limit), cgroup/16*heapShare))
	}
	if os.Getenv("GOMEMLIMIT") == "" {
		debug.SetMemoryLimit(limit)
	}
}

// What is kept of a node with 100 pods takes about 0.6 MiB, so the limit leaves nearly as much for garbage: 1,000 nodes take
// 5 % more CPU time than with twice that room.
const (
	leastLimit  = 640 << 20
	limitOfNode = 1100 << 10
)

// BoundGarbage has garbage collected seldom while some nodes' recordings are judged, which costs little where each reading
// leaves much of it, but more often near a limit.
func BoundGarbage(nodes int) {
	if os.Getenv("GOGC") == "" {
		debug.SetGCPercent(200)
	}
	LimitMemory(max(leastLimit, int64(nodes)*limitOfNode))
}
