package diagnose

import (
	"testing"

	"github.com/lasthop/lasthop/probe/model"
)

// deduplicating is a kubenet node with kubelet's rule for a range.
func deduplicating(cidr string, counted uint64) *testNode {
	n := kubenet().live()
	n.link(3).Promisc = true
	r := n.frameRule(model.FrameRule{EtherType: 0x0800, Out: model.IfMatch{Name: "tap+"}, IPSrc: to(cidr), Target: model.TargetDrop,
		SrcMAC: model.MACMatch{Addr: mac("0a:00:00:00:00:03"), Mask: model.Broadcast, Set: true},
		Text:   "-p IPv4 -s 0a:00:00:00:00:03 -o tap+ --ip-src " + cidr + " -j DROP"})
	r.Table, r.Chain, r.Counter.Delta = "filter", "KUBE-DEDUP", counted
	return n
}

// shaped is a queue that limits what leaves by a link to four megabits a second, and what it did in ten seconds.
func (n *testNode) shaped(link int, sent, drops, bytes uint64, a, from string, side model.Side) *testNode {
	l := n.link(link)
	n.with(model.SourceQueues)
	n.Queues = append(n.Queues, model.Queue{IfIndex: link, Link: l.Name, Kind: "tbf", Handle: "1:", Rate: 500_000, Burst: 20_000,
		Limit: 45_000, SentDelta: sent, DropsDelta: drops})
	n.passes(a, link, model.Egress, side, sent+drops, 1)
	n.Traffic.Hops[len(n.Traffic.Hops)-1].Bytes = bytes
	src, dst := from, a
	if side == model.AsSource {
		src, dst = a, from
	}
	d := n.dropOn(l.Name, "QDISC_DROP", "__dev_queue_xmit", src, dst, drops)
	d.Proto, d.First, d.Last = tcp, start, end
	return n
}

