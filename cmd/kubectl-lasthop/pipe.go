package main

import (
	"errors"
	"io"
	"os"
	"sync"
	"syscall"

	"github.com/lasthop/lasthop/cmd/flags"
)

// pipe is a standard output that is no terminal. Once its reader has gone away, as in
// `kubectl lasthop … | head`, nothing is written any more, and that is no error.
type pipe struct {
	*os.File
	once sync.Once
	left chan struct{}
}

// leavable makes a stream a pipe, unless it is a terminal or no file at all.
func leavable(stream io.Writer) io.Writer {
	f, ok := stream.(*os.File)
	if !ok || flags.Terminal(f) {
		return stream
	}
	return &pipe{File: f, left: make(chan struct{})}
}

func (p *pipe) Write(text []byte) (int, error) {
	n, err := p.File.Write(text)
	if errors.Is(err, syscall.EPIPE) {
		p.once.Do(func() { close(p.left) })
		return len(text), nil
	}
	return n, err
}

// gone reports whether the reader has left, also if nothing was written since.
func (p *pipe) gone() bool {
	select {
	case <-p.left:
		return true
	default:
		return readerLeft(p.File)
	}
}
