package model

import (
	"net/netip"
	"slices"
)

// Silence is a pair of addresses at the uplinks of which requests left in the window and no reply came.
type Silence struct {
	Local, Remote netip.Addr
	// Packets of the pair left; not all of them want a reply.
	Packets uint64
	// Code is the finding that claims the silence; without one, Ordinary is why none does.
	Code     Code
	Ordinary Excuse
}

// Excuse is why a loss is no finding's: it occurs in a healthy network too, or nothing can be concluded from it.
// Package loss has those of packets that were not lost.
type Excuse string

// The excuses.
const (
	// ExcusedScan: the pod asks many addresses of a range without knowing who is there.
	ExcusedScan Excuse = "scan"
	// ExcusedForwarder: a gateway that forwards, and replies to no ping.
	ExcusedForwarder Excuse = "forwarder"
	// ExcusedGone: the pod that is asked went away.
	ExcusedGone Excuse = "gone"
	// ExcusedPlatform: an address of the cloud's that is not for pods.
	ExcusedPlatform Excuse = "platform"
	// ExcusedBrief: it was asked for a moment only.
	ExcusedBrief Excuse = "brief"
	// ExcusedGroup: a multicast or broadcast address, or another that no single machine has.
	ExcusedGroup Excuse = "multicast"
	// ExcusedHere: an address of a pod of this node, for which a bridge floods frames.
	ExcusedHere Excuse = "here"
	// ExcusedReflected: packets for the local address that came in by the uplink, and were sent back.
	ExcusedReflected Excuse = "reflected"
	// ExcusedTranslated: the pod's connections to it that are translated get replies.
	ExcusedTranslated Excuse = "translated"
	// ExcusedElsewhere: another node's observation has the cause.
	ExcusedElsewhere Excuse = "elsewhere"
)

// The excuses of losses from which nothing can be concluded.
const (
	// ExcusedFew: packets get lost now and then.
	ExcusedFew Excuse = "few"
	// ExcusedRecent: observation ended before a reply could come, or the drop was not counted in it.
	ExcusedRecent Excuse = "recent"
	// ExcusedUncounted: not all packets were counted, and a reply may be among the others.
	ExcusedUncounted Excuse = "uncounted"
	// ExcusedUnread: a source that tells whose copy a packet was, or which rule freed it, was not read.
	ExcusedUnread Excuse = "unread"
	// ExcusedNoReason: the kernel does not tell a lost packet from the last of a connection.
	ExcusedNoReason Excuse = "noReason"
	// ExcusedNoPod: neither end is a running pod of the node.
	ExcusedNoPod Excuse = "noPod"
)

// Open reports whether the loss may be a fault's all the same.
func (e Excuse) Open() bool {
	return slices.Contains([]Excuse{ExcusedFew, ExcusedRecent, ExcusedUncounted, ExcusedUnread, ExcusedNoReason, ExcusedNoPod}, e)
}
