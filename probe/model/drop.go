package model

import (
	"encoding/binary"
	"net/netip"
	"slices"
	"strings"
	"time"
)

// Reason is the kernel's name for why it freed a packet, without the
// SKB_DROP_REASON_ prefix. Empty before Linux 5.17.
type Reason string

// Drop counts the packets of one pair of addresses that the kernel freed in one
// function for one reason. DropClassifier says whether they were lost.
type Drop struct {
	// At least one of Src and Dst is a local address.
	Src, Dst netip.Addr
	// Range is set instead of the other one for the drops of several addresses in
	// it: those for which the local address had no entry left. The range without
	// bits is that of all others, of any protocol.
	Range  netip.Prefix
	Proto  uint8
	Reason Reason
	// Location is the function that freed the packet.
	Location string
	// IfIndex and Link are the packet's device, 0 when it had none. Netns
	// is the inode of the namespace it was in.
	IfIndex int
	Link    string
	Netns   uint32
	// DstMAC is the frame's destination, zero where there was no Ethernet
	// header.
	DstMAC  MAC
	Packets uint64
	First   time.Time
	Last    time.Time
}

// Far is the prefix of an address of the drop: the address alone or, where that is
// not known, Range.
func (d *Drop) Far(a netip.Addr) netip.Prefix {
	if a.IsValid() || !d.Range.IsValid() {
		return netip.PrefixFrom(a, a.BitLen())
	}
	return d.Range
}

// Between reports whether packets from src to dst may be among those of the drop.
func (d *Drop) Between(src, dst netip.Addr) bool {
	return d.Far(d.Src).Contains(src) && d.Far(d.Dst).Contains(dst)
}

// Sample is the head of one freed packet.
type Sample struct {
	Time     time.Time
	Reason   Reason
	Location string
	IfIndex  int
	Link     string
	Netns    uint32
	Src, Dst netip.Addr
	SrcMAC   MAC
	DstMAC   MAC
	// Protocol is the EtherType.
	Protocol uint16
	// Length is the packet's, Head what of it was kept, from the network
	// header on.
	Length int
	Head   []byte
	// Count is how many of its kind there had been on its CPU.
	Count uint64
}

// Drop is the drop that the sample was taken of, as far as the sample shows it.
func (s *Sample) Drop() Drop {
	return Drop{Src: s.Src, Dst: s.Dst, Reason: s.Reason, Location: s.Location, IfIndex: s.IfIndex, Link: s.Link, Netns: s.Netns,
		DstMAC: s.DstMAC, Packets: 1, First: s.Time, Last: s.Time}
}

// DropCause is why packets were dropped.
type DropCause struct {
	// Code is the finding that explains the drop, empty for none.
	Code Code
	// Expected is set where a healthy node frees such packets too: for every
	// harmless free, and where a rule drops by design.
	Expected bool
}

// DropClass says whether packets that the kernel freed were lost; if they were
// not it says why the kernel freed them.
type DropClass string

// The classes. All but DropLost are harmless frees.
const (
	// DropLost packets were freed before they were delivered.
	DropLost DropClass = ""
	// FreeDelivered packets had been delivered: a transport or a socket
	// frees them when it is done with them.
	FreeDelivered DropClass = "delivered"
	// FreeCopy packets are copies of frames for another: a bridge floods
	// frames until it has learnt the port, and hands them to the node while it is
	// promiscuous; a packet socket gets one of each, such as tcpdump's.
	FreeCopy DropClass = "copy"
	// FreeGroup packets went to a multicast or broadcast address, and this
	// receiver has not joined the group or has no socket for it.
	FreeGroup DropClass = "group"
	// FreeNeighborDiscovery packets are neighbour discovery messages that
	// bring nothing new, or are about another's address.
	FreeNeighborDiscovery DropClass = "neighborDiscovery"
	// FreePodGone packets were for a pod that went away during the window.
	FreePodGone DropClass = "podGone"
	// FreePodStarting packets were dropped by rules that the network plugin had
	// not yet written for a new pod.
	FreePodStarting DropClass = "podStarting"
	// FreeRedirect packets are ICMP redirects, which tell a sender of a shorter way
	// and change nothing when they are lost. The kernel itself drops those about a
	// connection whose addresses it translates.
	FreeRedirect DropClass = "redirect"
)

