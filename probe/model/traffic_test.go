package model

import "testing"

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
