package fabric

import (
	"net/netip"
	"slices"

	"github.com/lasthop/lasthop/probe/fault"
	"github.com/lasthop/lasthop/probe/model"
	"github.com/lasthop/lasthop/probe/node"
	"github.com/lasthop/lasthop/probe/words"
)

// NICForwarding reports NICs for which the cloud does not forward packets of other addresses.
var NICForwarding = fault.Kind{Code: "NICForwarding", Severity: model.Critical, Find: nicForwarding,
	Rests: fault.Sources{model.SourceTC}, Ends: fault.Hops{model.HopBeyond},
	Objects: fault.Objects{"f.Peers"}, Traits: model.Unheard | model.Astray, Else: fault.Else{"NICForwarding-joined"}}

func nicForwarding(v *fault.Input) {
	own := v.OwnCIDRs()
	if len(own) == 0 || !v.Told() {
		return
	}
	ranges, self := v.RemoteRanges(), v.Self()
	answered := slices.ContainsFunc(ranges, func(r *node.RemoteRange) bool { return r.Answers })
	others := model.Chosen(v.Cluster.Nodes, func(n *model.ClusterNode) bool { return n != self })
	for _, n := range append([]*model.ClusterNode{self}, others...) {
		nic := model.First(v.Cluster.Azure.NICs, func(c *model.NIC) bool {
			return c.ForwardsKnown && !c.Forwards &&
				slices.ContainsFunc(c.Addresses, func(a netip.Addr) bool { return slices.Contains(n.Addresses, a) })
		})
		// Its peers are the ranges of the pods behind it.
		f := fault.Fault{Facts: words.Facts{"node": n, "nic": nic, "group": v.Cluster.Azure.Node.ResourceGroup}}
		if f.Peers = slices.Clone(own); n != self {
			f.Peers = slices.DeleteFunc(slices.Clone(n.PodCIDRs), func(p netip.Prefix) bool {
				return slices.ContainsFunc(ranges, func(r *node.RemoteRange) bool { return r.CIDR == p && (r.Answers || r.NodeAnswers) })
			})
		}
		if nic == nil || n == self && answered || len(f.Peers) == 0 {
			continue
		}
		x := v.SumPeers(silentPeers(slices.DeleteFunc(slices.Clone(ranges), func(r *node.RemoteRange) bool {
			return n != self && !slices.Contains(f.Peers, r.CIDR)
		})))
		f.Pods, f.Packets, f.LastHopAlive = node.Sorted(x.Pods), x.Packets, v.Place(v.Uplink(), model.Egress)
		if n == self || len(f.Pods) == 0 {
			f.Pods = model.Unique(append(podsIn(v.Index, own), f.Pods...))
		}
		f.Silences = silencesNetwork(v.Index, &f.Finding)
		v.Report(f)
	}
}