// startupTime is how long a network plugin may take to write a new pod's rules.
const startupTime = time.Second

// DropClassifier classifies the drops of one snapshot.
type DropClassifier struct {
	window Window
	links  map[int]*Link
	// pods are the living ones by address, past the addresses of the others.
	pods map[netip.Addr][]*Pod
	past map[netip.Addr]bool
	// broadcasts are the IPv4 broadcast addresses of links and pods.
	broadcasts map[netip.Addr]bool
	// flooded is the class of a frame that a receiver with another MAC frees, by
	// the frame's destination.
	flooded map[MAC]DropClass
	// bridgeMACs are those of bridges and their ports: a bridge delivers frames
	// for them to the node.
	bridgeMACs map[MAC]bool
	// redirects are the drops whose samples are ICMP redirects.
	redirects map[Drop]bool
}

// sampledAs is a drop with what it has in common with its samples.
func sampledAs(d *Drop, proto uint8) Drop {
	return Drop{Src: d.Src, Dst: d.Dst, Proto: proto, Reason: d.Reason, Location: d.Location, IfIndex: d.IfIndex, Netns: d.Netns}
}

// redirect is the protocol of a packet that is an ICMP redirect, 0 of another.
func (s *Sample) redirect() uint8 {
	const icmp4, icmp6, redirect4, redirect6 = 1, 58, 5, 137
	switch h := s.Head; {
	case len(h) > 20 && h[0]>>4 == 4 && h[9] == icmp4 && len(h) > int(h[0]&0xf)*4 && h[h[0]&0xf*4] == redirect4:
		return icmp4
	case len(h) > 40 && h[0]>>4 == 6 && h[6] == icmp6 && h[40] == redirect6:
		return icmp6
	}
	return 0
}

// NewDropClassifier indexes a snapshot. It keeps references into it.
func NewDropClassifier(s *Snapshot) *DropClassifier {
	c := &DropClassifier{
		window: s.Window, links: make(map[int]*Link, len(s.Links)), pods: make(map[netip.Addr][]*Pod, len(s.Pods)),
		past: map[netip.Addr]bool{}, broadcasts: map[netip.Addr]bool{}, flooded: map[MAC]DropClass{}, bridgeMACs: map[MAC]bool{},
		redirects: map[Drop]bool{},
	}
	for x := range Each(s.Traffic.Samples) {
		if proto := x.redirect(); proto != 0 {
			d := x.Drop()
			c.redirects[sampledAs(&d, proto)] = true
		}
	}
	for p := range Each(s.PastPods) {
		c.flooded[p.MAC] = FreePodGone
		for _, a := range p.Addresses {
			c.past[a.Addr()] = true
		}
	}
	for l := range Each(s.Links) {
		c.links[l.Index], c.flooded[l.MAC] = l, FreeCopy
		c.bridgeMACs[l.MAC] = c.bridgeMACs[l.MAC] || l.Master != 0 || l.Kind == "bridge"
		for _, a := range l.Addresses {
			c.broadcasts[broadcast(a)] = true
		}
	}
	for p := range Each(s.Pods) {
		c.flooded[p.MAC] = FreeCopy
		for _, a := range p.Addresses {
			c.pods[a.Addr()] = append(c.pods[a.Addr()], p)
			c.broadcasts[broadcast(a)] = true
		}
	}
	gateways := map[netip.Addr]bool{}
	for _, r := range s.Routes {
		if r.Dst.Bits() == 0 {
			gateways[r.Gateway] = true
			for _, h := range r.NextHops {
				gateways[h.Gateway] = true
			}
		}
	}
	for _, n := range s.Neighbors {
		if gateways[n.Addr] {
			c.flooded[n.MAC] = FreeCopy
		}
	}
	delete(c.flooded, MAC{})
	delete(c.broadcasts, netip.Addr{})
	return c
}

