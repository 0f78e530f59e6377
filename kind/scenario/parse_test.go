package scenario

import (
	"encoding/json"
	"errors"
	"fmt"
	"net/netip"
	"os"
	"path/filepath"
	"reflect"
	"strings"
	"testing"
	"time"

	"github.com/lasthop/lasthop/probe/model"
)

func mustParse(t *testing.T, text string) *Scenario {
	t.Helper()
	s, err := Parse("test.yaml", []byte(text))
	if err != nil {
		t.Fatal(err)
	}
	return s
}

// TestDefaults: a scenario of one line is a whole cluster.
func TestDefaults(t *testing.T) {
	s := mustParse(t, "topology: {nodes: [{name: a, pods: [x, y]}, {name: b, pods: 1}, {name: c, plugin: azure-bridge, pods: [z]}, {name: d, plugin: cilium, residue: azure-vnet, pods: [w], oldPods: [old, {name: run, running: true}]}]}")
	if s.Name != "test" || s.Title != "test" || s.Duration != 15*time.Minute || s.Timeout != 5*time.Second || s.Observe != "a" || s.Expect.Exit != 0 {
		t.Errorf("scenario %+v", s)
	}
	top := s.Topology
	if top.VNet.String() != "10.240.0.0/16" || top.Subnet != top.VNet || top.Gateway.String() != "10.240.0.1" || top.Edge.String() != "203.0.113.1" || len(top.Outside) != 1 || top.Outside[0].String() != "203.0.113.10" || top.FabricMAC.String() != "12:34:56:78:9a:bc" {
		t.Errorf("topology %+v", top)
	}
	type brief struct{ ip, cidr, nic, bridge string }
	want := map[string]brief{
		"a": {"10.240.0.4", "10.244.0.0/24", "eth0", "cbr0"},
		"b": {"10.240.0.5", "10.244.1.0/24", "eth0", "cbr0"},
		"c": {"10.240.0.6", "invalid Prefix", "eth0", "azure0"},
		"d": {"10.240.0.7", "invalid Prefix", "eth0", "azure0"},
	}
	for _, n := range top.Nodes {
		if got := (brief{n.IP.String(), n.PodCIDR.String(), n.NIC, n.Bridge}); got != want[n.Name] {
			t.Errorf("node %s: %+v", n.Name, got)
		}
		if n.IPForwarding != (n.Plugin == Kubenet) {
			t.Errorf("node %s: IP forwarding %v", n.Name, n.IPForwarding)
		}
	}
	for ref, ip := range map[string]string{"a/x": "10.244.0.2", "a/y": "10.244.0.3", "b/pod-1": "10.244.1.2", "c/z": "10.240.0.96", "d/w": "10.240.0.128", "d/old": "10.240.0.129", "d/run": "10.240.0.130"} {
		n, p := top.Pod(ref)
		if p == nil || p.IP.String() != ip || p.MAC.IsZero() || len(p.Link) == 0 || len(p.Link) > maxLink {
			t.Errorf("pod %s: %+v of %v", ref, p, n)
		}
	}
	if n, p := top.Pod("d/old"); !p.Gone || !p.Bridged || !strings.HasPrefix(p.Link, "azv") || n.Router.String() != "169.254.23.0" {
		t.Errorf("old pod %+v", p)
	}
	if len(s.Routes) != 2 || s.Routes[1] != (Route{netip.MustParsePrefix("10.244.1.0/24"), netip.MustParseAddr("10.240.0.5")}) {
		t.Errorf("routes %v", s.Routes)
	}
	kinds := map[string]bool{}
	for _, f := range s.Traffic {
		switch {
		case f.To.Place == OutsideName:
			kinds["outside "+string(f.Proto)] = true
		case strings.HasPrefix(f.To.Place, strings.Split(f.From.Place, "/")[0]):
			kinds["within "+string(f.Proto)] = true
		default:
			kinds["across "+string(f.Proto)] = true
		}
		if f.From.Place == "d/old" || f.To.Place == "d/old" {
			t.Errorf("traffic with a pod that is gone: %s", f)
		}
	}
	if len(kinds) != 9 {
		t.Errorf("traffic of kinds %v", kinds)
	}
}

