package model

import (
	"fmt"
	"net/netip"
	"slices"
	"strconv"
	"strings"
	"time"
)

// Role is a link's role for pod traffic.
type Role string

// The roles of a link.
const (
	RoleUplink  Role = "uplink"
	RoleBridge  Role = "bridge"
	RolePodLink Role = "podlink" // the host side of a pod's link
	RolePod     Role = "pod"     // inside the pod's namespace
	RoleTunnel  Role = "tunnel"
	RoleRouter  Role = "router" // cilium_host and the like
	RoleOther   Role = ""
)

// Link is one network interface in the node's namespace.
type Link struct {
	Index int
	Name  string `redact:"link"`
	// Kind is the kernel's link kind (veth, bridge, vxlan), empty for a hardware device.
	Kind string `redact:"keep"`
	MAC  MAC
	MTU  int
	// NoARP: it neither asks nor answers for MACs.
	NoARP bool `json:",omitempty"`
	// Up is the administrative flag, Carrier the operational state.
	Up, Carrier bool
	// Master is the index of the bridge or bond that the link is a port of, 0 for none.
	Master int
	// Peer is the index of a veth's other end. PeerNetNSID is its namespace
	// ID (nsid) in the node's namespace, -1 if both ends are in that.
	Peer, PeerNetNSID int
	// Hairpin is a bridge port's flag to send frames back out of their port.
	Hairpin bool
	// Port holds the other settings of a bridge's port, Bridge those of a
	// bridge; nil for other links, and where they were not read.
	Port   *BridgePort
	Bridge *Bridge
	// VLANs are those of a port, or of the bridge as a port of its own; nil
	// where the bridge does not filter by VLAN, or they were not read.
	VLANs *VLANs
	// TunnelPort is the UDP port to which a VXLAN or Geneve sends, 0 of other links.
	TunnelPort uint16 `json:",omitzero"`
	// Engine is the program whose containers a bridge connects, Docker or Podman; empty for other links.
	Engine    string `json:",omitzero" redact:"keep"`
	Promisc   bool
	Role      Role
	Addresses []netip.Prefix
	// Since is when each of Addresses was seen first, and from then on; empty where they were not followed.
	Since []time.Time `json:",omitzero"`
	// Duplicates are those of Addresses that the kernel does not use, since another
	// machine answered for them (dadfailed). They are IPv6.
	Duplicates []netip.Addr
	// XDP are the IDs of the XDP programs: native, generic, offloaded.
	XDP []uint32
}

// Counted reports whether packets of one of the link's addresses are counted apart. Those of services, which kube-proxy
// in IPVS mode puts on a dummy link, are not: no packet has one as its source.
func (l *Link) Counted(p netip.Prefix) bool {
	return p.Addr().IsGlobalUnicast() && !((l.Kind == "dummy" || l.Name == "lo") && p.IsSingleIP())
}

// Has reports whether the link has the address.
func (l *Link) Has(a netip.Addr) bool { return has(l.Addresses, a) }

// HasIPv4 reports whether the link has an address of IPv4.
func (l *Link) HasIPv4() bool {
	return slices.ContainsFunc(l.Addresses, func(p netip.Prefix) bool { return p.Addr().Is4() })
}

func has(addrs []netip.Prefix, a netip.Addr) bool {
	return slices.ContainsFunc(addrs, func(p netip.Prefix) bool { return p.Addr() == a })
}

// PortState is a bridge port's state in the words of bridge(8). Ports have one without STP too.
type PortState string

// The states. Only a forwarding port passes frames on.
const (
	PortDisabled   PortState = "disabled"
	PortListening  PortState = "listening"
	PortLearning   PortState = "learning"
	PortForwarding PortState = "forwarding"
	PortBlocking   PortState = "blocking"
)

