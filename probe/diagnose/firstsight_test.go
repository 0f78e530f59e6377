package diagnose

import (
	"net/netip"
	"slices"
	"testing"
	"time"

	"github.com/lasthop/lasthop/probe/model"
)

// cardOfPods is a node whose pods have a NIC and a table of their own, and rules that lead what is for them to the main
// table: the last one as well, if ruled. The reverse path filter refuses what that sends to the other.
func cardOfPods(ruled bool) *testNode {
	n := routed()
	n.Links = append(n.Links, model.Link{Index: 4, Name: "ens6", MAC: mac("00:0d:3a:00:00:02"), Up: true, Carrier: true, Role: model.RoleUplink})
	n.route(model.Route{Table: 2, Dst: prefix("0.0.0.0/0"), Gateway: addr("10.50.0.9"), IfIndex: 4})
	n.Rules = []model.RoutingRule{{Family: 4, Table: 255, Action: "lookup"}, {Family: 4, Priority: 32766, Table: 254, Action: "lookup"}}
	for i, a := range []string{"10.50.0.20/32", "10.50.0.21/32"} {
		n.Rules = append(n.Rules, model.RoutingRule{Family: 4, Priority: 1536, From: prefix(a), Table: 2, Action: "lookup"})
		if i == 0 || ruled {
			n.Rules = append(n.Rules, model.RoutingRule{Family: 4, Priority: 512, To: prefix(a), Table: 254, Action: "lookup"})
		}
	}
	n.exchanges(1, "10.50.0.21")
	if n.sysctl("net.ipv4.conf.tap11.rp_filter", "1"); !ruled {
		n.dropOn("tap11", "IP_RPFILTER", "ip_rcv_finish_core", "10.50.0.21", "10.50.0.20", 30)
	}
	return n
}

// markedFor is a node on which a rule marks what a pod sends to a range, and another masquerades what is marked.
func markedFor(cidr string) *testNode {
	n := kubenet()
	n.Chains = append(n.Chains, model.Chain{Backend: model.NFT, Family: "ip", Table: "mangle", Name: "PREROUTING", Hook: "PREROUTING", Priority: -150})
	before := len(n.PacketRules)
	n.natRules(model.PacketRule{Chain: "POSTROUTING", Target: "KUBE-POSTROUTING"},
		model.PacketRule{Chain: "KUBE-POSTROUTING", Mark: model.MarkMatch{Value: 0x4000, Mask: 0x4000, Set: true, Not: true}, Target: "RETURN"},
		model.PacketRule{Chain: "KUBE-POSTROUTING", Target: "MASQUERADE", Text: "-j MASQUERADE --random-fully"})
	n.PacketRules = slices.Concat(n.PacketRules[before:], n.PacketRules[:before])
	n.filter(model.NFT, "PREROUTING", 30, model.PacketRule{Src: to(pod5 + "/32"), Dst: to(cidr), Target: "MARK", SetMark: model.MarkWrite{Value: 0x4000, Mask: 0x4000},
		Text: "-s 172.20.1.5/32 -d " + cidr + " -j MARK --set-xmark 0x4000/0x4000"}).Table = "mangle"
	n.translated(pod5, far, far, "10.50.0.4", true)
	return n
}

// byTunnel is a node with a route that leads a destination to a tunnel, which a program serves or none.
func byTunnel(served bool) *testNode {
	n := kubenet().live().with(model.SourceQueues)
	n.Links = append(n.Links, model.Link{Index: 7, Name: "tun0", Kind: "tun", Up: true, Carrier: served})
	n.Queues = []model.Queue{{IfIndex: 7, Link: "tun0", Kind: "pfifo_fast"}}
	n.route(model.Route{Dst: prefix("128.0.0.0/1"), IfIndex: 7})
	if served {
		n.passes(pod5, 7, model.Egress, model.AsSource, 30, 1)
		return n
	}
	n.dropOn("tun0", "QDISC_DROP", "__dev_queue_xmit", pod5, out, 30)
	n.sysctl("net.ipv4.conf.all.rp_filter", "1")
	n.dropOn("ens5", "IP_RPFILTER", "ip_rcv_finish_core", out, pod5, 30)
	return n
}

// sendsWith is a node with a routed pod that sends frames for a MAC, and whose interface asks for none.
func sendsWith(hw string) *testNode {
	n := routedNode().live()
	n.Pods[0].Gateways = []model.Neighbor{{Addr: addr("169.254.1.1")}}
	n.frames("10.60.0.20", n.Pods[0].LinkIndex, model.Ingress, model.AsSource, hw, 30)
	if hw == n.Pods[0].MAC.String() {
		n.dropOn("tap10", "OTHERHOST", "ip_rcv_core", "10.60.0.20", out, 30).DstMAC = mac(hw)
	}
	return n
}

