package model

import (
	"cmp"
	"encoding/json"
	"net/netip"
	"slices"
	"time"
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

// WorstFirst orders findings by severity and, within one, by the packets lost.
func WorstFirst(a, b *Finding) int {
	return cmp.Or(cmp.Compare(b.Severity.Rank(), a.Severity.Rank()), cmp.Compare(b.Packets, a.Packets))
}

// Confidence is how sure a finding is.
type Confidence string

// The confidences: state and counters agree; inferred, with alternatives named; state alone, or too little traffic.
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

// Means is a way to learn what an observation left open.
type Means string

// The means: probes of its own (--active), the network's routes (--routes), the cluster's
// nodes (--nodes), the other end's node watched as well, the cluster's network policies, a
// longer window, and the rights or tables that were missing.
const (
	Active   Means = "active"
	Routes   Means = "routes"
	Nodes    Means = "nodes"
	Watch    Means = "watch"
	Policies Means = "policies"
	Longer   Means = "longer"
	Rights   Means = "rights"
)

// Evidence is one observation and where it was made.
type Evidence struct {
	Source, Text string
	// Node made the observation; empty where all are of one node.
	Node string `json:",omitempty"`
	// Values are those that Text shows, by their names.
	Values Values `json:",omitzero"`
}

// Values are a JSON object of values by their names; empty where there are none.
type Values string

// MarshalJSON returns the object.
func (v Values) MarshalJSON() ([]byte, error) { return []byte(v), nil }

// UnmarshalJSON takes an object, or nothing from what is none.
func (v *Values) UnmarshalJSON(text []byte) error {
	var object map[string]any
	if err := json.Unmarshal(text, &object); err != nil || len(object) == 0 {
		return err
	}
	plain, err := json.Marshal(object)
	*v = Values(plain)
	return err
}

// Code names a kind of finding. It is stable and in CamelCase, like a Kubernetes condition's reason.
type Code string

// Page is the address of the page that the documentation has about it.
func (c Code) Page() string {
	return "https://github.com/lasthop/lasthop/blob/main/docs/findings/" + string(c) + ".md"
}

// Trait is what a kind of finding says, as far as the comparison of several nodes asks.
type Trait uint16

// The traits.
const (
	// Unheard: it says no more than that nothing comes back from beyond the node.
	Unheard Trait = 1 << iota
	// Astray: packets leave the node and do not get where they should. OnlySent: those that come to it do.
	Astray
	OnlySent
	// ByRoute: a route to the range of pods that are the peers is missing, or leads elsewhere. Foreign: it leads to this node.
	ByRoute
	Foreign
	// ByNextHop: it is about a next hop, and all that goes by it is lost.
	ByNextHop
	// Vacant: it says what leads to an address that nobody has.
	Vacant
	// Unknown: nobody knows the cause.
	Unknown
)

// Finding is one cause of lost traffic.
type Finding struct {
	Code       Code
	Severity   Severity
	Confidence Confidence
	// Pods are the addresses of the pods concerned, sorted.
	Pods []netip.Addr
	// Peers are the other ends: prefixes, a single address as its host prefix.
	Peers []netip.Prefix
	// LastHopAlive is the last place where the traffic was seen right.
	LastHopAlive Place
	Title        string
	Why          string
	Evidence     []Evidence
	// Unseen is what would have settled the matter and was not there to see.
	Unseen       []string
	Alternatives []string
	// Surer are the means to learn what is unseen, and which of the alternatives it is.
	Surer []Means `json:",omitempty"`
	// Fix are commands that end the loss, or a sentence where none is known. Next are what to do first where nothing is
	// known to end it.
	Fix    []string
	Next   []string `json:",omitempty"`
	Verify string
	// Packets is how many were lost in the window, 0 when not counted.
	Packets uint64
	// ByTables: no packet of the window is concerned. The node's tables say what would become of some.
	ByTables bool `json:",omitzero"`
	// Nodes are those whose observations show it, that of LastHopAlive first; empty where one node alone was observed.
	Nodes []string `json:",omitempty"`
	// Opened and Closed are when it was first and last seen in a window that was judged
	// all along. Opened is zero if it was there before, Closed if it was there at the end.
	// Times is how often it was there, 0 if the window was judged as a whole only.
	Opened time.Time `json:",omitzero"`
	Closed time.Time `json:",omitzero"`
	Times  int       `json:",omitzero"`
	// Mended: it closed as the configuration changed, which no longer has the cause.
	Mended bool `json:",omitzero"`
	// EndsAt are the kinds of hop at which the packets end, the likeliest first; nil where the tables and counts say.
	// Passes: they do not end. Both are the catalogue's, and no document holds them.
	// Traits are too.
	EndsAt []HopKind `json:"-"`
	Passes bool      `json:"-"`
	Traits Trait     `json:"-"`
	// Cause names the object whose state is the cause, as far as it is known: a rule, a link, an entry. It tells findings
	// of one code apart, and no document holds it.
	Cause string `json:",omitempty"`
	// Rows are the routes that the fix gives to the network. No document holds them.
	Rows []Row `json:"-"`
}

// Is reports whether the finding has all of some traits.
func (f *Finding) Is(traits Trait) bool { return f.Traits&traits == traits }

// Made is the evidence of who made what the finding is about; none where that is not known.
func (f *Finding) Made() []Evidence {
	return Filter(f.Evidence, func(e Evidence) bool { return e.Source == SourceChanges })
}

// Silent reports whether it says that nothing comes back, and no object whose state is the cause.
func (f *Finding) Silent() bool { return f.Is(Unheard) && !f.Is(Astray) && f.Cause == "" }

// Key tells findings of different causes apart.
type Key struct {
	Code  Code
	Cause string
}

// Key is the same for findings of one code about one object.
func (f *Finding) Key() Key { return Key{f.Code, f.Cause} }

// Same reports whether two findings are one, perhaps of different times: they have the same key, and the same pods or
// peers are concerned. Where the object is not known, pods and peers define it, and some of both are the same.
func (f *Finding) Same(g *Finding) bool {
	if f.Key() != g.Key() || !Meet(f.Nodes, g.Nodes) {
		return false
	}
	pods, peers := Meet(f.Pods, g.Pods), Meet(f.Peers, g.Peers)
	return pods && peers || f.Cause != "" && (pods || peers)
}

// Meet reports whether two lists have an element in common, or are both empty.
func Meet[T comparable](a, b []T) bool {
	return len(a) == 0 && len(b) == 0 || slices.ContainsFunc(a, func(x T) bool { return slices.Contains(b, x) })
}

// Row is a route that the network beyond a node should have, to a range of pods. Without
// a Range it is the table that a subnet of Azure's should have.
type Row struct {
	Range netip.Prefix
	// Node is the node that has these pods, Hop its address, in the words of a fix.
	Node, Hop string
	// Update: the network has it with another next hop.
	Update bool
	// Azure: Table of the resource group Group has it, or Subnet of VNet should have Table; what is not known is empty.
	Azure                      bool
	Group, Table, VNet, Subnet string
}

// Concerns reports whether the finding is about one of the addresses. One that names no
// pod is about a node, and so about all on it.
func (f *Finding) Concerns(addrs []netip.Addr) bool {
	return len(f.Pods) == 0 || slices.ContainsFunc(addrs, func(a netip.Addr) bool {
		return slices.Contains(f.Pods, a) || slices.Contains(f.Peers, netip.PrefixFrom(a, a.BitLen()))
	})
}

// Verdict is what a snapshot comes to. On is the snapshot, Causes say of each of its drops, in
// their order, what made it. Silences are the pairs of addresses of which one got no reply.
type Verdict struct {
	On       *Snapshot
	Findings []Finding
	Causes   []DropCause
	Silences []Silence
}
