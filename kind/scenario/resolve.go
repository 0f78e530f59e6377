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

// Names that are taken: where traffic goes to, and the network itself.
var reserved = []string{OutsideName, "fabric"}

// private are the ranges that kubenet does not masquerade unless told to.
var private = []netip.Prefix{
	netip.MustParsePrefix("10.0.0.0/8"),
	netip.MustParsePrefix("172.16.0.0/12"),
	netip.MustParsePrefix("192.168.0.0/16"),
}

// azureReserved is how many addresses at a subnet's start are Azure's own.
const azureReserved = 4

// resolver turns what the file says into a scenario: defaults, references,
// and whether the whole can be.
type resolver struct {
	*decoder
	s Scenario
	// addrs and macs are who has each.
	addrs map[netip.Addr]string
	macs  map[model.MAC]string
	// six is the topology by its IPv6 addresses; nil where there are none.
	six *Topology
}

func (r *resolver) resolve(raw rawScenario) *Scenario {
	r.addrs, r.macs = map[netip.Addr]string{}, map[model.MAC]string{}
	s := &r.s
	s.Name = raw.name.v
	if !raw.name.set() {
		s.Name = nameFrom(r.file)
		if err := CheckName(s.Name); err != nil {
			r.errorf(raw.at, "field name is missing, and the file's is none: %v", err)
		}
	}
	s.Title, s.Description = raw.title.or(s.Name), raw.description.v
	s.Duration, s.Timeout = raw.duration.or(defaultDuration), raw.timeout.or(defaultTimeout)
	r.topology(raw.topology)
	if len(r.errs) > 0 {
		// References into half a topology would all seem wrong.
		return s
	}
	r.six = s.Topology.V6()
	r.routes(raw)
	r.traffic(raw)
	r.faults(raw.faults)
	r.observe(raw)
	r.files(raw.files)
	r.s.Active = raw.active.v
	r.expect(raw.expect)
	return s
}

func (r *resolver) topology(raw rawTopology) {
	t := &r.s.Topology
	t.VNet = raw.vnet.or(netip.MustParsePrefix("10.240.0.0/16"))
	t.Subnet = raw.subnet.or(t.VNet)
	if !within(t.VNet, t.Subnet) {
		r.errorf(raw.subnet.where(raw.at), "subnet %s is not within vnet %s", t.Subnet, t.VNet)
		return
	}
	t.Gateway = raw.gateway.or(t.Subnet.Addr().Next())
	if !t.Subnet.Contains(t.Gateway) || t.Gateway == t.Subnet.Addr() || t.Gateway == last(t.Subnet) {
		r.errorf(raw.gateway.where(raw.at), "gateway %s is not a host of subnet %s", t.Gateway, t.Subnet)
	}
	r.claim(t.Gateway, "the gateway", raw.gateway.where(raw.at))
	t.FabricMAC = raw.fabricMAC.or(model.MAC{0x12, 0x34, 0x56, 0x78, 0x9a, 0xbc})
	r.claimMAC(t.FabricMAC, "the fabric", raw.fabricMAC.where(raw.at))
	r.outside(raw)
	t.PodCIDR = raw.podCIDR.or(netip.MustParsePrefix("10.244.0.0/16"))
	if t.PodSubnet = raw.podSubnet.v; raw.podSubnet.set() && (!within(t.VNet, t.PodSubnet) || t.PodSubnet.Overlaps(t.Subnet)) {
		r.errorf(raw.podSubnet.at, "podSubnet %s is not a part of vnet %s beside subnet %s", t.PodSubnet, t.VNet, t.Subnet)
	}

	switch {
	case len(raw.nodes) == 0:
		r.errorf(raw.at, "topology has no nodes")
		return
	case len(raw.nodes) > maxNodes:
		r.errorf(raw.nodes[maxNodes].at, "more than %d nodes", maxNodes)
		return
	}
	t.Nodes = make([]Node, len(raw.nodes))
	plain := true
	for i, n := range raw.nodes {
		r.node(i, n, raw)
		plain = plain && t.Nodes[i].Plugin.CNI()
	}
	t.Switched = raw.switched.or(plain)
	if raw.switched.set() {
		r.checkSwitched(raw.switched.at)
	}
	if len(r.errs) > 0 {
		return
	}
	r.podCIDRs(raw)
	if len(r.errs) > 0 {
		return
	}
	r.fixedAddresses(raw)
	if len(r.errs) > 0 {
		return
	}
	r.freeAddresses(raw)
	if len(r.errs) > 0 {
		return
	}
	for i := range t.Nodes {
		r.macsAndLinks(&t.Nodes[i], raw.nodes[i])
		r.nonMasquerade(&t.Nodes[i], raw.nodes[i])
	}
	r.dual(raw)
}

