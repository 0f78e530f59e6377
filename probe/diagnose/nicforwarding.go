package diagnose

import (
	"net/netip"
	"slices"

	"github.com/lasthop/lasthop/probe/model"
)

func findNICForwarding(v *view) {
	own := v.ownCIDRs()
	if len(own) == 0 {
		return
	}
	ranges, self := v.remoteRanges(), v.self()
	answered := slices.ContainsFunc(ranges, func(r *remoteRange) bool { return r.answers })
	others := model.Chosen(v.Cluster.Nodes, func(n *model.ClusterNode) bool { return n != self })
	for _, n := range append([]*model.ClusterNode{self}, others...) {
		nic := model.First(v.Cluster.Azure.NICs, func(c *model.NIC) bool {
			return c.ForwardsKnown && !c.Forwards &&
				slices.ContainsFunc(c.Addresses, func(a netip.Addr) bool { return slices.Contains(n.Addresses, a) })
		})
		// Its peers are the ranges of the pods behind it.
		f := finding{facts: facts{"node": n, "nic": nic, "group": v.Cluster.Azure.Node.ResourceGroup}}
		if f.Peers = slices.Clone(own); n != self {
			f.Peers = slices.DeleteFunc(slices.Clone(n.PodCIDRs), func(p netip.Prefix) bool {
				return slices.ContainsFunc(ranges, func(r *remoteRange) bool { return r.cidr == p && (r.answers || r.nodeAnswers) })
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
			f.Pods = model.Unique(append(v.podsIn(own), f.Pods...))
		}
		f.silences = v.silencesNetwork(&f.Finding)
		v.report(f)
	}
}
