package model

import (
	"net/netip"
	"slices"
)

// Severity ranks a finding.
type Severity string

// The severities, worst first.
const (
	Critical Severity = "critical"
	Warning  Severity = "warning"
	Info     Severity = "info"
)

// Rank orders severities: 2 critical, 1 warning, 0 info, -1 anything else.
func (s Severity) Rank() int { return slices.Index([]Severity{Info, Warning, Critical}, s) }

// Confidence is how sure a finding is.
type Confidence string

// The confidences: state and counters agree; inferred, with alternatives
// named; state alone, or too little traffic.
const (
	Proven   Confidence = "proven"
	Likely   Confidence = "likely"
	Possible Confidence = "possible"
)

// Rank orders confidences: 2 proven, 1 likely, 0 possible, -1 anything else.
func (c Confidence) Rank() int { return slices.Index([]Confidence{Possible, Likely, Proven}, c) }

// Place is a hop on a packet's way.
type Place struct {
	Link      string
	Role      Role
	Direction Direction
}

// Evidence is one observation and where it was made.
type Evidence struct {
	Source string
	Text   string
}

// Code names a kind of finding. It is stable and in CamelCase, like a Kubernetes
// condition's reason.
type Code string

// Finding is one cause of lost traffic.
type Finding struct {
	Code       Code
	Severity   Severity
	Confidence Confidence
	// Pods are the addresses of the pods concerned, sorted.
	Pods []netip.Addr
	// Peers are the other ends: prefixes, a single address as its host
	// prefix.
	Peers []netip.Prefix
	// LastHopAlive is the last place where the traffic was seen right.
	LastHopAlive Place
	Title        string
	Why          string
	Evidence     []Evidence
	// Unseen is what would have settled the matter and was not there to see.
	Unseen       []string
	Alternatives []string
	// Fix are commands, or one sentence where no command is known.
	Fix    []string
	Verify string
	// Packets is how many were lost in the window, 0 when not counted.
	Packets uint64
	// EndsAt are the kinds of hop at which the packets end, the likeliest first;
	// nil where the tables and counts say. Passes: they do not end. Both are
	// the catalogue's, and no document holds them.
	EndsAt []HopKind `json:"-"`
	Passes bool      `json:"-"`
}