// BridgePort are settings of a link that is a port of a bridge.
type BridgePort struct {
	// State is empty where the kernel did not tell it.
	State PortState
	// Settling is set while the kernel's forward delay runs, after which the state advances.
	Settling bool
	// Isolated ports exchange no frames with each other.
	Isolated bool
	// Learning: the bridge learns MACs from frames that come in. Flood and
	// BroadcastFlood: the port gets frames for unknown MACs, and broadcasts.
	Learning, Flood, BroadcastFlood bool
	// MulticastOff: it gets no multicasts, but of groups that were joined there.
	MulticastOff bool
	// Locked: frames come in only from MACs that have a forwarding entry at the port (Linux 5.18).
	Locked bool
}

// Bridge are settings of a bridge.
type Bridge struct {
	// STP is set where the kernel, or a daemon, runs the spanning tree protocol.
	STP           bool
	VLANFiltering bool
	// Snooping: it sends multicasts to the ports alone that joined their group, while somebody asks for members.
	Snooping bool
}

// VLANs are those that a port of a bridge allows.
type VLANs struct {
	// PVID is the VLAN of frames that come in untagged; 0: they are dropped.
	PVID   int
	Ranges []VLANRange
}

// VLANRange is a range of VLANs, both ends included.
type VLANRange struct{ First, Last int }

// Queue is the queueing discipline at a link's root. It queues what the hook at the
// link's egress has counted; what it drops is not sent.
type Queue struct {
	IfIndex int
	Link    string `redact:"link"`
	// Kind is the kernel's: tbf, fq_codel, …
	Kind string `redact:"keep"`
	// Handle is as tc prints it, such as 8001:, and 0: without one.
	Handle string `redact:"keep"`
	// Rate in bytes a second and Burst in bytes are those of a tbf. Limit is in bytes
	// for a tbf, in packets for other kinds. 0: none, or not known.
	Rate, Burst, Limit uint64
	// Sent and Drops are the kernel's totals of packets, Backlog those waiting now.
	Sent, Drops, Backlog uint64
	// SentDelta and DropsDelta are what was added in the window.
	SentDelta, DropsDelta uint64
}

// RateText is the rate in bits a second, as people say it.
func (q *Queue) RateText() string {
	n, unit := float64(q.Rate)*8, ""
	for _, next := range []string{"k", "M", "G"} {
		if n >= 1000 {
			n, unit = n/1000, next
		}
	}
	return strconv.FormatFloat(n, 'f', -1, 64) + " " + unit + "bit/s"
}

// String is the queue as tc(8) prints it.
func (q *Queue) String() string {
	return strings.TrimSpace(fmt.Sprintf("qdisc %s %s dev %s root %s", q.Kind, q.Handle, q.Link, q.Settings()))
}

// Settings are those of the settings that are known, as tc(8) takes them.
func (q *Queue) Settings() string {
	switch {
	case q.Limit == 0:
		return ""
	case q.Kind == "tbf":
		return fmt.Sprintf("rate %dbit burst %db limit %db", q.Rate*8, q.Burst, q.Limit)
	}
	return fmt.Sprintf("limit %d", q.Limit)
}

// Route is one entry of any routing table.
type Route struct {
	Table int
	// Dst is the destination, 0.0.0.0/0 or ::/0 for a default route.
	Dst netip.Prefix
	// Gateway is the next hop, zero for an on-link route.
	Gateway netip.Addr
	Src     netip.Addr
	IfIndex int
	Link    string `redact:"link"`
	// Type is unicast, local, blackhole, unreachable, prohibit, throw, …
	Type     string `redact:"keep"`
	Protocol string `redact:"keep"`
	Priority int
	// Nexthop is the number of the nexthop object (ip-nexthop(8)) that it is by, 0 for none.
	Nexthop uint32
	// NextHops are the other next hops of a multipath route, with Gateway and IfIndex only.
	NextHops []Route
}

// RoutingRule is one entry of `ip rule`.
type RoutingRule struct {
	Family     int // 4 or 6
	Priority   int
	From, To   netip.Prefix
	In, Out    string `redact:"link"`
	Mark, Mask uint32
	Table      int
	// Action is lookup, blackhole, unreachable, prohibit or goto.
	Action string `redact:"keep"`
	// Goto is the priority of the rule to continue at.
	Goto int
	Not  bool
	// Proto, SrcPorts and DstPorts select a protocol and its ports, zero for any.
	Proto              uint8
	SrcPorts, DstPorts PortRange
	// MinBits is the least prefix length of the routes that it takes from its table: suppress_prefixlength and one.
	MinBits int
	// Unknown names further selectors, which the fields do not express.
	Unknown []string `redact:"keep"`
}

