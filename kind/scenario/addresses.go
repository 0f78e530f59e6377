package scenario

import (
	"encoding/binary"
	"fmt"
	"hash/fnv"
	"net/netip"
	"slices"

	"go.yaml.in/yaml/v3"

	"github.com/lasthop/lasthop/probe/model"
)

// azureReserved is how many addresses at a subnet's start are Azure's own.
const azureReserved = 4

// podCIDRs gives each node that has one its range: first those that the file
// names, then the next free /24 of the cluster's.
func (r *resolver) podCIDRs(raw rawTopology) {
	t := &r.s.Topology
	taken := map[netip.Prefix]string{t.VNet: "vnet"}
	for a, who := range r.addrs {
		if !t.VNet.Contains(a) {
			taken[netip.PrefixFrom(a, a.BitLen())] = who
		}
	}
	free := func(p netip.Prefix) (string, bool) {
		for q, who := range taken {
			if p.Overlaps(q) {
				return fmt.Sprintf("%s (%s)", q, who), false
			}
		}
		return "", true
	}
	for i, raw := range raw.Nodes {
		if p := raw.PodCIDR; p.set() {
			if who, ok := free(p.v); !ok {
				r.errorf(p.at, "podCIDR %s overlaps %s", p.v, who)
			}
			t.Nodes[i].PodCIDR = p.v
			taken[p.v] = "podCIDR of " + t.Nodes[i].Name
		}
	}
	next := r.seed.firstOf(t.PodCIDR)
	for i := range t.Nodes {
		n := &t.Nodes[i]
		if !n.Plugin.HasPodCIDR() || n.PodCIDR.IsValid() {
			continue
		}
		for ; t.PodCIDR.Contains(next.Addr()); next = netip.PrefixFrom(last(next).Next(), next.Bits()) {
			if _, ok := free(next); ok {
				break
			}
		}
		if !t.PodCIDR.Contains(next.Addr()) {
			r.errorf(raw.PodCIDR.where(raw.at), "no free podCIDR in %s for node %q", t.PodCIDR, n.Name)
			return
		}
		n.PodCIDR = next
		taken[next] = "podCIDR of " + n.Name
	}
}

// fixedAddresses takes what the file names, before anything is given out.
func (r *resolver) fixedAddresses(raw rawTopology) {
	t := &r.s.Topology
	for i, raw := range raw.Nodes {
		n := &t.Nodes[i]
		if raw.IP.set() {
			n.IP = raw.IP.v
			r.host(n.IP, t.Subnet, "node "+n.Name, raw.IP.at)
		}
		if n.PodGateway().IsValid() {
			r.take(n.PodGateway(), "the pod gateway of "+n.Name, raw.PodCIDR.where(raw.at))
		}
		if n.Plugin.HasRouter() {
			n.Router = raw.Router.or(netip.MustParseAddr("169.254.23.0"))
			switch {
			case t.Subnet.Contains(n.Router):
				r.host(n.Router, t.Subnet, "the router of "+n.Name, raw.Router.where(raw.at))
			case !n.Router.IsLinkLocalUnicast():
				r.errorf(raw.Router.at, "router %s is neither link-local nor in subnet %s", n.Router, t.Subnet)
			}
		}
		for p, raw := range n.each(raw) {
			if raw.IP.set() {
				p.IP = raw.IP.v
				in := r.podRange(n)
				if n.Plugin == Calico {
					// A node borrows addresses of others where its own are used up.
					in = t.PodCIDR
				}
				r.host(p.IP, in, "pod "+n.Name+"/"+p.Name, raw.IP.at)
			}
		}
	}
}

// podRange is where a node's pods have their addresses.
func (r *resolver) podRange(n *Node) netip.Prefix {
	switch {
	case n.Plugin.HasPodCIDR():
		return n.PodCIDR
	case n.Plugin == AzurePodSubnet:
		return r.s.Topology.PodSubnet
	}
	return r.s.Topology.Subnet
}

