package ladder

import (
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"github.com/lasthop/lasthop/probe/model"
)

// TestPlace looks for the node from containers that are not in its network namespace.
func TestPlace(t *testing.T) {
	m, all := up(t), custom(t)
	elsewhere := all.but("", func(p *profile) { p.hostNetwork = false })
	inPod := elsewhere.but("", func(p *profile) { p.hostPID = false })
	for _, tt := range []struct {
		name   string
		p      profile
		flags  []string
		status int
		says   string
	}{
		{"PID 1's namespace is the node's", elsewhere, nil, 1, ""},
		{"without rights over PID 1", elsewhere.but("", func(p *profile) { p.capabilities = ordinary }), nil, 3, "not in the node's network namespace, and cannot enter it"},
		{"in a pod", inPod, nil, 3, "this network namespace does not belong to a node but to a container: eth0 leads to another namespace"},
		{"in a pod that is the node, as the user says", inPod, []string{"--netns", "/proc/self/ns/net"}, 0, ""},
	} {
		t.Run(tt.name, func(t *testing.T) {
			t.Parallel()
			r := m.run(t, tt.p, append([]string{"check", "--for", "2s"}, tt.flags...)...)
			if r.status != tt.status || !strings.Contains(r.stderr, tt.says) {
				t.Errorf("status %d, want %d and %q:\n%s%s", r.status, tt.status, tt.says, r.stdout, r.stderr)
			}
		})
	}
}

// TestNodeInContainer tells a node that is itself a container, and has no pods yet,
// from a pod: its links are the same.
func TestNodeInContainer(t *testing.T) {
	node := fmt.Sprintf("lasthop-ladder%d-inner", os.Getpid())
	outer := fmt.Sprintf("lasthop-ladder%d-outer", os.Getpid())
	for _, name := range []string{outer, node} {
		ip(t, "netns", "add", name)
		t.Cleanup(func() { ip(t, "netns", "del", name) })
	}
	ip(t, "-n", outer, "link", "add", "port", "type", "veth", "peer", "name", "eth0", "netns", node)
	ip(t, "-n", outer, "link", "set", "port", "up")
	ip(t, "-n", node, "link", "set", "eth0", "up")

	m := &machine{binary: binary, net: "/run/netns/" + node}
	m.pid = fmt.Sprintf("/proc/%d/ns/pid_for_children", hold(t, "nsenter", "--net="+m.net, "unshare", "--pid", "--fork", "cat"))
	if r := m.run(t, custom(t), "doctor"); r.status != 3 || !strings.Contains(r.stderr, "no kubelet or container runtime") {
		t.Errorf("without a kubelet: %+v", r)
	}
	cat, err := exec.LookPath("cat")
	if err != nil {
		t.Fatal(err)
	}
	text, err := os.ReadFile(cat)
	if err != nil {
		t.Fatal(err)
	}
	kubelet := filepath.Join(t.TempDir(), "kubelet")
	if err := os.WriteFile(kubelet, text, 0o755); err != nil {
		t.Fatal(err)
	}
	hold(t, "nsenter", "--pid="+m.pid, kubelet)
	if r := m.run(t, custom(t), "doctor"); r.status != 0 {
		t.Errorf("with a kubelet: %+v", r)
	}
}

func ip(t *testing.T, args ...string) {
	t.Helper()
	if out, err := exec.Command("ip", args...).CombinedOutput(); err != nil {
		t.Fatalf("ip %v: %v: %s", args, err, out)
	}
}

// TestSeccomp wants doctor to tell a filter of system calls from a missing capability.
func TestSeccomp(t *testing.T) {
	m := up(t)
	strict := custom(t).but("", func(p *profile) { p.strict = true })
	r := m.run(t, strict, "doctor")
	if want := "a seccomp profile forbids bpf(2)"; r.status != 3 || !strings.Contains(r.stderr, want) || strings.Contains(r.stderr, "missing capabilities") {
		t.Errorf("want %q: %+v", want, r)
	}
}

// TestMemory has a container with less memory than watching packets takes, and with less
// than anything does: it does what fits and says what it left out, and is never killed.
func TestMemory(t *testing.T) {
	m := up(t)
	const few = "the BPF maps do not fit into the cgroup's memory; in a pod: resources.limits.memory of 64Mi"
	for i, tt := range []struct {
		mebibytes int64
		command   string
		status    []int
		says      string
	}{
		{64, "check --for 1s -o ndjson", []int{0, 1}, `"kind":"Drop"`},
		{64, "watch", []int{130}, `"kind":"Finding"`},
		{64, "record - --for 15s", []int{0}, "lasthop\n"},
		{32, "check --for 1s -o ndjson", []int{0, 1}, few},
		{32, "explain 10.244.0.2 --for 1s", []int{0, 1}, few},
		{32, "watch", []int{130}, few},
		{32, "record - --for 15s", []int{0}, few},
		{24, "check --for 1s", []int{3}, "the memory of this cgroup is limited to 24 MiB, and observing takes 32 or more"},
		{16, "record -", []int{3}, "the memory of this cgroup is limited to 16 MiB"},
	} {
		if testing.Short() && i%3 != 0 && tt.mebibytes >= 32 {
			continue
		}
		t.Run(fmt.Sprintf("%s with %d MiB", tt.command, tt.mebibytes), func(t *testing.T) {
			t.Parallel()
			limited := custom(t).but("", func(p *profile) { p.memory = tt.mebibytes << 20 })
			r := model.Either(tt.command == "watch", m.watch, m.run)(t, limited, strings.Fields(tt.command)...)
			if !slices.Contains(tt.status, r.status) || !strings.Contains(r.stdout+r.stderr, tt.says) {
				t.Errorf("want status %v and %q: status %d: %.500q %s", tt.status, tt.says, r.status, r.stdout, r.stderr)
			}
		})
	}
}
