package fault

import "github.com/lasthop/lasthop/probe/node"

// Input is what one kind of finding is judged by: the indexed snapshot, and which losses
// the kinds before it have claimed.
type Input struct {
	*node.Index
	Claims
	// Proposed are the findings that the kind at work has reported.
	Proposed []Fault
}
