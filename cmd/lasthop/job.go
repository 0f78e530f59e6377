package main

import (
	"context"
	"errors"
	"fmt"
	"os"
	"os/signal"

	"golang.org/x/sys/unix"
)

// shell runs this process as a job: it takes over when the process stops.
type shell struct{ asked chan os.Signal }

// findShell gives the shell, nil where there is none: in a container above all
// the process would stop for good. From then on SIGTSTP, which would stop the
// process at once, only asks for it.
func findShell() *shell {
	if !resumable() {
		return nil
	}
	s := &shell{make(chan os.Signal, 1)}
	signal.Notify(s.asked, unix.SIGTSTP)
	return s
}

func (s *shell) close() { signal.Stop(s.asked) }

// Asked waits until somebody wants the process to stop; it is false when ctx
// has ended before.
func (s *shell) Asked(ctx context.Context) bool {
	select {
	case <-s.asked:
		return true
	case <-ctx.Done():
		return false
	}
}

// Stop stops the process, and others of its job, and returns when the shell has
// let it go on. Go does not give a signal that it caught its default action
// back, so it is SIGSTOP that does it.
func (s *shell) Stop() error {
	on := make(chan os.Signal, 1)
	signal.Notify(on, unix.SIGCONT)
	defer signal.Stop(on)
	if err := unix.Kill(0, unix.SIGSTOP); err != nil {
		return fmt.Errorf("stop the process: %w", err)
	}
	<-on
	return nil
}

// resumable reports whether a shell takes over when this process stops: the
// parent is of the same session and gave it a process group of its own.
func resumable() bool {
	parent := os.Getppid()
	mine, err := unix.Getsid(0)
	theirs, err2 := unix.Getsid(parent)
	group, err3 := unix.Getpgid(parent)
	return errors.Join(err, err2, err3) == nil && os.Getpid() != 1 && mine == theirs && group != unix.Getpgrp()
}
