package model

import (
	"net/netip"
	"slices"
	"strings"
	"time"
)

// Reason is the kernel's name for why it freed a packet, without the SKB_DROP_REASON_ prefix. Empty before Linux 5.17.
type Reason string

// Drop counts the packets of one pair of addresses that the kernel freed in one
// function for one reason. loss.Classifier says whether they were lost.
type Drop struct {
	// At least one of Src and Dst is a local address.
	Src, Dst netip.Addr
	// Range is set instead of the other one for the drops of several addresses in it: those for which the local address
	// had no entry left. The range without bits is that of all others, of any protocol.
	Range  netip.Prefix
	Proto  uint8
	Reason Reason
	// Location is the function that freed the packet.
	Location string
	// IfIndex and Link are the packet's device, 0 when it had none. Netns is the inode of the namespace it was in.
	IfIndex int
	Link    string
	Netns   uint32
	// DstMAC is the frame's destination, zero where there was no Ethernet header.
	DstMAC MAC
	// Cilium is what its program left about a drop at a hook of tc or netkit.
	Cilium      CiliumDrop
	Packets     uint64
	First, Last time.Time
}

// Key is what makes drops of two readings the same: the drop without its counts, times and the name of its link.
func (d *Drop) Key() Drop {
	k := *d
	k.Link, k.Packets, k.First, k.Last = "", 0, time.Time{}, time.Time{}
	return k
}

// Far is the prefix of an address of the drop: the address alone or, where that is not known, Range.
func (d *Drop) Far(a netip.Addr) netip.Prefix {
	return Either(a.IsValid() || !d.Range.IsValid(), netip.PrefixFrom(a, a.BitLen()), d.Range)
}

// Between reports whether packets from src to dst may be among those of the drop.
func (d *Drop) Between(src, dst netip.Addr) bool {
	return d.Far(d.Src).Contains(src) && d.Far(d.Dst).Contains(dst)
}

// DropCause is why packets were dropped.
type DropCause struct {
	// Code is the finding that claims the drop; without one, Ordinary is why none does.
	Code     Code
	Ordinary Excuse
}

// Expected reports whether a healthy node frees such packets too.
func (c *DropCause) Expected() bool { return c.Ordinary != "" && !c.Ordinary.Open() }

// LocationNFT is the function in which rules of nftables drop. Legacy tables and connection tracking drop in others.
const LocationNFT = "nft_do_chain"

// Consumed is the kernel's word for a packet that was delivered, and then freed.
const Consumed Reason = "CONSUMED"

// Unspecified reports whether the reason is not known: on Linux before 5.17 it is
// derived where it can be; later kernels have functions that pass none.
func (d *Drop) Unspecified() bool { return d.Reason == "" || d.Reason == "NOT_SPECIFIED" }

// Delivered reports whether the packet had been delivered: a transport or a socket freed it. A packet for which a
// socket had no room, or that waited for a next hop's MAC, had not.
func (d *Drop) Delivered() bool {
	switch d.Reason {
	case "TCP_LISTEN_OVERFLOW":
		return false
	case "QUEUE_PURGE":
		return d.Location != "neigh_invalidate"
	case Consumed, "SOCKET_CLOSE", "SOCKET_FILTER", "DUP_FRAG":
		// The same fragment came before, and waits for the others.
		return true
	}
	if d.Distrusted() {
		return false
	}
	switch d.Location {
	case "ping_rcv", "raw_rcv":
		// An echo reply is offered to every socket that may want it. Some kernels
		// free what no socket took in ping_rcv, older ones in its caller.
		return true
	case "icmp_rcv", "icmpv6_rcv":
		return d.Reason == "NO_SOCKET"
	case "tcp_v4_rcv", "tcp_v6_rcv":
		if d.Reason == "" {
			// Before Linux 5.17, this may be for want of a socket.
			return false
		}
	case "sk_stream_kill_queues", "inet_sock_destruct", "inet_csk_destroy_sock", "skb_queue_purge", "__skb_queue_purge",
		"skb_queue_purge_reason", "skb_rbtree_purge", "skb_release_data":
		// These empty a socket's queues, without a reason until Linux 6.15.
		if d.Unspecified() {
			return true
		}
	}
	return strings.HasPrefix(string(d.Reason), "TCP_") || d.Unspecified() && strings.HasPrefix(d.Location, "tcp_")
}

