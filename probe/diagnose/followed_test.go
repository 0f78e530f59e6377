package diagnose

import (
	"net/netip"
	"testing"

	"github.com/lasthop/lasthop/probe/model"
)

// byPod is a node with a pod that sends to a range by another pod of its bridge, which forwards or not.
func byPod(forwards bool) *testNode {
	n := kubenet().live().with(model.SourcePrograms)
	n.inner(0, pod5+"/24", "0.0.0.0/0 via 172.20.1.1", "198.51.100.0/24 via "+pod6)
	n.inner(1, pod6+"/24", "0.0.0.0/0 via 172.20.1.1")
	n.exchanges(0, pod5)
	n.exchanges(1, pod6)
	if !forwards {
		n.dropOn("eth0", "IP_INADDRERRORS", "ip_error", pod5, "198.51.100.7", 30).Netns = n.Pods[1].Netns
	}
	return n
}

// unsentTo is a node with flows to an address of which no packet gets to the uplink. A route of the pod's own leads by another
// pod, or by the node.
func unsentTo(via string) *testNode {
	n := kubenet().live().with(model.SourcePrograms)
	n.inner(0, pod5+"/24", "0.0.0.0/0 via 172.20.1.1", "198.51.100.0/24 via "+via)
	n.inner(1, pod6+"/24", "0.0.0.0/0 via 172.20.1.1")
	n.tracked(pod5, "198.51.100.7", tcp, 80, 9, false)
	for i := range n.Flows {
		n.Flows[i].Start = n.Window.Start.Add(n.Window.Duration() / 4)
	}
	return n
}

// checked is a bridged node whose rules accept one MAC from a pod's link alone.
func checked(accepted string) *testNode {
	n := kubenet().live()
	p := &n.Pods[0]
	p.Interface = "eth0"
	from := model.MACMatch{Set: true, Addr: mac(accepted), Mask: model.Broadcast}
	n.Chains = append(n.Chains, model.Chain{Backend: model.NFT, Family: "bridge", Table: "nat", Name: "PREROUTING", Hook: "PREROUTING", Priority: -300},
		model.Chain{Backend: model.NFT, Family: "bridge", Table: "nat", Name: "check"})
	rule := func(chain string, number int, r model.FrameRule) {
		r.Backend, r.Table, r.Chain, r.Number, r.Native, r.Handle = model.NFT, "nat", chain, number, true, uint64(number)
		n.FrameRules = append(n.FrameRules, r)
	}
	rule("PREROUTING", 1, model.FrameRule{In: onLink(p.Link), Target: model.TargetJump, TargetName: "check"})
	rule("check", 2, model.FrameRule{SrcMAC: from, Target: model.TargetReturn})
	drop := model.FrameRule{Target: model.TargetDrop, Text: "counter drop"}
	if p.MAC != mac(accepted) {
		drop.Counter = model.Counter{Packets: 12, Delta: 12}
		n.neighbor(pod5, accepted, 3, "REACHABLE")
		n.frames(pod5, 3, model.Egress, model.AsDestination, accepted, 30)
		n.arp("172.20.1.1", p.LinkIndex, model.Ingress, false, p.MAC.String(), 8)
		p.Gateways = []model.Neighbor{{Addr: addr("172.20.1.1"), State: "INCOMPLETE"}}
	}
	rule("check", 3, drop)
	return n
}

// secondBridge is a node with a bridge of a second network, in which pods look for an address by the node.
func secondBridge(answers bool) *testNode {
	n := kubenet().live()
	n.bridgeOf(7, "br-net1", "0a:00:00:00:00:07", "192.0.2.1/24")
	n.route(model.Route{Dst: prefix("192.0.2.0/24"), IfIndex: 7})
	n.pod("192.0.2.10", "0a:58:00:00:02:10", 7)
	n.arp("192.0.2.20", 7, model.Egress, false, "0a:00:00:00:00:07", 9)
	if answers {
		n.arp("192.0.2.20", 7, model.Ingress, true, "0a:58:00:00:02:20", 9)
		n.neighbor("192.0.2.20", "0a:58:00:00:02:20", 7, "REACHABLE")
		return n
	}
	n.neighbor("192.0.2.20", "", 7, "INCOMPLETE")
	n.dropOn("br-net1", "NEIGH_FAILED", "neigh_invalidate", pod5, "192.0.2.20", 30)
	return n
}

