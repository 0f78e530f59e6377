package lab

import (
	"errors"

	"github.com/vishvananda/netlink"

	"github.com/lasthop/lasthop/kind/scenario"
	"github.com/lasthop/lasthop/probe/model"
)

// filterFaults are those of packet filters and programs.
var filterFaults = map[scenario.FaultType]injection{
	scenario.DropReplies: func(x *target) error {
		return x.iptables(words("-t raw ? PREROUTING -i ? -s ? -j DROP", x.op("-I"), uplinkOf(x.node), x.Prefix))
	},
	scenario.DropMasqueraded: func(x *target) error {
		const table = "leavers"
		if x.undo {
			return x.sp.run(nft, "delete", "table", "inet", table)
		}
		return x.sp.runAll(nft, []string{"add", "table", "inet", table},
			[]string{"add", "chain", "inet", table, "last", "{ type filter hook postrouting priority 150; policy accept; }"},
			[]string{"add", "rule", "inet", table, "last", "oifname " + uplinkOf(x.node) + " ip daddr " + x.Prefix.String() + " counter drop"})
	},
	scenario.DropForward: func(x *target) error {
		rule := words("? FORWARD -d ? -j DROP", x.op("-I"), x.pod.IP)
		if x.Via.IsValid() {
			rule = append(rule, "-s", x.Via.String())
		}
		return x.iptables(rule)
	},
	scenario.DropLegacy: func(x *target) error {
		return x.sp.run(legacyIptables, words("? FORWARD -d ? -j DROP", x.op("-I"), x.pod.IP)...)
	},
	scenario.DropQueued: func(x *target) error {
		return x.iptables(words("? FORWARD -d ? -j NFQUEUE --queue-num 17", x.op("-I"), x.pod.IP))
	},
	scenario.DropNFT:    dropNFT,
	scenario.DropChains: dropChains,
	scenario.DropSomeDNS: func(x *target) error {
		return x.iptables(words("-t raw ? PREROUTING -p udp --dport 53 -m statistic --mode random --probability 0.1 -j DROP", x.op("-I")))
	},
	scenario.ForwardPolicyDrop: func(x *target) error {
		return x.iptables(words("-P FORWARD ?", pick(x, "DROP", "ACCEPT")))
	},
	scenario.LastHop: func(x *target) error {
		return x.iptables(words("-t mangle ? PREROUTING -s ? -j TTL --ttl-set 1", x.op("-I"), x.pod.IP))
	},
	scenario.PodFirewall: func(x *target) error {
		return x.inPod(func(pod *space) error {
			return pod.run(tables(x.pod.IP.Is6()), words("? INPUT ! -i lo -j DROP", x.op("-I"))...)
		})
	},
	scenario.ProxyGone: func(x *target) error {
		return x.inPod(func(pod *space) error {
			err := pod.run(tables(x.pod.IP.Is6()), words("-t nat ? OUTPUT -p tcp -j REDIRECT --to-ports 15001", x.op("-A"))...)
			return errors.Join(err, pod.forgetFlows())
		})
	},
	scenario.DropProgram: func(x *target) error {
		if x.undo {
			return x.sp.detachTC(x.pod.Link, model.Ingress, guardName, guardPriority)
		}
		return x.sp.attachTC(x.pod.Link, model.Ingress, guardName, guardPriority, guard())
	},
	scenario.DropTCX: func(x *target) error {
		if x.undo {
			return x.sp.detachTCX(x.pod.Link, model.Ingress, guardName)
		}
		return x.sp.attachTCX(x.pod.Link, model.Ingress, guardName, guard())
	},
	scenario.DropXDP: func(x *target) error {
		return x.sp.setXDP(x.pod.Link, guardName, pick(x, guardXDP(), nil))
	},
	scenario.PolicyUnprogrammed: func(x *target) error {
		var rules [][]string
		for _, w := range workloadChains(x.pod) {
			switch {
			case x.node.Policy != scenario.PolicyCalicoNFT:
				rules = append(rules, w.dispatchRule(x.unop("-I"), x.pod))
			case x.undo:
				rules = append(rules, w.element("add", x.pod, " : goto filter-"+w.chain))
			default:
				rules = append(rules, w.element("delete", x.pod, ""))
			}
		}
		if x.node.Policy == scenario.PolicyCalicoNFT {
			return x.sp.runAll(nft, rules...)
		}
		return x.iptables(rules...)
	},
	scenario.PolicyDeny: func(x *target) error {
		switch x.node.Policy {
		case scenario.PolicyNPM:
			return npmDeny(x)
		case scenario.PolicyCalicoNFT:
			return calicoDenyNFT(x)
		}
		// The profile, which would accept, is the fourth rule.
		chain := workloadChains(x.pod)[1].chain
		return x.iptables(words(pick(x, "-I ? 4", "-D ?")+" -m comment --comment cali:deny -m comment --comment ? -j DROP", chain, "Drop if no policies passed packet"))
	},
}

