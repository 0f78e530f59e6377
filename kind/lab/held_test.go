package lab

import (
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"testing"

	"github.com/lasthop/lasthop/kind/scenario"
)

// TestHeld: a pod's process has its own resolv.conf, and goes with the fault or the lab, as do
// Cilium's tables.
func TestHeld(t *testing.T) {
	t.Parallel()
	l := up(t, parse(t, `
name: held
topology: {plugin: azure-cilium, nodes: [{name: one, pods: [a, b]}]}
traffic: [{from: one/a, to: one/b}]
faults:
  - {type: pod-resolver, pod: one/a, via: 10.0.0.10}
  - {type: pod-resolver, pod: one/b, via: 10.0.0.10}
  - {type: cilium-service, node: one, prefix: 10.0.0.10/32, via: one/b}
`), "held")
	var first, second process
	for file, p := range map[string]*process{heldPrefix + "one-a": &first, heldPrefix + "one-b": &second} {
		if err := readJSON(l.id, file, p); err != nil {
			t.Fatal(err)
		}
	}
	text, err := os.ReadFile("/proc/" + strconv.Itoa(first.PID) + "/root/etc/resolv.conf")
	if err != nil || !strings.Contains(string(text), "\nnameserver 10.0.0.10\n") {
		t.Errorf("%q, %v", text, err)
	}
	maps, err := filepath.Glob(filepath.Join(l.HostRoot("one"), ciliumMaps, "*"))
	if err != nil || len(maps) != 2 {
		t.Errorf("%q, %v", maps, err)
	}
	if err := l.Undo(t.Context(), scenario.Fault{Type: scenario.PodResolver, Node: "one", Pod: "one/a", Via: l.s.Faults[0].Via}); err != nil {
		t.Fatal(err)
	}
	if first.running() || !second.running() {
		t.Errorf("after one is undone they run: %v, %v", first.running(), second.running())
	}
	root := pathOf(l.id)
	if err := l.Down(t.Context()); err != nil {
		t.Fatal(err)
	}
	mounts, err := os.ReadFile("/proc/self/mounts")
	if err != nil || strings.Contains(string(mounts), root) || second.running() {
		t.Errorf("left: process %v, %v, in\n%s", second.running(), err, mounts)
	}
}
