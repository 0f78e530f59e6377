package scenario

import (
	"encoding/json"
	"net/netip"
	"strings"
	"testing"

	"github.com/lasthop/lasthop/probe/model"
)

const dualText = `
topology:
  stack: dual
  podCIDR6: fd00:1::/64
  plugin: kubenet
  nodes: [{name: a, pods: [x, y]}, {name: b, pods: [z]}]
`

func TestDual(t *testing.T) {
	_, err := Parse("dual.yaml", []byte(dualText+`
traffic: [{from: a/x, to: [b/z, outside, b, 10.9.9.9, "fd99::1"]}]
faults:
  - {type: delete-udr, node: b, family: 6}
  - {type: delete-pod-route, pod: a/x, family: 4}
expect:
  findings: [{code: X, pods: [a/x], peers: [outside]}, {code: Y, family: 6, pods: [a/x], peers: [b]}]
`))
	if err == nil || !strings.Contains(err.Error(), "on a bridge") {
		t.Fatalf("a pod on a bridge has no route of its own: %v", err)
	}
	s, err := Parse("dual.yaml", []byte(dualText+`
traffic: [{from: a/x, to: [b/z, outside, b, 10.9.9.9, "fd99::1"]}]
faults: [{type: delete-udr, node: b, family: 6}]
expect:
  findings: [{code: X, pods: [a/x], peers: [outside]}, {code: Y, family: 6, pods: [a/x], peers: [b]}]
`))
	if err != nil {
		t.Fatal(err)
	}
	six := s.Topology.V6()
	for got, want := range map[string]string{
		six.Nodes[0].IP.String():                           "fd10:240::4",
		six.Nodes[1].PodCIDR.String():                      "fd00:1:0:0:1::/80",
		six.Nodes[1].Pods[0].IP.String():                   "fd00:1::1:0:0:2",
		s.Topology.Place(netip.MustParseAddr("fd00:1::3")): "a/y",
		s.Faults[0].String():                               "delete-udr fd00:1:0:0:1::/80",
	} {
		if got != want {
			t.Errorf("got %s, want %s", got, want)
		}
	}
	var flows []string
	for _, f := range s.Traffic {
		flows = append(flows, f.String())
	}
	if got := strings.Join(flows, ", "); got != "a/x > b/z tcp/8080, a/x > outside tcp/8080, a/x > b tcp/8080, a/x > 10.9.9.9 tcp/8080, "+
		"a/x > b/z tcp6/8080, a/x > outside tcp6/8080, a/x > b tcp6/8080, a/x > fd99::1 tcp6/8080" {
		t.Errorf("traffic %s", got)
	}
	if len(s.Routes) != 4 || len(s.StruckRoutes(s.Faults[0])) != 1 {
		t.Errorf("routes %v, struck %v", s.Routes, s.StruckRoutes(s.Faults[0]))
	}
	text, err := json.Marshal(s)
	var again Scenario
	if err != nil || json.Unmarshal(text, &again) != nil || again.Topology.V6().Nodes[0].IP != six.Nodes[0].IP {
		t.Errorf("%s, %v", text, err)
	}
}

// TestEitherFamily: a finding may name a pod by either of its addresses, unless
// a family is wanted.
func TestEitherFamily(t *testing.T) {
	s, err := Parse("dual.yaml", []byte(dualText+"expect: {findings: [{code: X, pods: [a/x]}]}"))
	if err != nil {
		t.Fatal(err)
	}
	only, err := Parse("dual.yaml", []byte(dualText+"expect: {findings: [{code: X, family: 6, pods: [a/x]}]}"))
	if err != nil {
		t.Fatal(err)
	}
	four, six := netip.MustParseAddr("10.244.0.2"), netip.MustParseAddr("fd00:1::2")
	for _, tt := range []struct {
		e    Expect
		pods []netip.Addr
		ok   bool
	}{
		{s.Expect, []netip.Addr{four}, true},
		{s.Expect, []netip.Addr{six}, true},
		{s.Expect, []netip.Addr{four, six}, true},
		{s.Expect, []netip.Addr{six.Next()}, false},
		{only.Expect, []netip.Addr{six}, true},
		{only.Expect, []netip.Addr{four}, false},
		{only.Expect, []netip.Addr{four, six}, false},
	} {
		if got := tt.e.Mismatches(1, []model.Finding{{Code: "X", Pods: tt.pods}}); (got == nil) != tt.ok {
			t.Errorf("%v: %q", tt.pods, got)
		}
	}
}

