package diagnose

import (
	"net/netip"
	"testing"

	"github.com/lasthop/lasthop/probe/model"
)

// TestLedAway: something between the last hop that saw packets and the next one leads some of them elsewhere, or their replies.
func TestLedAway(t *testing.T) {
	const udp = 17
	// A rule that looks at ports selects another table.
	byPort := func(gateway string, port uint16) *testNode {
		n := routed()
		n.Rules = []model.RoutingRule{{Family: 4, Table: 255, Action: "lookup"}, {Family: 4, Priority: 32766, Table: 254, Action: "lookup"},
			{Family: 4, Priority: 30, Proto: udp, DstPorts: model.PortRange{First: port, Last: port}, Table: 77, Action: "lookup"}}
		n.route(model.Route{Table: 77, Dst: prefix("0.0.0.0/0"), Gateway: addr(gateway), IfIndex: 2})
		n.requested("10.50.0.20", "10.50.0.21", udp, 53, 9, false)
		n.toPod(1, "10.50.0.21", 90)
		return n
	}
	ownMAC := func(port int) *testNode {
		n := podBridge()
		b := n.link(3)
		n.FDB = append(n.FDB, model.FDBEntry{MAC: b.MAC, IfIndex: port, Bridge: 3, Static: true, Local: port == 3})
		n.frames(pod5, 11, model.Egress, model.AsSource, b.MAC.String(), 30)
		return n
	}
	held := func(a string, accepted bool) *testNode {
		n := kubenet().live()
		n.Links = append(n.Links, model.Link{Index: 1, Name: "lo", Up: true, Carrier: true, Addresses: []netip.Prefix{model.Host(addr(a))}})
		d := n.drop("NO_SOCKET", "tcp_v4_rcv", pod5, a, 30)
		d.Proto, d.First, d.Last = tcp, start, end
		n.sampled(d, head(tcp, 6443, synFlag))
		if accepted {
			n.tracked(pod6, a, tcp, 443, 1, true)
			n.Flows[0].State = "ESTABLISHED"
		}
		return n
	}
	// A rule gives packets the address of a link by which they do not leave.
	as := func(a string, replied bool) *testNode {
		n := kubenet().live()
		n.bridgeOf(8, "docker0", "02:42:00:00:00:08", "198.51.100.1/24")
		n.answered("10.50.0.4", "203.0.113.7")
		for range 6 {
			n.translated(pod5, out, out, a, replied)
		}
		n.peer(a, out, syn, model.Either(replied, synAck, none))
		return n
	}
	zone := func(replies uint64) *testNode {
		n := kubenet().live()
		n.Chains = append(n.Chains, model.Chain{Backend: model.NFT, Family: "ip", Table: "raw", Name: "PREROUTING", Hook: "PREROUTING", Priority: -300})
		n.PacketRules = append(n.PacketRules, model.PacketRule{Backend: model.NFT, Family: "ip", Table: "raw", Chain: "PREROUTING", Target: "CT",
			Proto: udp, Text: "-i ens5 -p udp -j CT --zone 5", Counter: model.Counter{Packets: 90, Delta: 90}})
		n.some(pod5, far, pod5, 443)
		for i := range n.Flows {
			n.Flows[i].Proto = udp
		}
		n.peer(pod5, far, model.PeerCount{Packets: 30, Other: 30}, model.PeerCount{Packets: replies, Other: replies})
		return n
	}
	situations(t, []situation{
		{"requests to a port of a pod have a table of their own", func() *testNode { return byPort("10.50.0.1", 53) },
			[]string{"warning PodNotReplying"}, "routing rule 30 leads requests to 10.50.0.21 udp/53 to ens5, not to the pod", "ss -lntu"},
		{"another port has one, and the pod does not reply", func() *testNode { return byPort("10.50.0.1", 99) },
			[]string{"warning PodNotReplying"}, "does not reply", "change the rule"},
		{"an entry leads the bridge's own MAC to a pod's port", func() *testNode { return ownMAC(11) }, []string{"critical StaleFDB"}, "for br-pods itself to tap11", ""},
		{"healthy: the bridge's own entry", func() *testNode { return ownMAC(3) }, nil, "", ""},
		{"an address of nobody's network is left on lo", func() *testNode { return held("203.0.113.80", false) }, []string{"warning NoListener"}, "an address of lo", ""},
		{"healthy: one that serves other ports", func() *testNode { return held("203.0.113.80", true) }, nil, "", ""},
		{"healthy: a private address on lo", func() *testNode { return held("10.99.0.80", false) }, nil, "", ""},
		{"packets leave with the address of a bridge", func() *testNode { return as("198.51.100.1", false) }, []string{"warning NoReply"}, "is an address of docker0", ""},
		{"healthy: they are replied to", func() *testNode { return as("198.51.100.1", true) }, nil, "", ""},
		{"healthy: connection tracking has replies in another zone, and they arrive", func() *testNode { return zone(28) }, nil, "", ""},
		{"drops on a link that a rule of nft sends packets to", func() *testNode {
			n := forwardsAt(kubenet().live(), "EGRESS", 40)
			n.bridgeOf(8, "dmy0", "02:42:00:00:00:08", "192.0.2.1/24")
			d := n.dropOn("dmy0", "NO_TX_TARGET", "br_dev_xmit", pod5, far, 40)
			d.First, d.Last = n.Window.Start, n.Window.End
			return n
		}, []string{"warning UnexplainedDrop"}, "by another link (fwd)", ""},
		{"a port gets no broadcasts, and the pod packets from who has its MAC", func() *testNode {
			n := unflooded(func(p *model.BridgePort) { p.BroadcastFlood = false })
			n.exchanges(0, pod5)
			n.exchanges(1, pod6)
			return n
		}, []string{"critical BridgePortBlocked"}, "bcast_flood", ""},
	})
}