// renumbered is a node whose pods get no reply from other nodes' pods, and to which the cluster gives a range.
func renumbered(cidr string) *testNode {
	n := kubenet()
	n.clusterNode("10.50.0.4", cidr)
	n.clusterNode("10.50.0.5", "172.20.2.0/24")
	n.clusterNode("10.50.0.6", "172.20.3.0/24")
	n.answered("10.50.0.4", "10.50.0.5")
	for _, a := range []string{"172.20.2.9", "172.20.2.10", "172.20.3.9", "172.20.3.10"} {
		n.silent(pod5, a)
	}
	return n
}

// TestFirstSight: faults by their mechanism, beside a node that only looks alike.
func TestFirstSight(t *testing.T) {
	solicits := func(dst string, drops uint64) *testNode {
		n := routed()
		n.pod("fd00:50::20", "0a:58:00:00:00:22", 0)
		n.live()
		p := &n.Pods[2]
		p.Gateways = []model.Neighbor{{Addr: addr("fd00:50::1"), State: "INCOMPLETE"}}
		n.arp("fd00:50::1", p.LinkIndex, model.Ingress, false, p.MAC.String(), 9)
		n.Chains = append(n.Chains, model.Chain{Backend: model.NFT, Family: "ip6", Table: "filter", Name: "INPUT", Hook: "INPUT"})
		n.filter(model.NFT, "INPUT", drops, model.PacketRule{Proto: 58, Target: "DROP", Text: "-p ipv6-icmp -m icmp6 --icmpv6-type 135 -j DROP"}).Family = "ip6"
		n.dropOn(p.Link, "NETFILTER_DROP", "nft_do_chain", "fd00:50::20", dst, drops).Proto = 58
		return n
	}
	input := func(policy string) *testNode {
		n := kubenet()
		n.chain(model.NFT, "ip", "filter", "INPUT", "INPUT", policy, 30)
		if policy == "DROP" {
			n.refuse("nft_do_chain", pod5, "172.20.1.1", 30).Link = "br-pods"
		}
		return n
	}
	bridgeRule := func(dst string) *testNode {
		n := bridged()
		n.dropRule(model.FrameRule{EtherType: 0x0800, Text: "-p IPv4 --ip-proto udp -j DROP"}, 40)
		n.dropOn("tap11", "NETFILTER_DROP", "nft_do_chain", "10.60.0.20", dst, 30)
		return n
	}
	situations(t, []situation{
		{"no rule leads what is for a pod to the main table", func() *testNode { return cardOfPods(false) },
			[]string{"critical MissingPodRoute"}, "ip rule add to 10.50.0.21/32 lookup main priority 512", "rp_filter="},
		{"each pod has its rule", func() *testNode { return cardOfPods(true) }, nil, "", ""},
		{"a mark has pods' packets masqueraded", func() *testNode { return markedFor("172.20.0.0/16") },
			[]string{"warning UnexpectedMasquerade"}, "-t mangle -D PREROUTING", "KUBE-POSTROUTING"},
		{"others are marked, and what translated the flow is gone", func() *testNode { return markedFor("203.0.113.0/24") }, nil, "", ""},
		{"a tunnel that nothing serves", func() *testNode { return byTunnel(false) }, []string{"critical QueueDrop"}, "ip route del 128.0.0.0/1 dev tun0", "rp_filter="},
		{"a tunnel that a program serves", func() *testNode { return byTunnel(true) }, nil, "", ""},
		{"a pod without ARP sends to itself", func() *testNode { return sendsWith("0a:58:00:00:00:20") }, []string{"critical WrongGatewayMAC"}, "arp on", "neigh"},
		{"a pod without ARP that has its gateway's MAC", func() *testNode { return sendsWith("0a:00:00:00:00:0a") }, nil, "", ""},
		{"a rule drops what a pod asks its gateway", func() *testNode { return solicits("ff02::1:ff00:1", 9) }, []string{"warning PolicyDrop"}, "-D INPUT", ""},
		{"a rule drops what a pod asks another", func() *testNode { return solicits("ff02::1:ff00:9", 9) },
			[]string{"critical UnansweredARP", "warning PolicyDrop"}, "", ""},
		{"a policy keeps pods from the node", func() *testNode { return input("DROP") }, []string{"warning PolicyDrop"}, "-I INPUT -s 172.20.1.0/24 -j ACCEPT", "-P INPUT"},
		{"a policy lets pods to the node", func() *testNode { return input("ACCEPT") }, nil, "", ""},
		{"a bridge rule drops what is for a pod", func() *testNode { return bridgeRule("10.60.0.21") }, []string{"warning BridgeRuleDrop"}, "", ""},
		{"a bridge rule drops what is for all", func() *testNode { return bridgeRule("255.255.255.255") }, nil, "", ""},
		{"the cluster gives the node another range than its pods have", func() *testNode { return renumbered("172.20.7.0/24") },
			[]string{"critical MissingUDR"}, "give pods addresses of 172.20.7.0/24", "az network route"},
		{"the cluster gives the node the range of its pods", func() *testNode { return renumbered("172.20.1.0/24") },
			[]string{"critical MissingUDR"}, "az network route", "give pods"},
		{"requests for a pod leave the node instead", func() *testNode {
			n := routed()
			n.requested("10.50.0.20", "10.50.0.21", 17, 53, 9, false)
			n.toPod(1, "10.50.0.21", 90)
			n.peer("10.50.0.20", "10.50.0.21", model.PeerCount{Packets: 9, Other: 9}, none)
			return n
		}, nil, "", ""},
		{"requests for a pod come to it", func() *testNode {
			n := routed()
			n.requested("10.50.0.20", "10.50.0.21", 17, 53, 9, false)
			n.toPod(1, "10.50.0.21", 90)
			return n
		}, []string{"warning PodNotReplying"}, "", ""},
		{"a tunnel cannot send what carries", func() *testNode {
			n := overTunnel("vxlan", "flannel.1")
			d := n.dropOn("flannel.1", "IP_INNOROUTES", "vxlan_xmit_one", pod5, far, 30)
			d.First, d.Last = n.Window.Start, n.Window.End
			return n
		}, []string{"warning UnexplainedDrop"}, "is the tunnel's local address one of this node's?", ""},
		{"copies of frames for a machine beyond the uplink", func() *testNode {
			n := bridged().live()
			n.neighbor("10.60.0.77", "12:34:56:78:9a:bc", 3, "REACHABLE")
			n.frames("10.60.0.20", 2, model.Egress, model.AsSource, "12:34:56:78:9a:bc", 30)
			n.dropOn("azure0", "OTHERHOST", "ip_rcv_core", "10.60.0.20", out, 30).DstMAC = mac("12:34:56:78:9a:bc")
			return n
		}, nil, "", ""},
	})
}

