package lab

import (
	"context"
	"net/netip"
	"strings"

	"github.com/vishvananda/netlink"

	"github.com/lasthop/lasthop/kind/scenario"
	"github.com/lasthop/lasthop/probe/model"
)

// packetRules are the node's iptables rules: the drops that every AKS node
// has, but none on a switch has, and the chain of ip-masq-agent.
func packetRules(n *scenario.Node, switched bool, sp *space) error {
	const wireServer = "168.63.129.16"
	lists := [][]string{words("-P FORWARD ACCEPT")}
	if !switched && n.IP.Is4() {
		lists = append(lists,
			words("-A FORWARD -d ? -p tcp --dport 80 -j DROP", wireServer),
			words("-A FORWARD -d ? -p tcp --dport 32526 -j DROP", wireServer))
	}
	switch agent := agentOf(n); {
	case n.Plugin == scenario.Flannel:
		lists = append(lists, flannelRules(n)...)
	case n.Plugin == scenario.AWSVPC:
		lists = append(lists, awsRules(n)...)
	case n.Plugin == scenario.Calico || n.IPMasq:
		// They masquerade by rules of their own.
	case n.Dockershim && n.IP.Is4():
		lists = append(lists, kubeletMasquerade("-A", n))
	default:
		lists = append(lists, words("-t nat -N ?", agent.chain()),
			words("-t nat -A POSTROUTING -m comment --comment ? -m addrtype ! --dst-type LOCAL -j ?",
				string(agent)+": ensure nat POSTROUTING directs all non-LOCAL destination traffic to our custom "+agent.chain()+" chain", agent.chain()))
		for _, p := range n.NonMasquerade {
			lists = append(lists, agent.exclusion("-A", p))
		}
		lists = append(lists, agent.masquerade("-A"))
	}
	return sp.runAll(tables(n.IP.Is6()), lists...)
}

// kubeletMasquerade adds (-A) or removes (-D) the one rule by which the kubelet
// masqueraded when it had the network plugin in itself.
func kubeletMasquerade(op string, n *scenario.Node) []string {
	return words("-t nat ? POSTROUTING ! -d ? -m comment --comment ? -m addrtype ! --dst-type LOCAL -j MASQUERADE",
		op, n.NonMasquerade[0], "kubenet: SNAT for outbound traffic from cluster")
}

// masqAgent is the program that keeps the masquerading rules of a node.
type masqAgent string

// The agents of AKS and of kind: alike but for the name.
const (
	ipMasqAgent   masqAgent = "ip-masq-agent"
	kindMasqAgent masqAgent = "kind-masq-agent"
)

func agentOf(n *scenario.Node) masqAgent {
	if n.Plugin == scenario.Kindnet {
		return kindMasqAgent
	}
	return ipMasqAgent
}

// chain is the chain that the agent keeps.
func (a masqAgent) chain() string { return strings.ToUpper(string(a)) }

// exclusion adds (-A, -I) or removes (-D) a range that is not masqueraded.
func (a masqAgent) exclusion(op string, p netip.Prefix) []string {
	return words("-t nat ? ? -d ? -m comment --comment ? -j RETURN", op, a.chain(), p, string(a)+": local traffic is not subject to MASQUERADE")
}

// masquerade adds (-A) or removes (-D) the rule that gives what leaves the
// cluster the node's address.
func (a masqAgent) masquerade(op string) []string {
	return words("-t nat ? ? -m comment --comment ? -j MASQUERADE", op, a.chain(), string(a)+": outbound traffic is subject to MASQUERADE (must be last in chain)")
}

// kubenetBridge makes cbr0 with its address and the rules that hold back the
// second copy of a packet, which a promiscuous bridge would deliver.
func kubenetBridge(n *scenario.Node, sp *space) error {
	if err := sp.bridge(n.Bridge, n.BridgeMAC); err != nil {
		return err
	}
	if err := sp.withLink(n.Bridge, "set promiscuous", sp.nl.SetPromiscOn); err != nil {
		return err
	}
	if err := sp.up(n.Bridge); err != nil {
		return err
	}
	for _, n := range families(n) {
		if err := sp.addr(n.Bridge, netip.PrefixFrom(n.PodGateway(), n.PodCIDR.Bits()), netlink.SCOPE_UNIVERSE); err != nil {
			return err
		}
	}
	chain := dedupChain(n)
	if err := sp.runAll(ebtables, []string{"-N", chain, "-P", "RETURN"}, []string{"-A", "OUTPUT", "-j", chain}); err != nil {
		return err
	}
	return sp.runAll(ebtables, dedupRules(n)...)
}

