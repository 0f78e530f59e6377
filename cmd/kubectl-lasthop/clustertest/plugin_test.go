//go:build cluster

package clustertest

import (
	"encoding/json"
	"os"
	"path/filepath"
	"strings"
	"syscall"
	"testing"
)

// document is as much of a report as the tests read.
type document struct {
	Pods     []struct{ Namespace, Name, IP string }
	Findings []struct {
		Code, Confidence, Title string
		Nodes, Fix, Steps       []string
	}
	Nodes []struct{ Name, Reason string }
}

func parse(t *testing.T, r result) document {
	t.Helper()
	var d document
	if err := json.Unmarshal([]byte(r.stdout), &d); err != nil {
		t.Fatalf("status %d: %v: %s%s", r.status, err, r.stdout, r.stderr)
	}
	return d
}

// TestHealthy is status 0, and the names of the pods.
func TestHealthy(t *testing.T) {
	r := lasthop(t, "check", "node1", "--for", "3s", "-o", "json")
	d := parse(t, r)
	if r.status != 0 {
		t.Errorf("status %d, findings %v: %s", r.status, d.Findings, r.stderr)
	}
	named := false
	for _, p := range d.Pods {
		named = named || p.Namespace == "shop" && p.Name == "web"
	}
	if !named {
		t.Errorf("no pod is shop/web: %v", d.Pods)
	}
	removed(t)
}

// TestFault is status 1, of a pod that is named, and of all nodes.
func TestFault(t *testing.T) {
	address := run(t, command("kubectl", "get", "pod", "-n", "shop", "web", "-o", "jsonpath={.status.podIP}")).stdout
	onNode(t, "node1", "neighbour", "replace", address, "lladdr", "02:00:00:00:00:01", "dev", "cbr0", "nud", "permanent")
	defer onNode(t, "node1", "neighbour", "del", address, "dev", "cbr0")
	r := lasthop(t, "check", "-n", "shop", "pod/web", "--for", "3s", "-o", "json")
	if d := parse(t, r); r.status != 1 || len(d.Findings) != 1 || d.Findings[0].Code != "StaleNeighbor" {
		t.Errorf("status %d, findings %v: %s", r.status, d.Findings, r.stderr)
	}
	r = lasthop(t, "check", "--all", "--for", "3s", "-o", "json")
	if d := parse(t, r); r.status != 1 || len(d.Findings) != 1 || d.Findings[0].Code != "StaleNeighbor" || len(d.Nodes) != 2 {
		t.Errorf("all nodes: status %d, %+v: %s", r.status, d, r.stderr)
	}
	r = lasthop(t, "explain", "-n", "shop", "pod/web", "--for", "3s")
	if r.status != 1 || !strings.Contains(r.stdout, "StaleNeighbor") {
		t.Errorf("explain: status %d: %s%s", r.status, r.stdout, r.stderr)
	}
	removed(t)
}

// TestUsage is status 2 of lasthop itself, on the node.
func TestUsage(t *testing.T) {
	if r := lasthop(t, "check", "node1", "--for", "never"); r.status != 2 || !strings.Contains(r.stderr, "want a number with a unit") {
		t.Errorf("status %d: %s", r.status, r.stderr)
	}
	removed(t)
}

// TestCannot is status 3: of lasthop, of an image that is not there, of the API server.
func TestCannot(t *testing.T) {
	r := lasthop(t, "check", "node1", "--image", "docker.io/library/none:dev")
	if r.status != 3 || !strings.Contains(r.stderr, "--image") {
		t.Errorf("no image: status %d: %s", r.status, r.stderr)
	}
	r = run(t, as("ann", command("kubectl", "lasthop", "check", "node1")))
	if r.status != 3 || !strings.Contains(r.stderr, `cannot create resource "pods"`) || !strings.Contains(r.stderr, "kubectl create role lasthop") {
		t.Errorf("without rights: status %d: %s", r.status, r.stderr)
	}
	kubectl(t, "", "create", "namespace", "strict")
	kubectl(t, "", "wait", "--for=create", "serviceaccount/default", "-n", "strict", "--timeout=60s")
	kubectl(t, "", "label", "namespace", "strict", "pod-security.kubernetes.io/enforce=baseline")
	r = lasthop(t, "check", "node1", "--debug-namespace", "strict")
	if r.status != 3 || !strings.Contains(r.stderr, `violates PodSecurity "baseline:latest"`) || !strings.Contains(r.stderr, "--debug-namespace") {
		t.Errorf("a policy: status %d: %s", r.status, r.stderr)
	}
	removed(t)
}

// TestRole has the rights that the plugin says suffice, and no others.
func TestRole(t *testing.T) {
	for _, args := range [][]string{
		{"kubectl", "create", "role", "lasthop", "--verb=create,get,list,delete", "--resource=jobs.batch,pods,pods/attach,events"},
		{"kubectl", "create", "rolebinding", "lasthop", "--role=lasthop", "--user=ann"},
	} {
		if r := run(t, command(args...)); r.status != 0 {
			t.Fatal(r.stderr)
		}
	}
	r := run(t, as("ann", command("kubectl", "lasthop", "check", "node1", "--for", "2s")))
	if r.status != 0 || !strings.Contains(r.stderr, "without the cluster's nodes") {
		t.Errorf("status %d: %s%s", r.status, r.stdout, r.stderr)
	}
	removed(t)
}

