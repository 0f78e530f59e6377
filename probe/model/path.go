package model

import (
	"net/netip"
	"strconv"
)

// Count is a number of packets, or that it is not known.
type Count struct {
	N     uint64
	Known bool
}

// Counted is a known count.
func Counted(n uint64) Count { return Count{N: n, Known: true} }

// HopKind is what a hop of a path does with a packet.
type HopKind string

// The kinds of a hop, in the order of a packet that leaves a pod.
const (
	HopPod       HopKind = "pod"      // the pod's own routes and neighbours
	HopLink      HopKind = "link"     // a link that the packet passes
	HopBridge    HopKind = "bridge"   // a bridge with its frame rules
	HopConntrack HopKind = "nat"      // connection tracking and address translation
	HopPolicy    HopKind = "policy"   // netfilter's filter rules
	HopRoute     HopKind = "route"    // routing rules and routes
	HopNeighbor  HopKind = "neighbor" // the next hop's MAC
	HopLocal     HopKind = "local"    // delivered to the node itself
	HopBeyond    HopKind = "beyond"   // what no one can see from this node
)

// PathHop is one step of a packet's way: what the node's tables will do, and
// beside it what was counted.
type PathHop struct {
	// N numbers the hops of one direction from 1.
	N    int
	Kind HopKind
	Role Role
	// Link is the link concerned, empty where there is none.
	Link string
	// In, Out and Lost are packets of the window. Unknown where the hop was
	// not watched or does not tell its own packets from others'.
	In, Out, Lost Count
	// Decision is what the tables say, in words: "via 10.240.0.1 dev eth0".
	Decision string
	// Rules are the rules, routes and entries that decide, as the tools of
	// the field print them.
	Rules []string
	// Dead says that the packets end here, by prediction or by count.
	Dead bool
	// Finding is the code of the finding whose place is here, if any.
	Finding Code
}

// Path is the way of one pod's packets to one destination, and back.
type Path struct {
	Pod netip.Addr
	To  netip.Addr
	// Port and Proto are 0 where they are not known.
	Port  uint16
	Proto uint8
	// Pair says that hops count the packets between Pod and To alone, rather
	// than all of the pod's.
	Pair            bool
	Forward, Return []PathHop
}

// ProtoName is what people call a transport protocol, its number where it has
// no name here.
func ProtoName(n uint8) string {
	switch n {
	case 1:
		return "icmp"
	case 6:
		return "tcp"
	case 17:
		return "udp"
	case 58:
		return "icmpv6"
	case 132:
		return "sctp"
	}
	return strconv.Itoa(int(n))
}

// Name is what the hop is called in a list.
func (h *PathHop) Name() string {
	name := map[HopKind]string{
		HopPod: "pod", HopLink: "link", HopBridge: "bridge", HopConntrack: "conntrack / nat", HopPolicy: "filter rules",
		HopRoute: "route", HopNeighbor: "neighbour", HopLocal: "this node", HopBeyond: "beyond",
	}[h.Kind]
	if name == "" {
		name = string(h.Kind)
	}
	if h.Kind == HopLink && h.Role == RoleUplink {
		name = "uplink"
	}
	if h.Link == "" || h.Kind == HopNeighbor {
		return name
	}
	return name + " " + h.Link
}

// Dead is the first hop at which packets end, on the way out or back; nil where
// there is none.
func (p *Path) Dead() *PathHop {
	for _, way := range [][]PathHop{p.Forward, p.Return} {
		for i := range way {
			if way[i].Dead {
				return &way[i]
			}
		}
	}
	return nil
}
