package diagnose

import (
	"net/netip"
	"testing"

	"github.com/lasthop/lasthop/probe/model"
)

// TestLeaks: a packet that leaves with a pod's address, though the node would translate it, is lost, whether or not it
// wants an answer.
func TestLeaks(t *testing.T) {
	segments := func(n uint64) model.PeerCount { return model.PeerCount{Packets: n, Replies: n} }
	forgotten := func(n *testNode, from, to string, count uint64) *testNode {
		n.with(model.SourcePrograms)
		n.answered("10.50.0.4", "198.51.100.77")
		n.peer(from, to, segments(count), none)
		return n
	}
	syslog := func(n *testNode, from, to string) *testNode {
		n.with(model.SourcePrograms)
		n.peer(from, to, model.PeerCount{Packets: 30, Other: 30}, none)
		n.Flows = append(n.Flows, model.Flow{Proto: udp,
			Original: model.Tuple{Src: addr(from), Dst: addr(to), SrcPort: 40000, DstPort: 514},
			Reply:    model.Tuple{Src: addr(to), Dst: addr(from), SrcPort: 514, DstPort: 40000}})
		return n
	}
	flannel := func() *testNode {
		n := newNode("eno1", "192.168.10.21", "192.168.10.0/24", "192.168.10.1")
		n.Node.Plugin = "flannel"
		n.bridgeOf(3, "cni0", "0a:00:00:00:00:03", "10.244.3.1/24")
		n.pod("10.244.3.7", "0a:58:00:00:03:07", 3)
		n.Chains = []model.Chain{{Backend: model.NFT, Family: "ip", Table: "nat", Name: "POSTROUTING", Hook: "POSTROUTING", Priority: 100}}
		n.natRules(
			model.PacketRule{Chain: "POSTROUTING", Src: to("10.244.0.0/16"), Dst: to("10.244.0.0/16"), Target: "RETURN"},
			model.PacketRule{Chain: "POSTROUTING", Src: to("10.244.0.0/16"), Dst: model.AddrMatch{Prefix: prefix("224.0.0.0/4"), Not: true},
				Target: "MASQUERADE", Text: "-s 10.244.0.0/16 ! -d 224.0.0.0/4 -j MASQUERADE"})
		return n.live()
	}
	situations(t, []situation{
		{"connections from before a flush, tcp_loose off", func() *testNode { return forgotten(kubenet().live(), pod5, out, 20) },
			[]string{"warning MissingMasquerade"}, "has no flow", "iptables"},
		{"healthy: a peered network that is excluded, whose replies take another way", func() *testNode {
			n := kubenet().live()
			n.exclude("192.168.0.0/16")
			return forgotten(n, pod5, "192.168.7.1", 20)
		}, nil, "", ""},
		{"flannel, and a database in the office's network", func() *testNode { return forgotten(flannel(), "10.244.3.7", "192.168.50.10", 40) },
			[]string{"warning MissingMasquerade"}, "has no flow", "iptables"},
		{"healthy: last segments of closed connections", func() *testNode { return forgotten(flannel(), "10.244.3.7", "192.168.50.10", 4) }, nil, "", ""},
		{"as few as are no last segments", func() *testNode { return forgotten(flannel(), "10.244.3.7", "192.168.50.10", 9) },
			[]string{"warning MissingMasquerade"}, "has no flow", "iptables"},
		{"healthy: one fewer", func() *testNode { return forgotten(flannel(), "10.244.3.7", "192.168.50.10", 8) }, nil, "", ""},
		{"log lines of a flow that is older than the rule", func() *testNode { return syslog(flannel(), "10.244.3.7", "203.0.113.9") },
			[]string{"warning MissingMasquerade"}, "conntrack -D", "iptables"},
		{"healthy: log lines to a network that knows the pods", func() *testNode {
			n := kubenet().live()
			n.exclude("192.168.0.0/16")
			return syslog(n, pod5, "192.168.7.1")
		}, nil, "", ""},
		{"SNAT to one address, and segments to several machines", func() *testNode {
			n := flannel()
			n.PacketRules[1].Target, n.PacketRules[1].To = "SNAT", netip.AddrPortFrom(addr("192.168.10.21"), 0)
			forgotten(n, "10.244.3.7", "192.168.50.10", 12)
			n.peer("10.244.3.7", "192.168.50.11", segments(15), none)
			return n
		}, []string{"warning MissingMasquerade"}, "has no flow", ""},
		{"healthy: the pods' addresses are of the network", func() *testNode {
			n := forgotten(kubenet().live(), pod5, out, 20)
			n.Node.Plugin = "azure-podsubnet"
			return n
		}, nil, "", ""},
		{"healthy: connection tracking was not read whole", func() *testNode {
			n := forgotten(kubenet().live(), pod5, out, 20)
			n.lose(model.SourceConntrack, model.Partial)
			return n
		}, nil, "", ""},
		{"healthy: a program behind lasthop's translates", func() *testNode {
			n := forgotten(kubenet().live(), pod5, out, 20)
			n.Programs = []model.Program{{Kind: model.ProgramTCX, Name: "cil_to_netdev", Direction: model.Egress, IfIndex: 2, Link: "ens5"}}
			return n
		}, nil, "", ""},
		{"healthy: a client from outside, of whose connection the requests come by a tunnel", func() *testNode {
			n := forgotten(kubenet().live(), pod5, out, 20)
			n.Flows = append(n.Flows, model.Flow{Proto: tcp, Replied: true, Assured: true, State: "ESTABLISHED",
				Original: model.Tuple{Src: addr(out), Dst: addr(pod5), SrcPort: 40000, DstPort: 443},
				Reply:    model.Tuple{Src: addr(pod5), Dst: addr(out), SrcPort: 443, DstPort: 40000}})
			return n
		}, nil, "", ""},
	})
}
