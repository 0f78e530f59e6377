package model

import (
	"cmp"
	"fmt"
	"net/netip"
	"slices"
)

// Cilium is what its agent keeps on the node: its endpoints in files, and what its programs
// decide by in maps. It is zero on a node without Cilium; SourceCilium says how much was read.
type Cilium struct {
	Endpoints []CiliumEndpoint
	// Local are the addresses whose packets its programs hand to pods (cilium_lxc), Known the addresses and ranges whose
	// identities they know (cilium_ipcache); nil where the map was not read whole.
	Local []CiliumAddress
	Known []CiliumAddress
	// Services are what they translate (cilium_lb4_services, cilium_lb4_backends, and those of
	// IPv6), in the order of their addresses; nil where a map was not read whole.
	Services []CiliumService
	// Wildcards are addresses of services of which they drop what is for any other port (since Cilium 1.19).
	Wildcards []netip.Addr
	// Counts are the packets that they dropped, by reason, on this node (cilium_metrics).
	Counts []CiliumCount
}

// CiliumEndpoint is a pod as the agent has it.
type CiliumEndpoint struct {
	ID              uint16
	Identity        CiliumIdentity
	Labels          []string
	Namespace, Name string
	IfIndex         int
	Addresses       []netip.Addr
	// Quiet: its programs leave no reason in what they drop.
	Quiet bool
}

// CiliumAddress is what a map has for an address or range.
type CiliumAddress struct {
	Prefix   netip.Prefix
	Identity CiliumIdentity
	// Endpoint and IfIndex are those of a local pod.
	Endpoint uint16
	IfIndex  int
}

// CiliumService is an address and port with the backends that new connections are sent to.
type CiliumService struct {
	Addr     netip.AddrPort
	Proto    uint8 // 0 for any
	Backends []netip.AddrPort
	// Cluster: it is the address of a service within the cluster (ClusterIP). Local: pods of
	// this node alone may be its backends.
	Cluster, Local bool
}

// String is the service's address, port and protocol.
func (s CiliumService) String() string {
	return Either(s.Proto == 0, s.Addr.String(), s.Addr.String()+"/"+ProtoName(s.Proto))
}

// CiliumCount is how many packets were dropped for a reason.
type CiliumCount struct {
	Reason    CiliumReason
	Direction Direction // that of the endpoint, or none
	// Packets are all since the map was made, Delta those of the window.
	Packets, Delta uint64
}

// Numbered is the endpoint of a number, nil for none.
func (c *Cilium) Numbered(id uint16) *CiliumEndpoint {
	return First(c.Endpoints, func(e *CiliumEndpoint) bool { return e.ID == id && id != 0 })
}

// Labels are those of an identity by which a person knows it, nil where no endpoint here has it.
func (c *Cilium) Labels(id CiliumIdentity) []string {
	return Find(c.Endpoints, func(e CiliumEndpoint) bool { return e.Identity == id }).Labels
}

// Service is what an address is translated by; no port and no protocol stand for any. It is nil
// where no service has it.
func (c *Cilium) Service(a netip.Addr, port uint16, proto uint8) *CiliumService {
	return First(c.Services, func(s *CiliumService) bool {
		return s.Addr.Addr() == a && (port == 0 || s.Addr.Port() == port) && (s.Proto == 0 || proto == 0 || s.Proto == proto)
	})
}

// ClosedPort reports whether a port is no service's, of an address of which all other ports are dropped.
func (c *Cilium) ClosedPort(a netip.Addr, port uint16, proto uint8) bool {
	return port != 0 && slices.Contains(c.Wildcards, a) && c.Service(a, port, proto) == nil
}

