package scenario

import (
	"encoding/binary"
	"fmt"
	"net/netip"
	"slices"

	"go.yaml.in/yaml/v3"
)

// Stack says which IP versions a cluster has.
type Stack string

// The stacks.
const (
	IPv4 Stack = "ipv4"
	IPv6 Stack = "ipv6"
	Dual Stack = "dual"
)

// Half is the IPv6 half of a dual-stack topology.
type Half struct {
	VNet, Subnet  netip.Prefix
	Gateway, Edge netip.Addr
	Outside       []netip.Addr
	PodCIDR       netip.Prefix
}

// rawHalf is what a file may say of it.
type rawHalf struct {
	stack         value[Stack]
	vnet, podCIDR value[netip.Prefix]
}

// azureRouter is the gateway that Azure announces to every machine by IPv6:
// link-local, and the same everywhere.
var azureRouter = netip.MustParseAddr("fe80::1234:5678:9abc")

// OnlyIPv6 reports whether there is no IPv4: the fields that else hold it hold
// IPv6.
func (t *Topology) OnlyIPv6() bool { return t.Subnet.Addr().Is6() }

// HasIPv6 reports whether there is IPv6, beside IPv4 or alone.
func (t *Topology) HasIPv6() bool { return t.Six != nil || t.OnlyIPv6() }

// V6 is the topology by its IPv6 addresses alone, those of nodes and pods too,
// in the fields that else hold IPv4; nil where there is no IPv6.
func (t *Topology) V6() *Topology {
	switch {
	case t.OnlyIPv6():
		return t
	case t.Six == nil:
		return nil
	}
	out := *t
	h := t.Six
	out.VNet, out.Subnet, out.Gateway, out.Edge, out.Outside = h.VNet, h.Subnet, h.Gateway, h.Edge, h.Outside
	out.PodCIDR, out.PodSubnet, out.Six = h.PodCIDR, netip.Prefix{}, nil
	out.Nodes = make([]Node, len(t.Nodes))
	for i := range t.Nodes {
		out.Nodes[i] = *t.Nodes[i].V6()
	}
	return &out
}

// withoutIPv4 is the topology without any IPv4.
func (t *Topology) withoutIPv4() Topology {
	out := *t.V6()
	for i := range out.Nodes {
		n := &out.Nodes[i]
		n.IP6, n.PodCIDR6, n.Router6, n.NonMasquerade6 = netip.Addr{}, netip.Prefix{}, netip.Addr{}, nil
		for j := range n.Pods {
			n.Pods[j].IP6 = netip.Addr{}
		}
	}
	return out
}

// Families are the topology by each of its IP versions.
func (t *Topology) Families() []*Topology {
	if six := t.V6(); six != nil && six != t {
		return []*Topology{t, six}
	}
	return []*Topology{t}
}

// V6 is the node by its IPv6 addresses.
func (n *Node) V6() *Node {
	if n.IP.Is6() {
		return n
	}
	out := *n
	out.IP, out.PodCIDR, out.Router, out.NonMasquerade = n.IP6, n.PodCIDR6, n.Router6, n.NonMasquerade6
	out.Pods, out.OldPods = slices.Clone(n.Pods), nil
	for i := range out.Pods {
		out.Pods[i] = *out.Pods[i].V6()
	}
	return &out
}

// V6 is the pod by its IPv6 address.
func (p *Pod) V6() *Pod {
	if p.IP.Is6() {
		return p
	}
	out := *p
	out.IP = p.IP6
	return &out
}

// hasIPv6 reports whether the lab knows what the plugin does for IPv6.
func (p Plugin) hasIPv6() bool {
	switch p {
	case Kubenet, AzureOverlay, AzureCilium, Cilium, Calico, Kindnet, Bridge, PTP:
		return true
	}
	return false
}

