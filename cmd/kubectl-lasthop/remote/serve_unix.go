//go:build unix

package remote

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"os"
	"os/exec"
	"path/filepath"
	"strconv"
	"sync"
	"syscall"
	"time"

	"github.com/creack/pty"

	"github.com/lasthop/lasthop/probe/input"
)

// helloEvery is how often the far end says that it is there.
const helloEvery = 100 * time.Millisecond

// Serve runs the command that comes over in, and sends to out what becomes of it. It returns the command's
// status. tool is lasthop, dir is Dir. The end of in or of ctx ends the command.
func Serve(ctx context.Context, in io.Reader, out io.Writer, tool, dir string) (int, error) {
	f := &farEnd{out: &writer{w: out}, dir: dir}
	start, err := f.await(in)
	if err != nil {
		return 0, fmt.Errorf("wait for the command: %w", err)
	}
	cmd := exec.Command(tool, start.Args...)
	cmd.Dir = dir
	cmd.Env = append(os.Environ(), start.Env...)
	// The leader of a session may have a terminal of its own.
	cmd.SysProcAttr = &syscall.SysProcAttr{Setsid: true}
	for name, content := range start.Files {
		if err := os.WriteFile(filepath.Join(dir, filepath.Base(name)), content, 0o600); err != nil {
			return 0, fmt.Errorf("write a file for the command: %w", err)
		}
	}
	status, err := f.run(ctx, cmd, start, in)
	if err != nil {
		return 0, err
	}
	f.sendFiles(start)
	return status, f.out.frame(kindStatus, []byte(strconv.Itoa(status)))
}

type farEnd struct {
	out *writer
	dir string
}

// await says hello until a start comes.
func (f *farEnd) await(in io.Reader) (*Start, error) {
	answered := make(chan struct{})
	var hello sync.WaitGroup
	hello.Go(func() {
		again := time.NewTicker(helloEvery)
		defer again.Stop()
		for {
			if f.out.frame(kindHello, nil) != nil {
				return // there will be no reader
			}
			select {
			case <-answered:
				return
			case <-again.C:
			}
		}
	})
	k, payload, err := readFrame(in)
	close(answered)
	hello.Wait()
	if err != nil {
		return nil, err
	}
	s := &Start{}
	if k != kindStart {
		return nil, errNoFrame
	}
	return s, json.Unmarshal(payload, s)
}

func (f *farEnd) run(ctx context.Context, cmd *exec.Cmd, s *Start, in io.Reader) (int, error) {
	t, err := f.connect(cmd, s)
	if err != nil {
		return 0, err
	}
	err = cmd.Start()
	t.far.Close()
	if err != nil {
		return 0, fmt.Errorf("start %s: %w", cmd.Path, err)
	}
	ended := make(chan struct{})
	defer close(ended)
	go func() {
		// An end of the context is a deadline, or that the pod is deleted.
		select {
		case <-ctx.Done():
			cmd.Process.Signal(syscall.SIGTERM) //nolint:errcheck // it may have ended
		case <-ended:
		}
	}()
	// It ends with the connection, which outlives the command.
	go f.obey(cmd.Process, t, in)
	t.output.Wait()
	err = cmd.Wait()
	if _, exited := errors.AsType[*exec.ExitError](err); err != nil && !exited {
		return 0, err
	}
	if status := cmd.ProcessState.ExitCode(); status >= 0 {
		return status, nil
	}
	return 128 + int(cmd.ProcessState.Sys().(syscall.WaitStatus).Signal()), nil
}

// obey does what the near end says. Once it is gone, the command is ended.
func (f *farEnd) obey(process *os.Process, t *terminal, in io.Reader) {
	for {
		k, payload, err := readFrame(in)
		if err != nil {
			process.Signal(syscall.SIGTERM) //nolint:errcheck // it may have ended
			return
		}
		switch k {
		case kindInput:
			t.near.Write(payload) //nolint:errcheck // the command may have ended
		case kindInterrupt:
			process.Signal(syscall.SIGINT) //nolint:errcheck // it may have ended
		case kindSize:
			var size Size
			if json.Unmarshal(payload, &size) == nil && t.near != nil {
				pty.Setsize(t.near, &pty.Winsize{Rows: size.Rows, Cols: size.Cols}) //nolint:errcheck // only looks suffer
			}
		}
	}
}

// connect gives the command its standard streams, which may be a terminal.
func (f *farEnd) connect(cmd *exec.Cmd, s *Start) (*terminal, error) {
	out, errs := patient{stream{f.out, kindOutput}}, patient{stream{f.out, kindError}}
	cmd.Stdout, cmd.Stderr = out, errs
	t := &terminal{}
	var err error
	switch {
	case s.Terminal != nil:
		err = t.open(*s.Terminal, out)
		cmd.Stdin, cmd.Stdout, cmd.Stderr = t.far, t.far, t.far
		cmd.SysProcAttr.Setctty = true
	case s.ErrorTerminal:
		err = t.open(Size{Rows: 24, Cols: 80}, errs)
		cmd.Stderr = t.far
	}
	return t, err
}

// patient accepts what a command writes even after its reader is gone, so that the command never blocks.
type patient struct{ stream }

func (p patient) Write(text []byte) (int, error) {
	p.stream.Write(text) //nolint:errcheck // see above
	return len(text), nil
}

// terminal has a near end, and one for the command; both are nil if there is none.
type terminal struct {
	near, far *os.File
	// output ends once all that the command wrote was sent.
	output sync.WaitGroup
}

// open makes the terminal, and sends what the command writes.
func (t *terminal) open(s Size, to io.Writer) (err error) {
	if t.near, t.far, err = pty.Open(); err == nil {
		err = pty.Setsize(t.near, &pty.Winsize{Rows: s.Rows, Cols: s.Cols})
	}
	if err != nil {
		return fmt.Errorf("make a terminal: %w", err)
	}
	t.output.Go(func() {
		defer t.near.Close()
		io.Copy(to, t.near) //nolint:errcheck // its end is an error of a terminal
	})
	return nil
}

func (f *farEnd) sendFiles(s *Start) {
	entries, err := os.ReadDir(f.dir)
	for _, e := range entries {
		if _, given := s.Files[e.Name()]; given || !e.Type().IsRegular() {
			continue
		}
		content, err2 := input.Read(filepath.Join(f.dir, e.Name()), input.NoLink, limit)
		if err2 == nil {
			err2 = f.out.frame(kindFile, append([]byte(e.Name()+"\n"), content...))
		}
		err = errors.Join(err, err2)
	}
	if err != nil {
		fmt.Fprintf(stream{f.out, kindError}, "lasthop: send the files back: %v\n", err)
	}
}
