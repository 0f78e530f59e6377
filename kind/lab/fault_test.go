package lab

import (
	"fmt"
	"maps"
	"net/netip"
	"slices"
	"strings"
	"testing"

	"github.com/lasthop/lasthop/kind/scenario"
	"github.com/lasthop/lasthop/probe/model"
)

// TestFaultTables: every fault that a file can name can be made, the other way
// round too, and each says what it does.
func TestFaultTables(t *testing.T) {
	made, named := slices.Sorted(maps.Keys(injections)), scenario.FaultTypes()
	if !slices.Equal(made, named) {
		t.Errorf("made %q\nnamed %q", made, named)
	}
	all := 0
	for _, table := range injectionTables {
		all += len(table)
	}
	if all != len(injections) {
		t.Errorf("%d faults in %d rows", len(injections), all)
	}
}

const twoNodes = `
name: two-nodes
topology:
  plugin: %s
  nodes: [{name: one, pods: [a, b]}, {name: two, pods: [x]}]
traffic:
  - {from: [one/a, one/b, two/x], to: [one/a, one/b, two/x, outside], proto: [tcp, udp, icmp], rate: 10}
  - {from: [one, two], to: [one/a, two/x], proto: [udp], rate: 10}
%s`

// TestLinkAndAddressFaults does and undoes the faults of bridge ports, and of
// addresses and routes in pods.
func TestLinkAndAddressFaults(t *testing.T) {
	all := func(s FlowStats) bool { return touches(s, "one/a") }
	leaves := func(s FlowStats) bool { return node(s.From) != node(s.To) }
	onNode := func(s FlowStats) bool { return isPod(s.From) && isPod(s.To) && !leaves(s) }
	on := func(typ scenario.FaultType) scenario.Fault {
		return scenario.Fault{Type: typ, Node: "one", Pod: "one/a", Via: netip.MustParseAddr("10.244.0.3")}
	}
	// Replies of the pod, and what it says after a reply, fit no flow; outside it is
	// the node that is replied to.
	invalid := func(s FlowStats) bool {
		return all(s) && s.To.Place != outsideName && (s.Proto == scenario.TCP || s.Proto == scenario.ICMP && s.To.Place == "one/a")
	}
	// The node answers a ping for the pod.
	taken := func(s FlowStats) bool { return all(s) && !(s.Proto == scenario.ICMP && s.To.Place == "one/a") }
	none := func(FlowStats) bool { return false }
	tracking := []faultTrial{
		{on(scenario.Untracked), invalid},
		{on(scenario.ConntrackBypassed), none},
		{on(scenario.SegmentsBypassed), none},
		{scenario.Fault{Type: scenario.InvalidDropped, Node: "one"}, none},
		{scenario.Fault{Type: scenario.BridgeNetfilterOff, Node: "one"}, none},
		{scenario.Fault{Type: scenario.LeftoverRule, Node: "one", Prefix: netip.MustParsePrefix("10.244.0.2/32")}, func(s FlowStats) bool { return all(s) && !onNode(s) }},
	}
	onVNet := func(typ scenario.FaultType) scenario.Fault {
		f := on(typ)
		f.Via = netip.MustParseAddr("10.240.0.33")
		return f
	}
	node1 := func(typ scenario.FaultType) scenario.Fault {
		return scenario.Fault{Type: typ, Node: "one", MAC: model.MAC{0xa2, 0x96, 1, 2, 3, 4}, Via: netip.MustParseAddr("10.240.77.77")}
	}
	// The gateway of pods has an address in their range, so that the node needs
	// no route of the pod's.
	addresses := []faultTrial{
		{on(scenario.PodWithoutAddress), all},
		{on(scenario.PodWithoutDefaultRoute), func(s FlowStats) bool { return all(s) && leaves(s) }},
		{on(scenario.PodBlackhole), func(s FlowStats) bool { return all(s) && leaves(s) }},
		{on(scenario.PodFirewall), all},
		{node1(scenario.ForeignSNAT), func(s FlowStats) bool { return isPod(s.From) && node(s.From) == "one" && leaves(s) }},
	}
	ports := []faultTrial{
		{on(scenario.PortsIsolated), func(s FlowStats) bool { return touches(s, "one/a") && touches(s, "one/b") }},
		{on(scenario.PortBlocked), all},
		{on(scenario.LinkOffBridge), all},
		{on(scenario.StaleFDB), all},
		{scenario.Fault{Type: scenario.BridgeWithoutAddress, Node: "one"}, func(s FlowStats) bool {
			return !onNode(s) && (isPod(s.From) && node(s.From) == "one" || isPod(s.To) && node(s.To) == "one")
		}},
		{on(scenario.PodWrongPrefix), func(s FlowStats) bool { return all(s) && touches(s, "two/x") }},
	}
	// By the gateway go the pods of others, or not even they where the node has
	// routes to them.
	pinned := func(strikes func(FlowStats) bool) faultTrial {
		return faultTrial{node1(scenario.GatewayMACPinned), strikes}
	}
	for plugin, tests := range map[string][]faultTrial{
		"kubenet": slices.Concat(ports, addresses, tracking, []faultTrial{pinned(func(s FlowStats) bool {
			return node(s.From) == "one" && (s.To.Place == "two/x" || s.To.Place == outsideName) || node(s.To) == "one" && s.From.Place == "two/x"
		})}),
		"bridge":        {{on(scenario.LinkOffBridge), all}, {on(scenario.PortBlocked), all}, {on(scenario.PodWithoutAddress), all}, {on(scenario.PodFirewall), all}},
		"azure-bridge":  {{onVNet(scenario.LinkOffBridge), all}, {onVNet(scenario.StaleFDB), all}, {onVNet(scenario.PodWithoutAddress), all}},
		"ptp":           {{on(scenario.PodWithoutAddress), all}, {on(scenario.PodRouteLocal), taken}, {on(scenario.PodFirewall), all}},
		"azure-overlay": {{on(scenario.PodWithoutAddress), all}, {on(scenario.PodWithoutDefaultRoute), all}},
		"cilium":        {{on(scenario.PodWithoutAddress), all}, {on(scenario.PodWithoutDefaultRoute), all}},
		"kindnet":       append(addresses, pinned(func(s FlowStats) bool { return node(s.From) == "one" && s.To.Place == outsideName })),
	} {
		t.Run(plugin, func(t *testing.T) {
			t.Parallel()
			l := up(t, parse(t, fmt.Sprintf(twoNodes, plugin, "")), "blocks-"+plugin)
			trials(t, l, tests)
		})
	}
}

