package lab

import (
	"strings"
	"testing"

	"github.com/lasthop/lasthop/kind/scenario"
)

// judge checks that exactly the flows that dead names died: not one of their
// requests was answered, and every request of the others was.
func judge(t *testing.T, all []FlowStats, dead func(FlowStats) bool) {
	t.Helper()
	if len(all) == 0 {
		t.Fatal("no flows")
	}
	died := 0
	for _, s := range all {
		want := dead(s)
		if want {
			died++
		}
		if want && s.Answered > 0 || !want && s.Failed > 0 || s.Sent != s.Answered+s.Failed {
			t.Errorf("%s: dead %v, sent %d, answered %d, failed %d: %s", s.Flow, want, s.Sent, s.Answered, s.Failed, s.LastError)
		}
	}
	t.Logf("%d flows, %d of them dead", len(all), died)
}

func alive(FlowStats) bool { return false }

func isPod(e scenario.Endpoint) bool { return strings.Contains(e.Place, "/") }

func node(e scenario.Endpoint) string {
	n, _, _ := strings.Cut(e.Place, "/")
	return n
}

// remotePod: between a pod and another node.
func crosses(s FlowStats) bool {
	return node(s.From) != node(s.To) && s.From.Place != outsideName && s.To.Place != outsideName
}

func touches(s FlowStats, place string) bool { return s.From.Place == place || s.To.Place == place }

func TestScenarios(t *testing.T) {
	tests := map[string]func(FlowStats) bool{
		"healthy-kubenet":      alive,
		"healthy-azure-bridge": alive,
		// Nothing with a pod's address crosses the fabric.
		"missing-udr": func(s FlowStats) bool { return crosses(s) && (isPod(s.From) || isPod(s.To)) },
		// Neither requests to that node's pods nor answers to them.
		"missing-udr-one": func(s FlowStats) bool { return crosses(s) && touches(s, "aks-3/queue") },
		// What arrives at the NIC for the pod, request or answer; but
		// answers from outside arrive for the node.
		"stale-mac-rewrite": func(s FlowStats) bool { return crosses(s) && touches(s, "aks-1/cart") },
		// Within the node, both ways: the answer must find the pod too.
		"stale-arpreply": func(s FlowStats) bool {
			return touches(s, "aks-1/cart") && node(s.From) == node(s.To) && isPod(s.From)
		},
		"missing-masquerade": func(s FlowStats) bool {
			return s.To.Place == outsideName && isPod(s.From) && node(s.From) == "aks-1"
		},
	}
	for name, dead := range tests {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			l := up(t, load(t, name), name)
			judge(t, rounds(t, l, 4), dead)
		})
	}
}