func TestDualErrors(t *testing.T) {
	for text, want := range map[string]string{
		"topology: {stack: ipv6, nodes: [{name: a, plugin: azure-bridge}]}":                                                                          "has no IPv6 here",
		"topology: {stack: ipv6, nodes: [{name: a}]}\nfaults: [{type: forwarding-off, node: a, family: 4}]":                                          "family 4 wants stack",
		"topology: {stack: ipv6, nodes: [{name: a}]}\nfaults: [{type: small-mtu, node: a}]":                                                          "is of IPv4 alone",
		"topology: {stack: ipv6, nodes: [{name: a, plugin: cilium, datapath: redirect}]}":                                                            "wants IPv4",
		"topology: {stack: dual, nodes: [{name: a, plugin: cilium, residue: azure-vnet}]}":                                                           "residue azure-vnet has no IPv6",
		"topology: {podCIDR6: 'fd00::/56', nodes: [{name: a}]}":                                                                                      "wants stack: dual",
		"topology: {stack: dual, nodes: [{name: a, plugin: azure-bridge}]}":                                                                          "has no IPv6 here",
		"topology: {stack: dual, vnet6: 'fd00::/48', podCIDR6: 'fd00::/56', nodes: [{name: a}]}":                                                     "overlaps vnet6",
		"topology: {stack: dual, podCIDR6: '10.0.0.0/8', nodes: [{name: a}]}":                                                                        "want a unicast IPv6 range",
		"topology: {nodes: [{name: a}]}\nfaults: [{type: forwarding-off, node: a, family: 6}]":                                                       "family wants stack",
		"topology: {stack: dual, nodes: [{name: a}]}\nfaults: [{type: small-mtu, node: a, family: 6}]":                                               "has no family",
		"topology: {stack: dual, nodes: [{name: a}]}\nfaults: [{type: forwarding-off, node: a, family: 5}]":                                          "want 4 or 6",
		"topology: {stack: dual, nodes: [{name: a}]}\nfaults: [{type: delete-udr, family: 6}]":                                                       "wants prefix or node",
		"topology: {nodes: [{name: a}]}\nexpect: {findings: [{code: X, family: 6}]}":                                                                 "family wants stack",
		"topology: {switched: true, nodes: [{name: a, plugin: azure-overlay}]}":                                                                      "no switch does",
		"topology: {nodes: [{name: a, plugin: ptp}]}\nfaults: [{type: nsg-drop, node: a}]":                                                           "a switch connects the nodes",
		"topology: {nodes: [{name: a, plugin: ptp}]}\nfaults: [{type: masquerade-all, node: a}]":                                                     "by rules of its own",
		"topology: {nodes: [{name: a, plugin: ptp, hairpin: true}]}":                                                                                 "hairpin is for bridge",
		"topology: {nodes: [{name: a}]}\nfaults: [{type: delete-node-route, node: a, prefix: 10.244.1.0/24}]":                                        "no routes to other nodes",
		"topology: {nodes: [{name: a, plugin: ptp}]}\nfaults: [{type: delete-node-route, node: a, prefix: 1.0.0.0/8}]":                               "no other node has podCIDR",
		"topology: {nodes: [{name: a, pods: [x, y]}]}\nfaults: [{type: reused-ip, pod: a/x, via: a/y}]":                                              "no IPAM plugin",
		"topology: {nodes: [{name: a, plugin: ptp, pods: [x]}, {name: b, plugin: ptp, pods: [y]}]}\nfaults: [{type: reused-ip, pod: a/x, via: b/y}]": "not another pod of node",
		"topology: {nodes: [{name: a, plugin: ptp}]}\nfaults: [{type: dedup-flushed, node: a}]":                                                      "is not kubenet",
	} {
		if _, err := Parse("f.yaml", []byte(text)); err == nil || !strings.Contains(err.Error(), want) {
			t.Errorf("%s\ngot  %v\nwant %s", text, err, want)
		}
	}
}

// TestOnlyIPv6: nothing of IPv4 is left, a reference means the IPv6 address,
// and a fault strikes what there is.
func TestOnlyIPv6(t *testing.T) {
	s, err := Parse("only.yaml", []byte(`
topology:
  stack: ipv6
  podCIDR6: fd00:1::/64
  plugin: kindnet
  nodes: [{name: a, pods: [x, y]}, {name: b, pods: [z]}]
traffic: [{from: a/x, to: [b/z, outside, b, "fd99::1"]}]
faults: [{type: missing-masquerade, node: a}, {type: delete-udr, node: b}]
expect: {findings: [{code: X, pods: [a/x], peers: [b/z]}, {code: Y, family: 6, pods: [a/y]}]}
`))
	if err != nil {
		t.Fatal(err)
	}
	text, err := json.Marshal(s)
	if err != nil || strings.Contains(string(text), `"10.`) || strings.Contains(string(text), `"203.0`) {
		t.Errorf("IPv4 is left: %s, %v", text, err)
	}
	var flows []string
	for _, f := range s.Traffic {
		flows = append(flows, f.String())
	}
	for got, want := range map[string]string{
		strings.Join(flows, ", "):                    "a/x > b/z tcp6/8080, a/x > outside tcp6/8080, a/x > b tcp6/8080, a/x > fd99::1 tcp6/8080",
		s.Topology.Nodes[1].Pods[0].IP.String():      "fd00:1::1:0:0:2",
		s.Topology.Place(s.Topology.Nodes[0].IP):     "a",
		s.Faults[0].String():                         "missing-masquerade a ip6",
		s.Faults[1].String():                         "delete-udr fd00:1:0:0:1::/80",
		s.Expect.Findings[0].Peers[0].String():       "fd00:1::1:0:0:2/128",
		s.Expect.Findings[1].Pods[0].String():        "fd00:1::3",
		s.Topology.V6().Nodes[0].V6().IP.String():    "fd10:240::4",
		s.Topology.Families()[0].Outside[0].String(): "2001:db8:203:113::10",
	} {
		if got != want {
			t.Errorf("got %s, want %s", got, want)
		}
	}
	if len(s.Topology.Families()) != 1 {
		t.Errorf("%d families", len(s.Topology.Families()))
	}
	nodes, err := s.NodesJSON()
	if err != nil || strings.Count(string(nodes), "InternalIP") != 2 {
		t.Errorf("%s, %v", nodes, err)
	}
	pods, err := s.PodsJSON()
	if err != nil || !strings.Contains(string(pods), `"podIP": "`+s.Topology.Nodes[1].Pods[0].IP.String()+`"`) {
		t.Errorf("%s, %v", pods, err)
	}
}
