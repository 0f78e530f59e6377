package model

import (
	"net/netip"
	"time"
)

// ProbeKind is what a probe asks with.
type ProbeKind string

// The kinds of a probe.
const (
	ProbeEcho ProbeKind = "echo" // an ICMP echo request
	ProbeARP  ProbeKind = "arp"  // an ARP request
)

// Probe is one question that lasthop itself puts to the network, and what came
// of it. As a plan it has no answer yet.
type Probe struct {
	Kind ProbeKind
	// IfIndex and Link are where the frames leave.
	IfIndex int
	Link    string
	// From is an address of the node's own, To the one that is asked.
	From, To netip.Addr
	// SrcMAC is the link's own; DstMAC the next hop's, broadcast for ARP.
	SrcMAC, DstMAC MAC
	// Sent is how many packets asked: a second one where the first had no
	// answer. 0 in a plan.
	Sent     int
	Answered bool
	// MACs are what ARP answers gave, in the order of their arrival.
	MACs []MAC
	// RTT is how long the first answer took, 0 without one.
	RTT time.Duration
}
