package lab

import (
	"fmt"
	"strings"

	"github.com/lasthop/lasthop/kind/scenario"
)

// calicoAccept is the mark of what Calico has accepted.
const calicoAccept = "0x10000/0x10000"

// calicoRule is a rule with a comment such as Felix writes on each of its own:
// a hash of the rule. The comment takes the place of "#".
func calicoRule(hash, rule string, args ...any) []string {
	return words(strings.Replace(rule, "#", "-m comment --comment cali:"+hash, 1), args...)
}

// calicoJump leads from a chain to one of Calico's.
func calicoJump(table, chain, to string, match ...string) []string {
	return calicoRule(to, "-t "+table+" -A "+chain+" # "+strings.Join(match, " ")+" -j "+to)
}

// The chains by which Calico finds a pod's own.
const (
	calicoFrom = "cali-from-wl-dispatch"
	calicoTo   = "cali-to-wl-dispatch"
)

// policyRules makes what the program for network policies has beside the pods.
// Of IPv6 only Calico's iptables rules are made.
func policyRules(n *scenario.Node, sp *space) error {
	switch {
	case n.Policy == scenario.PolicyCalico:
		return calicoForward(n, sp)
	case n.IP.Is6():
		return nil
	case n.Policy == scenario.PolicyCalicoNFT:
		return calicoTable(n, sp)
	case n.Policy == scenario.PolicyNPM:
		return npmRules(n, sp)
	}
	return nil
}

// policyPod makes the rules that it has for a pod.
func policyPod(n *scenario.Node, p *scenario.Pod, sp *space) error {
	switch {
	case n.Plugin == scenario.Calico || n.Policy == scenario.PolicyCalico:
		return calicoPodRules(p, sp)
	case n.Policy == scenario.PolicyCalicoNFT && p.IP.Is4():
		return calicoPodChains(p, sp)
	}
	return nil
}

// calicoForward makes the filter chains that are not a pod's, all that Felix
// has on a node without policies and host endpoints.
func calicoForward(n *scenario.Node, sp *space) error {
	var lists [][]string
	add := func(hash, rule string, args ...any) { lists = append(lists, calicoRule(hash, rule, args...)) }
	for _, chain := range []string{"cali-FORWARD", "cali-INPUT", "cali-OUTPUT", calicoFrom, calicoTo, "cali-from-hep-forward", "cali-to-hep-forward", "cali-cidr-block", "cali-wl-to-host"} {
		lists = append(lists, []string{"-N", chain})
	}
	// Felix puts its jumps in front of what others have.
	add("wUHhoiAYhphO9Mso", "-I FORWARD 1 # -j cali-FORWARD")
	add("Cz_u1IQiXIMmKD4c", "-I INPUT 1 # -j cali-INPUT")
	add("tVnHkvAo15HuiPy0", "-I OUTPUT 1 # -j cali-OUTPUT")
	add("S93hcgKJrXEqnTfs", "-A FORWARD # -m comment --comment ? -m mark --mark ? -j ACCEPT", "Policy explicitly accepted packet.", calicoAccept)
	add("mp77cMpurHhyjLrM", "-A FORWARD # -j MARK --set-xmark ?", calicoAccept)
	add("vjrMJCRpqwy5oRoX", "-A cali-FORWARD # -j MARK --set-xmark 0x0/0xe0000")
	add("A_sPAO0mcxbT9mOV", "-A cali-FORWARD # -m mark --mark 0x0/0x10000 -j cali-from-hep-forward")
	for _, link := range portPatterns(n, n.Plugin.LinkPrefix()) {
		lists = append(lists, calicoJump("filter", "cali-FORWARD", calicoFrom, "-i", link), calicoJump("filter", "cali-FORWARD", calicoTo, "-o", link))
		add("msRIDfJRWnYwzW4g", "-A cali-INPUT # -i ? -g cali-wl-to-host", link)
	}
	lists = append(lists, calicoJump("filter", "cali-FORWARD", "cali-to-hep-forward"), calicoJump("filter", "cali-FORWARD", "cali-cidr-block"))
	if n.IP.Is6() {
		// What a pod needs of its router, before any policy.
		for _, what := range []int{130, 131, 132, 133, 135, 136} {
			add(fmt.Sprintf("icmp6-%d", what), "-A cali-wl-to-host # -p icmpv6 --icmpv6-type ? -j ACCEPT", what)
		}
	}
	lists = append(lists, calicoJump("filter", "cali-wl-to-host", calicoFrom))
	add("nSZbcOoG1xPONxb8", "-A cali-wl-to-host # -m comment --comment ? -j ACCEPT", "Configured DefaultEndpointToHostAction")
	for _, chain := range []string{calicoFrom, calicoTo} {
		add("Unknown", "-A ? # -m comment --comment ? -j DROP", chain, "Unknown interface")
	}
	return sp.runAll(tables(n.IP.Is6()), lists...)
}