func (r *resolver) outside(raw rawTopology) {
	t := &r.s.Topology
	t.Edge = raw.edge.or(netip.MustParseAddr("203.0.113.1"))
	r.beyond(t.Edge, "edge", raw.edge.where(raw.at))
	if len(raw.outside) > maxOutside {
		r.errorf(raw.outside[maxOutside].at, "more than %d outside addresses", maxOutside)
		return
	}
	for _, o := range raw.outside {
		t.Outside = append(t.Outside, o.v)
		r.beyond(o.v, OutsideName, o.at)
	}
	if len(t.Outside) == 0 {
		t.Outside = []netip.Addr{netip.MustParseAddr("203.0.113.10")}
		r.beyond(t.Outside[0], OutsideName, raw.at)
	}
}

// beyond claims an address that must not be in the virtual network.
func (r *resolver) beyond(a netip.Addr, who string, at *yaml.Node) {
	if r.s.Topology.VNet.Contains(a) {
		r.errorf(at, "%s address %s is within vnet %s", who, a, r.s.Topology.VNet)
	}
	r.claim(a, who, at)
}

// node sets what a node is, apart from addresses.
func (r *resolver) node(i int, raw rawNode, t rawTopology) {
	n := &r.s.Topology.Nodes[i]
	n.Name = raw.name.v
	switch {
	case !raw.name.set():
		r.errorf(raw.at, "node has no name")
	case slices.Contains(reserved, n.Name):
		r.errorf(raw.name.at, "node name %q is reserved", n.Name)
	case slices.ContainsFunc(r.s.Topology.Nodes[:i], func(o Node) bool { return o.Name == n.Name }):
		r.errorf(raw.name.at, "node name %q is taken", n.Name)
	}
	n.Plugin = raw.plugin.or(t.plugin.or(Kubenet))
	n.NIC = raw.nic.or(t.nic.or("eth0"))
	n.IPForwarding = raw.ipForwarding.or(n.Plugin.routedByUDR())
	n.Residue, n.Dockershim = raw.residue.v, raw.dockershim.v
	n.Datapath, n.Policy = raw.datapath.v, raw.policy.v
	n.IPMasq, n.Hairpin = raw.ipMasq.or(n.Plugin.CNI()), raw.hairpin.or(n.Plugin == Bridge)
	switch {
	case n.Plugin.Bridges():
		n.Bridge = raw.bridge.or(pluginTraits[n.Plugin].bridge)
	case n.Residue != "":
		n.Bridge = raw.bridge.or(azureBridgeName)
	}
	if n.Plugin == AzurePodSubnet && !t.podSubnet.set() {
		r.errorf(raw.at, "node %q is %s, which wants the topology's podSubnet", n.Name, n.Plugin)
	}
	only := func(at *yaml.Node, field string, ok bool, whose string) {
		if at != nil && !ok {
			r.errorf(at, "%s is for %s nodes, this one is %s", field, whose, n.Plugin)
		}
	}
	only(raw.podCIDR.at, "podCIDR", n.Plugin.HasPodCIDR(), "kubenet, kindnet, calico, bridge, ptp, azure-overlay and azure-cilium")
	only(raw.ipMasq.at, "ipMasq", n.Plugin.CNI(), "bridge and ptp")
	only(raw.hairpin.at, "hairpin", n.Plugin == Bridge, "bridge")
	only(raw.bridgeMAC.at, "bridgeMAC", n.Plugin == Kubenet, "kubenet")
	only(raw.dockershim.at, "dockershim", n.Plugin == Kubenet, "kubenet")
	only(raw.router.at, "router", n.Plugin.HasRouter(), "cilium and azure-cilium")
	only(raw.datapath.at, "datapath", n.Plugin.HasRouter(), "cilium and azure-cilium")
	only(raw.policy.at, "policy", n.Policy == PolicyNPM && n.Plugin != Calico || !n.Plugin.Bridges() && !n.Plugin.HasRouter() && n.Plugin != Calico,
		"routed Azure and kindnet (azure-npm: also bridged)")
	only(raw.residue.at, "residue", n.Plugin == Cilium, "cilium")
	only(raw.bridge.at, "bridge", n.Bridge != "", "kubenet, bridge, azure-bridge, azure-tunnel and (with residue) cilium")
	if len(raw.oldPods) > 0 && n.Residue == "" {
		r.errorf(raw.oldPods[0].at, "oldPods want residue: %s", AzureVNet)
	}
	r.pods(n, raw)
}

