package model

import (
	"math/bits"
	"strings"
)

// DropKind is what a drop may be: one or more of the kinds below. Where a kernel gives no reason, a function may stand
// for several.
type DropKind uint64

// The kinds of drops.
const (
	// Unspecified: the reason is not known. On Linux before 5.17 it is derived where it can be; later kernels have
	// functions that pass none.
	Unspecified DropKind = 1 << iota
	// Delivered: a transport or a socket freed what it had got, or what it had already. A packet for which a socket had
	// no room, or that waited for a next hop's MAC, was not delivered.
	Delivered
	// Broken: no healthy network drops so for long. Ordinary: every healthy one may.
	Broken
	Ordinary
	// NoSocket: no socket took the packet. Before Linux 5.17 a TCP segment may have been the last of a connection
	// instead.
	NoSocket
	// NoRoom: a queue or buffer of a socket was full.
	NoRoom
	// SocketCopy: the packet itself goes on. A packet socket had no room for its copy, or a queue with a limit by rate
	// cut a large packet into pieces; each piece that it drops counts by itself.
	SocketCopy
	// NoMember: if the packet is for a group, the receiver has not joined it, or has no socket for it.
	NoMember
	// AtICMPv6: in ICMPv6, as where neighbour discovery brings nothing new. ForOtherNeighbor: it is about another's
	// address.
	AtICMPv6
	ForOtherNeighbor
	// Netfilter: a rule or policy may have dropped the packet. ByNFT: in the function that runs rules of nftables; legacy
	// tables and connection tracking drop in others.
	Netfilter
	ByNFT
	// FromQueue: the packet was to go to a program by netfilter's queue, but the queue had no room, or the program does
	// not run. One that came back from it may as well have been dropped at a later hook.
	FromQueue
	// EntryRefused: connection tracking may have refused the packet's new entry.
	EntryRefused
	// NeighborFailed: the next hop's MAC could not be resolved. The kernel frees one of the packets that wait as failed,
	// and purges the queue of the others. TableFull: the table of neighbours had no room for the next hop.
	NeighborFailed
	TableFull
	// LookupRefused: the route lookup refused the packet. Discarded, NoRoute, NotForwarded: since a route says so, there
	// is none, or forwarding is off.
	LookupRefused
	Discarded
	NoRoute
	NotForwarded
	// ReverseFiltered: the reverse path filter dropped the packet.
	ReverseFiltered
	// OwnSource: the packet came from outside with one of the receiver's own addresses as its source.
	OwnSource
	// InputRouting: the node looked up the route of a packet that came.
	InputRouting
	// InIP: the IP layer of the node dropped it.
	InIP
	// NotLocalNet: an address of the loopback network on another link, if it has one.
	NotLocalNet
	// Expired: a router dropped the packet because its TTL or hop limit ran out.
	Expired
	// TooBig: the next link's MTU is smaller than the packet.
	TooBig
	// NotBridged: a bridge freed a frame since the port that it was for may not have it. The compiler moves the check
	// into the caller. PortBlocked: since the port that it came by does not forward.
	NotBridged
	PortBlocked
	// ToPort: on the way from a bridge to its port. Across: between the two ends of a veth.
	ToPort
	Across
	// NoTunnelEnd: a VXLAN has no forwarding entry for the next hop's MAC.
	NoTunnelEnd
	// OtherHost: the frame was for another MAC than the receiver's.
	OtherHost
	// AtIngress and AtEgress: a program at a hook of tc dropped the packet; AtNetkit, AtXDP, AtCgroup: at such a hook.
	AtIngress
	AtEgress
	AtNetkit
	AtXDP
	AtCgroup
	// Leaving: an IP layer had a route for the packet, and was to hand it to the device.
	Leaving
	// Transmitting: on its way out of its device, tc, the queueing discipline or the driver dropped it.
	Transmitting
	// Queued: the queueing discipline of the packet's device dropped it: it had been counted at the device's egress.
	Queued
	// ByDriver: the driver of the packet's device dropped it when it was to send it, or the other end of a veth, which
	// its driver asks.
	ByDriver
	// BacklogFull: a CPU's backlog of packets to be received had no room.
	BacklogFull
)

