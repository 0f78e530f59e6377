package lab

import (
	"cmp"
	"errors"
	"fmt"
	"net/netip"

	"github.com/vishvananda/netlink"

	"github.com/lasthop/lasthop/kind/scenario"
)

// fabricFaults are those of the cloud's network.
var fabricFaults = map[scenario.FaultType]injection{
	scenario.DeleteUDR: func(x *target) error {
		for _, r := range x.s.StruckRoutes(x.Fault) {
			if err := x.sp.haveRoute(x.udrRoute(r), x.undo); err != nil {
				return err
			}
		}
		return nil
	},
	scenario.WrongUDR: func(x *target) error {
		for _, r := range x.s.StruckRoutes(x.Fault) {
			r.Via = pick(x, x.Via, r.Via)
			if err := x.sp.route(x.udrRoute(r)); err != nil {
				return err
			}
		}
		return nil
	},
	scenario.ReturningUDR: func(x *target) error {
		err := x.inFabric(func(fabric *space) error {
			return fabric.haveRoute(x.udrRoute(scenario.Route{Prefix: x.Prefix, Via: x.node.IP}), !x.undo)
		})
		if err != nil {
			return err
		}
		filter := pick(x, "0", "1")
		return x.sp.sysctls("ipv4/conf/all/rp_filter", filter, "ipv4/conf/"+uplinkOf(x.node)+"/rp_filter", filter)
	},
	scenario.NICForwardingOff: func(x *target) error {
		return x.inFabric(func(fabric *space) error { return fabric.runAll(iptables, spoofJumps(x.op("-A"), x.port)...) })
	},
	scenario.NSGDrop: func(x *target) error {
		to := x.Prefix
		if !to.IsValid() {
			to = defaultRoute
		}
		return x.inFabric(func(fabric *space) error {
			for _, src := range podSources(x.node) {
				for _, what := range toPort(x.Port) {
					rule := words("? FORWARD -i ? -s ? -d ?", x.op("-I"), x.port, src, to)
					if err := fabric.run(iptables, append(append(rule, what...), "-j", "DROP")...); err != nil {
						return err
					}
				}
			}
			return nil
		})
	},
	scenario.FabricMTU: func(x *target) error {
		// A smaller MTU of a link would be known at the other end of it: the pair that
		// makes it is one of this machine.
		long := words("-m length --length ?", fmt.Sprintf("%d:", smallMTU+1))
		return x.inFabric(func(fabric *space) error {
			return fabric.runAll(iptables,
				append(append(words("? FORWARD -i ?", x.op("-I"), x.port), long...), "-j", "DROP"),
				append(append(words("? FORWARD -o ?", x.op("-I"), x.port), long...), "-j", "DROP"))
		})
	},
	scenario.NICRefuses: func(x *target) error {
		return x.inFabric(func(fabric *space) error {
			return fabric.withLink(x.port, "set MTU of", func(l netlink.Link) error {
				return fabric.nl.LinkSetMTU(l, pick(x, smallMTU, fullMTU))
			})
		})
	},
	scenario.TunnelDrop: func(x *target) error {
		return x.inFabric(func(fabric *space) error {
			return fabric.runAll(iptables,
				words("? FORWARD -i ? -p udp --dport ? -j DROP", x.op("-I"), x.port, overlayPort),
				words("? FORWARD -o ? -p udp --dport ? -j DROP", x.op("-I"), x.port, overlayPort))
		})
	},
	scenario.TunnelAstray: func(x *target) error {
		far, err := x.behindOverlay()
		if err != nil {
			return err
		}
		return x.sp.tunnelEnd(x.topology.Overlay, far, pick(x, x.Via, far.IP))
	},
	scenario.TunnelEndGone: func(x *target) error {
		far, err := x.behindOverlay()
		if err != nil {
			return err
		}
		if x.undo {
			return x.sp.tunnelEnd(x.topology.Overlay, far, far.IP)
		}
		return x.sp.withLink(x.topology.Overlay, "delete tunnel end of", func(l netlink.Link) error {
			return x.sp.nl.NeighDel(overlayEnd(l, far, far.IP))
		})
	},
	scenario.TunnelHopGone: func(x *target) error {
		far, err := x.behindOverlay()
		if err != nil {
			return err
		}
		return x.sp.haveNeigh(x.topology.Overlay, far.PodCIDR.Addr(), overlayMAC(far), x.undo)
	},
	scenario.TunnelMAC: func(x *target) error {
		err := x.sp.setMAC(x.topology.Overlay, pick(x, x.MAC, overlayMAC(x.node)))
		// The kernel forgets all neighbours of a link whose MAC changes.
		for i := range x.topology.Nodes {
			if far := &x.topology.Nodes[i]; far.Name != x.node.Name {
				err = errors.Join(err, x.sp.neigh(x.topology.Overlay, far.PodCIDR.Addr(), overlayMAC(far)))
			}
		}
		return err
	},
	scenario.NoReturn: func(x *target) error {
		return x.inFabric(func(fabric *space) error {
			return fabric.run(iptables, words("? FORWARD -i ? -o ? -j DROP", x.op("-I"), edgeLink, x.port)...)
		})
	},
	scenario.NoOutbound: func(x *target) error {
		return x.inFabric(func(fabric *space) error {
			return fabric.run(iptables, words("? FORWARD -i ? -o ? -j DROP", x.op("-I"), x.port, edgeLink)...)
		})
	},
	scenario.NICAddressGone: func(x *target) error {
		return x.inFabric(func(fabric *space) error {
			return fabric.haveRoute(route{dst: host(x.pod.IP), via: x.node.IP, link: x.port, onlink: true}, x.undo)
		})
	},
	scenario.SilentFabric: func(x *target) error {
		err := x.inFabric(func(fabric *space) error {
			answer, conf := pick(x, "0", "1"), "ipv4/conf/"+x.port+"/"
			return fabric.sysctls(conf+"proxy_arp", answer, conf+"proxy_arp_pvlan", answer)
		})
		if err != nil {
			return err
		}
		return x.sp.forgetNeighbors(cmp.Or(x.node.Bridge, x.node.NIC), netip.Addr{})
	},
}