// checkSwitched complains of what a mere switch cannot do, or not be without.
func (r *resolver) checkSwitched(at *yaml.Node) {
	for _, n := range r.s.Topology.Nodes {
		if r.s.Topology.Switched && !n.Plugin.NodeRoutes() {
			r.errorf(at, "node %q is %s, whose pods the network has to know: no switch does", n.Name, n.Plugin)
		}
	}
}

func (r *resolver) pods(n *Node, raw rawNode) {
	if len(raw.pods)+len(raw.oldPods) > maxPods {
		r.errorf(raw.at, "node %q has more than %d pods", n.Name, maxPods)
		return
	}
	taken := map[string]bool{}
	add := func(p rawPod, bridged, gone bool) Pod {
		switch {
		case !p.name.set():
			r.errorf(p.at, "pod has no name")
		case taken[p.name.v]:
			r.errorf(p.name.at, "pod name %q is taken on node %q", p.name.v, n.Name)
		}
		taken[p.name.v] = true
		return Pod{Name: p.name.v, Bridged: bridged, Gone: gone}
	}
	for _, p := range raw.pods {
		n.Pods = append(n.Pods, add(p, n.Plugin.Bridges(), false))
	}
	for _, p := range raw.oldPods {
		n.OldPods = append(n.OldPods, add(p, true, !p.running.v))
	}
}

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
	for i, n := range raw.nodes {
		if n.podCIDR.set() {
			if who, ok := free(n.podCIDR.v); !ok {
				r.errorf(n.podCIDR.at, "podCIDR %s overlaps %s", n.podCIDR.v, who)
			}
			t.Nodes[i].PodCIDR = n.podCIDR.v
			taken[n.podCIDR.v] = "podCIDR of " + n.name.v
		}
	}
	next := netip.PrefixFrom(t.PodCIDR.Addr(), max(24, t.PodCIDR.Bits()))
	for i, n := range raw.nodes {
		if !t.Nodes[i].Plugin.HasPodCIDR() || n.podCIDR.set() {
			continue
		}
		for ; t.PodCIDR.Contains(next.Addr()); next = netip.PrefixFrom(last(next).Next(), next.Bits()) {
			if _, ok := free(next); ok {
				break
			}
		}
		if !t.PodCIDR.Contains(next.Addr()) {
			r.errorf(raw.podCIDR.where(raw.at), "no free podCIDR in %s for node %q", t.PodCIDR, n.name.v)
			return
		}
		t.Nodes[i].PodCIDR = next
		taken[next] = "podCIDR of " + n.name.v
	}
}

// fixedAddresses claims what the file names, before anything is given out.
func (r *resolver) fixedAddresses(raw rawTopology) {
	t := &r.s.Topology
	for i, n := range raw.nodes {
		node := &t.Nodes[i]
		if n.ip.set() {
			node.IP = n.ip.v
			r.host(n.ip.v, t.Subnet, "node "+node.Name, n.ip.at)
		}
		if node.PodGateway().IsValid() {
			r.claim(node.PodGateway(), "the pod gateway of "+node.Name, n.podCIDR.where(n.at))
		}
		if node.Plugin.HasRouter() {
			node.Router = n.router.or(netip.MustParseAddr("169.254.23.0"))
			switch {
			case t.Subnet.Contains(node.Router):
				r.host(node.Router, t.Subnet, "the router of "+node.Name, n.router.where(n.at))
			case !node.Router.IsLinkLocalUnicast():
				r.errorf(n.router.at, "router %s is neither link-local nor in subnet %s", node.Router, t.Subnet)
			}
		}
		for j, p := range n.pods {
			r.fixedPod(node, &node.Pods[j], p)
		}
		for j, p := range n.oldPods {
			r.fixedPod(node, &node.OldPods[j], p)
		}
	}
}