// Consumed is the kernel's word for a packet that was delivered, and then freed.
const Consumed Reason = "CONSUMED"

// The words of the table: no reason, as before Linux 5.17, and no reason that says anything.
const (
	none        = "none"
	unspecified = "none NOT_SPECIFIED"
)

// freed is what the kernel means by a reason in a function.
type freed struct {
	// reasons and functions are those meant, separated by spaces; any where there are none. A name may begin or end with
	// a star, and those with an exclamation mark are not meant.
	reasons, functions string
	is                 DropKind
	// means is what the page of UnexplainedDrop calls it.
	means string
}

const (
	// transmits are the functions that a packet goes through on its way out of a device.
	transmits = "__dev_queue_xmit* " + drives
	drives    = "__dev_xmit_skb* __dev_forward_skb* ____dev_forward_skb* validate_xmit* dev_hard_start_xmit* " +
		"sch_direct_xmit* kfree_skb_list* *_xmit *_enqueue"
	// refuses6 depend on the type of an IPv6 route and on what the compiler inlined (ip6_pkt_drop, or
	// ip6_pkt_prohibit that contains it).
	refuses6 = "dst_discard* ip6_pkt_*"
	closes   = "sk_stream_kill_queues inet_sock_destruct inet_csk_destroy_sock skb_queue_purge __skb_queue_purge " +
		"skb_queue_purge_reason skb_rbtree_purge skb_release_data"
)

