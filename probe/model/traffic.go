package model

import (
	"net/netip"
	"strings"
	"time"
)

// Direction is the direction of a packet at a link, as the node sees it.
type Direction string

// The directions.
const (
	Ingress Direction = "ingress"
	Egress  Direction = "egress"
)

// Side is whether the counted address is the packet's source or destination.
type Side string

// The sides.
const (
	AsSource      Side = "source"
	AsDestination Side = "destination"
)

// Traffic holds the packet counters of a window.
type Traffic struct {
	Hops  []HopCount
	Peers []Peer
	// Pairs are counted on every link, for packets of PairAddrs only.
	Pairs     []PairCount
	PairAddrs []netip.Addr
	MACs      []MACPair
	ARP       []ARPCount
	Drops     []Drop
	Samples   []Sample
	Lost      Lost
}

// Edges are further readings of the counters in Traffic. Reading all counters
// is not atomic: packets pass meanwhile. So the counters are read twice in a
// row at each edge of the window. A packet that the second reading does not
// count at a hop had not reached that hop when the first reading ended.
type Edges struct {
	// Read is false where there are no such readings. Then no packet was in
	// flight when counting began and ended.
	Read bool
	// Start and StartAgain were taken once every link was watched, EndAgain
	// right after Traffic. They hold Hops, MACs, Peers and Drops only.
	Start, StartAgain, EndAgain Traffic
}

// Lost is what could not be counted.
type Lost struct {
	// Events are samples of drops that exceeded the ring buffer or a limit.
	Events uint64
	// Counters are packets without a free counter.
	Counters uint64
	// MACs are packets whose MAC pair was not counted: the hop had too many.
	MACs uint64
	// Unparsed are packets with truncated or malformed headers.
	Unparsed uint64
	// Detail are the numbers and reasons in words.
	Detail []string
}

// HopCount is a hop counter: the packets of one address, or of one remote range,
// at one link, direction and side.
type HopCount struct {
	// Addr is the local address, Prefix the remote range. One is set.
	Addr    netip.Addr
	Prefix  netip.Prefix
	IfIndex int
	Link    string

	Direction Direction
	Side      Side

	Packets, Bytes uint64
	// SYN are TCP segments with SYN and no ACK.
	SYN, SYNACK, RST uint64
	// ICMPErrors are ICMP and ICMPv6 error messages.
	ICMPErrors uint64
	// FromInside and FromUplink count forwarded packets on egress, by the
	// link that they came in by: FromUplink an uplink, FromInside any other.
	// The kernel notes the last link that received the packet (skb_iif),
	// which may be the bridge above the port.
	FromInside, FromUplink uint64
	// TTLs has bit t%64 set for each TTL or hop limit t that was seen. A
	// routing loop sets many.
	TTLs uint64
	// First and Last are the first and last poll that saw the counter move.
	First, Last time.Time
}

// PeerCount is one direction of a Peer.
type PeerCount struct {
	Packets uint64
	// Requests expect a reply: TCP SYN without ACK, ICMP echo requests.
	// Replies prove that the other end received packets: TCP with ACK or RST,
	// ICMP echo replies. Other are all others, mostly UDP.
	Requests, Replies, Other uint64
	// ICMPErrors are ICMP errors about packets between the two addresses.
	ICMPErrors uint64
}

// NewPeerCount derives Other. The counters are not read atomically, so the parts
// may exceed the sum.
func NewPeerCount(packets, requests, replies, icmpErrors uint64) PeerCount {
	return PeerCount{
		Packets: packets, Requests: requests, Replies: replies, ICMPErrors: icmpErrors,
		Other: packets - min(packets, requests+replies),
	}
}

// Peer counts the packets between one local address and one address off the
// node, at an uplink.
type Peer struct {
	Local   netip.Addr
	Remote  netip.Addr
	IfIndex int
	Link    string
	// Out counts packets on egress, In on ingress.
	Out, In PeerCount
	// FirstOut is the first poll that saw a packet on egress.
	FirstOut time.Time
	LastOut  time.Time
	LastIn   time.Time
}

// PairCount counts the packets from one address to another at one link and
// direction.
type PairCount struct {
	Src, Dst  netip.Addr
	IfIndex   int
	Link      string
	Direction Direction
	Packets   uint64
}

// MACPair counts the packets of one hop counter with one pair of MACs.
type MACPair struct {
	Addr      netip.Addr
	IfIndex   int
	Link      string
	Direction Direction
	Side      Side

	Src, Dst MAC
	Packets  uint64
}