// freeAddresses gives an address to all that have none yet.
func (r *resolver) freeAddresses(raw rawTopology) {
	t := &r.s.Topology
	for i := range t.Nodes {
		if n := &t.Nodes[i]; !n.IP.IsValid() {
			n.IP = r.free(t.Subnet, r.seed.offset(azureReserved), "node "+n.Name, raw.Nodes[i].at)
		}
	}
	for i := range t.Nodes {
		n := &t.Nodes[i]
		// Azure hands each node a block of its subnet; a readable lab
		// has them apart.
		from := uint32(1)
		if !n.Plugin.HasPodCIDR() {
			from = 32 * uint32(i+1)
		}
		for p, raw := range n.each(raw.Nodes[i]) {
			if !p.IP.IsValid() {
				p.IP = r.free(r.podRange(n), r.seed.offset(from), "pod "+n.Name+"/"+p.Name, raw.at)
			}
		}
	}
}

// free takes the first free host of the range that is at or after the offset,
// or else the first of all.
func (r *resolver) free(in netip.Prefix, offset uint32, who string, at *yaml.Node) netip.Addr {
	for _, a := range []netip.Addr{nth4(in, offset), in.Addr()} {
		for ; in.Contains(a); a = a.Next() {
			if _, ok := r.addrs[a]; !ok && r.usable(a, in) {
				r.addrs[a] = who
				return a
			}
		}
	}
	r.errorf(at, "no free address in %s for %s", in, who)
	return netip.Addr{}
}

// usable reports whether a machine in the range can have the address.
func (r *resolver) usable(a netip.Addr, in netip.Prefix) bool {
	if a == in.Addr() || a == last(in) {
		return false
	}
	t := &r.s.Topology
	return t.Switched || in != t.Subnet && in != t.PodSubnet || index4(in, a) >= azureReserved
}

// host takes a machine's address in a range.
func (r *resolver) host(a netip.Addr, in netip.Prefix, who string, at *yaml.Node) {
	switch {
	case !in.Contains(a):
		r.errorf(at, "address %s of %s is not in %s", a, who, in)
	case !r.usable(a, in):
		r.errorf(at, "address %s of %s is reserved in %s", a, who, in)
	default:
		r.take(a, who, at)
	}
}

// take notes the machine that has an address. No other may.
func (r *resolver) take(a netip.Addr, who string, at *yaml.Node) {
	if other, ok := r.addrs[a]; ok {
		r.errorf(at, "address %s of %s is that of %s", a, who, other)
		return
	}
	r.addrs[a] = who
}

func (r *resolver) takeMAC(m model.MAC, who string, at *yaml.Node) {
	if other, ok := r.macs[m]; ok {
		r.errorf(at, "MAC %s of %s is that of %s", m, who, other)
		return
	}
	r.macs[m] = who
}

// macsAndLinks names the node's links and gives MACs to those that have none.
func (r *resolver) macsAndLinks(n *Node, raw rawNode) {
	links := map[string]string{}
	link := func(name, who string, at *yaml.Node) {
		if other, ok := links[name]; ok {
			r.errorf(at, "link name %q of %s is that of %s", name, who, other)
		}
		links[name] = who
	}
	link(n.NIC, "the NIC", raw.NIC.where(raw.at))
	if n.Card != "" {
		link(LowerLink, "the link under the NIC", raw.Card.at)
	}
	if n.Bridge != "" {
		link(n.Bridge, "the bridge", raw.Bridge.where(raw.at))
	}
	if n.Plugin.HasRouter() {
		link("cilium_host", "the router", raw.at)
		link("cilium_net", "the router's peer", raw.at)
	}
	n.MAC = raw.NICMAC.or(azureMAC(r.seed.salt(n.Name)))
	r.takeMAC(n.MAC, "node "+n.Name, raw.NICMAC.where(raw.at))
	if n.Second.Name != "" {
		link(n.Second.Name, "the second NIC", raw.SecondNIC.at)
		n.Second.MAC = azureMAC(n.Name + "/second")
		r.takeMAC(n.Second.MAC, "the second NIC of "+n.Name, raw.SecondNIC.at)
	}
	if n.Plugin == Kubenet {
		n.BridgeMAC = raw.BridgeMAC.or(addressMAC(n.PodGateway()))
		r.takeMAC(n.BridgeMAC, "the bridge of "+n.Name, raw.BridgeMAC.where(raw.at))
	}
	for p, raw := range n.each(raw) {
		ref := n.Name + "/" + p.Name
		p.Link = raw.Link.or(hostLink(n.Plugin, p.Bridged, r.seed.salt(ref)))
		link(p.Link, "pod "+p.Name, raw.Link.where(raw.at))
		def := localMAC(r.seed.salt(ref))
		if n.Plugin == Kubenet {
			def = addressMAC(p.IP)
		}
		p.MAC = raw.MAC.or(def)
		r.takeMAC(p.MAC, "pod "+ref, raw.MAC.where(raw.at))
	}
}

