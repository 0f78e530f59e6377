package main

import (
	"fmt"
	"os/exec"
	"testing"

	"github.com/lasthop/lasthop/kind/scenario"
)

// TestChurn makes and deletes pods, thirty in its long form, while the node is watched, each with
// the address of one that just went: nothing is wrong with that.
func TestChurn(t *testing.T) {
	t.Parallel()
	for _, cluster := range few([]struct{ plugin, stack string }{
		{"kubenet", "ipv4"}, {"azure-bridge", "ipv4"}, {"azure-transparent", "ipv4"}, {"bridge", "ipv4"}, {"kindnet", "ipv6"},
		{"ptp", "ipv4"}, {"bridge", "ipv6"}, {"calico", "ipv6"}, {"cilium", "ipv6"},
	}, 1) {
		t.Run(cluster.plugin+"-"+cluster.stack, func(t *testing.T) {
			t.Parallel()
			s, err := scenario.Parse("churn.yaml", []byte(`
topology:
  plugin: `+cluster.plugin+`
  stack: `+cluster.stack+`
  nodes:
    - {name: left, pods: [stays, other, one, two, three, four, five]}
    - {name: right, pods: [far]}
traffic:
  - {from: [left/stays, left/other, right/far], to: [left/stays, right/far, outside], proto: [tcp, udp, icmp]}
`))
			if err != nil {
				t.Fatal(err)
			}
			l := upScenario(t, s)
			stop, err := startTraffic(t.Context(), l)
			if err != nil {
				t.Fatal(err)
			}
			var peers []scenario.Endpoint
			for _, ref := range []string{"left/stays", "right/far", "outside"} {
				peer, err := s.Topology.Resolve(ref)
				if err != nil {
					t.Fatal(err)
				}
				peers = append(peers, peer)
			}
			pods := amount(10, 30)
			churned := make(chan error, 1)
			go func() {
				churned <- l.Churn(t.Context(), []string{"left/one", "left/two", "left/three", "left/four", "left/five"}, pods, peers...)
			}()
			out, err := exec.Command("lasthop", "check", "--netns", l.Nodes()[0].Netns, "--for", fmt.Sprintf("%ds", 2+pods/3), "-o", "wide").CombinedOutput()
			if err != nil {
				t.Errorf("%v:\n%s", err, out)
			}
			if err := <-churned; err != nil {
				t.Error(err)
			}
			if err := stop(); err != nil {
				t.Error(err)
			}
			for _, wrong := range unanswered(l.Stats(), 0) {
				t.Error(wrong)
			}
			t.Logf("%s", out)
		})
	}
}
