package model

import "net/netip"

// The directions of a ledger's rows.
const (
	FromPod LedgerDirection = "fromPod"
	ToPod   LedgerDirection = "toPod"
)

// LedgerDirection is whether a row of the ledger is about what a pod sends or
// about what it is sent.
type LedgerDirection string

// LedgerPlace is where packets of a row come from or go to.
type LedgerPlace string

// The places. What a pod sends goes to them, what it is sent comes from them,
// unless it says otherwise.
const (
	// PlaceOutside is beyond the uplinks and tunnels, where the packet bore
	// the pod's address.
	PlaceOutside LedgerPlace = "outside"
	// PlaceOutsideAgain is what is sent to a pod and leaves through an
	// uplink: reflected, or taken round by the fabric.
	PlaceOutsideAgain LedgerPlace = "outsideAgain"
	// PlacePods are other pods of the node, by their links.
	PlacePods LedgerPlace = "pods"
	// PlaceNode is the node itself.
	PlaceNode LedgerPlace = "node"
	// PlaceTranslated is what leaves, or arrived, with an address of the
	// node for the pod's: known from what all such packets sum up to.
	PlaceTranslated LedgerPlace = "translated"
	// PlaceGroups are multicast and broadcast addresses, which nobody
	// follows.
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
	// Code is the finding that explains it, empty for none. Expected
	// says that a working network drops so.
	Code     Code
	Expected bool
	Packets  uint64
}

// LedgerRow counts the packets of one pod and family of addresses in one
// direction, between the pod's link and the other places where packets come
// into the node and leave it:
//
//	In = Out + Dropped + unexplained
//
// but for Edge. What happens inside the pod is not part of it.
type LedgerRow struct {
	Addrs     []netip.Addr
	Link      string
	Direction LedgerDirection
	// In and Out are not known where a part of them cannot be told from
	// others' packets.
	In, Out Count
	Dropped uint64
	// Least and Most bound the unexplained packets: those that came in, and
	// were neither seen to leave nor to be dropped. Most is unknown where
	// nothing bounds it.
	Least uint64
	Most  Count
	// Edge is how many packets passed while the counters were read at the
	// window's edges. They are in In, Out and Dropped, which may differ by
	// as many, and are not judged.
	Edge uint64
	// Parts are of In for what the pod is sent, of Out for what it sends.
	Parts []LedgerPart
	Drops []LedgerDrop
	// Why says in words what keeps Least and Most apart.
	Why []string
}

// Unexplained is how many packets are unexplained, where that is known.
func (r *LedgerRow) Unexplained() Count {
	if r.Most.Known && r.Most.N == r.Least {
		return r.Most
	}
	return Count{}
}