// dual gives all that has an IPv4 address an IPv6 one: with the same place in
// its range, so that none is there twice. Of a stack of IPv6 alone the IPv4
// addresses are these places and no more.
func (r *resolver) dual(raw rawTopology) {
	t := &r.s.Topology
	stack := raw.half.stack.or(IPv4)
	if stack == IPv4 {
		for _, only := range []value[netip.Prefix]{raw.half.vnet, raw.half.podCIDR} {
			if only.set() {
				r.errorf(only.at, "an IPv6 range wants stack: %s or %s", Dual, IPv6)
			}
		}
		return
	}
	h := &Half{
		VNet: raw.half.vnet.or(netip.MustParsePrefix("fd10:240::/48")), PodCIDR: raw.half.podCIDR.or(netip.MustParsePrefix("fd00:10:244::/56")),
		Edge: netip.MustParseAddr("2001:db8:203:113::1"), Gateway: azureRouter,
	}
	if h.VNet.Overlaps(h.PodCIDR) {
		r.errorf(raw.half.podCIDR.where(raw.half.stack.at), "podCIDR6 %s overlaps vnet6 %s", h.PodCIDR, h.VNet)
	}
	h.Subnet = netip.PrefixFrom(h.VNet.Addr(), max(64, h.VNet.Bits()))
	if t.Switched {
		h.Gateway = place(h.Subnet, t.Subnet, t.Gateway)
	}
	for i := range t.Outside {
		h.Outside = append(h.Outside, nth(netip.MustParsePrefix("2001:db8:203:113::/64"), uint64(16+i)))
	}
	t.Six = h
	bits := 64
	if h.PodCIDR.Bits() > 56 {
		bits = h.PodCIDR.Bits() + 16
	}
	for i := range t.Nodes {
		n := &t.Nodes[i]
		switch {
		case !n.Plugin.hasIPv6():
			r.errorf(raw.nodes[i].at, "node %q is %s, which has no IPv6 here", n.Name, n.Plugin)
			return
		case n.Residue != "":
			r.errorf(raw.nodes[i].residue.at, "residue %s has no IPv6 here", n.Residue)
			return
		case stack == IPv6 && n.Datapath == DatapathRedirect:
			r.errorf(raw.nodes[i].datapath.at, "datapath %s wants IPv4", n.Datapath)
			return
		}
		n.IP6 = place(h.Subnet, t.Subnet, n.IP)
		pods, router := h.Subnet, uint64(0xff000000+i)
		if n.Plugin.HasPodCIDR() {
			n.PodCIDR6 = subrange(h.PodCIDR, bits, i)
			pods, router = n.PodCIDR6, 0xffff
		}
		if n.Plugin.HasRouter() {
			// Behind all that has a place by IPv4.
			n.Router6 = nth(pods, router)
		}
		n.NonMasquerade6 = []netip.Prefix{h.PodCIDR}
		if !pluginTraits[n.Plugin].clusterOnly {
			n.NonMasquerade6 = append(n.NonMasquerade6, h.VNet)
		}
		for j := range n.Pods {
			n.Pods[j].IP6 = place(pods, r.podRange(n), n.Pods[j].IP)
		}
	}
	if stack == IPv6 {
		*t = t.withoutIPv4()
	}
}

// place is the address that has in one range the place that another has in its.
func place(in, of netip.Prefix, a netip.Addr) netip.Addr {
	b, first := a.As4(), of.Masked().Addr().As4()
	return nth(in, uint64(binary.BigEndian.Uint32(b[:])-binary.BigEndian.Uint32(first[:])))
}

// nth is an address of an IPv6 range, whose last 64 bits, or fewer, count.
func nth(p netip.Prefix, n uint64) netip.Addr {
	b := p.Addr().As16()
	binary.BigEndian.PutUint64(b[8:], binary.BigEndian.Uint64(b[8:])+n)
	return netip.AddrFrom16(b)
}

// subrange is the i-th range of a length within an IPv6 range.
func subrange(in netip.Prefix, bits, i int) netip.Prefix {
	b := in.Addr().As16()
	for k := bits - 1; i > 0 && k >= in.Bits(); k-- {
		b[k/8] |= byte(i&1) << (7 - k%8)
		i >>= 1
	}
	return netip.PrefixFrom(netip.AddrFrom16(b), bits)
}

// parseRange6 reads an IPv6 range that machines live in.
func parseRange6(s string) (netip.Prefix, error) {
	p, err := netip.ParsePrefix(s)
	if err != nil || !p.Addr().Is6() || p.Addr().Is4In6() || p.Bits() < 16 || p.Bits() > 96 || !p.Addr().IsGlobalUnicast() {
		return netip.Prefix{}, fmt.Errorf("want a unicast IPv6 range between /16 and /96, got %q", short(s))
	}
	if p != p.Masked() {
		return netip.Prefix{}, fmt.Errorf("prefix %s has host bits set, want %s", p, p.Masked())
	}
	return p, nil
}

// sixFaults are the faults that can strike IPv6 alone.
var sixFaults = []FaultType{DeleteUDR, WrongNeighbor, MissingMasquerade, DeletePodRoute, DropForward, ForwardingOff, MasqueradeAll, SilentGateway, WrongGateway, DuplicateIP, DeleteDefaultRoute}

// anyFaults are those that strike whatever the lab has.
var anyFaults = []FaultType{DeleteNodeRoute, BlackholeRoute, PodLinkDown, NoListener, PolicyDeny, PolicyUnprogrammed}

// faultFamily checks the family that a fault is said to strike.
func (r *resolver) faultFamily(f *Fault, at *yaml.Node) bool {
	if r.s.Topology.OnlyIPv6() {
		return r.onlyFamily(f, at)
	}
	if f.Family == 0 {
		return true
	}
	if !r.s.Topology.HasIPv6() {
		r.errorf(at, "family wants stack: %s", Dual)
		return false
	}
	if f.Family == 4 {
		f.Family = 0
		return true
	}
	if !slices.Contains(sixFaults, f.Type) {
		r.errorf(at, "fault %s has no family", f.Type)
		return false
	}
	return true
}

// onlyFamily has a fault strike IPv6 where there is no other.
func (r *resolver) onlyFamily(f *Fault, at *yaml.Node) bool {
	switch {
	case f.Family == 4:
		r.errorf(at, "family 4 wants stack: %s", Dual)
		return false
	case slices.Contains(sixFaults, f.Type):
		f.Family = 6
	case !slices.Contains(anyFaults, f.Type):
		r.errorf(at, "fault %s is of IPv4 alone", f.Type)
		return false
	}
	return true
}
