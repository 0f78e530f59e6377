package lab

import (
	"context"
	"errors"
	"fmt"
	"net/netip"
	"slices"

	"github.com/vishvananda/netlink"

	"github.com/lasthop/lasthop/kind/scenario"
	"github.com/lasthop/lasthop/probe/model"
)

// The fabric's own links.
const (
	sinkLink = "sink"
	edgeLink = "edge"
	// switchLink is where all nodes are, of a topology that is switched.
	switchLink = "switch"
)

// nicLink is the fabric's side of the i-th node's network card.
func nicLink(i int) string { return fmt.Sprintf("nic%d", i) }

// secondLink is that of its second card.
func secondLink(i int) string { return fmt.Sprintf("second%d", i) }

// buildFabric makes the Azure network without any network card: it forwards
// what it has a route for, drops the rest silently, answers every ARP
// request with its own MAC and no ping at all. Or it is a switch and a router.
func (b *builder) buildFabric(ctx context.Context) error {
	t, f := b.topology, b.fabric
	if err := f.sysctl("ipv4/ip_forward", "1"); err != nil {
		return err
	}
	if t.HasIPv6() {
		if err := f.sysctl("ipv6/conf/all/forwarding", "1"); err != nil {
			return err
		}
	}
	if t.Switched {
		if err := b.buildSwitch(); err != nil {
			return err
		}
	}
	// A bridge without ports loses all it is given. A blackhole route would
	// do so too, but the fabric answers ARP only for what it can route.
	if err := f.bridge(sinkLink, model.MAC{}); err != nil {
		return err
	}
	if err := f.withLink(sinkLink, "silence", f.nl.LinkSetARPOff); err != nil {
		return err
	}
	if err := f.up(sinkLink); err != nil {
		return err
	}
	for _, t := range t.Families() {
		if err := f.route(route{dst: defaultFor(t.Edge), link: sinkLink}); err != nil {
			return err
		}
		// Private addresses beyond the edge are on premises, and reached by a
		// tunnel.
		for _, a := range t.Outside {
			if a.IsPrivate() {
				err := f.runAll(tables(a.Is6()), words("-A FORWARD -o ? -d ? -j ACCEPT", edgeLink, a), words("-A FORWARD -i ? -s ? -j ACCEPT", edgeLink, a))
				if err != nil {
					return err
				}
			}
		}
		if err := f.runAll(tables(t.Edge.Is6()), append(silence(t.Edge.Is6()),
			// The internet knows no private address and no route to one.
			words("-A FORWARD -o ? ! -s ? -j DROP", edgeLink, t.VNet),
			words("-A FORWARD -i ? ! -d ? -j DROP", edgeLink, t.VNet),
		)...); err != nil {
			return err
		}
	}
	return b.buildOutside(ctx)
}

// silence are the rules by which the fabric says nothing itself. Of IPv6,
// neighbour discovery remains.
func silence(isIPv6 bool) [][]string {
	if !isIPv6 {
		return [][]string{words("-A INPUT -p icmp -j DROP"), words("-A OUTPUT -p icmp -j DROP")}
	}
	out := [][]string{words("-A INPUT -p icmpv6 --icmpv6-type echo-request -j DROP")}
	for _, what := range []string{"destination-unreachable", "packet-too-big", "time-exceeded", "parameter-problem"} {
		out = append(out, words("-A OUTPUT -p icmpv6 --icmpv6-type ? -j DROP", what))
	}
	return out
}

// buildSwitch makes an Ethernet switch, with a router on it that has the
// gateway's address.
func (b *builder) buildSwitch() error {
	t, f := b.topology, b.fabric
	// The router's filters must not see what the switch forwards.
	if err := f.sysctls("bridge/bridge-nf-call-iptables", "0", "bridge/bridge-nf-call-ip6tables", "0"); err != nil {
		return err
	}
	if err := f.bridge(switchLink, t.FabricMAC); err != nil {
		return err
	}
	if err := f.up(switchLink); err != nil {
		return err
	}
	for _, t := range t.Families() {
		if err := f.addr(switchLink, netip.PrefixFrom(t.Gateway, t.Bits()), netlink.SCOPE_UNIVERSE); err != nil {
			return err
		}
	}
	return nil
}