// dedupChain is the chain that holds second copies back.
func dedupChain(n *scenario.Node) string {
	if n.Dockershim {
		return "KUBE-DEDUP"
	}
	return "AKS-DEDUP-PROMISC"
}

// dedupRules are the rules of that chain.
func dedupRules(n *scenario.Node) [][]string {
	var lists [][]string
	for _, out := range portPatterns(n, n.Plugin.LinkPrefix()) {
		for _, n := range families(n) {
			match := "-A ? -p IPv4 -s ? -o ? --ip-src ? -j ?"
			if n.IP.Is6() {
				match = "-A ? -p IPv6 -s ? -o ? --ip6-src ? -j ?"
			}
			lists = append(lists,
				words(match, dedupChain(n), n.BridgeMAC, out, n.PodGateway(), "ACCEPT"),
				words(match, dedupChain(n), n.BridgeMAC, out, n.PodCIDR, "DROP"))
		}
	}
	return lists
}

// families are the node by each of its families.
func families(n *scenario.Node) []*scenario.Node {
	if n.IP6.IsValid() {
		return []*scenario.Node{n, n.V6()}
	}
	return []*scenario.Node{n}
}

// portPatterns match the pods' links: all that begin with the plugin's prefix,
// and by name those that are called otherwise.
func portPatterns(n *scenario.Node, prefix string) []string {
	out := []string{prefix + "+"}
	for _, p := range n.Pods {
		if !strings.HasPrefix(p.Link, prefix) {
			out = append(out, p.Link)
		}
	}
	return out
}

// azureBridge makes azure0 with the network card in it, and the frame rules
// that are not a pod's. The table broute's one rule is left out: the nft
// variant of ebtables has no such table before 1.8.10, and it serves a
// node-local DNS cache only.
func azureBridge(ctx context.Context, n *scenario.Node, fabric model.MAC, sp *space) error {
	if err := sp.bridge(n.Bridge, model.MAC{}); err != nil {
		return err
	}
	if err := sp.port(n.NIC, n.Bridge, true); err != nil {
		return err
	}
	if err := sp.up(n.Bridge); err != nil {
		return err
	}
	if err := sp.awaitUp(ctx, n.Bridge); err != nil {
		return err
	}
	lists := [][]string{
		words("-t nat -A POSTROUTING -s unicast -o ? -j snat --to-src ? --snat-arp --snat-target ACCEPT", n.NIC, n.MAC),
		arpReply("-A", n.IP, n.MAC),
		words("-t nat -A PREROUTING -p ARP -i ? --arp-op Reply -j dnat --to-dst ? --dnat-target ACCEPT", n.NIC, model.Broadcast),
	}
	if n.Plugin == scenario.AzureTunnel {
		// All that pods send goes by the fabric, also what is for others
		// on the node.
		for _, in := range portPatterns(n, "az") {
			lists = append(lists, words("-t nat -A PREROUTING -i ? -j dnat --to-dst ? --dnat-target ACCEPT", in, fabric))
		}
	}
	return sp.runAll(ebtables, lists...)
}

// azurePod makes the frame rules and the neighbour of a pod on azure0. In
// tunnel mode the fabric's MAC stands for every pod, and nothing is pinned.
func azurePod(n *scenario.Node, p *scenario.Pod, fabric model.MAC, sp *space) error {
	if n.Plugin == scenario.AzureTunnel {
		return sp.runAll(ebtables, arpReply("-A", p.IP, fabric), frameDNAT("-A", n.NIC, p.IP, p.MAC))
	}
	if err := sp.runAll(ebtables, arpReply("-A", p.IP, p.MAC), frameDNAT("-A", n.NIC, p.IP, p.MAC)); err != nil {
		return err
	}
	return sp.neigh(n.Bridge, p.IP, p.MAC)
}

