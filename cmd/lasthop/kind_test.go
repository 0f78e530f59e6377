//go:build kind

package main

import (
	"bytes"
	"cmp"
	"fmt"
	"os"
	"os/exec"
	"slices"
	"strings"
	"testing"

	"github.com/lasthop/lasthop/kind"
	"github.com/lasthop/lasthop/kind/cluster"
	"github.com/lasthop/lasthop/kind/lab"
	"github.com/lasthop/lasthop/kind/scenario"
)

// TestKind runs every scenario that can be on a cluster of kind, many one after the
// other on one cluster, as `lasthop demo --on kind` does: nothing is found before the
// fault, the fault is found, and nothing once it is undone. LASTHOP_KIND_IMAGE names the
// image of the nodes. The pods' image is made of this test: build it with CGO_ENABLED=0.
func TestKind(t *testing.T) {
	names, text := all(t)
	log := func(format string, args ...any) { t.Logf(format, args...) }
	l, err := lab.UpOnKind(t.Context(), func(c *scenario.Cluster) (*scenario.Scenario, error) {
		return scenario.ParseOnKind("all.yaml", []byte(text), c)
	}, lab.KindOptions{
		Options: lab.Options{ID: newLab(t.Cleanup, t.Error), Log: log},
		Image:   os.Getenv(kindImageVariable), Hold: []string{"lab", "hold"},
	})
	if err != nil {
		t.Fatal(err)
	}
	for _, name := range names {
		t.Run(name, func(t *testing.T) { onKind(t, l, name) })
	}
	if err := l.Down(t.Context()); err != nil {
		t.Error(err)
	}
	nothingLeft(t, l.ID())
	// The engine is the test's own, and so is the namespace.
	if err := cluster.Ready(t.Context(), "lasthop-"+l.ID(), "", "/proc/self/exe"); err != nil {
		t.Errorf("the cluster is left: %v", err)
	}
	noOutput(t, "ip", "-brief", "link", "show", "type", "veth")
	noOutput(t, "ip", "route", "show", "root", "203.0.113.0/24")
}

// noOutput wants a command to have nothing to say.
func noOutput(t *testing.T, tool string, args ...string) {
	t.Helper()
	if out, err := exec.Command(tool, args...).CombinedOutput(); err != nil || len(bytes.TrimSpace(out)) > 0 {
		t.Errorf("%s %q: %s%v", tool, args, out, err)
	}
}

// TestKindScripts runs the scripts in testdata/kind, as TestScripts does others.
func TestKindScripts(t *testing.T) { runScripts(t, "testdata/kind") }

// onKind runs one scenario.
func onKind(t *testing.T, l *lab.Lab, name string) {
	err := lab.Recast(l, func(c *scenario.Cluster) (*scenario.Scenario, error) { return kind.LoadOnKind(name, c) })
	if err != nil {
		t.Fatal(err)
	}
	var printed, log bytes.Buffer
	a, o := &app{stdout: &printed, stderr: &log}, given(t, "--for", "4s")
	look := func() error { return a.checkLab(t.Context(), o, l) }
	if len(l.Scenario().Faults) > 0 {
		err = a.between(t.Context(), o, l, look)
	} else {
		err = look()
	}
	if err != nil {
		t.Errorf("%v:\n%s%s", err, &log, &printed)
	}
}

// all are the scenarios that can be on kind, and one without faults that
// has the nodes and pods of them all. LASTHOP_KIND_ONLY may name fewer.
func all(t *testing.T) (names []string, text string) {
	t.Helper()
	var nodes []string
	pods := map[string][]string{}
	only := strings.FieldsFunc(os.Getenv("LASTHOP_KIND_ONLY"), func(r rune) bool { return r == ',' })
	for _, info := range kind.Scenarios() {
		s, err := kind.LoadOnKind(info.Name, nil)
		if err != nil || len(only) > 0 && !slices.Contains(only, info.Name) {
			continue
		}
		names = append(names, info.Name)
		for _, n := range s.Topology.Nodes {
			if !slices.Contains(nodes, n.Name) {
				nodes = append(nodes, n.Name)
			}
			for _, p := range n.Pods {
				if !slices.Contains(pods[n.Name], p.Name) {
					pods[n.Name] = append(pods[n.Name], p.Name)
				}
			}
		}
	}
	// Most of a fault's scenarios need no cloud.
	if want := cmp.Or(len(only), 40); len(names) < want {
		t.Fatalf("%d scenarios can be on kind, want %d: %q", len(names), want, names)
	}
	text = "name: all\ntopology:\n  nodes:\n"
	for _, n := range nodes {
		text += fmt.Sprintf("    - {name: %s, pods: [%s]}\n", n, strings.Join(pods[n], ", "))
	}
	return names, text
}