func TestTraffic(t *testing.T) {
	s := mustParse(t, `
topology: {nodes: [{name: a, pods: [x, y]}, {name: b, pods: [z]}]}
traffic:
  - {from: [a/x, a/y], to: [a/x, b, 10.244.1.2, 10.244.1.1, 10.1.1.1], proto: [udp, icmp], port: 53, rate: 0.5}
  - {from: outside, to: a}
`)
	var got []string
	for _, f := range s.Traffic {
		got = append(got, f.String())
	}
	want := []string{
		"a/x > b udp/53", "a/x > b icmp", "a/x > b/z udp/53", "a/x > b/z icmp", "a/x > b udp/53", "a/x > b icmp", "a/x > 10.1.1.1 udp/53", "a/x > 10.1.1.1 icmp",
		"a/y > a/x udp/53", "a/y > a/x icmp", "a/y > b udp/53", "a/y > b icmp", "a/y > b/z udp/53", "a/y > b/z icmp", "a/y > b udp/53", "a/y > b icmp", "a/y > 10.1.1.1 udp/53", "a/y > 10.1.1.1 icmp",
		"outside > a tcp/8080",
	}
	if !reflect.DeepEqual(got, want) {
		t.Errorf("got %q", got)
	}
}

// TestWatch: several nodes are watched, and the first is the one observed alone.
func TestWatch(t *testing.T) {
	const nodes = "topology: {nodes: [{name: a, pods: [x, z]}, {name: b, pods: [y]}]}\ntraffic: [{from: a/x, to: b/y}]\n"
	s := mustParse(t, nodes+`
watch: [b, {node: a, clock: -3m, cut: true}]
churn: a/z
expect:
  findings: [{code: A, confidence: proven, nodes: [a]}]
  alone: {findings: [B]}
`)
	if want := []Watched{{Node: "b"}, {Node: "a", Clock: -3 * time.Minute, Cut: true}}; !s.Together() || s.Observe != "b" || !reflect.DeepEqual(s.Watch, want) || s.Churn[0] != "a/z" {
		t.Errorf("watch %+v, observe %s, churn %v", s.Watch, s.Observe, s.Churn)
	}
	found := []model.Finding{{Code: "A", Severity: model.Warning, Confidence: model.Proven, Nodes: []string{"b", "a"}}}
	if wrong := s.Expect.Mismatches(1, found); len(wrong) != 0 {
		t.Errorf("together: %q", wrong)
	}
	if wrong := s.Alone.Mismatches(1, found); len(wrong) != 2 {
		t.Errorf("alone: %q", wrong)
	}
	found[0].Confidence = model.Likely
	if wrong := s.Expect.Mismatches(1, found); len(wrong) != 1 {
		t.Errorf("less sure: %q", wrong)
	}
	found[0].Confidence, found[0].Nodes = model.Proven, []string{"b"}
	if wrong := s.Expect.Mismatches(1, found); len(wrong) != 1 {
		t.Errorf("another node: %q", wrong)
	}
	s = mustParse(t, nodes+"observe: b\nexpect: {findings: [A]}\n")
	if s.Together() || s.Watch[0].Node != "b" || !reflect.DeepEqual(s.Alone, s.Expect) {
		t.Errorf("one node: watch %v, alone %+v", s.Watch, s.Alone)
	}
}

func TestFaults(t *testing.T) {
	s := mustParse(t, `
topology: {nodes: [{name: a, pods: [x]}, {name: b, plugin: cilium, residue: azure-vnet, pods: [y]}, {name: c}]}
faults:
  - {type: wrong-udr, node: a, via: c}
  - {type: delete-udr, prefix: 10.244.1.0/24}
  - {type: stale-dnat, pod: b/y}
  - {type: stale-arpreply, pod: b/y, mac: "A2:96:88:20:CB:C6"}
  - {type: missing-masquerade, node: a, exclude: 0.0.0.0/0}
  - {type: forwarding-off, node: c}
expect: {findings: [MissingUDR, {code: WrongUDR, pods: a/x, peers: [10.244.1.0/24, b, outside]}], absent: StaleNeighbor}
`)
	var got []string
	for _, f := range s.Faults {
		got = append(got, f.String())
	}
	want := []string{
		"wrong-udr 10.244.0.0/24 via 10.240.0.6",
		"delete-udr 10.244.1.0/24",
		"stale-dnat b/y " + s.Faults[2].MAC.String(),
		"stale-arpreply b/y a2:96:88:20:cb:c6",
		"missing-masquerade a 0.0.0.0/0",
		"forwarding-off c",
	}
	if !reflect.DeepEqual(got, want) {
		t.Errorf("got %q", got)
	}
	if m := s.Faults[2].MAC; m.IsZero() || m.IsMulticast() {
		t.Errorf("dead MAC %s", m)
	}
	if fmt.Sprint(s.Expect.Findings[1].Peers) != "[10.244.1.0/24 10.240.0.5/32 203.0.113.10/32]" || s.Expect.Exit != 1 || s.Expect.Absent[0] != "StaleNeighbor" {
		t.Errorf("expect %+v", s.Expect)
	}
	if all := s.StruckRoutes(Fault{Type: DeleteUDR}); len(all) != 2 {
		t.Errorf("all routes are %v", all)
	}
}

