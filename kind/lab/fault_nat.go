package lab

import (
	"bufio"
	"errors"
	"fmt"
	"net/netip"
	"os"
	"strconv"
	"strings"

	"github.com/cilium/ebpf/asm"

	"github.com/lasthop/lasthop/kind/scenario"
	"github.com/lasthop/lasthop/probe/model"
)

// translationFaults are those of address translation and connection tracking.
var translationFaults = map[scenario.FaultType]injection{
	scenario.MissingMasquerade: func(x *target) error {
		n := x.node
		switch {
		case n.IPMasq:
			return x.translate(x.pluginMasquerade(x.unop("-A"), n)...)
		case n.Dockershim && n.IP.Is4():
			return x.translate(kubeletMasquerade(x.unop("-A"), n))
		case x.Prefix.IsValid():
			return x.translate(agentOf(n).exclusion(x.op("-I"), x.Prefix))
		}
		return x.translate(agentOf(n).masquerade(x.unop("-A")))
	},
	scenario.MasqueradeAll: func(x *target) error {
		var rules [][]string
		for _, p := range x.node.NonMasquerade {
			// Behind the MASQUERADE rule an exclusion would exclude nothing.
			rules = append(rules, agentOf(x.node).exclusion(x.unop("-I"), p))
		}
		return x.translate(rules...)
	},
	scenario.MasqueradeNFT: masqueradeNFT,
	scenario.SNATPorts: func(x *target) error {
		agent := agentOf(x.node)
		few := func(op, proto string) []string {
			return words("-t nat ? ? -p ? -j MASQUERADE --to-ports 61000-61007", op, agent.chain(), proto)
		}
		if x.undo {
			return x.translate(few("-D", "tcp"), few("-D", "udp"))
		}
		return x.translate(agent.masquerade("-D"), few("-A", "tcp"), few("-A", "udp"), agent.masquerade("-A"))
	},
	scenario.MasqueradeTCP: func(x *target) error {
		agent := agentOf(x.node)
		return x.translate(agent.masquerade(x.unop("-A")), words("-t nat ? ? -p tcp -j MASQUERADE", x.op("-A"), agent.chain()))
	},
	scenario.DeadBackend: func(x *target) error {
		return x.translate(x.service("tcp", "shop/cart", x.Via), x.service("udp", "shop/cart", x.Via))
	},
	scenario.DeadBackendNFT: func(x *target) error {
		return errors.Join(x.sp.runAll(nft, pick(x, [][]string{
			words("add table ip site_services"),
			words("add chain ip site_services services { type nat hook prerouting priority dstnat; }"),
			words("add rule ip site_services services ip daddr ? dnat to ?", x.Prefix.Addr(), x.Via),
		}, [][]string{words("delete table ip site_services")})...), x.sp.forgetFlows())
	},
	scenario.SelfService: func(x *target) error {
		name := "shop/" + x.pod.Name
		return x.translate(x.service("tcp", name, x.pod.IP), x.service("udp", name, x.pod.IP))
	},
	scenario.ConntrackRace: func(x *target) error {
		// The nat table sees the first packet of a flow. What comes out of the
		// queue goes on behind it, so that nothing but the confirmation is
		// left: no other port is sought. Without a daemon the packets pass.
		return x.translate(x.service("udp", "kube-system/dns", x.Via),
			words("-t nat ? POSTROUTING -d ? -p udp -j NFQUEUE --queue-num ? --queue-bypass", x.op("-I"), x.Via, heldQueue))
	},
	scenario.ForeignSNAT: func(x *target) error {
		var rules [][]string
		for _, src := range podSources(x.node) {
			rules = append(rules, words("-t nat ? POSTROUTING -s ? -o ? -j SNAT --to-source ?", x.op("-I"), src, uplinkOf(x.node), x.Via))
		}
		return x.translate(rules...)
	},
	scenario.ServiceUntranslated: func(x *target) error { return x.translate(x.serviceJumps(x.unop("-A"))...) },
	scenario.ServiceEndpointless: proxyWithoutEndpoints,
	scenario.ServiceRetired:      proxyRetired,
	scenario.ConntrackBypassed:   func(x *target) error { return bypass(x, loadDestination()) },
	scenario.SegmentsBypassed:    func(x *target) error { return bypass(x, append(loadDestination(), leaveFirst()...)) },
	scenario.Untracked: func(x *target) error {
		return errors.Join(
			x.iptables(words("-t raw ? PREROUTING -d ? -j CT --notrack", x.op("-I"), x.pod.IP)),
			x.iptables(words("? FORWARD -m conntrack --ctstate INVALID -j DROP", x.op("-I"))),
			x.sp.forgetFlows())
	},
	scenario.Zoned: func(x *target) error {
		return errors.Join(x.iptables(words("-t raw ? PREROUTING -s ? -j CT --zone 7", x.op("-I"), x.pod.IP)), x.sp.forgetFlows())
	},
	scenario.ConntrackFull: func(x *target) error {
		if err := x.sp.forgetFlows(); err != nil || x.undo {
			return err
		}
		return fillConntrack(x.sp)
	},
}

