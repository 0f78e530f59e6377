// Package fabric finds faults of the network between nodes, of which the node knows by silence and by files of the cloud.
package fabric

import (
	"net/netip"
	"slices"

	"github.com/lasthop/lasthop/probe/fault"
	"github.com/lasthop/lasthop/probe/model"
	"github.com/lasthop/lasthop/probe/node"
)

func podsIn(v *node.Index, ranges []netip.Prefix) []netip.Addr {
	return model.Filter(node.Sorted(v.Owners), func(a netip.Addr) bool { return model.InAny(ranges, a) })
}

// silentPeers are the peers of the ranges that do not answer.
func silentPeers(list []*node.RemoteRange) []*model.Peer {
	return model.Flat(list, func(r *node.RemoteRange) []*model.Peer { return r.Silent })
}

// ownerSilent reports whether the range's node is known and did not answer an echo.
func ownerSilent(v *node.Index, r *node.RemoteRange) bool {
	return !node.OwnerAnswers(v, r) && slices.ContainsFunc(v.OwnerAddrs(r),
		func(a netip.Addr) bool { return v.Echoed(a) != nil })
}

// unclaimedRanges are the ranges without those silent peers whose silence a finding claims.
func unclaimedRanges(v *fault.Input, list []*node.RemoteRange) []*node.RemoteRange {
	out := make([]*node.RemoteRange, len(list))
	for i, r := range list {
		c := *r
		c.Silent = slices.DeleteFunc(slices.Clone(r.Silent),
			func(p *model.Peer) bool { return v.Silenced(p.Local, model.Host(p.Remote)) })
		out[i] = &c
	}
	return out
}

// silencesNetwork are the requests of a finding's pods to its peers. Where these are this node's
// own ranges, or several others, the routes of all ranges are in doubt: the requests are those to
// anybody within the network, of pods with addresses that need a route.
func silencesNetwork(v *node.Index, f *model.Finding) func(netip.Addr, netip.Prefix) bool {
	peers, pods := node.SilencesPeers(f), node.SetOf(f.Pods)
	all := len(f.Peers) > 1 || slices.ContainsFunc(f.Peers,
		func(p netip.Prefix) bool { return slices.Contains(v.Ranges.Local, p) })
	return func(asker netip.Addr, asked netip.Prefix) bool {
		return peers(asker, asked) || all && pods[asker] && !model.InAny(v.OnLink, asker) &&
			(v.Remote(asked.Addr()).IsValid() || model.InAny(v.OnLink, asked.Addr()))
	}
}
