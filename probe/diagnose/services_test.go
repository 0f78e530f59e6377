package diagnose

import (
	"net/netip"
	"strings"
	"testing"

	"github.com/lasthop/lasthop/probe/model"
)

// TestUntranslated: what is sent to a service's address that no rule translates
// leaves the node. It is not called another node's pod, and the finding says why.
func TestUntranslated(t *testing.T) {
	service := func(silent ...string) *testNode {
		n := kubenet()
		n.PacketRules[1].Dst = to("10.0.0.0/8")
		n.Chains = append(n.Chains, model.Chain{Backend: model.NFT, Family: "ip", Table: "nat", Name: "PREROUTING", Hook: "PREROUTING", Priority: -100})
		n.natRules(
			model.PacketRule{Chain: "PREROUTING", Target: "KUBE-SERVICES"},
			model.PacketRule{Chain: "KUBE-SERVICES", Dst: to("10.0.0.10/32"), Target: "KUBE-SVC-A"},
			model.PacketRule{Chain: "KUBE-SVC-A", Target: "DNAT", To: netip.MustParseAddrPort("172.20.1.6:53")},
		)
		n.answered("10.50.0.4", "10.50.0.5")
		for _, a := range silent {
			n.silent(pod5, a)
		}
		return n
	}
	check(t, []fixture{
		{"beside one that is", func() *testNode { return service("10.0.7.7") }, []string{"NoReply likely 172.20.1.5 10.0.7.7"}},
		{"two of them", func() *testNode { return service("10.0.7.7", "10.0.9.9") }, []string{"NoReply likely 172.20.1.5 10.0.7.7 10.0.9.9"}},
	})
	title := func(n *testNode) string { return Diagnose(&n.Snapshot)[0].Title }
	if got, want := title(service("10.0.7.7")), "no rule translates 10.0.7.7: the packets leave the node untranslated"; got != want {
		t.Errorf("title %q, want %q", got, want)
	}
	for name, n := range map[string]*testNode{"another range": service("10.77.7.7"), "translated": service("10.0.0.10")} {
		if got := title(n); !strings.HasPrefix(got, "no reply from ") {
			t.Errorf("%s: title %q", name, got)
		}
	}
	unread := service("10.0.7.7")
	unread.lose(model.SourceNAT, model.Partial)
	if got := Diagnose(&unread.Snapshot); len(got) != 1 || strings.Contains(got[0].Title, "translate") {
		t.Errorf("with the rules unread: %+v", got)
	}
}

// TestServicesAreNoRanges: in the range of all pods as far as rules tell, addresses of services are no other
// node's pods, neither one that is translated nor one beside it.
func TestServicesAreNoRanges(t *testing.T) {
	for _, asked := range []string{"172.30.7.7", "172.30.0.10", "172.24.1.6"} {
		n := kubenet()
		n.PacketRules[1].Dst = to("172.16.0.0/12")
		n.Chains = append(n.Chains, model.Chain{Backend: model.NFT, Family: "ip", Table: "nat", Name: "PREROUTING", Hook: "PREROUTING", Priority: -100})
		n.natRules(
			model.PacketRule{Chain: "PREROUTING", Target: "KUBE-SERVICES"},
			model.PacketRule{Chain: "KUBE-SERVICES", Dst: to("172.30.0.10/32"), Target: "KUBE-SVC-A"},
			model.PacketRule{Chain: "KUBE-SVC-A", Target: "DNAT", To: netip.MustParseAddrPort("172.20.1.6:53")},
		)
		n.silent(pod5, asked)
		got, pods := RemoteRanges(&n.Snapshot), strings.HasPrefix(asked, "172.24.")
		if len(got) > 0 != pods {
			t.Errorf("%s is asked, and ranges of other nodes' pods are %v", asked, got)
		}
	}
}

// TestSilentResolver: Azure's own address answers pods for names, and nothing else that
// they may ask.
func TestSilentResolver(t *testing.T) {
	const resolver = "168.63.129.16"
	asked := func(port uint16, replied bool) func() *testNode {
		return func() *testNode {
			n := kubenet()
			n.answered(pod5, "203.0.113.9")
			n.datagrams(pod5, resolver, port, 5, replied)
			return n
		}
	}
	check(t, []fixture{
		{"no name", asked(dnsPort, false), []string{"NoReply likely 172.20.1.5 168.63.129.16"}},
		{"names", asked(dnsPort, true), nil},
		{"the agent's port", asked(32526, false), nil},
	})
}
