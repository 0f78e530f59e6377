package lab

import (
	"errors"
	"fmt"

	"github.com/vishvananda/netlink"
	"golang.org/x/sys/unix"

	"github.com/lasthop/lasthop/kind/scenario"
)

// smallMTU is IPv6's least: less, and the kernel would take IPv6 from the link.
const smallMTU, fullMTU = 1280, 1500

// routingFault does or undoes a fault of the node's own routing.
func routingFault(sp *space, n *scenario.Node, f scenario.Fault, do bool) error {
	switch f.Type {
	case scenario.BlackholeRoute:
		return blackhole(sp, f, do)
	case scenario.AsymmetricRoute:
		r := route{dst: f.Prefix, link: n.Bridge}
		if do {
			return sp.route(r)
		}
		return sp.unroute(r)
	case scenario.ReturningUDR:
		strict := "1"
		if do {
			strict = "0"
		}
		return sp.sysctls("ipv4/conf/all/rp_filter", strict, "ipv4/conf/"+uplinkOf(n)+"/rp_filter", strict)
	case scenario.SmallMTU:
		mtu := fullMTU
		if do {
			mtu = smallMTU
		}
		if err := sp.run(iptables, op(do, "-A"), "OUTPUT", "-p", "icmp", "--icmp-type", "fragmentation-needed", "-j", "DROP"); err != nil {
			return err
		}
		return sp.withLink(n.NIC, "set MTU of", func(l netlink.Link) error { return sp.nl.LinkSetMTU(l, mtu) })
	}
	return fmt.Errorf("no fault %q of routing", f.Type)
}

// blackhole makes or deletes a route that throws away what it covers.
func blackhole(sp *space, f scenario.Fault, do bool) error {
	r := &netlink.Route{Dst: ipNet(f.Prefix), Type: unix.RTN_BLACKHOLE}
	if do {
		return wrap(sp.nl.RouteReplace(r), "set blackhole route %s in %s", f.Prefix, sp.name)
	}
	if err := sp.nl.RouteDel(r); err != nil && !errors.Is(err, unix.ESRCH) {
		return fmt.Errorf("delete blackhole route %s in %s: %w", f.Prefix, sp.name, err)
	}
	return nil
}
