package diagnose

import (
	"fmt"
	"net/netip"
	"strings"
	"testing"
	"time"

	"github.com/lasthop/lasthop/probe/model"
)

// asks are connections, or datagrams, of the window from a client to a port of a pod,
// counted at the pod's link.
func (n *testNode) requested(from, pod string, proto uint8, port uint16, flows int, replied bool) {
	n.tracked(from, pod, proto, port, flows, replied)
	syn, synack := uint64(0), uint64(0)
	if proto == tcp {
		syn = uint64(flows)
		if replied {
			synack = syn
		}
	}
	n.handed(pod, uint64(flows), syn, synack)
}

// tracked adds flows to connection tracking that began in the window.
func (n *testNode) tracked(from, to string, proto uint8, port uint16, flows int, replied bool) {
	for range flows {
		client := uint16(40000 + len(n.Flows))
		n.Flows = append(n.Flows, model.Flow{Proto: proto, Start: start.Add(time.Second), Replied: replied,
			Original: model.Tuple{Src: addr(from), Dst: addr(to), SrcPort: client, DstPort: port},
			Reply:    model.Tuple{Src: addr(to), Dst: addr(from), SrcPort: port, DstPort: client}})
	}
}

// handed counts packets and SYNs into a pod, and SYN-ACKs out of it.
func (n *testNode) handed(pod string, packets, syn, synack uint64) {
	for _, h := range []model.HopCount{
		{Direction: model.Egress, Side: model.AsDestination, Packets: packets, SYN: syn},
		{Direction: model.Ingress, Side: model.AsSource, Packets: synack, SYNACK: synack},
	} {
		h.Addr, h.First, h.Last = addr(pod), start.Add(time.Second), end
		h.IfIndex = newInput(&n.Snapshot).Owners[addr(pod)][0].LinkIndex
		at := -1
		for i, old := range n.Traffic.Hops {
			if old.Addr == h.Addr && old.IfIndex == h.IfIndex && old.Direction == h.Direction && old.Side == h.Side {
				at = i
			}
		}
		if at < 0 {
			n.Traffic.Hops = append(n.Traffic.Hops, h)
			continue
		}
		old := &n.Traffic.Hops[at]
		old.Packets, old.SYN, old.SYNACK = old.Packets+h.Packets, old.SYN+h.SYN, old.SYNACK+h.SYNACK
	}
}

