package remote

import (
	"bufio"
	"bytes"
	"context"
	"errors"
	"fmt"
	"io"
	"strconv"
)

// Near is what the near end of a command has.
type Near struct {
	Stdout, Stderr io.Writer
	// Keys are those of the terminal; nil for none. A read that is under way may outlive the call.
	Keys io.Reader
	// Begun is called once the far end is there, before the command starts; nil for nothing.
	Begun func() error
	// Sizes are those that the terminal gets, until it is closed; nil for none.
	Sizes <-chan Size
	// Interrupt is closed to ask the command to end.
	Interrupt <-chan struct{}
	// File takes a file that the command has left. Its name is a mere file name.
	File func(name string, content []byte) error
}

// ErrLost says that the connection ended before the command did.
var ErrLost = errors.New("the connection ended before the command did")

// Call runs a command over a connection to Serve: in is what comes from it, out goes
// to it. It returns the command's status. Errors that wrap ErrLost are of the connection.
func Call(ctx context.Context, in io.Reader, out io.Writer, s Start, n Near) (int, error) {
	w, r := &writer{w: out}, bufio.NewReader(in)
	k, _, err := readFrame(r)
	if err != nil {
		return 0, lost(err)
	}
	if k != kindHello {
		return 0, errNoFrame
	}
	if n.Begun != nil {
		if err := n.Begun(); err != nil {
			return 0, err
		}
	}
	if err := w.object(kindStart, s); err != nil {
		return 0, lost(err)
	}
	ctx, cancel := context.WithCancel(ctx)
	defer cancel()
	go n.tell(ctx, w)
	if n.Keys != nil {
		go io.Copy(stream{w, kindInput}, n.Keys) //nolint:errcheck // it shows in what is read
	}
	for {
		k, payload, err := readFrame(r)
		if err != nil {
			return 0, lost(err)
		}
		switch k {
		case kindOutput:
			_, err = n.Stdout.Write(payload)
		case kindError:
			_, err = n.Stderr.Write(payload)
		case kindFile:
			name, content, _ := bytes.Cut(payload, []byte("\n"))
			err = n.File(string(name), content)
		case kindStatus:
			status, err := strconv.Atoi(string(payload))
			if err != nil {
				return 0, errNoFrame
			}
			return status, nil
		}
		if err != nil {
			return 0, err
		}
	}
}

func lost(err error) error {
	if errors.Is(err, errNoFrame) {
		return err
	}
	return fmt.Errorf("%w: %w", ErrLost, err)
}

// tell passes on what happens to the user's terminal. Errors show in what is read.
func (n Near) tell(ctx context.Context, w *writer) {
	for {
		select {
		case <-ctx.Done():
			return
		case <-n.Interrupt:
			n.Interrupt = nil
			w.frame(kindInterrupt, nil) //nolint:errcheck // see above
		case size, ok := <-n.Sizes:
			if !ok {
				n.Sizes = nil
				continue
			}
			w.object(kindSize, size) //nolint:errcheck // see above
		}
	}
}
