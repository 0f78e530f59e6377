package model

import (
	"cmp"
	"errors"
	"iter"
	"net/netip"
	"slices"
	"time"
)

// Snapshot is the state and the counters of one node in one window. It is immutable once published.
type Snapshot struct {
	Node    Node
	Window  Window
	Sources []Source

	Links []Link
	// Queues are the queueing disciplines at the roots of the links.
	Queues []Queue
	// Devices are the uplinks and the other NICs. Softnet is by CPU.
	Devices        []Device
	Softnet        []Softnet
	NeighborTables []NeighborTable
	SocketLimits   []SocketLimit

	Routes    []Route
	Rules     []RoutingRule
	Neighbors []Neighbor
	FDB       []FDBEntry
	Sysctls   []Sysctl

	// Pods existed at the window's end, PastPods only earlier, in the window or the minute before: others ask on for them.
	Pods, PastPods []Pod

	FrameRules  []FrameRule
	PacketRules []PacketRule
	Chains      []Chain
	// Sets are those that PacketRules look something up in.
	Sets []Set

	Flows     []Flow
	Conntrack Conntrack

	// Programs are those of the node's links, then of pods' links, then of cgroups.
	Programs []Program
	Cilium   Cilium

	// Changes are the latest of the state since the observation began, oldest first. Only a continuous one has them.
	Changes []Change

	Cluster Cluster
	Traffic Traffic
	// Probes were sent after the window: no counter includes their packets.
	Probes []Probe
	// Edges are further readings of the counters in Traffic.
	Edges Edges
}

// Window is the time in which packets were counted.
type Window struct{ Start, End time.Time }

// Duration returns the window's length.
func (w Window) Duration() time.Duration { return w.End.Sub(w.Start) }

// settled is how long an answer may take that is not missing. Times of packets are those of polls, a second apart: a
// multiple of that would leave it to chance which side a time is on.
const settled = 750 * time.Millisecond

// Settled reports whether what was asked at a time would have been answered within the window.
func (w Window) Settled(asked time.Time) bool { return !asked.After(w.End.Add(-settled)) }

// Lasted reports whether something went on for more than a moment: for two polls and the second between them.
func Lasted(first, last time.Time) bool { return last.Sub(first) >= 2*settled }

// Node is the machine, or a network namespace in its place.
type Node struct {
	Name   string `redact:"node"`
	Kernel string `redact:"keep"`
	// InPod says that lasthop ran in a container on the node: the node's own tools and files are elsewhere.
	InPod bool
	// Netns is the inode of the node's network namespace.
	Netns uint32
	// Plugin is the network plugin: kubenet, azure-bridge, …, or "unknown".
	Plugin string `redact:"keep"`
	// PluginBy are the signs of the plugin, in words.
	PluginBy []string `redact:"withhold"`
	// Policy is what enforces network policies beside the plugin ("calico"), Residue the earlier plugin whose state
	// remains ("azure-vnet"). Empty if none was recognised.
	Policy, Residue string `redact:"keep"`
	// Beside are the programs that made chains, rules or routes, by name.
	Beside []string `json:",omitzero" redact:"keep"`
	// Masquerades: the plugin's configuration says that the node translates what pods send to other networks.
	Masquerades bool `json:",omitzero"`
	// Bridge is the name of the pods' bridge by the plugin's configuration; empty for none.
	Bridge string `json:",omitzero" redact:"link"`
	// PassedBy is set where BPF programs forward pods' packets past netfilter (Cilium's eBPF host routing).
	PassedBy bool `json:",omitzero"`
	// Engine is how packets were counted: tc, or state if they were not.
	// Attach is the mechanism that attached the programs: tcx or clsact.
	Engine, Attach string `redact:"keep"`
	// Uplinks are the names of the links that lead off the node.
	Uplinks []string `redact:"link"`
	// Networkd is nil where systemd-networkd does not manage links.
	Networkd *Networkd
}

// Networkd says what systemd-networkd takes away when it starts or a link changes, since no file
// of its own has it: routes, and routing rules.
type Networkd struct{ RemovesRoutes, RemovesRules bool }

// Status says how much of a source was read.
type Status string

// The statuses of a source.
const (
	OK      Status = "ok"
	Partial Status = "partial"
	Missing Status = "missing"
)

