package lab

import (
	"context"
	"fmt"
	"strings"

	"github.com/lasthop/lasthop/kind/scenario"
)

// Rewrite replaces a node's rules and routes with equal ones, as the programs
// that keep them do when they start and from time to time. Rules get new
// handles, and their counters begin again.
//
// Only tests call it, so it is no method: a program keeps those that nothing calls.
func Rewrite(ctx context.Context, l *Lab, node string) error {
	return l.locked(ctx, func() error {
		n := l.s.Topology.Node(node)
		if n == nil {
			return fmt.Errorf("rewrite rules: no node %q", node)
		}
		b := &builder{Lab: l, topology: &l.s.Topology, log: func(string, ...any) {}}
		return wrap(l.with(node, func(sp *space) error { return b.rewrite(n, sp) }), "rewrite rules")
	})
}

func (b *builder) rewrite(n *scenario.Node, sp *space) error {
	for _, table := range []string{"filter", "nat"} {
		if err := sp.rewriteChains(table); err != nil {
			return err
		}
	}
	if n.Policy == scenario.PolicyCalicoNFT {
		if err := sp.rewriteTable(calicoNFT); err != nil {
			return err
		}
	}
	if n.Bridge != "" {
		saved, err := sp.pipe("", ebtables+"-save")
		if err != nil {
			return err
		}
		if _, err := sp.pipe(saved, ebtables+"-restore"); err != nil {
			return err
		}
	}
	// No program keeps the rules of old pods.
	for i := range n.Pods {
		if err := b.rewritePod(n, &n.Pods[i], sp); err != nil {
			return err
		}
	}
	return b.remoteRoutes(n, sp)
}

// rewritePod writes the route of a pod anew, or deletes its frame rules and
// adds them again. In tunnel mode packets would be lost in between, since the
// node sends what it has no rule for back to the fabric.
func (b *builder) rewritePod(n *scenario.Node, p *scenario.Pod, sp *space) error {
	switch {
	case !p.Bridged:
		return sp.route(route{dst: host(p.IP), link: p.Link})
	case n.Plugin == scenario.Kubenet, n.Plugin == scenario.AzureTunnel:
		return nil
	}
	return sp.runAll(ebtables,
		arpReply("-D", p.IP, p.MAC), arpReply("-A", p.IP, p.MAC),
		frameDNAT("-D", n.NIC, p.IP, p.MAC), frameDNAT("-A", n.NIC, p.IP, p.MAC))
}

// rewriteChains flushes and fills every chain of a table that iptables does not
// have by itself, in one transaction.
func (sp *space) rewriteChains(table string) error {
	saved, err := sp.pipe("", iptables+"-save", "-t", table)
	if err != nil {
		return err
	}
	var chains, rules strings.Builder
	own := map[string]bool{}
	for line := range strings.Lines(saved) {
		words := strings.Fields(line)
		switch {
		case len(words) > 1 && words[0][0] == ':' && words[1] == "-":
			own[words[0][1:]] = true
			fmt.Fprintf(&chains, "%s - [0:0]\n", words[0])
		case len(words) > 1 && words[0] == "-A" && own[words[1]]:
			rules.WriteString(line)
		}
	}
	if len(own) == 0 {
		return nil
	}
	_, err = sp.pipe("*"+table+"\n"+chains.String()+rules.String()+"COMMIT\n", iptables+"-restore", "--noflush")
	return err
}

// rewriteTable does so with all of a table of nft's own.
func (sp *space) rewriteTable(table string) error {
	listed, err := sp.pipe("", nft, "-s", "list", "table", "ip", table)
	if err != nil {
		return err
	}
	_, err = sp.pipe("flush table ip "+table+"\n"+listed, nft, "-f", "-")
	return err
}
