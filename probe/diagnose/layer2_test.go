package diagnose

import (
	"net/netip"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/lasthop/lasthop/probe/model"
)

// routedNode is a node whose pods have a link and a route each.
func routedNode() *testNode {
	n := newNode("nic0", "10.60.0.4", "10.60.0.0/16", "10.60.0.1")
	n.pod("10.60.0.20", "0a:58:00:00:00:20", 0)
	n.pod("10.60.0.21", "0a:58:00:00:00:21", 0)
	for i := range n.Pods {
		p := &n.Pods[i]
		n.Routes = append(n.Routes, model.Route{Table: 254, Dst: p.Addresses[0], IfIndex: p.LinkIndex, Type: "unicast"})
		n.gateway(p, "169.254.1.1", n.hostMAC(p).String(), "REACHABLE")
	}
	return n.with(model.SourceBridge, model.SourceSysctl)
}

// with adds sources that were read whole.
func (n *testNode) with(sources ...string) *testNode {
	for _, s := range sources {
		n.Sources = append(n.Sources, model.Source{Name: s, Status: model.OK})
	}
	return n
}

func (n *testNode) link(index int) *model.Link {
	return &n.Links[slices.IndexFunc(n.Links, func(l model.Link) bool { return l.Index == index })]
}

func (n *testNode) hostMAC(p *model.Pod) model.MAC { return n.link(p.LinkIndex).MAC }

// gateway sets what a pod holds for its gateway.
func (n *testNode) gateway(p *model.Pod, a, hw, state string) {
	g := model.Neighbor{Addr: addr(a), State: state}
	if hw != "" {
		g.MAC = mac(hw)
	}
	p.Gateways = []model.Neighbor{g}
}

// neighbor adds an entry of the node.
func (n *testNode) neighbor(a, hw string, ifindex int, state string) {
	e := model.Neighbor{Addr: addr(a), IfIndex: ifindex, State: state}
	if hw != "" {
		e.MAC = mac(hw)
	}
	n.Neighbors = append(n.Neighbors, e)
}

// frames adds frames of an address at a link.
func (n *testNode) frames(a string, ifindex int, d model.Direction, side model.Side, dst string, packets uint64) {
	n.Traffic.MACs = append(n.Traffic.MACs, model.MACPair{Addr: addr(a), IfIndex: ifindex, Link: n.link(ifindex).Name,
		Direction: d, Side: side, Dst: mac(dst), Packets: packets})
}

func (n *testNode) arp(a string, ifindex int, d model.Direction, reply bool, hw string, packets uint64) {
	n.Traffic.ARP = append(n.Traffic.ARP, model.ARPCount{IfIndex: ifindex, Link: n.link(ifindex).Name, Direction: d,
		Reply: reply, Addr: addr(a), MAC: mac(hw), Packets: packets})
}

// silentNextHop is a node that gets no answer for its own gateway.
func silentNextHop() *testNode {
	n := routedNode()
	n.drop("NEIGH_FAILED", "neigh_invalidate", "10.60.0.20", "203.0.113.9", 9).IfIndex = 2
	n.arp("10.60.0.1", 2, model.Egress, false, "00:0d:3a:00:00:01", 9)
	n.neighbor("10.60.0.1", "", 2, "FAILED")
	return n
}

// mutedMasquerade is a node whose gateway has no MAC, and whose pods' packets bear the
// node's address there.
func mutedMasquerade(replied bool) *testNode {
	n := kubenet().live()
	n.Neighbors[0] = model.Neighbor{Addr: addr("10.50.0.1"), IfIndex: 2, State: "INCOMPLETE"}
	n.arp("10.50.0.1", 2, model.Egress, false, nicMAC, 9)
	for i := range 5 {
		n.Flows = append(n.Flows, model.Flow{Proto: tcp, Start: start, Replied: replied && i == 0,
			Original: model.Tuple{Src: addr("172.20.1.5"), Dst: addr("203.0.113.9"), DstPort: 443},
			Reply:    model.Tuple{Src: addr("203.0.113.9"), Dst: addr("10.50.0.4"), SrcPort: 443}})
	}
	return n
}

// silentGateway is a node that does not answer a pod for its gateway.
func silentGateway() *testNode {
	n := routedNode()
	n.gateway(&n.Pods[0], "169.254.1.1", "", "INCOMPLETE")
	n.arp("169.254.1.1", 10, model.Ingress, false, "0a:58:00:00:00:20", 7)
	n.Sysctls = []model.Sysctl{
		{Name: "net.ipv4.conf.tap10.proxy_arp", Value: "0"},
		{Name: "net.ipv4.conf.all.proxy_arp", Value: "0"},
	}
	return n
}

