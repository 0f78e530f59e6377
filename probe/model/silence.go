package model

import "net/netip"

// Silence is a pair of addresses at the uplinks of which requests left in the window and no reply came.
type Silence struct {
	Local, Remote netip.Addr
	// Packets of the pair left; not all of them want a reply.
	Packets uint64
	// Code is the finding that claims the silence, Ordinary why a healthy network is silent so
	// too. Both are empty where nothing is concluded.
	Code     Code
	Ordinary Excuse
}

// Excuse is why requests get no reply in a healthy network.
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
)