// behindOverlay is the other node whose pods have the fault's prefix.
func (x *target) behindOverlay() (*scenario.Node, error) {
	for i := range x.topology.Nodes {
		if far := &x.topology.Nodes[i]; far.PodCIDR == x.Prefix && far.Name != x.node.Name {
			return far, nil
		}
	}
	return nil, fmt.Errorf("no other node's pods have %s", x.Prefix)
}

// toPort are the matches of what is for a port, by whichever protocol; 0 is all.
func toPort(port uint16) [][]string {
	if port == 0 {
		return [][]string{nil}
	}
	return [][]string{words("-p tcp --dport ?", port), words("-p udp --dport ?", port)}
}

// podSources are the addresses that a node's pods send from.
func podSources(n *scenario.Node) []netip.Prefix {
	if n.PodCIDR.IsValid() {
		return []netip.Prefix{n.PodCIDR}
	}
	var out []netip.Prefix
	for p := range n.AllPods() {
		out = append(out, host(p.IP))
	}
	return out
}

// smallMTU is the least with which the kernel keeps IPv6 on a link.
const smallMTU, fullMTU = 1280, 1500

// routeFaults are those of a node's own routing.
var routeFaults = map[scenario.FaultType]injection{
	scenario.ForwardingOff: func(x *target) error {
		name := "ipv4/ip_forward"
		if x.node.IP.Is6() {
			name = "ipv6/conf/all/forwarding"
		}
		return x.sp.sysctl(name, pick(x, "0", "1"))
	},
	scenario.BlackholeRoute: func(x *target) error {
		return x.sp.haveRoute(route{dst: x.Prefix, blackhole: true}, !x.undo)
	},
	scenario.AsymmetricRoute: func(x *target) error {
		return x.sp.haveRoute(route{dst: x.Prefix, link: x.node.Bridge}, !x.undo)
	},
	scenario.DeleteNodeRoute: func(x *target) error {
		r, err := nodeRoute(&x.s.Topology, x.node, x.Prefix)
		if err != nil {
			return err
		}
		return x.sp.haveRoute(r, x.undo)
	},
	scenario.WrongNodeRoute: func(x *target) error {
		r, err := nodeRoute(&x.s.Topology, x.node, x.Prefix)
		if err != nil {
			return err
		}
		r.via = pick(x, x.Via, r.via)
		return x.sp.route(r)
	},
	scenario.DeleteDefaultRoute: func(x *target) error {
		return x.sp.haveRoute(route{dst: defaultFor(x.node.IP), via: x.topology.Gateway, link: uplinkOf(x.node)}, x.undo)
	},
	scenario.DeletePodRoute: func(x *target) error {
		err := x.sp.haveRoute(route{dst: host(x.pod.IP), link: x.pod.Link}, x.undo)
		if err != nil || x.node.Plugin != scenario.Cilium {
			return err
		}
		return pick(x, x.sp.unrule, x.sp.rule)(toPod(x.pod))
	},
	scenario.PodTableEmpty: func(x *target) error { return x.sp.haveRoute(x.tableDefault(), x.undo) },
	scenario.PodTableUnruled: func(x *target) error {
		if x.undo {
			return x.sp.rule(x.podRule())
		}
		return x.sp.unrule(x.podRule())
	},
	scenario.PodTableWrong: func(x *target) error {
		const table = 77
		first := route{dst: defaultRoute, via: x.topology.Gateway, link: uplinkOf(x.node), table: table}
		wrong, own := x.podRule(), x.podRule()
		wrong.table = table
		if x.undo {
			return errors.Join(x.sp.rule(own), x.sp.unrule(wrong), x.sp.unroute(first))
		}
		return errors.Join(x.sp.route(first), x.sp.rule(wrong), x.sp.unrule(own))
	},
	scenario.LeftoverRule: func(x *target) error {
		const table, priority = 210, 50
		r := rule{priority: priority, to: x.Prefix, table: table}
		if x.undo {
			return errors.Join(x.sp.unrule(r), x.sp.unroute(route{dst: defaultRoute, link: uplinkOf(x.node), table: table}))
		}
		return errors.Join(x.sp.route(route{dst: defaultRoute, via: x.topology.Gateway, link: uplinkOf(x.node), table: table}), x.sp.rule(r))
	},
	scenario.BridgeWithoutAddress: func(x *target) error {
		gateway := netip.PrefixFrom(x.node.PodGateway(), x.node.PodCIDR.Bits())
		return x.sp.haveAddr(x.node.Bridge, gateway, x.undo)
	},
	scenario.PodAddressOnNode: func(x *target) error {
		return x.sp.haveAddr("lo", netip.PrefixFrom(x.pod.IP, x.pod.IP.BitLen()), !x.undo)
	},
	scenario.PodRouteLocal: func(x *target) error {
		return x.sp.haveRoute(route{dst: netip.PrefixFrom(x.pod.IP, x.pod.IP.BitLen()), link: "lo", local: true}, !x.undo)
	},
	scenario.PodWithoutAddress: func(x *target) error {
		return x.inPod(func(pod *space) error {
			if x.undo {
				return x.address(pod)
			}
			return pod.flushAddrs(podInterface, x.pod.IP.Is6())
		})
	},
	scenario.PodDuplicateDetected: duplicateDetected,
	scenario.PodWithoutDefaultRoute: func(x *target) error {
		return x.inPod(func(pod *space) error {
			return pod.haveRoute(route{dst: defaultFor(x.pod.IP), via: x.gateway(), link: podInterface}, x.undo)
		})
	},
	scenario.PodDefaultElsewhere: func(x *target) error {
		return x.inPod(func(pod *space) error {
			first, other := route{dst: defaultRoute, via: x.gateway(), link: podInterface}, route{dst: defaultRoute, via: second(254).Addr(), link: "net1"}
			if x.undo {
				return errors.Join(pod.unroute(other), pod.route(first))
			}
			return errors.Join(pod.unroute(first), pod.route(other))
		})
	},
	scenario.PodBlackhole: func(x *target) error {
		return x.inPod(func(pod *space) error {
			// Two halves go before the default route, which stays.
			return errors.Join(
				pod.haveRoute(route{dst: netip.MustParsePrefix("0.0.0.0/1"), blackhole: true}, !x.undo),
				pod.haveRoute(route{dst: netip.MustParsePrefix("128.0.0.0/1"), blackhole: true}, !x.undo))
		})
	},
	scenario.PodWrongPrefix: func(x *target) error {
		return x.inPod(func(pod *space) error {
			if err := pod.flushAddrs(podInterface, x.pod.IP.Is6()); err != nil || x.undo {
				return errors.Join(err, x.address(pod))
			}
			if err := pod.addr(podInterface, netip.PrefixFrom(x.pod.IP, podBits(x.topology, x.node)-8), netlink.SCOPE_UNIVERSE); err != nil {
				return err
			}
			return pod.route(route{dst: defaultFor(x.pod.IP), via: x.gateway(), link: podInterface})
		})
	},
	scenario.SmallMTU: func(x *target) error {
		if err := x.iptables(words("? OUTPUT -p icmp --icmp-type fragmentation-needed -j DROP", x.op("-A"))); err != nil {
			return err
		}
		return x.sp.withLink(x.node.NIC, "set MTU of", func(l netlink.Link) error { return x.sp.nl.LinkSetMTU(l, pick(x, smallMTU, fullMTU)) })
	},
}

