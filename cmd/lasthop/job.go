package main

import (
	"errors"
	"os"

	"golang.org/x/sys/unix"
)

// resumable reports whether a shell takes over when this process stops: the
// parent is in the same session, and gave it a process group of its own. Elsewhere,
// above all in a container, the process would stop for good.
func resumable() bool {
	parent := os.Getppid()
	mine, err := unix.Getsid(0)
	theirs, err2 := unix.Getsid(parent)
	group, err3 := unix.Getpgid(parent)
	return errors.Join(err, err2, err3) == nil && os.Getpid() != 1 && mine == theirs && group != unix.Getpgrp()
}