// reasons is all that lasthop knows of the kernel's reasons, by the kind of hop at which it gives them. A drop is all
// that fits it, at the first hop that does.
var reasons = []struct {
	hop  HopKind
	list []freed
}{
	{HopPolicy, []freed{
		{"NETFILTER_DROP", "", Netfilter, "rule"},
		{unspecified, "nf_queue", Netfilter | FromQueue, "rule"},
		{"", "nft_do_chain", ByNFT, ""},
		{"", "nf_hook_slow", 0, ""},
	}},
	{HopNeighbor, []freed{
		{"NEIGH_*", "", NeighborFailed, "neighbour"},
		{"", "neigh_invalidate", NeighborFailed, "neighbour"},
		{"NEIGH_CREATEFAIL", "", TableFull, ""},
	}},
	{HopRoute, []freed{
		{"", "ip_error " + refuses6, LookupRefused, ""},
		{unspecified, "ip_error", Discarded, ""},
		{none + " IP_INNOROUTES", "ip_error", NoRoute, ""},
		{none + " IP_INADDRERRORS", "ip_error", NotForwarded, ""},
		{unspecified + " IP_INADDRERRORS", "ip6_forward", NotForwarded, ""},
		// No kernel gives a reason that says more, but for a blackhole.
		{"!BLACKHOLE", refuses6, Discarded | NoRoute, ""},
		{"BLACKHOLE", "", LookupRefused | Discarded, "blackhole"},
		{"IP_RPFILTER", "", ReverseFiltered, ""},
		{none, "ip_rcv_finish_core", ReverseFiltered, ""},
		// Since Linux 6.15.
		{"IP_LOCAL_SOURCE", "", OwnSource, ""},
		{unspecified, "ip_rcv_finish_core", OwnSource, ""},
		{"", "ip_rcv_finish_core", InputRouting, ""},
		{"IP_INHDR", "ip_forward ip6_forward", Expired | Ordinary, "expired"},
		{none, "ip_forward ip6_forward", Expired, ""},
		{"PKT_TOO_BIG", "", TooBig, ""},
		{"IP_INNOROUTES", "vxlan_xmit* geneve_xmit* ip_md_tunnel_xmit* ip_tunnel_xmit*", Transmitting | Broken, "outer"},
		{"ARP_PVLAN_DISABLE", "", 0, "proxy"},
		{"IP_INNOROUTES IP_INADDRERRORS", "", 0, ""},
		{"", "ip_forward ip6_forward", 0, ""},
	}},
	{HopBridge, []freed{
		// Since Linux 6.14.
		{"BRIDGE_INGRESS_STP_STATE", "", PortBlocked, "port"},
		{unspecified, "br_handle_frame", PortBlocked, ""},
		{"!NETFILTER_DROP !BRIDGE_INGRESS_STP_STATE",
			"br_forward __br_forward maybe_deliver br_flood br_handle_frame_finish", NotBridged, ""},
		{"NO_TX_TARGET", "", NotBridged, ""},
		{"", "br_nf_dev_queue_xmit", 0, ""},
	}},
	{HopLink, []freed{
		{"OTHERHOST", "", OtherHost, ""},
		{"XDP", "", AtXDP, ""},
		// Linux 6.18 still gives no reason there.
		{unspecified, "do_xdp_generic netif_receive_generic_xdp veth_xdp_rcv_skb", AtXDP, ""},
		{"TC_INGRESS", "", AtIngress, ""},
		{"TC_EGRESS", "", AtEgress | Transmitting, ""},
		{"DEV_READY", "", 0, ""},
	}},
	{"", []freed{
		{unspecified, "", Unspecified, ""},
		// At the receiver's transport and sockets.
		{"TCP_CSUM UDP_CSUM IP_CSUM ICMP_CSUM SKB_CSUM", "", Broken, "checksum"},
		{"TCP_CSUM TCP_MINTTL TCP_MD5* TCP_AO*", "", Broken, "signature"},
		{"TCP_* !TCP_LISTEN_OVERFLOW !TCP_CSUM !TCP_MINTTL !TCP_MD5* !TCP_AO*", "", Delivered, ""},
		// Before Linux 5.17, this may be for want of a socket.
		{none, "tcp_* !tcp_v4_rcv !tcp_v6_rcv", Delivered, ""},
		{"NOT_SPECIFIED", "tcp_*", Delivered, ""},
		{string(Consumed) + " SOCKET_CLOSE SOCKET_FILTER", "", Delivered, ""},
		// The same fragment came before, and waits for the others.
		{"DUP_FRAG", "", Delivered, ""},
		{"QUEUE_PURGE", "!neigh_invalidate", Delivered, ""},
		// These empty a socket's queues, without a reason until Linux 6.15.
		{unspecified, closes, Delivered, ""},
		// An echo reply is offered to every socket that may want it. Some kernels free what no socket took in
		// ping_rcv, older ones in its caller.
		{"", "ping_rcv raw_rcv", Delivered, ""},
		{"NO_SOCKET", "icmp_rcv icmpv6_rcv", Delivered, ""},
		{"NO_SOCKET", "!cookie_v4_check !cookie_v6_check", NoSocket, ""},
		{none, "tcp_v4_rcv tcp_v6_rcv", NoSocket, ""},
		// Since Linux 6.9: the kernel could make no socket.
		{"NO_SOCKET", "cookie_v4_check cookie_v6_check", NoRoom, ""},
		{"SOCKET_RCVBUFF SOCKET_BACKLOG PROTO_MEM TCP_LISTEN_OVERFLOW", "", NoRoom, ""},
		{"PACKET_SOCK_ERROR", "", SocketCopy, ""},
		{unspecified, "packet_rcv packet_rcv_spkt tpacket_rcv tbf_enqueue tbf_segment", SocketCopy, ""},
		{unspecified + " NO_SOCKET", "ip_rcv_finish_core ip_rcv_finish __udp4_lib_rcv __udp4_lib_mcast_deliver " +
			"__udp6_lib_rcv __udp6_lib_mcast_deliver", NoMember, ""},
		{"", "ip6_mc_input", NoMember, ""},
		{"", "icmpv6_rcv", AtICMPv6, ""},
		{"IPV6_NDISC_NS_OTHERHOST", "", ForOtherNeighbor, ""},
		{"IP_NOPROTO UNHANDLED_PROTO", "", Ordinary, "protocol"},
		{"FRAG_*", "", 0, "fragments"},
		{"IPV6DISABLED", "", 0, "disabled"},
		{"SECURITY_HOOK", "", 0, "security"},
		{"PSP_*", "", Broken, "psp"},
		// On the way.
		{unspecified + " IP_LOCALNET", "", NotLocalNet, ""},
		{"", "ip_* ip6_*", InIP, ""},
		{"NETFILTER_DROP", "nf_hook_slow", EntryRefused, ""},
		// These continue a packet that a queue held.
		{"", "nfqnl_reinject nf_reinject", EntryRefused, ""},
		{"BPF_CGROUP_EGRESS", "", AtCgroup, ""},
		{"", "netkit_xmit", AtNetkit, ""},
		{"", "br_nf_dev_queue_xmit br_dev_queue_push_xmit __br_forward br_forward_finish", ToPort, ""},
		{"", "__dev_forward_skb* ____dev_forward_skb*", Across, ""},
		{"MAC_INVALID_SOURCE", "", Broken, "source"},
		{"LOCAL_MAC", "", Broken, "returned"},
		{"RECURSION_LIMIT", "", Broken, "recursion"},
		{"OVS_DROP_*", "", 0, "ovs"},
		{"XFRM_POLICY", "", 0, "ipsec"},
		// In a tunnel.
		{"", "vxlan_xmit", NoTunnelEnd, "vxlan"},
		{"VXLAN_VNI_NOT_FOUND", "", Broken, "vni"},
		{"VXLAN_INVALID_HDR", "", Broken, "header"},
		{"IP_TUNNEL_ECN", "", 0, "ecn"},
		// On the way out of a device.
		{"CPU_BACKLOG", "", BacklogFull, ""},
		{"", "ip_output ip_finish_output ip_finish_output2 ip6_output ip6_finish_output ip6_finish_output2", Leaving, ""},
		{"", transmits, Transmitting, ""},
		{"QDISC_* FQ_* CAKE_FLOOD DUALPI2_STEP_DROP", "", Queued | Transmitting | Ordinary, "queue"},
		{unspecified, "kfree_skb_list*", Queued, ""},
		{unspecified + " FULL_RING", drives + " !__dev_queue_xmit* !kfree_skb_list*", ByDriver, ""},
	}},
}