// CiliumDrop is why a program of Cilium's dropped packets, as it left it in them. It is
// zero where none did, or where Cilium's drop notifications are off.
type CiliumDrop struct {
	Reason CiliumReason
	// Error is more about the reason, mostly an errno.
	Error int8
	// SrcIdentity and DstIdentity are the ends' security identities, 0 where the program did not know.
	SrcIdentity, DstIdentity CiliumIdentity
	// Endpoint is the number of the endpoint that the packets were for, 0 for those that
	// were dropped where they were sent.
	Endpoint uint16
	// File and Line are where in Cilium's source the program decided.
	File uint8
	Line uint16
	// Name is the file's name, by the line information of the programs, where several had its number (CiliumFiles).
	Name string
}

// Compare orders them.
func (c CiliumDrop) Compare(o CiliumDrop) int {
	return cmp.Or(cmp.Compare(c.Reason, o.Reason), cmp.Compare(c.Error, o.Error),
		cmp.Compare(c.SrcIdentity, o.SrcIdentity), cmp.Compare(c.DstIdentity, o.DstIdentity),
		cmp.Compare(c.Endpoint, o.Endpoint), cmp.Compare(c.File, o.File), cmp.Compare(c.Line, o.Line), cmp.Compare(c.Name, o.Name))
}

// Source is the line of Cilium's source. A file that may be one or another has its number in place of a name.
func (c CiliumDrop) Source() string {
	name := c.Name
	if files := CiliumFiles(c.File); name == "" && len(files) == 1 {
		name = files[0]
	}
	return fmt.Sprintf("%s:%d", cmp.Or(name, fmt.Sprintf("file %d", c.File)), c.Line)
}

// CiliumReason is a number of pkg/monitor/api/drop.go. Versions only add some.
type CiliumReason uint8

// The reasons that lasthop judges by.
const (
	CiliumPolicyDenied CiliumReason = 133
	CiliumNoBackend    CiliumReason = 158
	CiliumDeniedByRule CiliumReason = 181
)

// Denied reports whether a policy denied the packet: since nothing allows it, or by a rule.
func (r CiliumReason) Denied() bool { return r == CiliumPolicyDenied || r == CiliumDeniedByRule }

// NoTarget reports whether nobody is known to have the destination.
func (r CiliumReason) NoTarget() bool { return r >= 150 && r <= 152 }

// String is the reason as Cilium names it.
func (r CiliumReason) String() string {
	if name, ok := ciliumReasons[r]; ok {
		return name
	}
	return fmt.Sprintf("reason %d", uint8(r))
}

var ciliumReasons = map[CiliumReason]string{
	130: "invalid source MAC", 131: "invalid destination MAC", 132: "invalid source IP", 133: "policy denied",
	134: "invalid packet", 135: "CT: truncated or invalid header", 136: "fragmentation needed",
	137: "CT: unknown L4 protocol", 138: "CT: can't create entry from packet", 139: "unsupported L3 protocol",
	140: "missed tail call", 141: "error writing to packet", 142: "unknown L4 protocol", 143: "unknown ICMPv4 code",
	144: "unknown ICMPv4 type", 145: "unknown ICMPv6 code", 146: "unknown ICMPv6 type",
	147: "error retrieving tunnel key", 148: "error retrieving tunnel options", 149: "invalid Geneve option",
	150: "unknown L3 target address", 151: "stale or unroutable IP", 152: "no matching local container found",
	153: "error while correcting L3 checksum", 154: "error while correcting L4 checksum",
	155: "CT: map insertion failed", 156: "invalid IPv6 extension header", 157: "IP fragmentation not supported",
	158: "service backend not found", 160: "no tunnel endpoint", 161: "NAT 46/64 not enabled",
	162: "reached EDT rate-limiting drop horizon", 163: "unknown connection tracking state",
	164: "local host is unreachable", 165: "no configuration available to perform policy decision",
	166: "unsupported L2 protocol", 167: "no mapping for NAT masquerade",
	168: "unsupported protocol for NAT masquerade", 169: "FIB lookup failed",
	170: "encapsulation traffic is prohibited", 171: "invalid identity", 172: "unknown sender", 173: "NAT not needed",
	174: "is a ClusterIP", 175: "first logical datagram fragment not found", 176: "forbidden ICMPv6 message",
	177: "denied by LB source range check", 178: "socket lookup failed", 179: "socket assign failed",
	180: "proxy redirection not supported for protocol", 181: "policy denied by denylist",
	182: "VLAN traffic disallowed by VLAN filter", 183: "incorrect VNI from VTEP",
	184: "failed to update or look up TC buffer", 185: "no SID was found for the IP address",
	186: "SRv6 state was removed during tail call", 187: "L3 translation from IPv4 to IPv6 failed",
	188: "L3 translation from IPv6 to IPv4 failed", 189: "authentication required", 190: "no conntrack map found",
	191: "no NAT map found", 192: "invalid cluster ID", 193: "unsupported packet protocol for DSR encapsulation",
	194: "no egress gateway found", 195: "traffic is unencrypted", 196: "TTL exceeded", 197: "no node ID found",
	198: "rate limited", 199: "IGMP handled", 200: "IGMP subscribed", 201: "multicast handled",
	202: "host datapath not ready", 203: "endpoint policy program not available", 204: "no egress IP configured",
	205: "punt to proxy", 206: "no device", 207: "first fragment not found",
}

