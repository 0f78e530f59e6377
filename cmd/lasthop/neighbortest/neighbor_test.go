//go:build neighbors

// Package neighbortest holds lasthop against programs that keep a node's routes, in a lab: healthy, with a fault of
// that program's, and after what the fix says. make test-neighbors runs it.
package neighbortest

import (
	"bufio"
	"encoding/json"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"
)

const (
	lasthop = "../../../bin/lasthop"
	range2  = "10.244.1.0/24"
	range3  = "10.244.2.0/24"
)

func run(t *testing.T, tool string, args ...string) {
	t.Helper()
	if out, err := output(tool, args...); err != nil {
		t.Fatalf("%s %q: %v\n%s", tool, args, err, out)
	}
}

func output(tool string, args ...string) (string, error) {
	out, err := exec.Command(tool, args...).CombinedOutput()
	return string(out), err
}

// lab is one that is up; its node is the first.
type lab struct {
	t        *testing.T
	id, node string
	// routes are what the kernel says of the node's routes.
	routes *bufio.Scanner
}

func up(t *testing.T, file string) *lab {
	l := &lab{t: t, id: fmt.Sprintf("neighbor-%d", os.Getpid())}
	l.node = "lasthop-" + l.id + "-node-1"
	t.Cleanup(func() { run(t, lasthop, "lab", "down", l.id) })
	run(t, lasthop, "lab", "up", file, "--id", l.id)
	monitor := exec.Command("ip", "-n", l.node, "monitor", "route")
	l.routes = bufio.NewScanner(l.start(monitor))
	return l
}

// start starts a program that ends with the test.
func (l *lab) start(c *exec.Cmd) *os.File {
	r, w, err := os.Pipe()
	if err != nil {
		l.t.Fatal(err)
	}
	c.Stdout, c.Stderr = w, w
	if err := c.Start(); err != nil {
		l.t.Fatal(err)
	}
	w.Close()
	l.t.Cleanup(func() {
		if err := c.Process.Kill(); err != nil {
			l.t.Error(err)
		}
		c.Wait() //nolint:errcheck // it was killed
		r.Close()
	})
	return r
}

// await waits until the kernel says so.
func (l *lab) await(text string) {
	for l.routes.Scan() {
		if strings.Contains(l.routes.Text(), text) {
			return
		}
	}
	l.t.Fatalf("no %q: %v", text, l.routes.Err())
}

// check is what lasthop finds on the node: the codes of findings with the first line of their fixes.
func (l *lab) check() (found []string) {
	l.t.Helper()
	c := exec.Command(lasthop, "check", "--netns", l.node, "--host-root", "/run/lasthop/labs/"+l.id+"/nodes/node-1", "--for", "5s", "-o", "json")
	out, err := c.Output()
	if exit := (*exec.ExitError)(nil); err != nil && !(errors.As(err, &exit) && exit.ExitCode() == 1) {
		l.t.Fatalf("%v: %s", err, exit.Stderr)
	}
	var doc struct {
		Findings []struct {
			Code     string
			Fix      []string
			Severity string
		}
	}
	if err := json.Unmarshal(out, &doc); err != nil {
		l.t.Fatalf("%v: %s", err, out)
	}
	for _, f := range doc.Findings {
		found = append(found, f.Code+": "+strings.Join(f.Fix, "\n"))
	}
	return found
}

// TestBIRD: BIRD writes the routes to other nodes' pods. What it is not told of is missing; what somebody deletes comes back.
func TestBIRD(t *testing.T) {
	root, dir := os.Getenv("NEIGHBORS"), t.TempDir()
	t.Setenv("LD_LIBRARY_PATH", strings.Join(glob(t, root+"/usr/lib/*-linux-gnu"), ":"))
	l := up(t, "testdata/bird.yaml")
	daemon, client := filepath.Join(root, "usr/sbin/bird"), filepath.Join(root, "usr/sbin/birdc")
	config, socket := filepath.Join(dir, "bird.conf"), filepath.Join(dir, "bird.ctl")
	configure := func(routes ...string) {
		text := "router id 10.240.0.4;\nprotocol device {}\nprotocol kernel { ipv4 { export all; import none; }; scan time 1; }\nprotocol static { ipv4;\n"
		for _, r := range routes {
			text += "route " + r + ";\n"
		}
		if err := os.WriteFile(config, []byte(text+"}\n"), 0o600); err != nil {
			t.Fatal(err)
		}
	}
	to2, to3 := range2+" via 10.240.0.5", range3+" via 10.240.0.6"
	run(t, "ip", "-n", l.node, "route", "del", range2)
	run(t, "ip", "-n", l.node, "route", "del", range3)
	configure(to2, to3)
	l.start(exec.Command("ip", "netns", "exec", l.node, daemon, "-f", "-c", config, "-s", socket))
	l.await(to3 + " dev eth0 proto bird")
	if found := l.check(); len(found) > 0 {
		t.Errorf("healthy: %q", found)
	}

	configure(to2)
	run(t, client, "-s", socket, "configure")
	l.await("Deleted " + range3)
	found := l.check()
	if len(found) != 1 || !strings.HasPrefix(found[0], "MissingNodeRoute: birdc show route for "+range3+" all #") {
		t.Fatalf("without a route: %q", found)
	}
	command, _, _ := strings.Cut(strings.TrimPrefix(found[0], "MissingNodeRoute: birdc "), " #")
	// It says that BIRD has none, and exits with 1.
	said, err := output(client, append([]string{"-s", socket}, strings.Fields(command)...)...)
	if !strings.Contains(said, "Network not found") {
		t.Errorf("%s: %v, %s", command, err, said)
	}

	configure(to2, to3)
	run(t, client, "-s", socket, "configure")
	l.await(to3 + " dev eth0 proto bird")
	run(t, "ip", "-n", l.node, "route", "del", range3)
	l.await("Deleted " + range3)
	l.await(to3 + " dev eth0 proto bird")
	if found := l.check(); len(found) > 0 {
		t.Errorf("mended: %q", found)
	}
}

func glob(t *testing.T, pattern string) []string {
	t.Helper()
	list, err := filepath.Glob(pattern)
	if err != nil || len(list) == 0 {
		t.Fatalf("%s: nothing, %v", pattern, err)
	}
	return list
}
