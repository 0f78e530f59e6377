package model

import (
	"fmt"
	"testing"
)

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