func (r *resolver) fixedPod(n *Node, p *Pod, raw rawPod) {
	if raw.ip.set() {
		p.IP = raw.ip.v
		r.host(p.IP, r.podRange(n), "pod "+n.Name+"/"+p.Name, raw.ip.at)
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
		n := &t.Nodes[i]
		if !n.IP.IsValid() {
			n.IP = r.free(t.Subnet, azureReserved, "node "+n.Name, raw.nodes[i].at)
		}
	}
	for i := range t.Nodes {
		n := &t.Nodes[i]
		// Azure hands each node a block of its subnet; a readable lab
		// has them apart.
		from := 1
		if !n.Plugin.HasPodCIDR() {
			from = 32 * (i + 1)
		}
		for j := range n.Pods {
			r.freePod(n, &n.Pods[j], from, raw.nodes[i].pods[j].at)
		}
		for j := range n.OldPods {
			r.freePod(n, &n.OldPods[j], from, raw.nodes[i].oldPods[j].at)
		}
	}
}

func (r *resolver) freePod(n *Node, p *Pod, from int, at *yaml.Node) {
	if !p.IP.IsValid() {
		p.IP = r.free(r.podRange(n), from, "pod "+n.Name+"/"+p.Name, at)
	}
}

// free claims the first free host of the range that is at or after the offset.
// A range too small for the offset is searched from its start.
func (r *resolver) free(in netip.Prefix, offset int, who string, at *yaml.Node) netip.Addr {
	start := netip.Addr{}
	if size := 1 << (32 - in.Bits()); offset < size {
		b := in.Addr().As4()
		binary.BigEndian.PutUint32(b[:], binary.BigEndian.Uint32(b[:])+uint32(offset))
		start = netip.AddrFrom4(b)
	}
	for _, a := range []netip.Addr{start, in.Addr()} {
		for ; a.IsValid() && in.Contains(a); a = a.Next() {
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
	if t := &r.s.Topology; in != t.Subnet && in != t.PodSubnet {
		return true
	}
	b, first := a.As4(), in.Addr().As4()
	return binary.BigEndian.Uint32(b[:])-binary.BigEndian.Uint32(first[:]) >= azureReserved
}

// host claims a machine's address in a range.
func (r *resolver) host(a netip.Addr, in netip.Prefix, who string, at *yaml.Node) {
	switch {
	case !in.Contains(a):
		r.errorf(at, "address %s of %s is not in %s", a, who, in)
	case !r.usable(a, in):
		r.errorf(at, "address %s of %s is reserved in %s", a, who, in)
	default:
		r.claim(a, who, at)
	}
}

func (r *resolver) claim(a netip.Addr, who string, at *yaml.Node) {
	if other, ok := r.addrs[a]; ok {
		r.errorf(at, "address %s of %s is that of %s", a, who, other)
		return
	}
	r.addrs[a] = who
}

func (r *resolver) claimMAC(m model.MAC, who string, at *yaml.Node) {
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
	link(n.NIC, "the NIC", raw.nic.where(raw.at))
	if n.Bridge != "" {
		link(n.Bridge, "the bridge", raw.bridge.where(raw.at))
	}
	if n.Plugin.HasRouter() {
		link("cilium_host", "the router", raw.at)
		link("cilium_net", "the router's peer", raw.at)
	}
	n.MAC = raw.nicMAC.or(azureMAC(n.Name))
	r.claimMAC(n.MAC, "node "+n.Name, raw.nicMAC.where(raw.at))
	if n.Plugin == Kubenet {
		n.BridgeMAC = raw.bridgeMAC.or(addressMAC(n.PodGateway()))
		r.claimMAC(n.BridgeMAC, "the bridge of "+n.Name, raw.bridgeMAC.where(raw.at))
	}
	name := func(p *Pod, raw rawPod) {
		ref := n.Name + "/" + p.Name
		p.Link = raw.link.or(hostLink(n.Plugin, p.Bridged, ref))
		link(p.Link, "pod "+p.Name, raw.link.where(raw.at))
		def := localMAC(ref)
		if n.Plugin == Kubenet {
			def = addressMAC(p.IP)
		}
		p.MAC = raw.mac.or(def)
		r.claimMAC(p.MAC, "pod "+ref, raw.mac.where(raw.at))
	}
	for i := range n.Pods {
		name(&n.Pods[i], raw.pods[i])
	}
	for i := range n.OldPods {
		name(&n.OldPods[i], raw.oldPods[i])
	}
}

// nonMasquerade is what kubenet leaves alone (the private ranges and whatever
// of the cluster lies beyond them), the plugins whose pods have ranges of
// their own (those), or the other Azure plugins (the network).
func (r *resolver) nonMasquerade(n *Node, raw rawNode) {
	if raw.nonMasquerade.set() {
		for _, p := range raw.nonMasquerade.v {
			n.NonMasquerade = append(n.NonMasquerade, p.v)
		}
		if n.Dockershim && len(n.NonMasquerade) != 1 {
			r.errorf(raw.nonMasquerade.at, "nonMasquerade wants one range on a dockershim node")
		}
		return
	}
	t := &r.s.Topology
	want := []netip.Prefix{t.VNet}
	if n.Dockershim {
		// The kubelet's default.
		n.NonMasquerade = private[:1]
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

func (r *resolver) observe(raw rawScenario) {
	r.s.Observe = raw.observe.or(r.s.Topology.Nodes[0].Name)
	if r.s.Topology.Node(r.s.Observe) == nil {
		r.errorf(raw.observe.where(raw.at), "observe: no node %q", short(r.s.Observe))
	}
}

func (r *resolver) expect(raw rawExpect) {
	e := &r.s.Expect
	for _, f := range raw.findings {
		if !f.code.set() {
			r.errorf(f.at, "finding has no code")
		}
		out := Finding{Code: f.code.v, Title: f.title.v, Fix: f.fix.v, Family: f.family.v, Twins: map[netip.Addr]netip.Addr{}}
		if f.family.set() && !r.s.Topology.HasIPv6() {
			r.errorf(f.family.at, "family wants stack: %s", Dual)
		}
		for _, p := range f.pods {
			if end, ok := r.end(p, out); ok {
				out.Pods = append(out.Pods, end)
			}
		}
		for _, p := range f.peers {
			if prefix, err := netip.ParsePrefix(p.v); err == nil {
				out.Peers = append(out.Peers, prefix.Masked())
			} else if end, ok := r.end(p, out); ok {
				out.Peers = append(out.Peers, netip.PrefixFrom(end, end.BitLen()))
			}
		}
		for _, words := range f.evidence {
			out.Evidence = append(out.Evidence, words.v)
		}
		e.Findings = append(e.Findings, out)
	}
	for _, code := range raw.absent {
		if slices.ContainsFunc(e.Findings, func(f Finding) bool { return f.Code == code.v }) {
			r.errorf(code.at, "%s is both expected and absent", code.v)
		}
		e.Absent = append(e.Absent, code.v)
	}
	e.Exit, e.Plugin = raw.exit.or(min(len(e.Findings), 1)), raw.plugin.v
	e.Policy, e.Residue = raw.policy.v, raw.residue.v
}

// endpoint resolves a reference, or complains.
func (r *resolver) endpoint(ref value[string]) (Endpoint, bool) {
	e, err := r.s.Topology.Resolve(ref.v)
	if err == nil && !e.Addr.Is4() && !r.s.Topology.HasIPv6() {
		err = fmt.Errorf("resolve %q: want an IPv4 address", short(ref.v))
	}
	if err != nil {
		r.errorf(ref.at, "%v", err)
	}
	return e, err == nil
}

// end is the address of a reference in a finding's family, and notes its twin
// in the other.
func (r *resolver) end(ref value[string], f Finding) (netip.Addr, bool) {
	e, ok := r.endpoint(ref)
	if !ok || r.six == nil {
		return e.Addr, ok
	}
	other, err := r.six.Resolve(ref.v)
	switch {
	case err != nil || other.Addr == e.Addr:
	case f.Family == 6:
		return other.Addr, true
	case f.Family == 0:
		f.Twins[e.Addr] = other.Addr
	}
	return e.Addr, true
}

// within reports whether inner lies in outer.
func within(outer, inner netip.Prefix) bool {
	return outer.Bits() <= inner.Bits() && outer.Contains(inner.Addr())
}

// last is the range's broadcast address.
func last(p netip.Prefix) netip.Addr {
	b := p.Addr().As4()
	v := binary.BigEndian.Uint32(b[:]) | uint32(uint64(1)<<(32-p.Bits())-1)
	binary.BigEndian.PutUint32(b[:], v)
	return netip.AddrFrom4(b)
}

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
