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
)

// helloEvery is how often the far end says that it is there.
const helloEvery = 100 * time.Millisecond

// Serve runs the command that comes over in, and sends to out what becomes of it. It
// returns the command's status. tool is lasthop, dir is Dir. The end of in or of ctx
// ends the command.
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
				return // nobody will ever read
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

// run runs the command to its end.
func (f *farEnd) run(ctx context.Context, cmd *exec.Cmd, s *Start, in io.Reader) (int, error) {
	streams, err := f.connect(cmd, s)
	if err != nil {
		return 0, err
	}
	if err := cmd.Start(); err != nil {
		return 0, fmt.Errorf("start %s: %w", cmd.Path, err)
	}
	streams.started()
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
	go f.obey(cmd.Process, streams, in)
	streams.output.Wait()
	err = cmd.Wait()
	var exit *exec.ExitError
	if err != nil && !errors.As(err, &exit) {
		return 0, err
	}
	if status := cmd.ProcessState.ExitCode(); status >= 0 {
		return status, nil
	}
	return 128 + int(cmd.ProcessState.Sys().(syscall.WaitStatus).Signal()), nil
}

// obey does what the near end says. Once it is gone, nobody wants the command.
func (f *farEnd) obey(process *os.Process, s *streams, in io.Reader) {
	for {
		k, payload, err := readFrame(in)
		if err != nil {
			process.Signal(syscall.SIGTERM) //nolint:errcheck // it may have ended
			return
		}
		switch k {
		case kindInput:
			if s.terminal != nil {
				s.terminal.Write(payload) //nolint:errcheck // the command may have ended
			}
		case kindInterrupt:
			process.Signal(syscall.SIGINT) //nolint:errcheck // it may have ended
		case kindSize:
			var size Size
			if json.Unmarshal(payload, &size) == nil && s.terminal != nil {
				pty.Setsize(s.terminal, &pty.Winsize{Rows: size.Rows, Cols: size.Cols}) //nolint:errcheck // only looks suffer
			}
		}
	}
}

// streams are the other ends of a command's standard streams.
type streams struct {
	terminal *os.File // nil if the command has none
	// output ends once all that the command wrote was sent.
	output sync.WaitGroup
	// theirs are files that only the command keeps open.
	theirs []*os.File
	copies []func()
}

// started lets go of what is the command's, and sends what comes from it.
func (s *streams) started() {
	for _, f := range s.theirs {
		f.Close()
	}
	for _, c := range s.copies {
		s.output.Go(c)
	}
}

// copyTo sends what can be read from a file. The end of a terminal's other end is an
// error, of a pipe none.
func (s *streams) copyTo(to io.Writer, from *os.File) {
	s.copies = append(s.copies, func() {
		defer from.Close()
		if _, err := io.Copy(to, from); err != nil && !errors.Is(err, syscall.EIO) {
			// Whoever reads is gone: the command shall not wait for it.
			io.Copy(io.Discard, from) //nolint:errcheck // the same
		}
	})
}

// connect gives the command its standard streams.
func (f *farEnd) connect(cmd *exec.Cmd, s *Start) (*streams, error) {
	out, errs := stream{f.out, kindOutput}, stream{f.out, kindError}
	c := &streams{}
	if s.Terminal != nil {
		near, far, err := openTerminal(*s.Terminal)
		if err != nil {
			return nil, err
		}
		cmd.Stdin, cmd.Stdout, cmd.Stderr = far, far, far
		cmd.SysProcAttr.Setctty = true
		c.terminal, c.theirs = near, []*os.File{far}
		c.copyTo(out, near)
		return c, nil
	}
	outNear, outFar, err := os.Pipe()
	if err != nil {
		return nil, err
	}
	errNear, errFar, err := os.Pipe()
	if s.ErrorTerminal && err == nil {
		errNear.Close()
		errFar.Close()
		errNear, errFar, err = openTerminal(Size{Rows: 24, Cols: 80})
	}
	if err != nil {
		return nil, err
	}
	cmd.Stdout, cmd.Stderr = outFar, errFar
	c.theirs = []*os.File{outFar, errFar}
	c.copyTo(out, outNear)
	c.copyTo(errs, errNear)
	return c, nil
}

// openTerminal makes a terminal of a size: its near end, and the command's.
func openTerminal(s Size) (near, far *os.File, err error) {
	if near, far, err = pty.Open(); err == nil {
		err = pty.Setsize(near, &pty.Winsize{Rows: s.Rows, Cols: s.Cols})
	}
	if err != nil {
		return nil, nil, fmt.Errorf("make a terminal: %w", err)
	}
	return near, far, nil
}

// sendFiles sends the files that the command has left.
func (f *farEnd) sendFiles(s *Start) {
	entries, err := os.ReadDir(f.dir)
	for _, e := range entries {
		if _, given := s.Files[e.Name()]; given || !e.Type().IsRegular() {
			continue
		}
		content, err2 := os.ReadFile(filepath.Join(f.dir, e.Name()))
		if err2 == nil {
			err2 = f.out.frame(kindFile, append([]byte(e.Name()+"\n"), content...))
		}
		err = errors.Join(err, err2)
	}
	if err != nil {
		fmt.Fprintf(stream{f.out, kindError}, "lasthop: send the files back: %v\n", err)
	}
}