// TestStrict is status 4, of one node and of several: no packet was watched.
func TestStrict(t *testing.T) {
	for _, c := range []struct {
		args   []string
		status int
	}{
		{[]string{"node1", "--strict"}, 0},
		{[]string{"node1", "--strict", "--engine", "state"}, 4},
		{[]string{"--all", "--strict"}, 0},
		{[]string{"--all", "--strict", "--engine", "state"}, 4},
	} {
		if r := lasthop(t, append([]string{"check", "--for", "2s"}, c.args...)...); r.status != c.status {
			t.Errorf("%v: status %d, want %d: %s%s", c.args, r.status, c.status, r.stdout, r.stderr)
		}
	}
	removed(t)
}

func TestFilesComeBack(t *testing.T) {
	recording, samples := filepath.Join(t.TempDir(), "node.rec"), filepath.Join(t.TempDir(), "dead.pcap")
	if r := lasthop(t, "record", recording, "node1", "--for", "3s"); r.status != 0 {
		t.Fatalf("status %d: %s", r.status, r.stderr)
	}
	if r := run(t, command(os.Getenv("LASTHOP_BINARY"), "check", "--replay", recording)); r.status != 0 || !strings.Contains(r.stdout, "node1") {
		t.Errorf("replay: status %d: %s%s", r.status, r.stdout, r.stderr)
	}
	if r := lasthop(t, "check", "node1", "--for", "2s", "--pcap", samples); r.status != 0 {
		t.Fatalf("status %d: %s", r.status, r.stderr)
	}
	// A pcapng file begins with a section header.
	if head, err := os.ReadFile(samples); err != nil || !strings.HasPrefix(string(head), "\x0a\x0d\x0d\x0a") {
		t.Errorf("the samples: %q, %v", head, err)
	}
	removed(t)
}

func TestInterrupt(t *testing.T) {
	r := signalWhen(t, command("kubectl", "lasthop", "watch", "node1"), `"kind":"Lost"`, syscall.SIGINT)
	if r.status != 130 || !strings.Contains(r.stderr, "removed everything that it attached") {
		t.Errorf("status %d: %s", r.status, r.stderr)
	}
	removed(t)
}

func TestDeadline(t *testing.T) {
	r := lasthop(t, "watch", "node1", "--deadline", "8s")
	if r.status != 130 || !strings.Contains(r.stderr, "deadline of 8s") {
		t.Errorf("status %d: %s", r.status, r.stderr)
	}
	removed(t)
}

// TestKilled leaves the removal to the cluster.
func TestKilled(t *testing.T) {
	signalWhen(t, command("kubectl", "lasthop", "watch", "node1"), `"kind":"Lost"`, syscall.SIGKILL)
	removed(t)
}

func TestScreen(t *testing.T) {
	status, shown := onTerminal(t, command("kubectl", "lasthop", "node1"), step{"Enter to start", "\r"}, step{"LIVE", "q"})
	if status != 0 || !strings.Contains(shown, "node1") {
		t.Errorf("status %d: %q", status, shown)
	}
	removed(t)
}

// TestComplete has kubectl itself complete command lines of the plugin.
func TestComplete(t *testing.T) {
	plugin, err := filepath.Abs(filepath.Join(root, "bin/kubectl-lasthop"))
	if err != nil {
		t.Fatal(err)
	}
	bin := t.TempDir()
	if err := os.Symlink(plugin, filepath.Join(bin, "kubectl_complete-lasthop")); err != nil {
		t.Fatal(err)
	}
	for typed, want := range map[string]string{
		"check ":                    "node1\nnode2\n:4\n",
		"check -n shop pod/":        "pod/web\n",
		"check node1 --fail-on ":    "critical\nwarning\ninfo\n:4\n",
		"explain -n shop --to svc/": "svc/web\n:4\n",
	} {
		cmd := command(append([]string{"kubectl", "__complete", "lasthop"}, strings.Split(typed, " ")...)...)
		cmd.Env = append(cmd.Env, "PATH="+bin+":"+os.Getenv("PATH"))
		if r := run(t, cmd); r.status != 0 || !strings.Contains(r.stdout, want) {
			t.Errorf("%q: status %d: %s%s", typed, r.status, r.stdout, r.stderr)
		}
	}
}

// TestFate tells what became of a debug pod that somebody else has ended.
func TestFate(t *testing.T) {
	r := actWhen(t, command("kubectl", "lasthop", "watch", "node1"), `"kind":"Lost"`, func() {
		run(t, command("kubectl", "delete", "pods", "-l", "app.kubernetes.io/managed-by=kubectl-lasthop", "--wait=false"))
	})
	if r.status != 130 || !strings.Contains(r.stderr, "deleted the debug pod") {
		t.Errorf("status %d: %s%s", r.status, r.stdout, r.stderr)
	}
	removed(t)
	if r := lasthop(t, "watch", "node1", "--deadline", "1s"); !strings.Contains(r.stderr, "deadline of 1s") {
		t.Errorf("status %d: %s", r.status, r.stderr)
	}
	removed(t)
}
