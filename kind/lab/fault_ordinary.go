package lab

import (
	"errors"
	"fmt"
	"net/netip"
	"os"
	"path/filepath"
	"slices"

	"github.com/vishvananda/netlink"

	"github.com/lasthop/lasthop/kind/scenario"
	"github.com/lasthop/lasthop/probe/model"
)

// ordinaryStates are no faults: what many nodes have, and what harms none.
var ordinaryStates = map[scenario.FaultType]injection{
	scenario.Service:         backend,
	scenario.ServiceByMaps:   proxyService,
	scenario.SecondInterface: secondInterface,
	scenario.PodTable: func(x *target) error {
		link := route{dst: host(x.node.Second.Gateway.Addr()), link: x.node.Second.Name, table: x.podTable()}
		if x.node.Plugin == scenario.AWSVPC {
			if err := x.toSecond(); err != nil {
				return err
			}
		}
		if x.undo {
			return errors.Join(x.sp.unrule(x.podRule()), x.sp.unroute(x.tableDefault()), x.sp.unroute(link))
		}
		return errors.Join(x.sp.route(link), x.sp.route(x.tableDefault()), x.sp.rule(x.podRule()))
	},
	scenario.QueueShaped: func(x *target) error {
		return errors.Join(x.limit(x.sp, x.pod.Link, plenty), x.limit(x.sp, x.node.NIC, plenty))
	},
	scenario.NodeDNS: func(x *target) error {
		const name = "nodelocaldns"
		if x.undo {
			return errors.Join(x.untrackDNS(), x.sp.withLink(name, "delete", x.sp.nl.LinkDel))
		}
		// As good as a dummy link, which not every kernel has.
		return errors.Join(x.sp.bridge(name, model.MAC{}),
			x.sp.addr(name, host(scenario.NodeLocalDNS), netlink.SCOPE_UNIVERSE), x.untrackDNS())
	},
	scenario.LocalDNS: func(x *target) error {
		const name = "localdns"
		var rules [][]string
		for _, a := range scenario.LocalDNSes {
			for _, proto := range []string{"tcp", "udp"} {
				for _, chain := range []string{"OUTPUT", "PREROUTING"} {
					rules = append(rules, words("-t raw ? ? -d ? -p ? --dport 53 -m comment --comment ? -j NOTRACK",
						x.op("-A"), chain, a, proto, "localdns: skip conntrack"))
				}
			}
		}
		if x.undo {
			return errors.Join(x.iptables(rules...), x.sp.withLink(name, "delete", x.sp.nl.LinkDel))
		}
		err := x.sp.bridge(name, model.MAC{}) // as above
		for _, a := range scenario.LocalDNSes {
			err = errors.Join(err, x.sp.addr(name, host(a), netlink.SCOPE_UNIVERSE))
		}
		return errors.Join(err, x.sp.up(name), x.iptables(rules...))
	},
	scenario.PodResolver:   resolver,
	scenario.CiliumService: ciliumService,
	scenario.Networkd: func(x *target) error {
		dir := filepath.Join(x.cniRoot(x.node), "run/systemd/netif")
		if x.undo {
			return os.RemoveAll(dir)
		}
		return errors.Join(os.MkdirAll(dir, 0o755), os.WriteFile(filepath.Join(dir, "state"), []byte("OPER_STATE=routable\n"), 0o644))
	},
	scenario.EmptyBridge: func(x *target) error {
		const name = "docker0"
		if x.undo {
			return x.sp.withLink(name, "delete", x.sp.nl.LinkDel)
		}
		if err := x.sp.bridge(name, model.MAC{}); err != nil {
			return err
		}
		if err := x.sp.addr(name, netip.MustParsePrefix("172.17.0.1/16"), netlink.SCOPE_UNIVERSE); err != nil {
			return err
		}
		return x.sp.up(name)
	},
	scenario.InvalidDropped: func(x *target) error {
		return x.iptables(words("? FORWARD -m conntrack --ctstate INVALID -j DROP", x.op("-I")))
	},
	scenario.PingDenied: func(x *target) error {
		match := "? FORWARD -d ? -p icmp --icmp-type echo-request -j DROP"
		if x.pod.IP.Is6() {
			match = "? FORWARD -d ? -p icmpv6 --icmpv6-type echo-request -j DROP"
		}
		return x.iptables(words(match, x.op("-I"), x.pod.IP))
	},
}

// podTable is the number of the pod's own routing table, which Amazon's VPC CNI has for each
// network card.
func (x *target) podTable() int {
	if x.node.Plugin == scenario.AWSVPC {
		return 2
	}
	return 100 + int(x.pod.IP.As4()[3])
}

// place is the number of the fault's node among all.
func (x *target) place() int {
	return slices.IndexFunc(x.topology.Nodes, func(n scenario.Node) bool { return n.Name == x.node.Name })
}

// podRule leads what the pod sends there, with the priority of AWS VPC CNI's rules.
func (x *target) podRule() rule {
	return rule{priority: awsFromPod, from: host(x.pod.IP), table: x.podTable()}
}

// tableDefault is the default route there.
func (x *target) tableDefault() route {
	return route{dst: defaultRoute, via: x.node.Second.Gateway.Addr(), link: x.node.Second.Name, table: x.podTable()}
}