// outsideMAC is that of the machine beyond the edge; no machine of the virtual
// network sees it.
var outsideMAC = model.MAC{0x02, 0, 0, 0, 0, 0x01}

// buildOutside makes the machine that has all addresses beyond the edge.
func (b *builder) buildOutside(ctx context.Context) error {
	t, f := b.topology, b.fabric
	out, err := b.create(outsideName)
	if err != nil {
		return err
	}
	defer out.close()
	if err := b.fabricPort(ctx, "", edgeLink, out, podInterface, outsideMAC); err != nil {
		return err
	}
	for _, t := range t.Families() {
		if err := outside(t, f, out); err != nil {
			return err
		}
	}
	return nil
}

// outside gives the machine beyond the edge its addresses of a family.
func outside(t *scenario.Topology, f, out *space) error {
	for _, a := range t.Outside {
		if err := out.addr(podInterface, host(a), netlink.SCOPE_UNIVERSE); err != nil {
			return err
		}
		if err := f.route(route{dst: host(a), link: edgeLink}); err != nil {
			return err
		}
		if err := f.neigh(edgeLink, a, outsideMAC); err != nil {
			return err
		}
	}
	if err := out.neigh(podInterface, t.Edge, t.FabricMAC); err != nil {
		return err
	}
	return out.route(route{dst: defaultFor(t.Edge), via: t.Edge, link: podInterface, onlink: true})
}

// card makes a network card and the fabric's side of it.
func card(kind scenario.Card, f *space, port string, portMAC model.MAC, sp *space, name string, mac model.MAC) error {
	const tag = 7
	switch kind {
	case scenario.CardBond:
		if err := f.veth(port, portMAC, sp, scenario.LowerLink, mac); err != nil {
			return err
		}
		return sp.bond(name, mac, scenario.LowerLink)
	case scenario.CardVLAN:
		trunk := port + "-trunk"
		return errors.Join(
			f.veth(trunk, portMAC, sp, scenario.LowerLink, mac),
			f.up(trunk), f.vlan(port, trunk, tag),
			sp.up(scenario.LowerLink), sp.vlan(name, scenario.LowerLink, tag),
		)
	}
	return f.veth(port, portMAC, sp, name, mac)
}

// fabricPort connects a machine to the fabric.
func (b *builder) fabricPort(ctx context.Context, kind scenario.Card, port string, sp *space, name string, mac model.MAC) error {
	if err := card(kind, b.fabric, port, b.topology.FabricMAC, sp, name, mac); err != nil {
		return err
	}
	if err := b.fabric.sysctls(
		"ipv4/conf/"+port+"/proxy_arp", "1",
		"ipv4/conf/"+port+"/proxy_arp_pvlan", "1",
		"ipv4/neigh/"+port+"/proxy_delay", "0",
	); err != nil {
		return err
	}
	if err := joinUp(ctx, b.fabric, port, sp, name); err != nil || !b.topology.HasIPv6() || b.topology.Switched {
		return err
	}
	// The same router is on every port. It answers for the cards of others,
	// which has to be set for each IPv6 address.
	if err := b.fabric.sysctls("ipv6/conf/"+port+"/proxy_ndp", "1", "ipv6/neigh/"+port+"/proxy_delay", "0"); err != nil {
		return err
	}
	return b.fabric.addr(port, netip.PrefixFrom(b.topology.V6().Gateway, 64), netlink.SCOPE_LINK)
}

// proxies has the fabric answer for the IPv6 addresses of all other cards.
func (b *builder) proxies() error {
	if !b.topology.HasIPv6() || b.topology.Switched {
		return nil
	}
	nodes := b.topology.V6().Nodes
	for i := range nodes {
		for j := range nodes {
			if i == j {
				continue
			}
			for _, a := range nodes[j].Addresses() {
				if err := b.fabric.proxy(nicLink(i), a); err != nil {
					return err
				}
			}
		}
	}
	return nil
}