func TestPodNotReplying(t *testing.T) {
	const server, client = "172.20.1.5", "172.20.1.6"
	const want = "PodNotReplying likely 172.20.1.5 172.20.1.6 172.20.2.9"
	silent := func(n *testNode) *testNode {
		n = n.live()
		n.requested(client, server, tcp, 8080, 4, false)
		n.requested(far, server, tcp, 8080, 4, false)
		return n
	}
	for _, tt := range []fixture{
		{"no port replies", func() *testNode { return silent(kubenet()) }, []string{want}},
		{"another port replies", func() *testNode {
			n := silent(kubenet())
			n.requested(client, server, tcp, 9090, 20, true)
			return n
		}, []string{want}},
		{"the node asks, as kubelet does", func() *testNode {
			n := kubenet().live()
			n.requested("10.50.0.4", server, tcp, 8080, 4, false)
			return n
		}, []string{"PodNotReplying likely 172.20.1.5 10.50.0.4"}},
		{"through a service", func() *testNode {
			n := silent(kubenet())
			for i := range n.Flows {
				n.Flows[i].Original.Dst = addr("10.0.0.10")
			}
			return n
		}, []string{want}},
		{"a rule drops the node's copy of what a bridge forwards", func() *testNode {
			n := kubenet().live()
			n.requested(client, server, udp, 53, 4, false)
			n.link(3).Promisc = true
			n.dropOn("br-pods", "NETFILTER_DROP", "nft_do_chain", server, client, 4).DstMAC = n.Pods[1].MAC
			n.chain(model.NFT, "ip", "raw", "PREROUTING", "PREROUTING", "ACCEPT", 0)
			n.filter(model.NFT, "FORWARD", 4, model.PacketRule{Target: "DROP", Text: "-s 172.20.1.5/32 -j DROP", Src: model.AddrMatch{Prefix: prefix(server + "/32")}})
			n.PacketRules[0].Table, n.PacketRules[0].Chain = "raw", "PREROUTING"
			return n
		}, nil},
		{"its replies wait for the client's MAC", func() *testNode {
			n := kubenet().live()
			n.requested(client, server, tcp, 8080, 9, false)
			n.requested(client, server, udp, 53, 9, false)
			n.asks(0, client, model.Ingress, false, 2)
			return n
		}, nil},
		{"a name server", func() *testNode {
			n := kubenet().live()
			n.requested(client, server, udp, 53, 4, false)
			return n
		}, []string{"PodNotReplying likely 172.20.1.5 172.20.1.6"}},
		{"datagrams of a kind that was answered before", func() *testNode {
			n := kubenet().live()
			n.requested(client, server, udp, 6000, 1, true)
			n.Flows[0].Start = time.Time{}
			n.requested(client, server, udp, 6000, 4, false)
			return n
		}, []string{"PodNotReplying likely 172.20.1.5 172.20.1.6"}},
		{"a client that only sends datagrams, beside one that is answered", func() *testNode {
			n := kubenet().live()
			n.requested(client, server, udp, 6000, 1, true)
			n.Flows[0].Start = time.Time{}
			n.requested(far, server, udp, 6000, 9, false)
			return n
		}, nil},
		{"a sink of datagrams", func() *testNode {
			n := kubenet().live()
			n.requested(client, server, udp, 8125, 40, false)
			return n
		}, nil},
		{"echo requests alone", func() *testNode {
			n := kubenet().live()
			n.requested(client, server, icmp4, 0, 40, false)
			return n
		}, nil},
		{"replies leave and are lost later", func() *testNode {
			n := silent(kubenet())
			n.handed(server, 0, 0, 8)
			return n
		}, nil},
		{"the pod has just started", func() *testNode {
			n := silent(kubenet())
			n.Pods[0].Since = start.Add(time.Second)
			return n
		}, nil},
		{"two requests", func() *testNode {
			n := kubenet().live()
			n.requested(client, server, tcp, 8080, 2, false)
			return n
		}, nil},
		{"a scan of many ports", func() *testNode {
			n := kubenet().live()
			for port := range uint16(30) {
				n.requested(far, server, tcp, 8000+port, 1, false)
			}
			return n
		}, nil},
		{"some connections of a busy port are new", func() *testNode {
			n := kubenet().live()
			n.requested(client, server, tcp, 8080, 50, true)
			n.requested(client, server, tcp, 8080, 4, false)
			return n
		}, nil},
		{"some clients are never answered", func() *testNode {
			n := kubenet().live()
			n.requested(client, server, tcp, 8080, 50, true)
			n.requested(far, server, tcp, 8080, 4, false)
			return n
		}, []string{"PodNotReplying likely 172.20.1.5 172.20.2.9"}},
		{"of many clients a few have just begun", func() *testNode {
			n := kubenet().live()
			n.requested(client, server, tcp, 8080, 50, true)
			for i := range 9 {
				n.requested(fmt.Sprintf("203.0.113.%d", i+1), server, tcp, 8080, 1, false)
			}
			return n
		}, nil},
		{"a pod that asks itself", func() *testNode {
			n := kubenet().live()
			n.requested(server, server, tcp, 8080, 9, false)
			return n
		}, nil},
		{"the requests never reached the pod's link", func() *testNode {
			n := silent(kubenet())
			n.Traffic.Hops = nil
			return n
		}, nil},
		{"its own firewall is another finding", func() *testNode {
			n := silent(kubenet())
			n.Pods[0].Netns = 77
			n.refuse("nft_do_chain", client, server, 4).Netns = 77
			n.refuse("nft_do_chain", far, server, 4).Netns = 77
			return n
		}, []string{"PolicyDrop likely 172.20.1.5 172.20.1.6 172.20.2.9"}},
		{"drops in its namespace that nothing explains are evidence", func() *testNode {
			n := silent(kubenet())
			n.Pods[0].Netns = 77
			n.drop("XDP", "veth_xdp_rcv_skb", client, server, 2).Netns = 77
			return n
		}, []string{want}},
		{"drops were not watched", func() *testNode {
			n := silent(kubenet())
			n.lose(model.SourceDrops, model.Missing)
			return n
		}, []string{"PodNotReplying possible 172.20.1.5 172.20.1.6 172.20.2.9"}},
		{"connections that are not tracked", func() *testNode {
			n := routedNode().live()
			n.handed("10.60.0.20", 12, 12, 0)
			return n
		}, []string{"PodNotReplying possible 10.60.0.20"}},
		{"the repeated SYNs of one connection", func() *testNode {
			n := routedNode().live()
			n.handed("10.60.0.20", 6, 6, 0)
			return n
		}, nil},
		{"nothing was counted", func() *testNode {
			n := silent(kubenet())
			n.lose(model.SourceTC, model.Missing)
			return n
		}, nil},
	} {
		t.Run(tt.name, func(t *testing.T) { verdicts(t, tt.node(), tt.want) })
	}
}

