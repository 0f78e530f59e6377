package model

import (
	"fmt"
	"net/netip"
	"testing"
	"time"
)

// classified has drops of dropNode for each class, and some that differ from these
// in one thing.
var classified = []struct {
	what string
	drop Drop
	want DropClass
}{
	{"a rule's", Drop{Reason: "NETFILTER_DROP", Location: "nf_hook_slow"}, DropLost},
	{"one of an unknown reason", Drop{Location: "ip_forward"}, DropLost},
	{"what a socket frees as it closes", Drop{Reason: "QUEUE_PURGE", Location: "sk_stream_kill_queues"}, FreeDelivered},
	{"a duplicate segment", Drop{Reason: "TCP_OLD_DATA"}, FreeDelivered},
	{"what TCP frees before Linux 5.17, perhaps for want of a socket", Drop{Location: "tcp_v4_rcv"}, DropLost},

	{"a flooded copy for a pod", Drop{Reason: "OTHERHOST", DstMAC: MAC{2, 0, 0, 0, 0, 1}}, FreeCopy},
	{"a flooded copy for a link", Drop{Reason: "OTHERHOST", DstMAC: MAC{2, 0, 0, 0, 0, 2}}, FreeCopy},
	{"a flooded copy for a gateway", Drop{Reason: "OTHERHOST", DstMAC: MAC{2, 0, 0, 0, 0, 4}}, FreeCopy},
	{"a frame for a neighbour that is no gateway", Drop{Reason: "OTHERHOST", DstMAC: MAC{2, 0, 0, 0, 0, 5}}, DropLost},
	{"a frame for nobody", Drop{Reason: "OTHERHOST", DstMAC: MAC{2, 9, 9, 9, 9, 9}}, DropLost},
	{"a frame without an address", Drop{Reason: "OTHERHOST"}, DropLost},
	{"a copy that tcpdump had no room for", Drop{Reason: "PACKET_SOCK_ERROR", Location: "tpacket_rcv", Src: peerAddr, Dst: podAddr}, FreeCopy},
	{"the same on an older kernel", Drop{Reason: "NOT_SPECIFIED", Location: "packet_rcv", Src: peerAddr, Dst: podAddr}, FreeCopy},
	{"a promiscuous bridge's copy", Drop{Reason: "NETFILTER_DROP", IfIndex: 3, Src: peerAddr, Dst: podAddr, DstMAC: MAC{2, 0, 0, 0, 0, 1}}, FreeCopy},
	{"what returns to its sender by that bridge", Drop{Reason: "NETFILTER_DROP", IfIndex: 3, Src: podAddr, Dst: podAddr, DstMAC: MAC{2, 0, 0, 0, 0, 1}}, DropLost},
	{"what that bridge delivers to the node", Drop{Reason: "NETFILTER_DROP", IfIndex: 3, Src: peerAddr, Dst: podAddr, DstMAC: MAC{2, 0, 0, 0, 0, 3}}, DropLost},

	{"a frame for a pod that went", Drop{Reason: "OTHERHOST", DstMAC: MAC{2, 0, 0, 0, 0, 6}}, FreePodGone},
	{"a flooded packet for a pod that went", Drop{Reason: "OTHERHOST", Dst: goneAddr}, FreePodGone},
	{"one without a route for a pod that went", Drop{Reason: "IP_INNOROUTES", Location: "ip_error", Dst: goneAddr}, FreePodGone},
	{"one that left the node for a pod that went, and came back", Drop{Reason: "IP_RPFILTER", Location: "ip_rcv_finish_core", Src: podAddr, Dst: goneAddr}, FreePodGone},
	{"the same from the node", Drop{Reason: "IP_LOCAL_SOURCE", Location: "ip_rcv_finish_core", Dst: goneAddr}, FreePodGone},
	{"what came back too often", Drop{Reason: "IP_INHDR", Location: "ip_forward", Dst: goneAddr}, FreePodGone},
	{"what the filter drops for a living pod", Drop{Reason: "IP_RPFILTER", Location: "ip_rcv_finish_core", Src: peerAddr, Dst: podAddr}, DropLost},
	{"one that waited for its MAC", Drop{Reason: "QUEUE_PURGE", Location: "neigh_invalidate", Dst: goneAddr}, FreePodGone},
	{"one that waited for a living pod's MAC", Drop{Reason: "QUEUE_PURGE", Location: "neigh_invalidate", Dst: podAddr}, DropLost},

	{"a group that the receiver has not joined", Drop{Reason: "NOT_SPECIFIED", Location: "ip_rcv_finish_core", Dst: netip.MustParseAddr("224.0.0.251")}, FreeGroup},
	{"a broadcast that no socket wants", Drop{Reason: "NO_SOCKET", Location: "__udp4_lib_rcv", Dst: netip.MustParseAddr("10.0.0.255")}, FreeGroup},
	{"the same before Linux 5.17", Drop{Location: "__udp4_lib_rcv", Dst: netip.MustParseAddr("255.255.255.255")}, FreeGroup},
	{"a datagram that no socket wants", Drop{Reason: "NO_SOCKET", Location: "__udp4_lib_rcv", Dst: podAddr}, DropLost},
	{"a group's packet that a rule drops", Drop{Reason: "NETFILTER_DROP", Location: "nf_hook_slow", Dst: netip.MustParseAddr("224.0.0.251")}, DropLost},
	{"an IPv6 group", Drop{Location: "ip6_mc_input", Dst: netip.MustParseAddr("ff02::1:ff00:1")}, FreeGroup},
	{"a packet for one, where groups are freed", Drop{Location: "ip6_mc_input", Dst: goneAddr}, DropLost},

	{"a solicitation for another", Drop{Reason: "IPV6_NDISC_NS_OTHERHOST", Dst: netip.MustParseAddr("ff02::1:ff00:1")}, FreeNeighborDiscovery},
	{"an advertisement that is not news", Drop{Reason: "NOT_SPECIFIED", Location: "icmpv6_rcv", Src: netip.MustParseAddr("fe80::1")}, FreeNeighborDiscovery},

	{"the first packets of a new pod", Drop{Reason: "NETFILTER_DROP", Src: newAddr, Last: dropStart.Add(6 * time.Second)}, FreePodStarting},
	{"what a new pod still loses at the end", Drop{Reason: "NETFILTER_DROP", Src: newAddr, Last: dropStart.Add(9 * time.Second)}, DropLost},
	{"what an old pod lost", Drop{Reason: "NETFILTER_DROP", Src: podAddr, Last: dropStart.Add(6 * time.Second)}, DropLost},
}

