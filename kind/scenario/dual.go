package scenario

import (
	"encoding/binary"
	"net/netip"
	"slices"
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

// azureRouter is the gateway that Azure announces to every machine by IPv6:
// link-local, and the same everywhere.
var azureRouter = netip.MustParseAddr("fe80::1234:5678:9abc")

// OnlyIPv6 reports whether there is no IPv4: the fields that else hold it hold
// IPv6.
func (t *Topology) OnlyIPv6() bool { return t.Subnet.Addr().Is6() }

// HasIPv6 reports whether there is IPv6, beside IPv4 or alone.
func (t *Topology) HasIPv6() bool { return t.IPv6 != nil || t.OnlyIPv6() }

// V6 is the topology by its IPv6 addresses alone, those of nodes and pods too,
// in the fields that else hold IPv4; nil where there is no IPv6.
func (t *Topology) V6() *Topology {
	switch {
	case t.OnlyIPv6():
		return t
	case t.IPv6 == nil:
		return nil
	}
	out := *t
	h := t.IPv6
	out.VNet, out.Subnet, out.Gateway, out.Edge, out.Outside = h.VNet, h.Subnet, h.Gateway, h.Edge, h.Outside
	out.PodCIDR, out.PodSubnet, out.IPv6 = h.PodCIDR, netip.Prefix{}, nil
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
	if v6 := t.V6(); v6 != nil && v6 != t {
		return []*Topology{t, v6}
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

// dual gives all that has an IPv4 address an IPv6 one: with the same place in
// its range, so that none is there twice. Of a stack of IPv6 alone the IPv4
// addresses are these places and no more.
func (r *resolver) dual(raw rawTopology) {
	t := &r.s.Topology
	stack := raw.Stack.or(IPv4)
	if stack == IPv4 {
		for _, only := range []value[netip.Prefix]{raw.VNet6, raw.PodCIDR6} {
			if only.set() {
				r.errorf(only.at, "an IPv6 range wants stack: %s or %s", Dual, IPv6)
			}
		}
		return
	}
	h := &Half{
		VNet: raw.VNet6.or(r.seed.vnet6()), PodCIDR: raw.PodCIDR6.or(r.seed.podCIDR6()),
		Edge: netip.MustParseAddr("2001:db8:203:113::1"), Gateway: azureRouter,
	}
	if h.VNet.Overlaps(h.PodCIDR) {
		r.errorf(raw.PodCIDR6.where(raw.Stack.at), "podCIDR6 %s overlaps vnet6 %s", h.PodCIDR, h.VNet)
	}
	h.Subnet = netip.PrefixFrom(h.VNet.Addr(), max(64, h.VNet.Bits()))
	if t.Switched {
		h.Gateway = corresponding(h.Subnet, t.Subnet, t.Gateway)
	}
	for i := range t.Outside {
		h.Outside = append(h.Outside, nth(netip.MustParsePrefix("2001:db8:203:113::/64"), uint64(16+i)))
	}
	t.IPv6 = h
	bits := 64
	if h.PodCIDR.Bits() > 56 {
		bits = h.PodCIDR.Bits() + 16
	}
	for i := range t.Nodes {
		if n, raw := &t.Nodes[i], raw.Nodes[i]; r.canIPv6(n, raw, stack) {
			r.node6(i, n, bits)
		}
	}
	if len(r.errs) > 0 {
		return
	}
	if stack == IPv6 {
		*t = t.withoutIPv4()
	}
}

// canIPv6 reports whether the lab can make the node with IPv6.
func (r *resolver) canIPv6(n *Node, raw rawNode, stack Stack) bool {
	switch {
	case !pluginTraits[n.Plugin].ipv6:
		r.errorf(raw.at, "node %q is %s, which has no IPv6 here", n.Name, n.Plugin)
	case n.Residue != "":
		r.errorf(raw.Residue.at, "residue %s has no IPv6 here", n.Residue)
	case stack == IPv6 && n.Datapath == DatapathRedirect:
		r.errorf(raw.Datapath.at, "datapath %s wants IPv4", n.Datapath)
	default:
		return true
	}
	return false
}

// node6 gives the i-th node and its pods their IPv6 addresses. Its range of pods
// has the given length.
func (r *resolver) node6(i int, n *Node, bits int) {
	t := &r.s.Topology
	h := t.IPv6
	n.IP6 = corresponding(h.Subnet, t.Subnet, n.IP)
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
		n.Pods[j].IP6 = corresponding(pods, r.podRange(n), n.Pods[j].IP)
	}
}

// corresponding is the address with the same place in an IPv6 range as another
// has in an IPv4 range.
func corresponding(in, of netip.Prefix, a netip.Addr) netip.Addr {
	return nth(in, uint64(index4(of, a)))
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