// ARPCount counts ARP or neighbour discovery messages at one link.
type ARPCount struct {
	IfIndex   int
	Link      string
	Direction Direction
	// Reply is false for a request (ARP request, neighbour solicitation).
	Reply bool
	// Addr is the target: the address to resolve, in a reply the resolved one.
	Addr netip.Addr
	// MAC is the sender's MAC in the message, in a reply the target's.
	MAC     MAC
	Packets uint64
}

// Reason is the kernel's name for why it dropped a packet, without the
// SKB_DROP_REASON_ prefix. Empty before Linux 5.17.
type Reason string

// Drop counts the packets of one pair of ends that the kernel freed at one
// place.
type Drop struct {
	// Src and Dst are the packet's ends; at least one is a local address.
	Src, Dst netip.Addr
	Proto    uint8
	Reason   Reason
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

// DropCause is what accounts for a drop.
type DropCause struct {
	// Code is a finding's, empty for none.
	Code Code
	// Expected says that a working network drops so: what a transport or a
	// socket frees, copies that a bridge floods, what a ban forbids.
	Expected bool
}

// OfSocket reports whether the drop is what a transport or a socket frees as it
// goes: the packet was delivered. A socket that has no room is not meant, nor
// what waits for the next hop's MAC when that is not to be had.
func (d *Drop) OfSocket() bool {
	switch d.Reason {
	case "TCP_LISTEN_OVERFLOW":
		return false
	case "QUEUE_PURGE":
		return d.Location != "neigh_invalidate"
	case "SOCKET_CLOSE", "SOCKET_FILTER":
		return true
	}
	switch d.Location {
	case "ping_rcv", "raw_rcv":
		// An echo reply is offered to every socket that may want it; one
		// kernel frees what none took in ping_rcv, an older one in its caller.
		return true
	case "icmp_rcv", "icmpv6_rcv":
		return d.Reason == "NO_SOCKET"
	}
	return strings.HasPrefix(string(d.Reason), "TCP_") || (d.Reason == "" || d.Reason == "NOT_SPECIFIED") && socketFrees(d.Location)
}

// socketFrees reports whether a function frees what a socket received or still
// holds, where the kernel gives no reason: before Linux 5.17 ever, and for a
// socket's queues until 6.15.
func socketFrees(location string) bool {
	switch location {
	case "sk_stream_kill_queues", "inet_sock_destruct", "inet_csk_destroy_sock", "skb_queue_purge", "__skb_queue_purge",
		"skb_queue_purge_reason", "skb_release_data":
		return true
	}
	return strings.HasPrefix(location, "tcp_")
}

// Losses returns what tells whether a drop took a packet from the one that it
// was for: not what a transport or a socket frees as it goes, and not the copies
// that a bridge or a group's members free since they are for another.
func (s *Snapshot) Losses() func(*Drop) bool {
	owned := make(map[MAC]bool, len(s.Links)+len(s.Pods))
	gone := make(map[netip.Addr]bool)
	for i := range s.Links {
		owned[s.Links[i].MAC] = true
	}
	for i := range s.Pods {
		owned[s.Pods[i].MAC] = true
	}
	for i := range s.PastPods {
		owned[s.PastPods[i].MAC] = true
		for _, a := range s.PastPods[i].Addresses {
			gone[a.Addr()] = true
		}
	}
	delete(owned, MAC{})
	return func(d *Drop) bool {
		switch {
		case d.OfSocket():
			return false
		case d.Reason == "OTHERHOST":
			return !owned[d.DstMAC] && !gone[d.Dst]
		case d.Location == "ip6_mc_input", d.Reason == "IPV6_NDISC_NS_OTHERHOST":
			return !d.Dst.IsMulticast()
		}
		return true
	}
}

// Sample is the head of one dropped packet.
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

// MACField is a MAC field of the Ethernet header.
type MACField string

// The fields.
const (
	SourceMAC      MACField = "source"
	DestinationMAC MACField = "destination"
)

// MACPlace is a MAC and where it was seen.
type MACPlace struct {
	MAC       MAC
	Link      string
	Direction Direction
}

// MACRewrite says that frames of one address left a bridge with another MAC than
// they entered with. Bridging alone never changes MACs.
type MACRewrite struct {
	Addr     netip.Addr
	Field    MACField
	From, To MACPlace
	Packets  uint64
}