// TestFollowed: what one thing breaks is one finding, whose fix mends it, beside a node that only looks alike.
func TestFollowed(t *testing.T) {
	redirected := func(to uint16) *testNode {
		n := routed()
		p := &n.Pods[0]
		p.Netns = 100
		p.Inside = &model.Inside{PacketRules: []model.PacketRule{{Backend: model.NFT, Family: "ip", Table: "nat", Chain: "PREROUTING", Native: true,
			Proto: tcp, Target: "REDIRECT", ToPorts: model.PortRange{First: to, Last: to}, Text: "meta l4proto tcp redirect to :4143"}}}
		d := n.drop("NO_SOCKET", "tcp_v4_rcv", far, "10.50.0.20", 30)
		d.Netns, d.Proto = 100, tcp
		n.sampled(d, head(tcp, 4143, 2))
		return n
	}
	situations(t, []situation{
		{"a pod is the next hop of another's route, and does not forward", func() *testNode { return byPod(false) },
			[]string{"warning ForwardingDisabled"}, "sysctl -w net.ipv4.ip_forward=1", ""},
		{"a pod is the next hop of another's route, and forwards", func() *testNode { return byPod(true) }, nil, "", ""},
		{"flows by the node do not get to the uplink", func() *testNode { return unsentTo("172.20.1.1") },
			[]string{"critical UnexplainedDrop"}, "routed to ens5", ""},
		{"flows by another pod get no reply", func() *testNode { return unsentTo(pod6) },
			[]string{"warning UnexplainedDrop"}, "through the pod behind tap11, and gets no reply", ""},
		{"flows by another pod get replies", func() *testNode {
			n := unsentTo(pod6)
			for i := range n.Flows {
				n.Flows[i].Replied = true
			}
			return n
		}, nil, "", ""},
		{"a rule accepts another MAC than the pod has", func() *testNode { return checked("0a:58:00:00:00:99") },
			[]string{"warning BridgeRuleDrop"}, "ip link set dev eth0 address 0a:58:00:00:00:99", "nft delete"},
		{"a rule accepts the pod's MAC", func() *testNode { return checked("0a:58:00:00:00:05") }, nil, "", ""},
		{"nobody has an address of a second network", func() *testNode { return secondBridge(false) },
			[]string{"warning UnansweredARP"}, "no pod has 192.0.2.20", ""},
		{"somebody has an address of a second network", func() *testNode { return secondBridge(true) }, nil, "", ""},
		{"a pod's rule redirects to a port that nobody has", func() *testNode { return redirected(4143) },
			[]string{"warning NoListener"}, "redirects there: nat PREROUTING", ""},
		{"a pod's rule redirects to another port", func() *testNode { return redirected(15006) }, nil, "nothing listens", ""},
	})
}

// TestNeighborTried: a neighbour entry is deleted on the model before that is called a fix.
func TestNeighborTried(t *testing.T) {
	pinned := func(floods bool) *testNode {
		n := unflooded(func(p *model.BridgePort) { p.BroadcastFlood = floods })
		n.Traffic.Drops, n.Traffic.ARP, n.Neighbors = nil, nil, n.Neighbors[:1]
		n.neighbor(pod5, deadMAC, 3, "PERMANENT")
		n.frames(pod5, 3, model.Egress, model.AsDestination, deadMAC, 30)
		n.peer(pod5, out, none, syn)
		return n
	}
	remedies(t, []remedy{
		{"the pod hears the request for its MAC", func() *testNode { return pinned(true) }, "StaleNeighbor",
			[]string{"ip neigh del " + pod5}, "next:"},
		{"the bridge keeps the request from the pod", func() *testNode { return pinned(false) }, "StaleNeighbor",
			[]string{"next: ip neigh del " + pod5}, ""},
	})
}

// TestTunnelHops: what lacks or changes several entries of one tunnel is one cause.
func TestTunnelHops(t *testing.T) {
	lacking := func(answers bool) *testNode {
		n := overTunnel("vxlan", "flannel.1").with(model.SourceBridge)
		n.route(model.Route{Dst: prefix("172.20.4.0/24"), Gateway: addr("172.20.4.0"), IfIndex: 7})
		for i, hop := range []string{"172.20.3.0", "172.20.4.0"} {
			m := model.MAC{2, 0, 0, 0, 7, byte(i)}
			n.Neighbors = append(n.Neighbors, model.Neighbor{Addr: addr(hop), MAC: m, IfIndex: 7, State: "PERMANENT"})
			n.clusterNode([]string{"10.50.0.7", "10.50.0.8"}[i], netip.PrefixFrom(addr(hop), 24).String())
			remote := addr(hop).Next().String()
			n.tracked(pod5, remote, tcp, 80, 9, answers)
			if answers {
				n.FDB = append(n.FDB, model.FDBEntry{MAC: m, IfIndex: 7, End: addr("10.50.0.7"), Static: true})
				continue
			}
			n.dropOn("flannel.1", "NO_TX_TARGET", "vxlan_xmit", pod5, remote, 30).IfIndex = 7
		}
		return n
	}
	situations(t, []situation{
		{"two entries are gone", func() *testNode { return lacking(false) }, []string{"critical StaleFDB"},
			"bridge fdb append 02:00:00:00:07:01 dev flannel.1 dst 10.50.0.8 self permanent", ""},
		{"two entries, and all reply", func() *testNode { return lacking(true) }, nil, "", ""},
	})
}
