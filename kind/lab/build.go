package lab

import (
	"context"
	"errors"
	"io/fs"
	"net/netip"
	"slices"

	"github.com/vishvananda/netlink"

	"github.com/lasthop/lasthop/kind/scenario"
)

// podInterface is what a pod calls its link, and a machine outside its own.
const podInterface = "eth0"

// builder makes the topology. It holds the fabric and the node it works on.
type builder struct {
	*Lab
	topology *scenario.Topology
	fabric   *space
	log      func(string, ...any)
	// fresh are settings that a new namespace of this lab begins with.
	fresh map[string]string
}

// build makes everything and applies the faults.
func (l *Lab) build(ctx context.Context, log func(string, ...any)) error {
	b := &builder{Lab: l, topology: &l.s.Topology, log: log}
	log("fabric of %s, edge %s", b.topology.VNet, b.topology.Edge)
	var err error
	if b.fabric, err = b.create(fabricName); err != nil {
		return err
	}
	defer b.fabric.close()
	if err := b.buildFabric(ctx); err != nil {
		return err
	}
	for i := range b.topology.Nodes {
		if err := b.node(ctx, i); err != nil {
			return err
		}
	}
	if err := b.proxies(); err != nil {
		return err
	}
	for _, r := range l.s.Routes {
		log("UDR %s via %s", r.Prefix, r.Via)
		if err := b.fabric.route(l.udrRoute(r)); err != nil {
			return err
		}
	}
	if err := b.settle(ctx); err != nil {
		return err
	}
	return errors.Join(l.breakAll(ctx, log), ctx.Err())
}

// settle waits until all IPv6 addresses are in use.
func (b *builder) settle(ctx context.Context) error {
	if !b.topology.HasIPv6() {
		return nil
	}
	for _, place := range b.places() {
		if err := b.with(place, func(sp *space) error { return sp.awaitSettled(ctx) }); err != nil {
			return err
		}
	}
	return nil
}

// baseline are the settings that a namespace must not take over from the
// machine it is made on. IPv6 is off unless the scenario has it.
var baseline = []string{
	"ipv4/ip_forward", "0",
	"ipv4/conf/all/rp_filter", "0", "ipv4/conf/default/rp_filter", "0",
	"ipv4/conf/all/proxy_arp", "0", "ipv4/conf/default/proxy_arp", "0",
	"ipv4/conf/all/arp_ignore", "0", "ipv4/conf/default/arp_ignore", "0",
	"ipv4/conf/all/arp_announce", "0", "ipv4/conf/default/arp_announce", "0",
	"ipv4/conf/all/arp_filter", "0", "ipv4/conf/default/arp_filter", "0",
	"ipv4/conf/all/accept_local", "0", "ipv4/conf/default/accept_local", "0",
	"ipv4/conf/all/send_redirects", "0", "ipv4/conf/default/send_redirects", "0",
	"ipv4/conf/all/log_martians", "0", "ipv4/conf/default/log_martians", "0",
}

var ipv6Off = []string{"ipv6/conf/all/disable_ipv6", "1", "ipv6/conf/default/disable_ipv6", "1"}

// mayPing is what systemd sets, and container runtimes that are not old: anyone may
// ping.
var mayPing = []string{"ipv4/ping_group_range", "0 2147483647"}

// ipv6Baseline are those of a namespace with IPv6: addresses are what the lab
// gives, at once.
var ipv6Baseline = []string{
	"ipv6/conf/all/forwarding", "0",
	"ipv6/conf/default/accept_dad", "0", "ipv6/conf/default/dad_transmits", "0",
	"ipv6/conf/default/accept_ra", "0", "ipv6/conf/default/autoconf", "0",
	"ipv6/conf/default/use_tempaddr", "0", "ipv6/conf/default/router_solicitations", "0",
	"ipv6/conf/default/accept_redirects", "0", "ipv6/conf/default/proxy_ndp", "0",
	"ipv6/conf/default/disable_ipv6", "0", "ipv6/conf/all/disable_ipv6", "0",
}

// create makes the namespace of a place and opens it.
func (b *builder) create(place string) (*space, error) {
	name := b.netns(place)
	if err := createNetns(name); err != nil {
		return nil, err
	}
	sp, err := openSpace(name, b.tables)
	if err != nil {
		return nil, err
	}
	if err := errors.Join(b.begin(sp), sp.up("lo")); err != nil {
		sp.close()
		return nil, err
	}
	return sp, nil
}