// broadcast is the broadcast address of an IPv4 network, the zero Addr where
// there is none.
func broadcast(p netip.Prefix) netip.Addr {
	if !p.Addr().Is4() || p.Bits() < 0 || p.Bits() > 30 {
		return netip.Addr{}
	}
	a := p.Masked().Addr().As4()
	host := uint32(1)<<(32-p.Bits()) - 1
	binary.BigEndian.PutUint32(a[:], binary.BigEndian.Uint32(a[:])|host)
	return netip.AddrFrom4(a)
}

// Lost reports whether the packets were lost.
func (c *DropClassifier) Lost(d *Drop) bool { return c.Class(d) == DropLost }

// Class says whether the packets were lost or, if not, why they were freed.
func (c *DropClassifier) Class(d *Drop) DropClass {
	switch {
	case d.Delivered():
		return FreeDelivered
	case d.sniffed(), d.cut():
		return FreeCopy
	case len(c.redirects) > 0 && c.redirects[sampledAs(d, d.Proto)]:
		return FreeRedirect
	case d.Location == "icmpv6_rcv" && (d.Src.IsLinkLocalUnicast() || d.Dst.IsLinkLocalUnicast()):
		return FreeNeighborDiscovery
	case c.toGroup(d.Dst) && d.noMember():
		return FreeGroup
	case d.NeighborFailed(), d.NoSocket(), d.LookupRefused(), d.ReverseFiltered(), d.OwnSource(), d.Expired(), d.Transmitting():
		// A pod closes its sockets before its link goes, and its route goes with
		// the link. Without that route packets for it leave the node, and the
		// network may send them back.
		if c.past[d.Dst] {
			return FreePodGone
		}
	case d.Location == "ip6_mc_input" && d.Dst.IsMulticast():
		return FreeGroup
	case d.Reason == "IPV6_NDISC_NS_OTHERHOST" && d.Dst.IsMulticast():
		return FreeNeighborDiscovery
	case d.Netfilter():
		switch {
		case c.starting(d):
			return FreePodStarting
		case c.bridgedCopy(d):
			return FreeCopy
		}
	case d.Reason == "OTHERHOST":
		if c.past[d.Dst] {
			return FreePodGone
		}
		return c.flooded[d.DstMAC]
	}
	return DropLost
}

// toGroup reports whether an address is a multicast or broadcast address.
func (c *DropClassifier) toGroup(a netip.Addr) bool {
	return a.IsMulticast() || a == netip.AddrFrom4([4]byte{255, 255, 255, 255}) || c.broadcasts[a]
}

// starting reports whether netfilter dropped only the first packets of a pod that
// came during the window.
func (c *DropClassifier) starting(d *Drop) bool {
	if d.Last.IsZero() || d.Last.After(c.window.End.Add(-2*startupTime)) {
		return false
	}
	young := func(p *Pod) bool { return p.Since.After(c.window.Start.Add(startupTime)) }
	return slices.ContainsFunc(c.pods[d.Src], young) || slices.ContainsFunc(c.pods[d.Dst], young)
}

// bridgedCopy reports whether netfilter dropped the copy that a promiscuous
// bridge hands to the node of a frame that it forwards to the pod itself. Packets
// for the node, and those that return to the pod that sent them, take no other
// path.
func (c *DropClassifier) bridgedCopy(d *Drop) bool {
	bridge := c.links[d.IfIndex]
	if bridge == nil || bridge.Kind != "bridge" || !bridge.Promisc || d.Src == d.Dst || d.DstMAC.IsZero() || c.bridgeMACs[d.DstMAC] {
		return false
	}
	return slices.ContainsFunc(c.pods[d.Dst], func(p *Pod) bool {
		l := c.links[p.LinkIndex]
		return p.MAC == d.DstMAC && l != nil && l.Master == bridge.Index
	})
}