// bypass has a program at the network card hand to the fault's pod what the code
// before lets through.
func bypass(x *target, code asm.Instructions) error {
	const name = "fast_path"
	if x.undo {
		return errors.Join(x.sp.detachTC(x.node.NIC, model.Ingress, name, guardPriority), x.sp.forgetFlows())
	}
	deliver, err := toPeer(x.pod, "next", x.sp)
	if err != nil {
		return err
	}
	code = append(code, append(deliver, leave()...)...)
	return errors.Join(x.sp.attachTC(x.node.NIC, model.Ingress, name, guardPriority, code), x.sp.forgetFlows())
}

// masqueradeNFT makes a table of nft's own for IPv4 and IPv6 alike, with a rule
// for each pod that masquerades what it sends by the uplink.
func masqueradeNFT(x *target) error {
	const table, chain = "site_nat", "leaving"
	lists := [][]string{{"delete", "table", "inet", table}}
	if !x.undo {
		lists = [][]string{
			{"add", "table", "inet", table},
			{"add", "chain", "inet", table, chain, "{ type nat hook postrouting priority srcnat; policy accept; }"},
		}
		for _, p := range x.node.Pods {
			rule := "ip saddr " + p.IP.String() + " oifname " + uplinkOf(x.node) + " counter masquerade"
			lists = append(lists, []string{"add", "rule", "inet", table, chain, rule})
		}
	}
	if err := x.sp.runAll(nft, lists...); err != nil {
		return err
	}
	return x.sp.forgetFlows()
}

// serverFaults are those that the servers of the traffic act on when they start.
var serverFaults = map[scenario.FaultType]injection{
	scenario.NoListener:       func(*target) error { return nil },
	scenario.LocalDNSStopped:  func(*target) error { return nil },
	scenario.LoopbackListener: func(*target) error { return nil },
	scenario.DeafServer:       func(*target) error { return nil },
	scenario.PodHung:          func(*target) error { return nil },
	scenario.PodGone: func(x *target) error {
		c := &churn{builder: builder{Lab: x.Lab, topology: x.topology, log: func(string, ...any) {}}, node: x.node}
		for i := range x.s.Traffic {
			if to := &x.s.Traffic[i].To; to.Addr == x.pod.IP {
				to.Place = pick(x, "", x.Pod)
			}
		}
		if x.undo {
			return c.make(x.ctx, x.pod, x.sp)
		}
		return c.remove(x.ctx, x.pod, x.sp)
	},
	scenario.NodeDNSGone:        (*target).untrackDNS,
	scenario.CiliumServiceEmpty: ciliumService,
}

// translate runs rules of the nat table and deletes all flows: they keep the
// address that they were given, and so would a new one from the same port. Of a fault
// that changes while traffic flows that is what is wanted.
func (x *target) translate(rules ...[]string) error {
	if err := x.iptables(rules...); err != nil || x.When != "" {
		return err
	}
	return x.sp.forgetFlows()
}

// service is the rule that translates the service address, which is the fault's
// prefix.
func (x *target) service(proto, name string, to netip.Addr) []string {
	return words("-t nat ? PREROUTING -d ? -p ? -m comment --comment ? -j DNAT --to-destination ?", x.op("-A"), x.Prefix, proto, name, to)
}

// fillConntrack enters established flows between strangers until few places
// are left, for the first of the traffic.
func fillConntrack(sp *space) (err error) {
	const left = 32
	text, err := os.ReadFile("/proc/sys/net/netfilter/nf_conntrack_max")
	if err != nil {
		return fmt.Errorf("fill connection tracking: %w", err)
	}
	limit, err := strconv.Atoi(strings.TrimSpace(string(text)))
	if err != nil {
		return fmt.Errorf("fill connection tracking: %w", err)
	}
	file, err := os.CreateTemp("", "lasthop-flows-")
	if err != nil {
		return fmt.Errorf("fill connection tracking: %w", err)
	}
	defer func() { err = errors.Join(err, file.Close(), os.Remove(file.Name())) }()
	w := bufio.NewWriter(file)
	for i := range limit - left {
		// The benchmarking range (RFC 2544), which no lab uses.
		fmt.Fprintf(w, "-A -s 198.18.%d.%d -d 198.19.%d.%d -p tcp --sport 40000 --dport 80 --state ESTABLISHED -t 3600 -u ASSURED,SEEN_REPLY\n",
			i>>8&0xff, i&0xff, i>>24&0xff, i>>16&0xff)
	}
	if err := w.Flush(); err != nil {
		return fmt.Errorf("fill connection tracking: %w", err)
	}
	return sp.run(conntrack, "-R", file.Name())
}
