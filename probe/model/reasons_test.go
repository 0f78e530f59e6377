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
		if got := d.Is(Delivered); got != tt.want {
			t.Errorf("%s at %s: %v, want %v", tt.reason, tt.location, got, tt.want)
		}
	}
}

// TestAmbiguous: where a kernel gives no reason, the function may stand for several;
// where it gives another one, the function says nothing.
func TestAmbiguous(t *testing.T) {
	for _, tt := range []struct {
		what   string
		is     DropKind
		reason Reason
		at     string
	}{
		{"the reverse path filter", ReverseFiltered, "IP_RPFILTER", "ip_rcv_finish_core"},
		{"XDP", AtXDP, "XDP", "veth_xdp_rcv_skb"},
		{"its own source", OwnSource, "IP_LOCAL_SOURCE", "ip_rcv_finish_core"},
		{"a port that does not forward", PortBlocked, "BRIDGE_INGRESS_STP_STATE", "br_handle_frame"},
		{"a full queue of a device", Queued, "DUALPI2_STEP_DROP", "kfree_skb_list_reason"},
	} {
		is := func(d Drop) bool { return d.Is(tt.is) }
		got := fmt.Sprint(is(Drop{Reason: tt.reason, Location: "elsewhere"}), is(Drop{Location: tt.at}),
			is(Drop{Location: "elsewhere"}), is(Drop{Reason: "PKT_TOO_SMALL", Location: tt.at}))
		if got != "true true false false" {
			t.Errorf("%s: with the reason, without one at %s, without one elsewhere, with another: %s", tt.what, tt.at, got)
		}
	}
}

// TestKernelsWord: what only the function said before, a later kernel says by a reason, and that counts.
func TestKernelsWord(t *testing.T) {
	for _, tt := range []struct {
		reason  Reason
		at      string
		is, not DropKind
	}{
		{"NOT_SPECIFIED", "br_handle_frame_finish", NotBridged, PortBlocked},
		{"BRIDGE_INGRESS_STP_STATE", "br_handle_frame_finish", PortBlocked, NotBridged},
		{"MAC_INVALID_SOURCE", "br_handle_frame", Broken, PortBlocked},
		{"NOT_SPECIFIED", "dst_discard_out", NoRoute, ByDriver},
		{"BLACKHOLE", "dst_discard_out", Discarded, NoRoute},
		{"BLACKHOLE", "ip6_pkt_discard", LookupRefused, NoRoute},
		{"NO_SOCKET", "cookie_v6_check", NoRoom, NoSocket},
		{"QUEUE_PURGE", "neigh_invalidate", NeighborFailed, Delivered},
		{"NETFILTER_DROP", "br_forward", Netfilter, NotBridged},
		{"NOT_SPECIFIED", "__dev_queue_xmit", Transmitting, ByDriver},
		{"FULL_RING", "__dev_forward_skb2", ByDriver, Queued},
		{"QDISC_DROP_OVERLIMIT", "__dev_queue_xmit", Queued, ByDriver},
	} {
		if d := (Drop{Reason: tt.reason, Location: tt.at}); !d.Is(tt.is) || d.Is(tt.not) {
			t.Errorf("%s at %s: %v, and what it is not %v", tt.reason, tt.at, d.Is(tt.is), d.Is(tt.not))
		}
	}
	for reason, means := range map[Reason]string{
		"BRIDGE_INGRESS_STP_STATE": "port", "BLACKHOLE": "blackhole", "ARP_PVLAN_DISABLE": "proxy", "MAC_INVALID_SOURCE": "source",
		"LOCAL_MAC": "returned", "VXLAN_VNI_NOT_FOUND": "vni", "VXLAN_INVALID_HDR": "header", "IP_TUNNEL_ECN": "ecn",
		"SECURITY_HOOK": "security", "RECURSION_LIMIT": "recursion", "DUALPI2_STEP_DROP": "queue", "PSP_INPUT": "psp",
		"PSP_OUTPUT": "psp", "OVS_DROP_LAST_ACTION": "ovs", "QDISC_DROP_FLOW_LIMIT": "queue", "NOMEM": "", "XFRM_POLICY": "ipsec",
	} {
		if d := (Drop{Reason: reason}); d.Means() != means {
			t.Errorf("%s means %q, not %q", reason, d.Means(), means)
		}
	}
}