// CiliumFiles are the names that the numbers of pkg/monitor/api/files.go have had, up to 1.18 and from 1.19 on; none for
// an unknown number.
func CiliumFiles(number uint8) (names []string) {
	for _, files := range []map[uint8]string{ciliumHeaders118, ciliumHeaders119, ciliumPrograms} {
		if name := files[number]; name != "" {
			names = With(names, name)
		}
	}
	return names
}

var (
	ciliumPrograms = map[uint8]string{
		1: "bpf_host.c", 2: "bpf_lxc.c", 3: "bpf_overlay.c", 4: "bpf_xdp.c", 5: "bpf_sock.c", 6: "bpf_network.c", 7: "bpf_wireguard.c",
	}
	ciliumHeaders118 = map[uint8]string{
		101: "arp.h", 102: "drop.h", 103: "srv6.h", 104: "icmp6.h", 105: "nodeport.h", 106: "lb.h", 107: "mcast.h",
		108: "ipv4.h", 109: "conntrack.h", 110: "local_delivery.h", 111: "trace.h", 112: "encap.h", 113: "encrypt.h",
		114: "host_firewall.h", 115: "nodeport_egress.h", 116: "ipv6.h", 117: "classifiers.h",
	}
	ciliumHeaders119 = map[uint8]string{
		101: "drop.h", 102: "srv6.h", 103: "icmp6.h", 104: "nodeport.h", 105: "lb.h", 106: "mcast.h", 107: "ipv4.h",
		108: "conntrack.h", 109: "local_delivery.h", 110: "trace.h", 111: "encap.h", 112: "host_firewall.h",
		113: "nodeport_egress.h", 114: "ipv6.h", 115: "classifiers.h",
	}
)

// CiliumIdentity is the number that Cilium gives to all pods with the same labels, and to what is no pod.
type CiliumIdentity uint32

// Reserved is the name of an identity that has one in every cluster, empty for others.
func (i CiliumIdentity) Reserved() string {
	const scope, ranges, nodes = 0xff << 24, 1 << 24, 2 << 24
	switch i & scope {
	case ranges:
		return "a range of addresses"
	case nodes:
		return "a node by its labels"
	}
	return ciliumIdentities[i]
}

// World reports whether it is that of what is outside of the cluster.
func (i CiliumIdentity) World() bool { return i == 2 || i == 9 || i == 10 }

var ciliumIdentities = map[CiliumIdentity]string{
	1: "host", 2: "world", 3: "unmanaged", 4: "health", 5: "init", 6: "remote-node", 7: "kube-apiserver", 8: "ingress",
	9: "world-ipv4", 10: "world-ipv6", 11: "encrypted-overlay",
}
