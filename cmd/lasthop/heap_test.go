package main

import (
	"runtime"
	"runtime/debug"
	"testing"
)

// TestMakeRoom wants room for garbage beside much that is in use, and none kept when that
// is gone.
func TestMakeRoom(t *testing.T) {
	t.Setenv("GOMEMLIMIT", "")
	before := debug.SetMemoryLimit(-1)
	defer debug.SetMemoryLimit(before)
	const limit, much = 1 << 20, 64 << 20
	used := make([]byte, much)
	runtime.GC()
	makeRoom(limit)
	if got := debug.SetMemoryLimit(-1); got < much*5/4 {
		t.Errorf("the limit is %d MiB beside %d MiB that are in use", got>>20, much>>20)
	}
	runtime.KeepAlive(used)
	with := debug.SetMemoryLimit(-1)
	runtime.GC()
	makeRoom(limit)
	if got := debug.SetMemoryLimit(-1); got > with-much {
		t.Errorf("the limit is %d MiB once %d MiB are gone, and was %d MiB", got>>20, much>>20, with>>20)
	}
	makeRoom(1 << 40)
	if got := debug.SetMemoryLimit(-1); got != 1<<40 {
		t.Errorf("the limit is %d, want at least what was asked for", got)
	}
}