// arpReply adds (-A, -I) or removes (-D) the rule that answers who-has for an
// address.
func arpReply(op string, a netip.Addr, mac model.MAC) []string {
	return words("-t nat ? PREROUTING -p ARP --arp-op Request --arp-ip-dst ? -j arpreply --arpreply-mac ? --arpreply-target DROP", op, a, mac)
}

// frameDNAT adds (-A, -I) or removes (-D) the rule that gives what arrives for
// an address the MAC of its pod: the fabric sends all to the card's.
func frameDNAT(op, nic string, a netip.Addr, mac model.MAC) []string {
	return words("-t nat ? PREROUTING -p IPv4 -i ? --ip-dst ? -j dnat --to-dst ? --dnat-target ACCEPT", op, nic, a, mac)
}

// The links of Cilium's router, the same on every node.
const (
	ciliumHostLink = "cilium_host"
	ciliumNetLink  = "cilium_net"
)

// ciliumHost makes the router that pods have as their gateway. Its address is
// link-scoped, so that the node speaks with its own.
func ciliumHost(ctx context.Context, n *scenario.Node, sp *space) error {
	if err := sp.veth(ciliumHostLink, model.MAC{}, sp, ciliumNetLink, model.MAC{}); err != nil {
		return err
	}
	if err := joinUp(ctx, sp, ciliumNetLink, sp, ciliumHostLink); err != nil {
		return err
	}
	for _, n := range families(n) {
		if err := sp.addr(ciliumHostLink, host(n.Router), netlink.SCOPE_LINK); err != nil {
			return err
		}
	}
	return nil
}

// The priorities of Cilium's rules.
const (
	toPodPriority   = 20
	fromPodPriority = 110
)

// mainTable is the kernel's.
const mainTable = 254

// ciliumPod routes a pod: to it by its link, from it by the table of the
// uplink.
func (b *builder) ciliumPod(n *scenario.Node, p *scenario.Pod, sp *space) error {
	if err := sp.sysctls("ipv4/conf/"+p.Link+"/rp_filter", "0"); err != nil {
		return err
	}
	if err := answerForRouter(n, p, sp); err != nil {
		return err
	}
	uplink := uplinkOf(n)
	l, err := sp.link(uplink)
	if err != nil {
		return err
	}
	// Cilium numbers a table by the link that it leads out by.
	table := 10 + l.Attrs().Index
	err = sp.route(
		route{dst: host(b.topology.Gateway), link: uplink, table: table},
		route{dst: defaultFor(p.IP), via: b.topology.Gateway, link: uplink, table: table})
	if err != nil {
		return err
	}
	if err := sp.rule(rule{priority: fromPodPriority, from: host(p.IP), table: table}); err != nil {
		return err
	}
	return ciliumDelivery(p, sp)
}

// answerForRouter has the node answer neighbour discovery for its router on a
// pod's link.
func answerForRouter(n *scenario.Node, p *scenario.Pod, sp *space) error {
	if p.IP.Is4() {
		return nil
	}
	if err := sp.sysctls("ipv6/conf/"+p.Link+"/proxy_ndp", "1", "ipv6/neigh/"+p.Link+"/proxy_delay", "0"); err != nil {
		return err
	}
	return sp.proxy(p.Link, n.Router)
}

// ciliumDelivery makes the route and the rule to a pod.
func ciliumDelivery(p *scenario.Pod, sp *space) error {
	if err := sp.route(route{dst: host(p.IP), link: p.Link}); err != nil {
		return err
	}
	return sp.rule(toPod(p))
}

func toPod(p *scenario.Pod) rule {
	return rule{priority: toPodPriority, to: host(p.IP), table: mainTable}
}

// uplinkOf is the link that holds the node's address.
func uplinkOf(n *scenario.Node) string {
	if n.Bridge != "" && !n.PodGateway().IsValid() {
		return n.Bridge
	}
	return n.NIC
}
