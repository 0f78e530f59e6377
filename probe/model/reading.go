package model

import (
	"net/netip"
	"time"
)

// Reading is what a running observation publishes about once a second. It is immutable.
type Reading struct {
	// At is when the counters were read.
	At time.Time
	// Snapshot is of the selected window, which ends at At. It is nil in readings of an observation that is to take
	// little, unless the state was read.
	Snapshot *Snapshot
	// Findings are the open ones in the order of WorstFirst, of those alike the
	// oldest first, then those that closed since the observation began, latest first.
	Findings []Tracked
	// Judged is when they were last diagnosed: at the latest reading whose state was read along with the counters.
	Judged time.Time
	// Verdict is what was judged then; On is nil before the first.
	Verdict Verdict
	// Since is what was counted since the whole point before, judged by the state of that time where what lost packets then
	// has gone. It is of a whole point; On is nil otherwise.
	Since Verdict
	// Drops are drops of pods' packets per second that are losses, oldest
	// first. They end at At. Empty if drops are not watched.
	Drops []float64
	// Lost are the same drops of each pod address that has any.
	Lost map[netip.Addr][]float64
	// Replay says that the reading is from a recording.
	Replay bool
	// Point has the counts since the observation began.
	Point Point
	// Nodes are those of a reading of several nodes, which has no Snapshot of its own, nor Series, Drops and Point.
	Nodes []NodeReading
}

// NodeReading is one of several nodes whose readings are judged together. Of a node that
// could not be read Snapshot is nil.
type NodeReading struct {
	NodeSeen
	Snapshot *Snapshot
}

// Point is one reading of the cumulative counters. A window is the difference of two points.
type Point struct {
	// Snapshot holds counts since Window.Start, when the observation began. Counters of rules are the kernel's totals
	// alone. TTLs are those since the previous whole point.
	Snapshot *Snapshot
	// Whole says that the state was read right after the counters. Otherwise the state is that of an earlier point.
	Whole bool
	// After holds the counts that changed while the state was read, Ready is when they were read. A window that begins
	// with this point begins at Ready, so that no rule counts less in it than the drops it caused.
	After Traffic
	Ready time.Time
}

// Tracked is a finding that is tracked over readings.
type Tracked struct {
	Finding
	// ID is the number of the finding in the order of opening, from 1.
	ID int
	// First and Last are the times of the first and last reading that had it.
	First, Last time.Time
	// Closed says that the finding is no longer present. It is then as it was when it was surest.
	Closed bool
	// Lost is how many packets its cause lost while it was seen, 0 where that is not known.
	Lost uint64 `json:",omitzero"`
}
