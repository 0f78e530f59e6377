package diagnose

import (
	"strings"
	"testing"

	"github.com/lasthop/lasthop/probe/model"
)

// racing is a node where so many entries could not be entered, and a name
// server's service with one backend.
func racing(failed uint64) *testNode {
	n := kubenet()
	n.Conntrack = model.Conntrack{Count: 40, Max: 65536, InsertFailed: failed, Drop: failed}
	n.Flows = append(n.Flows, model.Flow{Proto: udp, Start: start, Replied: true,
		Original: model.Tuple{Src: addr(pod5), Dst: addr("10.96.0.10"), DstPort: 53},
		Reply:    model.Tuple{Src: addr(pod6), Dst: addr(pod5), SrcPort: 53}})
	return n
}

// lost adds datagrams that were not entered.
func (n *testNode) lost(location, src, dst string, port uint16, packets uint64) *model.Drop {
	d := n.refuse(location, src, dst, packets)
	d.Proto = udp
	n.sampled(d, head(udp, port, 0))
	return d
}

func TestConntrackRace(t *testing.T) {
	tests := []struct {
		name string
		node func() *testNode
		want []string
	}{
		{"questions to a service", func() *testNode {
			n := racing(9)
			n.lost("nf_hook_slow", pod5, pod6, 53, 9)
			return n
		}, []string{"ConntrackRace proven 172.20.1.5 10.96.0.10 172.20.1.6"}},
		{"held by a daemon", func() *testNode {
			n := racing(9)
			n.lost("nfqnl_reinject", pod5, pod6, 53, 9).Reason = "NOT_SPECIFIED"
			return n
		}, []string{"ConntrackRace proven 172.20.1.5 10.96.0.10 172.20.1.6"}},
		{"questions that are masqueraded", func() *testNode {
			n := racing(12)
			n.masked(pod5, out, udp, 9, true)
			for i := range n.Flows {
				n.Flows[i].Original.DstPort = 53
			}
			return n
		}, []string{"ConntrackRace possible 172.20.1.5 203.0.113.9"}},
		{"masqueraded, and no questions", func() *testNode {
			n := racing(12)
			n.masked(pod5, out, udp, 9, true)
			for i := range n.Flows {
				n.Flows[i].Original.DstPort = 4500
			}
			return n
		}, nil},
		{"not for names", func() *testNode {
			n := racing(12)
			n.Flows = nil
			n.lost("nf_hook_slow", pod5, out, 4500, 6)
			n.lost("nf_hook_slow", pod6, out, 4500, 6)
			return n
		}, []string{"ConntrackRace proven 172.20.1.5 172.20.1.6 203.0.113.9"}},
		{"as many as were refused, and no more", func() *testNode {
			n := racing(9)
			n.lost("nf_hook_slow", pod5, pod6, 53, 9)
			n.lost("nf_hook_slow", pod5, out, 53, 500)
			return n
		}, []string{"ConntrackRace proven 172.20.1.5 10.96.0.10 172.20.1.6", "UnexplainedDrop proven 172.20.1.5 203.0.113.9"}},
		{"what a legacy rule counted is the rule's", func() *testNode {
			n := racing(9)
			n.chain(model.Legacy, "ip", "filter", "FORWARD", "FORWARD", "ACCEPT", 0)
			n.filter(model.Legacy, "FORWARD", 9, model.PacketRule{Dst: to(pod6 + "/32"), Target: "DROP"})
			n.lost("nf_hook_slow", pod5, pod6, 53, 9)
			return n
		}, []string{"PolicyDrop proven 172.20.1.6 172.20.1.5"}},
		{"a rule without a counter meets them", func() *testNode {
			n := racing(60)
			n.chain(model.NFT, "ip", "filter", "FORWARD", "FORWARD", "ACCEPT", 0)
			n.filter(model.NFT, "FORWARD", 0, model.PacketRule{Target: "DROP", Proto: udp, Dst: to(far + "/32"), Native: true}).Counter = model.Counter{}
			n.lost("nf_hook_slow", pod5, far, 4500, 55)
			return n
		}, []string{"PolicyDrop proven 172.20.1.5 172.20.2.9"}},
		{"a rule whose counter began anew meets them", func() *testNode {
			n := racing(60)
			n.Flows = nil
			n.chain(model.NFT, "ip", "filter", "FORWARD", "FORWARD", "ACCEPT", 0)
			n.filter(model.NFT, "FORWARD", 5, model.PacketRule{Target: "DROP", Dst: to(far + "/32")}).Counter.Restarted = true
			n.lost("nf_hook_slow", pod5, far, 4500, 55)
			return n
		}, []string{"PolicyDrop likely 172.20.1.5 172.20.2.9"}},
		{"a rule without a counter may meet them", func() *testNode {
			n := racing(60)
			n.chain(model.NFT, "ip", "filter", "FORWARD", "FORWARD", "ACCEPT", 0)
			n.filter(model.NFT, "FORWARD", 0, model.PacketRule{Target: "DROP", Dst: to(far + "/32"), Native: true, Unknown: []string{"meta mark"}}).Counter = model.Counter{}
			n.lost("nf_hook_slow", pod5, far, 4500, 55)
			return n
		}, []string{"ConntrackRace likely 172.20.1.5 172.20.2.9"}},
		{"nothing was refused", func() *testNode {
			n := racing(0)
			n.lost("nf_hook_slow", pod5, pod6, 53, 9)
			return n
		}, []string{"UnexplainedDrop proven 172.20.1.6 172.20.1.5"}},
		{"one in a window happens", func() *testNode {
			n := racing(1)
			n.lost("nf_hook_slow", pod5, pod6, 53, 1)
			return n
		}, nil},
		{"refused were others than pods", func() *testNode { return racing(50) }, nil},
		{"refused in the pod's own namespace", func() *testNode {
			n := racing(9)
			n.Pods[0].Netns = 77
			n.lost("nf_hook_slow", pod5, pod6, 53, 9).Netns = 77
			return n
		}, []string{"PolicyDrop likely 172.20.1.5 172.20.1.6"}},
		{"the statistics are unread", func() *testNode {
			n := racing(9)
			n.lose(model.SourceConntrack, model.Missing)
			n.lost("nf_hook_slow", pod5, pod6, 53, 9)
			return n
		}, []string{"UnexplainedDrop proven 172.20.1.6 172.20.1.5"}},
		{"drops are not watched", func() *testNode {
			n := racing(9)
			n.lose(model.SourceDrops, model.Missing)
			return n
		}, []string{"ConntrackRace possible 172.20.1.5 10.96.0.10"}},
		{"drops are not watched, and nobody asks for names", func() *testNode {
			n := racing(9)
			n.lose(model.SourceDrops, model.Missing)
			n.Flows = nil
			return n
		}, nil},
		{"the table is full", func() *testNode {
			n := racing(9)
			n.Conntrack.Count, n.Conntrack.Max = 1000, 1000
			n.lost("nf_hook_slow", pod5, pod6, 53, 9)
			return n
		}, []string{"ConntrackFull proven 172.20.1.6 172.20.1.5"}},
	}
	for _, tt := range tests {
		t.Run(tt.name, func(t *testing.T) { verdicts(t, tt.node(), tt.want) })
	}
}

func TestConntrackRaceFix(t *testing.T) {
	for port, want := range map[uint16]string{53: "NodeLocal DNSCache", 4500: "--random-fully"} {
		n := racing(9)
		n.lost("nf_hook_slow", pod5, out, port, 9)
		if f := Diagnose(&n.Snapshot)[0]; !strings.Contains(strings.Join(f.Fix, "\n"), want) {
			t.Errorf("port %d: fix %q, want %s", port, f.Fix, want)
		}
	}
}