// Distrusted reports whether the receiver's transport refused the packet for its checksum, its signature or its hop
// limit. Nothing of it gets to the socket, however often it is sent again.
func (d *Drop) Distrusted() bool {
	return d.Reason == "TCP_CSUM" || d.Reason == "TCP_MINTTL" ||
		strings.HasPrefix(string(d.Reason), "TCP_MD5") || strings.HasPrefix(string(d.Reason), "TCP_AO")
}

// NoSocket reports whether no socket took the packet. Before Linux 5.17 a TCP segment may have been the last of a
// connection instead, which the kernel frees in the same function.
func (d *Drop) NoSocket() bool {
	return d.Reason == "NO_SOCKET" && !d.CookieRefused() || d.Reason == "" && (d.Location == "tcp_v4_rcv" || d.Location == "tcp_v6_rcv")
}

// CookieRefused reports whether a handshake with a SYN cookie ended at a listener whose queue of connections to be
// accepted was full. The kernel calls that NO_SOCKET from Linux 6.9 on: it could make none.
func (d *Drop) CookieRefused() bool {
	return d.Reason == "NO_SOCKET" && (d.Location == "cookie_v4_check" || d.Location == "cookie_v6_check")
}

// FromOrTo reports whether the packet is of one of the addresses.
func (d *Drop) FromOrTo(list []netip.Addr) bool {
	return slices.Contains(list, d.Src) || slices.Contains(list, d.Dst)
}

// OtherHost reports whether the frame was for another MAC than the receiver's.
func (d *Drop) OtherHost() bool { return d.Reason == "OTHERHOST" }

// NeighborFailed reports whether the next hop's MAC could not be resolved. The kernel frees one of the packets that
// wait as failed, and purges the queue of the others.
func (d *Drop) NeighborFailed() bool {
	return strings.HasPrefix(string(d.Reason), "NEIGH_") || d.Location == "neigh_invalidate"
}

// Netfilter reports whether a rule or policy may have dropped the packet.
func (d *Drop) Netfilter() bool { return d.Reason == "NETFILTER_DROP" || d.FromQueue() }

// FromQueue reports whether the packet was to go to a program by netfilter's queue, but the queue had no room, or
// the program does not run. One that came back from it may as well have been dropped at a later hook.
func (d *Drop) FromQueue() bool { return d.Unspecified() && d.Location == "nf_queue" }

// ReverseFiltered reports whether the reverse path filter dropped the packet. Before
// Linux 5.17 it may have been OwnSource as well.
func (d *Drop) ReverseFiltered() bool {
	return d.Reason == "IP_RPFILTER" || d.Reason == "" && d.Location == "ip_rcv_finish_core"
}

// LookupRefused reports whether the route lookup refused the packet.
func (d *Drop) LookupRefused() bool { return d.Location == "ip_error" || d.LookupRefused6() }

// LookupRefused6 reports whether the route lookup refused an IPv6 packet. The function that frees it depends on the
// route's type and on what the compiler inlined (ip6_pkt_drop, or ip6_pkt_prohibit that contains it); no kernel gives a
// reason that says more.
func (d *Drop) LookupRefused6() bool {
	return (d.Dst.Is6() || d.Src.Is6()) && (strings.HasPrefix(d.Location, "dst_discard") || strings.HasPrefix(d.Location, "ip6_pkt_"))
}

// LookupRefusedFor reports whether the IPv4 route lookup refused the packet for a reason. All such packets are freed in
// one function; before Linux 5.17, any of the reasons may be meant.
func (d *Drop) LookupRefusedFor(r Reason) bool {
	return d.Location == "ip_error" && (d.Reason == r || d.Reason == "")
}

// Expired reports whether a router dropped the packet because its TTL or hop limit ran out. Before Linux 5.17 these
// functions may have dropped it for another reason.
func (d *Drop) Expired() bool {
	return (d.Location == "ip_forward" || d.Location == "ip6_forward") && (d.Reason == "IP_INHDR" || d.Reason == "")
}