// workloadChain is one of the two chains of a pod: for what it sends, and for
// what is sent to it.
type workloadChain struct{ dispatch, chain, match string }

func workloadChains(p *scenario.Pod) []workloadChain {
	return []workloadChain{{calicoFrom, "cali-fw-" + p.Link, "-i"}, {calicoTo, "cali-tw-" + p.Link, "-o"}}
}

// dispatchRule leads to a pod's chain: -I or -D.
func (w workloadChain) dispatchRule(op string, p *scenario.Pod) []string {
	place := w.dispatch
	if op == "-I" {
		place += " 1"
	}
	return calicoRule(w.chain, op+" "+place+" # ? ? -g ?", w.match, p.Link, w.chain)
}

// calicoPodRules make a pod's chains, in front of the rule that drops packets of
// unknown pods.
func calicoPodRules(p *scenario.Pod, sp *space) error {
	var lists [][]string
	for _, w := range workloadChains(p) {
		lists = append(lists, []string{"-N", w.chain})
		for _, rule := range [][]string{
			words("-m conntrack --ctstate RELATED,ESTABLISHED -j ACCEPT"),
			words("-m conntrack --ctstate INVALID -j DROP"),
			words("-j MARK --set-xmark 0x0/0x10000"),
			// As the profile of a namespace does without policies.
			words("-m comment --comment ? -j MARK --set-xmark ?", "Profile kns.default", calicoAccept),
			words("-m mark --mark ? -j RETURN", calicoAccept),
			words("-m comment --comment ? -j DROP", "Drop if no profiles matched"),
		} {
			lists = append(lists, append(calicoRule(fmt.Sprintf("%s-%d", w.chain, len(lists)), "-A ? #", w.chain), rule...))
		}
		lists = append(lists, w.dispatchRule("-I", p))
	}
	return sp.runAll(tables(p.IP.Is6()), lists...)
}

// calicoNFT is the table of Calico's nftables dataplane.
const calicoNFT = "calico"

// calicoTable makes that table: the same chains, the dispatch by maps.
func calicoTable(n *scenario.Node, sp *space) error {
	add := func(what string, args ...string) []string {
		return append([]string{"add", what, "ip", calicoNFT}, args...)
	}
	lists := [][]string{
		{"add", "table", "ip", calicoNFT},
		add("chain", "filter-FORWARD", "{ type filter hook forward priority filter; policy accept; }"),
		add("chain", "filter-cali-FORWARD"),
	}
	for _, w := range []struct{ chain, match string }{{calicoFrom, "iifname"}, {calicoTo, "oifname"}} {
		lists = append(lists,
			add("map", "filter-"+w.chain, "{ type ifname : verdict; }"),
			add("chain", "filter-"+w.chain),
			add("rule", "filter-"+w.chain, w.match+" vmap @filter-"+w.chain),
			add("rule", "filter-"+w.chain, `counter drop comment "cali:Unknown; Unknown interface"`))
	}
	lists = append(lists,
		add("rule", "filter-FORWARD", "counter jump filter-cali-FORWARD"),
		add("rule", "filter-FORWARD", "meta mark & 0x10000 == 0x10000 counter accept"),
		add("rule", "filter-cali-FORWARD", "counter meta mark set mark and 0xfff1ffff"))
	for _, link := range portPatterns(n, n.Plugin.LinkPrefix()) {
		if last := len(link) - 1; link[last] == '+' {
			link = link[:last] + "*"
		}
		lists = append(lists,
			add("rule", "filter-cali-FORWARD", fmt.Sprintf("iifname %q counter jump filter-%s", link, calicoFrom)),
			add("rule", "filter-cali-FORWARD", fmt.Sprintf("oifname %q counter jump filter-%s", link, calicoTo)))
	}
	return sp.runAll(nft, lists...)
}