// address gives a pod its address and routes again.
func (x *target) address(pod *space) error {
	b := &builder{Lab: x.Lab, topology: x.topology}
	if x.pod.Bridged {
		return b.podAddress(x.node, x.pod, pod)
	}
	return b.routedAddress(x.node, x.pod, pod)
}

// duplicateDetected has a pod's IPv6 address fail duplicate address detection, or gives
// it again without any.
func duplicateDetected(x *target) error {
	place, _, err := x.viaPod()
	if err != nil {
		return err
	}
	detect := pick(x, "1", "0")
	return x.inPod(func(pod *space) error {
		if err := pod.flushAddrs(podInterface, true); err != nil {
			return err
		}
		conf := "ipv6/conf/" + podInterface
		if err := pod.sysctls(conf+"/accept_dad", detect, conf+"/dad_transmits", detect); err != nil || x.undo {
			return errors.Join(err, x.address(pod))
		}
		return x.with(place, func(other *space) error {
			if err := other.haveAddr(podInterface, host(x.pod.IP), true); err != nil {
				return err
			}
			err := other.awaitSettled(x.ctx)
			if err == nil {
				err = x.address(pod)
			}
			if err == nil {
				err = pod.awaitDuplicate(x.ctx)
			}
			return errors.Join(err, other.haveAddr(podInterface, host(x.pod.IP), false))
		})
	})
}