// TestFaultDocs: errors say of each fault what it does.
func TestFaultDocs(t *testing.T) {
	for name, row := range faultRows {
		if row.doc == "" {
			t.Errorf("%s: no doc", name)
		}
	}
}

// TestErrors: each mistake is told with its place and what was wanted.
func TestErrors(t *testing.T) {
	const nodes = "topology: {nodes: [{name: a, pods: [x]}, {name: b, plugin: azure-bridge, pods: [y]}, {name: c, plugin: cilium, pods: [z]}]}\n"
	tests := []struct {
		text string
		want []string // "line:column: " and a part of the message
	}{
		{"", []string{"1:1: file is empty"}},
		{"# nothing\n", []string{"1:1: file is empty"}},
		{"a: [", []string{"1:1: not YAML"}},
		{"a: b\n\tc: d\n", []string{"2:1: not YAML"}},
		{"null", []string{"1:1: topology has no nodes"}},
		{"[]", []string{"1:1: scenario: want a mapping, got a list"}},
		{nodes + "---\n" + nodes, []string{"2:1: want one document"}},
		{"a: &x 1\nb: *x\n", []string{"1:4: anchors and aliases", "2:4: anchors"}},
		{"name: Bad Name\ncolor: red\ntopology: 5\n", []string{"1:7: name: want a name", `2:1: scenario: unknown field "color", want one of active`, "3:11: topology: want a mapping"}},
		{nodes + "name: a\nname: b\n", []string{`3:1: scenario: field "name" is already set in line 2`}},
		{nodes + "duration: 15\ntimeout: 1h\n", []string{"2:11: duration: want a duration", "3:10: timeout: want a duration from 100ms to 30s"}},
		{nodes + "duration: -1m\n", []string{"2:11: "}},
		{nodes + "seed: 10\n", []string{"2:7: seed: want a whole number from 0 to 9"}},
		{nodes + "traffic: [{from: a/x, to: b, proto: udp, keep: true}, {from: a/x, to: b, proto: icmp, slow: true}]\n", []string{"2:48: keep wants proto: tcp", "2:93: slow and ports are for tcp and udp"}},
		{nodes + "title: [a]\n", []string{"2:8: title: want a value, got a list"}},
		{nodes + "observe: d\n", []string{`2:10: observe: no node "d"`}},
		{nodes + "watch: [a, d, a, {clock: 1m}, {node: b, clock: 2h}]\n", []string{"2:48: clock: want a duration from -1h0m0s to 1h0m0s"}},
		{nodes + "watch: [a, d, a, {clock: 1m}]\n", []string{`2:12: watch: no node "d"`, `2:15: watch: node "a" is named twice`, "2:18: watch wants the names of nodes"}},
		{nodes + "watch: [a]\nobserve: b\nactive: true\n", []string{"2:8: watch wants two nodes or more", `2:8: watch: the observed node "b" is not among them`}},
		{nodes + "watch: [a, b]\nactive: true\n", []string{"3:9: active wants one node to watch"}},
		{nodes + "traffic: [{from: a/x, to: b}]\nchurn: [a/x, b/y, c/z, c/q]\n", []string{`3:9: churn: pod "a/x" has traffic`, `3:14: churn: pod "b/y" is not of node "a"`, `3:19: churn: pod "c/z" is not of node "b"`, `3:24: churn: no pod "c/q"`}},
		{nodes + "expect: {findings: [{code: A, nodes: [b], confidence: sure}], alone: {findings: [B]}}\n", []string{"2:55: confidence: want one of [proven likely possible]"}},
		{nodes + "expect: {findings: [{code: A, nodes: [b]}], alone: {findings: [B]}}\n", []string{`2:39: nodes: node "b" is not one of several`, "2:52: alone wants several nodes"}},
		{nodes + "faults: [{type: nsg-drop, node: a, port: 0}, {type: fabric-mtu, node: a, port: 5}]\n", []string{"2:42: port: want a whole number from 1 to 65535"}},
		{nodes + "faults: [{type: fabric-mtu, node: a, port: 5}]\n", []string{`2:10: fault fabric-mtu has no "port"`}},
		{"topology: {nodes: [{name: a}, {name: a}]}", []string{`1:38: node name "a" is taken`}},
		{"topology: {nodes: [{name: outside}, {name: fabric}, {pods: 1}]}", []string{"1:27: node name \"outside\" is reserved", "1:44: ", "1:53: node has no name"}},
		{"topology: {nodes: [{name: a, pods: [x, x]}]}", []string{`1:40: pod name "x" is taken`}},
		{"topology: {nodes: [{name: a, pods: 300}]}", []string{"1:36: pods: want a whole number from 0 to 250"}},
		{"topology: {nodes: [{name: a, pods: [{ip: 10.244.0.5}]}]}", []string{"1:37: pod has no name"}},
		{"topology: {nodes: [{name: a, ip: 10.240.0}]}", []string{"1:34: ip: want a unicast IPv4 address"}},
		{"topology: {nodes: [{name: a, ip: 'fd00::1'}]}", []string{"1:34: ip: want a unicast IPv4 address"}},
		{"topology: {nodes: [{name: a, ip: 10.240.0.3}]}", []string{"1:34: address 10.240.0.3 of node a is reserved"}},
		{"topology: {nodes: [{name: a, ip: 10.240.255.255}]}", []string{"1:34: address 10.240.255.255 of node a is reserved"}},
		{"topology: {nodes: [{name: a, ip: 10.1.0.9}]}", []string{"1:34: address 10.1.0.9 of node a is not in 10.240.0.0/16"}},
		{"topology: {nodes: [{name: a, ip: 10.240.0.9}, {name: b, ip: 10.240.0.9}]}", []string{"1:61: address 10.240.0.9 of node b is that of node a"}},
		{"topology: {nodes: [{name: a, pods: [{name: x, ip: 10.244.1.2}]}]}", []string{"1:51: address 10.244.1.2 of pod a/x is not in 10.244.0.0/24"}},
		{"topology: {nodes: [{name: a, pods: [{name: x, ip: 10.244.0.1}]}]}", []string{"1:51: address 10.244.0.1 of pod a/x is that of the pod gateway of a"}},
		{"topology: {nodes: [{name: a, pods: [{name: x, ip: 10.244.0.255}]}]}", []string{"1:51: address 10.244.0.255 of pod a/x is reserved"}},
		{"topology: {nodes: [{name: a, podCIDR: 10.240.4.0/24}]}", []string{"1:39: podCIDR 10.240.4.0/24 overlaps 10.240.0.0/16 (vnet)"}},
		{"topology: {nodes: [{name: a, podCIDR: 10.9.0.0/16}, {name: b, podCIDR: 10.9.4.0/24}]}", []string{"1:72: podCIDR 10.9.4.0/24 overlaps 10.9.0.0/16 (podCIDR of a)"}},
		{"topology: {podCIDR: 10.244.0.0/24, nodes: [{name: a}, {name: b}]}", []string{`1:21: no free podCIDR in 10.244.0.0/24 for node "b"`}},
		{"topology: {nodes: [{name: a, podCIDR: 10.9.0.1/16}]}", []string{"1:39: podCIDR: prefix 10.9.0.1/16 has host bits set"}},
		{"topology: {nodes: [{name: a, podCIDR: 10.9.0.0/29, pods: 6}]}", []string{"no free address in 10.9.0.0/29"}},
		{"topology: {vnet: 10.0.0.0/4, nodes: [{name: a}]}", []string{"1:18: vnet: "}},
		{"topology: {vnet: 10.1.0.0/16, subnet: 10.2.0.0/24, nodes: [{name: a}]}", []string{"1:39: subnet 10.2.0.0/24 is not within vnet"}},
		{"topology: {gateway: 10.241.0.1, nodes: [{name: a}]}", []string{"1:21: gateway 10.241.0.1 is not a host"}},
		{"topology: {outside: [10.240.0.9, 203.0.113.1], nodes: [{name: a}]}", []string{"1:22: outside address 10.240.0.9 is within vnet", "1:34: address 203.0.113.1 of outside is that of edge"}},
		{"topology: {nodes: [{name: a, nicMAC: 01:00:5e:00:00:01}, {name: b, nicMAC: 'zz'}]}", []string{"1:38: nicMAC: want a unicast MAC", "1:76: nicMAC: "}},
		{"topology: {nodes: [{name: a, nicMAC: '12:34:56:78:9a:bc'}]}", []string{"1:38: MAC 12:34:56:78:9a:bc of node a is that of the fabric"}},
		{"topology: {nodes: [{name: a, nic: an-interface-too-long, bridge: lo}]}", []string{"1:35: nic: want a link name", "1:66: bridge: "}},
		{"topology: {nodes: [{name: a, nic: cbr0}]}", []string{`link name "cbr0" of the bridge is that of the NIC`}},
		{"topology: {nodes: [{name: a, pods: [{name: x, link: eth0}]}]}", []string{`1:53: link name "eth0" of pod x is that of the NIC`}},
		{"topology: {nodes: [{name: a, plugin: weave, ipForwarding: maybe}]}", []string{"1:38: plugin: want one of [kubenet azure-bridge azure-tunnel azure-transparent azure-overlay azure-podsubnet azure-cilium cilium calico kindnet aws-vpc bridge ptp flannel]", "1:59: ipForwarding: want true or false"}},
		{"topology: {nodes: [{name: a, plugin: azure-podsubnet}]}", []string{"which wants the topology's podSubnet"}},
		{"topology: {podSubnet: 10.240.8.0/24, nodes: [{name: a}]}", []string{"1:23: podSubnet 10.240.8.0/24 is not a part of vnet"}},
		{"topology: {nodes: [{name: a, plugin: kindnet, dockershim: true}]}", []string{"dockershim is for kubenet"}},
		{"topology: {nodes: [{name: a, dockershim: true, nonMasquerade: [10.0.0.0/8, 172.16.0.0/12]}]}", []string{"nonMasquerade wants one range"}},
		{"topology: {nodes: [{name: a, plugin: calico}]}\nfaults: [{type: missing-masquerade, node: a}]", []string{"is calico, whose masquerading"}},
		{"topology: {nodes: [{name: a, plugin: azure-bridge, podCIDR: 10.9.0.0/24, router: 10.240.0.9, residue: azure-vnet}]}", []string{"1:61: podCIDR is for kubenet", "1:82: router is for cilium", "1:103: residue is for cilium"}},
		{"topology: {nodes: [{name: a, datapath: tc}]}", []string{"1:40: datapath is for cilium"}},
		{"topology: {nodes: [{name: a, plugin: cilium, datapath: ebpf}]}", []string{"ebpf"}},
		{"topology: {nodes: [{name: a, plugin: cilium, policy: calico}, {name: b, policy: calico}, {name: c, plugin: calico, policy: azure-npm}]}",
			[]string{"1:54: policy is for", "1:81: policy is for", "1:124: policy is for"}},
		{"topology: {nodes: [{name: a, plugin: azure-overlay, policy: azure-npm, pods: [x]}]}\nfaults: [{type: policy-unprogrammed, pod: a/x}]", []string{"has no Calico"}},
		{"topology: {nodes: [{name: a, pods: [x]}]}\nfaults: [{type: policy-deny, pod: a/x}]", []string{"has no program for network policies"}},
		{"topology: {nodes: [{name: a, plugin: cilium, bridge: b, oldPods: [x]}]}", []string{"1:54: bridge is for", "1:67: oldPods want residue"}},
		{"topology: {nodes: [{name: a, plugin: cilium, router: 8.8.8.8}]}", []string{"1:54: router 8.8.8.8 is neither"}},
		{nodes + "routes: [{prefix: 10.244.0.0/24}, {prefix: 10.240.0.0/24, via: a}, {prefix: 10.9.0.0/24, via: d}, {prefix: 10.8.0.0/24, via: a}, {prefix: 10.8.0.0/24, via: b}]", []string{"2:10: route wants prefix and via", "2:44: route 10.240.0.0/24 overlaps", "2:95: resolve \"d\"", "2:139: prefix 10.8.0.0/24 has a route"}},
		{nodes + "traffic: [{from: a/x}, {to: a}, {from: 1.2.3.4, to: a}, {from: a/x, to: a/q}, {from: a, to: a}]", []string{"2:11: traffic has no \"to\"", "2:24: traffic has no \"from\"", "2:40: from: 1.2.3.4 is nobody's", "2:73: resolve \"a/q\": no such pod", "2:79: traffic goes from a place to itself"}},
		{nodes + "traffic: [{from: a/x, to: b, proto: [sctp, tcp, tcp], port: 0, rate: 1000}, {from: a, to: b, proto: icmp, port: 5, rate: .nan}]", []string{"2:38: proto: want one of", "2:61: port: want a whole number from 1 to 65535", "2:70: rate: want requests", "2:122: rate: "}},
		{nodes + "traffic: [{from: a/x, to: b, proto: [tcp, tcp]}, {from: a, to: b, proto: icmp, port: 5}]", []string{"2:43: proto tcp is named twice", "2:86: icmp has no port"}},
		{nodes + "traffic: [{from: a/x, to: b, oneWay: true}, {from: a, to: b, proto: [udp, tcp], oneWay: true}]", []string{"2:38: oneWay wants proto: udp", "2:89: oneWay wants proto: udp"}},
		{nodes + "faults: [{type: port-blocked, pod: c/z}, {type: bridge-without-address, node: b}, {type: snat-to-foreign-address, node: a, via: a/x}]", []string{"2:36: pod \"c/z\" is on no bridge", "2:79: the pods' gateway is not", "2:129: via: 10.244.0.2 is an address of node \"a\""}},
		{nodes + "faults: [{node: a}, {type: reboot}, {type: delete-udr, pod: a/x}, {type: wrong-udr, node: a}, {type: wrong-udr, via: b}]", []string{"2:28: type: want one of"}},
		{nodes + "faults: [{node: a}, {type: delete-udr, pod: a/x}, {type: wrong-udr, node: a}, {type: wrong-udr, via: b}, {type: delete-udr, node: b}, {type: delete-udr, prefix: 10.9.0.0/24}]", []string{"2:10: fault has no type", "2:21: fault delete-udr has no \"pod\"", "2:51: fault wrong-udr wants \"via\"", "2:79: fault wrong-udr wants prefix or node", "2:131: node \"b\" has no podCIDR", "2:135: no route for 10.9.0.0/24"}},
		{nodes + "faults: [{type: stale-dnat, pod: a/x}, {type: stale-dnat, pod: c/z}, {type: delete-pod-route, pod: b/y}, {type: stale-arpreply, pod: q/q}, {type: forwarding-off, node: q}, {type: nic-forwarding-off, node: b}]", []string{"2:34: the NIC of \"a\" is on no bridge", "2:64: the NIC of \"c\"", "2:100: pod \"b/y\" is on a bridge", "2:134: no pod \"q/q\"", "2:169: no node \"q\"", "2:206: the NIC of \"b\" does not forward"}},
		{nodes + "faults: [{type: delete-udr}, {type: wrong-udr, node: a, via: b}, {type: drop-forward, pod: a/x}, {type: drop-forward, pod: a/x}]", []string{"2:30: route 10.244.0.0/24 is struck by delete-udr already", "2:98: fault \"drop-forward a/x\" is there already"}},
		{nodes + "faults: [{type: conntrack-race, node: a, prefix: 10.0.0.10/32, via: a/x}, {type: conntrack-race, node: a, prefix: 10.0.0.8/29, via: a/x}, {type: conntrack-race, node: a, prefix: 10.0.0.10/31, via: 10.9.9.9}]", []string{"2:50: fault conntrack-race wants a prefix of 2 to 4 addresses, got 10.0.0.10/32", "2:115: fault conntrack-race wants a prefix", "2:198: fault conntrack-race wants a pod for via"}},
		{nodes + "faults: [{type: stale-dnat, pod: b/y, mac: '12:34:56:78:9a:bc'}]", []string{"2:10: MAC 12:34:56:78:9a:bc is not dead"}},
		{nodes + "expect: {exit: 300, findings: [{pods: a/x}, bad], absent: [also bad]}", []string{"2:16: exit: ", "2:45: finding: want a finding's code", "2:60: absent: "}},
		{nodes + "expect: {findings: [{pods: a/x}, {code: A, pods: [a/q], peers: [zz]}, B], absent: [B]}", []string{"2:21: finding has no code", "2:51: resolve \"a/q\"", "2:65: resolve \"zz\"", "2:84: B is both expected and absent"}},
		{"topology: {nodes: [{name: a, plugin: cilium, residue: azure-vnet, pods: [{name: x, ip: 10.240.0.50}], oldPods: [{name: o, ip: 10.240.0.50}]}]}", []string{"1:127: address 10.240.0.50 of pod a/o is that of pod a/x"}},
		{"topology: {nodes: [{name: a, plugin: cilium, residue: azure-vnet, oldPods: [o]}]}\ntraffic: [{from: a/o, to: a}]\nfaults: [{type: stale-dnat, pod: a/o}]", []string{"2:18: from: 10.240.0.32 is nobody's", "3:34: pod \"a/o\" is gone"}},
	}
	for _, test := range tests {
		_, err := Parse("f.yaml", []byte(test.text))
		var got Errors
		if !errors.As(err, &got) {
			t.Errorf("%s\ngot %v", test.text, err)
			continue
		}
		if len(got) != len(test.want) {
			t.Errorf("%s\n%d errors, want %d:\n%v", test.text, len(got), len(test.want), err)
			continue
		}
		for i, want := range test.want {
			if !strings.HasPrefix(got[i].Error(), "f.yaml:") || !strings.Contains(got[i].Error(), want) {
				t.Errorf("%s\ngot  %v\nwant %s", test.text, got[i], want)
			}
		}
	}
}

