package lab

import (
	"errors"
	"fmt"
	"net/netip"

	"github.com/vishvananda/netlink"
	"github.com/vishvananda/netlink/nl"
	"golang.org/x/sys/unix"

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
		if !x.undo {
			// A pod that resolves this one while it asks for its gateway takes the MAC from that request.
			err := x.inPod(func(pod *space) error { return pod.resolve(x.ctx, podInterface, x.gateway()) })
			if err != nil {
				return err
			}
		}
		if err := x.sp.run(ebtables, arpReply(x.op("-I"), x.pod.IP, x.MAC)...); err != nil {
			return err
		}
		return x.forget(x.sp, x.node, x.pod)
	},
	scenario.GatewayARPReply: func(x *target) error {
		if err := x.sp.run(ebtables, arpReply(x.op("-I"), x.gateway(), x.MAC)...); err != nil {
			return err
		}
		for p := range x.node.AllPods() {
			if p.Bridged && !p.Gone {
				err := x.with(x.node.Name+"/"+p.Name, func(pod *space) error { return pod.forgetNeighbors(podInterface, x.gateway()) })
				if err != nil {
					return err
				}
			}
		}
		return nil
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
		err = x.with(place, func(pod *space) error { return pod.haveAddr(podInterface, host(x.pod.IP), !x.undo) })
		if err != nil {
			return err
		}
		return x.forget(x.sp, x.node, x.pod)
	},
	scenario.UplinkQueueFull: func(x *target) error { return x.limit(x.sp, x.node.NIC, trickle) },
	scenario.PodQueueFull:    func(x *target) error { return x.limit(x.sp, x.pod.Link, trickle) },
	scenario.QueueInPodFull: func(x *target) error {
		return x.inPod(func(pod *space) error { return x.limit(pod, podInterface, trickle) })
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
	// Isolated ports still exchange frames with those that are not.
	scenario.PortsIsolated: func(x *target) error {
		_, other, err := x.viaPod()
		if err != nil {
			return err
		}
		for _, port := range []string{x.pod.Link, other.Link} {
			if err := x.sp.withLink(port, "isolate", func(l netlink.Link) error { return x.sp.nl.LinkSetIsolated(l, !x.undo) }); err != nil {
				return err
			}
		}
		return nil
	},
	scenario.PortBlocked: func(x *target) error {
		return x.sp.portState(x.pod.Link, pick[uint8](x, portDisabled, portForwarding))
	},
	scenario.LinkOffBridge: func(x *target) error {
		return x.offBridge(x.pod.Link, !x.node.PodGateway().IsValid() || x.node.Hairpin)
	},
	scenario.NICOffBridge: func(x *target) error { return x.offBridge(x.node.NIC, true) },
	// Sticky, so that the bridge does not learn the pod's port again.
	scenario.StaleFDB: func(x *target) error {
		_, other, err := x.viaPod()
		if err != nil {
			return err
		}
		return x.sp.withLink(other.Link, "set forwarding entry on", func(l netlink.Link) error {
			return pick(x, x.sp.nl.NeighSet, x.sp.nl.NeighDel)(&netlink.Neigh{
				LinkIndex: l.Attrs().Index, Family: unix.AF_BRIDGE, HardwareAddr: hardware(x.pod.MAC),
				State: netlink.NUD_NOARP, Flags: netlink.NTF_MASTER | ntfSticky,
			})
		})
	},
	scenario.PodsShareMAC: func(x *target) error {
		place, other, err := x.viaPod()
		if err != nil {
			return err
		}
		err = x.with(place, func(pod *space) error { return pod.setMAC(podInterface, pick(x, x.pod.MAC, other.MAC)) })
		if err != nil {
			return err
		}
		return errors.Join(x.forget(x.sp, x.node, x.pod), x.forget(x.sp, x.node, other))
	},
	scenario.BridgeNetfilterOff: func(x *target) error {
		filtered := pick(x, "0", "1")
		return errors.Join(x.sp.sysctls("bridge/bridge-nf-call-iptables", filtered, "bridge/bridge-nf-call-ip6tables", filtered), x.sp.forgetFlows())
	},
	scenario.GatewayMACPinned: func(x *target) error {
		return x.sp.haveNeigh(uplinkOf(x.node), x.topology.Gateway, x.MAC, !x.undo)
	},
	// The fabric answers for that machine, and loses what is sent to it.
	scenario.GatewayTaken: func(x *target) error {
		lines := "delete table arp taken\n"
		if !x.undo {
			lines = fmt.Sprintf(`table arp taken {
	chain replies {
		type filter hook output priority 0
		oifname %q arp saddr ip %s arp saddr ether set %s
	}
}
`, x.port, x.topology.Gateway, x.MAC)
		}
		err := x.inFabric(func(fabric *space) error {
			_, err := fabric.pipe(lines, nft, "-f", "-")
			return err
		})
		return errors.Join(err, x.sp.forgetNeighbors(uplinkOf(x.node), x.topology.Gateway))
	},
	scenario.DedupFlushed: func(x *target) error {
		return x.sp.runAll(ebtables, pick(x, [][]string{{"-F", dedupChain(x.node)}}, dedupRules(x.node))...)
	},
}

