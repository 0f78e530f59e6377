package lab

import (
	"fmt"
	"testing"

	"github.com/lasthop/lasthop/kind/scenario"
)

// TestPolicyFaults does and undoes the faults of network policies, and those of
// programs, on nodes with each that keeps policies.
func TestPolicyFaults(t *testing.T) {
	const text = `
name: policies
topology:
  plugin: azure-overlay
  nodes: [{name: one, policy: %[1]s, pods: [a, b]}, {name: two, policy: %[1]s, pods: [x]}]
traffic:
  - {from: [one/a, one/b, two/x], to: [one/a, one/b, two/x, outside], proto: [tcp, udp, icmp], rate: 10}
  - {from: [one, two], to: [one/a], proto: [udp], rate: 10}
`
	toPod := func(s FlowStats) bool { return s.To.Place == "one/a" && s.From.Place != "one" }
	either := func(s FlowStats) bool { return touches(s, "one/a") && s.From.Place != "one" }
	// The chain for what pods send to the node leads to the same dispatch.
	any := func(s FlowStats) bool { return touches(s, "one/a") }
	on := func(typ scenario.FaultType) scenario.Fault {
		return scenario.Fault{Type: typ, Node: "one", Pod: "one/a"}
	}
	deny := faultTrial{on(scenario.PolicyDeny), toPod}
	unprogrammed := on(scenario.PolicyUnprogrammed)
	for policy, tests := range map[scenario.Policy][]faultTrial{
		scenario.PolicyCalico:    {deny, {unprogrammed, any}, {on(scenario.DropProgram), any}},
		scenario.PolicyCalicoNFT: {deny, {unprogrammed, either}, {on(scenario.DropTCX), any}},
		scenario.PolicyNPM:       {deny, {on(scenario.DropXDP), any}},
	} {
		t.Run(string(policy), func(t *testing.T) {
			t.Parallel()
			l := up(t, parse(t, fmt.Sprintf(text, policy)), "policies-"+string(policy))
			trials(t, l, tests)
		})
	}
}