// LocationNFT is the function in which rules of nftables drop. Legacy tables and
// connection tracking drop in others.
const LocationNFT = "nft_do_chain"

// Consumed is the kernel's word for a packet that was delivered, and then freed.
const Consumed Reason = "CONSUMED"

// Unspecified reports whether the reason is not known: on Linux before 5.17 it is
// derived where it can be; later kernels have functions that pass none.
func (d *Drop) Unspecified() bool { return d.Reason == "" || d.Reason == "NOT_SPECIFIED" }

// Delivered reports whether the packet had been delivered: a transport or a
// socket freed it. A packet for which a socket had no room, or that waited for a
// next hop's MAC, had not.
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
		"skb_queue_purge_reason", "skb_release_data":
		// These empty a socket's queues, without a reason until Linux 6.15.
		if d.Unspecified() {
			return true
		}
	}
	return strings.HasPrefix(string(d.Reason), "TCP_") || d.Unspecified() && strings.HasPrefix(d.Location, "tcp_")
}

// Distrusted reports whether the receiver's transport refused the packet for its
// checksum, its signature or its hop limit. Nothing of it gets to the socket, however
// often it is sent again.
func (d *Drop) Distrusted() bool {
	return d.Reason == "TCP_CSUM" || d.Reason == "TCP_MINTTL" ||
		strings.HasPrefix(string(d.Reason), "TCP_MD5") || strings.HasPrefix(string(d.Reason), "TCP_AO")
}

// sniffed reports whether a packet socket had no room for its copy of a packet. The
// packet itself goes on. Older kernels give no reason.
func (d *Drop) sniffed() bool {
	return d.Reason == "PACKET_SOCK_ERROR" ||
		d.Unspecified() && slices.Contains([]string{"packet_rcv", "packet_rcv_spkt", "tpacket_rcv"}, d.Location)
}

// cut reports whether a queue with a limit by rate freed a large packet that it had cut
// into pieces. Each piece that it drops counts by itself.
func (d *Drop) cut() bool {
	return d.Unspecified() && (d.Location == "tbf_enqueue" || d.Location == "tbf_segment")
}

// NoSocket reports whether no socket took the packet. Before Linux 5.17 a TCP segment
// may have been the last of a connection instead, which the kernel frees in the same
// function.
func (d *Drop) NoSocket() bool {
	return d.Reason == "NO_SOCKET" && !d.CookieRefused() || d.Reason == "" && (d.Location == "tcp_v4_rcv" || d.Location == "tcp_v6_rcv")
}

// CookieRefused reports whether a handshake with a SYN cookie ended at a listener whose
// queue of connections to be accepted was full. The kernel calls that NO_SOCKET from
// Linux 6.9 on: it could make none.
func (d *Drop) CookieRefused() bool {
	return d.Reason == "NO_SOCKET" && (d.Location == "cookie_v4_check" || d.Location == "cookie_v6_check")
}

// noMember reports whether a receiver that has not joined the packet's group, or
// has no socket for it, freed the packet.
func (d *Drop) noMember() bool {
	switch d.Location {
	case "ip_rcv_finish_core", "ip_rcv_finish", "__udp4_lib_rcv", "__udp4_lib_mcast_deliver", "__udp6_lib_rcv", "__udp6_lib_mcast_deliver":
		return d.Unspecified() || d.NoSocket()
	}
	return false
}

// OtherHost reports whether the frame was for another MAC than the receiver's.
func (d *Drop) OtherHost() bool { return d.Reason == "OTHERHOST" }

// NeighborFailed reports whether the next hop's MAC could not be resolved. The
// kernel frees one of the packets that wait as failed, and purges the queue of the
// others.
func (d *Drop) NeighborFailed() bool {
	return strings.HasPrefix(string(d.Reason), "NEIGH_") || d.Location == "neigh_invalidate"
}

// Netfilter reports whether a rule or policy may have dropped the packet.
func (d *Drop) Netfilter() bool { return d.Reason == "NETFILTER_DROP" }

