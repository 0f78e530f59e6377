package model

import (
	"net/netip"
	"time"
)

// ProbeKind is the kind of a probe's request.
type ProbeKind string

// The kinds of a probe.
const (
	ProbeEcho ProbeKind = "echo" // an ICMP echo request
	ProbeARP  ProbeKind = "arp"  // an ARP request
)

// Probe is a request that lasthop sends, with its result. A planned probe has no result.
type Probe struct {
	Kind ProbeKind
	// IfIndex and Link are the egress link.
	IfIndex int
	Link    string `redact:"link"`
	// From is an address of the node, To the target.
	From, To netip.Addr
	// SrcMAC is the link's MAC, DstMAC the next hop's, broadcast for ARP.
	SrcMAC, DstMAC MAC
	// Sent is the number of packets sent: a second if the first had no reply.
	Sent     int
	Answered bool
	// MACs are the senders of ARP replies, in order of arrival.
	MACs []MAC
	// RTT is the time to the first reply, 0 if there was none.
	RTT time.Duration
}
