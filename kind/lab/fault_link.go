package lab

import (
	"errors"
	"fmt"
	"net/netip"

	"github.com/vishvananda/netlink"

	"github.com/lasthop/lasthop/kind/scenario"
	"github.com/lasthop/lasthop/probe/model"
)

// linkFaults are those of links, neighbours and bridges.
var linkFaults = map[scenario.FaultType]injection{
	// In front, where the older rule is.
	scenario.StaleDNAT: func(x *target) error {
		return x.sp.run(ebtables, frameDNAT(x.op("-I"), x.node.NIC, x.pod.IP, x.MAC)...)
	},
	scenario.StaleARPReply: func(x *target) error {
		if err := x.sp.run(ebtables, arpReply(x.op("-I"), x.pod.IP, x.MAC)...); err != nil {
			return err
		}
		return x.forget(x.sp, x.node, x.pod)
	},
	scenario.WrongNeighbor: func(x *target) error {
		link := deviceOf(x.node, x.pod)
		if x.undo && x.pod.Bridged && !x.node.PodGateway().IsValid() && x.node.Plugin != scenario.AzureTunnel {
			// The plugin pins the pods on its bridge too.
			return x.sp.neigh(link, x.pod.IP, x.pod.MAC)
		}
		return x.sp.haveNeigh(link, x.pod.IP, x.MAC, !x.undo)
	},
	scenario.StaleBridgeNeighbor: func(x *target) error {
		return x.sp.haveNeigh(x.node.Bridge, x.pod.IP, x.MAC, !x.undo)
	},
	scenario.WrongGateway: func(x *target) error {
		return x.inPod(func(pod *space) error { return pod.haveNeigh(podInterface, x.gateway(), x.MAC, !x.undo) })
	},
	scenario.LinkMAC: linkMAC,
	scenario.SilentGateway: func(x *target) error {
		gateway := x.gateway()
		// A gateway that is the node's own address needs no proxy: 8 is to
		// answer for no local address.
		setting, silent, answering := "arp_ignore", "8", "0"
		if gateway == scenario.LinkLocalGateway {
			setting, silent, answering = "proxy_arp", "0", "1"
		}
		name := "ipv4/conf/" + x.pod.Link + "/" + setting
		if x.pod.IP.Is6() {
			name, silent, answering = "ipv6/conf/"+x.pod.Link+"/proxy_ndp", "0", "1"
		}
		if err := x.sp.sysctl(name, pick(x, silent, answering)); err != nil {
			return err
		}
		return x.inPod(func(pod *space) error { return pod.forgetNeighbors(podInterface, gateway) })
	},
	scenario.DuplicateIP: func(x *target) error {
		place, _, err := x.viaPod()
		if err != nil {
			return err
		}
		err = x.with(place, func(pod *space) error {
			if !x.undo {
				return pod.addr(podInterface, host(x.pod.IP), netlink.SCOPE_UNIVERSE)
			}
			return pod.withLink(podInterface, "take address from", func(link netlink.Link) error {
				return pod.nl.AddrDel(link, &netlink.Addr{IPNet: ipNet(host(x.pod.IP))})
			})
		})
		if err != nil {
			return err
		}
		return x.forget(x.sp, x.node, x.pod)
	},
	scenario.ReusedIP: reuse,
	scenario.PodLinkDown: func(x *target) error {
		if x.undo {
			return x.reconnect()
		}
		return x.sp.down(x.pod.Link)
	},
	scenario.PodInterfaceDown: func(x *target) error {
		if x.undo {
			return x.reviveInterface()
		}
		return x.inPod(func(pod *space) error { return pod.down(podInterface) })
	},
	scenario.BridgeDrop: func(x *target) error {
		return x.sp.runAll(ebtables,
			words("? FORWARD -p IPv4 --ip-dst ? -j DROP", x.op("-I"), x.pod.IP),
			words("? OUTPUT -p IPv4 --ip-dst ? -j DROP", x.op("-I"), x.pod.IP))
	},
	scenario.DedupFlushed: func(x *target) error {
		return x.sp.runAll(ebtables, pick(x, [][]string{{"-F", dedupChain(x.node)}}, dedupRules(x.node))...)
	},
}

// linkMAC gives the host side of a link another address, while the pod keeps
// the former one. Undoing it gives the link what the pod has kept.
func linkMAC(x *target) error {
	gateway := x.gateway()
	set := func(mac model.MAC) error {
		return x.sp.withLink(x.pod.Link, "set MAC of", func(link netlink.Link) error {
			return x.sp.nl.LinkSetHardwareAddr(link, hardware(mac))
		})
	}
	return x.inPod(func(pod *space) error {
		if x.undo {
			kept, err := pod.pinned(podInterface, gateway)
			if err != nil {
				return err
			}
			return errors.Join(set(kept), pod.unneigh(podInterface, gateway))
		}
		link, err := x.sp.link(x.pod.Link)
		if err != nil {
			return err
		}
		if err := pod.neigh(podInterface, gateway, model.MACFrom(link.Attrs().HardwareAddr)); err != nil {
			return err
		}
		return set(x.MAC)
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

// reviveInterface brings the pod's interface up again, with the routes that it
// lost.
func (x *target) reviveInterface() error {
	err := x.inPod(func(pod *space) error {
		if err := joinUp(x.ctx, x.sp, x.pod.Link, pod, podInterface); err != nil {
			return err
		}
		gateway := x.gateway()
		if !x.pod.Bridged {
			if err := pod.route(route{dst: host(gateway), link: podInterface}); err != nil {
				return err
			}
		}
		return pod.route(route{dst: defaultRoute, via: gateway, link: podInterface})
	})
	if err != nil {
		return err
	}
	return x.forget(x.sp, x.node, x.pod)
}