// begin gives a new namespace the settings that each begins with. The kernel gives all
// namespaces of a lab the same, which are read in the first: to write those that are right
// would cost more than all else that makes a namespace.
func (b *builder) begin(sp *space) error {
	want := slices.Concat(baseline, mayPing, ipv6Off)
	if b.topology.HasIPv6() {
		want = slices.Concat(baseline, mayPing, ipv6Baseline)
	}
	if b.fresh == nil {
		b.fresh = map[string]string{}
		for i := 0; i < len(want); i += 2 {
			value, err := sp.readSysctl(want[i])
			if err != nil && !errors.Is(err, fs.ErrNotExist) {
				return err
			}
			b.fresh[want[i]] = value
		}
	}
	var wrong []string
	for i := 0; i < len(want); i += 2 {
		if b.fresh[want[i]] != want[i+1] {
			wrong = append(wrong, want[i:i+2]...)
		}
	}
	return sp.sysctls(wrong...)
}

// node makes the i-th node with its pods.
func (b *builder) node(ctx context.Context, i int) error {
	n := &b.topology.Nodes[i]
	b.log("node %s: %s, %s %s", n.Name, n.Plugin, n.NIC, n.IP)
	if err := b.hostFiles(n); err != nil {
		return err
	}
	sp, err := b.create(n.Name)
	if err != nil {
		return err
	}
	defer sp.close()
	if err := sp.sysctls(
		"ipv4/ip_forward", "1",
		"ipv4/conf/all/rp_filter", "1", "ipv4/conf/default/rp_filter", "1",
		"bridge/bridge-nf-call-iptables", "1",
	); err != nil {
		return err
	}
	if b.topology.HasIPv6() {
		if err := sp.sysctls("ipv6/conf/all/forwarding", "1", "bridge/bridge-nf-call-ip6tables", "1"); err != nil {
			return err
		}
	}
	if err := b.attachNIC(ctx, i, sp); err != nil {
		return err
	}
	if err := b.attachSecond(ctx, i, sp); err != nil {
		return err
	}
	if err := b.nodeLinks(ctx, n, sp); err != nil {
		return err
	}
	if err := b.rules(ctx, n, sp); err != nil {
		return err
	}
	for k := range n.Pods {
		if err := b.pod(ctx, n, &n.Pods[k], sp); err != nil {
			return err
		}
	}
	for k := range n.OldPods {
		if err := b.pod(ctx, n, &n.OldPods[k], sp); err != nil {
			return err
		}
	}
	return b.ciliumPrograms(n, sp)
}

// rules makes the node's iptables rules.
func (b *builder) rules(ctx context.Context, n *scenario.Node, sp *space) error {
	err := b.each(n, func(b *builder, n *scenario.Node) error {
		if err := packetRules(n, b.topology.Switched, sp); err != nil {
			return err
		}
		if n.Plugin != scenario.Calico {
			return policyRules(n, sp)
		}
		return b.calicoHost(ctx, n, sp)
	})
	switch {
	case err != nil:
	case n.Plugin == scenario.AzurePodSubnet:
		err = swift(b.topology.PodSubnet, n.IP, sp)
	case n.Plugin == scenario.AWSVPC:
		err = awsHost(n, sp)
	}
	return err
}

// nodeLinks makes what the node's plugin has beside the pods, and puts the
// node's address and default route where the plugin has them.
func (b *builder) nodeLinks(ctx context.Context, n *scenario.Node, sp *space) error {
	uplink := n.NIC
	switch {
	case n.Plugin.CNI():
		// The plugin makes its links with its first pod.
	case n.Plugin == scenario.Kubenet:
		if err := kubenetBridge(n, sp); err != nil {
			return err
		}
	case n.Bridge != "":
		if err := azureBridge(ctx, n, b.topology.FabricMAC, sp); err != nil {
			return err
		}
		uplink = n.Bridge
	}
	if n.Plugin.HasRouter() {
		if err := ciliumHost(ctx, n, sp); err != nil {
			return err
		}
	}
	return b.each(n, func(b *builder, n *scenario.Node) error {
		if err := b.nodeAddress(n, uplink, sp); err != nil {
			return err
		}
		if err := sp.route(route{dst: defaultFor(n.IP), via: b.topology.Gateway, link: uplink}); err != nil {
			return err
		}
		return b.remoteRoutes(n, sp)
	})
}

// each does something for each family: with a builder and a node by whose
// addresses the family goes.
func (b *builder) each(n *scenario.Node, do func(*builder, *scenario.Node) error) error {
	if err := do(b, n); err != nil {
		return err
	}
	v6 := b.topology.V6()
	if v6 == nil || v6 == b.topology {
		return nil
	}
	by := *b
	by.topology = v6
	return do(&by, v6.Node(n.Name))
}