// TestBounds: no small file makes a huge cluster.
func TestBounds(t *testing.T) {
	var nodes, many strings.Builder
	for i := range maxNodes {
		fmt.Fprintf(&nodes, "{name: n%d, pods: 250},", i)
	}
	for range 1000 {
		many.WriteString("{from: n0, to: n1},")
	}
	cluster := "topology: {nodes: [" + nodes.String() + "]}\n"
	s := mustParse(t, cluster)
	if n := len(s.Traffic); n == 0 || n > maxFlows {
		t.Errorf("%d flows", n)
	}
	for _, text := range []string{
		strings.Replace(cluster, "]", "{name: more}]", 1),
		cluster + "traffic: [" + strings.Repeat(many.String(), 20) + "]",
		cluster + "traffic: [" + strings.Repeat("{from: n0, to: n1, rate: 100},", 51) + "]",
		cluster + "faults: [" + strings.Repeat("{type: forwarding-off, node: n0},", maxFaults+1) + "]",
		cluster + "routes: [" + strings.Repeat("{prefix: 10.9.0.0/24, via: n0},", maxRoutes+1) + "]",
	} {
		var got Errors
		if _, err := Parse("f", []byte(text)); !errors.As(err, &got) || len(got) != 1 || !strings.Contains(err.Error(), "more than ") {
			t.Errorf("%.200v", err)
		}
	}
}

