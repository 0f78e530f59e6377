package tui

import (
	"context"
	"errors"
	"io"
	"time"

	"github.com/charmbracelet/x/term"
)

// grace is how long a terminal that accepts nothing may delay the end.
const grace = 500 * time.Millisecond

var errStalled = errors.New("the terminal accepts no output")

// output writes to the terminal from a goroutine of its own, so that a terminal
// that no longer accepts anything delays a frame, but not the end of the program.
type output struct {
	io.Writer
	ctx   context.Context
	write chan []byte
	wrote chan error
	// stalled is set once a write was abandoned; no other is tried.
	stalled bool
}

type terminal struct {
	*output
	term.File
}

func (t terminal) Write(p []byte) (int, error) { return t.output.Write(p) }

func newOutput(ctx context.Context, w io.Writer) *output {
	o := &output{Writer: w, ctx: ctx, write: make(chan []byte), wrote: make(chan error, 1)}
	go func() {
		for p := range o.write {
			_, err := o.Writer.Write(p)
			o.wrote <- err
		}
		close(o.wrote)
	}()
	return o
}

// asOutput is what Bubble Tea writes to. It checks for a terminal's descriptor.
func (o *output) asOutput() io.Writer {
	if f, ok := o.Writer.(term.File); ok {
		return terminal{o, f}
	}
	return o
}

// Write waits until p is written, but no longer than grace once the context has ended.
func (o *output) Write(p []byte) (int, error) {
	if o.stalled {
		return 0, errStalled
	}
	// The caller reuses p, and the write may outlive this call.
	o.write <- append([]byte(nil), p...)
	select {
	case err := <-o.wrote:
		return len(p), err
	case <-o.ctx.Done():
	}
	timer := time.NewTimer(grace)
	defer timer.Stop()
	select {
	case err := <-o.wrote:
		return len(p), err
	case <-timer.C:
		o.stalled = true
		return 0, errStalled
	}
}

// stop ends the goroutine, unless a write still blocks it.
func (o *output) stop() {
	close(o.write)
	if o.stalled {
		return
	}
	for range o.wrote {
		// No write is pending: this waits for the goroutine to end.
	}
}
