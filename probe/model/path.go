package model

import (
	"cmp"
	"net/netip"
	"slices"
	"strconv"
)

// Count is a number of packets that may be unknown.
type Count struct {
	N     uint64
	Known bool
}

// Counted returns a known count.
func Counted(n uint64) Count { return Count{N: n, Known: true} }

// HopKind is what a hop of a path does with a packet.
type HopKind string

// The kinds of hops, in the order in which a packet from a pod meets them.
const (
	HopPod       HopKind = "pod"      // the pod's own routes and neighbours
	HopLink      HopKind = "link"     // a link that the packet crosses
	HopQueue     HopKind = "queue"    // the queueing discipline of a link that the packet leaves by
	HopBridge    HopKind = "bridge"   // a bridge with its frame rules
	HopConntrack HopKind = "nat"      // connection tracking and address translation
	HopPolicy    HopKind = "policy"   // netfilter's filter rules
	HopRoute     HopKind = "route"    // routing rules and routes
	HopNeighbor  HopKind = "neighbor" // the next hop's MAC
	HopLocal     HopKind = "local"    // delivered to the node itself
	HopBeyond    HopKind = "beyond"   // what this node cannot see
	HopBetween   HopKind = "between"  // what lies between two nodes that were watched
)

// PathHop is one hop of a path: the decision of the node's tables, and the packets counted there.
type PathHop struct {
	// N is the number of the hop in its direction, from 1.
	N int
	// Node has the hop; empty between nodes, and where one node alone was watched.
	Node string
	Kind HopKind
	Role Role
	// Link is empty if the hop has none.
	Link string
	// In, Out and Lost are packets in the window, unknown if the hop was not
	// watched or its counters include other packets.
	In, Out, Lost Count
	// Decision is the decision in words: "via 10.240.0.1 dev eth0". Reason names what ends the
	// packets here by the tables: "no-route"; empty where nothing does.
	Decision, Reason string
	// Passes: the tables let packets on here, or leave that open. Unanswered is how many left for what is beyond, of which none got a reply.
	Passes     bool
	Unanswered uint64
	// Rules are the rules, routes and entries that decide, in the syntax of ip, iptables and nft.
	Rules []string
	// Dead says that packets end here, by the tables or by the counters.
	Dead bool
	// Finding is the code of the finding at this hop, if any.
	Finding Code
}

// Counted is what came to the hop or, where that is not known, left it.
func (h *PathHop) Counted() Count { return Either(h.In.Known, h.In, h.Out) }

// Path is the forward path from a pod to a destination, and the return path.
type Path struct {
	Pod, To netip.Addr
	// Port and Proto are 0 if unknown.
	Port  uint16
	Proto uint8
	// Pair says that hops count only packets between Pod and To, not all packets of the pod.
	Pair            bool
	Forward, Return []PathHop
}

// ProtoName returns the name of an IP protocol, or its number.
func ProtoName(n uint8) string {
	return cmp.Or(map[uint8]string{1: "icmp", 6: "tcp", 17: "udp", 58: "icmpv6", 132: "sctp"}[n], strconv.Itoa(int(n)))
}

// Name returns the hop's name for lists.
func (h *PathHop) Name() string {
	name := map[HopKind]string{
		HopPod: "pod", HopLink: "link", HopQueue: "queue", HopBridge: "bridge", HopConntrack: "conntrack / nat", HopPolicy: "filter rules",
		HopRoute: "route", HopNeighbor: "neighbour", HopLocal: "this node", HopBeyond: "beyond", HopBetween: "between the nodes",
	}[h.Kind]
	name = cmp.Or(name, string(h.Kind))
	if h.Kind == HopLink && h.Role == RoleUplink {
		name = "uplink"
	}
	return Either(h.Link == "" || h.Kind == HopNeighbor, name, name+" "+h.Link)
}

// Dead returns the first hop at which packets end, on the forward path or else the return path; nil if there is none, or no path.
func (p *Path) Dead() *PathHop {
	if p == nil {
		return nil
	}
	dead := func(h *PathHop) bool { return h.Dead }
	return cmp.Or(First(p.Forward, dead), First(p.Return, dead))
}

// Has reports whether a finding has its place on the path, or names both ends.
func (p *Path) Has(f *Finding) bool {
	names := func(a, b netip.Addr) bool {
		return slices.Contains(f.Pods, a) && slices.ContainsFunc(f.Peers, func(x netip.Prefix) bool { return x.Contains(b) })
	}
	return names(p.Pod, p.To) || names(p.To, p.Pod) ||
		slices.ContainsFunc(slices.Concat(p.Forward, p.Return), func(h PathHop) bool { return h.Finding == f.Code })
}