func TestErrorsAreBounded(t *testing.T) {
	_, err := Parse("f", []byte(strings.Repeat("- x\n", 10)+"- &a b\n"+strings.Repeat("- *a\n", 5*maxErrors)))
	var got Errors
	if !errors.As(err, &got) || len(got) != maxErrors {
		t.Errorf("%d errors", len(got))
	}
	if _, err := Parse("f", make([]byte, MaxSize+1)); err == nil {
		t.Error("read a huge file")
	}
}

// TestJSON: a scenario comes back from JSON as it was, for that is how a lab
// remembers it.
func TestJSON(t *testing.T) {
	files, err := filepath.Glob("../scenarios/*.yaml")
	if err != nil || len(files) == 0 {
		t.Fatal(files, err)
	}
	for _, file := range files {
		data, err := os.ReadFile(file)
		if err != nil {
			t.Fatal(err)
		}
		s, err := Parse(file, data)
		if err != nil {
			t.Fatal(err)
		}
		back(t, s)
	}
}

func back(t *testing.T, s *Scenario) {
	t.Helper()
	data, err := json.Marshal(s)
	if err != nil {
		t.Fatal(err)
	}
	var got Scenario
	if err := json.Unmarshal(data, &got); err != nil {
		t.Fatal(err)
	}
	again, err := json.Marshal(&got)
	if err != nil || string(again) != string(data) {
		t.Errorf("%v\n%s\n%s", err, data, again)
	}
}

