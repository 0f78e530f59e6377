package main

import (
	"os"
	"runtime/debug"
	"runtime/metrics"
)

// heapLimit keeps the process, including its BPF maps and programs, below 80 MiB
// on a node with 250 pods: near the limit, garbage is collected more often.
const heapLimit = 44 << 20

// boundGarbage has garbage collected seldom, which costs little where each reading leaves much
// of it, but more often near a limit.
func boundGarbage(limit int64) {
	if os.Getenv("GOGC") == "" {
		debug.SetGCPercent(200)
	}
	boundHeap(limit)
}

// boundHeap has garbage collected more often near a limit.
func boundHeap(limit int64) {
	if os.Getenv("GOMEMLIMIT") == "" {
		debug.SetMemoryLimit(limit)
	}
}

// makeRoom raises the limit where what is in use comes near it, as with a hundred thousand
// connections: garbage would be collected all the time. It lowers it again, but not below
// limit, once less is in use.
func makeRoom(limit int64) {
	samples := []metrics.Sample{
		{Name: "/gc/heap/live:bytes"},
		{Name: "/memory/classes/total:bytes"},
		{Name: "/memory/classes/heap/objects:bytes"},
		{Name: "/memory/classes/heap/unused:bytes"},
		{Name: "/memory/classes/heap/free:bytes"},
		{Name: "/memory/classes/heap/released:bytes"},
	}
	metrics.Read(samples)
	live, beside := int64(samples[0].Value.Uint64()), int64(samples[1].Value.Uint64())
	for _, heap := range samples[2:] {
		beside -= int64(heap.Value.Uint64())
	}
	boundHeap(max(limit, live+live/2+beside))
}