// nodeAddress gives a node its address. Azure gives an IPv6 address alone, and
// announces the subnet.
func (b *builder) nodeAddress(n *scenario.Node, uplink string, sp *space) error {
	own := netip.PrefixFrom(n.IP, b.topology.Bits())
	if n.IP.Is4() || b.topology.Switched {
		return sp.addr(uplink, own, netlink.SCOPE_UNIVERSE)
	}
	if err := sp.addr(uplink, host(n.IP), netlink.SCOPE_UNIVERSE); err != nil {
		return err
	}
	return sp.route(route{dst: own.Masked(), link: uplink})
}

// pod makes a pod and connects it, or leaves what one that is gone left.
func (b *builder) pod(ctx context.Context, n *scenario.Node, p *scenario.Pod, node *space) error {
	if err := ctx.Err(); err != nil {
		return err
	}
	if p.Gone {
		b.log("pod %s/%s: %s, gone", n.Name, p.Name, p.IP)
		return errors.Join(azurePod(n, p, b.topology.FabricMAC, node), b.remember(ctx, n, p, false))
	}
	if n.Plugin.CNI() {
		b.log("pod %s/%s: %s by CNI", n.Name, p.Name, p.IP)
	} else {
		b.log("pod %s/%s: %s on %s", n.Name, p.Name, p.IP, p.Link)
	}
	pod, err := b.create(n.Name + "/" + p.Name)
	if err != nil {
		return err
	}
	defer pod.close()
	if n.Plugin.CNI() {
		return b.cniPod(ctx, n, p, node, pod)
	}
	if err := errors.Join(b.podLink(ctx, n, p, node, pod), b.remember(ctx, n, p, false)); err != nil {
		return err
	}
	return b.each(n, func(by *builder, n *scenario.Node) error {
		q := p
		if by != b {
			q = p.V6()
		}
		if p.Bridged {
			return by.podAddress(n, q, pod)
		}
		if err := by.podRoute(n, q, node); err != nil {
			return err
		}
		if err := policyPod(n, q, node); err != nil {
			return err
		}
		return by.routedAddress(n, q, pod)
	})
}

// podLink connects a pod to its node, and to the node's bridge where it has one.
func (b *builder) podLink(ctx context.Context, n *scenario.Node, p *scenario.Pod, node, pod *space) error {
	err := node.veth(p.Link, hostMAC(n, p), pod, podInterface, p.MAC)
	switch {
	case err != nil:
	case n.Plugin == scenario.Kubenet:
		err = node.port(p.Link, n.Bridge, false)
	case p.Bridged:
		if err = node.port(p.Link, n.Bridge, true); err == nil {
			err = azurePod(n, p, b.topology.FabricMAC, node)
		}
	}
	if err != nil {
		return err
	}
	if err := joinUp(ctx, node, p.Link, pod, podInterface); err != nil || !p.Bridged {
		return err
	}
	// It is up when the first of its ports is.
	return node.awaitUp(ctx, n.Bridge)
}

// podRoute makes the node's routes to and from a routed pod.
func (b *builder) podRoute(n *scenario.Node, p *scenario.Pod, node *space) error {
	switch n.Plugin {
	case scenario.Cilium:
		return b.ciliumPod(n, p, node)
	case scenario.AzureCilium:
		if err := node.sysctls("ipv4/conf/"+p.Link+"/rp_filter", "0"); err != nil {
			return err
		}
		if err := answerForRouter(n, p, node); err != nil {
			return err
		}
		return node.route(route{dst: host(p.IP), link: p.Link})
	}
	return routedPod(n, p, node)
}

// podBits is the length of the prefix that a pod on a bridge has.
func podBits(t *scenario.Topology, n *scenario.Node) int {
	if n.PodGateway().IsValid() {
		return n.PodCIDR.Bits()
	}
	return t.Bits()
}

// podAddress gives a pod on a bridge its address and default route.
func (b *builder) podAddress(n *scenario.Node, p *scenario.Pod, pod *space) error {
	gateway := podGateway(b.topology, n, p)
	if err := pod.addr(podInterface, netip.PrefixFrom(p.IP, podBits(b.topology, n)), netlink.SCOPE_UNIVERSE); err != nil {
		return err
	}
	return pod.route(route{dst: defaultFor(gateway), via: gateway, link: podInterface})
}
