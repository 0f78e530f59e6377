package diagnose

import (
	"testing"

	"github.com/lasthop/lasthop/probe/model"
)

// TestNodeLocalDNS: 169.254.20.10 is an address that pods ask like any other, with
// connection tracking and without.
func TestNodeLocalDNS(t *testing.T) {
	const pod, dns, metadata = "172.20.1.5", "169.254.20.10", "169.254.169.254"
	notrack := func(n *testNode) {
		n.PacketRules = append(n.PacketRules, model.PacketRule{Table: "raw", Chain: "PREROUTING", Target: "CT", Text: "-j CT --notrack",
			Dst: model.AddrMatch{Prefix: prefix(dns + "/32")}, Proto: udp, DstPorts: []model.PortRange{{First: 53, Last: 53}}})
	}
	for _, tt := range []struct {
		name string
		make func(*testNode)
		want string
	}{
		{"tracked, nobody has it", func(n *testNode) { n.datagrams(pod, dns, 53, 12, false) }, "NoReply"},
		{"untracked, nobody has it", func(n *testNode) {
			notrack(n)
			n.peer(pod, dns, model.PeerCount{Packets: 12, Other: 12}, none)
		}, "NoReply"},
		{"untracked, replied to", func(n *testNode) {
			notrack(n)
			n.peer(pod, dns, model.PeerCount{Packets: 12, Other: 12}, model.PeerCount{Packets: 12, Other: 12})
		}, ""},
		{"the metadata service keeps silent", func(n *testNode) { n.silent(pod, metadata) }, ""},
		{"the metadata service as a name server", func(n *testNode) { n.datagrams(pod, metadata, 53, 12, false) }, "NoReply"},
	} {
		n := kubenet()
		n.answered(pod, "10.50.0.9")
		tt.make(n)
		got := ""
		for _, f := range Diagnose(&n.Snapshot) {
			got += string(f.Code)
		}
		if got != tt.want {
			t.Errorf("%s: %q, want %q", tt.name, got, tt.want)
		}
	}
}
