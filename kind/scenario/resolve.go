package scenario

import (
	"fmt"
	"iter"
	"net/netip"
	"slices"

	"go.yaml.in/yaml/v3"

	"github.com/lasthop/lasthop/probe/model"
)

// Names that are taken: where traffic goes to, and the network itself.
var reserved = []string{OutsideName, "fabric"}

// private are the ranges that kubenet does not masquerade by default.
var private = []netip.Prefix{
	netip.MustParsePrefix("10.0.0.0/8"),
	netip.MustParsePrefix("172.16.0.0/12"),
	netip.MustParsePrefix("192.168.0.0/16"),
}

// resolver turns what the file says into a scenario: defaults, references,
// and whether the whole can be.
type resolver struct {
	*decoder
	s Scenario
	// seed decides what the file leaves open.
	seed seed
	// addrs and macs lead from each address in use to the name of its machine.
	addrs map[netip.Addr]string
	macs  map[model.MAC]string
	// v6 is the topology by its IPv6 addresses; nil where there are none.
	v6 *Topology
}

func (r *resolver) resolve(raw rawScenario) *Scenario {
	r.addrs, r.macs = map[netip.Addr]string{}, map[model.MAC]string{}
	s := &r.s
	s.Name = raw.Name.v
	if !raw.Name.set() {
		s.Name = nameFrom(r.file)
		if err := CheckName(s.Name); err != nil {
			r.errorf(raw.at, "field name is missing, and the file's is none: %v", err)
		}
	}
	s.Title, s.Description = raw.Title.or(s.Name), raw.Description.v
	r.seed = seed(raw.Seed.v)
	r.seed.reorder(&raw)
	s.Duration, s.Timeout = raw.Duration.or(defaultDuration), raw.Timeout.or(defaultTimeout)
	r.topology(raw.Topology)
	if len(r.errs) > 0 {
		// References into half a topology would all seem wrong.
		return s
	}
	r.v6 = s.Topology.V6()
	r.routes(raw)
	r.traffic(raw)
	r.seed.shuffle(s.Traffic)
	r.faults(raw.Faults)
	r.observe(raw)
	r.watch(raw.Watch)
	r.churn(raw.Churn)
	r.files(raw.Files)
	if r.s.Active = raw.Active.v; r.s.Active && r.s.Together() {
		r.errorf(raw.Active.at, "active wants one node to watch: a recording has no probes")
	}
	r.expect(raw.Expect)
	return s
}

func (r *resolver) topology(raw rawTopology) {
	t := &r.s.Topology
	open := r.seed
	if raw.PodSubnet.set() || raw.Subnet.set() || raw.Gateway.set() {
		open = 0 // They lie in the default network.
	}
	t.VNet = raw.VNet.or(open.vnet())
	t.Subnet = raw.Subnet.or(t.VNet)
	if !within(t.VNet, t.Subnet) {
		r.errorf(raw.Subnet.where(raw.at), "subnet %s is not within vnet %s", t.Subnet, t.VNet)
		return
	}
	t.Gateway = raw.Gateway.or(t.Subnet.Addr().Next())
	if !t.Subnet.Contains(t.Gateway) || t.Gateway == t.Subnet.Addr() || t.Gateway == last(t.Subnet) {
		r.errorf(raw.Gateway.where(raw.at), "gateway %s is not a host of subnet %s", t.Gateway, t.Subnet)
	}
	r.take(t.Gateway, "the gateway", raw.Gateway.where(raw.at))
	t.FabricMAC = raw.FabricMAC.or(r.seed.fabricMAC())
	r.takeMAC(t.FabricMAC, "the fabric", raw.FabricMAC.where(raw.at))
	r.outside(raw)
	t.PodCIDR = raw.PodCIDR.or(r.seed.podCIDR())
	if t.PodSubnet = raw.PodSubnet.v; raw.PodSubnet.set() && (!within(t.VNet, t.PodSubnet) || t.PodSubnet.Overlaps(t.Subnet)) {
		r.errorf(raw.PodSubnet.at, "podSubnet %s is not a part of vnet %s beside subnet %s", t.PodSubnet, t.VNet, t.Subnet)
	}

	switch {
	case len(raw.Nodes) == 0:
		r.errorf(raw.at, "topology has no nodes")
		return
	case len(raw.Nodes) > maxNodes:
		r.errorf(raw.Nodes[maxNodes].at, "more than %d nodes", maxNodes)
		return
	}
	t.Nodes, t.Overlay = make([]Node, len(raw.Nodes)), raw.Overlay.v
	plain := true
	for i, n := range raw.Nodes {
		r.node(i, n, raw)
		plain = plain && t.Nodes[i].Plugin.CNI()
	}
	t.Switched = raw.Switched.or(plain && t.Overlay == "")
	for i, n := range t.Nodes {
		if t.Overlay != "" && !n.Plugin.MayRoute() {
			r.errorf(raw.Nodes[i].at, "node %q is %s, which has no routes to lead into an overlay", n.Name, n.Plugin)
		}
	}
	if t.Overlay != "" && raw.Stack.set() {
		r.errorf(raw.Overlay.at, "overlay wants IPv4 alone")
	}
	if raw.Switched.set() {
		r.checkSwitched(raw.Switched.at)
	}
	for _, stage := range []func(rawTopology){r.podCIDRs, r.fixedAddresses, r.freeAddresses, r.linksAndFamilies} {
		if len(r.errs) > 0 {
			return
		}
		stage(raw)
	}
}

