package loss

import (
	"net/netip"
	"testing"
	"time"

	"github.com/lasthop/lasthop/probe/model"
)

// classified has drops of dropNode for each class, and some that differ from these
// in one thing.
var classified = []struct {
	what string
	drop model.Drop
	want Class
}{
	{"a rule's", model.Drop{Reason: "NETFILTER_DROP", Location: "nf_hook_slow"}, Lost},
	{"one of an unknown reason", model.Drop{Location: "ip_forward"}, Lost},
	{"what a socket frees as it closes", model.Drop{Reason: "QUEUE_PURGE", Location: "sk_stream_kill_queues"}, Delivered},
	{"a duplicate segment", model.Drop{Reason: "TCP_OLD_DATA"}, Delivered},
	{"what TCP frees before Linux 5.17, perhaps for want of a socket", model.Drop{Location: "tcp_v4_rcv"}, Lost},

	{"a flooded copy for a pod", model.Drop{Reason: "OTHERHOST", DstMAC: model.MAC{2, 0, 0, 0, 0, 1}}, Copy},
	{"a flooded copy for a link", model.Drop{Reason: "OTHERHOST", DstMAC: model.MAC{2, 0, 0, 0, 0, 2}}, Copy},
	{"a flooded copy for a gateway", model.Drop{Reason: "OTHERHOST", DstMAC: model.MAC{2, 0, 0, 0, 0, 4}}, Copy},
	{"a frame for a neighbour that is no gateway", model.Drop{Reason: "OTHERHOST", DstMAC: model.MAC{2, 0, 0, 0, 0, 5}}, Lost},
	{"a frame for nobody", model.Drop{Reason: "OTHERHOST", DstMAC: model.MAC{2, 9, 9, 9, 9, 9}}, Lost},
	{"a frame without an address", model.Drop{Reason: "OTHERHOST"}, Lost},
	{"a copy that tcpdump had no room for", model.Drop{Reason: "PACKET_SOCK_ERROR", Location: "tpacket_rcv", Src: peerAddr, Dst: podAddr}, Copy},
	{"the same on an older kernel", model.Drop{Reason: "NOT_SPECIFIED", Location: "packet_rcv", Src: peerAddr, Dst: podAddr}, Copy},
	{"a promiscuous bridge's copy", model.Drop{Reason: "NETFILTER_DROP", IfIndex: 3, Src: peerAddr, Dst: podAddr, DstMAC: model.MAC{2, 0, 0, 0, 0, 1}}, Copy},
	{"what returns to its sender by that bridge", model.Drop{Reason: "NETFILTER_DROP", IfIndex: 3, Src: podAddr, Dst: podAddr, DstMAC: model.MAC{2, 0, 0, 0, 0, 1}}, Lost},
	{"what that bridge delivers to the node", model.Drop{Reason: "NETFILTER_DROP", IfIndex: 3, Src: peerAddr, Dst: podAddr, DstMAC: model.MAC{2, 0, 0, 0, 0, 3}}, Lost},

	{"a frame for a pod that went", model.Drop{Reason: "OTHERHOST", DstMAC: model.MAC{2, 0, 0, 0, 0, 6}}, PodGone},
	{"a flooded packet for a pod that went", model.Drop{Reason: "OTHERHOST", Dst: goneAddr}, PodGone},
	{"one without a route for a pod that went", model.Drop{Reason: "IP_INNOROUTES", Location: "ip_error", Dst: goneAddr}, PodGone},
	{"one that left the node for a pod that went, and came back", model.Drop{Reason: "IP_RPFILTER", Location: "ip_rcv_finish_core", Src: podAddr, Dst: goneAddr}, PodGone},
	{"the same from the node", model.Drop{Reason: "IP_LOCAL_SOURCE", Location: "ip_rcv_finish_core", Dst: goneAddr}, PodGone},
	{"what came back too often", model.Drop{Reason: "IP_INHDR", Location: "ip_forward", Dst: goneAddr}, PodGone},
	{"what the filter drops for a running pod", model.Drop{Reason: "IP_RPFILTER", Location: "ip_rcv_finish_core", Src: peerAddr, Dst: podAddr}, Lost},
	{"one that waited for its MAC", model.Drop{Reason: "QUEUE_PURGE", Location: "neigh_invalidate", Dst: goneAddr}, PodGone},
	{"one that waited for a running pod's MAC", model.Drop{Reason: "QUEUE_PURGE", Location: "neigh_invalidate", Dst: podAddr}, Lost},

	{"a group that the receiver has not joined", model.Drop{Reason: "NOT_SPECIFIED", Location: "ip_rcv_finish_core", Dst: netip.MustParseAddr("224.0.0.251")}, Group},
	{"a broadcast that no socket wants", model.Drop{Reason: "NO_SOCKET", Location: "__udp4_lib_rcv", Dst: netip.MustParseAddr("10.0.0.255")}, Group},
	{"the same before Linux 5.17", model.Drop{Location: "__udp4_lib_rcv", Dst: netip.MustParseAddr("255.255.255.255")}, Group},
	{"a datagram that no socket wants", model.Drop{Reason: "NO_SOCKET", Location: "__udp4_lib_rcv", Dst: podAddr}, Lost},
	{"a group's packet that a rule drops", model.Drop{Reason: "NETFILTER_DROP", Location: "nf_hook_slow", Dst: netip.MustParseAddr("224.0.0.251")}, Lost},
	{"an IPv6 group", model.Drop{Location: "ip6_mc_input", Dst: netip.MustParseAddr("ff02::1:ff00:1")}, Group},
	{"a packet for one, where groups are freed", model.Drop{Location: "ip6_mc_input", Dst: goneAddr}, Lost},

	{"a solicitation for another", model.Drop{Reason: "IPV6_NDISC_NS_OTHERHOST", Dst: netip.MustParseAddr("ff02::1:ff00:1")}, NeighborDiscovery},
	{"an advertisement that is not news", model.Drop{Reason: "NOT_SPECIFIED", Location: "icmpv6_rcv", Src: netip.MustParseAddr("fe80::1")}, NeighborDiscovery},

	{"the first packets of a new pod", model.Drop{Reason: "NETFILTER_DROP", Src: newAddr, Last: dropStart.Add(6 * time.Second)}, PodStarting},
	{"what a new pod still loses at the end", model.Drop{Reason: "NETFILTER_DROP", Src: newAddr, Last: dropStart.Add(9 * time.Second)}, Lost},
	{"what an old pod lost", model.Drop{Reason: "NETFILTER_DROP", Src: podAddr, Last: dropStart.Add(6 * time.Second)}, Lost},
}

