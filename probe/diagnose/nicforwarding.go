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
	find:     needing(findNICForwarding, model.SourceCloud),
	ends:     []model.HopKind{model.HopBeyond},
}

func findNICForwarding(v *view) []finding {
	own := v.ownCIDRs()
	if len(own) == 0 {
		return nil
	}
	ranges, self := v.remoteRanges(), v.self()
	answered := slices.ContainsFunc(ranges, func(r *remoteRange) bool { return r.answers })
	nodes := []*model.ClusterNode{self}
	for n := range model.Each(v.Cluster.Nodes) {
		if n != self {
			nodes = append(nodes, n)
		}
	}
	var out []finding
	for _, n := range nodes {
		nic := model.First(v.Cluster.Azure.NICs, func(c *model.NIC) bool {
			return c.ForwardsKnown && !c.Forwards &&
				slices.ContainsFunc(c.Addresses, func(a netip.Addr) bool { return slices.Contains(n.Addresses, a) })
		})
		// Its peers are the ranges of the pods behind it.
		f := finding{facts: facts{"node": n, "nic": nic, "group": v.Cluster.Azure.Node.ResourceGroup}}
		if f.Peers = slices.Clone(own); n != self {
			f.Peers = slices.DeleteFunc(slices.Clone(n.PodCIDRs), func(p netip.Prefix) bool {
				return slices.ContainsFunc(ranges, func(r *remoteRange) bool {
					return r.cidr == p && (r.answers || r.nodeAnswers)
				})
			})
		}
		if nic == nil || n == self && answered || len(f.Peers) == 0 {
			continue
		}
		x := v.sumPeers(silentPeers(slices.DeleteFunc(slices.Clone(ranges), func(r *remoteRange) bool {
			return n != self && !slices.Contains(f.Peers, r.cidr)
		})))
		f.Pods, f.Packets, f.LastHopAlive = sorted(x.pods), x.packets, v.place(v.uplink(), model.Egress)
		if n == self || len(f.Pods) == 0 {
			f.Pods = sortedPods(append(v.podsIn(own), f.Pods...))
		}
		f.silences = v.silencesNetwork(&f.Finding)
		out = append(out, f)
	}
	return out
}