// ReverseFiltered reports whether the reverse path filter dropped the packet. Before
// Linux 5.17 it may have been OwnSource as well.
func (d *Drop) ReverseFiltered() bool {
	return d.Reason == "IP_RPFILTER" || d.Reason == "" && d.Location == "ip_rcv_finish_core"
}

// LookupRefused reports whether the route lookup refused the packet.
func (d *Drop) LookupRefused() bool { return d.Location == "ip_error" || d.LookupRefused6() }

// LookupRefused6 reports whether the route lookup refused an IPv6 packet. The
// function that frees it depends on the route's type and on what the compiler
// inlined (ip6_pkt_drop, or ip6_pkt_prohibit that contains it); no kernel gives a
// reason that says more.
func (d *Drop) LookupRefused6() bool {
	return (d.Dst.Is6() || d.Src.Is6()) && (strings.HasPrefix(d.Location, "dst_discard") || strings.HasPrefix(d.Location, "ip6_pkt_"))
}

// LookupRefusedFor reports whether the IPv4 route lookup refused the packet for a
// reason. All such packets are freed in one function; before Linux 5.17, any of the
// reasons may be meant.
func (d *Drop) LookupRefusedFor(r Reason) bool {
	return d.Location == "ip_error" && (d.Reason == r || d.Reason == "")
}

// Expired reports whether a router dropped the packet because its TTL or hop
// limit ran out. Before Linux 5.17 these functions may have dropped it for another
// reason.
func (d *Drop) Expired() bool {
	return (d.Location == "ip_forward" || d.Location == "ip6_forward") && (d.Reason == "IP_INHDR" || d.Reason == "")
}

// OwnSource reports whether the packet came from outside with one of the
// receiver's own addresses as its source. The kernel names the reason since Linux
// 6.15.
func (d *Drop) OwnSource() bool {
	return d.Reason == "IP_LOCAL_SOURCE" || d.Location == "ip_rcv_finish_core" && d.Unspecified()
}

// XDP reports whether an XDP program dropped the packet. Linux 6.18 still gives
// some of these drops no reason.
func (d *Drop) XDP() bool {
	if !d.Unspecified() {
		return d.Reason == "XDP"
	}
	return slices.Contains([]string{"do_xdp_generic", "netif_receive_generic_xdp", "veth_xdp_rcv_skb"}, d.Location)
}

// Transmitting reports whether the packet was on its way out of its device: tc,
// the queueing discipline or the driver dropped it.
func (d *Drop) Transmitting() bool {
	if d.Reason == "TC_EGRESS" || strings.HasPrefix(string(d.Reason), "QDISC_") {
		return true
	}
	for _, prefix := range []string{"__dev_queue_xmit", "__dev_xmit_skb", "__dev_forward_skb", "____dev_forward_skb", "validate_xmit",
		"dev_hard_start_xmit", "sch_direct_xmit", "kfree_skb_list"} {
		if strings.HasPrefix(d.Location, prefix) {
			return true
		}
	}
	return strings.HasSuffix(d.Location, "_xmit") || strings.HasSuffix(d.Location, "_enqueue")
}

// Queued reports whether the queueing discipline of the packet's device dropped it: it
// had been counted at the device's egress. Before Linux 5.17 that has no reason.
func (d *Drop) Queued() bool {
	return strings.HasPrefix(string(d.Reason), "QDISC_") || strings.HasPrefix(string(d.Reason), "FQ_") ||
		d.Unspecified() && strings.HasPrefix(d.Location, "kfree_skb_list")
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

// Hop is the kind of hop at which the kernel makes the drop, empty where its reason
// and location do not tell.
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

// SampleKey identifies the drop that a sample is of.
type SampleKey struct {
	Reason   Reason
	Location string
	IfIndex  int
	Netns    uint32
	Src, Dst netip.Addr
	DstMAC   MAC
}

// Key returns the drop that the sample is of.
func (s *Sample) Key() SampleKey {
	return SampleKey{s.Reason, s.Location, s.IfIndex, s.Netns, s.Src, s.Dst, s.DstMAC}
}