// dropRule adds a rule of the bridge that drops, and what it counted.
func (n *testNode) dropRule(r model.FrameRule, delta uint64) *model.FrameRule {
	r.Target, r.Counter.Delta = model.TargetDrop, delta
	added := n.frameRule(r)
	added.Table, added.Chain = "filter", "FORWARD"
	return added
}

func TestLayer2(t *testing.T) {
	tests := []struct {
		name string
		node func() *testNode
		want []string
	}{
		{"routed pods, all well", routedNode, nil},
		{"the host link has another MAC than the pod believes", func() *testNode {
			n := routedNode()
			n.gateway(&n.Pods[0], "169.254.1.1", deadMAC, "REACHABLE")
			n.frames("10.60.0.20", 10, model.Ingress, model.AsSource, deadMAC, 30)
			n.drop("OTHERHOST", "ip_rcv_core", "10.60.0.20", "203.0.113.9", 30).DstMAC = mac(deadMAC)
			return n
		}, []string{"WrongGatewayMAC proven 10.60.0.20"}},
		{"pinned wrong and no traffic", func() *testNode {
			n := routedNode()
			n.gateway(&n.Pods[0], "169.254.1.1", deadMAC, "PERMANENT")
			return n
		}, []string{"WrongGatewayMAC proven 10.60.0.20"}},
		{"learnt wrong and no traffic", func() *testNode {
			n := routedNode()
			n.gateway(&n.Pods[0], "169.254.1.1", deadMAC, "STALE")
			return n
		}, []string{"WrongGatewayMAC possible 10.60.0.20"}},
		{"a young pod's entry is still to settle", func() *testNode {
			n := routedNode()
			n.gateway(&n.Pods[0], "169.254.1.1", deadMAC, "STALE")
			n.Pods[0].Since = start.Add(time.Second)
			return n
		}, nil},
		{"the pod has no entry, or a failed one", func() *testNode {
			n := routedNode()
			n.gateway(&n.Pods[0], "169.254.1.1", "", "")
			n.gateway(&n.Pods[1], "169.254.1.1", deadMAC, "FAILED")
			return n
		}, nil},
		{"a gateway that did not answer at the last moment, and packets pass", func() *testNode {
			n := routedNode()
			n.gateway(&n.Pods[0], "169.254.1.1", "", "FAILED")
			n.Pods[0].Routes = []model.Route{
				{Dst: prefix("169.254.1.1/32"), IfIndex: 1, Type: "unicast"},
				{Dst: prefix("0.0.0.0/0"), Gateway: addr("169.254.1.1"), IfIndex: 1, Type: "unicast"},
			}
			n.peer("10.60.0.20", "203.0.113.9", model.PeerCount{Packets: 48, Requests: 48}, model.PeerCount{Packets: 48, Replies: 48})
			return n
		}, nil},
		{"a gateway of a family that the pod has no address of", func() *testNode {
			n := routedNode()
			n.gateway(&n.Pods[0], "fe80::1", deadMAC, "PERMANENT")
			return n
		}, nil},
		{"bridged pods know the bridge", func() *testNode {
			n := kubenet().with(model.SourceBridge)
			n.gateway(&n.Pods[0], "172.20.1.1", "0a:00:00:00:00:03", "REACHABLE")
			n.gateway(&n.Pods[1], "172.20.1.1", deadMAC, "PERMANENT")
			return n
		}, []string{"WrongGatewayMAC proven 172.20.1.6"}},
		{"the gateway is the fabric's", func() *testNode {
			n := bridged().with(model.SourceBridge)
			n.neighbor("10.60.0.1", fabricMAC, 3, "REACHABLE")
			n.gateway(&n.Pods[0], "10.60.0.1", fabricMAC, "REACHABLE")
			n.gateway(&n.Pods[1], "10.60.0.1", deadMAC, "PERMANENT")
			return n
		}, []string{"WrongGatewayMAC proven 10.60.0.21"}},
		{"nobody knows the far gateway's MAC", func() *testNode {
			n := bridged().with(model.SourceBridge)
			n.gateway(&n.Pods[1], "10.60.0.1", deadMAC, "PERMANENT")
			n.Neighbors = nil
			return n
		}, nil},
		{"the node pins a dead MAC for a routed pod", func() *testNode {
			n := routedNode()
			n.neighbor("10.60.0.20", deadMAC, 10, "PERMANENT")
			n.drop("OTHERHOST", "ip_rcv_core", "203.0.113.9", "10.60.0.20", 30).DstMAC = mac(deadMAC)
			return n
		}, []string{"StaleNeighbor proven 10.60.0.20"}},
		{"the right entry, and one on a link that is not the way to the pod", func() *testNode {
			n := routedNode()
			n.neighbor("10.60.0.20", "0a:58:00:00:00:20", 10, "REACHABLE")
			n.neighbor("10.60.0.20", deadMAC, 2, "PERMANENT")
			return n
		}, nil},
		{"an entry of azure-vnet's on the bridge for a pod that moved", func() *testNode {
			n := bridged()
			n.neighbor("10.60.0.20", "0a:58:00:00:00:20", 3, "PERMANENT")
			n.neighbor("10.60.0.21", deadMAC, 3, "PERMANENT")
			return n
		}, []string{"StaleNeighbor proven 10.60.0.21"}},
		{"a learnt entry is old, and nobody asks", func() *testNode {
			n := routedNode()
			n.neighbor("10.60.0.20", deadMAC, 10, "STALE")
			return n
		}, []string{"StaleNeighbor possible 10.60.0.20"}},
		{"a learnt entry of an address that was just given anew", func() *testNode {
			n := routedNode()
			n.neighbor("10.60.0.20", deadMAC, 10, "STALE")
			n.Pods[0].Since = start.Add(time.Second)
			return n
		}, nil},
		{"a failed entry is only a memory", func() *testNode {
			n := routedNode()
			n.neighbor("10.60.0.20", "", 10, "FAILED")
			return n
		}, nil},
		{"a running pod that does not answer", func() *testNode {
			n := routedNode()
			n.neighbor("10.60.0.20", "", 10, "FAILED")
			n.drop("NEIGH_FAILED", "neigh_invalidate", "203.0.113.9", "10.60.0.20", 5)
			return n
		}, []string{"StaleNeighbor likely 10.60.0.20"}},
		{"the routes are unread", func() *testNode {
			n := routedNode()
			n.neighbor("10.60.0.20", deadMAC, 10, "PERMANENT")
			n.lose(model.SourceRoutes, model.Partial)
			return n
		}, nil},
		{"two live pods have one address", func() *testNode {
			n := routedNode()
			n.pod("10.60.0.20", "0a:58:00:00:00:99", 0)
			n.drop("NO_SOCKET", "tcp_v4_rcv", "203.0.113.9", "10.60.0.20", 30)
			return n
		}, []string{"DuplicatePodIP proven 10.60.0.20"}},
		{"the node takes a pod's address for its own", func() *testNode {
			n := routedNode()
			n.Routes = append(n.Routes, model.Route{Table: 255, Dst: prefix("10.60.0.20/32"), IfIndex: 10, Type: "local"})
			n.drop("IP_LOCAL_SOURCE", "ip_rcv_finish_core", "10.60.0.20", "203.0.113.9", 30)
			n.drop("NO_SOCKET", "tcp_v4_rcv", "203.0.113.9", "10.60.0.20", 30)
			return n
		}, []string{"DuplicatePodIP proven 10.60.0.20 203.0.113.9"}},
		{"the node takes the address of another machine for its own", func() *testNode {
			n := routedNode()
			n.Routes = append(n.Routes, model.Route{Table: 255, Dst: prefix("10.61.0.9/32"), IfIndex: 10, Type: "local"})
			n.dropOn(n.Links[0].Name, "IP_LOCAL_SOURCE", "ip_rcv_finish_core", "10.61.0.9", "10.60.0.20", 30)
			return n
		}, []string{"DuplicatePodIP proven 10.60.0.20 10.61.0.9"}},
		{"a rule's table has such a route, which packets with a mark take", func() *testNode {
			n := routedNode()
			n.Routes = append(n.Routes, model.Route{Table: 100, Dst: prefix("10.60.0.20/32"), IfIndex: 10, Type: "local"})
			return n
		}, nil},
		{"an address is handed over", func() *testNode {
			n := routedNode()
			n.pod("10.60.0.20", "0a:58:00:00:00:99", 0)
			n.Pods[2].Since = end.Add(-time.Second)
			return n
		}, nil},
		{"the other interface with the address is down", func() *testNode {
			n := routedNode()
			n.pod("10.60.0.20", "0a:58:00:00:00:99", 0)
			n.Pods[2].Up, n.Pods[2].Since = false, end.Add(-time.Second)
			return n
		}, nil},
		{"two links of one namespace share an address", func() *testNode {
			n := routedNode()
			n.pod("10.60.0.20", "0a:58:00:00:00:99", 0)
			n.Pods[0].Netns, n.Pods[2].Netns = 7, 7
			return n
		}, nil},
		{"a machine beyond the node answers for a pod", func() *testNode {
			n := bridged()
			n.arp("10.60.0.20", 2, model.Ingress, true, deadMAC, 5)
			n.arp("10.60.0.20", 10, model.Ingress, true, "0a:58:00:00:00:20", 5)
			return n
		}, []string{"DuplicatePodIP likely 10.60.0.20"}},
		{"the fabric answers for all", func() *testNode {
			n := bridged()
			n.arp("10.60.0.20", 2, model.Ingress, true, fabricMAC, 5)
			n.arp("10.60.0.20", 2, model.Ingress, true, deadMAC, 5)
			n.arp("10.60.0.5", 2, model.Ingress, true, deadMAC, 5)
			return n
		}, nil},
		{"a pod that went away had the address before", func() *testNode {
			n := bridged()
			n.arp("10.60.0.20", 11, model.Ingress, true, deadMAC, 5)
			n.PastPods = []model.Pod{{Addresses: []netip.Prefix{prefix("10.60.0.20/32")}, MAC: mac(deadMAC)}}
			return n
		}, nil},
		{"the host side of a pod's link is down", func() *testNode {
			n := routedNode()
			n.link(10).Up, n.link(10).Carrier = false, false
			n.drop("QDISC_DROP", "__dev_queue_xmit", "203.0.113.9", "10.60.0.20", 30)
			return n
		}, []string{"PodLinkDown proven 10.60.0.20"}},
		{"the host side was set down, and drops had ended before", func() *testNode {
			n := routedNode()
			n.link(10).Up, n.link(10).Carrier = false, false
			n.Changes = []model.Change{{At: start.Add(6 * time.Second), Kind: model.ChangedLink, Deleted: true, Link: 10}}
			d := n.drop("NETFILTER_DROP", "nft_do_chain", "203.0.113.9", "10.60.0.20", 30)
			d.First, d.Last = start.Add(time.Second), start.Add(4*time.Second)
			d = n.drop("QDISC_DROP", "__dev_queue_xmit", "203.0.113.9", "10.60.0.20", 30)
			d.First, d.Last = start.Add(6*time.Second), end
			return n
		}, []string{"PodLinkDown proven 10.60.0.20", "PolicyDrop likely 10.60.0.20 203.0.113.9"}},
		{"the host side was down before, and then again", func() *testNode {
			n := routedNode()
			n.link(10).Up, n.link(10).Carrier = false, false
			n.Changes = []model.Change{{At: start.Add(3 * time.Second), Kind: model.ChangedLink, Link: 10},
				{At: start.Add(6 * time.Second), Kind: model.ChangedLink, Deleted: true, Link: 10}}
			d := n.drop("QDISC_DROP", "__dev_queue_xmit", "203.0.113.9", "10.60.0.20", 30)
			d.First, d.Last = start.Add(time.Second), start.Add(3*time.Second)
			return n
		}, []string{"PodLinkDown proven 10.60.0.20"}},
		{"the pod's side is down", func() *testNode {
			n := kubenet()
			n.link(11).Carrier, n.Pods[1].Up = false, false
			n.drop("NEIGH_FAILED", "neigh_invalidate", "172.20.1.5", "172.20.1.6", 30)
			return n
		}, []string{"PodLinkDown proven 172.20.1.6"}},
		{"no carrier, though both sides are up", func() *testNode {
			n := routedNode()
			n.link(10).Carrier = false
			return n
		}, []string{"PodLinkDown likely 10.60.0.20"}},
		{"a pod is being made", func() *testNode {
			n := routedNode()
			n.link(10).Up, n.link(10).Carrier, n.Pods[0].Since = false, false, end.Add(-time.Second)
			n.link(11).Up, n.link(11).Carrier, n.Pods[1].Addresses = false, false, nil
			return n
		}, nil},
		{"the links are not all read", func() *testNode {
			n := routedNode()
			n.link(10).Up = false
			n.lose(model.SourceLinks, model.Partial)
			return n
		}, nil},
		{"a rule drops a pod's frames", func() *testNode {
			n := bridged()
			n.dropRule(model.FrameRule{EtherType: 0x0800, IPDst: model.AddrMatch{Prefix: prefix("10.60.0.20/32")}}, 30)
			n.drop("NETFILTER_DROP", "nft_do_chain", "10.60.0.21", "10.60.0.20", 28).IfIndex = 10
			return n
		}, []string{"BridgeRuleDrop proven 10.60.0.20 10.60.0.21"}},
		{"two rules share the drops of one pair", func() *testNode {
			n := bridged()
			n.dropRule(model.FrameRule{IPDst: model.AddrMatch{Prefix: prefix("10.60.0.20/32")}, Text: "--ip-dst 10.60.0.20 -j DROP"}, 30)
			n.dropRule(model.FrameRule{IPDst: model.AddrMatch{Prefix: prefix("10.60.0.0/24")}, Text: "--ip-dst 10.60.0.0/24 -j DROP"}, 30)
			n.drop("NETFILTER_DROP", "nft_do_chain", "203.0.113.9", "10.60.0.20", 50).IfIndex = 10
			return n
		}, []string{"BridgeRuleDrop proven 10.60.0.20 203.0.113.9", "BridgeRuleDrop proven 10.60.0.20 10.60.0.21 203.0.113.9"}},
		{"iptables dropped more than the bridge's rule", func() *testNode {
			n := bridged()
			n.dropRule(model.FrameRule{IPDst: model.AddrMatch{Prefix: prefix("10.60.0.20/32")}}, 3)
			n.drop("NETFILTER_DROP", "nft_do_chain", "203.0.113.9", "10.60.0.20", 50).IfIndex = 10
			return n
		}, []string{"BridgeRuleDrop proven 10.60.0.20 203.0.113.9", "UnexplainedDrop proven 10.60.0.20 203.0.113.9"}},
		{"a rule drops ARP for a pod", func() *testNode {
			n := bridged()
			n.dropRule(model.FrameRule{EtherType: 0x0806, ARPDst: model.AddrMatch{Prefix: prefix("10.60.0.20/32")}}, 8)
			n.neighbor("10.60.0.20", "", 3, "FAILED")
			n.drop("NEIGH_FAILED", "neigh_invalidate", "10.60.0.21", "10.60.0.20", 9)
			return n
		}, []string{"BridgeRuleDrop proven 10.60.0.20"}},
		{"rules that drop nothing of a pod's", func() *testNode {
			n := bridged()
			n.dropRule(model.FrameRule{IPDst: model.AddrMatch{Prefix: prefix("10.60.0.20/32")}}, 0)
			n.dropRule(model.FrameRule{EtherType: 0x88cc}, 30)
			n.dropRule(model.FrameRule{IPDst: model.AddrMatch{Prefix: prefix("10.60.0.20/32")}}, 30).Table = "broute"
			return n
		}, nil},
		{"the bridge's policy drops", func() *testNode {
			n := bridged()
			n.Chains = append(n.Chains, model.Chain{Backend: model.NFT, Family: "bridge", Table: "filter", Name: "FORWARD",
				Policy: "DROP", Counter: model.Counter{Delta: 40}})
			n.drop("NETFILTER_DROP", "nft_do_chain", "203.0.113.9", "10.60.0.20", 40).IfIndex = 10
			return n
		}, []string{"BridgeRuleDrop proven 10.60.0.20 203.0.113.9"}},
		{"proxy_arp is off", func() *testNode {
			n := silentGateway()
			n.drop("NEIGH_FAILED", "neigh_invalidate", "10.60.0.20", "203.0.113.9", 9)
			return n
		}, []string{"UnansweredARP proven 10.60.0.20"}},
		{"other pods need no answer", func() *testNode {
			n := silentGateway()
			n.pod("10.60.0.77", "0a:58:00:00:00:77", 0)
			n.gateway(&n.Pods[len(n.Pods)-1], "169.254.1.1", n.Links[len(n.Links)-1].MAC.String(), "PERMANENT")
			return n
		}, []string{"UnansweredARP proven 10.60.0.20"}},
		{"proxy_arp is on, and still nobody answers", func() *testNode {
			n := silentGateway()
			n.Sysctls[0].Value = "1"
			return n
		}, []string{"UnansweredARP likely 10.60.0.20"}},
		{"nobody answers, since a route discards what is for the pod", func() *testNode {
			n := silentGateway()
			n.Sysctls[0].Value = "1"
			n.unroute("10.60.0.20/32")
			n.Routes = append(n.Routes, model.Route{Table: 254, Dst: prefix("10.60.0.20/32"), Type: "blackhole"})
			n.drop("NOT_SPECIFIED", "ip_error", "203.0.113.9", "10.60.0.20", 40).Link = "ens5"
			return n
		}, []string{"BlackholeRoute proven 10.60.0.20 203.0.113.9"}},
		{"the gateway answers later", func() *testNode {
			n := silentGateway()
			n.arp("169.254.1.1", 10, model.Egress, true, "fe:00:00:00:00:0a", 1)
			return n
		}, nil},
		{"the pod asks for nothing", func() *testNode {
			n := silentGateway()
			n.Traffic.ARP = nil
			return n
		}, nil},
		{"ARP was not watched", func() *testNode {
			n := silentGateway()
			n.Traffic.ARP = nil
			n.lose(model.SourceTC, model.Missing)
			return n
		}, []string{"UnansweredARP possible 10.60.0.20"}},
		{"a link that is down answers nothing", func() *testNode {
			n := silentGateway()
			n.link(10).Carrier, n.Pods[0].Up = false, false
			return n
		}, []string{"PodLinkDown proven 10.60.0.20"}},
		{"pods keep asking for an address that nobody has", func() *testNode {
			n := kubenet()
			n.drop("NEIGH_FAILED", "neigh_invalidate", "172.20.1.5", "172.20.1.99", 9)
			n.arp("172.20.1.99", 10, model.Ingress, false, "0a:58:00:00:00:05", 9)
			return n
		}, []string{"UnansweredARP likely 172.20.1.5 172.20.1.99"}},
		{"pods keep asking for several such addresses", func() *testNode {
			n := kubenet()
			n.vacant(2)
			return n
		}, []string{"UnansweredARP likely 172.20.1.5 172.20.1.100 172.20.1.101"}},
		{"nobody answers for the gateway, and all that goes there has the node's address", func() *testNode {
			return mutedMasquerade(false)
		}, []string{"UnansweredARP proven 172.20.1.5 10.50.0.1"}},
		{"a gateway whose MAC is asked for anew, and what went by it was replied to", func() *testNode {
			return mutedMasquerade(true)
		}, nil},
		{"a pod has the address of its bridge", func() *testNode {
			n := kubenet().live()
			n.pod("172.20.1.1", "0a:58:00:00:de:ad", 3)
			n.live()
			for i := range 2 {
				n.gateway(&n.Pods[i], "172.20.1.1", "0a:58:00:00:de:ad", "REACHABLE")
			}
			return n
		}, []string{"DuplicatePodIP proven 172.20.1.1 172.20.1.5 172.20.1.6"}},
		{"another machine has the node's address", func() *testNode {
			n := kubenet().live()
			n.arp("10.50.0.4", 2, model.Ingress, true, "02:00:00:00:de:ad", 4)
			return n
		}, []string{"DuplicatePodIP likely"}},
		{"a virtual address of the node was another's before", func() *testNode {
			n := kubenet().live()
			n.Links[0].Addresses = append(n.Links[0].Addresses, prefix("10.50.0.200/32"))
			n.arp("10.50.0.200", 2, model.Ingress, true, "02:00:00:00:de:ad", 4)
			return n
		}, nil},
		{"nobody answers for the gateway, beyond a bridge with the NIC", func() *testNode {
			n := bridged()
			n.dropOn("azure0", "NEIGH_FAILED", "neigh_invalidate", "10.60.0.20", "203.0.113.9", 50)
			n.arp("10.60.0.1", 3, model.Egress, false, nicMAC, 9)
			n.arp("10.60.0.1", 2, model.Egress, false, nicMAC, 9)
			return n
		}, []string{"UnansweredARP proven 10.60.0.20 10.60.0.1"}},
		{"the pods of such a bridge ask for it themselves", func() *testNode {
			n := bridged()
			n.Node.Netns = 1
			for i := range n.Pods {
				p := &n.Pods[i]
				p.Netns = uint32(70 + i)
				n.gateway(p, "10.60.0.1", "", "INCOMPLETE")
				n.arp("10.60.0.1", p.LinkIndex, model.Ingress, false, p.MAC.String(), 9)
				d := n.drop("NEIGH_FAILED", "neigh_invalidate", p.Addresses[0].Addr().String(), "203.0.113.9", 20)
				d.Netns, d.IfIndex = p.Netns, 2
			}
			n.arp("10.60.0.1", 2, model.Egress, false, nicMAC, 18)
			return n
		}, []string{"UnansweredARP proven 10.60.0.20 10.60.0.21 10.60.0.1"}},
		{"their gateway answers others", func() *testNode {
			n := bridged()
			n.gateway(&n.Pods[0], "10.60.0.1", "", "INCOMPLETE")
			n.arp("10.60.0.1", 10, model.Ingress, false, n.Pods[0].MAC.String(), 9)
			n.arp("10.60.0.1", 2, model.Egress, false, nicMAC, 18)
			n.arp("10.60.0.1", 2, model.Ingress, true, fabricMAC, 9)
			return n
		}, []string{"UnansweredARP likely 10.60.0.20"}},
		{"the node's gateway is silent", func() *testNode {
			n := silentNextHop()
			n.Flows = append(n.Flows, model.Flow{Proto: 6, Original: model.Tuple{Src: addr("10.60.0.21"), Dst: addr("203.0.113.9"), SrcPort: 4000, DstPort: 443},
				Reply: model.Tuple{Src: addr("203.0.113.9"), Dst: addr("10.60.0.4"), SrcPort: 443, DstPort: 4000}})
			n.drop("NEIGH_FAILED", "neigh_invalidate", "10.60.0.4", "203.0.113.9", 3).IfIndex = 2
			return n
		}, []string{"UnansweredARP proven 10.60.0.20 10.60.0.21 10.60.0.1"}},
		{"the node's gateway answers at last", func() *testNode {
			n := silentNextHop()
			n.arp("10.60.0.1", 2, model.Ingress, true, "12:34:56:78:9a:bc", 1)
			return n
		}, []string{"UnexplainedDrop proven 10.60.0.20 203.0.113.9"}},
		{"what the node sends of its own to a silent gateway", func() *testNode {
			n := silentNextHop()
			n.Traffic.Drops = nil
			n.drop("NEIGH_FAILED", "neigh_invalidate", "10.60.0.4", "203.0.113.9", 9).IfIndex = 2
			return n
		}, nil},
		{"pods ask for one that just went away", func() *testNode {
			n := kubenet()
			n.drop("NEIGH_FAILED", "neigh_invalidate", "172.20.1.5", "172.20.1.99", 9)
			n.arp("172.20.1.99", 10, model.Ingress, false, "0a:58:00:00:00:05", 9)
			n.PastPods = []model.Pod{{Addresses: []netip.Prefix{prefix("172.20.1.99/32")}}}
			return n
		}, nil},
	}
	for _, tt := range tests {
		t.Run(tt.name, func(t *testing.T) { verdicts(t, tt.node(), tt.want) })
	}
}