// OwnSource reports whether the packet came from outside with one of the receiver's own addresses as its source. The
// kernel names the reason since Linux 6.15.
func (d *Drop) OwnSource() bool {
	return d.Reason == "IP_LOCAL_SOURCE" || d.Location == "ip_rcv_finish_core" && d.Unspecified()
}

// XDP reports whether an XDP program dropped the packet. Linux 6.18 still gives some of these drops no reason.
func (d *Drop) XDP() bool {
	if !d.Unspecified() {
		return d.Reason == "XDP"
	}
	return slices.Contains([]string{"do_xdp_generic", "netif_receive_generic_xdp", "veth_xdp_rcv_skb"}, d.Location)
}

// AtHook reports whether a program at a hook of tc or netkit dropped the packet.
func (d *Drop) AtHook() bool {
	return d.Reason == "TC_INGRESS" || d.Reason == "TC_EGRESS" || d.Location == "netkit_xmit"
}

// Transmitting reports whether the packet was on its way out of its device: tc,
// the queueing discipline or the driver dropped it.
func (d *Drop) Transmitting() bool {
	if d.Reason == "TC_EGRESS" || strings.HasPrefix(string(d.Reason), "QDISC_") {
		return true
	}
	starts := []string{"__dev_queue_xmit", "__dev_xmit_skb", "__dev_forward_skb", "____dev_forward_skb",
		"validate_xmit", "dev_hard_start_xmit", "sch_direct_xmit", "kfree_skb_list"}
	return slices.ContainsFunc(starts, func(s string) bool { return strings.HasPrefix(d.Location, s) }) ||
		strings.HasSuffix(d.Location, "_xmit") || strings.HasSuffix(d.Location, "_enqueue")
}

// Queued reports whether the queueing discipline of the packet's device dropped it: it
// had been counted at the device's egress. Before Linux 5.17 that has no reason.
func (d *Drop) Queued() bool {
	return strings.HasPrefix(string(d.Reason), "QDISC_") || strings.HasPrefix(string(d.Reason), "FQ_") ||
		d.Unspecified() && strings.HasPrefix(d.Location, "kfree_skb_list")
}

// BacklogFull reports whether a CPU's backlog of packets to be received had no room.
func (d *Drop) BacklogFull() bool { return d.Reason == "CPU_BACKLOG" }

// TableFull reports whether the table of neighbours had no room for the next hop.
func (d *Drop) TableFull() bool { return d.Reason == "NEIGH_CREATEFAIL" }

// ByDriver reports whether the driver of the packet's device dropped it when it was to send
// it, or the other end of a veth, which its driver asks.
func (d *Drop) ByDriver() bool {
	return d.Transmitting() && !d.Queued() && (d.Unspecified() || d.Reason == "FULL_RING") && !strings.HasPrefix(d.Location, "__dev_queue_xmit")
}

// NotBridged reports whether a bridge freed a frame since the port that it was for
// may not have it. The compiler moves the check into the caller.
func (d *Drop) NotBridged() bool {
	switch d.Location {
	case "br_forward", "__br_forward", "maybe_deliver", "br_flood", "br_handle_frame_finish":
		return !d.Netfilter()
	}
	return d.Reason == "NO_TX_TARGET"
}

// Hop is the kind of hop at which the kernel makes the drop, empty where its reason and location do not tell.
func (d *Drop) Hop() HopKind {
	switch {
	case d.Netfilter(), d.Location == "nf_hook_slow", d.Location == LocationNFT:
		return HopPolicy
	case d.NeighborFailed():
		return HopNeighbor
	case d.LookupRefused(), d.ReverseFiltered(), d.OwnSource(), d.Reason == "IP_INNOROUTES", d.Reason == "IP_INADDRERRORS",
		d.Reason == "PKT_TOO_BIG", slices.Contains([]string{"ip_forward", "ip6_forward", "ip_rcv_finish_core"}, d.Location):
		return HopRoute
	case d.NotBridged(), d.Location == "br_nf_dev_queue_xmit":
		return HopBridge
	case d.OtherHost(), d.XDP(), d.Reason == "TC_INGRESS", d.Reason == "TC_EGRESS", d.Reason == "DEV_READY":
		return HopLink
	}
	return ""
}
