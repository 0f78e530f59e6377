//go:build cluster

package clustertest

import (
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"sync"
	"testing"
)

const image = "--image=docker.io/library/lasthop:dev"

// undebug removes the pods that kubectl debug leaves.
func undebug(t *testing.T) {
	t.Helper()
	if r := run(t, command("kubectl", "delete", "pods", "-l", "app.kubernetes.io/managed-by=kubectl-debug", "--wait=false")); r.status != 0 {
		t.Error(r.stderr)
	}
}

// TestDebugProfiles checks a node in each profile of kubectl debug that starts, and in
// that of the documentation.
func TestDebugProfiles(t *testing.T) {
	defer undebug(t)
	text, err := os.ReadFile("../../../docs/rights.md")
	if err != nil {
		t.Fatal(err)
	}
	_, custom, _ := strings.Cut(string(text), "```json\n")
	custom, _, _ = strings.Cut(custom, "```")
	file := filepath.Join(t.TempDir(), "profile.json")
	if err := os.WriteFile(file, []byte(custom), 0o600); err != nil {
		t.Fatal(err)
	}
	for _, c := range []struct {
		name string
		args []string
		want string
	}{
		{"sysadmin", []string{"--profile=sysadmin"}, "lasthop missed"},
		{"custom", []string{"--profile=general", "--custom=" + file}, "lasthop missed"},
		{"netadmin", []string{"--profile=netadmin"}, "cannot watch packets"},
		{"general", []string{"--profile=general"}, "cannot observe"},
		{"baseline", []string{"--profile=baseline"}, "cannot observe"},
	} {
		args := append(append([]string{"kubectl", "debug", "node/node1", "--attach", image}, c.args...), "--", "/lasthop", "check", "--for", "2s")
		if r := run(t, command(args...)); !strings.Contains(r.stdout+r.stderr, c.want) {
			t.Errorf("%s: status %d, want %q: %s%s", c.name, r.status, c.want, r.stdout, r.stderr)
		}
	}
}

// TestRefusalsReachTheReader starts lasthop 50 times where it cannot observe: on
// terminals, and with pipes.
func TestRefusalsReachTheReader(t *testing.T) {
	defer undebug(t)
	const each, atOnce = 25, 5
	var mu sync.Mutex
	lost := 0
	note := func(how, text string) {
		mu.Lock()
		defer mu.Unlock()
		if !strings.Contains(text, "missing capabilities") {
			lost++
			t.Logf("%s: lost: %q", how, text)
		}
	}
	free := make(chan struct{}, atOnce)
	var all sync.WaitGroup
	for i := range 2 * each {
		free <- struct{}{}
		all.Go(func() {
			defer func() { <-free }()
			node := fmt.Sprintf("node/node%d", 1+i/2%2)
			if i%2 == 0 {
				_, shown := onTerminal(t, command("kubectl", "debug", node, "-it", image, "--profile=general", "--", "/lasthop", "watch"))
				note("terminal", shown)
				return
			}
			r := run(t, command("kubectl", "debug", node, "--attach", image, "--profile=general", "--", "/lasthop", "watch"))
			note("pipe", r.stdout+r.stderr)
		})
	}
	all.Wait()
	t.Logf("%d of %d refusals reached the reader", 2*each-lost, 2*each)
	if lost > 0 {
		t.Errorf("%d of %d refusals were lost", lost, 2*each)
	}
}
