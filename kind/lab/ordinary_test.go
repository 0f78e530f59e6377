package lab

import (
	"fmt"
	"net/netip"
	"slices"
	"strings"
	"testing"

	"github.com/lasthop/lasthop/kind/scenario"
)

// TestOrdinaryStates: what is no fault kills nothing but what it is meant to.
func TestOrdinaryStates(t *testing.T) {
	t.Parallel()
	none := func(FlowStats) bool { return false }
	for _, test := range []struct {
		fault scenario.Fault
		dead  func(FlowStats) bool
	}{
		{scenario.Fault{Type: scenario.EmptyBridge, Node: "one"}, none},
		{scenario.Fault{Type: scenario.SecondInterface, Node: "one", Pod: "one/a"}, none},
		{scenario.Fault{Type: scenario.PingDenied, Node: "two", Pod: "two/x"}, func(s FlowStats) bool {
			return s.To.Place == "two/x" && s.Proto == scenario.ICMP && s.From.Place != "two"
		}},
		{scenario.Fault{Type: scenario.DropForward, Node: "two", Pod: "two/x", Via: netip.MustParseAddr("10.244.0.2")}, func(s FlowStats) bool {
			return touches(s, "two/x") && touches(s, "one/a")
		}},
	} {
		t.Run(string(test.fault.Type), func(t *testing.T) {
			t.Parallel()
			l := up(t, parse(t, fmt.Sprintf(twoNodes, "kubenet", "timeout: 1s\n")), "well-"+string(test.fault.Type))
			if err := l.Inject(t.Context(), test.fault); err != nil {
				t.Fatal(err)
			}
			trial(t, l, 2, 1, test.dead)
			if err := l.Undo(t.Context(), test.fault); err != nil {
				t.Fatal(err)
			}
			trial(t, l, 1, 0, alive)
		})
	}
}

// TestService: both backends of a service answer, and a pod reaches itself by it.
func TestService(t *testing.T) {
	t.Parallel()
	l := up(t, parse(t, `
name: service
topology: {plugin: kindnet, nodes: [{name: one, pods: [a, b]}]}
traffic:
  - {from: [one/a, one/b, one], to: 172.29.0.9, proto: [tcp, udp], rate: 20}
  - {from: one, to: [one/a, one/b], proto: [tcp, udp], rate: 1}
faults:
  - {type: service, pod: one/a, prefix: 172.29.0.9/32}
  - {type: service, pod: one/b, prefix: 172.29.0.9/32}
`), "service")
	trial(t, l, 10, 0, alive)
	node, err := l.open("one")
	if err != nil {
		t.Fatal(err)
	}
	defer node.close()
	flows, err := node.pipe("", conntrack, "-L", "-d", "172.29.0.9")
	if err != nil {
		t.Fatal(err)
	}
	for _, backend := range []string{"10.244.0.2", "10.244.0.3"} {
		if !strings.Contains(flows, "src="+backend+" dst=10.244.0.1") {
			t.Errorf("%s answers nobody who was masqueraded in\n%s", backend, flows)
		}
	}
	gone := scenario.Fault{Type: scenario.ServiceUntranslated, Node: "one", Prefix: netip.MustParsePrefix("172.29.0.9/32")}
	trials(t, l, []faultTrial{{gone, func(s FlowStats) bool { return s.To.Place == "" }}})
}

// TestFlowKinds: a kept connection stays after its one request, a slow answer is
// an answer, and a few source ports take turns.
func TestFlowKinds(t *testing.T) {
	t.Parallel()
	l := up(t, parse(t, `
name: kinds
topology: {nodes: [{name: a, pods: [p]}, {name: b, pods: [q]}]}
traffic:
  - {from: a/p, to: b/q, proto: tcp, port: 5432, keep: true}
  - {from: a/p, to: b/q, proto: [tcp, udp], port: 8001, slow: true}
  - {from: a/p, to: b/q, proto: [tcp, udp], port: 8002, ports: 2, rate: 10}
`), "kinds")
	stop := run(t, l)
	err := Await(t.Context(), l, func(all []FlowStats) bool {
		return !slices.ContainsFunc(all, func(s FlowStats) bool { return s.Answered < 5 && s.Port != 5432 })
	})
	if err != nil {
		t.Error(err)
	}
	node, err := l.open("a")
	if err != nil {
		t.Fatal(err)
	}
	defer node.close()
	flows, err := node.pipe("", conntrack, "-L")
	if err != nil {
		t.Fatal(err)
	}
	for _, s := range stop() {
		if s.Failed > 0 || s.Answered == 0 || s.Port == 5432 && s.Answered != 1 {
			t.Errorf("%s: answered %d, failed %d: %s", s.Flow, s.Answered, s.Failed, s.LastError)
		}
	}
	ports := map[string]bool{}
	for line := range strings.Lines(flows) {
		if strings.Contains(line, "dport=5432") && !strings.Contains(line, "ESTABLISHED") {
			t.Errorf("not kept: %s", line)
		}
		if from, _, ok := strings.Cut(line, " dport=8002"); ok {
			ports[strings.Fields(line)[0]+from[strings.LastIndex(from, "="):]] = true
		}
	}
	if len(ports) != 4 {
		t.Errorf("source ports %v in\n%s", ports, flows)
	}
}