var (
	dropStart = time.Unix(1700000000, 0)
	podAddr   = netip.MustParseAddr("10.0.0.7")
	newAddr   = netip.MustParseAddr("10.0.0.8")
	goneAddr  = netip.MustParseAddr("10.0.0.9")
	peerAddr  = netip.MustParseAddr("10.0.0.77")
)

// dropNode has a promiscuous bridge with two pods, one of which has just come.
func dropNode() *Snapshot {
	addrs := func(a netip.Addr) []netip.Prefix { return []netip.Prefix{netip.PrefixFrom(a, 24)} }
	gateway := netip.MustParseAddr("10.9.0.1")
	return &Snapshot{
		Window: Window{Start: dropStart, End: dropStart.Add(10 * time.Second)},
		Links: []Link{
			{Index: 1, Name: "lo"}, {Index: 2, Name: "p7", MAC: MAC{2, 0, 0, 0, 0, 2}, Master: 3},
			{Index: 3, Name: "br0", Kind: "bridge", Promisc: true, MAC: MAC{2, 0, 0, 0, 0, 3}},
		},
		Routes: []Route{{Dst: netip.MustParsePrefix("0.0.0.0/0"), NextHops: []Route{{Gateway: gateway}}}},
		Neighbors: []Neighbor{
			{Addr: gateway, MAC: MAC{2, 0, 0, 0, 0, 4}}, {Addr: netip.MustParseAddr("10.9.0.2"), MAC: MAC{2, 0, 0, 0, 0, 5}},
		},
		Pods: []Pod{
			{MAC: MAC{2, 0, 0, 0, 0, 1}, LinkIndex: 2, Addresses: addrs(podAddr)},
			{LinkIndex: 2, Addresses: addrs(newAddr), Since: dropStart.Add(5 * time.Second)},
		},
		PastPods: []Pod{{MAC: MAC{2, 0, 0, 0, 0, 6}, Addresses: addrs(goneAddr)}},
	}
}

