package model

import (
	"fmt"
	"net/netip"
	"strconv"
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

// Edges are further readings of the counters in Traffic. Reading all counters is not atomic: packets pass meanwhile. So
// the counters are read twice in a row at each edge of the window. A packet that the second reading does not count at a
// hop had not reached that hop when the first reading ended.
type Edges struct {
	// Read is false where there are no such readings. Then no packet was in flight when counting began and ended.
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
	// Addrs are those of Counters and of MACs whose local address is known. Others are those of Counters that are of none:
	// ARP and ND messages, remote ranges, addresses of pods that are gone. The rest may be of any address.
	Addrs  []AddrLoss
	Others uint64
	// Unparsed are packets whose headers could not be read.
	Unparsed uint64
	// Malformed are packets with a header that is cut off or wrong. They are the sender's fault, and no loss: hosts that must
	// read that header drops them, and hops that count them at all all do.
	Malformed uint64
	// Missed are drops of any namespace on the machine, during another one's count. Most
	// are others': a packet of this node that died so is unexplained in the ledger.
	Missed uint64
	// Gaps is how often a link was found where others had removed lasthop's programs, or put theirs before them. How many
	// packets were not counted there is not known, in either direction.
	Gaps uint64
	// Detail are the reasons, each with its number.
	Detail []Uncounted
}

// Uncounted is how many packets were not counted for one reason, which is in words without names or addresses.
type Uncounted struct {
	Packets uint64
	Why     string `redact:"keep"`
}

func (u Uncounted) String() string { return fmt.Sprint(u.Packets, " ", u.Why) }

// MarshalText makes the text that recordings hold.
func (u Uncounted) MarshalText() ([]byte, error) { return []byte(u.String()), nil }

// UnmarshalText takes that text.
func (u *Uncounted) UnmarshalText(text []byte) (err error) {
	number, why, _ := strings.Cut(string(text), " ")
	if u.Packets, err = strconv.ParseUint(number, 10, 64); err != nil {
		return fmt.Errorf("read what was not counted: %w", err)
	}
	u.Why = why
	return nil
}

// AddrLoss is how many packets of a local address were not counted, by what did not count them.
type AddrLoss struct {
	Addr                            netip.Addr
	Hops, Peers, Pairs, Drops, MACs uint64
}

// Anyone is how many packets may be missing from the counts of any address. A gap counts as one.
func (l *Lost) Anyone() uint64 {
	known := l.Others
	for _, o := range l.Addrs {
		known += o.Hops + o.Peers + o.Pairs + o.Drops
	}
	return l.Counters - min(l.Counters, known) + l.Unparsed + l.Gaps
}

// Of is what may be missing from the counts of a local address: its own losses, and those that may be of any.
func (l *Lost) Of(a netip.Addr) AddrLoss {
	n, macs := AddrLoss{Addr: a}, l.MACs
	for _, o := range l.Addrs {
		if o.Addr == a {
			n = o
		}
		macs -= min(macs, o.MACs)
	}
	n.MACs += macs
	rest := l.Anyone()
	n.Hops, n.Peers, n.Pairs, n.Drops = n.Hops+rest, n.Peers+rest, n.Pairs+rest, n.Drops+rest
	return n
}

// HopCount is a hop counter: the packets of one address, or of one remote range, at one link, direction and side.
type HopCount struct {
	// Addr is the local address, Prefix the remote range. One is set.
	Addr    netip.Addr
	Prefix  netip.Prefix
	IfIndex int
	Link    string `redact:"link"`

	Direction Direction
	Side      Side

	Packets, Bytes uint64
	// SYN are TCP segments with SYN and no ACK.
	SYN, SYNACK, RST uint64
	// ICMPErrors are ICMP and ICMPv6 error messages.
	ICMPErrors uint64
	// FromInside and FromUplink count forwarded packets on egress, by the link that they came in by: FromUplink an uplink,
	// FromInside any other. The kernel notes the last link that received the packet (skb_iif), which may be the bridge
	// above the port.
	FromInside, FromUplink uint64
	// TTLs has bit t%64 set for each TTL or hop limit t that was seen. A routing loop sets many.
	TTLs uint64
	// First and Last are the first and last poll that saw the counter move.
	First, Last time.Time
}

// PeerCount is one direction of a Peer.
type PeerCount struct {
	Packets uint64
	// Requests expect a reply: TCP SYN without ACK, ICMP echo requests. Replies prove that the other end received packets:
	// TCP with ACK or RST, ICMP echo replies. Other are all others, mostly UDP.
	Requests, Replies, Other uint64
	// ICMPErrors are ICMP errors about packets between the two addresses.
	ICMPErrors uint64
	// Fragments are those of Other that are no first ones: without ports.
	Fragments uint64 `json:",omitzero"`
}

// NewPeerCount derives Other. The counters are not read atomically, so the parts may exceed the sum.
func NewPeerCount(packets, requests, replies, icmpErrors uint64) PeerCount {
	return PeerCount{
		Packets: packets, Requests: requests, Replies: replies, ICMPErrors: icmpErrors,
		Other: packets - min(packets, requests+replies),
	}
}

// Peer counts the packets between one local address and one address off the node, at an uplink.
type Peer struct {
	Local, Remote netip.Addr
	// Range is set instead of Remote for the packets of several addresses in it: those for which the local address had no
	// entry left. The range without bits is that of all others. What it replied proves that some address replied; what it
	// did not reply proves nothing of any.
	Range   netip.Prefix
	IfIndex int
	Link    string `redact:"link"`
	// Out counts packets on egress, In on ingress.
	Out, In PeerCount
	// FirstOut is the first poll that saw a packet on egress.
	FirstOut time.Time
	LastOut  time.Time
	LastIn   time.Time
}

// Far is Range or, of one address, the prefix with Remote alone.
func (p *Peer) Far() netip.Prefix {
	return Either(p.Range.IsValid(), p.Range, netip.PrefixFrom(p.Remote, p.Remote.BitLen()))
}

// PairCount counts the packets from one address to another at one link and direction.
type PairCount struct {
	Src, Dst  netip.Addr
	IfIndex   int
	Link      string `redact:"link"`
	Direction Direction
	Packets   uint64
}

// MACPair counts the packets of one hop counter with one pair of MACs.
type MACPair struct {
	Addr      netip.Addr
	IfIndex   int
	Link      string `redact:"link"`
	Direction Direction
	Side      Side

	Src, Dst MAC
	Packets  uint64
}

// ARPCount counts ARP or neighbour discovery messages at one link.
type ARPCount struct {
	IfIndex   int
	Link      string `redact:"link"`
	Direction Direction
	// Reply is false for a request (ARP request, neighbour solicitation).
	Reply bool
	// Addr is the target: the address to resolve, in a reply the resolved one.
	Addr netip.Addr
	// MAC is the sender's MAC in the message, in a reply the target's.
	MAC     MAC
	Packets uint64
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
