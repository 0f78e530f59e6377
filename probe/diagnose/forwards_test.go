package diagnose

import (
	"testing"

	"github.com/lasthop/lasthop/probe/model"
)

// forwardsAt is a node with a rule of nft at a link's hook that sends what it matches out by another link.
func forwardsAt(n *testNode, hook string, counted uint64) *testNode {
	n.with(model.SourcePrograms)
	n.Chains = append(n.Chains, model.Chain{Backend: model.NFT, Family: "netdev", Table: "mirror", Name: "steer", Hook: hook,
		Policy: "ACCEPT", Devices: n.Links[0].Name})
	n.PacketRules = append(n.PacketRules, model.PacketRule{Backend: model.NFT, Family: "netdev", Table: "mirror", Chain: "steer", Number: 1,
		Native: true, Target: model.TargetForward, Text: "meta l4proto tcp fwd", Counter: model.Counter{Delta: counted, Packets: counted, Kept: true}})
	return n
}

// TestForwards: where something on an uplink may take packets away, silence beyond it is not the network's.
func TestForwards(t *testing.T) {
	const pod20 = "10.50.0.20"
	silentRange := func(program string) *testNode {
		n := kubenet().with(model.SourcePrograms)
		n.Programs = []model.Program{{Kind: model.ProgramXDP, ID: 9, Name: program, IfIndex: 2, Link: "ens5", Direction: model.Ingress}}
		n.answered("172.20.1.5", "172.20.2.9")
		n.silent("172.20.1.5", "172.20.3.9")
		n.silent("172.20.1.6", "172.20.3.10")
		return n
	}
	leaves := func(n *testNode, packets uint64) *testNode {
		n.passes(pod5, 10, model.Ingress, model.AsSource, 30, 1)
		n.tracked(pod5, "203.0.113.9", tcp, 443, 6, packets > 0)
		for i := range n.Flows {
			n.Flows[i].Reply.Dst = addr("10.50.0.4")
		}
		if packets > 0 {
			n.answered("10.50.0.4", "203.0.113.9")
		}
		return n
	}
	situations(t, []situation{
		{"a rule of nft at the NIC sends what arrives elsewhere", func() *testNode {
			n := forwardsAt(routed(), "INGRESS", 40)
			n.arrives(pod20, 2, 40, 0, 0, 6)
			n.peer(pod20, far, none, syn)
			return n
		}, []string{"critical UnexplainedDrop"}, "meta l4proto tcp fwd", ""},
		{"healthy: a rule of nft at the NIC that counted nothing", func() *testNode {
			n := forwardsAt(routed(), "INGRESS", 0)
			n.arrives(pod20, 2, 40, 0, 40, 6)
			return n
		}, nil, "", ""},
		{"a rule of nft at the NIC sends what leaves elsewhere", func() *testNode {
			return leaves(forwardsAt(kubenet().live(), "EGRESS", 30), 0)
		}, []string{"critical UnexplainedDrop"}, "meta l4proto tcp fwd", ""},
		{"healthy: and takes nothing", func() *testNode {
			return leaves(forwardsAt(kubenet().live(), "EGRESS", 0), 30)
		}, nil, "", ""},
		{"IPv6: new flows reach the NIC from no pod, and no rule is known", func() *testNode {
			n := dual().with(model.SourcePrograms)
			n.neighbor("fe80::9", fabricMAC, 2, "REACHABLE")
			n.tracked("fd20:0:0:1::5", "fd20:0:0:2::9", tcp, 443, 6, false)
			return n
		}, []string{"critical UnexplainedDrop"}, "xfrm", ""},
		{"healthy: new flows wait for the next hop's MAC", func() *testNode {
			n := leaves(forwardsAt(kubenet().live(), "EGRESS", 0), 0)
			n.Neighbors[0].MAC, n.Neighbors[0].State = model.MAC{}, "INCOMPLETE"
			return n
		}, nil, "", ""},
		{"healthy: the node's far ends are counted by range", func() *testNode {
			n := leaves(forwardsAt(kubenet().live(), "EGRESS", 30), 0)
			n.Traffic.Peers = append(n.Traffic.Peers, model.Peer{Local: addr("10.50.0.4"), Range: prefix("203.0.113.0/24"), IfIndex: 2, Out: syn})
			return n
		}, nil, "", ""},
		{"a route leads them into a tunnel, and nothing replies", func() *testNode {
			n := forwardsAt(overTunnel("wireguard", "wg0"), "EGRESS", 30)
			n.route(model.Route{Dst: prefix("192.0.2.0/24"), IfIndex: 7})
			n.tracked(pod5, "192.0.2.9", tcp, 443, 6, false)
			return n
		}, []string{"warning NoReply"}, "through the tunnel wg0", ""},
		{"one range is silent, and a program of XDP that nobody knows is at the NIC", func() *testNode { return silentRange("filter") },
			[]string{"warning MissingUDR"}, "", ""},
		{"one range is silent, and the program is Cilium's", func() *testNode { return silentRange("cil_xdp_entry") },
			[]string{"critical MissingUDR"}, "", ""},
	})
	remedies(t, []remedy{
		{"a program of XDP at the NIC", func() *testNode { return silentRange("filter") }, "MissingUDR", []string{"next: az network"}, ""},
		{"no program at the NIC", func() *testNode { return silentRange("cil_xdp_entry") }, "MissingUDR", []string{"az network"}, ""},
	})
}
