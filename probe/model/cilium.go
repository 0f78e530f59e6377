package model

import (
	"cmp"
	_ "embed"
	"fmt"
	"net/netip"
	"strings"
	"sync"
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
	// Counts are the packets that they dropped, by reason, on this node (cilium_metrics).
	Counts []CiliumCount
	// Untranslated are the families (4, 6) for which its configuration turns masquerading off.
	Untranslated []int `json:",omitempty"`
}

// CiliumEndpoint is a pod as the agent has it.
type CiliumEndpoint struct {
	ID        uint16
	Identity  CiliumIdentity
	Labels    []string `redact:"label"`
	Namespace string   `redact:"ns"`
	Name      string   `redact:"pod"`
	IfIndex   int
	Addresses []netip.Addr
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

// ClosedPort reports whether an address is a service's, but not at a port.
func (c *Cilium) ClosedPort(a netip.Addr, port uint16, proto uint8) bool {
	return port != 0 && c.Service(a, 0, 0) != nil && c.Service(a, port, proto) == nil
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
	// Name is the file's name, by the line information of the programs: which had its number (CiliumFiles) is not enough.
	Name string `redact:"keep"`
}

// Compare orders them.
func (c CiliumDrop) Compare(o CiliumDrop) int {
	return cmp.Or(cmp.Compare(c.Reason, o.Reason), cmp.Compare(c.Error, o.Error),
		cmp.Compare(c.SrcIdentity, o.SrcIdentity), cmp.Compare(c.DstIdentity, o.DstIdentity),
		cmp.Compare(c.Endpoint, o.Endpoint), cmp.Compare(c.File, o.File), cmp.Compare(c.Line, o.Line), cmp.Compare(c.Name, o.Name))
}

// Source is the line of Cilium's source. A file that no program's line information names has its number in place of a name.
func (c CiliumDrop) Source() string {
	return fmt.Sprintf("%s:%d", cmp.Or(c.Name, fmt.Sprintf("file %d", c.File)), c.Line)
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
	return cmp.Or(strings.Join(ciliumNames()[fmt.Sprintf("drop %d", uint8(r))], ""), fmt.Sprintf("reason %d", uint8(r)))
}

//go:embed cilium.txt
var ciliumText string

// ciliumNames are the names of Cilium's numbers: "drop 133: policy denied".
var ciliumNames = sync.OnceValue(func() map[string][]string {
	names := map[string][]string{}
	for line := range strings.Lines(ciliumText) {
		if number, name, ok := strings.Cut(strings.TrimSpace(line), ": "); ok {
			names[number] = With(names[number], name)
		}
	}
	return names
})

// CiliumFiles are the names that the numbers of pkg/monitor/api/files.go have had, up to 1.18 and from 1.19 on; none for
// an unknown number.
func CiliumFiles(number uint8) []string { return ciliumNames()[fmt.Sprintf("file %d", number)] }

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
	return strings.Join(ciliumNames()[fmt.Sprintf("identity %d", i)], "")
}

// World reports whether it is that of what is outside of the cluster.
func (i CiliumIdentity) World() bool { return i == 2 || i == 9 || i == 10 }