// TestReplacedSNAT: flows keep the source address that an earlier rule gave them.
func TestReplacedSNAT(t *testing.T) {
	const second = "10.50.0.9"
	snat := func(home string) *testNode {
		n := serving(pod6)
		n.PacketRules = slices.Insert(n.PacketRules, 0, model.PacketRule{Backend: model.NFT, Family: "ip", Table: "nat", Chain: "POSTROUTING",
			Src: to("172.20.1.0/24"), Target: "SNAT", To: netip.AddrPortFrom(addr("10.50.0.4"), 0), Text: "-s 172.20.1.0/24 -j SNAT --to-source 10.50.0.4"})
		n.kept(pod5, out, out, home, 53, false, 29*time.Second)
		n.kept(pod6, out, out, home, 53, false, 29*time.Second)
		return n
	}
	masqueraded := func(replies bool) *testNode {
		n := serving(pod6)
		n.Links[0].Addresses = append(n.Links[0].Addresses, prefix(second+"/16"))
		n.kept(pod5, out, out, second, 53, false, 29*time.Second)
		n.questions(second, out, none)
		if replies {
			n.answered(second, "10.50.0.7")
		}
		return n
	}
	check(t, []fixture{
		{"to an address that the node does not have", func() *testNode { return snat(moved) }, []string{"StaleFlow likely 172.20.1.5 172.20.1.6 203.0.113.9"}},
		{"to a further address of the node", func() *testNode { return masqueraded(false) }, []string{"StaleFlow likely 172.20.1.5 203.0.113.9"}},
		{"to a further address, to which others reply", func() *testNode { return masqueraded(true) }, []string{"NoReply likely 172.20.1.5 203.0.113.9"}},
		{"between pods, by a rule that is replaced", func() *testNode {
			n := snat("10.50.0.4")
			n.PacketRules[0].To = netip.AddrPortFrom(addr(second), 0)
			n.translated(pod5, far, far, "10.50.0.4", true)
			return n
		}, nil},
	})
}
