package model

import (
	"net/netip"
	"time"
)

// Snapshot is everything that is known of one node over one window. It is
// immutable once published.
type Snapshot struct {
	Node    Node
	Window  Window
	Sources []Source

	Links     []Link
	Routes    []Route
	Rules     []RoutingRule
	Neighbors []Neighbor
	FDB       []FDBEntry
	Sysctls   []Sysctl

	// Pods are those alive at the window's end; PastPods were seen during
	// the window and are gone.
	Pods     []Pod
	PastPods []Pod

	FrameRules  []FrameRule
	PacketRules []PacketRule
	Chains      []Chain

	Flows     []Flow
	Conntrack Conntrack

	// Programs are those attached to the node's links, then to those of its
	// pods, then to cgroups.
	Programs []Program

	Cluster Cluster
	Traffic Traffic
	// Probes are those that lasthop sent, after the window: no count above
	// holds one of their packets.
	Probes []Probe
	// Edges are further readings of the same counters.
	Edges Edges
}

// Window is the time over which packets were counted.
type Window struct {
	Start time.Time
	End   time.Time
}

// Duration is the window's length.
func (w Window) Duration() time.Duration { return w.End.Sub(w.Start) }

// Node is the machine, or the network namespace that stands for one.
type Node struct {
	Name   string
	Kernel string
	// Netns is the inode of the node's network namespace.
	Netns uint32
	// Plugin is the network plugin: kubenet, azure-bridge, …; "unknown"
	// when it could not be told.
	Plugin string
	// PluginBy is what the plugin was recognised by, for people.
	PluginBy []string
	// Policy and Residue are what is layered over the plugin, or left
	// from an earlier one: "calico", "azure-vnet". Empty: none seen.
	Policy  string
	Residue string
	// Engine is how packets were watched (tc, packet, state) and Attach
	// the mechanism (tcx, clsact).
	Engine string
	Attach string
	// Uplinks are the names of the links that lead off the node.
	Uplinks []string
}

// Status says how much of a source was read.
type Status string

// The statuses of a source.
const (
	OK      Status = "ok"
	Partial Status = "partial"
	Missing Status = "missing"
)

// Names of the sources. A finding asks Snapshot.Has for what it needs, so
// that an unread table is never taken for an empty one.
const (
	SourceLinks     = "links"
	SourceRoutes    = "routes"
	SourceNeighbors = "neighbors"
	SourceBridge    = "bridge"
	SourceSysctl    = "sysctl"
	SourceEbtables  = "ebtables"
	SourceNAT       = "iptables"
	SourceConntrack = "conntrack"
	SourcePods      = "pods"
	SourceFiles     = "files"
	SourceNodes     = "nodes"
	SourceCloud     = "cloud"
	SourceTC        = "tc"
	SourceDrops     = "drops"
	SourceProbes    = "probes"
	SourcePrograms  = "programs"
)

// Source is one origin of state and how much of it could be read.
type Source struct {
	Name   string
	Status Status
	// Detail says what was read, or why it was not and what would help.
	Detail string
}

// Status returns the status of the named source; Missing when it never
// reported.
func (s *Snapshot) Status(source string) Status {
	for _, src := range s.Sources {
		if src.Name == source {
			return src.Status
		}
	}
	return Missing
}

// Has reports whether every named source was read whole.
func (s *Snapshot) Has(sources ...string) bool {
	for _, name := range sources {
		if s.Status(name) != OK {
			return false
		}
	}
	return true
}

// Cluster is what is known beyond the node.
type Cluster struct {
	// PodCIDRs are ranges of the cluster's pods as given (--pod-cidr) or
	// as written in the node's own rules and files. Empty: not known.
	PodCIDRs []netip.Prefix
	// Nodes come from `kubectl get nodes -o json`.
	Nodes []ClusterNode
	// Azure comes from what `az network … -o json` printed; SourceCloud says
	// whether anything was given.
	Azure Azure
}

// ClusterNode is one node of the cluster, as its API object says.
type ClusterNode struct {
	Name      string
	Addresses []netip.Addr
	// External are those of Addresses that are no next hop within the
	// virtual network.
	External []netip.Addr
	PodCIDRs []netip.Prefix
	// NoRoute is why the cloud's controller made no route for the node's
	// pods, empty where it does not complain. That it does not proves
	// nothing: it knows no association with a subnet.
	NoRoute string
}

// Sysctl is one kernel setting, its name with dots as sysctl(8) prints it.
// Link names keep their own dots as slashes, also as sysctl(8) does.
type Sysctl struct {
	Name  string
	Value string
}