// backend makes the pod one more backend of a service, by the chains of
// kube-proxy: what a pod asks of itself is masqueraded.
func backend(x *target) error {
	const mark, masquerade = "KUBE-MARK-MASQ", "KUBE-POSTROUTING"
	service := x.serviceChain()
	endpoint := fmt.Sprintf("KUBE-SEP-%X%X", x.Prefix.Addr().AsSlice(), x.pod.IP.AsSlice())
	if x.undo {
		return x.iptables(words("-t nat -F ?", service), words("-t nat -F ?", endpoint))
	}
	first := x.iptables(words("-t nat -N ?", service)) == nil
	var rules [][]string
	if x.iptables(words("-t nat -N ?", mark)) == nil {
		rules = append(rules,
			words("-t nat -A ? -j MARK --or-mark 0x4000", mark),
			words("-t nat -N ?", masquerade),
			words("-t nat -A ? -m mark ! --mark 0x4000/0x4000 -j RETURN", masquerade),
			words("-t nat -A ? -j MARK --xor-mark 0x4000", masquerade),
			words("-t nat -A ? -m comment --comment ? -j MASQUERADE --random-fully", masquerade, "kubernetes service traffic requiring SNAT"),
			words("-t nat -I POSTROUTING -m comment --comment ? -j ?", "kubernetes postrouting rules", masquerade))
	}
	if first {
		rules = append(rules, x.serviceJumps("-A")...)
		rules = append(rules, words("-t nat -A ? -j ?", service, endpoint))
	} else {
		rules = append(rules, words("-t nat -I ? -m statistic --mode random --probability 0.5 -j ?", service, endpoint))
	}
	rules = append(slices.Insert(rules, 0, words("-t nat -N ?", endpoint)),
		words("-t nat -A ? -s ? -m comment --comment ? -j ?", endpoint, x.pod.IP, "shop/cart", mark))
	for _, proto := range []string{"tcp", "udp"} {
		rules = append(rules, words("-t nat -A ? -p ? -m comment --comment ? -j DNAT --to-destination ?", endpoint, proto, "shop/cart", x.pod.IP))
	}
	return x.translate(rules...)
}

// serviceChain is the chain of the service that has the fault's prefix for its
// address.
func (x *target) serviceChain() string { return fmt.Sprintf("KUBE-SVC-%X", x.Prefix.Addr().AsSlice()) }

// serviceJumps are the rules that lead what is sent to that address there.
func (x *target) serviceJumps(op string) [][]string {
	var out [][]string
	for _, hook := range []string{"PREROUTING", "OUTPUT"} {
		for _, proto := range []string{"tcp", "udp"} {
			out = append(out, words("-t nat ? ? -d ? -p ? -m comment --comment ? -j ?", op, hook, x.Prefix, proto, "shop/cart cluster IP", x.serviceChain()))
		}
	}
	return out
}

// second is a host of the network of second interfaces, in the benchmarking
// range (RFC 2544).
func second(host byte) netip.Prefix {
	return netip.PrefixFrom(netip.AddrFrom4([4]byte{198, 18, 0, host}), 24)
}

// secondInterface gives a pod net1, on a bridge of the node that no plugin knows.
func secondInterface(x *target) error {
	const bridge, name = "br-second", "net1"
	place := slices.IndexFunc(x.node.Pods, func(p scenario.Pod) bool { return p.Name == x.pod.Name })
	link := fmt.Sprintf("second%d", place)
	if x.undo {
		return x.sp.withLink(link, "delete", x.sp.nl.LinkDel)
	}
	if _, err := x.sp.link(bridge); err != nil {
		if err := x.sp.bridge(bridge, model.MAC{}); err != nil {
			return err
		}
		if err := x.sp.addr(bridge, second(1), netlink.SCOPE_UNIVERSE); err != nil {
			return err
		}
		if err := x.sp.up(bridge); err != nil {
			return err
		}
	}
	return x.inPod(func(pod *space) error {
		if err := x.sp.veth(link, model.MAC{}, pod, name, model.MAC{}); err != nil {
			return err
		}
		if err := x.sp.port(link, bridge, false); err != nil {
			return err
		}
		if err := pod.addr(name, second(byte(10+place)), netlink.SCOPE_UNIVERSE); err != nil {
			return err
		}
		return joinUp(x.ctx, x.sp, link, pod, name)
	})
}

// untrackDNS makes the rules of NodeLocal DNSCache.
func (x *target) untrackDNS() error {
	var rules [][]string
	for _, proto := range []string{"udp", "tcp"} {
		to, from := words("-d ? -p ? --dport 53", scenario.NodeLocalDNS, proto), words("-s ? -p ? --sport 53", scenario.NodeLocalDNS, proto)
		for _, r := range []struct{ table, chain, target string }{{"raw", "PREROUTING", "NOTRACK"}, {"filter", "INPUT", "ACCEPT"}} {
			rules = append(rules, slices.Concat(words("-t ? ? ?", r.table, x.op("-I"), r.chain), to, words("-j ?", r.target)))
		}
		for _, r := range []struct{ table, target string }{{"raw", "NOTRACK"}, {"filter", "ACCEPT"}} {
			rules = append(rules, slices.Concat(words("-t ? ? OUTPUT", r.table, x.op("-I")), from, words("-j ?", r.target)))
		}
	}
	return x.iptables(rules...)
}