func (r *resolver) linksAndFamilies(raw rawTopology) {
	for i, n := range raw.Nodes {
		r.macsAndLinks(&r.s.Topology.Nodes[i], n)
		r.nonMasquerade(&r.s.Topology.Nodes[i], n)
	}
	r.dual(raw)
}

func (r *resolver) outside(raw rawTopology) {
	t := &r.s.Topology
	t.Edge = raw.Edge.or(r.seed.internet(1))
	r.beyond(t.Edge, "edge", raw.Edge.where(raw.at))
	if len(raw.Outside) > maxOutside {
		r.errorf(raw.Outside[maxOutside].at, "more than %d outside addresses", maxOutside)
		return
	}
	for _, o := range raw.Outside {
		t.Outside = append(t.Outside, o.v)
		r.beyond(o.v, OutsideName, o.at)
	}
	if len(t.Outside) == 0 {
		t.Outside = []netip.Addr{r.seed.internet(10)}
		r.beyond(t.Outside[0], OutsideName, raw.at)
	}
}

// beyond takes an address that must not be in the virtual network.
func (r *resolver) beyond(a netip.Addr, who string, at *yaml.Node) {
	if r.s.Topology.VNet.Contains(a) {
		r.errorf(at, "%s address %s is within vnet %s", who, a, r.s.Topology.VNet)
	}
	r.take(a, who, at)
}