// TestReplyAstray: where the pod's own route does not lead back to who asks, it is the first that may be.
func TestReplyAstray(t *testing.T) {
	for route, want := range map[string]string{
		"172.20.2.0/24": "the pod's own route to these clients is wrong",
		"172.20.9.0/24": "a BPF program in the pod's namespace, or a sandbox with its own network stack, takes the packets",
	} {
		n := kubenet().live()
		n.requested(far, "172.20.1.5", tcp, 8080, 4, false)
		n.Pods[0].Elsewhere = []netip.Prefix{prefix("0.0.0.0/0"), prefix(route)}
		if f := Diagnose(&n.Snapshot); len(f) != 1 || f[0].Code != "PodNotReplying" || f[0].Alternatives[0] != want {
			t.Errorf("%s: %+v", route, f)
		}
	}
}

func TestReceiveOverflow(t *testing.T) {
	const server, client = "172.20.1.5", "172.20.1.6"
	// full is a pod whose listener at 8080 had a full queue so often.
	full := func(overflows uint64, replied int) *testNode {
		n := kubenet().live()
		n.Pods[0].Netns = 77
		n.Pods[0].Backlog = &model.Backlog{Overflows: 900, Delta: overflows, Waiting: []model.Listener{{Addr: netip.MustParseAddrPort("0.0.0.0:8080"), Queue: 2}}}
		n.requested(client, server, tcp, 8080, replied, true)
		n.requested(client, server, tcp, 8080, 5, false)
		return n
	}
	// drained is the same at a moment when the queue was empty, with another client that
	// was never replied to.
	drained := func(n *testNode) *testNode {
		n.Pods[0].Backlog.Waiting = nil
		n.requested(far, server, tcp, 8080, 4, false)
		return n
	}
	sink := func(port uint16, before bool) *testNode {
		n := kubenet().live()
		n.Pods[0].Netns = 77
		d := n.drop("SOCKET_RCVBUFF", "udp_queue_rcv_one_skb", client, server, 9)
		d.Netns, d.Proto = 77, udp
		n.sampled(d, head(udp, port, 0))
		if before {
			n.requested(client, server, udp, port, 1, true)
			n.Flows[0].Start = time.Time{}
		}
		n.requested(client, server, udp, port, 9, false)
		return n
	}
	for _, tt := range []struct {
		name     string
		node     *testNode
		severity model.Severity
		want     []string
	}{
		{"a hung server", full(15, 0), model.Warning, []string{"ReceiveOverflow proven 172.20.1.5 172.20.1.6"}},
		{"a burst", full(15, 60), model.Info, []string{"ReceiveOverflow proven 172.20.1.5 172.20.1.6"}},
		{"a burst that has gone by", drained(full(15, 60)), model.Info, []string{"ReceiveOverflow proven 172.20.1.5 172.20.1.6 172.20.2.9"}},
		{"a slow server whose queue is empty at the end", drained(full(15, 3)), model.Warning, []string{"ReceiveOverflow proven 172.20.1.5 172.20.1.6 172.20.2.9"}},
		{"one connection", full(1, 60), "", nil},
		{"a sink of datagrams", sink(8125, false), model.Info, []string{"ReceiveOverflow proven 172.20.1.5 172.20.1.6"}},
		{"a name server that hangs", sink(53, false), model.Warning, []string{"ReceiveOverflow proven 172.20.1.5 172.20.1.6"}},
		{"datagrams that were answered before", sink(6000, true), model.Warning, []string{"ReceiveOverflow proven 172.20.1.5 172.20.1.6"}},
	} {
		t.Run(tt.name, func(t *testing.T) {
			verdicts(t, tt.node, tt.want)
			for _, f := range Diagnose(&tt.node.Snapshot) {
				if f.Severity != tt.severity {
					t.Errorf("%s, want %s", f.Severity, tt.severity)
				}
			}
		})
	}
}

// TestSocketLimits: what a socket had no room for, where the machine's own limit is near.
func TestSocketLimits(t *testing.T) {
	for used, near := range map[uint64]bool{4600: true, 70: false} {
		n := kubenet().live()
		n.SocketLimits = []model.SocketLimit{{Name: "udp_mem", Used: used, Limit: 4652}, {Name: "tcp_mem", Used: 9, Limit: 4652}}
		n.drop("PROTO_MEM", "__udp_enqueue_schedule_skb", pod6, pod5, 9)
		said := sentences(n)
		const evidence, fix = "stats: the sockets of this machine use 4600 of 4652 that net.ipv4.udp_mem allows", "raise net.ipv4.udp_mem on the node"
		if strings.Contains(said, evidence) != near || strings.Contains(said, fix) != near || strings.Contains(said, "tcp_mem") {
			t.Errorf("%d pages:\n%s", used, said)
		}
	}
}