// dropNFT makes a table of nft's own with two chains: the first sorts by
// addresses, the other drops.
func dropNFT(x *target) error {
	const table = "site_firewall"
	if x.undo {
		return x.sp.run(nft, "delete", "table", "inet", table)
	}
	const closed, sorting = "closed", "sorting"
	lists := [][]string{
		{"add", "table", "inet", table},
		{"add", "chain", "inet", table, closed},
		{"add", "chain", "inet", table, sorting, "{ type filter hook forward priority 10; policy accept; }"},
		{"add", "rule", "inet", table, sorting, "meta l4proto { tcp, udp } counter jump " + closed},
	}
	for _, other := range x.node.Pods {
		if other.Name != x.pod.Name {
			lists = append(lists, []string{"add", "rule", "inet", table, closed, "ip daddr 192.0.2.0/24 ip saddr " + other.IP.String() + " counter drop"})
		}
	}
	lists = append(lists, []string{"add", "rule", "inet", table, closed, "ip daddr " + x.pod.IP.String() + ` counter drop comment "closed on request"`})
	return x.sp.runAll(nft, lists...)
}

// dropChains makes chains in the manner of Calico's, beside those of a node of
// Calico. FORWARD leads to a chain that knows each pod by its address, and from
// there to one that accepts or, for the pod, drops.
func dropChains(x *target) error {
	const dispatch, allow, deny = "cali-from-wl-dispatch-7", "cali-fw-allowed", "cali-fw-denied"
	jump := words("? FORWARD -m comment --comment cali:wUHhoiAYhphO9Mso -j ?", x.op("-I"), dispatch)
	if x.undo {
		return x.iptables(jump, []string{"-F", dispatch}, []string{"-F", allow}, []string{"-F", deny},
			[]string{"-X", dispatch}, []string{"-X", allow}, []string{"-X", deny})
	}
	rules := [][]string{{"-N", dispatch}, {"-N", allow}, {"-N", deny}}
	for _, other := range x.node.Pods {
		if other.Name != x.pod.Name {
			rules = append(rules, words("-A ? -s ? -g ?", dispatch, other.IP, allow))
		}
	}
	return x.iptables(append(rules,
		words("-A ? -s ? -m comment --comment cali:lJ8KTdFzJ0AfR5dm -g ?", dispatch, x.pod.IP, deny),
		words("-A ? -m comment --comment cali:Qv3ZbXo1Cd5Yr0Xn -j MARK --set-xmark 0x10000/0x10000", allow),
		words("-A ? -m conntrack --ctstate RELATED,ESTABLISHED -j ACCEPT", deny),
		words("-A ? -m comment --comment cali:8Vb0iYx1cY4Rk2aS -m comment --comment ? -j DROP", deny, "Drop if no policies passed packet"),
		jump)...)
}

// calicoDenyNFT is PolicyDeny by Calico's nftables dataplane.
func calicoDenyNFT(x *target) error {
	w := workloadChains(x.pod)[1]
	chain := "filter-" + w.chain
	if x.undo {
		return x.sp.runAll(nft, append([][]string{{"flush", "chain", "ip", calicoNFT, chain}}, w.fill()...)...)
	}
	return x.sp.run(nft, "insert", "rule", "ip", calicoNFT, chain, `ct state new counter drop comment "cali:Deny; Drop if no policies passed packet"`)
}

// npmDeny is PolicyDeny by Azure NPM: a policy that allows nothing to the pod
// replaces the one that allows all. What one policy allows no other denies.
func npmDeny(x *target) error {
	w, allow := npmPolicyOf(x.pod, "deny"), npmPolicyOf(x.pod, "allow")
	if x.undo {
		err := x.iptables(allow.jump("-I", "1"), w.jump("-D"), []string{"-F", w.chain}, []string{"-X", w.chain})
		if err != nil {
			return err
		}
		return x.sp.ns.Do(func() error { return wrap(netlink.IpsetDestroy(w.set), "delete set %s in %s", w.set, x.sp.name) })
	}
	if err := x.sp.netSet(w.set, host(x.pod.IP)); err != nil {
		return err
	}
	return x.iptables(
		[]string{"-N", w.chain},
		words("-A ? -m comment --comment DROP-ALL -j MARK --set-xmark ?", w.chain, npmDropMark),
		w.jump("-I", "1"), allow.jump("-D"))
}
