package model

import "time"

// NodeSeen is one of several nodes whose observations are judged together.
type NodeSeen struct {
	// Name tells the node from the others.
	Name string `redact:"node"`
	// Recording is where the observation is from.
	Recording string `redact:"file"`
	Node      Node
	Window    Window
	// Ahead is how far its clock, which Window is of, is ahead of that of the nodes' first.
	Ahead   time.Duration
	Sources []Source
	Lost    Lost
	// Pods is how many it has.
	Pods int
	// Reason says why nothing is concluded from its silence; empty if it is.
	Reason string `redact:"withhold"`
	// Failed says that there is no observation.
	Failed bool
}