// TestPodsShareMAC: the bridge sends frames for either pod to the one that it
// heard last, so that some requests are lost; which, is chance.
func TestPodsShareMAC(t *testing.T) {
	t.Parallel()
	l := up(t, parse(t, fmt.Sprintf(twoNodes, "kubenet", "timeout: 1s\n")), "share")
	f := scenario.Fault{Type: scenario.PodsShareMAC, Node: "one", Pod: "one/a", Via: netip.MustParseAddr("10.244.0.3")}
	if err := l.Inject(t.Context(), f); err != nil {
		t.Fatal(err)
	}
	stop := run(t, l)
	err := Await(t.Context(), l, func(all []FlowStats) bool {
		return slices.ContainsFunc(all, func(s FlowStats) bool { return s.Failed > 0 })
	})
	if err != nil {
		t.Error(err)
	}
	for _, s := range stop() {
		if s.Failed > 0 && !touches(s, "one/a") && !touches(s, "one/b") {
			t.Errorf("%s: %d failed: %s", s.Flow, s.Failed, s.LastError)
		}
	}
	if err := l.Undo(t.Context(), f); err != nil {
		t.Fatal(err)
	}
	trial(t, l, 1, 0, alive)
}

// TestPodHung: connections are made until the backlog is full, and nothing is
// answered.
func TestPodHung(t *testing.T) {
	t.Parallel()
	l := up(t, parse(t, fmt.Sprintf(twoNodes, "kubenet", "timeout: 1s\nfaults: [{type: pod-hung, pod: one/a}]\n")), "hung")
	trial(t, l, 3, 3, func(s FlowStats) bool { return s.To.Place == "one/a" && s.Proto != scenario.ICMP })
}

// TestOneWay: the datagrams of a one-way flow arrive and are not answered, so
// that connection tracking sees one direction.
func TestOneWay(t *testing.T) {
	t.Parallel()
	l := up(t, parse(t, `
name: one-way
topology: {nodes: [{name: a, pods: [p]}, {name: b, pods: [q]}]}
traffic: [{from: a/p, to: b/q, proto: udp, port: 8125, rate: 10, oneWay: true}]
`), "one-way")
	trial(t, l, 3, 0, alive)
	node, err := l.open("b")
	if err != nil {
		t.Fatal(err)
	}
	defer node.close()
	flows, err := node.pipe("", conntrack, "-L", "-p", "udp", "--dport", "8125")
	if err != nil {
		t.Fatal(err)
	}
	if n := strings.Count(flows, "[UNREPLIED]"); n < 3 || n != strings.Count(flows, "dport=8125") {
		t.Errorf("%d unreplied flows in\n%s", n, flows)
	}
}

// TestFabricFaults: a port of a security group is only that port, and a way that takes
// no large packets takes the small ones of the same connections.
func TestFabricFaults(t *testing.T) {
	t.Parallel()
	l := up(t, parse(t, `
name: fabric
topology: {plugin: azure-transparent, nodes: [{name: one, pods: [a]}, {name: two, pods: [x]}]}
timeout: 1s
traffic:
  - {from: one/a, to: [two/x, outside], proto: [tcp, udp], port: 5432, rate: 10}
  - {from: [one/a, two/x], to: [one/a, two/x], proto: [tcp, udp, icmp], rate: 10}
  - {from: [one/a, two/x], to: [one/a, two/x, outside], proto: [tcp, udp], port: 9000, size: 1400, rate: 10}
`), "fabric-faults")
	trials(t, l, []faultTrial{
		{scenario.Fault{Type: scenario.NSGDrop, Node: "one", Port: 5432, Prefix: netip.MustParsePrefix("10.240.0.0/16")}, func(s FlowStats) bool {
			return s.Port == 5432 && s.To.Place == "two/x"
		}},
		{scenario.Fault{Type: scenario.FabricMTU, Node: "two"}, func(s FlowStats) bool {
			return s.Port == 9000 && touches(s, "two/x")
		}},
	})
}
