package main

import (
	"context"
	"errors"
	"fmt"
	"os"
	"os/signal"

	"golang.org/x/sys/unix"
)

// shell is the shell of which this process is a job. It takes over the terminal when the process stops.
type shell struct{ asked chan os.Signal }

// findShell returns nil where there is no shell, above all in a container: there the process would stop for good. From
// then on SIGTSTP, which would stop the process immediately, is only a request to stop.
func findShell() *shell {
	if !resumable() {
		return nil
	}
	s := &shell{make(chan os.Signal, 1)}
	signal.Notify(s.asked, unix.SIGTSTP)
	return s
}

func (s *shell) close() { signal.Stop(s.asked) }

// Asked waits for a request to stop; it is false if ctx ended before.
func (s *shell) Asked(ctx context.Context) bool {
	select {
	case <-s.asked:
		return true
	case <-ctx.Done():
		return false
	}
}

// Stop stops the job's processes, and returns when the shell continues them. It sends SIGSTOP, since Go does not
// restore the default action of a signal that it has caught.
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
// parent is in the same session, and gave it a process group of its own.
func resumable() bool {
	parent := os.Getppid()
	mine, err := unix.Getsid(0)
	theirs, err2 := unix.Getsid(parent)
	group, err3 := unix.Getpgid(parent)
	return errors.Join(err, err2, err3) == nil && os.Getpid() != 1 && mine == theirs && group != unix.Getpgrp()
}
