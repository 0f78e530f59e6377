package diagnose

import (
	"testing"
	"time"

	"github.com/lasthop/lasthop/probe/model"
)

// begins adds a connection that began so many seconds into the window, and says how its source is translated.
func (n *testNode) begins(pod, remote, as string, port, client uint16, after float64, replied bool) {
	n.Flows = append(n.Flows, model.Flow{Proto: tcp, Replied: replied, State: model.Either(replied, "TIME_WAIT", "SYN_SENT"),
		Start:    start.Add(time.Duration(after * float64(time.Second))),
		Original: model.Tuple{Src: addr(pod), Dst: addr(remote), SrcPort: client, DstPort: port},
		Reply:    model.Tuple{Src: addr(remote), Dst: addr(as), SrcPort: port, DstPort: client}})
}

// some are connections of which every second gets no reply, and what the uplink counted of them.
func (n *testNode) some(pod, remote, as string, port uint16) *testNode {
	for i := range 10 {
		n.begins(pod, remote, as, port, uint16(40000+i*7%10), 0.5+float64(i)*0.7, i%2 == 0)
	}
	n.peer(as, remote, model.PeerCount{Packets: 60, Requests: 20, Replies: 40}, model.PeerCount{Packets: 40, Replies: 40})
	return n
}

// TestFlows: a part of the connections dies steadily beside others of the same pair that live.
func TestFlows(t *testing.T) {
	const pod20 = "10.50.0.20"
	twoWays := func() *testNode {
		n := routed()
		n.Routes[0].NextHops = []model.Route{{Gateway: addr("10.50.0.2"), IfIndex: 2}}
		n.neighbor("10.50.0.2", "12:34:56:78:9a:02", 2, "REACHABLE")
		n.Traffic.MACs = append(n.Traffic.MACs,
			model.MACPair{Addr: addr(pod20), IfIndex: 2, Link: "ens5", Direction: model.Egress, Side: model.AsSource, Src: mac(nicMAC), Dst: mac("12:34:56:78:9a:02"), Packets: 15},
			model.MACPair{Addr: addr(pod20), IfIndex: 2, Link: "ens5", Direction: model.Ingress, Side: model.AsDestination, Src: mac(fabricMAC), Dst: mac(nicMAC), Packets: 40})
		return n
	}
	masked := func() *testNode {
		n := kubenet().live()
		n.Links[0].Addresses = append(n.Links[0].Addresses, prefix("10.50.0.5/16"))
		return n
	}
	situations(t, []situation{
		{"one of two next hops swallows what it gets", func() *testNode { return twoWays().some(pod20, out, pod20, 443) },
			[]string{"warning NoReply"}, "10.50.0.2", ""},
		{"healthy: two next hops, and SYNs that were sent again are answered", func() *testNode {
			n := twoWays()
			for i := range 10 {
				n.begins(pod20, out, pod20, 443, uint16(40000+i), 0.5+float64(i)*0.7, true)
			}
			n.peer(pod20, out, model.PeerCount{Packets: 60, Requests: 20, Replies: 40}, model.PeerCount{Packets: 40, Replies: 40})
			return n
		}, nil, "", ""},
		{"nobody answers the node's second address", func() *testNode {
			n := masked()
			for i := range 10 {
				n.begins(pod5, out, model.Either(i%2 == 0, "10.50.0.4", "10.50.0.5"), 443, uint16(40000+i), 0.5+float64(i)*0.7, i%2 == 0)
			}
			n.peer("10.50.0.4", out, model.PeerCount{Packets: 60, Requests: 5, Replies: 40}, model.PeerCount{Packets: 40, Replies: 40})
			n.peer("10.50.0.5", out, model.PeerCount{Packets: 15, Requests: 15}, none)
			return n
		}, []string{"warning NoReply"}, "10.50.0.5", ""},
		{"healthy: connections that began at the end", func() *testNode {
			n := masked()
			for i := range 10 {
				n.begins(pod5, out, "10.50.0.4", 443, uint16(40000+i), 5.5+float64(i)*0.45, i < 6)
			}
			n.peer("10.50.0.4", out, model.PeerCount{Packets: 60, Requests: 12, Replies: 40}, model.PeerCount{Packets: 40, Replies: 40})
			return n
		}, nil, "", ""},
		{"an internal load balancer leads every second one back to this node", func() *testNode {
			n := kubenet().live().some(pod5, "192.168.50.10", "10.50.0.4", 443)
			n.dropOn("ens5", "IP_LOCAL_SOURCE", "ip_rcv_finish_core", "10.50.0.4", "10.50.0.4", 15)
			return n
		}, []string{"warning NoReply"}, "back to this node", ""},
		{"healthy: log lines by UDP, of which some are refused", func() *testNode {
			n := kubenet().live()
			n.datagrams(pod5, "192.168.50.10", 514, 5, false)
			n.datagrams(pod5, "192.168.50.10", 514, 5, true)
			n.Traffic.Peers = n.Traffic.Peers[:1]
			n.Traffic.Peers[0].In = datagram
			return n
		}, nil, "", ""},
		{"a firewall passes only some source ports", func() *testNode {
			n := routed()
			for i := range 10 {
				n.begins(pod20, out, pod20, 5432, uint16(model.Either(i%2 == 0, 33000, 50000)+i), 0.5+float64(i)*0.7, i%2 == 0)
			}
			n.peer(pod20, out, model.PeerCount{Packets: 60, Requests: 20, Replies: 40}, model.PeerCount{Packets: 40, Replies: 40})
			return n
		}, []string{"warning NoReply"}, "50001", ""},
		{"healthy: the server was away for two seconds", func() *testNode {
			n := routed()
			for i := range 10 {
				n.begins(pod20, out, pod20, 5432, uint16(40000+i), 0.5+float64(i)*0.7, i < 4 || i > 7)
			}
			n.peer(pod20, out, model.PeerCount{Packets: 60, Requests: 20, Replies: 40}, model.PeerCount{Packets: 40, Replies: 40})
			return n
		}, nil, "", ""},
		{"one packet of another port was dropped here, which explains none of it", func() *testNode {
			n := routed().some(pod20, out, pod20, 443)
			n.dropOn("ens5", "NEIGH_QUEUEFULL", "neigh_event_send", pod20, out, 1)
			return n
		}, []string{"warning NoReply"}, "distinguishes those that fail from the others", ""},
		{"nothing on the node tells them apart", func() *testNode { return routed().some(pod20, out, pod20, 443) },
			[]string{"warning NoReply"}, "distinguishes those that fail from the others", ""},
		{"healthy: one died, of many", func() *testNode {
			n := routed()
			for i := range 20 {
				n.begins(pod20, out, pod20, 443, uint16(40000+i), 0.5+float64(i)*0.3, i != 9 && i != 10)
			}
			n.peer(pod20, out, model.PeerCount{Packets: 90, Requests: 26, Replies: 60}, model.PeerCount{Packets: 60, Replies: 60})
			return n
		}, nil, "", ""},
		{"what goes by a service's address dies, and what goes to its backend lives", func() *testNode {
			n := routed().some(pod20, "10.90.0.7", pod20, 443)
			for i := range n.Flows {
				if f := &n.Flows[i]; !f.Replied {
					f.Original.Dst, f.Original.DstPort = addr("10.96.3.3"), 8080
				}
			}
			return n
		}, []string{"warning NoReply"}, "10.96.3.3:8080", ""},
		{"those with a mark die", func() *testNode {
			n := kubenet().live().some(pod5, out, "10.50.0.4", 443)
			for i := range n.Flows {
				n.Flows[i].Mark = model.Either(n.Flows[i].Replied, uint32(0), 0x40)
			}
			return n
		}, []string{"warning NoReply"}, "mark", ""},
		{"IPv6: a third of them", func() *testNode {
			n := dual()
			for i := range 12 {
				n.begins("fd20:0:0:1::5", "2001:db8:7::9", "fd20:0:0:1::5", 443, uint16(40000+i*5%12), 0.5+float64(i)*0.6, i%3 > 0)
			}
			n.peer("fd20:0:0:1::5", "2001:db8:7::9", model.PeerCount{Packets: 60, Requests: 20, Replies: 40}, model.PeerCount{Packets: 40, Replies: 40})
			return n
		}, []string{"warning NoReply"}, "2001:db8:7::9", ""},
		{"healthy: a client that gives up after a moment, without asking again", func() *testNode {
			n := routed()
			for i := range 10 {
				n.begins(pod20, out, pod20, 443, uint16(40000+i), 0.5+float64(i)*0.7, i%2 == 0)
			}
			n.peer(pod20, out, model.PeerCount{Packets: 50, Requests: 8, Replies: 40}, model.PeerCount{Packets: 40, Replies: 40})
			return n
		}, nil, "", ""},
		{"one port of a machine whose other ports answer", func() *testNode {
			n := routed().some(pod20, out, pod20, 443)
			for i := range n.Flows {
				if f := &n.Flows[i]; !f.Replied {
					f.Original.DstPort, f.Reply.SrcPort = 8443, 8443
				}
			}
			return n
		}, []string{"warning NoReply"}, "tcp/8443", ""},
		{"healthy: a load balancer's port, where drops on this node explain it", func() *testNode {
			n := filtered().live().some(pod5, far, pod5, 443)
			n.filter(model.NFT, "FORWARD", 15, model.PacketRule{Dst: to(far + "/32"), Target: "DROP", Text: "-d " + far + "/32 -j DROP"})
			d := n.refuse("nft_do_chain", pod5, far, 15)
			d.First, d.Last = start, end
			return n
		}, []string{"warning PolicyDrop"}, "", ""},
	})
}