// rule is a line of the table, split into its names.
type rule struct {
	reasons, functions []pattern
	hop                HopKind
	means              string
}

// pattern is a name, or what it begins or ends with.
type pattern struct {
	not, begin, end bool
	text            string
}

// The lines by each of the kinds, those with a hop, and those with words.
var byKind, withHop, withWords = func() (byKind [64][]*rule, withHop, withWords []*rule) {
	for _, at := range reasons {
		for _, f := range at.list {
			r := &rule{patterns(f.reasons), patterns(f.functions), at.hop, f.means}
			for is := f.is; is != 0; is &= is - 1 {
				n := bits.TrailingZeros64(uint64(is))
				byKind[n] = append(byKind[n], r)
			}
			if at.hop != "" {
				withHop = append(withHop, r)
			}
			if f.means != "" {
				withWords = append(withWords, r)
			}
		}
	}
	return byKind, withHop, withWords
}()

func patterns(names string) []pattern {
	return Map(strings.Fields(names), func(s string) (p pattern) {
		s, p.not = strings.CutPrefix(s, "!")
		s, p.end = strings.CutPrefix(s, "*")
		p.text, p.begin = strings.CutSuffix(s, "*")
		if p.text == none {
			p.text = ""
		}
		return p
	})
}

func (r *rule) fits(d *Drop) bool {
	return fit(r.reasons, string(d.Reason)) && fit(r.functions, d.Location)
}

func fit(list []pattern, name string) bool {
	found := len(list) == 0 || list[0].not
	for i := range list {
		p := &list[i]
		if name == p.text || p.begin && strings.HasPrefix(name, p.text) || p.end && strings.HasSuffix(name, p.text) {
			if p.not {
				return false
			}
			found = true
		}
	}
	return found
}

// Is reports whether a drop may be of one of the kinds.
func (d *Drop) Is(kinds DropKind) bool {
	for ; kinds != 0; kinds &= kinds - 1 {
		for _, r := range byKind[bits.TrailingZeros64(uint64(kinds))] {
			if r.fits(d) {
				return true
			}
		}
	}
	return false
}

// Hop is the kind of hop at which the kernel makes the drop, empty where its reason and location do not tell.
func (d *Drop) Hop() HopKind { return d.first(withHop).hop }

// Means is what the page of UnexplainedDrop calls the kernel's reason, empty where its name is all there is.
func (d *Drop) Means() string { return d.first(withWords).means }

func (d *Drop) first(list []*rule) (of rule) {
	if r := Find(list, func(r *rule) bool { return r.fits(d) }); r != nil {
		return *r
	}
	return of
}
