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
	// Judged is when they were drawn: the latest reading for which the state
	// was read as well as the counters.
	Judged time.Time
	// Series are packets a second of each pod address at each hop, oldest
	// first; they end at At.
	Series []Series
	// Drops are dropped packets of pods a second that are losses, oldest
	// first; they end at At. Empty where drops are not watched.
	Drops []float64
	// Replay says that the reading is from a recording.
	Replay bool
	// Point is the same moment, with all that was counted since the
	// observation began.
	Point Point
}

// Point is what was known at one moment of an observation. Windows are cut
// from points: what was counted between two is the difference.
type Point struct {
	// Snapshot holds counts since the observation began, its Window.Start.
	// Counters of rules are the kernel's, without Delta and Standing. Start
	// of a flow is zero if it was there from the beginning. TTLs are those
	// since the whole point before.
	Snapshot *Snapshot
	// Whole says that the state was read right after the counters. Where it
	// is false, the state is that of an earlier point.
	Whole bool
	// After are the counts that moved while the state was read, as they were
	// then, and Ready when that was: a window that begins with this point
	// begins there, so that no rule counts less in it than it dropped.
	After Traffic
	Ready time.Time
}

// Tracked is a finding and its life over the readings.
type Tracked struct {
	Finding
	// ID numbers findings in the order in which they opened, from 1.
	ID int
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