// nonMasquerade is what kubenet leaves alone (the private ranges and whatever
// of the cluster lies beyond them), the plugins whose pods have ranges of
// their own (those), or the other Azure plugins (the network).
func (r *resolver) nonMasquerade(n *Node, raw rawNode) {
	if raw.NonMasquerade.set() {
		for _, p := range raw.NonMasquerade.v {
			n.NonMasquerade = append(n.NonMasquerade, p.v)
		}
		if n.Dockershim && len(n.NonMasquerade) != 1 {
			r.errorf(raw.NonMasquerade.at, "nonMasquerade wants one range on a dockershim node")
		}
		return
	}
	t := &r.s.Topology
	want := []netip.Prefix{t.VNet}
	if n.Dockershim {
		// The kubelet's default, where the cluster is within it.
		n.NonMasquerade = private[:1]
		if !within(private[0], t.PodCIDR) {
			n.NonMasquerade = []netip.Prefix{t.PodCIDR}
		}
		return
	}
	if n.Plugin == Kubenet || pluginTraits[n.Plugin].clusterOnly {
		if n.Plugin == Kubenet {
			n.NonMasquerade = slices.Clone(private)
		} else {
			want = []netip.Prefix{t.PodCIDR}
		}
		for _, other := range t.Nodes {
			if other.PodCIDR.IsValid() {
				want = append(want, other.PodCIDR)
			}
		}
	}
	for _, p := range want {
		if !slices.ContainsFunc(n.NonMasquerade, func(q netip.Prefix) bool { return within(q, p) }) {
			n.NonMasquerade = append(n.NonMasquerade, p)
		}
	}
}

// within reports whether inner lies in outer.
func within(outer, inner netip.Prefix) bool {
	return outer.Bits() <= inner.Bits() && outer.Contains(inner.Addr())
}

// nth4 is an address of an IPv4 range, index4 the place of one in it.
func nth4(p netip.Prefix, n uint32) netip.Addr {
	b := p.Addr().As4()
	return netip.AddrFrom4([4]byte(binary.BigEndian.AppendUint32(nil, binary.BigEndian.Uint32(b[:])+n)))
}

func index4(of netip.Prefix, a netip.Addr) uint32 {
	b, first := a.As4(), of.Addr().As4()
	return binary.BigEndian.Uint32(b[:]) - binary.BigEndian.Uint32(first[:])
}

// last is the range's broadcast address.
func last(p netip.Prefix) netip.Addr { return nth4(p, uint32(uint64(1)<<(32-p.Bits())-1)) }

func hash(s string) (sum [8]byte) {
	h := fnv.New64a()
	h.Write([]byte(s))
	return [8]byte(h.Sum(nil))
}

// azureMAC is a network card's, of the range that Azure's have.
func azureMAC(name string) model.MAC {
	h := hash("nic " + name)
	return model.MAC{0x00, 0x0d, 0x3a, h[5], h[6], h[7]}
}

// localMAC is a locally administered address, as the kernel draws for a veth.
func localMAC(name string) model.MAC {
	h := hash(name)
	return model.MAC{h[2]&0xfc | 0x02, h[3], h[4], h[5], h[6], h[7]}
}

// addressMAC is what the CNI bridge plugin makes of an address.
func addressMAC(a netip.Addr) model.MAC {
	b := a.As4()
	return model.MAC{0x0a, 0x58, b[0], b[1], b[2], b[3]}
}

// hostLink is a name of the form that the plugin gives to a pod's host side.
func hostLink(p Plugin, bridged bool, ref string) string {
	t := pluginTraits[p]
	if bridged && t.bridge == "" {
		t = pluginTraits[AzureBridge]
	}
	return t.link + fmt.Sprintf("%x", hash("link "+ref))[:t.hash]
}
