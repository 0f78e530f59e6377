package model

import (
	"net/netip"
	"testing"
)

func TestLosses(t *testing.T) {
	pod, other, gone := MAC{2, 0, 0, 0, 0, 1}, MAC{2, 0, 0, 0, 0, 2}, MAC{2, 0, 0, 0, 0, 3}
	past := netip.MustParseAddr("172.20.5.9")
	s := &Snapshot{
		Links:    []Link{{Name: "lo"}, {Name: "p7", MAC: other}},
		Pods:     []Pod{{MAC: pod}},
		PastPods: []Pod{{MAC: gone, Addresses: []netip.Prefix{netip.PrefixFrom(past, 32)}}},
	}
	loss := s.Losses()
	for _, tt := range []struct {
		what string
		drop Drop
		want bool
	}{
		{"a rule's", Drop{Reason: "NETFILTER_DROP", Location: "nf_hook_slow"}, true},
		{"one of an unknown reason", Drop{Location: "ip_forward"}, true},
		{"what a socket frees as it closes", Drop{Reason: "QUEUE_PURGE", Location: "sk_stream_kill_queues"}, false},
		{"a duplicate segment", Drop{Reason: "TCP_OLD_DATA"}, false},
		{"a flooded copy for a pod", Drop{Reason: "OTHERHOST", DstMAC: pod}, false},
		{"a flooded copy for a link", Drop{Reason: "OTHERHOST", DstMAC: other}, false},
		{"a frame for a pod that went", Drop{Reason: "OTHERHOST", DstMAC: gone}, false},
		{"a packet for a pod that went", Drop{Reason: "OTHERHOST", Dst: past}, false},
		{"a frame for nobody", Drop{Reason: "OTHERHOST", DstMAC: MAC{2, 9, 9, 9, 9, 9}}, true},
		{"a frame without an address", Drop{Reason: "OTHERHOST"}, true},
		{"a question to a group", Drop{Location: "ip6_mc_input", Dst: netip.MustParseAddr("ff02::1:ff00:1")}, false},
		{"a packet for one, where groups are freed", Drop{Location: "ip6_mc_input", Dst: past}, true},
	} {
		if got := loss(&tt.drop); got != tt.want {
			t.Errorf("%s is a loss: %v, want %v", tt.what, got, tt.want)
		}
	}
}

func TestOfSocket(t *testing.T) {
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
		{"", "inet_csk_destroy_sock", true},
		{"NO_SOCKET", "ping_rcv", true},
		{"NO_SOCKET", "icmp_rcv", true},

		// The socket has no room.
		{"TCP_LISTEN_OVERFLOW", "tcp_check_req", false},
		{"SOCKET_RCVBUFF", "udp_queue_rcv_one_skb", false},
		// What waited for a MAC was never sent.
		{"QUEUE_PURGE", "neigh_invalidate", false},
		{"NO_SOCKET", "tcp_v4_rcv", false},
		{"ICMP_CSUM", "icmp_rcv", false},
		{"NETFILTER_DROP", "nf_hook_slow", false},
		{"NOT_SPECIFIED", "ip_rcv_core", false},
		{"", "ip_rcv", false},
	} {
		d := Drop{Reason: tt.reason, Location: tt.location}
		if got := d.OfSocket(); got != tt.want {
			t.Errorf("%s at %s: %v, want %v", tt.reason, tt.location, got, tt.want)
		}
	}
}
