package main

import (
	"context"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/lasthop/lasthop/kind/scenario"
)

// hanging is after what time a test that waits says what it waited for: longer
// than anything takes on a machine that others use as well.
const hanging = 5 * time.Minute

// muxed is a terminal that tmux shows, with a program of its own server.
type muxed struct {
	t      testing.TB
	socket string
}

// startMuxed has a shell run a script in a terminal of that size. It writes
// "left STATUS" when it ends.
func startMuxed(t testing.TB, columns, rows int, script string) *muxed {
	t.Helper()
	m := &muxed{t, fmt.Sprintf("%s/tmux", t.TempDir())}
	m.tmux("-f", "/dev/null", "new-session", "-d", "-x", fmt.Sprint(columns), "-y", fmt.Sprint(rows), "-e", "PATH="+os.Getenv("PATH"),
		script+`; echo "left $?"; read -r _`)
	t.Cleanup(func() { m.tmux("kill-server") })
	return m
}

func (m *muxed) tmux(args ...string) string {
	m.t.Helper()
	out, err := exec.Command("tmux", append([]string{"-S", m.socket}, args...)...).CombinedOutput()
	if err != nil {
		m.t.Fatalf("tmux %s: %v: %s", args[0], err, out)
	}
	return string(out)
}

func (m *muxed) keys(keys ...string) { m.tmux(append([]string{"send-keys"}, keys...)...) }

func (m *muxed) text() string { return m.tmux("capture-pane", "-p") }

// await looks at the terminal until it shows what is wanted. tmux has no signal
// for that.
func (m *muxed) await(what string, shows func(text string) bool) string {
	m.t.Helper()
	ctx, cancel := context.WithTimeout(m.t.Context(), hanging)
	defer cancel()
	look := time.NewTicker(50 * time.Millisecond)
	defer look.Stop()
	for {
		text := m.text()
		if shows(text) {
			return text
		}
		select {
		case <-look.C:
		case <-ctx.Done():
			m.t.Fatalf("the terminal does not show %s:\n%s", what, text)
		}
	}
}

func (m *muxed) awaitWords(words string) string {
	m.t.Helper()
	return m.await(fmt.Sprintf("%q", words), func(text string) bool { return strings.Contains(text, words) })
}

// TestScreen watches a healthy node on the screen, breaks it and mends it: the
// finding comes, and closes. What is recorded of it is shown without the node.
func TestScreen(t *testing.T) {
	t.Parallel()
	l := upLab(t, "healthy-kubenet")
	stop, err := startTraffic(t.Context(), l)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if err := stop(); err != nil && !errors.Is(err, context.Canceled) {
			t.Error(err)
		}
	})
	node := l.Nodes()[0]
	m := startMuxed(t, 80, 24, "lasthop --netns "+node.Netns)
	m.awaitWords("Enter to start")
	m.keys("Enter")
	m.awaitWords("[1]Findings 0")

	fault := scenario.Fault{Type: scenario.DropForward, Node: node.Name, Pod: node.Name + "/" + l.Scenario().Topology.Nodes[0].Pods[0].Name}
	if err := l.Inject(t.Context(), fault); err != nil {
		t.Fatal(err)
	}
	text := m.awaitWords("[1]Findings 1")
	if !strings.Contains(text, "WARN") || !strings.Contains(text, "proven") {
		t.Errorf("the finding is not told:\n%s", text)
	}
	if err := l.Undo(t.Context(), fault); err != nil {
		t.Fatal(err)
	}
	m.awaitWords("[1]Findings 0")
	for _, key := range []string{"2", "3", "4", "5", "?"} {
		m.keys(key)
	}
	m.awaitWords("quit, print the summary")
	// A key right behind would make another of it.
	m.keys("Escape")
	m.await("the tab again", func(text string) bool { return !strings.Contains(text, "quit, print the summary") })
	m.keys("q")
	m.awaitWords("left 0")

	recording := filepath.Join(t.TempDir(), "node.rec")
	if out, err := exec.Command("lasthop", "record", recording, "--netns", node.Netns, "--for", "2s").CombinedOutput(); err != nil {
		t.Fatalf("%v: %s", err, out)
	}
	// A shell lets it go on.
	m = startMuxed(t, 80, 24, "set -m; lasthop replay "+recording+"; echo stopped; read -r _; fg")
	m.awaitWords("Enter to start")
	m.keys("Enter")
	m.awaitWords("REPLAY")
	m.keys("C-z")
	m.awaitWords("stopped")
	m.keys("Enter")
	m.awaitWords("REPLAY")
	m.keys("q")
	m.awaitWords("left 0")
}

// TestDemoOnScreen runs the demo as a person does, at a terminal.
func TestDemoOnScreen(t *testing.T) {
	t.Parallel()
	m := startMuxed(t, 80, 24, `sh -c 'echo "pid $$."; exec lasthop demo'`)
	first := m.awaitWords("pid ")
	m.awaitWords("Enter to start")
	m.keys("Enter")
	m.await("the finding", func(text string) bool {
		return strings.Contains(text, "CRIT") && strings.Contains(text, "stale MAC for default/cart")
	})
	m.keys("q")
	m.awaitWords("left 0")
	_, pid, _ := strings.Cut(first, "pid ")
	pid, _, _ = strings.Cut(pid, ".")
	nothingLeft(t, "demo"+pid)
}