// TestSilencedBridge: one setting that keeps the node from answering several pods of a
// bridge is one cause.
func TestSilencedBridge(t *testing.T) {
	n := kubenet().with(model.SourceSysctl)
	n.sysctl("net.ipv4.conf.all.arp_ignore", "8")
	for i := range n.Pods {
		p := &n.Pods[i]
		n.gateway(p, "172.20.1.1", "", "INCOMPLETE")
		n.arp("172.20.1.1", p.LinkIndex, model.Ingress, false, "00:00:00:00:00:00", 9)
	}
	found := agreed(t, n)
	if len(found) != 1 || found[0].Code != "UnansweredARP" || len(found[0].Pods) != 2 || !slices.Equal(found[0].Fix, []string{"sysctl -w net.ipv4.conf.all.arp_ignore=0"}) {
		t.Errorf("found %+v", found)
	}
}

// TestLostGatewayEntry has a pod without the permanent entry that the others have. To
// turn proxy_arp on would be no cure: nobody answers the others either.
func TestLostGatewayEntry(t *testing.T) {
	n := silentGateway()
	n.pod("10.60.0.77", "0a:58:00:00:00:77", 0)
	n.gateway(&n.Pods[len(n.Pods)-1], "169.254.1.1", n.Links[len(n.Links)-1].MAC.String(), "PERMANENT")
	fix := Diagnose(&n.Snapshot)[0].Fix
	if len(fix) != 1 || !strings.HasSuffix(fix[0], "ip neigh replace 169.254.1.1 lladdr fe:00:00:00:00:0a dev '' nud permanent") {
		t.Errorf("the entry is not what is to be mended: %q", fix)
	}
}

