package lab

import (
	"bufio"
	"errors"
	"fmt"
	"os"
	"strconv"
	"strings"

	"github.com/lasthop/lasthop/kind/scenario"
)

// Further tools; the packages of the same names have them.
const (
	conntrack      = "conntrack"
	legacyIptables = "iptables-legacy"
	nft            = "nft"
)

// natFault does or undoes the faults of a node's nat table and of its chains'
// policies; known is false for any other.
func natFault(sp *space, n *scenario.Node, f scenario.Fault, do bool) (known bool, err error) {
	switch f.Type {
	case scenario.ForwardPolicyDrop:
		policy := "ACCEPT"
		if do {
			policy = "DROP"
		}
		return true, sp.run(iptables, "-P", "FORWARD", policy)
	case scenario.MasqueradeAll:
		// In front, as they were: an exclusion behind the MASQUERADE rule
		// would exclude nothing.
		for _, p := range n.NonMasquerade {
			if err := sp.run(tables(n.IP.Is6()), agentOf(n).exclusion(op(!do, "-I"), p)...); err != nil {
				return true, err
			}
		}
		return true, sp.forgetFlows()
	case scenario.MasqueradeNFT:
		if err := masqueradeNFT(sp, n, do); err != nil {
			return true, err
		}
		return true, sp.forgetFlows()
	case scenario.DeadBackend:
		for _, proto := range []string{"tcp", "udp"} {
			err := sp.run(iptables, "-t", "nat", op(do, "-A"), "PREROUTING", "-d", f.Prefix.String(), "-p", proto,
				"-m", "comment", "--comment", "shop/cart", "-j", "DNAT", "--to-destination", f.Via.String())
			if err != nil {
				return true, err
			}
		}
		return true, sp.forgetFlows()
	case scenario.ConntrackRace:
		return true, conntrackRace(sp, f, do)
	case scenario.DropSomeDNS:
		return true, sp.run(iptables, "-t", "raw", op(do, "-I"), "PREROUTING", "-p", "udp", "--dport", "53",
			"-m", "statistic", "--mode", "random", "--probability", "0.1", "-j", "DROP")
	case scenario.ConntrackFull:
		if err := sp.forgetFlows(); err != nil || !do {
			return true, err
		}
		return true, fillConntrack(sp)
	case scenario.SNATPorts:
		agent := agentOf(n)
		lists := [][]string{agent.masquerade("-D"), agent.portMasquerade("-A", "tcp"), agent.portMasquerade("-A", "udp"), agent.masquerade("-A")}
		if !do {
			lists = [][]string{agent.portMasquerade("-D", "tcp"), agent.portMasquerade("-D", "udp")}
		}
		if err := sp.runAll(iptables, lists...); err != nil {
			return true, err
		}
		return true, sp.forgetFlows()
	}
	return false, nil
}

// filterFault does or undoes the faults of rules that drop a pod's packets;
// known is false for any other.
func filterFault(sp *space, n *scenario.Node, p *scenario.Pod, f scenario.Fault, do bool) (known bool, err error) {
	switch f.Type {
	case scenario.DropLegacy:
		return true, sp.run(legacyIptables, op(do, "-I"), "FORWARD", "-d", p.IP.String(), "-j", "DROP")
	case scenario.SelfService:
		return true, selfService(sp, p, f, do)
	case scenario.DropNFT:
		return true, dropNFT(sp, n, p, do)
	case scenario.DropChains:
		return true, dropChains(sp, n, p, do)
	case scenario.DropProgram, scenario.DropTCX, scenario.DropXDP:
		return true, dropProgram(sp, p, f, do)
	case scenario.PolicyUnprogrammed, scenario.PolicyDeny:
		return true, policyFault(sp, n, p, f, do)
	case scenario.LastHop:
		return true, sp.run(iptables, "-t", "mangle", op(do, "-I"), "PREROUTING", "-s", p.IP.String(), "-j", "TTL", "--ttl-set", "1")
	case scenario.NoListener, scenario.DeafServer:
		// The traffic's servers heed it.
		return true, nil
	}
	return false, nil
}

// selfService translates a service address to a pod, for whoever asks.
func selfService(sp *space, p *scenario.Pod, f scenario.Fault, do bool) error {
	for _, proto := range []string{"tcp", "udp"} {
		err := sp.run(iptables, "-t", "nat", op(do, "-A"), "PREROUTING", "-d", f.Prefix.String(), "-p", proto,
			"-m", "comment", "--comment", "shop/"+p.Name, "-j", "DNAT", "--to-destination", p.IP.String())
		if err != nil {
			return err
		}
	}
	return sp.forgetFlows()
}