// Names of the sources. A check calls Snapshot.Has for the sources that it needs,
// so that a table that was not read is not taken for an empty one.
const (
	SourceLinks     = "links"
	SourceQueues    = "qdiscs"
	SourceStats     = "stats"
	SourceRoutes    = "routes"
	SourceNeighbors = "neighbors"
	SourceBridge    = "bridge"
	SourceSysctl    = "sysctl"
	SourceEbtables  = "ebtables"
	SourceNAT       = "iptables"
	SourceConntrack = "conntrack"
	SourcePods      = "pods"
	SourceNames     = "names"
	SourceFiles     = "files"
	SourceNodes     = "nodes"
	SourceCloud     = "cloud"
	SourceTC        = "tc"
	SourceDrops     = "drops"
	SourceProbes    = "probes"
	SourcePrograms  = "programs"
	SourceCilium    = "cilium"
	SourceChanges   = "changes"
)

// Source says how much of one kind of state could be read.
type Source struct {
	Name   string `redact:"keep"`
	Status Status
	// Detail says what was read, or why it was not and what would help.
	Detail string `redact:"withhold"`
}

// Status returns the status of the named source, Missing if there is none.
func (s *Snapshot) Status(source string) Status {
	return cmp.Or(Find(s.Sources, func(x Source) bool { return x.Name == source }).Status, Missing)
}

// Has reports whether every named source was read completely.
func (s *Snapshot) Has(sources ...string) bool {
	return !slices.ContainsFunc(sources, func(name string) bool { return s.Status(name) != OK })
}

// Cluster is what is known beyond the node.
type Cluster struct {
	// PodCIDRs are the cluster's pod ranges, from --pod-cidr or from the node's rules and files. Empty if unknown.
	PodCIDRs []netip.Prefix
	// Nodes come from `kubectl get nodes -o json`, Pods from `kubectl get pods -A
	// -o json`, without those in a node's network.
	Nodes []ClusterNode
	Pods  []ClusterPod
	// Azure comes from output of `az network … -o json`. SourceCloud says whether any was given.
	Azure Azure
}

// ClusterNode is one node of the cluster, from its API object.
type ClusterNode struct {
	Name      string `redact:"node"`
	Addresses []netip.Addr
	// External are the Addresses that cannot be a next hop within the virtual network.
	External []netip.Addr
	PodCIDRs []netip.Prefix
	// NoRoute is the reason in condition NetworkUnavailable why the cloud controller created no route to the node's pods.
	// An empty one proves nothing: the controller does not check the subnet's route table.
	NoRoute string `redact:"keep"`
}

// ClusterPod is a pod of the cluster, wherever it runs.
type ClusterPod struct {
	Namespace string `redact:"ns"`
	Name      string `redact:"pod"`
	Addresses []netip.Addr
}

// Sysctl is one kernel setting. Its name has dots, and slashes for the dots of a link's name, as in sysctl(8).
type Sysctl struct {
	Name  string `redact:"sysctl"`
	Value string `redact:"keep"`
}

// PodAddrs are the addresses of the pods there are.
func (s *Snapshot) PodAddrs() map[netip.Addr]bool {
	out := map[netip.Addr]bool{}
	for p := range Each(s.Pods) {
		for _, a := range p.Addresses {
			out[a.Addr()] = true
		}
	}
	return out
}

// DefaultGateways are the next hops of the default routes.
func (s *Snapshot) DefaultGateways() map[netip.Addr]bool {
	out := map[netip.Addr]bool{}
	for _, r := range s.Routes {
		if r.Dst.Bits() == 0 {
			out[r.Gateway] = true
			for _, h := range r.NextHops {
				out[h.Gateway] = true
			}
		}
	}
	return out
}

// With is a list with those of more elements that it has not.
func With[T comparable](list []T, more ...T) []T {
	for _, x := range more {
		if !slices.Contains(list, x) {
			list = append(list, x)
		}
	}
	return list
}

// GetOrInsert is a map's value for a key, made where it is not there yet.
func GetOrInsert[K comparable, V any](m map[K]*V, k K) *V {
	if m[k] == nil {
		m[k] = new(V)
	}
	return m[k]
}

// Include adds to one of several maps.
func Include[K, L comparable, V any](m map[K]map[L]V, k K, l L, v V) {
	if m[k] == nil {
		m[k] = map[L]V{}
	}
	m[k][l] = v
}

// Map is the list of what f makes of each element of another.
func Map[T, R any](list []T, f func(T) R) []R {
	out := make([]R, len(list))
	for i, x := range list {
		out[i] = f(x)
	}
	return out
}

