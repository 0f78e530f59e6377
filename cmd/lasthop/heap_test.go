package main

import (
	"runtime"
	"runtime/debug"
	"testing"
)

// TestAllowGarbage wants room for little garbage beside little that is in use, for a share of much that is in use,
// and none kept when that is gone.
func TestAllowGarbage(t *testing.T) {
	t.Setenv("GOGC", "")
	before := debug.SetGCPercent(100)
	defer debug.SetGCPercent(before)
	percent := func() int {
		runtime.GC()
		allowGarbage(16<<20, 4)
		got := debug.SetGCPercent(100)
		debug.SetGCPercent(got)
		return got
	}
	little := percent()
	used := make([]byte, 256<<20)
	if much := percent(); much != 25 || little <= much {
		t.Errorf("%d %% of much that is in use, %d %% of little; want 25 %% and more", much, little)
	}
	runtime.KeepAlive(used)
	if after := percent(); after != little {
		t.Errorf("%d %% once what was in use is gone, want %d %% as before", after, little)
	}
}