// TestStalled: connections open, and what is sent then is lost.
func TestStalled(t *testing.T) {
	// opened is a pod whose connections opened, with the timeout that connection tracking gives them, and what came of them.
	opened := func(state string, left time.Duration, in uint64) *testNode {
		n := routed()
		n.Sysctls = append(n.Sysctls, model.Sysctl{Name: "net.netfilter.nf_conntrack_tcp_timeout_established", Value: "432000"},
			model.Sysctl{Name: "net.netfilter.nf_conntrack_tcp_timeout_unacknowledged", Value: "300"})
		for i := range 6 {
			n.begins("10.50.0.20", out, "10.50.0.20", 8443, uint16(40000+i), 0.5+float64(i), true)
			f := &n.Flows[len(n.Flows)-1]
			f.State, f.Timeout, f.Assured = state, left, true
		}
		n.peer("10.50.0.20", out, model.PeerCount{Packets: 50, Requests: 6, Replies: 44}, model.PeerCount{Packets: in, Replies: in})
		return n
	}
	situations(t, []situation{
		{"large segments are lost", func() *testNode { return opened("ESTABLISHED", 298*time.Second, 12) },
			[]string{"warning NoReply"}, "data sent on them is not acknowledged", "correctly"},
		{"healthy: an upload, of which something is always on its way",
			func() *testNode { return opened("ESTABLISHED", 299*time.Second, 900) }, nil, "", ""},
		{"healthy: connections that wait", func() *testNode { return opened("ESTABLISHED", 431990*time.Second, 12) }, nil, "", ""},
		{"healthy: short ones", func() *testNode { return opened("TIME_WAIT", 110*time.Second, 18) }, nil, "", ""},
	})
}