// dropNFT makes a table of nft's own with two chains: the first sorts by
// addresses, the other drops.
func dropNFT(sp *space, n *scenario.Node, p *scenario.Pod, do bool) error {
	const table = "site_firewall"
	if !do {
		return sp.run(nft, "delete", "table", "inet", table)
	}
	const closed, sorting = "closed", "sorting"
	lists := [][]string{
		{"add", "table", "inet", table},
		{"add", "chain", "inet", table, closed},
		{"add", "chain", "inet", table, sorting, "{ type filter hook forward priority 10; policy accept; }"},
		{"add", "rule", "inet", table, sorting, "meta l4proto { tcp, udp } counter jump " + closed},
	}
	for _, other := range n.Pods {
		if other.Name != p.Name {
			lists = append(lists, []string{"add", "rule", "inet", table, closed, "ip daddr 192.0.2.0/24 ip saddr " + other.IP.String() + " counter drop"})
		}
	}
	lists = append(lists, []string{"add", "rule", "inet", table, closed, "ip daddr " + p.IP.String() + ` counter drop comment "closed on request"`})
	return sp.runAll(nft, lists...)
}

// masqueradeNFT makes a table of nft's own for both versions of IP, with a rule
// for each pod that masquerades what it sends by the NIC.
func masqueradeNFT(sp *space, n *scenario.Node, do bool) error {
	const table, chain = "site_nat", "leaving"
	if !do {
		return sp.run(nft, "delete", "table", "inet", table)
	}
	lists := [][]string{
		{"add", "table", "inet", table},
		{"add", "chain", "inet", table, chain, "{ type nat hook postrouting priority srcnat; policy accept; }"},
	}
	for _, p := range n.Pods {
		lists = append(lists, []string{"add", "rule", "inet", table, chain, "ip saddr " + p.IP.String() + " oifname " + n.NIC + " counter masquerade"})
	}
	return sp.runAll(nft, lists...)
}

// dropChains makes chains in the manner of Calico's, beside those of a node of
// Calico: FORWARD leads what comes
// from pods to a chain that knows each pod by its link, and from there to one
// a pod, which ends in a drop. Another pod's chain accepts.
func dropChains(sp *space, n *scenario.Node, p *scenario.Pod, do bool) error {
	const dispatch, allow, deny = "cali-from-wl-dispatch-7", "cali-fw-allowed", "cali-fw-denied"
	lists := [][]string{{"-N", dispatch}, {"-N", allow}, {"-N", deny}}
	for _, other := range n.Pods {
		if other.Name != p.Name {
			lists = append(lists, []string{"-A", dispatch, "-s", other.IP.String(), "-g", allow})
		}
	}
	lists = append(lists,
		[]string{"-A", dispatch, "-s", p.IP.String(), "-m", "comment", "--comment", "cali:lJ8KTdFzJ0AfR5dm", "-g", deny},
		[]string{"-A", allow, "-m", "comment", "--comment", "cali:Qv3ZbXo1Cd5Yr0Xn", "-j", "MARK", "--set-xmark", "0x10000/0x10000"},
		[]string{"-A", deny, "-m", "conntrack", "--ctstate", "RELATED,ESTABLISHED", "-j", "ACCEPT"},
		[]string{"-A", deny, "-m", "comment", "--comment", "cali:8Vb0iYx1cY4Rk2aS", "-m", "comment", "--comment", "Drop if no policies passed packet", "-j", "DROP"},
		[]string{"-I", "FORWARD", "-m", "comment", "--comment", "cali:wUHhoiAYhphO9Mso", "-j", dispatch},
	)
	if !do {
		lists = [][]string{
			{"-D", "FORWARD", "-m", "comment", "--comment", "cali:wUHhoiAYhphO9Mso", "-j", dispatch},
			{"-F", dispatch}, {"-F", allow}, {"-F", deny}, {"-X", dispatch}, {"-X", allow}, {"-X", deny},
		}
	}
	return sp.runAll(iptables, lists...)
}

// portMasquerade adds (-A) or removes (-D) a MASQUERADE rule with few ports.
func (a masqAgent) portMasquerade(op, proto string) []string {
	return []string{"-t", "nat", op, a.chain(), "-p", proto, "-j", "MASQUERADE", "--to-ports", "61000-61007"}
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
		// The benchmarking range, which is nobody's.
		fmt.Fprintf(w, "-A -s 198.18.%d.%d -d 198.19.%d.%d -p tcp --sport 40000 --dport 80 --state ESTABLISHED -t 3600 -u ASSURED,SEEN_REPLY\n",
			i>>8&0xff, i&0xff, i>>24&0xff, i>>16&0xff)
	}
	if err := w.Flush(); err != nil {
		return fmt.Errorf("fill connection tracking: %w", err)
	}
	return sp.run(conntrack, "-R", file.Name())
}
