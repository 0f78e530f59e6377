package diagnose

import (
	"net/netip"
	"slices"

	"github.com/lasthop/lasthop/probe/model"
)

// NICForwarding is the code of this finding.
const NICForwarding model.Code = "NICForwarding"

var nicForwarding = kind{
	code:     NICForwarding,
	severity: model.Critical,
	find:     findNICForwarding,
	ends:     []model.HopKind{model.HopBeyond},
}

func findNICForwarding(v *view) []finding {
	own := v.ownCIDRs()
	if len(own) == 0 || !v.Has(model.SourceCloud) {
		return nil
	}
	answers, silent := map[netip.Prefix]bool{}, map[netip.Prefix]*remoteRange{}
	for _, r := range v.remoteRanges() {
		answers[r.cidr] = r.answers || r.nodeAnswers
		answers[netip.Prefix{}] = answers[netip.Prefix{}] || r.answers
		silent[r.cidr] = r
	}
	self := v.self()
	nodes := []*model.ClusterNode{self}
	for n := range model.Each(v.Cluster.Nodes) {
		if n != self {
			nodes = append(nodes, n)
		}
	}
	var out []finding
	for _, n := range nodes {
		card := nonForwardingCard(v, n)
		if card == nil {
			continue
		}
		if n == self {
			if !answers[netip.Prefix{}] {
				out = append(out, nonForwarding(v, n, card, own, v.podsIn(own), silent))
			}
			continue
		}
		cidrs := slices.DeleteFunc(slices.Clone(n.PodCIDRs), func(p netip.Prefix) bool { return answers[p] })
		if len(cidrs) > 0 {
			out = append(out, nonForwarding(v, n, card, cidrs, nil, silent))
		}
	}
	return out
}

// nonForwardingCard is the node's network card, if a file says that it does not forward.
func nonForwardingCard(v *view, n *model.ClusterNode) *model.NIC {
	for c := range model.Each(v.Cluster.Azure.NICs) {
		if c.ForwardsKnown && !c.Forwards && slices.ContainsFunc(c.Addresses, func(a netip.Addr) bool { return slices.Contains(n.Addresses, a) }) {
			return c
		}
	}
	return nil
}

// nonForwarding is the finding on a card. Its peers are the ranges of the pods behind it.
func nonForwarding(v *view, n *model.ClusterNode, c *model.NIC, cidrs []netip.Prefix, pods []netip.Addr, ranges map[netip.Prefix]*remoteRange) finding {
	f := finding{facts: facts{"node": n, "nic": c, "group": v.Cluster.Azure.Node.ResourceGroup}}
	f.Peers, f.LastHopAlive = cidrs, v.place(v.uplink(), model.Egress)
	var silent []*model.Peer
	for _, r := range ranges {
		if pods != nil || slices.Contains(cidrs, r.cidr) {
			silent = append(silent, r.silent...)
		}
	}
	x := v.sumPeers(silent)
	f.Packets = x.packets
	f.Pods = sortedPods(slices.Concat(pods, sorted(x.pods)))
	if len(f.Pods) == 0 {
		f.Pods = v.podsIn(v.ownCIDRs())
	}
	f.silences = v.silencesNetwork(&f.Finding)
	return f
}
