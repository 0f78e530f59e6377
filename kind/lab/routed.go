package lab

import (
	"context"
	"fmt"
	"net/netip"

	"github.com/vishvananda/netlink"
	"golang.org/x/sys/unix"

	"github.com/lasthop/lasthop/kind/scenario"
)

// remoteRoutes are the routes of a node to the pods of others: one to each
// node's range, or azure-podsubnet's one to the subnet of all pods.
func (b *builder) remoteRoutes(n *scenario.Node, sp *space) error {
	switch {
	case n.Plugin == scenario.AzurePodSubnet:
		return sp.route(route{dst: b.topology.PodSubnet, via: b.topology.Gateway, link: n.NIC})
	case b.topology.Overlay != "":
		return b.overlay(n, sp)
	case b.topology.Switched || n.Plugin.NodeRoutes() && n.Plugin != scenario.PTP:
		var routes []route
		for i := range b.topology.Nodes {
			other := &b.topology.Nodes[i]
			for _, p := range rangesOf(other) {
				if other.Name != n.Name {
					routes = append(routes, route{dst: p, via: other.IP, link: n.NIC, protocol: routeProtocol(n)})
				}
			}
		}
		return sp.route(routes...)
	}
	return nil
}

// rangesOf are the ranges that lead to a node: its own, and the addresses that it borrows.
func rangesOf(n *scenario.Node) []netip.Prefix {
	if !n.PodCIDR.IsValid() {
		return nil
	}
	out := []netip.Prefix{n.PodCIDR}
	for p := range n.AllPods() {
		if !n.PodCIDR.Contains(p.IP) {
			out = append(out, host(p.IP))
		}
	}
	return out
}

// routeProtocol is that of a node's routes to others' pods: Calico's are BIRD's.
func routeProtocol(n *scenario.Node) netlink.RouteProtocol {
	if n.Plugin == scenario.Calico {
		return unix.RTPROT_BIRD
	}
	return 0
}

// routedPod makes the node's side of a routed pod that is not Cilium's.
func routedPod(n *scenario.Node, p *scenario.Pod, sp *space) error {
	switch n.Plugin {
	case scenario.Kindnet:
		// As ptp does: each link has the gateway's address.
		if err := sp.addr(p.Link, host(n.PodGateway()), netlink.SCOPE_UNIVERSE); err != nil {
			return err
		}
	case scenario.Calico:
		if p.IP.Is6() {
			// The pod has the link's own address for its gateway.
			break
		}
		if err := sp.sysctls(
			"ipv4/conf/"+p.Link+"/proxy_arp", "1",
			"ipv4/neigh/"+p.Link+"/proxy_delay", "0",
			"ipv4/conf/"+p.Link+"/forwarding", "1",
			"ipv4/conf/"+p.Link+"/route_localnet", "1",
		); err != nil {
			return err
		}
	case scenario.AWSVPC:
		return awsPod(p, sp)
	default:
		if err := sp.sysctl("ipv4/conf/"+p.Link+"/proxy_arp", "1"); err != nil {
			return err
		}
	}
	return sp.route(route{dst: host(p.IP), link: p.Link})
}

// routedAddress gives a routed pod its address and the route to its gateway,
// which is the next hop of all that it sends.
func (b *builder) routedAddress(n *scenario.Node, p *scenario.Pod, pod *space) error {
	gateway := podGateway(b.topology, n, p)
	if err := pod.addr(podInterface, routedPrefix(n, p), netlink.SCOPE_UNIVERSE); err != nil {
		return err
	}
	if err := routedRoutes(b.topology, n, p, pod); err != nil {
		return err
	}
	if mac := hostMAC(n, p); n.Plugin != scenario.Calico && !mac.IsZero() {
		// azure-vnet makes the entry, but lets the kernel confirm it.
		if p.IP.Is6() || n.Plugin == scenario.AWSVPC {
			return pod.neigh(podInterface, gateway, mac)
		}
		return pod.withLink(podInterface, "set neighbour on", func(l netlink.Link) error {
			return pod.nl.NeighSet(&netlink.Neigh{LinkIndex: l.Attrs().Index, IP: gateway.AsSlice(), HardwareAddr: hardware(mac), State: netlink.NUD_PROBE})
		})
	}
	return nil
}

// routedPrefix is a routed pod's address with its network.
func routedPrefix(n *scenario.Node, p *scenario.Pod) netip.Prefix {
	if n.PodGateway().IsValid() {
		return netip.PrefixFrom(p.IP, n.PodCIDR.Bits())
	}
	return host(p.IP)
}