func TestDropClass(t *testing.T) {
	c := NewDropClassifier(dropNode())
	for _, tt := range classified {
		if got := c.Class(&tt.drop); got != tt.want || c.Lost(&tt.drop) != (tt.want == DropLost) {
			t.Errorf("%s: class %q, want %q", tt.what, got, tt.want)
		}
	}
	// A snapshot of nothing knows no pods, and has no addresses that stand for any.
	none := NewDropClassifier(&Snapshot{})
	for _, d := range []Drop{{}, {Reason: "OTHERHOST"}, {Reason: "NETFILTER_DROP"}, {Reason: "NEIGH_FAILED"}, {Location: "__udp4_lib_rcv"}} {
		if !none.Lost(&d) {
			t.Errorf("%+v is harmless on a node of which nothing is known", d)
		}
	}
}

func TestDelivered(t *testing.T) {
	for _, tt := range []struct {
		reason   Reason
		location string
		want     bool
	}{
		{"TCP_OLD_DATA", "tcp_rcv_established", true},
		{"SOCKET_CLOSE", "inet_sock_destruct", true},
		{"SOCKET_FILTER", "sk_filter_trim_cap", true},
		{"QUEUE_PURGE", "skb_queue_purge_reason", true},
		{"NOT_SPECIFIED", "tcp_v4_do_rcv", true},
		{"NOT_SPECIFIED", "tcp_v4_rcv", true},
		{"TCP_CSUM", "tcp_v4_rcv", false},
		{"TCP_MD5NOTFOUND", "tcp_v6_rcv", false},
		{"TCP_AOFAILURE", "tcp_v4_rcv", false},
		{"TCP_MINTTL", "tcp_v4_rcv", false},
		{"DUP_FRAG", "ip_defrag", true},
		{"FRAG_REASM_TIMEOUT", "ip_expire", false},
		{"", "inet_csk_destroy_sock", true},
		{"NO_SOCKET", "ping_rcv", true},
		{"NO_SOCKET", "icmp_rcv", true},
		{Consumed, "icmpv6_rcv", true},

		// The socket has no room.
		{"TCP_LISTEN_OVERFLOW", "tcp_check_req", false},
		{"NO_SOCKET", "cookie_v4_check", false},
		{"SOCKET_RCVBUFF", "udp_queue_rcv_one_skb", false},
		// What waited for a MAC was never sent.
		{"QUEUE_PURGE", "neigh_invalidate", false},
		{"NO_SOCKET", "tcp_v4_rcv", false},
		{"ICMP_CSUM", "icmp_rcv", false},
		{"NETFILTER_DROP", "nf_hook_slow", false},
		{"NOT_SPECIFIED", "ip_rcv_core", false},
		{"", "ip_rcv", false},
		// Before Linux 5.17, there may have been no socket.
		{"", "tcp_v4_rcv", false},
	} {
		d := Drop{Reason: tt.reason, Location: tt.location}
		if got := d.Delivered(); got != tt.want {
			t.Errorf("%s at %s: %v, want %v", tt.reason, tt.location, got, tt.want)
		}
	}
}

// TestAmbiguous: where a kernel gives no reason, the function may stand for several;
// where it gives another one, the function says nothing.
func TestAmbiguous(t *testing.T) {
	for _, tt := range []struct {
		what   string
		is     func(*Drop) bool
		reason Reason
		at     string
	}{
		{"the reverse path filter", (*Drop).ReverseFiltered, "IP_RPFILTER", "ip_rcv_finish_core"},
		{"XDP", (*Drop).XDP, "XDP", "veth_xdp_rcv_skb"},
		{"its own source", (*Drop).OwnSource, "IP_LOCAL_SOURCE", "ip_rcv_finish_core"},
	} {
		got := fmt.Sprint(tt.is(&Drop{Reason: tt.reason, Location: "elsewhere"}), tt.is(&Drop{Location: tt.at}),
			tt.is(&Drop{Location: "elsewhere"}), tt.is(&Drop{Reason: "PKT_TOO_SMALL", Location: tt.at}))
		if got != "true true false false" {
			t.Errorf("%s: with the reason, without one at %s, without one elsewhere, with another: %s", tt.what, tt.at, got)
		}
	}
}
