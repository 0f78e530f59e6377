package main

import (
	"context"
	"os"
	"os/exec"
	"strings"
	"testing"

	"github.com/creack/pty"
	"golang.org/x/sys/unix"
)

// late is a lateReader of which a test decides when its waiting begins and ends.
type late struct {
	*lateReader
	// asked gets something each time the size is asked for.
	asked   chan struct{}
	resized chan os.Signal
	giveUp  context.CancelFunc
}

func newLate(t *testing.T, sized func() bool) *late {
	l := &late{asked: make(chan struct{}, 8), resized: make(chan os.Signal)}
	over, cancel := context.WithCancel(t.Context())
	l.giveUp = cancel
	l.lateReader = &lateReader{over: over, resized: l.resized, sized: func() bool {
		l.asked <- struct{}{}
		return sized()
	}}
	return l
}

// TestLateTerminal is a terminal that gets its size late, and whose reader sees nothing
// of what was written before.
func TestLateTerminal(t *testing.T) {
	control, tty := openTerminal(t)
	l := newLate(t, func() bool {
		size, err := pty.GetsizeFull(tty)
		return err == nil && size.Cols > 0 && size.Rows > 0
	})
	wrote := make(chan error, 1)
	go func() {
		_, err := l.to(tty).Write([]byte("the refusal\n"))
		wrote <- err
	}()
	<-l.asked
	// A signal without a size, as when another terminal took its first size.
	l.resized <- unix.SIGWINCH
	<-l.asked
	if n, err := unix.IoctlGetInt(int(control.Fd()), unix.TIOCINQ); err != nil || n > 0 {
		t.Errorf("%d bytes were written before anybody had attached (%v)", n, err)
	}
	if err := pty.Setsize(control, &pty.Winsize{Cols: 80, Rows: 24}); err != nil {
		t.Fatal(err)
	}
	l.resized <- unix.SIGWINCH
	if err := <-wrote; err != nil {
		t.Fatal(err)
	}
	readUntil(t, control, "the refusal")
}

// TestLatePipe is a pipe, which does not tell when its reader comes: output waits for
// as long as that may take.
func TestLatePipe(t *testing.T) {
	r, w, err := os.Pipe()
	if err != nil {
		t.Fatal(err)
	}
	defer r.Close()
	l := newLate(t, func() bool { return false })
	wrote := make(chan error, 1)
	go func() {
		defer w.Close()
		_, err := l.to(w).Write([]byte("the refusal\n"))
		wrote <- err
	}()
	<-l.asked
	if n, err := unix.IoctlGetInt(int(r.Fd()), unix.TIOCINQ); err != nil || n > 0 {
		t.Errorf("%d bytes were written before anybody had attached (%v)", n, err)
	}
	l.giveUp()
	if err := <-wrote; err != nil {
		t.Fatal(err)
	}
	readUntil(t, r, "the refusal")
	if !l.here() {
		t.Error("a reader that is no longer expected is awaited again")
	}
}

// TestReaderComes starts lasthop as a runtime does, with a terminal of 0×0 that gets its
// size afterwards.
func TestReaderComes(t *testing.T) {
	t.Parallel()
	control, tty := openTerminal(t)
	cmd := inPod(t, "check", "--netns", "lasthop-no-such-node")
	cmd.Stdin, cmd.Stdout, cmd.Stderr = tty, tty, tty
	cmd.SysProcAttr = &unix.SysProcAttr{Setsid: true, Setctty: true}
	if err := cmd.Start(); err != nil {
		t.Fatal(err)
	}
	tty.Close()
	if err := pty.Setsize(control, &pty.Winsize{Cols: 80, Rows: 24}); err != nil {
		t.Fatal(err)
	}
	refused(t, cmd, readUntil(t, control, ""))
}

// TestNoReaderComes wants that lasthop ends although nobody attaches: what it says is in
// the container's log.
func TestNoReaderComes(t *testing.T) {
	t.Run("terminal", func(t *testing.T) {
		t.Parallel()
		control, tty := openTerminal(t)
		cmd := inPod(t, "check", "--netns", "lasthop-no-such-node")
		cmd.Stdin, cmd.Stdout, cmd.Stderr = tty, tty, tty
		if err := cmd.Start(); err != nil {
			t.Fatal(err)
		}
		tty.Close()
		refused(t, cmd, readUntil(t, control, ""))
	})
	t.Run("pipe", func(t *testing.T) {
		t.Parallel()
		r, w, err := os.Pipe()
		if err != nil {
			t.Fatal(err)
		}
		defer r.Close()
		cmd := inPod(t, "check", "--netns", "lasthop-no-such-node")
		cmd.Stdout, cmd.Stderr = w, w
		if err := cmd.Start(); err != nil {
			t.Fatal(err)
		}
		w.Close()
		refused(t, cmd, readUntil(t, r, ""))
	})
}

// inPod is lasthop as the first process of a pod's container: its parent is in another
// PID namespace.
func inPod(t *testing.T, args ...string) *exec.Cmd {
	cmd := exec.CommandContext(t.Context(), "unshare", append([]string{"--pid", "--fork", "--kill-child", "--mount-proc", "lasthop"}, args...)...)
	cmd.Env = append(os.Environ(), "KUBERNETES_SERVICE_HOST=10.0.0.1")
	return cmd
}

// refused wants the status and the words of a refusal.
func refused(t *testing.T, cmd *exec.Cmd, said string) {
	t.Helper()
	cmd.Wait() //nolint:errcheck // the status is looked at
	if got := cmd.ProcessState.ExitCode(); got != exitCannot || !strings.Contains(said, "cannot observe: ") {
		t.Errorf("status %d, want %d; it said:\n%s", got, exitCannot, said)
	}
}

// TestShellInPod: a command of a shell in a pod's container has its reader already.
func TestShellInPod(t *testing.T) {
	t.Setenv("KUBERNETES_SERVICE_HOST", "10.0.0.1")
	if startedByRuntime() {
		t.Error("the parent is in the same container, and yet the runtime is said to have started this")
	}
}