// calicoPodChains make a pod's chains and its elements of the maps.
func calicoPodChains(p *scenario.Pod, sp *space) error {
	var lists [][]string
	for _, w := range workloadChains(p) {
		lists = append(lists, []string{"add", "chain", "ip", calicoNFT, "filter-" + w.chain})
		lists = append(lists, w.fill()...)
		lists = append(lists, w.element("add", p, " : goto filter-"+w.chain))
	}
	return sp.runAll(nft, lists...)
}

// fill adds the rules of a pod's chain in the nftables dataplane.
func (w workloadChain) fill() [][]string {
	var lists [][]string
	for _, rule := range []string{
		"ct state established,related counter accept",
		"ct state invalid counter drop",
		"counter meta mark set mark or 0x10000",
		"meta mark & 0x10000 == 0x10000 counter return",
		`counter drop comment "cali:Drop; Drop if no profiles matched"`,
	} {
		lists = append(lists, []string{"add", "rule", "ip", calicoNFT, "filter-" + w.chain, rule})
	}
	return lists
}

// element adds a pod to the dispatch map of the nftables dataplane, or deletes
// it.
func (w workloadChain) element(op string, p *scenario.Pod, to string) []string {
	return []string{op, "element", "ip", calicoNFT, "filter-" + w.dispatch, fmt.Sprintf("{ %q%s }", p.Link, to)}
}

// The chains and marks of Azure NPM.
const (
	npmChain   = "AZURE-NPM"
	npmIngress = "AZURE-NPM-INGRESS"
	npmAllow   = "AZURE-NPM-INGRESS-ALLOW-MARK"
	npmEgress  = "AZURE-NPM-EGRESS"
	npmAccept  = "AZURE-NPM-ACCEPT"

	npmAllowMark  = "0x200/0x200"
	npmDropMark   = "0x400/0x400"
	npmEgressMark = "0x800/0x800"
)

// npmRules makes NPM's base chains, and for each pod a policy that allows all.
func npmRules(n *scenario.Node, sp *space) error {
	drop := "-A ? -m mark --mark ? -m comment --comment ? -j DROP"
	lists := [][]string{
		{"-N", npmChain}, {"-N", npmIngress}, {"-N", npmAllow}, {"-N", npmEgress}, {"-N", npmAccept},
		words("-A FORWARD -m conntrack --ctstate NEW -j ?", npmChain),
		{"-A", npmChain, "-j", npmIngress},
		{"-A", npmChain, "-j", npmEgress},
		{"-A", npmChain, "-j", npmAccept},
		words(drop, npmIngress, npmDropMark, "DROP-ON-INGRESS-DROP-MARK-"+npmDropMark),
		words("-A ? -m comment --comment ? -j MARK --set-xmark ?", npmAllow, "SET-INGRESS-ALLOW-MARK-"+npmAllowMark, npmAllowMark),
		{"-A", npmAllow, "-j", npmEgress},
		words(drop, npmEgress, npmEgressMark, "DROP-ON-EGRESS-DROP-MARK-"+npmEgressMark),
		words("-A ? -m mark --mark ? -m comment --comment ? -j ?", npmEgress, npmAllowMark, "ACCEPT-ON-INGRESS-ALLOW-MARK-"+npmAllowMark, npmAccept),
		{"-A", npmAccept, "-j", "ACCEPT"},
	}
	if err := sp.runAll(iptables, lists...); err != nil {
		return err
	}
	for i := range n.Pods {
		w := npmPolicyOf(&n.Pods[i], "allow")
		if err := sp.netSet(w.set, host(n.Pods[i].IP)); err != nil {
			return err
		}
		if err := sp.runAll(iptables,
			[]string{"-N", w.chain},
			words("-A ? -m comment --comment ALLOW-ALL -j ?", w.chain, npmAllow),
			w.jump("-I", "1")); err != nil {
			return err
		}
	}
	return nil
}

// npmPolicy is one policy over one pod: the set that holds the pod, and the
// policy's chain.
type npmPolicy struct{ set, chain, name string }

func npmPolicyOf(p *scenario.Pod, name string) npmPolicy {
	a := p.IP.As4()
	number := fmt.Sprintf("%d%03d%03d%03d", len(name), a[1], a[2], a[3])
	return npmPolicy{"azure-npm-" + number, npmIngress + "-" + number, name}
}

func (w npmPolicy) jump(op string, place ...string) []string {
	args := append([]string{op, npmIngress}, place...)
	return append(args, words("-m set --match-set ? dst -m comment --comment ? -j ?", w.set, "INGRESS-POLICY-default/"+w.name, w.chain)...)
}
