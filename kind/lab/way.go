package lab

import (
	"cmp"
	"fmt"
	"net/netip"

	"github.com/lasthop/lasthop/kind/scenario"
)

// wayFault makes the fabric lose packets on their way, as machines and rules
// in a virtual network do, or undoes it.
func (l *Lab) wayFault(fabric *space, f scenario.Fault, do bool) error {
	for i, n := range l.s.Topology.Nodes {
		if n.Name != f.Node {
			continue
		}
		if f.Type == scenario.NoReturn {
			return fabric.run(iptables, op(do, "-I"), "FORWARD", "-i", edgeLink, "-o", nicLink(i), "-j", "DROP")
		}
		for _, src := range podSources(&n) {
			args := []string{op(do, "-I"), "FORWARD", "-i", nicLink(i), "-s", src.String()}
			if f.Prefix.IsValid() {
				args = append(args, "-d", f.Prefix.String())
			}
			if err := fabric.run(iptables, append(args, "-j", "DROP")...); err != nil {
				return err
			}
		}
		return nil
	}
	return fmt.Errorf("no node %q", f.Node)
}

// podSources are the addresses that a node's pods send from.
func podSources(n *scenario.Node) []netip.Prefix {
	if n.PodCIDR.IsValid() {
		return []netip.Prefix{n.PodCIDR}
	}
	var out []netip.Prefix
	for _, pods := range [][]scenario.Pod{n.Pods, n.OldPods} {
		for _, p := range pods {
			out = append(out, host(p.IP))
		}
	}
	return out
}

// silentFabric has the fabric answer no ARP request of a node, which forgets what
// it has learnt, or answer again.
func (l *Lab) silentFabric(n *scenario.Node, do bool) error {
	answer := "1"
	if do {
		answer = "0"
	}
	err := l.with(fabricName, func(sp *space) error {
		for i := range l.s.Topology.Nodes {
			if l.s.Topology.Nodes[i].Name == n.Name {
				conf := "ipv4/conf/" + nicLink(i) + "/"
				return sp.sysctls(conf+"proxy_arp", answer, conf+"proxy_arp_pvlan", answer)
			}
		}
		return fmt.Errorf("no node %q", n.Name)
	})
	if err != nil {
		return err
	}
	return l.with(n.Name, func(sp *space) error { return sp.forgetNeighbors(cmp.Or(n.Bridge, n.NIC), netip.Addr{}) })
}
