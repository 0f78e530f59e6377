package main

import (
	"errors"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"syscall"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"github.com/lasthop/lasthop/kind/lab"
	"github.com/lasthop/lasthop/probe/model"
	"github.com/lasthop/lasthop/probe/record"
)

// TestEndedRecording ends a recording by signals: after an interrupt it is
// whole, and after SIGKILL good up to its last reading.
func TestEndedRecording(t *testing.T) {
	t.Parallel()
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

// TestReplaySocket replays what comes from a socket, which no path opens.
func TestReplaySocket(t *testing.T) {
	t.Parallel()
	ends, err := unix.Socketpair(unix.AF_UNIX, unix.SOCK_STREAM|unix.SOCK_CLOEXEC, 0)
	if err != nil {
		t.Fatal(err)
	}
	from, to := os.NewFile(uintptr(ends[0]), "from"), os.NewFile(uintptr(ends[1]), "to")
	defer from.Close()
	if _, err := to.WriteString("what is no recording"); err != nil {
		t.Fatal(err)
	}
	to.Close()
	cmd := exec.Command("lasthop", "replay", "-")
	cmd.Stdin = from
	out, err := cmd.CombinedOutput()
	if cmd.ProcessState.ExitCode() != exitUsage || !strings.Contains(string(out), "recording -: byte 0: this is no recording of lasthop") {
		t.Errorf("%v: %s", err, out)
	}
}

// TestClosedFinding: a fault that came and went while it was recorded is told,
// as long as the window reaches back to it.
func TestClosedFinding(t *testing.T) {
	name := filepath.Join(t.TempDir(), "a.rec")
	file, err := os.Create(name)
	if err != nil {
		t.Fatal(err)
	}
	w, err := record.NewWriter(file, record.Head{Window: 10 * time.Second})
	if err != nil {
		t.Fatal(err)
	}
	begin := time.Unix(1700000000, 0)
	gone := model.Tracked{ID: 1, First: begin, Last: begin.Add(5 * time.Second), Closed: true}
	gone.Code, gone.Severity, gone.Title = "PolicyDrop", model.Warning, "filter FORWARD\x1b[2J drops"
	before, open := gone, gone
	before.Last = begin.Add(time.Second)
	open.Code, open.Closed = "NoReply", false
	former := open
	former.Closed = true
	for i := range 21 {
		s := node()
		s.Window = model.Window{Start: begin, End: begin.Add(time.Duration(i) * time.Second)}
		if err := w.Write(model.Reading{At: s.Window.End, Findings: []model.Tracked{open, gone, before, former}, Point: model.Point{Snapshot: s, Whole: true}}); err != nil {
			t.Fatal(err)
		}
	}
	if err := errors.Join(w.Close(), file.Close()); err != nil {
		t.Fatal(err)
	}
	const want = `lasthop: warning: open until 2023-11-14T22:13:25Z, closed at the end of the recording: PolicyDrop: filter FORWARD\x1b[2J drops` + "\n"
	for _, tt := range []struct {
		args []string
		want string
	}{{nil, want}, {[]string{"--for", "18s"}, want}, {[]string{"--for", "5s"}, ""}, {[]string{"--skip", "PolicyDrop"}, ""}} {
		var stdout, stderr strings.Builder
		if code := run(append([]string{"replay", name, "-o", "text"}, tt.args...), &stdout, &stderr); code != exitClean || stderr.String() != tt.want {
			t.Errorf("%q: status %d, %q", tt.args, code, stderr.String())
		}
	}
}