func TestPluginMismatches(t *testing.T) {
	for _, tt := range []struct {
		want, got string
		wrong     int
	}{{"", "kindnet", 0}, {"kindnet", "kindnet", 0}, {"kindnet", "unknown", 1}} {
		if got := (Expect{Plugin: tt.want}).PluginMismatches(tt.got, nil); len(got) != tt.wrong {
			t.Errorf("want %q, recognised %q: %q", tt.want, tt.got, got)
		}
	}
	if got := (Expect{}).Mismatches(0, []model.Finding{{Code: "X"}}); len(got) != 1 {
		t.Errorf("a finding where nothing may be found: %q", got)
	}
}

func TestLayerMismatches(t *testing.T) {
	for _, tt := range []struct {
		want, got string
		wrong     int
	}{{"", "calico", 0}, {"none", "", 0}, {"calico", "calico", 0}, {"none", "calico", 1}, {"calico", "", 1}} {
		if got := (Expect{Policy: tt.want}).LayerMismatches(tt.got, "azure-vnet", nil); len(got) != tt.wrong {
			t.Errorf("want policy %q, recognised %q: %q", tt.want, tt.got, got)
		}
		if got := (Expect{Residue: tt.want}).LayerMismatches("calico", tt.got, nil); len(got) != tt.wrong {
			t.Errorf("want residue %q, recognised %q: %q", tt.want, tt.got, got)
		}
	}
}