// linkMAC gives the host side of a link another address, while the pod keeps
// the former one. Undoing it gives the link what the pod has kept.
func linkMAC(x *target) error {
	gateway := x.gateway()
	return x.inPod(func(pod *space) error {
		if x.undo {
			kept, err := pod.pinned(podInterface, gateway)
			if err != nil {
				return err
			}
			return errors.Join(x.sp.setMAC(x.pod.Link, kept), pod.unneigh(podInterface, gateway))
		}
		link, err := x.sp.link(x.pod.Link)
		if err != nil {
			return err
		}
		if err := pod.neigh(podInterface, gateway, model.MACFrom(link.Attrs().HardwareAddr)); err != nil {
			return err
		}
		return x.sp.setMAC(x.pod.Link, x.MAC)
	})
}

// setMAC gives a link another address.
func (sp *space) setMAC(link string, mac model.MAC) error {
	return sp.withLink(link, "set MAC of", func(l netlink.Link) error { return sp.nl.LinkSetHardwareAddr(l, hardware(mac)) })
}

// ntfSticky keeps a forwarding entry at its port (NTF_STICKY of
// linux/neighbour.h, since Linux 4.20).
const ntfSticky = 0x40

// The states of a bridge port (linux/if_bridge.h). On a bridge without STP the
// kernel turns blocking into forwarding at once, and listening into learning and
// forwarding while the forward delay runs that began when the port came up.
const (
	portDisabled   = 0
	portForwarding = 3
)

// portState sets the STP state of a bridge port.
func (sp *space) portState(link string, state uint8) error {
	return sp.withLink(link, "set port state of", func(l netlink.Link) error {
		req := nl.NewNetlinkRequest(unix.RTM_SETLINK, unix.NLM_F_ACK)
		msg := nl.NewIfInfomsg(unix.AF_BRIDGE)
		msg.Index = int32(l.Attrs().Index)
		port := nl.NewRtAttr(unix.IFLA_PROTINFO|unix.NLA_F_NESTED, nil)
		port.AddRtAttr(nl.IFLA_BRPORT_STATE, []byte{state})
		req.AddData(msg)
		req.AddData(port)
		return sp.ns.Do(func() error {
			_, err := req.Execute(unix.NETLINK_ROUTE, 0)
			return err
		})
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
		if x.pod.Bridged {
			return pod.route(route{dst: defaultRoute, via: x.gateway(), link: podInterface})
		}
		return routedRoutes(x.topology, x.node, x.pod, pod)
	})
	if err != nil {
		return err
	}
	return x.forget(x.sp, x.node, x.pod)
}

// trickle and plenty are rates in bytes a second.
const trickle, plenty = 125, 125_000_000

// limit gives a link a queue that lets a rate pass and holds a few packets more.
func (x *target) limit(sp *space, link string, rate uint64) error {
	return sp.withLink(link, "limit", func(l netlink.Link) error {
		q := &netlink.Tbf{
			QdiscAttrs: netlink.QdiscAttrs{LinkIndex: l.Attrs().Index, Handle: netlink.MakeHandle(0x42, 0), Parent: netlink.HANDLE_ROOT},
			Rate:       rate, Limit: max(3000, uint32(rate/40)), Buffer: netlink.Xmittime(rate, max(1600, uint32(rate/100))),
		}
		return pick(x, sp.nl.QdiscReplace, sp.nl.QdiscDel)(q)
	})
}

// offBridge takes a link out of the node's bridge, or puts it back.
func (x *target) offBridge(link string, hairpin bool) error {
	if !x.undo {
		return x.sp.withLink(link, "release", x.sp.nl.LinkSetNoMaster)
	}
	if err := x.sp.port(link, x.node.Bridge, hairpin); err != nil {
		return err
	}
	return x.sp.awaitUp(x.ctx, x.node.Bridge)
}
