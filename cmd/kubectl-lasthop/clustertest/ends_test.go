//go:build cluster

package clustertest

import (
	"os/exec"
	"slices"
	"strings"
	"syscall"
	"testing"
)

// inNode runs a command in the network namespace of a node.
func inNode(t *testing.T, node, tool string, args ...string) {
	t.Helper()
	in := []string{"--target=" + fabric, "--mount", "--net", "ip", "netns", "exec", node, tool}
	if r := run(t, exec.Command("nsenter", append(in, args...)...)); r.status != 0 {
		t.Fatalf("%s: %s %v: %s", node, tool, args, r.stderr)
	}
}

// inFabric changes something between the nodes.
func inFabric(t *testing.T, args ...string) {
	t.Helper()
	if r := run(t, exec.Command("nsenter", append([]string{"--net=/proc/" + fabric + "/ns/net", "ip"}, args...)...)); r.status != 0 {
		t.Fatalf("%v: %s", args, r.stderr)
	}
}

// clientPod is the name of the pod on node2 that asks the one on node1.
func clientPod(t *testing.T) string {
	t.Helper()
	r := run(t, command("kubectl", "get", "pods", "-n", "shop", "-l", "app=client", "-o", "jsonpath={.items[0].metadata.name}"))
	if r.status != 0 || r.stdout == "" {
		t.Fatal(r.stderr)
	}
	return "pod/" + r.stdout
}

// TestBothEnds watches the nodes of a pod and of the one that it asks. Where the route
// between them lacks, both ends say which way; where all is well they find nothing. Whether
// the node or the network should have that route nothing there tells.
func TestBothEnds(t *testing.T) {
	check := func(t *testing.T) (result, document) {
		t.Helper()
		r := lasthop(t, "check", "-n", "shop", clientPod(t), "--to", "pod/web", "--for", "6s", "-o", "json")
		d := parse(t, r)
		if len(d.Nodes) != 2 {
			t.Errorf("nodes %v", d.Nodes)
		}
		for _, n := range d.Nodes {
			if n.Reason != "" {
				t.Errorf("%s is not compared: %s", n.Name, n.Reason)
			}
		}
		removed(t)
		return r, d
	}
	t.Run("healthy", func(t *testing.T) {
		if r, d := check(t); r.status != 0 || len(d.Findings) > 0 {
			t.Errorf("status %d: %s%s", r.status, r.stdout, r.stderr)
		}
	})
	for _, c := range []struct{ name, lacks, way string }{
		{"no route there", "10.244.1.0/24", "10.99.0.11"},
		{"no route back", "10.244.2.0/24", "10.99.0.12"},
	} {
		t.Run(c.name, func(t *testing.T) {
			// A cloud's fabric drops in silence.
			inFabric(t, "route", "replace", "blackhole", c.lacks)
			defer func() {
				inFabric(t, "route", "del", "blackhole", c.lacks)
				inFabric(t, "route", "replace", c.lacks, "via", c.way)
			}()
			r, d := check(t)
			if r.status != 1 || len(d.Findings) != 1 || !slices.Contains([]string{"MissingNodeRoute", "MissingUDR"}, d.Findings[0].Code) || d.Findings[0].Confidence != "likely" || !strings.Contains(d.Findings[0].Title, c.lacks) {
				t.Errorf("status %d, findings %+v: %s%s", r.status, d.Findings, r.stdout, r.stderr)
			}
		})
	}
	t.Run("a rule on the far node", func(t *testing.T) {
		rule := []string{"FORWARD", "-p", "tcp", "--dport", "8080", "-j", "DROP"}
		inNode(t, "node1", "iptables-nft", append([]string{"-I"}, rule...)...)
		defer inNode(t, "node1", "iptables-nft", append([]string{"-D"}, rule...)...)
		r, d := check(t)
		if r.status != 1 || len(d.Findings) != 1 || d.Findings[0].Code != "PolicyDrop" || !slices.Contains(d.Findings[0].Nodes, "node1") {
			t.Errorf("status %d, findings %+v: %s%s", r.status, d.Findings, r.stdout, r.stderr)
		}
	})
	t.Run("explain", func(t *testing.T) {
		r := lasthop(t, "explain", "-n", "shop", clientPod(t), "--to", "pod/web:8080/tcp", "--for", "3s")
		if r.status != 0 || !strings.HasPrefix(r.stdout, "Path shop/client-") || !strings.Contains(r.stdout, "between the nodes") || !strings.Contains(r.stdout, "left node2") {
			t.Errorf("status %d: %s%s", r.status, r.stdout, r.stderr)
		}
		removed(t)
	})
}

// TestSeveralEnd leaves nothing on any of several nodes: after an interrupt, a deadline,
// and a killed client.
func TestSeveralEnd(t *testing.T) {
	begin := func() *exec.Cmd { return command("kubectl", "lasthop", "check", "--all", "--for", "5m") }
	if r := signalWhen(t, begin(), "2 of 2 nodes are ready", syscall.SIGINT); r.status != 130 || r.stdout != "" {
		t.Errorf("interrupt: status %d: %s%s", r.status, r.stdout, r.stderr)
	}
	removed(t)
	signalWhen(t, begin(), "2 of 2 nodes are ready", syscall.SIGKILL)
	removed(t)
	if r := lasthop(t, "check", "--all", "--for", "5m", "--deadline", "10s"); r.status != 3 || !strings.Contains(r.stderr, "deadline of 10s") {
		t.Errorf("deadline: status %d: %s%s", r.status, r.stdout, r.stderr)
	}
	removed(t)
}
