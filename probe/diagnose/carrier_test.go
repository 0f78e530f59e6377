package diagnose

import (
	"net/netip"
	"testing"

	"github.com/lasthop/lasthop/probe/model"
)

// TestCarrier: what a tunnel carries dies with the packets that carry it, and where the tunnel's routes and entries are wrong.
func TestCarrier(t *testing.T) {
	const there, beside, theirs, others = "172.20.3.9", "172.20.4.9", "10.50.0.7", "10.50.0.8"
	// carried is a node with a VXLAN to two others, of which the first or none replies.
	carried := func(kind string, replies bool) *testNode {
		n := overTunnel(kind, "flannel.1").with(model.SourceBridge)
		if kind == "vxlan" {
			n.Links[len(n.Links)-1].TunnelPort = 8472
		}
		n.route(model.Route{Dst: prefix("172.20.4.0/24"), Gateway: addr("172.20.4.0"), IfIndex: 7})
		for i, hop := range []string{"172.20.3.0", "172.20.4.0"} {
			m := model.MAC{2, 0, 0, 0, 7, byte(i)}
			n.Neighbors = append(n.Neighbors, model.Neighbor{Addr: addr(hop), MAC: m, IfIndex: 7, Link: "flannel.1", State: "PERMANENT"})
			n.FDB = append(n.FDB, model.FDBEntry{MAC: m, IfIndex: 7, End: addr([]string{theirs, others}[i]), Static: true})
		}
		if kind == "ipip" {
			n.unroute("172.20.3.0/24")
			n.route(model.Route{Dst: prefix("172.20.3.0/24"), Gateway: addr(theirs), IfIndex: 7})
		}
		n.tracked(pod5, there, tcp, 80, 9, replies)
		n.tracked(pod6, beside, tcp, 80, 9, true)
		n.chain(model.NFT, "ip", "filter", "INPUT", "INPUT", "ACCEPT", 0)
		n.chain(model.NFT, "ip", "filter", "OUTPUT", "OUTPUT", "ACCEPT", 0)
		return n.live()
	}
	drops := func(n *testNode, chain string, delta uint64, r model.PacketRule) *testNode {
		r.Target = "DROP"
		n.filter(model.NFT, chain, delta, r)
		return n
	}
	vxlan := model.PacketRule{Proto: 17, DstPorts: onPort(8472), Text: "-p udp --dport 8472 -j DROP"}
	from := vxlan
	from.Src, from.Text = to(theirs+"/32"), "-s 10.50.0.7/32 -p udp --dport 8472 -j DROP"
	toThem := vxlan
	toThem.Dst, toThem.Text = to(theirs+"/32"), "-d 10.50.0.7/32 -p udp --dport 8472 -j DROP"
	situations(t, []situation{
		{"a rule drops what comes from one node", func() *testNode { return drops(carried("vxlan", false), "INPUT", 40, from) },
			[]string{"warning PolicyDrop"}, "-D INPUT -s 10.50.0.7/32", "leave flannel.1 correctly"},
		{"a rule drops what leaves for it", func() *testNode { return drops(carried("vxlan", false), "OUTPUT", 40, toThem) },
			[]string{"warning PolicyDrop"}, "-D OUTPUT -d 10.50.0.7/32", "leave flannel.1 correctly"},
		{"a rule drops the protocol of an IPIP tunnel", func() *testNode {
			return drops(carried("ipip", false), "INPUT", 40, model.PacketRule{Proto: 4, Text: "-p 4 -j DROP"})
		}, []string{"warning PolicyDrop"}, "-D INPUT -p 4", ""},
		{"a policy drops what no rule accepts", func() *testNode {
			n := carried("vxlan", false)
			n.Chains[len(n.Chains)-2].Policy = "DROP"
			n.filter(model.NFT, "INPUT", 90, model.PacketRule{Unknown: []string{"conntrack --ctstate ESTABLISHED,RELATED"}, Target: "ACCEPT"})
			n.filter(model.NFT, "INPUT", 9, model.PacketRule{Proto: 6, DstPorts: onPort(22), Target: "ACCEPT"})
			return n
		}, []string{"warning PolicyDrop"}, "-I INPUT -s 10.50.0.7 -p udp --dport 8472 -j ACCEPT", "-P INPUT ACCEPT"},
		{"healthy: the rule is about another port, and all reply", func() *testNode {
			other := vxlan
			other.DstPorts = onPort(4789)
			return drops(carried("vxlan", true), "INPUT", 40, other)
		}, nil, "", ""},
		{"silent beyond the node: a rule about another port", func() *testNode {
			other := vxlan
			other.DstPorts = onPort(4789)
			return drops(carried("vxlan", false), "INPUT", 40, other)
		}, []string{"warning NoReply"}, "", "DROP"},
		{"two next hops with one node", func() *testNode {
			n := carried("vxlan", false)
			n.FDB[len(n.FDB)-2].End = addr(others)
			return n
		}, []string{"critical StaleFDB"}, "02:00:00:00:07:00 dev flannel.1 dst NODE", ""},
		{"the entry has another node than the one with the range", func() *testNode {
			n := carried("vxlan", false)
			n.FDB[len(n.FDB)-2].End = addr("10.50.0.99")
			n.Cluster.Nodes = []model.ClusterNode{{Name: "far", Addresses: []netip.Addr{addr(theirs)}, PodCIDRs: []netip.Prefix{prefix("172.20.3.0/24")}}}
			return n
		}, []string{"critical StaleFDB"}, "bridge fdb replace 02:00:00:00:07:00 dev flannel.1 dst 10.50.0.7 self permanent", ""},
		{"healthy: two next hops with one node, and both reply", func() *testNode {
			n := carried("vxlan", true)
			n.FDB[len(n.FDB)-2].End = addr(others)
			return n
		}, nil, "", ""},
		{"the route to one range by the tunnel is gone, and the filter refuses what comes from there", func() *testNode {
			n := carried("vxlan", true)
			n.unroute("172.20.3.0/24")
			n.Flows = nil
			n.silent(pod5, there)
			n.dropOn("flannel.1", "IP_RPFILTER", "ip_rcv_finish_core", there, pod6, 40)
			return n
		}, []string{"critical MissingNodeRoute"}, "ip route replace 172.20.3.0/24 via 172.20.3.0 dev flannel.1 onlink", "rp_filter"},
		{"a rule drops by the tunnel's link", func() *testNode {
			n := carried("vxlan", true)
			n.Flows = nil
			d := n.dropOn("veth5", "NETFILTER_DROP", "nft_do_chain", pod5, there, 40)
			d.Proto = 6
			n.chain(model.NFT, "ip", "filter", "FORWARD", "FORWARD", "ACCEPT", 0)
			n.filter(model.NFT, "FORWARD", 40, model.PacketRule{Dst: to("172.20.3.0/24"), Out: onLink("flannel.1"), Target: "DROP", Text: "-d 172.20.3.0/24 -o flannel.1 -j DROP"})
			return n
		}, []string{"warning PolicyDrop"}, "-D FORWARD -d 172.20.3.0/24 -o flannel.1 -j DROP", ""},
	})
}
