//go:build neighbors

// Package neighbortest holds lasthop against programs that keep a node's routes, rules or addresses, in a lab: healthy,
// with a fault of that program's, and after what the fix says and that program's next turn. make test-neighbors runs it.
package neighbortest

import (
	"bufio"
	"encoding/json"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"regexp"
	"slices"
	"strings"
	"syscall"
	"testing"
)

const (
	lasthop = "../../../bin/lasthop"
	range1  = "10.244.0.0/24"
	range2  = "10.244.1.0/24"
	range3  = "10.244.2.0/24"
	to2     = range2 + " via 10.240.0.5"
	to3     = range3 + " via 10.240.0.6"
)

func run(t *testing.T, tool string, args ...string) {
	t.Helper()
	if out, err := exec.Command(tool, args...).CombinedOutput(); err != nil {
		t.Fatalf("%s %q: %v\n%s", tool, args, err, out)
	}
}

// lab is one that is up.
type lab struct {
	t  *testing.T
	id string
}

func up(t *testing.T) *lab {
	l := &lab{t: t, id: fmt.Sprintf("neighbor-%d", os.Getpid())}
	t.Cleanup(func() { run(t, lasthop, "lab", "down", l.id) })
	run(t, lasthop, "lab", "up", "testdata/switched.yaml", "--id", l.id)
	return l
}

func (l *lab) netns(node string) string { return "lasthop-" + l.id + "-" + node }

// lines are what a program says that runs until the test ends.
type lines struct {
	t *testing.T
	*bufio.Scanner
}

// start starts such a program.
func start(t *testing.T, c *exec.Cmd) *lines {
	t.Helper()
	r, w, err := os.Pipe()
	if err != nil {
		t.Fatal(err)
	}
	c.Stdout, c.Stderr = w, w
	if err := c.Start(); err != nil {
		t.Fatal(err)
	}
	w.Close()
	t.Cleanup(func() {
		if err := c.Process.Kill(); err != nil && !errors.Is(err, os.ErrProcessDone) {
			t.Error(err)
		}
		c.Wait() //nolint:errcheck // it was killed
		r.Close()
	})
	return &lines{t, bufio.NewScanner(r)}
}

// await waits until the program says so.
func (l *lines) await(text string) {
	l.t.Helper()
	var said []string
	for l.Scan() {
		if said = append(said, l.Text()); strings.Contains(l.Text(), text) {
			return
		}
	}
	l.t.Fatalf("no %q: %v in\n%s", text, l.Err(), strings.Join(said, "\n"))
}

// host is a node with the programs; routes are what the kernel says of its routes.
type host struct {
	*lab
	node, pid string
	routes    *lines
}

func (l *lab) host(node string) *host {
	l.t.Helper()
	c := exec.Command("nsenter", "--net=/run/netns/"+l.netns(node), "../../../tools/neighbors/host", l.t.TempDir())
	c.SysProcAttr = &syscall.SysProcAttr{Cloneflags: syscall.CLONE_NEWNS | syscall.CLONE_NEWPID}
	start(l.t, c).await("ready")
	h := &host{lab: l, node: node, pid: fmt.Sprint(c.Process.Pid)}
	h.routes = start(l.t, exec.Command("ip", "-n", l.netns(node), "monitor", "route"))
	return h
}

// command is one that runs on the node.
func (h *host) command(args ...string) *exec.Cmd {
	return exec.Command("nsenter", append([]string{"-t", h.pid, "-m", "-n", "-p", "--"}, args...)...)
}

// sh runs a script there.
func (h *host) sh(script string) string {
	h.t.Helper()
	out, err := h.command("sh", "-ec", script).CombinedOutput()
	if err != nil {
		h.t.Fatalf("%s: %v\n%s", script, err, out)
	}
	return string(out)
}

func (h *host) write(path, text string) {
	h.t.Helper()
	c := h.command("sh", "-c", "cat >"+path)
	c.Stdin = strings.NewReader(text)
	if out, err := c.CombinedOutput(); err != nil {
		h.t.Fatalf("%s: %v\n%s", path, err, out)
	}
}

// finding is one with its fix.
type finding struct {
	Code, Title string
	Why         string
	Fix         []string
}

// check is what lasthop finds on the node, which reads all there is.
func (h *host) check() []finding {
	h.t.Helper()
	c := exec.Command(lasthop, "check", "--netns", h.netns(h.node), "--host-root", "/run/lasthop/labs/"+h.id+"/nodes/"+h.node,
		"--for", "6s", "-o", "json")
	out, err := c.Output()
	if exit := (*exec.ExitError)(nil); err != nil && !(errors.As(err, &exit) && exit.ExitCode() == 1) {
		h.t.Fatalf("%v: %s", err, exit.Stderr)
	}
	var doc struct {
		Findings []finding
		Sources  []struct{ Name, Status, Detail string }
	}
	if err := json.Unmarshal(out, &doc); err != nil {
		h.t.Fatalf("%v: %s", err, out)
	}
	for _, s := range doc.Sources {
		// Nobody told lasthop of the cluster and the cloud.
		if s.Status != "ok" && !slices.Contains([]string{"nodes", "cloud"}, s.Name) {
			h.t.Errorf("source %s is %s: %s", s.Name, s.Status, s.Detail)
		}
	}
	return doc.Findings
}

func (h *host) silent(when string) {
	h.t.Helper()
	if found := h.check(); len(found) > 0 {
		h.t.Errorf("%s: %q", when, found)
	}
}

// healthy: nothing is found, and explain and doctor name the program.
func (h *host) healthy(program string) {
	h.t.Helper()
	h.silent("healthy")
	at := []string{"--netns", h.netns(h.node), "--host-root", "/run/lasthop/labs/" + h.id + "/nodes/" + h.node}
	for _, args := range [][]string{{"doctor"}, {"explain", "10.244.0.2", "--to", "10.244.1.2", "--for", "1s"}} {
		out, err := exec.Command(lasthop, append(args, at...)...).Output()
		if !regexp.MustCompile(`(?m)^ *programs .*` + program).Match(out) {
			h.t.Errorf("%s does not name %s: %v\n%s", args[0], program, err, out)
		}
	}
}

// told is the one finding that there is, which says and prints these words.
func (h *host) told(code string, says ...string) finding {
	h.t.Helper()
	found := h.check()
	if len(found) != 1 || found[0].Code != code {
		h.t.Fatalf("want %s: %q", code, found)
	}
	text := fmt.Sprintf("%s\n%s\n%s", found[0].Title, found[0].Why, strings.Join(found[0].Fix, "\n"))
	for _, words := range says {
		if !strings.Contains(text, words) {
			h.t.Errorf("no %q in\n%s", words, text)
		}
	}
	return found[0]
}

// mend runs a finding's fix.
func (h *host) mend(f finding) {
	h.t.Helper()
	h.sh(strings.Join(f.Fix, "\n"))
}
