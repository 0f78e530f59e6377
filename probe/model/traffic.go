package model

import (
	"net/netip"
	"time"
)

// Direction is a packet's way through a link, as the node sees it.
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

// Traffic is what was counted on packets in the window.
type Traffic struct {
	Hops  []HopCount
	Peers []Peer
	// Pairs are counted for Close addresses alone.
	Pairs []PairCount
	// PairAddrs are the addresses whose packets were counted by pair on every
	// link.
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

// Lost is what the probe itself could not count.
type Lost struct {
	// Events are drop samples that did not fit the ring buffer or the
	// reader's queue.
	Events uint64
	// Counters are packets that no counter was free for.
	Counters uint64
	// MACs are packets whose pair of MACs was not recorded, because the
	// hop had too many pairs.
	MACs uint64
	// Unparsed are packets that could not be read as what they claim to be.
	Unparsed uint64
	// Detail says in words what was lost and why.
	Detail []string
}

// HopCount counts the packets of one address, or of one remote range, at one
// link, in one direction, on one side.
type HopCount struct {
	// Addr is the local address, or Prefix the remote range; one is set.
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
	// TTLs has bit t%64 set for each TTL or hop limit t that was seen: a
	// loop sets many.
	TTLs uint64
	// First and Last are when a poll first and last saw the count move;
	// as precise as the polling interval.
	First, Last time.Time
}

// PeerCount is one direction of a Peer.
type PeerCount struct {
	Packets uint64
	// Requests are packets that want an answer: TCP SYN without ACK, ICMP
	// echo requests. Replies prove that the other end received something:
	// TCP with ACK or RST, ICMP echo replies. Other is what tells neither,
	// UDP above all.
	Requests, Replies, Other uint64
	// ICMPErrors are ICMP errors about packets of the pair.
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
	// Out leaves the node through the uplink, In arrives.
	Out, In PeerCount
	// FirstOut is when a poll first saw a packet leave.
	FirstOut time.Time
	LastOut  time.Time
	LastIn   time.Time
}

// PairCount counts the packets from one address to another at one link, in one
// direction.
type PairCount struct {
	Src, Dst  netip.Addr
	IfIndex   int
	Link      string
	Direction Direction
	Packets   uint64
}

// MACPair is a pair of Ethernet addresses on packets of one address at one
// hop.
type MACPair struct {
	Addr      netip.Addr
	IfIndex   int
	Link      string
	Direction Direction
	Side      Side

	Src, Dst MAC
	Packets  uint64
}

// ARPCount counts ARP or neighbour-discovery messages at one link.
type ARPCount struct {
	IfIndex   int
	Link      string
	Direction Direction
	// Reply is false for a request (ARP request, neighbour solicitation).
	Reply bool
	// Addr is the address asked for, or answered for.
	Addr netip.Addr
	// MAC is the sender's MAC as the message claims it: in a reply, the
	// answer.
	MAC     MAC
	Packets uint64
}

// MACField is which Ethernet address of a frame is meant.
type MACField string

// The fields.
const (
	SourceMAC      MACField = "source"
	DestinationMAC MACField = "destination"
)

// MACPlace is an Ethernet address and where it was seen.
type MACPlace struct {
	MAC       MAC
	Link      string
	Direction Direction
}

// MACRewrite says that frames of one address crossed a bridge and came out
// with another Ethernet address, which a bridge by itself never does.
type MACRewrite struct {
	Addr     netip.Addr
	Field    MACField
	From, To MACPlace
	Packets  uint64
}
