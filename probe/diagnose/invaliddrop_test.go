package diagnose

import (
	"encoding/binary"
	"testing"
	"time"

	"github.com/lasthop/lasthop/probe/model"
)

func TestInvalidDrop(t *testing.T) {
	const server, client = pod5, far
	const want = "InvalidDrop likely 172.20.1.5 172.20.2.9"
	const ack, synAck, rst, fin = 0x10, 0x12, 0x04, 0x11
	// invalid is a node whose rule on invalid packets dropped some of the kind that the
	// flags say, for so long.
	invalid := func(src, dst string, flags byte, packets uint64, lasted time.Duration) *testNode {
		n := filtered().live()
		n.filter(model.NFT, "FORWARD", packets, model.PacketRule{Unknown: []string{"conntrack --ctstate INVALID"}, Target: "DROP",
			Text: "-m conntrack --ctstate INVALID -j DROP"})
		d := n.refuse("nft_do_chain", src, dst, packets)
		d.First, d.Last = start, start.Add(lasted)
		n.sampled(d, head(tcp, 80, flags))
		return n
	}
	flow := func(n *testNode, src, dst string, replied bool) *testNode {
		n.tracked(src, dst, tcp, 80, 1, replied)
		return n
	}
	sent := func(n *testNode, packets uint64) *testNode {
		n.passes(server, 10, model.Ingress, model.AsSource, packets, 1)
		return n
	}
	for _, tt := range []fixture{
		{"replies whose requests were not tracked", func() *testNode { return invalid(server, client, synAck, 20, 9*time.Second) }, []string{want}},
		{"echo replies", func() *testNode {
			n := invalid(server, client, 0, 20, 9*time.Second)
			n.Traffic.Drops[0].Proto, n.Traffic.Samples = icmp4, nil
			n.sampled(&n.Traffic.Drops[0], head(icmp4, 0, 0))
			return n
		}, []string{want}},
		{"replies of who asks the pod", func() *testNode { return invalid(client, server, synAck, 20, 9*time.Second) }, []string{want}},
		{"a rule excludes the requests", func() *testNode {
			n := invalid(server, client, synAck, 20, 9*time.Second)
			r := n.filter(model.NFT, "PREROUTING", 20, model.PacketRule{Dst: to(server + "/32"), Target: "CT", Text: "-d 172.20.1.5 -j CT --notrack"})
			r.Table = "raw"
			return n
		}, []string{"InvalidDrop proven 172.20.1.5 172.20.2.9"}},
		{"a zone for one direction, and two rules drop", func() *testNode {
			n := flow(invalid(server, client, synAck, 20, 9*time.Second), client, server, false)
			n.filter(model.NFT, "FORWARD", 9, model.PacketRule{Dst: to(server + "/32"), Unknown: []string{"conntrack --ctstate INVALID"},
				Target: "DROP", Text: "-d 172.20.1.5 -m conntrack --ctstate INVALID -j DROP"})
			d := n.refuse("nft_do_chain", client, server, 9)
			d.First, d.Last = start, start.Add(9*time.Second)
			n.sampled(d, head(tcp, 80, synAck))
			n.filter(model.NFT, "PREROUTING", 20, model.PacketRule{Src: to(server + "/32"), Target: "CT", Text: "-s 172.20.1.5 -j CT --zone 7"}).Table = "raw"
			return n
		}, []string{"InvalidDrop proven 172.20.1.5 172.20.2.9"}},
		{"the replies take another path", func() *testNode { return flow(invalid(server, client, ack, 20, 9*time.Second), server, client, false) }, []string{want}},
		{"segments outside the window", func() *testNode {
			return sent(flow(invalid(server, client, ack, 40, 9*time.Second), client, server, true), 50)
		}, []string{want}},
		{"a few of them", func() *testNode {
			return sent(flow(invalid(server, client, ack, 4, 9*time.Second), client, server, true), 500)
		}, []string{"PolicyDrop proven 172.20.1.5 172.20.2.9"}},
		{"resets after the end", func() *testNode {
			return flow(invalid(server, client, rst, 20, 9*time.Second), server, client, false)
		}, []string{"PolicyDrop proven 172.20.1.5 172.20.2.9"}},
		{"ends of connections that are forgotten", func() *testNode { return invalid(server, client, fin, 20, 9*time.Second) },
			[]string{"PolicyDrop proven 172.20.1.5 172.20.2.9"}},
		{"for a moment", func() *testNode { return invalid(server, client, synAck, 5, time.Second) },
			[]string{"PolicyDrop proven 172.20.1.5 172.20.2.9"}},
		{"a repeated reply of a flow that is tracked", func() *testNode {
			return sent(flow(invalid(server, client, synAck, 5, 9*time.Second), client, server, true), 500)
		}, []string{"PolicyDrop proven 172.20.1.5 172.20.2.9"}},
		{"flows are unread", func() *testNode {
			n := invalid(server, client, synAck, 20, 9*time.Second)
			n.lose(model.SourceConntrack, model.Missing)
			return n
		}, []string{"PolicyDrop proven 172.20.1.5 172.20.2.9"}},
	} {
		t.Run(tt.name, func(t *testing.T) { verdicts(t, tt.node(), tt.want) })
	}
}

// TestLateReplies: replies of a slow server, for a client's port that is closed, are no
// requests to a port that nothing listens at.
func TestLateReplies(t *testing.T) {
	datagram := func(from, to uint16, began string) *testNode {
		n := kubenet().live()
		n.Pods[0].Netns = 77
		d := n.drop("NO_SOCKET", "__udp4_lib_rcv", far, pod5, 9)
		d.Netns, d.Proto = 77, udp
		h := head(udp, to, 0)
		binary.BigEndian.PutUint16(h[20:], from)
		n.sampled(d, h)
		flow := model.Flow{Proto: udp, Start: start, Replied: true}
		switch began {
		case pod5:
			flow.Original = model.Tuple{Src: addr(pod5), Dst: addr(far), SrcPort: to, DstPort: from}
			flow.Reply = model.Tuple{Src: addr(far), Dst: addr(pod5), SrcPort: from, DstPort: to}
		case far:
			flow.Original = model.Tuple{Src: addr(far), Dst: addr(pod5), SrcPort: from, DstPort: to}
			flow.Reply = model.Tuple{Src: addr(pod5), Dst: addr(far), SrcPort: to, DstPort: from}
		default:
			return n
		}
		n.Flows = append(n.Flows, flow)
		return n
	}
	const late, closed = "", "nothing listens at 172.20.1.5 udp/44184"
	both := datagram(53, 44184, pod5)
	both.sampled(&both.Traffic.Drops[0], head(udp, 5353, 0))
	for _, tt := range []struct {
		name string
		node *testNode
		want string
	}{
		{"the pod asked a name server", datagram(53, 44184, pod5), late},
		{"the flow is forgotten", datagram(53, 44184, ""), late},
		{"the pod asked a high port", datagram(50000, 44184, pod5), late},
		{"a client asks a high port of the pod", datagram(53, 44184, far), closed},
		{"two high ports and no flow", datagram(50000, 44184, ""), closed},
		{"replies of a slow server, and requests to no listener", both, "nothing listens at 172.20.1.5 udp/5353"},
	} {
		var got string
		for _, f := range agreed(t, tt.node) {
			got += f.Title
		}
		if got != tt.want {
			t.Errorf("%s: %q, want %q", tt.name, got, tt.want)
		}
	}
}
