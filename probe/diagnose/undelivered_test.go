package diagnose

import (
	"testing"
	"time"

	"github.com/lasthop/lasthop/probe/model"
)

// arrives are packets for a pod that came in by a link, and how many of them left by the pod's own, beside the node's.
func (n *testNode) arrives(a string, ifindex int, packets uint64, pod int, delivered, own uint64) {
	n.passes(a, ifindex, model.Ingress, model.AsDestination, packets, 2)
	n.passes(a, n.Pods[pod].LinkIndex, model.Egress, model.AsDestination, delivered+own, 2)
	n.Traffic.Hops[len(n.Traffic.Hops)-1].FromUplink = delivered
}

// TestUndelivered: what came in for a pod and left by no link, with no drop counted, is lost on this node.
func TestUndelivered(t *testing.T) {
	const pod20 = "10.50.0.20"
	filter := func(n *testNode, kind string) *testNode {
		n.with(model.SourcePrograms)
		n.Programs = append(n.Programs, model.Program{Kind: model.ProgramTC, Filter: kind, Priority: 49152, Handle: 1, Direction: model.Ingress,
			IfIndex: 2, Link: n.Links[0].Name})
		return n
	}
	queued := func(n *testNode, counted uint64) *testNode {
		n.chain(model.NFT, "ip", "filter", "FORWARD", "FORWARD", "ACCEPT", 0)
		n.filter(model.NFT, "FORWARD", counted, model.PacketRule{Dst: to("172.20.1.0/24"), Target: "NFQUEUE", Text: "-d 172.20.1.0/24 -j NFQUEUE --queue-num 3"})
		return n.with(model.SourcePrograms)
	}
	situations(t, []situation{
		{"a filter of tc takes them at the NIC; the kubelet's probes get there", func() *testNode {
			n := filter(routed(), "matchall")
			n.arrives(pod20, 2, 40, 0, 0, 6)
			n.peer(pod20, far, none, syn)
			return n
		}, []string{"critical UnexplainedDrop"}, "tc filter matchall", ""},
		{"healthy: a filter of tc that copies", func() *testNode {
			n := filter(routed(), "matchall")
			n.arrives(pod20, 2, 40, 0, 40, 6)
			return n
		}, nil, "", ""},
		{"a queue to a program that keeps them, behind a tunnel", func() *testNode {
			n := queued(overTunnel("vxlan", "flannel.1"), 20)
			n.arrives(pod5, 7, 20, 0, 0, 0)
			n.passes(pod5, n.Pods[0].LinkIndex, model.Ingress, model.AsSource, 20, 1)
			return n
		}, []string{"critical UnexplainedDrop"}, "--queue-num 3", ""},
		{"healthy: a queue to a program that gives them back", func() *testNode {
			n := queued(overTunnel("vxlan", "flannel.1"), 20)
			n.arrives(pod5, 7, 20, 0, 0, 0)
			h := &n.Traffic.Hops[len(n.Traffic.Hops)-1]
			h.Packets, h.FromInside = 20, 20
			return n
		}, nil, "", ""},
		{"the replies that a pod waits for arrive, and a part is not delivered", func() *testNode {
			n := bridged().live().with(model.SourcePrograms)
			n.arrives("10.60.0.20", 2, 90, 0, 60, 0)
			n.peer("10.60.0.20", out, model.PeerCount{Packets: 30, Requests: 30}, model.PeerCount{Packets: 30, Replies: 30})
			n.tracked("10.60.0.20", out, tcp, 443, 5, false)
			n.peer("10.60.0.20", out2, syn, model.PeerCount{Packets: 60, Replies: 60})
			n.tracked("10.60.0.20", out2, tcp, 443, 5, true)
			return n
		}, []string{"warning UnexplainedDrop"}, "30 packets", ""},
		{"healthy: Cilium's programs redirect past the pod's link", func() *testNode {
			n := routed().with(model.SourcePrograms)
			n.Programs = []model.Program{{Kind: model.ProgramTCX, ID: 7, Name: "cil_from_netdev", Direction: model.Ingress, IfIndex: 2, Link: "ens5"}}
			n.arrives(pod20, 2, 40, 0, 0, 0)
			return n
		}, nil, "", ""},
		{"healthy: programs that could not be listed may redirect", func() *testNode {
			n := routed()
			n.arrives(pod20, 2, 40, 0, 0, 0)
			return n
		}, nil, "", ""},
		{"healthy: not every link is watched", func() *testNode {
			n := filter(routed(), "u32")
			n.lose(model.SourceTC, model.Partial)
			n.arrives(pod20, 2, 40, 0, 0, 0)
			return n
		}, nil, "", ""},
		{"healthy: a pod in the node's own namespace", func() *testNode {
			n := routed().with(model.SourcePrograms)
			n.passes("10.50.0.4", 2, model.Ingress, model.AsDestination, 40, 2)
			return n
		}, nil, "", ""},
		{"healthy: a mirrored port brings other machines' frames", func() *testNode {
			n := routed().with(model.SourcePrograms)
			n.passes(pod20, 2, model.Ingress, model.AsDestination, 40, 2)
			n.frames(pod20, 2, model.Ingress, model.AsDestination, deadMAC, 40)
			return n
		}, nil, "", ""},
		{"healthy: a pod that came within the window", func() *testNode {
			n := routed().with(model.SourcePrograms)
			n.Pods[0].Since = start.Add(4 * time.Second)
			n.arrives(pod20, 2, 40, 0, 0, 0)
			return n
		}, nil, "", ""},
		{"healthy: a rule leads what is for the pod to a proxy of the node", func() *testNode {
			n := routed().with(model.SourcePrograms)
			n.arrives(pod20, 2, 40, 0, 0, 0)
			n.Flows = append(n.Flows, model.Flow{Proto: tcp, Start: start, Replied: true, State: "ESTABLISHED",
				Original: model.Tuple{Src: addr(far), Dst: addr(pod20), SrcPort: 40000, DstPort: 80},
				Reply:    model.Tuple{Src: addr("10.50.0.4"), Dst: addr(far), SrcPort: 15006, DstPort: 40000}})
			return n
		}, nil, "", ""},
		{"IPv6: a filter of tc takes a half, by flow", func() *testNode {
			n := filter(dual(), "flower")
			n.arrives("fd20:0:0:1::6", 2, 60, 1, 30, 4)
			return n
		}, []string{"warning UnexplainedDrop"}, "tc filter flower", ""},
		{"by the second NIC, and nothing that was read stands between", func() *testNode {
			n := twoNICs(routed()).with(model.SourcePrograms)
			n.arrives("10.50.0.21", 4, 25, 1, 0, 0)
			n.peer("10.50.0.21", "10.51.7.7", none, syn)
			n.bySecond()
			return n
		}, []string{"critical UnexplainedDrop"}, "netdev", ""},
		{"healthy: some are still on their way, of many", func() *testNode {
			n := routed().with(model.SourcePrograms)
			n.arrives(pod20, 2, 4000, 0, 3960, 0)
			return n
		}, nil, "", ""},
		{"healthy: what goes on to another pod by the network", func() *testNode {
			n := twoNICs(routed()).with(model.SourcePrograms)
			n.arrives(pod20, 2, 40, 0, 0, 0)
			n.passes(pod20, 4, model.Egress, model.AsDestination, 40, 2)
			n.passes(pod20, 4, model.Ingress, model.AsDestination, 40, 2)
			n.Traffic.Hops[1].Packets, n.Traffic.Hops[1].FromUplink = 40, 40
			return n
		}, nil, "", ""},
		{"what was dropped is that finding's", func() *testNode {
			n := routed().with(model.SourcePrograms)
			n.arrives(pod20, 2, 40, 0, 0, 0)
			n.peer(pod20, far, none, syn)
			n.chain(model.NFT, "ip", "filter", "FORWARD", "FORWARD", "DROP", 40)
			n.dropOn("ens5", "NETFILTER_DROP", "nft_do_chain", far, pod20, 40)
			return n
		}, []string{"warning PolicyDrop"}, "", ""},
	})
}