// Flat is the list of all that f makes of each element of another.
func Flat[T, R any](list []T, f func(T) []R) []R {
	var out []R
	for _, x := range list {
		out = append(out, f(x)...)
	}
	return out
}

// Sum is the sum of what f counts of each element of a list.
func Sum[T any, N int | uint64 | float64](list []T, f func(T) N) (n N) {
	for _, x := range list {
		n += f(x)
	}
	return n
}

// SetOf has the elements of a list.
func SetOf[K comparable](list []K) map[K]bool {
	set := make(map[K]bool, len(list))
	for _, k := range list {
		set[k] = true
	}
	return set
}

// Table has an element of a list, as of makes it, by its key; the last one of several.
func Table[T any, K comparable, V any](list []T, of func(*T) (K, V)) map[K]V {
	table := make(map[K]V, len(list))
	for x := range Each(list) {
		k, v := of(x)
		table[k] = v
	}
	return table
}

// Grouped are the elements of a list by a key.
func Grouped[T any, K comparable](list []T, key func(*T) K) map[K][]*T {
	out := map[K][]*T{}
	for x := range Each(list) {
		k := key(x)
		out[k] = append(out[k], x)
	}
	return out
}

// Filter is a new list of those elements for which is holds.
func Filter[T any](list []T, is func(T) bool) []T {
	return slices.DeleteFunc(slices.Clone(list), func(x T) bool { return !is(x) })
}

// Split parts the elements of a list for which is holds from the others.
func Split[T any](list []T, is func(T) bool) (so, others []T) {
	for _, x := range list {
		if is(x) {
			so = append(so, x)
		} else {
			others = append(others, x)
		}
	}
	return so, others
}

// Find is the first element of a list for which is holds, the zero value for none.
func Find[T any](list []T, is func(T) bool) (none T) {
	if i := slices.IndexFunc(list, is); i >= 0 {
		return list[i]
	}
	return none
}

// First is the first element of a list for which is holds, nil for none.
func First[T any](list []T, is func(*T) bool) *T {
	for x := range Each(list) {
		if is(x) {
			return x
		}
	}
	return nil
}

// Chosen are those elements of a list for which is holds, as they stand in it.
func Chosen[T any](list []T, is func(*T) bool) []*T {
	var out []*T
	for x := range Each(list) {
		if is(x) {
			out = append(out, x)
		}
	}
	return out
}

// Commonest is the first element of a list of the shape that most of it have, and how many
// have that; the zero value for an empty list.
func Commonest[E any, K comparable](list []E, shape func(E) K) (best E, votes int) {
	n := map[K]int{}
	for _, e := range list {
		n[shape(e)]++
	}
	for _, e := range list {
		if x := n[shape(e)]; x > votes {
			best, votes = e, x
		}
	}
	return best, votes
}

// Unless is an error, but for one that does not matter.
func Unless(err, does error) error { return Either(errors.Is(err, does), nil, err) }

// Either is one of two values that are at hand: both are evaluated.
func Either[T any](is bool, yes, no T) T {
	if is {
		return yes
	}
	return no
}

// Each ranges over pointers to the elements of a list, for elements that are too large to copy.
func Each[T any](list []T) iter.Seq[*T] {
	return func(yield func(*T) bool) {
		for i := range list {
			if !yield(&list[i]) {
				return
			}
		}
	}
}

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

// ProbeKind is the kind of a probe's request.
type ProbeKind string

// The kinds of a probe.
const (
	ProbeEcho ProbeKind = "echo" // an ICMP echo request
	ProbeARP  ProbeKind = "arp"  // an ARP request
)

// Probe is a request that lasthop sends, with its result. A planned probe has no result.
type Probe struct {
	Kind ProbeKind
	// IfIndex and Link are the egress link.
	IfIndex int
	Link    string `redact:"link"`
	// From is an address of the node, To the target.
	From, To netip.Addr
	// SrcMAC is the link's MAC, DstMAC the next hop's, broadcast for ARP.
	SrcMAC, DstMAC MAC
	// Sent is the number of packets sent: a second if the first had no reply.
	Sent     int
	Answered bool
	// MACs are the senders of ARP replies, in order of arrival.
	MACs []MAC
	// RTT is the time to the first reply, 0 if there was none.
	RTT time.Duration
}