// node sets what a node is, apart from addresses.
func (r *resolver) node(i int, raw rawNode, t rawTopology) {
	n := &r.s.Topology.Nodes[i]
	n.Name = raw.Name.v
	switch {
	case !raw.Name.set():
		r.errorf(raw.at, "node has no name")
	case slices.Contains(reserved, n.Name):
		r.errorf(raw.Name.at, "node name %q is reserved", n.Name)
	case slices.ContainsFunc(r.s.Topology.Nodes[:i], func(o Node) bool { return o.Name == n.Name }):
		r.errorf(raw.Name.at, "node name %q is taken", n.Name)
	}
	n.Plugin = raw.Plugin.or(t.Plugin.or(Kubenet))
	n.NIC = raw.NIC.or(t.NIC.or(r.seed.nic()))
	n.IPForwarding = raw.IPForwarding.or(n.Plugin.routedByUDR() && r.s.Topology.Overlay == "")
	n.Residue, n.Dockershim = raw.Residue.v, raw.Dockershim.v
	n.Datapath, n.Policy, n.Card = raw.Datapath.v, raw.Policy.v, raw.Card.v
	n.IPMasq, n.Hairpin = raw.IPMasq.or(n.Plugin.CNI() && n.Plugin != Flannel), raw.Hairpin.or(n.Plugin == Bridge || n.Plugin == Flannel)
	switch {
	case n.Plugin.Bridges():
		n.Bridge = raw.Bridge.or(pluginTraits[n.Plugin].bridge)
	case n.Residue != "":
		n.Bridge = raw.Bridge.or(azureBridgeName)
	}
	if n.Plugin == AzurePodSubnet && !t.PodSubnet.set() {
		r.errorf(raw.at, "node %q is %s, which wants the topology's podSubnet", n.Name, n.Plugin)
	}
	only := func(at *yaml.Node, field string, ok bool, whose string) {
		if at != nil && !ok {
			r.errorf(at, "%s is for %s nodes, this one is %s", field, whose, n.Plugin)
		}
	}
	only(raw.PodCIDR.at, "podCIDR", n.Plugin.HasPodCIDR(), "kubenet, kindnet, calico, bridge, ptp, flannel, azure-overlay and azure-cilium")
	only(raw.IPMasq.at, "ipMasq", n.Plugin == Bridge || n.Plugin == PTP, "bridge and ptp")
	only(raw.Hairpin.at, "hairpin", n.Plugin == Bridge, "bridge")
	only(raw.BridgeMAC.at, "bridgeMAC", n.Plugin == Kubenet, "kubenet")
	only(raw.Dockershim.at, "dockershim", n.Plugin == Kubenet, "kubenet")
	only(raw.SecondNIC.at, "secondNIC", n.Plugin == Kubenet || n.Plugin == AWSVPC, "kubenet and aws-vpc")
	if raw.SecondNIC.v && t.Stack.set() {
		r.errorf(raw.SecondNIC.at, "secondNIC wants IPv4 alone")
	}
	if raw.SecondNIC.v {
		// A network for benchmarks, which no scenario has.
		n.Second = SecondNIC{Name: "second", IP: netip.PrefixFrom(netip.AddrFrom4([4]byte{198, 18, byte(i), 4}), 24), Gateway: netip.PrefixFrom(netip.AddrFrom4([4]byte{198, 18, byte(i), 1}), 24)}
	}
	only(raw.Router.at, "router", n.Plugin.HasRouter(), "cilium and azure-cilium")
	only(raw.Datapath.at, "datapath", n.Plugin.HasRouter(), "cilium and azure-cilium")
	only(raw.Policy.at, "policy", n.Policy == PolicyNPM && n.Plugin != Calico || !n.Plugin.Bridges() && !n.Plugin.HasRouter() && n.Plugin != Calico,
		"routed Azure, aws-vpc and kindnet (azure-npm: also bridged)")
	only(raw.Residue.at, "residue", n.Plugin == Cilium, "cilium")
	only(raw.Bridge.at, "bridge", n.Bridge != "", "kubenet, bridge, flannel, azure-bridge, azure-tunnel and (with residue) cilium")
	if len(raw.OldPods) > 0 && n.Residue == "" {
		r.errorf(raw.OldPods[0].at, "oldPods want residue: %s", AzureVNet)
	}
	r.pods(n, raw)
}

// checkSwitched reports what a mere switch cannot do, or not be without.
func (r *resolver) checkSwitched(at *yaml.Node) {
	for _, n := range r.s.Topology.Nodes {
		if r.s.Topology.Switched && !n.Plugin.MayRoute() {
			r.errorf(at, "node %q is %s, whose pods the network has to know: no switch does", n.Name, n.Plugin)
		}
	}
}

func (r *resolver) pods(n *Node, raw rawNode) {
	if len(raw.Pods)+len(raw.OldPods) > maxPods {
		r.errorf(raw.at, "node %q has more than %d pods", n.Name, maxPods)
		return
	}
	for range raw.Pods {
		n.Pods = append(n.Pods, Pod{Bridged: n.Plugin.Bridges()})
	}
	for _, p := range raw.OldPods {
		n.OldPods = append(n.OldPods, Pod{Bridged: true, Gone: !p.Running.v})
	}
	taken := map[string]bool{}
	for p, raw := range n.each(raw) {
		p.Name = raw.Name.v
		switch {
		case !raw.Name.set():
			r.errorf(raw.at, "pod has no name")
		case taken[p.Name]:
			r.errorf(raw.Name.at, "pod name %q is taken on node %q", p.Name, n.Name)
		}
		taken[p.Name] = true
	}
}

// each pairs the node's pods with what the file says of them.
func (n *Node) each(raw rawNode) iter.Seq2[*Pod, rawPod] {
	return func(yield func(*Pod, rawPod) bool) {
		from := slices.Clone(raw.Pods)
		for _, p := range raw.OldPods {
			from = append(from, p.rawPod)
		}
		for p := range n.AllPods() {
			if !yield(p, from[0]) {
				return
			}
			from = from[1:]
		}
	}
}

func (r *resolver) observe(raw rawScenario) {
	first := r.s.Topology.Nodes[0].Name
	if len(raw.Watch.v) > 0 {
		first = raw.Watch.v[0].Node.v
	}
	r.s.Observe = raw.Observe.or(first)
	if raw.Observe.set() && r.s.Topology.Node(r.s.Observe) == nil {
		r.errorf(raw.Observe.where(raw.at), "observe: no node %q", short(r.s.Observe))
	}
}

// endpoint resolves a reference, or reports why it cannot.
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