// routedRoutes gives a routed pod, which has its address, its routes: to its gateway,
// and by it to all else.
func routedRoutes(t *scenario.Topology, n *scenario.Node, p *scenario.Pod, pod *space) error {
	gateway := podGateway(t, n, p)
	routes := []route{{dst: host(gateway), link: podInterface}, {dst: defaultFor(gateway), via: gateway, link: podInterface}}
	if network := routedPrefix(n, p).Masked(); n.PodGateway().IsValid() {
		// The kernel's leads to the link, not to the gateway.
		if err := pod.unroute(route{dst: network, link: podInterface}); err != nil {
			return err
		}
		routes = append(routes, route{dst: network, via: gateway, link: podInterface})
	}
	return pod.route(routes...)
}

// podGateway is the next hop of a pod's default route.
func podGateway(t *scenario.Topology, n *scenario.Node, p *scenario.Pod) netip.Addr {
	switch {
	case n.PodGateway().IsValid():
		return n.PodGateway()
	case p.Bridged:
		return t.Gateway
	case n.Plugin.HasRouter():
		return n.Router
	case p.IP.Is4():
		return scenario.LinkLocalGateway
	case n.Plugin == scenario.Calico:
		return calicoRouter
	}
	return azureRouter
}

// The gateways of routed pods by IPv6: for Calico what the kernel makes of its
// MAC, for azure-vnet Azure's own router, which the node plays.
var (
	calicoRouter = netip.MustParseAddr("fe80::ecee:eeff:feee:eeee")
	azureRouter  = netip.MustParseAddr("fe80::1234:5678:9abc")
)

// swift is the chain that gives what pods ask of the platform, names and
// instance data, the node's address.
func swift(podSubnet netip.Prefix, node netip.Addr, sp *space) error {
	const chain = "SWIFT-POSTROUTING"
	lists := [][]string{
		{"-t", "nat", "-N", chain},
		{"-t", "nat", "-I", "POSTROUTING", "1", "-j", chain},
	}
	for _, to := range []string{
		"-d 168.63.129.16/32 -p udp --dport 53",
		"-d 168.63.129.16/32 -p tcp --dport 53",
		"-d 169.254.169.254/32 -p tcp --dport 80",
	} {
		lists = append(lists, words("-t nat -A ? -m addrtype ! --dst-type local -s ? "+to+" -j SNAT --to ?", chain, podSubnet, node))
	}
	return sp.runAll(iptables, lists...)
}

// The sets by which Calico knows what to masquerade.
const (
	calicoMasqPools  = "cali40masq-ipam-pools"
	calicoAllPools   = "cali40all-ipam-pools"
	calicoMasqPools6 = "cali60masq-ipam-pools"
	calicoAllPools6  = "cali60all-ipam-pools"
)

// calicoHost makes the chains and the sets that are not a pod's, and the
// range's route that keeps packets for pods that are gone from leaving.
func (b *builder) calicoHost(ctx context.Context, n *scenario.Node, sp *space) error {
	if err := ctx.Err(); err != nil {
		return err
	}
	masqPools, allPools := calicoMasqPools, calicoAllPools
	if n.IP.Is6() {
		masqPools, allPools = calicoMasqPools6, calicoAllPools6
	}
	for _, name := range []string{masqPools, allPools} {
		if err := sp.netSet(name, b.topology.PodCIDR, n.PodCIDR); err != nil {
			return err
		}
	}
	if err := sp.route(route{dst: n.PodCIDR, blackhole: true, protocol: routeProtocol(n)}); err != nil {
		return err
	}
	if err := calicoForward(n, sp); err != nil {
		return err
	}
	return sp.runAll(tables(n.IP.Is6()),
		[]string{"-t", "nat", "-N", "cali-POSTROUTING"},
		[]string{"-t", "nat", "-N", "cali-nat-outgoing"},
		calicoJump("nat", "POSTROUTING", "cali-POSTROUTING"),
		calicoJump("nat", "cali-POSTROUTING", "cali-nat-outgoing"),
		calicoRule("flqWnvo8yq4ULQLa", "-t nat -A cali-nat-outgoing # -m set --match-set ? src -m set ! --match-set ? dst -j MASQUERADE", masqPools, allPools),
	)
}

// netSet makes a set of ranges.
func (sp *space) netSet(name string, members ...netip.Prefix) error {
	return sp.ns.Do(func() error {
		options := netlink.IpsetCreateOptions{}
		if members[0].Addr().Is6() {
			options.Family = netlink.FAMILY_V6
		}
		if err := netlink.IpsetCreate(name, "hash:net", options); err != nil {
			return fmt.Errorf("create set %s in %s: %w", name, sp.name, err)
		}
		for _, p := range members {
			err := netlink.IpsetAdd(name, &netlink.IPSetEntry{IP: p.Addr().AsSlice(), CIDR: uint8(p.Bits()), Replace: true})
			if err != nil {
				return fmt.Errorf("add %s to set %s in %s: %w", p, name, sp.name, err)
			}
		}
		return nil
	})
}