func TestExpectedEvidence(t *testing.T) {
	e := Expect{Exit: 1, Findings: []Finding{{Code: "X", Evidence: []string{"program guard, id "}}}}
	found := []model.Finding{{Code: "X", Evidence: []model.Evidence{{Text: "one thing"}, {Text: "tc program guard, id 7"}}}}
	if got := e.Mismatches(1, found); got != nil {
		t.Errorf("got %q", got)
	}
	found[0].Evidence = found[0].Evidence[:1]
	if got := e.Mismatches(1, found); len(got) != 1 {
		t.Errorf("without that evidence: %q", got)
	}
}

func TestMismatches(t *testing.T) {
	a, b := netip.MustParseAddr("10.0.0.1"), netip.MustParseAddr("10.0.0.2")
	peer := netip.MustParsePrefix("10.1.0.0/24")
	e := Expect{Exit: 1, Findings: []Finding{{Code: "X", Pods: []netip.Addr{a, b}, Peers: []netip.Prefix{peer}}}, Absent: []model.Code{"Y"}}
	one := []model.Finding{{Code: "X", Pods: []netip.Addr{a, b}, Peers: []netip.Prefix{peer}}, {Code: "Z"}}
	two := []model.Finding{{Code: "X", Pods: []netip.Addr{b}}, {Code: "X", Pods: []netip.Addr{a}, Peers: []netip.Prefix{peer}}}
	for _, found := range [][]model.Finding{one, two} {
		if got := e.Mismatches(1, found); got != nil {
			t.Errorf("got %q", got)
		}
	}
	got := e.Mismatches(0, []model.Finding{{Code: "X", Pods: []netip.Addr{a}}, {Code: "Y"}})
	want := []string{"exit code 0, want 1", "no finding X with pods [10.0.0.1 10.0.0.2] with peers [10.1.0.0/24]", "finding Y of [] must be absent"}
	if !reflect.DeepEqual(got, want) {
		t.Errorf("got %q", got)
	}
}

