package scenario

import (
	"net/netip"
	"strings"
	"testing"

	"github.com/lasthop/lasthop/probe/model"
)

// onTheirs is a cluster as kind made it, of a scenario of two nodes.
var onTheirs = &Cluster{
	Subnet: netip.MustParsePrefix("172.18.0.0/16"), Gateway: netip.MustParseAddr("172.18.0.1"), PodCIDR: netip.MustParsePrefix("10.244.0.0/16"),
	Nodes: map[string]ClusterNode{
		"a": {"eth0", model.MAC{2, 0x42, 0xac, 0x12, 0, 3}, netip.MustParseAddr("172.18.0.3"), netip.MustParsePrefix("10.244.1.0/24")},
		"b": {"eth0", model.MAC{2, 0x42, 0xac, 0x12, 0, 2}, netip.MustParseAddr("172.18.0.2"), netip.MustParsePrefix("10.244.0.0/24")},
	},
	Pods: map[string]ClusterPod{
		"a/web": {"veth1", model.MAC{2, 0, 0, 0, 0, 1}, netip.MustParseAddr("10.244.1.7")},
		"b/db":  {"veth2", model.MAC{2, 0, 0, 0, 0, 2}, netip.MustParseAddr("10.244.0.9")},
	},
}

// TestParseOnKind: names, addresses and ranges of a file mean those of the cluster, by
// whichever of them the file refers to somebody.
func TestParseOnKind(t *testing.T) {
	const file = `
name: test
topology:
  nodes: [{name: a, pods: [web]}, {name: b, pods: [db]}]
traffic:
  - {from: a/web, to: [b/db, 10.244.1.1, 10.240.0.5, outside, 192.0.2.1, 10.244.1.99, 10.240.0.77]}
faults:
  - {type: missing-masquerade, node: a, exclude: 10.244.1.0/24}
  - {type: drop-forward, pod: a/web, via: b/db}
expect:
  findings: [{code: PolicyDrop, pods: [a/web], peers: [10.244.1.0/24, b/db], evidence: [from 10.244.1.2 to 10.240.0.4]}]
`
	s, err := ParseOnKind("test.yaml", []byte(file), onTheirs)
	if err != nil {
		t.Fatal(err)
	}
	var to []string
	for _, f := range s.Traffic {
		to = append(to, f.To.Addr.String())
	}
	// 10.244.1.0/24 was the range of b, and 10.240.0.5 b.
	if got := strings.Join(to, " "); got != "10.244.0.9 10.244.0.1 172.18.0.2 203.0.113.10 192.0.2.1 10.244.0.99 172.18.0.77" {
		t.Errorf("traffic goes to %s", got)
	}
	n, p := s.Topology.Pod("a/web")
	if n.Plugin != Kindnet || n.IP != onTheirs.Nodes["a"].IP || n.PodGateway().String() != "10.244.1.1" || p.Link != "veth1" || p.IP.String() != "10.244.1.7" || !s.Topology.Switched {
		t.Errorf("a is %+v", n)
	}
	if s.Faults[0].Prefix.String() != "10.244.0.0/24" || s.Faults[1].Via.String() != "10.244.0.9" {
		t.Errorf("faults are %v", s.Faults)
	}
	want := s.Expect.Findings[0]
	if want.Pods[0] != p.IP || want.Peers[0].String() != "10.244.0.0/24" || want.Peers[1].String() != "10.244.0.9/32" || want.Evidence[0] != "from 10.244.0.9 to 172.18.0.3" {
		t.Errorf("expected is %v", want)
	}
}

// TestRefusedOnKind: what a cluster of kind does not have, or mends, is refused with the
// reason, at its place.
func TestRefusedOnKind(t *testing.T) {
	const nodes = "name: test\ntopology: {nodes: [{name: a, pods: [web]}, {name: b, pods: [db]}]}\n"
	for _, test := range []struct{ file, want string }{
		{"name: test\ntopology: {outside: [8.8.8.8], nodes: [{name: a, pods: [web]}]}\n", "not on kind: this machine gets a route to 8.8.8.8, which somebody may have"},
		{nodes + "faults: [{type: delete-udr, node: a}]", "test.yaml:3:10: not on kind: fault delete-udr: the fault is one of a cloud's network"},
		{nodes + "faults: [{type: missing-masquerade, node: a}]", "kindnetd recreates the rules within a minute; with exclude it stays"},
		{nodes + "faults: [{type: blackhole-route, node: a, prefix: 10.244.1.0/24}]", "kindnetd removes other routes to a node's range"},
		{nodes + "faults: [{type: blackhole-route, node: a, prefix: 10.244.1.128/25}]", "prefix 10.244.1.128/25 is a part of the file's network"},
		{nodes + "faults: [{type: dead-backend, node: a, prefix: 10.96.0.10/32, via: 10.244.1.99}]", "10.96.0.10/32 is an address of the cluster's own services"},
		{nodes + "faults: [{type: bridge-drop, pod: a/web}]", `pod "a/web" is on no bridge`},
		{nodes + "traffic: [{from: a, to: b}]\nchurn: [a/web]", "pods stay as they are"},
		{nodes + "files: {routes: [tables]}", "no cloud to ask for its routes"},
		{nodes + "expect: {plugin: kubenet}", "the verdict is about kubenet, and the plugin there is kindnet"},
		{"name: test\ntopology: {stack: dual, nodes: [{name: a}]}", "labs on kind have IPv4 alone"},
		{"name: test\ntopology: {stack: ipv6, nodes: [{name: a, pods: [web]}]}", "labs on kind have IPv4 alone"},
		{"name: test\ntopology: {nodes: [{name: a, plugin: cilium, residue: azure-vnet}]}", "a node is there as kind makes it"},
	} {
		if _, err := ParseOnKind("test.yaml", []byte(test.file), nil); err == nil || !strings.Contains(err.Error(), test.want) {
			t.Errorf("%s\nwant %q, got %v", test.file, test.want, err)
		}
	}
}

// TestParseOnKindMistake: what is wrong anywhere is said as such.
func TestParseOnKindMistake(t *testing.T) {
	_, errKind := ParseOnKind("test.yaml", []byte("topology: 1"), nil)
	_, err := Parse("test.yaml", []byte("topology: 1"))
	if err == nil || errKind == nil || err.Error() != errKind.Error() {
		t.Errorf("got %v, want %v", errKind, err)
	}
}
