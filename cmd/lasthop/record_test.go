package main

import (
	"errors"
	"os/exec"
	"path/filepath"
	"strings"
	"syscall"
	"testing"

	"github.com/lasthop/lasthop/kind/lab"
)

// TestEndedRecording ends a recording by signals: after an interrupt it is
// whole, and after SIGKILL good up to its last reading.
func TestEndedRecording(t *testing.T) {
	s, err := load("healthy-kubenet")
	if err != nil {
		t.Fatal(err)
	}
	l, err := lab.Up(t.Context(), s, lab.Options{ID: newLab(t.Cleanup, t.Error)})
	if err != nil {
		t.Fatal(err)
	}
	for _, tt := range []struct {
		signal syscall.Signal
		status int
		said   string
		warned string
	}{
		{syscall.SIGINT, exitInterrupted, "interrupted", ""},
		{syscall.SIGKILL, -1, "", "the recording is cut off"},
	} {
		t.Run(tt.signal.String(), func(t *testing.T) {
			file := filepath.Join(t.TempDir(), "a.rec")
			control, tty := openTerminal(t)
			cmd := exec.Command("lasthop", "record", file, "--netns", l.Nodes()[0].Netns)
			cmd.Stderr = tty
			if err := cmd.Start(); err != nil {
				t.Fatal(err)
			}
			tty.Close()
			said := readUntil(t, control, "recording: 0s")
			if err := cmd.Process.Signal(tt.signal); err != nil {
				t.Fatal(err)
			}
			said += readUntil(t, control, "")
			var exit *exec.ExitError
			if err := cmd.Wait(); !errors.As(err, &exit) || exit.ExitCode() != tt.status || !strings.Contains(said, tt.said) {
				t.Errorf("%v, want status %d; it said:\n%s", err, tt.status, said)
			}
			replay := exec.Command("lasthop", "replay", file)
			var warned strings.Builder
			replay.Stderr = &warned
			out, err := replay.Output()
			if err != nil || !strings.Contains(string(out), "kubenet") {
				t.Errorf("replay: %v:\n%s", err, out)
			}
			if tt.warned == "" && warned.Len() > 0 || !strings.Contains(warned.String(), tt.warned) {
				t.Errorf("replay warned %q, want %q", warned.String(), tt.warned)
			}
		})
	}
}