// Neighbor is one entry of the neighbour table.
type Neighbor struct {
	Addr    netip.Addr
	MAC     MAC
	IfIndex int
	Link    string `redact:"link"`
	// State is the kernel's NUD state: PERMANENT, REACHABLE, STALE, FAILED, …
	State string `redact:"keep"`
	Proxy bool
}

// FDBEntry is one learnt or static entry of a bridge's forwarding database.
type FDBEntry struct {
	MAC MAC
	// IfIndex is the port, Bridge its bridge.
	IfIndex int
	Bridge  int
	VLAN    int
	// Local says that frames for it go to the node, as for the port's own address. Static says that somebody wrote the
	// entry for the port. An entry that is neither was learnt.
	Local, Static bool
	// End is where a tunnel sends frames for the MAC. Such an entry has no bridge.
	End netip.Addr `json:",omitzero"`
}

// Pod is one network namespace with a link to the node.
type Pod struct {
	// Namespace, Name and UID are those of Kubernetes, empty if no source has them.
	Namespace string `redact:"ns"`
	Name      string `redact:"pod"`
	UID       string `redact:"uid"`
	// Engine is that of the bridge: this is a container of Docker's or Podman's beside Kubernetes' pods. Empty for a pod.
	Engine string `json:",omitzero" redact:"keep"`
	// Labels are those of the Kubernetes API, nil where it was not asked.
	Labels map[string]string
	// Addresses are the global addresses of its interface, IPv4 first.
	Addresses []netip.Prefix
	// Duplicates are those of Addresses that failed duplicate address detection.
	Duplicates []netip.Addr
	// Given are addresses that the node's tables or the plugin's files give to the
	// pod, or that its interface had before, and that no pod's interface has now.
	Given []netip.Addr
	MAC   MAC
	// Interface is the name inside the pod, Link the name of the pod link.
	Interface string `redact:"link"`
	Link      string `redact:"link"`
	LinkIndex int
	LinkMAC   MAC
	// MTU is that of Interface, 0 where it was not read.
	MTU int `json:",omitempty"`
	// Netns is the inode of the pod's namespace, NetnsName its name or path if it has one.
	Netns     uint32
	NetnsName string `redact:"netns"`
	// NetnsCookie is the namespace's cookie (SO_NETNS_COOKIE in socket(7)), which no other
	// namespace has until the next boot; 0 before Linux 5.14.
	NetnsCookie uint64
	Up          bool
	// Gateways are the next hops of the pod's default routes, with the pod's neighbour entry for each (zero MAC: none).
	Gateways []Neighbor
	// Routes are those of the namespace's main table by the interface, Elsewhere
	// the destinations that it routes by other links, or discards.
	Routes    []Route
	Elsewhere []netip.Prefix
	// Rules are the namespace's routing rules before that of its main table, Tables the routes of those that they lead to.
	Rules  []RoutingRule `json:",omitempty"`
	Tables []Route       `json:",omitempty"`
	// Backlog is nil where it was not read.
	Backlog *Backlog
	// Inside is what was read of the pod's namespace beside that, since packets were lost
	// there; nil where it was not read.
	Inside *Inside
	// Resolver is nil where it was not read: it is where the pod's requests were lost.
	Resolver *Resolver
	// Since and Until are when the pod was first and last seen.
	Since, Until time.Time
	// Watched is since when its packets are counted, zero where they are not, or that is not known.
	Watched time.Time `json:",omitzero"`
}

// Late reports whether its packets were counted in a part of a window alone, which began then.
func (p *Pod) Late(w Window) bool { return p.Watched.After(w.Start) }

// Has reports whether the pod's interface has the address.
func (p *Pod) Has(a netip.Addr) bool { return has(p.Addresses, a) }

// Discards reports whether routes and rules of a type discard packets.
func Discards(routeType string) bool {
	return routeType == "blackhole" || routeType == "unreachable" || routeType == "prohibit"
}

