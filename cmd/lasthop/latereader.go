package main

import (
	"context"
	"errors"
	"io"
	"os"
	"os/signal"
	"strconv"
	"sync"
	"time"

	"golang.org/x/sys/unix"
	"golang.org/x/term"

	"github.com/lasthop/lasthop/cmd/flags"
)

const (
	// attachTime is how long kubectl may take to attach to a container that was started: the kubelet looks for new
	// containers once a second, and then the API server, kubectl and the kubelet have to be asked in turn.
	attachTime = 5 * time.Second
	// connectTime is how much later than the terminal's size its output may be
	// connected, on a busy node: containerd begins with the size.
	connectTime = time.Second
)

// lateReader is the reader of what the first process of a pod's container writes. kubectl attaches only after the
// process was started, and never sees what was written before, which is in the container's log alone. So the first
// output waits. A terminal has no size until someone attaches. A pipe tells nothing: there the output waits for as long
// as attaching may take. A nil lateReader is there already.
type lateReader struct {
	wait sync.Once
	// sized reports whether the terminal has a size; it is false for a pipe.
	sized func() bool
	// resized gets something when the size changes.
	resized <-chan os.Signal
	// over ends the wait.
	over context.Context
	// connect is connectTime, but for tests.
	connect time.Duration
}

// awaitReader returns the reader of the standard output, nil unless it comes late.
func awaitReader(ctx context.Context, stdout io.Writer) (l *lateReader, stop func()) {
	if !startedByRuntime() {
		return nil, func() {}
	}
	over, cancel := context.WithTimeout(ctx, attachTime)
	l = &lateReader{over: over, connect: connectTime, sized: func() bool { return false }}
	tty, ok := stdout.(*os.File)
	if !ok || !flags.Terminal(tty) {
		return l, cancel
	}
	resized := make(chan os.Signal, 1)
	signal.Notify(resized, unix.SIGWINCH)
	l.resized = resized
	l.sized = func() bool {
		columns, rows, err := term.GetSize(int(tty.Fd()))
		return err == nil && columns > 0 && rows > 0
	}
	return l, func() {
		signal.Stop(resized)
		cancel()
	}
}

// startedByRuntime reports whether this is the process that a pod's container was started with, and not, for example,
// one of a shell in it: the parent is not in the container. Every container of a pod has this variable.
func startedByRuntime() bool {
	if os.Getenv("KUBERNETES_SERVICE_HOST") == "" {
		return false
	}
	parent := os.Getppid()
	if parent == 0 {
		return true // in another PID namespace
	}
	ours, err := rootOf("self")
	theirs, err2 := rootOf(strconv.Itoa(parent))
	return errors.Join(err, err2) != nil || ours != theirs
}

// here reports whether the reader is there, or no longer expected.
func (l *lateReader) here() bool { return l == nil || l.sized() || l.over.Err() != nil }

// await waits until the reader is there, or no longer expected.
func (l *lateReader) await() {
	if l == nil {
		return
	}
	l.wait.Do(func() {
		for !l.sized() {
			select {
			case <-l.resized:
			case <-l.over.Done():
				return
			}
		}
		select {
		case <-time.After(l.connect):
		case <-l.over.Done():
		}
	})
}

// to is the stream for a reader that may come late.
func (l *lateReader) to(stream io.Writer) io.Writer {
	if f, ok := stream.(*os.File); ok && l != nil {
		return &lateFile{f, l}
	}
	return stream
}

// lateFile is a standard stream whose reader may come late.
type lateFile struct {
	file   *os.File
	reader *lateReader
}

func (f *lateFile) Write(p []byte) (int, error) {
	f.reader.await()
	return f.file.Write(p)
}

// Fd makes it a terminal where the file is one.
func (f *lateFile) Fd() uintptr { return f.file.Fd() }
