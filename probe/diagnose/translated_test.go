package diagnose

import (
	"testing"

	"github.com/lasthop/lasthop/probe/model"
)

// TestTranslated: what is lost while a pod's packets have the node's address is no drop of the pod's. Connection tracking
// has the flows.
func TestTranslated(t *testing.T) {
	const far, udp = "203.0.113.77", 17
	// asking is a node whose pod asks an address outside, all the while and in vain, though packets come from there.
	asking := func(port uint16, replied bool) *testNode {
		n := kubenet().live()
		n.chain(model.NFT, "ip", "raw", "PREROUTING", "PREROUTING", "ACCEPT", 0)
		n.Chains[len(n.Chains)-1].Priority = -300
		for i := range 8 {
			n.begins(pod5, far, "10.50.0.4", port, uint16(41000+i), 0.4+float64(i)*0.9, replied)
		}
		n.peer("10.50.0.4", far, model.PeerCount{Packets: 40, Requests: 24, Replies: 16}, model.PeerCount{Packets: 24, Replies: 24})
		return n
	}
	guard := func(n *testNode, delta uint64, r model.PacketRule) *testNode {
		r.Target = "DROP"
		n.filter(model.NFT, "PREROUTING", delta, r).Table = "raw"
		return n
	}
	half := func(n *testNode) *testNode {
		for i := range n.Flows {
			if f := &n.Flows[i]; f.Reply.Src == addr(far) {
				f.State, f.Replied = "SYN_RECV", true
			}
		}
		return n
	}
	// datagrams asks one of two servers in vain.
	datagrams := func(also bool) *testNode {
		n := routed().some("10.50.0.20", far, "10.50.0.20", 443)
		for i := range n.Flows {
			if n.Flows[i].Reply.Src == addr(far) {
				n.Flows[i].Replied, n.Flows[i].State = true, "TIME_WAIT"
			}
		}
		for i := range 8 {
			n.begins("10.50.0.20", far, "10.50.0.20", 7000, uint16(42000+i), 0.4+float64(i)*0.9, false)
			n.Flows[len(n.Flows)-1].Proto, n.Flows[len(n.Flows)-1].State = udp, ""
		}
		if also {
			n.datagrams("10.50.0.20", "203.0.113.78", 7000, 4, true)
		}
		return n
	}
	// left is a node that drops what a pod asks once it has the node's address, or what replies to it before it has the pod's.
	left := func(src, dst, from, to, hook string, delta uint64, r model.PacketRule) *testNode {
		n := kubenet().live()
		n.chain(model.NFT, "ip", "mangle", hook, hook, "ACCEPT", 0)
		d := n.dropOn("eth0", "NETFILTER_DROP", "nft_do_chain", src, dst, 24)
		d.Proto = 6
		h := head(6, 443, synFlag)
		copy(h[12:], addr(from).AsSlice())
		copy(h[16:], addr(to).AsSlice())
		n.sampled(d, h)
		r.Target = "DROP"
		n.filter(model.NFT, hook, delta, r).Table = "mangle"
		n.chain(model.NFT, "ip", "filter", "FORWARD", "FORWARD", "ACCEPT", 0)
		n.filter(model.NFT, "FORWARD", 24, model.PacketRule{Target: "DROP"}) // of others' packets: these passed FORWARD, or come there later
		return n
	}
	const from = "-s 203.0.113.0/24 -j DROP"
	situations(t, []situation{
		{"a rule drops the replies before they are translated back",
			func() *testNode {
				return guard(asking(443, false), 24, model.PacketRule{Src: to("203.0.113.0/24"), Text: from})
			},
			[]string{"warning PolicyDrop"}, from, ""},
		{"a rule with a limit does",
			func() *testNode {
				return guard(asking(443, false), 24, model.PacketRule{Src: to("203.0.113.0/24"), Unknown: []string{"hashlimit"}, Text: from})
			},
			[]string{"warning PolicyDrop"}, from, ""},
		{"two rules do, one behind the other", func() *testNode {
			n := guard(asking(443, false), 24, model.PacketRule{Src: to("203.0.113.0/24"), Text: from})
			return guard(n, 0, model.PacketRule{Src: to(far + "/32"), Text: "-s 203.0.113.77/32 -j DROP"})
		}, []string{"warning PolicyDrop"}, "-D PREROUTING -s 203.0.113.77/32 -j DROP", ""},
		{"a rule drops what has the node's address", func() *testNode {
			return left(pod5, far, "10.50.0.4", far, "POSTROUTING", 24, model.PacketRule{Src: to("10.50.0.4/32"), Text: "-s 10.50.0.4/32 -j DROP"})
		}, []string{"warning PolicyDrop"}, "-D POSTROUTING -s 10.50.0.4/32 -j DROP", ""},
		{"a rule drops replies that connection tracking knows", func() *testNode {
			return left(far, pod5, far, "10.50.0.4", "PREROUTING", 24, model.PacketRule{Dst: to("10.50.0.4/32"), Text: "-d 10.50.0.4/32 -j DROP"})
		}, []string{"warning PolicyDrop"}, "-D PREROUTING -d 10.50.0.4/32 -j DROP", ""},
		{"connection tracking saw them before the rule did",
			func() *testNode {
				return half(guard(asking(8443, false), 24, model.PacketRule{Src: to("203.0.113.0/24"), Text: from}))
			},
			[]string{"warning PolicyDrop"}, "SYN_RECV", ""},
		{"healthy: the rule is about others, and the connections live",
			func() *testNode {
				return guard(asking(443, true), 24, model.PacketRule{Src: to("203.0.114.0/24"), Text: from})
			}, nil, "", ""},
		{"healthy: half-open connections that no rule of the node explains", func() *testNode { return half(asking(443, false)) }, nil, "", ""},
		{"datagrams to a port that others answer on", func() *testNode { return datagrams(true) }, []string{"warning NoReply"}, "udp/7000", ""},
		{"healthy: datagrams to a port where nobody ever replies", func() *testNode { return datagrams(false) }, nil, "", ""},
		{"a route leads to the pods' bridge", func() *testNode {
			n := asking(443, false)
			n.Traffic.Peers = n.Traffic.Peers[:len(n.Traffic.Peers)-1]
			n.Routes = append(n.Routes, model.Route{Table: 254, Dst: prefix("203.0.113.0/24"), IfIndex: 3, Type: "unicast"})
			return n
		}, []string{"warning NoReply"}, "br-pods, which is no uplink", ""},
	})
}