// TestNoBridgePort: bridge rules harm nobody where no frame comes in by a port of a bridge.
func TestNoBridgePort(t *testing.T) {
	stale := func(n *testNode, master int) func() *testNode {
		return func() *testNode {
			n.link(2).Master, n.FrameRules = master, nil
			n.dnat("10.60.0.20", deadMAC).Counter.Added = true
			n.arpreply("10.60.0.21", deadMAC)
			return n
		}
	}
	check(t, []fixture{
		{"no bridge", stale(routedNode(), 0), nil},
		{"a link of a team", stale(routedNode(), 10), nil},
		{"a bridge's port", stale(bridged(), 3), []string{"StaleARPReply proven 10.60.0.21", "StaleMACRewrite proven 10.60.0.20"}},
	})
}

// TestFurtherAddress: an address that a pod's interface has beside the one that the node
// routes to it is no missing route, and worth a word only where packets for it go astray.
func TestFurtherAddress(t *testing.T) {
	with := func(routed, astray bool) func() *testNode {
		return func() *testNode {
			n := routedNode()
			p := &n.Pods[0]
			p.Since, p.Addresses = start.Add(-time.Hour), append(p.Addresses, prefix("10.60.0.99/32"))
			if !routed {
				n.Routes = slices.DeleteFunc(n.Routes, func(r model.Route) bool { return r.Dst == p.Addresses[0] })
			}
			if astray {
				n.passes("10.60.0.99", 2, model.Egress, model.AsDestination, 9, 1)
				n.silent("10.60.0.99", "10.60.0.5")
			}
			return n
		}
	}
	check(t, []fixture{
		{"not used", with(true, false), nil},
		{"packets for it leave the node", with(true, true), []string{"MissingPodRoute proven 10.60.0.99"}},
		{"none is routed", with(false, false), []string{"MissingPodRoute possible 10.60.0.20 10.60.0.99"}},
	})
	if f := Diagnose(&with(true, true)().Snapshot)[0]; f.Severity != model.Warning {
		t.Errorf("%s: %s", f.Severity, f.Title)
	}
}

