package model

import (
	"net/netip"
	"time"
)

// Reading is what a running observation publishes about once a second. It is
// immutable.
type Reading struct {
	// At is when the counters were read.
	At time.Time
	// Snapshot is of the window that was asked for, its end At.
	Snapshot *Snapshot
	// Findings are those of the window, in the order of Diagnose, then those
	// that closed since the observation began, the latest first.
	Findings []Tracked
	// Series are packets a second of each pod address at each hop, oldest
	// first; they end at At.
	Series []Series
	// Drops are dropped packets of pods a second, oldest first; they end at
	// At. Empty where drops are not watched.
	Drops []float64
	// Replay says that the reading is from a recording.
	Replay bool
}

// Tracked is a finding and its life over the readings.
type Tracked struct {
	Finding
	// First and Last are the readings that first and last had it.
	First, Last time.Time
	// Closed says that the latest reading has it no more.
	Closed bool
}

// Series is the recent history of one count.
type Series struct {
	Addr      netip.Addr
	IfIndex   int
	Link      string
	Direction Direction
	Side      Side
	// Rates are packets a second.
	Rates []float64
}