// PrefixRoute reports whether a pod's address came with a route to its network on the link.
func (p *Pod) PrefixRoute(a netip.Prefix) bool {
	return slices.ContainsFunc(p.Routes, func(r Route) bool { return r.Dst == a.Masked() && !r.Gateway.IsValid() })
}

// NextHops are those of the pod's routes. Of those that no default route has, the entry is not known.
func (p *Pod) NextHops() []Neighbor {
	out := slices.Clone(p.Gateways)
	for r := range Each(p.Routes) {
		known := func(n Neighbor) bool { return n.Addr == r.Gateway }
		if r.Gateway.IsValid() && !slices.ContainsFunc(out, known) {
			out = append(out, Neighbor{Addr: r.Gateway})
		}
	}
	return out
}

// Known are the addresses that the pod is known by: its interface's, and those given to it.
func (p *Pod) Known() []netip.Addr { return append(Map(p.Addresses, netip.Prefix.Addr), p.Given...) }

// Inside is what decides in a pod's namespace on what comes to it or leaves it.
type Inside struct {
	// PacketRules, Chains and Sets are netfilter's. They are read once: their counters are the
	// kernel's totals, and one that is not zero is Restarted.
	PacketRules []PacketRule
	Chains      []Chain
	Sets        []Set
	// Loopback are the sockets that take what comes to a loopback address alone.
	Loopback []Socket
}

// Resolver is where programs in a pod ask for names, by their /etc/resolv.conf.
type Resolver struct {
	Servers []netip.Addr
	By      ResolverBy
}

// ResolverBy is who wrote a resolv.conf, by its form.
type ResolverBy string

// Who writes one. By others it is where a pod has dnsPolicy None, or its image a file.
const (
	// ResolverCluster: it has domains of services to search, as kubelet writes them beside the
	// address of the cluster's DNS (ClusterFirst).
	ResolverCluster ResolverBy = "cluster"
	// ResolverNode: it has the node's own servers (Default).
	ResolverNode ResolverBy = "node"
)

// Socket is one that anybody who reaches its address may send to.
type Socket struct {
	// Proto is the IP protocol number.
	Proto uint8
	Addr  netip.AddrPort
}

// Backlog says how the TCP listeners of a pod keep up with new connections.
type Backlog struct {
	// Overflows is how often a connection found a listener's queue full: the kernel's total of the pod's namespace (TcpExt
	// ListenOverflows). Delta is what was added in the window.
	Overflows, Delta uint64
	// Waiting are the listeners with connections that nobody has accepted yet. They
	// are listed only if Overflows is not zero.
	Waiting []Listener
}

// Listener is a listening TCP socket and the number of connections that wait to be accepted.
type Listener struct {
	Addr  netip.AddrPort
	Queue uint32
}

// Tuple is one direction of a connection-tracking entry. For ICMP the ports are zero.
type Tuple struct {
	Src, Dst         netip.Addr
	SrcPort, DstPort uint16
}

// Flow is one connection-tracking entry.
type Flow struct {
	// Proto is the IP protocol number.
	Proto uint8
	// Original is the tuple of the first packet, Reply that of expected replies. They show the address translation.
	Original, Reply Tuple
	// Replied is IPS_SEEN_REPLY: a reply was seen.
	Replied bool
	Assured bool
	// State is the TCP state, empty for other protocols.
	State string `redact:"keep"`
	// Timeout is the time until the entry expires.
	Timeout time.Duration
	// Start is when lasthop first listed the flow, zero if it was there at the start.
	Start time.Time
	Mark  uint32
	Zone  uint16
}

// Established reports whether both ends of a TCP connection got packets of the other.
func (f *Flow) Established() bool { return f.Proto == TCP && (f.Assured || f.State == "ESTABLISHED") }

// Conntrack is the size of the conntrack table and its statistics, summed over
// CPUs. The statistics are differences over the window.
type Conntrack struct {
	Count, Max                                uint64
	InsertFailed, Drop, EarlyDrop, Invalid    uint64
	SearchRestart, Found, Insert, ErrorPacket uint64
}