// TestAdvertisementsDropped: a rule that drops neighbour advertisements is the one cause of what waits for the pods' MACs.
func TestAdvertisementsDropped(t *testing.T) {
	const pod = "fd20:0:0:1::6"
	dropped := func(kind byte) func() *testNode {
		return func() *testNode {
			n := dual().live()
			h := make([]byte, 60)
			h[0], h[6], h[40] = 0x60, icmp6, kind
			n.chain(model.NFT, "ip6", "filter", "INPUT", "INPUT", "ACCEPT", 0)
			n.filter(model.NFT, "INPUT", 9, model.PacketRule{Proto: icmp6, Target: "DROP", Text: "-p ipv6-icmp -j DROP"}).Family = "ip6"
			d := n.dropOn("br-pods", "NETFILTER_DROP", "nft_do_chain", pod, "fd20:0:0:1::1", 9)
			d.Proto, d.First, d.Last = icmp6, start, end
			n.sampled(d, h)
			n.neighbor(pod, "", 3, "INCOMPLETE")
			n.dropOn("br-pods", "NEIGH_FAILED", "neigh_invalidate", "fd20:0:0:2::9", pod, 20)
			return n
		}
	}
	situations(t, []situation{
		{"advertisements", dropped(136), []string{"warning PolicyDrop"}, "-D INPUT -p ipv6-icmp -j DROP", "resolve the MAC"},
		{"echo requests alone: why the pod is not resolved is another matter", dropped(128), []string{"warning StaleNeighbor", "warning PolicyDrop"}, "", ""},
	})
}