var (
	dropStart = time.Unix(1700000000, 0)
	podAddr   = netip.MustParseAddr("10.0.0.7")
	newAddr   = netip.MustParseAddr("10.0.0.8")
	goneAddr  = netip.MustParseAddr("10.0.0.9")
	peerAddr  = netip.MustParseAddr("10.0.0.77")
)

// dropNode has a promiscuous bridge with two pods, one of which has just come.
func dropNode() *model.Snapshot {
	addrs := func(a netip.Addr) []netip.Prefix { return []netip.Prefix{netip.PrefixFrom(a, 24)} }
	gateway := netip.MustParseAddr("10.9.0.1")
	return &model.Snapshot{
		Window: model.Window{Start: dropStart, End: dropStart.Add(10 * time.Second)},
		Links: []model.Link{
			{Index: 1, Name: "lo"}, {Index: 2, Name: "p7", MAC: model.MAC{2, 0, 0, 0, 0, 2}, Master: 3},
			{Index: 3, Name: "br0", Kind: "bridge", Promisc: true, MAC: model.MAC{2, 0, 0, 0, 0, 3}},
		},
		Routes: []model.Route{{Dst: netip.MustParsePrefix("0.0.0.0/0"), NextHops: []model.Route{{Gateway: gateway}}}},
		Neighbors: []model.Neighbor{
			{Addr: gateway, MAC: model.MAC{2, 0, 0, 0, 0, 4}}, {Addr: netip.MustParseAddr("10.9.0.2"), MAC: model.MAC{2, 0, 0, 0, 0, 5}},
		},
		Pods: []model.Pod{
			{MAC: model.MAC{2, 0, 0, 0, 0, 1}, LinkIndex: 2, Addresses: addrs(podAddr)},
			{LinkIndex: 2, Addresses: addrs(newAddr), Since: dropStart.Add(5 * time.Second)},
		},
		PastPods: []model.Pod{{MAC: model.MAC{2, 0, 0, 0, 0, 6}, Addresses: addrs(goneAddr)}},
	}
}

func TestDropClass(t *testing.T) {
	c := NewClassifier(dropNode())
	for _, tt := range classified {
		if got := c.Class(&tt.drop); got != tt.want || c.Lost(&tt.drop) != (tt.want == Lost) {
			t.Errorf("%s: class %q, want %q", tt.what, got, tt.want)
		}
	}
	// A snapshot of nothing knows no pods, and has no addresses that stand for any.
	none := NewClassifier(&model.Snapshot{})
	for _, d := range []model.Drop{{}, {Reason: "OTHERHOST"}, {Reason: "NETFILTER_DROP"}, {Reason: "NEIGH_FAILED"}, {Location: "__udp4_lib_rcv"}} {
		if !none.Lost(&d) {
			t.Errorf("%+v is harmless on a node of which nothing is known", d)
		}
	}
}