// FuzzParse: no input is taken apart from a scenario that holds together.
func FuzzParse(f *testing.F) {
	files, err := filepath.Glob("../scenarios/*.yaml")
	if err != nil {
		f.Fatal(err)
	}
	for _, file := range files {
		data, err := os.ReadFile(file)
		if err != nil {
			f.Fatal(err)
		}
		f.Add(data)
	}
	f.Add([]byte("topology: {nodes: [{name: a, plugin: cilium, residue: azure-vnet, pods: 2, oldPods: [x]}]}\nfaults: [{type: stale-dnat, pod: a/pod-1}]"))
	f.Add([]byte("- &a [*a]"))
	f.Fuzz(func(t *testing.T, data []byte) {
		s, err := Parse("name.yaml", data)
		var all Errors
		switch {
		case err == nil:
			holds(t, s)
			back(t, s)
		case !errors.As(err, &all) || len(all) == 0:
			t.Errorf("error without a place: %v", err)
		}
		for _, e := range all {
			if e.Line < 1 || e.Column < 1 || e.Msg == "" {
				t.Errorf("error without a place: %v", e)
			}
		}
	})
}

// holds checks what the lab relies on.
func holds(t *testing.T, s *Scenario) {
	t.Helper()
	addrs, macs := map[netip.Addr]bool{}, map[model.MAC]bool{}
	once := func(a netip.Addr, m model.MAC) {
		if a.Is6() != s.Topology.OnlyIPv6() || addrs[a] || m.IsZero() || macs[m] {
			t.Errorf("address %s or MAC %s is not one's own", a, m)
		}
		addrs[a], macs[m] = true, true
	}
	if CheckName(s.Name) != nil || s.Topology.Node(s.Observe) == nil {
		t.Errorf("name %q, observe %q", s.Name, s.Observe)
	}
	once(s.Topology.Gateway, s.Topology.FabricMAC)
	if six := s.Topology.V6(); six != nil {
		taken := map[netip.Addr]bool{six.Edge: true}
		for _, n := range six.Nodes {
			for _, a := range append(n.Addresses(), n.PodGateway()) {
				if a.IsValid() && (!a.Is6() || taken[a]) {
					t.Errorf("address %s is not one's own", a)
				}
				taken[a] = true
			}
		}
	}
	for i := range s.Topology.Nodes {
		n := &s.Topology.Nodes[i]
		once(n.IP, n.MAC)
		links := map[string]bool{n.NIC: true, n.Bridge: true}
		for _, p := range append(append([]Pod{}, n.Pods...), n.OldPods...) {
			once(p.IP, p.MAC)
			if links[p.Link] || len(p.Link) > maxLink || p.Link == "" {
				t.Errorf("link %q", p.Link)
			}
			links[p.Link] = true
		}
	}
	for _, f := range s.Traffic {
		if six := f.To.Addr.Is6(); f.From.Place == "" || f.From.Place == f.To.Place || six != f.From.Addr.Is6() || six && !s.Topology.HasIPv6() || f.Rate < minRate || f.Rate > maxRate || (f.Proto == ICMP) != (f.Port == 0) {
			t.Errorf("flow %+v", f)
		}
	}
}
