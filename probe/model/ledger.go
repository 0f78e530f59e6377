package model

import "net/netip"

// The directions of a ledger's rows.
const (
	FromPod LedgerDirection = "fromPod"
	ToPod   LedgerDirection = "toPod"
)

// LedgerDirection says whether a ledger row counts packets from a pod or to it.
type LedgerDirection string

// LedgerPlace is where a row's packets come from or go to.
type LedgerPlace string

// The places. Packets from a pod go to them and packets to a pod come from them, unless stated otherwise.
const (
	// PlaceOutside is beyond the uplinks and tunnels, for packets with the pod's address.
	PlaceOutside LedgerPlace = "outside"
	// PlaceOutsideAgain is beyond an uplink through which packets to a pod
	// leave: reflected, or forwarded through the fabric.
	PlaceOutsideAgain LedgerPlace = "outsideAgain"
	// PlacePods are other pods of the node, by their links.
	PlacePods LedgerPlace = "pods"
	// PlaceNode is the node itself.
	PlaceNode LedgerPlace = "node"
	// PlaceTranslated is beyond the uplinks, for packets with an address of
	// the node in place of the pod's. Their number follows from sums.
	PlaceTranslated LedgerPlace = "translated"
	// PlaceGroups are multicast and broadcast addresses, which are not tracked.
	PlaceGroups LedgerPlace = "groups"
)

// LedgerPart is how many packets of a row came from, or went to, one place.
type LedgerPart struct {
	Place   LedgerPlace
	Packets uint64
}

// LedgerDrop is how many packets of a row were dropped for one reason.
type LedgerDrop struct {
	Reason   Reason
	Location string
	DropCause
	Packets uint64
}

// LedgerRow balances the packets of one pod, address family and direction,
// between the pod's link and the other boundary links:
//
//	In = Out + Dropped + unexplained
//
// except for Edge. It does not include what happens inside the pod.
type LedgerRow struct {
	Addrs     []netip.Addr
	Link      string
	Direction LedgerDirection
	// In and Out are unknown if some of their packets cannot be distinguished from those of others.
	In, Out Count
	Dropped uint64
	// Least and Most bound the unexplained packets, which came in and were
	// neither seen to leave nor dropped. Most is unknown if there is no bound.
	Least uint64
	Most  Count
	// Edge is how many packets passed while the counters were read at the window's edges. In, Out and Dropped include
	// them, and may be off by as many.
	Edge uint64
	// Parts divide In for packets to the pod, Out for packets from it.
	Parts []LedgerPart
	Drops []LedgerDrop
	// Why says why Least and Most differ.
	Why []string
}

// Unexplained returns the number of unexplained packets, if it is exact.
func (r *LedgerRow) Unexplained() Count {
	return Either(r.Most.Known && r.Most.N == r.Least, r.Most, Count{})
}
