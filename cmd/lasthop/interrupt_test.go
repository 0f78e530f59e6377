package main

import (
	"bufio"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"os/signal"
	"strings"
	"syscall"
	"testing"

	"golang.org/x/sys/unix"

	"github.com/lasthop/lasthop/kind/lab"
	"github.com/lasthop/lasthop/probe/netns"
)

// openTerminal makes a pseudo-terminal: what is written to tty comes out of
// control.
func openTerminal(t *testing.T) (control, tty *os.File) {
	t.Helper()
	control, err := os.OpenFile("/dev/ptmx", os.O_RDWR, 0)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { control.Close() })
	if err := unix.IoctlSetPointerInt(int(control.Fd()), unix.TIOCSPTLCK, 0); err != nil {
		t.Fatal(err)
	}
	number, err := unix.IoctlGetInt(int(control.Fd()), unix.TIOCGPTN)
	if err != nil {
		t.Fatal(err)
	}
	tty, err = os.OpenFile(fmt.Sprintf("/dev/pts/%d", number), os.O_RDWR|unix.O_NOCTTY, 0)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { tty.Close() })
	return control, tty
}

// TestInterruptedDemo ends a demo in the middle, by each signal that asks for
// it, and wants the status for that and nothing left behind. The progress on
// the terminal tells when the middle is.
func TestInterruptedDemo(t *testing.T) {
	t.Parallel()
	for _, sig := range []syscall.Signal{syscall.SIGINT, syscall.SIGTERM, syscall.SIGHUP} {
		t.Run(sig.String(), func(t *testing.T) {
			t.Parallel()
			control, tty := openTerminal(t)
			cmd := exec.Command("lasthop", "demo", "--for", "1h")
			cmd.Stderr = tty
			var stdout strings.Builder
			cmd.Stdout = &stdout
			// A program leaves a signal ignored that its parent ignores, as
			// all do under nohup. A signal that is caught is not inherited.
			caught := make(chan os.Signal, 1)
			signal.Notify(caught, sig)
			err := cmd.Start()
			signal.Stop(caught)
			if err != nil {
				t.Fatal(err)
			}
			id := fmt.Sprintf("demo%d", cmd.Process.Pid)
			tty.Close()
			said := readUntil(t, control, "watching: ")
			if err := cmd.Process.Signal(sig); err != nil {
				t.Fatal(err)
			}
			said += readUntil(t, control, "")
			err = cmd.Wait()
			var exit *exec.ExitError
			if !errors.As(err, &exit) || exit.ExitCode() != exitInterrupted {
				t.Errorf("%v, want status %d; it said:\n%s", err, exitInterrupted, said)
			}
			if stdout.Len() > 0 {
				t.Errorf("an interrupted demo reports:\n%s", stdout.String())
			}
			if !strings.Contains(said, "interrupted") {
				t.Errorf("it does not say that it was interrupted:\n%s", said)
			}
			nothingLeft(t, id)
		})
	}
}

// readUntil collects what comes until a text is in it; without a text until
// the last writer is gone.
func readUntil(t *testing.T, from *os.File, text string) string {
	t.Helper()
	var got strings.Builder
	r := bufio.NewReader(from)
	for text == "" || !strings.Contains(got.String(), text) {
		b, err := r.ReadByte()
		if err != nil {
			// A terminal without a writer gives EIO.
			if text != "" {
				t.Fatalf("%q never came, but:\n%s", text, got.String())
			}
			break
		}
		got.WriteByte(b)
	}
	return got.String()
}

// nothingLeft wants no lab and no network namespace of an id.
func nothingLeft(t *testing.T, id string) {
	t.Helper()
	labs, err := lab.List()
	if err != nil {
		t.Fatal(err)
	}
	for _, l := range labs {
		if l.ID == id {
			t.Errorf("lab %s is left", id)
		}
	}
	entries, err := os.ReadDir(netns.Dirs[0])
	if err != nil && !errors.Is(err, os.ErrNotExist) {
		t.Fatal(err)
	}
	for _, e := range entries {
		if strings.HasPrefix(e.Name(), "lasthop-"+id+"-") {
			t.Errorf("network namespace %s is left", e.Name())
		}
	}
}
