package main

import (
	"os/exec"
	"slices"
	"testing"

	"github.com/lasthop/lasthop/probe/collect"
	"github.com/lasthop/lasthop/probe/model"
	"github.com/lasthop/lasthop/probe/netns"
)

// TestForeignPrograms watches nodes with Cilium's programs, once in good order
// and once until SIGKILL, and wants every program where it was, by number,
// priority, handle and order.
func TestForeignPrograms(t *testing.T) {
	t.Parallel()
	for _, name := range []string{"healthy-azure-cilium-tc", "healthy-cilium-tcx", "healthy-azure-cilium-redirect"} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			l := upLab(t, name)
			node := l.Nodes()[0].Netns
			before := programs(t, node)
			// Two on the card, two on the router, two for each pod.
			if len(before) != 8 {
				t.Fatalf("%d programs before: %+v", len(before), before)
			}
			if out, err := exec.Command("lasthop", "check", "--netns", node, "--for", "1s").CombinedOutput(); err != nil {
				t.Errorf("%v:\n%s", err, out)
			}
			if after := programs(t, node); !slices.Equal(after, before) {
				t.Errorf("after the end of a run\n%+v\nbefore it\n%+v", after, before)
			}
			killWhileWatching(t, node)
			if after := programs(t, node); !slices.Equal(after, before) {
				t.Errorf("after SIGKILL\n%+v\nbefore it\n%+v", after, before)
			}
		})
	}
}

// programs are those on a node's links.
func programs(t *testing.T, node string) []model.Program {
	t.Helper()
	ns, err := netns.Named(node)
	if err != nil {
		t.Fatal(err)
	}
	defer ns.Close()
	c, err := collect.Open(collect.Options{NS: ns, HostRoot: t.TempDir()})
	if err != nil {
		t.Fatal(err)
	}
	defer c.Close()
	s, err := c.State(t.Context(), collect.Losses{})
	if err != nil {
		t.Fatal(err)
	}
	return slices.DeleteFunc(s.Programs, func(p model.Program) bool { return p.IfIndex == 0 })
}

// killWhileWatching ends a run by SIGKILL in its middle, which the progress on
// a terminal tells.
func killWhileWatching(t *testing.T, node string) {
	t.Helper()
	control, tty := openTerminal(t)
	cmd := exec.Command("lasthop", "check", "--netns", node, "--for", "1h")
	cmd.Stderr = tty
	if err := cmd.Start(); err != nil {
		t.Fatal(err)
	}
	tty.Close()
	readUntil(t, control, "watching: ")
	if err := cmd.Process.Kill(); err != nil {
		t.Fatal(err)
	}
	if err := cmd.Wait(); err == nil {
		t.Error("it ended well, want it killed")
	}
}
