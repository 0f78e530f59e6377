//go:build unix

package main

import (
	"os"
	"os/signal"
	"syscall"

	"golang.org/x/sys/unix"
	"golang.org/x/term"

	"github.com/lasthop/lasthop/cmd/kubectl-lasthop/remote"
)

// readerLeft reports whether the reader of a pipe or socket, or a terminal, has gone away.
func readerLeft(f *os.File) bool {
	fds := []unix.PollFd{{Fd: int32(f.Fd())}}
	n, err := unix.Poll(fds, 0)
	return err == nil && n > 0 && fds[0].Revents&(unix.POLLERR|unix.POLLHUP) != 0
}

// resized sends the sizes that a terminal gets, until stop.
func resized(terminal *os.File) (sizes <-chan remote.Size, stop func()) {
	signals, out, done := make(chan os.Signal, 1), make(chan remote.Size), make(chan struct{})
	signal.Notify(signals, syscall.SIGWINCH)
	go func() {
		for {
			select {
			case <-signals:
			case <-done:
				return
			}
			columns, rows, err := term.GetSize(int(terminal.Fd()))
			if err != nil {
				continue
			}
			select {
			case out <- remote.Size{Rows: uint16(rows), Cols: uint16(columns)}:
			case <-done:
				return
			}
		}
	}()
	return out, func() {
		signal.Stop(signals)
		close(done)
	}
}
