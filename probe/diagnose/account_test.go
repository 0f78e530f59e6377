package diagnose

import (
	"strings"
	"testing"
	"time"

	"github.com/lasthop/lasthop/probe/model"
)

// TestPorts: what is lost of one port says nothing of another port of the same two pods.
func TestPorts(t *testing.T) {
	// banned has a rule drop a port, and what it dropped.
	banned := func(from, to string, port uint16) *testNode {
		n := filtered()
		n.answered(pod6, "172.20.2.7")
		n.filter(model.NFT, "FORWARD", 9, model.PacketRule{Dst: model.AddrMatch{Prefix: model.Host(addr(to))}, Proto: tcp,
			DstPorts: onPort(port), Target: "DROP"})
		d := n.refuse("nft_do_chain", from, to, 9)
		d.First, d.Last = start.Add(time.Second), end.Add(-time.Second)
		n.sampled(d, head(tcp, port, 2))
		return n
	}
	beyond := func(n *testNode, port uint16, replied bool) *testNode {
		n.tracked(pod5, far, tcp, port, 5, replied)
		n.peer(pod5, far, syn, model.Either(replied, synAck, none))
		return n
	}
	here := func(n *testNode, port uint16, replied bool) *testNode {
		n.requested(pod6, pod5, tcp, port, 5, replied)
		return n
	}
	check(t, []fixture{
		{"a rule drops one port, and nobody replies on the other", func() *testNode { return beyond(banned(pod5, far, 443), 80, false) },
			[]string{"PolicyDrop proven 172.20.1.5 172.20.2.9", "NoReply likely 172.20.1.5 172.20.2.9"}},
		{"nobody replies on the port that the rule drops", func() *testNode { return beyond(banned(pod5, far, 443), 443, false) },
			[]string{"PolicyDrop proven 172.20.1.5 172.20.2.9"}},
		{"no rule, and replies on both", func() *testNode { return beyond(beyond(filtered(), 443, true), 80, true) }, nil},
		{"between pods of the node", func() *testNode { return here(banned(pod6, pod5, 443), 80, false) },
			[]string{"PolicyDrop proven 172.20.1.5 172.20.1.6", "PodNotReplying likely 172.20.1.5 172.20.1.6"}},
		{"between pods of the node, the same port", func() *testNode { return here(banned(pod6, pod5, 80), 80, false) },
			[]string{"PolicyDrop proven 172.20.1.5 172.20.1.6"}},
		{"between pods of the node, with replies", func() *testNode { return here(filtered(), 80, true) }, nil},
	})
}

// TestExcuses: a pair that asked in vain and is no finding has its reason.
func TestExcuses(t *testing.T) {
	for _, tt := range []struct {
		name   string
		remote string
		change func(*testNode, *model.Peer)
		want   model.Excuse
	}{
		{"one request", far, func(_ *testNode, p *model.Peer) { p.Out = model.PeerCount{Packets: 1, Requests: 1} }, model.ExcusedFew},
		{"two requests", far, func(_ *testNode, p *model.Peer) { p.Out = model.PeerCount{Packets: 2, Requests: 2} }, model.ExcusedFew},
		{"at the end", far, func(_ *testNode, p *model.Peer) { p.FirstOut = end.Add(-time.Millisecond) }, model.ExcusedRecent},
		{"for a moment", far, func(_ *testNode, p *model.Peer) { p.LastOut = p.FirstOut.Add(time.Millisecond) }, model.ExcusedBrief},
		{"to a group", "224.0.0.251", func(*testNode, *model.Peer) {}, model.ExcusedGroup},
		{"to a pod of the node", pod6, func(*testNode, *model.Peer) {}, model.ExcusedHere},
		{"not all counted", far, func(n *testNode, _ *model.Peer) { n.Traffic.Lost.Counters = 7 }, model.ExcusedUncounted},
		{"sent back", far, func(n *testNode, p *model.Peer) {
			p.In.Requests, p.In.Packets = 3, 3
			n.passes(pod5, 2, model.Egress, model.AsDestination, 3, 1)
		}, model.ExcusedReflected},
		{"replies to what is translated", far, func(n *testNode, _ *model.Peer) {
			n.Flows = append(n.Flows, model.Flow{Proto: tcp, Start: start, Replied: true,
				Original: model.Tuple{Src: addr(pod5), Dst: addr(far)}, Reply: model.Tuple{Src: addr(far), Dst: addr("10.50.0.4")}})
		}, model.ExcusedTranslated},
	} {
		t.Run(tt.name, func(t *testing.T) {
			n := kubenet()
			n.silent(pod5, tt.remote)
			tt.change(n, &n.Traffic.Peers[0])
			v := Judge(&n.Snapshot)
			if len(v.Silences) != 1 || v.Silences[0].Ordinary != tt.want || len(v.Findings) > 0 {
				t.Errorf("silences %+v with findings %+v, want %q", v.Silences, v.Findings, tt.want)
			}
		})
	}
}

// TestMisaddressed: frames that leave for a MAC of no next hop are told with both MACs.
func TestMisaddressed(t *testing.T) {
	n := kubenet()
	n.silent(pod5, far)
	n.Traffic.MACs[0].Dst = mac(deadMAC)
	f := Diagnose(&n.Snapshot)[0]
	lines := strings.Join(linesOf(&f), "\n")
	for _, want := range []string{"5 frames from 172.20.1.5 to " + deadMAC, "10.50.0.1, the next hop, has " + fabricMAC} {
		if !strings.Contains(lines, want) {
			t.Errorf("no %q in\n%s", want, lines)
		}
	}
}