// TestCopies: a drop is no loss where that packet was a second copy, and a MAC is right where the rule acts.
func TestCopies(t *testing.T) {
	situations(t, []situation{
		{"copies between two pods of the bridge", func() *testNode {
			n := deduplicating("172.20.1.0/24", 40)
			n.dropOn("tap11", "NETFILTER_DROP", "nft_do_chain", pod5, pod6, 40)
			return n
		}, nil, "", ""},
		{"what is for a pod that is gone is flooded", func() *testNode {
			n := deduplicating("172.20.1.0/24", 40)
			n.dropOn("tap11", "NETFILTER_DROP", "nft_do_chain", pod5, "172.20.1.9", 40)
			return n
		}, nil, "", ""},
		{"the cluster's range takes all that other nodes' pods send", func() *testNode {
			n := deduplicating("172.20.0.0/16", 40)
			n.dropOn("tap11", "NETFILTER_DROP", "nft_do_chain", far, pod6, 40)
			return n
		}, []string{"warning BridgeRuleDrop"}, "172.20.0.0/16", ""},
		{"the accept of the bridge's own address is behind it: probes die", func() *testNode {
			n := deduplicating("172.20.1.0/24", 40)
			r := n.frameRule(model.FrameRule{EtherType: 0x0800, Out: model.IfMatch{Name: "tap+"}, IPSrc: to("172.20.1.1/32"),
				Target: model.TargetAccept, Text: "-p IPv4 -o tap+ --ip-src 172.20.1.1 -j ACCEPT"})
			r.Table, r.Chain = "filter", "KUBE-DEDUP"
			n.dropOn("tap11", "NETFILTER_DROP", "nft_do_chain", "172.20.1.1", pod6, 40)
			return n
		}, []string{"warning BridgeRuleDrop"}, "", ""},
		{"a container of another bridge speaks to the pods", func() *testNode {
			n := deduplicating("172.16.0.0/12", 40)
			n.bridgeOf(8, "docker0", "02:42:00:00:00:08", "172.17.0.1/16")
			n.pod("172.17.0.2", "02:42:ac:11:00:02", 8)
			n.dropOn("tap11", "NETFILTER_DROP", "nft_do_chain", "172.17.0.2", pod6, 40)
			return n.live()
		}, []string{"warning BridgeRuleDrop"}, "", ""},
		{"IPv6: copies between two pods", func() *testNode {
			n := dual()
			r := n.frameRule(model.FrameRule{EtherType: 0x86dd, Out: model.IfMatch{Name: "tap+"}, IPSrc: to("fd20:0:0:1::/64"), Target: model.TargetDrop,
				SrcMAC: model.MACMatch{Addr: mac("0a:00:00:00:00:03"), Mask: model.Broadcast, Set: true}})
			r.Table, r.Chain, r.Counter.Delta = "filter", "KUBE-DEDUP", 12
			n.dropOn("tap11", "NETFILTER_DROP", "nft_do_chain", "fd20:0:0:1::5", "fd20:0:0:1::6", 12)
			return n
		}, nil, "", ""},
		{"IPv6: from another node's pods", func() *testNode {
			n := dual()
			r := n.frameRule(model.FrameRule{EtherType: 0x86dd, Out: model.IfMatch{Name: "tap+"}, IPSrc: to("fd20::/48"), Target: model.TargetDrop,
				SrcMAC: model.MACMatch{Addr: mac("0a:00:00:00:00:03"), Mask: model.Broadcast, Set: true}, Text: "--ip6-src fd20::/48 -j DROP"})
			r.Table, r.Chain, r.Counter.Delta = "filter", "KUBE-DEDUP", 12
			n.dropOn("tap11", "NETFILTER_DROP", "nft_do_chain", "fd20:0:0:2::9", "fd20:0:0:1::6", 12)
			return n
		}, []string{"warning BridgeRuleDrop"}, "", ""},
		{"a rewrite to a MAC of the bridge itself", func() *testNode {
			n := bridged().live()
			n.FrameRules = n.FrameRules[:2]
			n.dnat("10.60.0.20", nicMAC).Counter.Delta = 40
			return n
		}, nil, "", ""},
		{"a rewrite to the MAC of another bridge", func() *testNode {
			n := bridged().live()
			n.bridgeOf(8, "docker0", "02:42:00:00:00:08", "172.17.0.1/16")
			n.FrameRules = n.FrameRules[:2]
			n.dnat("10.60.0.20", "02:42:00:00:00:08").Counter.Delta = 40
			n.drop("OTHERHOST", "ip_rcv_core", out, "10.60.0.20", 40).DstMAC = mac("02:42:00:00:00:08")
			return n
		}, []string{"critical StaleMACRewrite"}, "", ""},
		{"a rewrite to the MAC of another bridge's port", func() *testNode {
			n := bridged().live()
			n.bridgeOf(8, "virbr0", "52:54:00:00:00:08", "192.168.122.1/24")
			n.Links = append(n.Links, model.Link{Index: 9, Name: "vnet0", Master: 8, Kind: "tun", MAC: mac("fe:54:00:00:00:09"), Up: true, Carrier: true})
			n.FrameRules = n.FrameRules[:2]
			n.dnat("10.60.0.20", "fe:54:00:00:00:09").Counter.Delta = 40
			return n
		}, []string{"critical StaleMACRewrite"}, "", ""},
		{"a download at the rate of the pod's bandwidth annotation", func() *testNode {
			return kubenet().live().shaped(11, 3200, 420, 5_000_000, pod6, out, model.AsDestination)
		}, nil, "", ""},
		{"an upload at the rate, shaped on an ifb", func() *testNode {
			n := routed()
			n.Links = append(n.Links, model.Link{Index: 30, Name: "bwp0", Kind: "ifb", Up: true, Carrier: true})
			return n.shaped(30, 3300, 390, 5_100_000, "10.50.0.20", out, model.AsSource)
		}, nil, "", ""},
		{"a queue too short for its rate: as many are dropped, and a tenth of the rate is used", func() *testNode {
			return kubenet().live().shaped(11, 400, 90, 450_000, pod6, out, model.AsDestination)
		}, []string{"warning QueueDrop"}, "", ""},
		{"at its rate, and most is dropped", func() *testNode {
			return kubenet().live().shaped(11, 3200, 6000, 13_000_000, pod6, out, model.AsDestination)
		}, []string{"warning QueueDrop"}, "", ""},
		{"copies, and other nodes' packets beside them by the same rule", func() *testNode {
			n := deduplicating("172.20.0.0/16", 80)
			n.dropOn("tap11", "NETFILTER_DROP", "nft_do_chain", pod5, pod6, 40)
			n.dropOn("tap11", "NETFILTER_DROP", "nft_do_chain", far, pod6, 40)
			return n
		}, []string{"warning BridgeRuleDrop"}, far, ""},
	})
}