// attachNIC connects the i-th node: routes to the addresses that its network
// card owns, and the card's protection against all others.
func (b *builder) attachNIC(ctx context.Context, i int, node *space) error {
	n, port, f := &b.topology.Nodes[i], nicLink(i), b.fabric
	if b.topology.Switched {
		if err := card(n.Card, f, port, model.MAC{}, node, n.NIC, n.MAC); err != nil {
			return err
		}
		if err := f.port(port, switchLink, false); err != nil {
			return err
		}
		return joinUp(ctx, f, port, node, n.NIC)
	}
	if err := b.fabricPort(ctx, n.Card, port, node, n.NIC, n.MAC); err != nil {
		return err
	}
	return b.each(n, func(b *builder, n *scenario.Node) error { return ownAddresses(n, port, f) })
}

// attachSecond connects the node's second card, if it has one: a network with the
// fabric for the only other machine.
func (b *builder) attachSecond(ctx context.Context, i int, node *space) error {
	c, port := &b.topology.Nodes[i].Second, secondLink(i)
	if c.Name == "" {
		return nil
	}
	if err := b.fabricPort(ctx, "", port, node, c.Name, c.MAC); err != nil {
		return err
	}
	// The route back to what arrives here leads to the first card.
	if err := node.sysctl("ipv4/conf/"+c.Name+"/rp_filter", "2"); err != nil {
		return err
	}
	if err := b.fabric.addr(port, c.Gateway, netlink.SCOPE_UNIVERSE); err != nil {
		return err
	}
	return node.addr(c.Name, c.IP, netlink.SCOPE_UNIVERSE)
}

// ownAddresses gives a card its addresses of one IP version.
func ownAddresses(n *scenario.Node, port string, f *space) error {
	// Pinned, and the next hop of all else on the card: the fabric knows
	// its cards and sends no ARP requests.
	if err := f.neigh(port, n.IP, n.MAC); err != nil {
		return err
	}
	if err := f.route(route{dst: host(n.IP), link: port}); err != nil {
		return err
	}
	own := n.Addresses()
	for _, a := range own[1:] {
		if err := f.route(route{dst: host(a), via: n.IP, link: port, onlink: true}); err != nil {
			return err
		}
	}
	if err := spoofChains(f, port, own); err != nil {
		return err
	}
	if n.IPForwarding {
		return nil
	}
	return f.runAll(tables(n.IP.Is6()), spoofJumps("-A", port)...)
}

// spoofChains makes the chains that let pass what is from or to the card's
// own addresses. Nothing goes through them until spoofJumps leads there.
func spoofChains(f *space, port string, own []netip.Addr) error {
	for _, c := range []struct{ chain, match string }{{"FROM-" + port, "-s"}, {"TO-" + port, "-d"}} {
		lists := [][]string{{"-N", c.chain}}
		for _, a := range own {
			lists = append(lists, []string{"-A", c.chain, c.match, a.String(), "-j", "RETURN"})
		}
		lists = append(lists, []string{"-A", c.chain, "-j", "DROP"})
		if err := f.runAll(tables(own[0].Is6()), lists...); err != nil {
			return err
		}
	}
	return nil
}

// spoofJumps adds (-A) or removes (-D) a card's protection.
func spoofJumps(op, port string) [][]string {
	return [][]string{
		{op, "FORWARD", "-i", port, "-j", "FROM-" + port},
		{op, "FORWARD", "-o", port, "-j", "TO-" + port},
	}
}

// udrRoute is the fabric's route for a user-defined one. One to an address that
// no card has leads nowhere.
func (l *Lab) udrRoute(r scenario.Route) route {
	if l.s.Topology.Switched {
		return route{dst: r.Prefix, via: r.Via, link: switchLink}
	}
	for _, t := range l.s.Topology.Families() {
		for i, n := range t.Nodes {
			if slices.Contains(n.Addresses(), r.Via) {
				if n.Second.Name != "" && r.Prefix == n.PodCIDR {
					return route{dst: r.Prefix, via: n.Second.IP.Addr(), link: secondLink(i)}
				}
				// The card's own address is the one with a neighbour.
				return route{dst: r.Prefix, via: n.IP, link: nicLink(i), onlink: true}
			}
		}
	}
	return route{dst: r.Prefix, link: sinkLink}
}
