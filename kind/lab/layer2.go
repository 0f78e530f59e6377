package lab

import (
	"context"
	"errors"
	"fmt"
	"net/netip"

	"github.com/vishvananda/netlink"

	"github.com/lasthop/lasthop/kind/scenario"
	"github.com/lasthop/lasthop/probe/model"
)

// layer2Fault does or undoes a fault of a pod's link, neighbours or bridge.
func (l *Lab) layer2Fault(ctx context.Context, sp *space, n *scenario.Node, p *scenario.Pod, f scenario.Fault, do bool) error {
	inPod := func(what func(*space) error) error { return l.with(f.Pod, what) }
	switch f.Type {
	case scenario.LinkMAC:
		return l.linkMAC(sp, n, p, f, do)
	case scenario.WrongGateway:
		return inPod(func(pod *space) error { return pinGateway(pod, l.gatewayOf(n, p), f.MAC, do) })
	case scenario.StaleBridgeNeighbor:
		if do {
			return sp.neigh(n.Bridge, p.IP, f.MAC)
		}
		return sp.unneigh(n.Bridge, p.IP)
	case scenario.ReusedIP:
		return l.reuse(ctx, sp, n, p, f, do)
	case scenario.DuplicateIP:
		return l.duplicate(sp, n, p, f, do)
	case scenario.SilentGateway:
		return l.silence(sp, n, p, f, do)
	case scenario.PodInterfaceDown:
		if do {
			return inPod(func(pod *space) error { return pod.withLink(podInterface, "take down", pod.nl.LinkSetDown) })
		}
		return l.reviveInterface(ctx, sp, n, p, f)
	case scenario.BridgeDrop:
		for _, chain := range []string{"FORWARD", "OUTPUT"} {
			if err := sp.run(ebtables, op(do, "-I"), chain, "-p", "IPv4", "--ip-dst", p.IP.String(), "-j", "DROP"); err != nil {
				return err
			}
		}
		return nil
	}
	return fmt.Errorf("no fault %q of a pod", f.Type)
}

// gatewayOf is the next hop of a pod's default route.
func (l *Lab) gatewayOf(n *scenario.Node, p *scenario.Pod) netip.Addr {
	switch {
	case n.PodGateway().IsValid():
		return n.PodGateway()
	case p.Bridged:
		return l.s.Topology.Gateway
	case n.Plugin.HasRouter():
		return n.Router
	}
	return scenario.LinkLocalGateway
}

// pinGateway pins the pod's entry for its gateway, or forgets it.
func pinGateway(pod *space, gateway netip.Addr, mac model.MAC, do bool) error {
	if do {
		return pod.neigh(podInterface, gateway, mac)
	}
	return pod.unneigh(podInterface, gateway)
}

// linkMAC gives the host side of a link another address, while the pod keeps
// the former one. Undoing it gives the link what the pod has kept.
func (l *Lab) linkMAC(sp *space, n *scenario.Node, p *scenario.Pod, f scenario.Fault, do bool) error {
	gateway := l.gatewayOf(n, p)
	set := func(mac model.MAC) error {
		return sp.withLink(p.Link, "set MAC of", func(link netlink.Link) error {
			return sp.nl.LinkSetHardwareAddr(link, hardware(mac))
		})
	}
	return l.with(f.Pod, func(pod *space) error {
		if !do {
			kept, err := pod.pinned(podInterface, gateway)
			if err != nil {
				return err
			}
			return errors.Join(set(kept), pod.unneigh(podInterface, gateway))
		}
		link, err := sp.link(p.Link)
		if err != nil {
			return err
		}
		if err := pod.neigh(podInterface, gateway, model.MACFrom(link.Attrs().HardwareAddr)); err != nil {
			return err
		}
		return set(f.MAC)
	})
}

// pinned is the MAC that a neighbour is pinned to.
func (sp *space) pinned(link string, a netip.Addr) (mac model.MAC, err error) {
	err = sp.withLink(link, "list neighbours on", func(l netlink.Link) error {
		all, err := sp.nl.NeighList(l.Attrs().Index, netlink.FAMILY_ALL)
		for _, n := range all {
			if got, _ := netip.AddrFromSlice(n.IP); got.Unmap() == a && n.State&netlink.NUD_PERMANENT != 0 {
				mac = model.MACFrom(n.HardwareAddr)
			}
		}
		return err
	})
	if err == nil && mac.IsZero() {
		err = fmt.Errorf("find pinned neighbour %s in %s: none", a, sp.name)
	}
	return mac, err
}

// duplicate gives a pod's address to another pod of the node, or takes it away.
func (l *Lab) duplicate(sp *space, n *scenario.Node, p *scenario.Pod, f scenario.Fault, do bool) error {
	place := l.s.Topology.Place(f.Via)
	if _, other := l.s.Topology.Pod(place); other == nil {
		return fmt.Errorf("no pod holds %s", f.Via)
	}
	err := l.with(place, func(pod *space) error {
		if do {
			return pod.addr(podInterface, host(p.IP), netlink.SCOPE_UNIVERSE)
		}
		return pod.withLink(podInterface, "take address from", func(link netlink.Link) error {
			return pod.nl.AddrDel(link, &netlink.Addr{IPNet: ipNet(host(p.IP))})
		})
	})
	if err != nil {
		return err
	}
	return l.forget(sp, n, p)
}

// silence has the node answer no ARP request of a pod, or answer again.
func (l *Lab) silence(sp *space, n *scenario.Node, p *scenario.Pod, f scenario.Fault, do bool) error {
	gateway := l.gatewayOf(n, p)
	// A gateway that is the node's own address needs no proxy: 8 is to answer
	// for no local address.
	setting, silent, talking := "arp_ignore", "8", "0"
	if gateway == scenario.LinkLocalGateway {
		setting, silent, talking = "proxy_arp", "0", "1"
	}
	name := "ipv4/conf/" + p.Link + "/" + setting
	if f.Family == 6 {
		name, silent, talking = "ipv6/conf/"+p.Link+"/proxy_ndp", "0", "1"
	}
	value := talking
	if do {
		value = silent
	}
	if err := sp.sysctl(name, value); err != nil {
		return err
	}
	return l.with(f.Pod, func(pod *space) error { return pod.forgetNeighbors(podInterface, gateway) })
}

// reviveInterface brings a pod's interface up again, with the routes that it
// lost.
func (l *Lab) reviveInterface(ctx context.Context, sp *space, n *scenario.Node, p *scenario.Pod, f scenario.Fault) error {
	err := l.with(f.Pod, func(pod *space) error {
		if err := joinUp(ctx, sp, p.Link, pod, podInterface); err != nil {
			return err
		}
		gateway := l.gatewayOf(n, p)
		if !p.Bridged {
			if err := pod.route(route{dst: host(gateway), link: podInterface}); err != nil {
				return err
			}
		}
		return pod.route(route{dst: defaultRoute, via: gateway, link: podInterface})
	})
	if err != nil {
		return err
	}
	return l.forget(sp, n, p)
}