// TestCircling: packets for a pod that leave by one end of a pair of links and come back by the
// other, until their TTL ends. What traceroute sends ends as well, at a link that packets came by.
func TestCircling(t *testing.T) {
	pair := func(ttls int, expired uint64, at int) func() *testNode {
		return func() *testNode {
			n := routedNode().with(model.SourcePrograms)
			n.Links = append(n.Links,
				model.Link{Index: 30, Name: "cilium_net", Kind: "veth", Peer: 31, PeerNetNSID: -1, Up: true, Carrier: true, Role: model.RoleRouter},
				model.Link{Index: 31, Name: "cilium_host", Kind: "veth", Peer: 30, PeerNetNSID: -1, Up: true, Carrier: true, Role: model.RoleRouter})
			n.Programs = []model.Program{{Kind: model.ProgramTCX, Name: "cil_from_host", IfIndex: 31, Link: "cilium_host", Direction: model.Egress}}
			n.passes("10.60.0.20", 31, model.Egress, model.AsDestination, 640, ttls)
			n.passes("10.60.0.20", 30, model.Ingress, model.AsDestination, 640, ttls)
			n.drop("IP_INHDR", "ip_forward", "10.60.0.21", "10.60.0.20", expired).IfIndex = at
			return n
		}
	}
	check(t, []fixture{
		{"until the TTL ends", pair(60, 10, 30), []string{"RoutingLoop proven 10.60.0.20"}},
		{"senders at many distances, and traceroute", pair(60, 10, 2), []string{"UnexplainedDrop proven 10.60.0.20 10.60.0.21"}},
		{"traceroute by the pair", pair(2, 10, 30), []string{"UnexplainedDrop proven 10.60.0.20 10.60.0.21"}},
		{"nothing ended", pair(60, 2, 30), nil},
	})
	f := Diagnose(&pair(60, 10, 30)().Snapshot)[0]
	if f.Severity != model.Critical || !strings.Contains(f.Why, "no endpoint with this address") {
		t.Errorf("%s: %s", f.Severity, f.Why)
	}
	n := pair(60, 10, 30)()
	n.Cilium.Endpoints = []model.CiliumEndpoint{{ID: 853, Namespace: "default", Name: "shop", Addresses: []netip.Addr{addr("10.60.0.20")}}}
	n.Cilium.Local = []model.CiliumAddress{{Prefix: prefix("10.60.0.21/32")}}
	told := sentences(n)
	for _, want := range []string{"the map cilium_lxc has no entry for 10.60.0.20", "the agent has 10.60.0.20 as endpoint 853 (default/shop)"} {
		if !strings.Contains(told, want) {
			t.Errorf("no %q in %s", want, told)
		}
	}
	n.Cilium.Local[0].Prefix = prefix("10.60.0.20/32")
	if f := Diagnose(&n.Snapshot)[0]; strings.Contains(f.Why, "no endpoint") {
		t.Errorf("it has the endpoint: %s", f.Why)
	}
}
