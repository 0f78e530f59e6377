package silence

import (
	"net/netip"

	"github.com/lasthop/lasthop/probe/node"
)

// routesProven reports whether replies, probes or files show that the network has
// the route to another node's pods, and the one back from that node.
func routesProven(v *node.Index, cidr netip.Prefix) (there, back bool) {
	for _, r := range v.RemoteRanges() {
		if r.CIDR == cidr {
			there, back = r.Answers || r.There == node.ReachWorks, r.Back == node.ReachWorks || v.BackShared(r)
		}
	}
	there = there || v.RouteTo(cidr, v.NodeOf(cidr), v.Self()).State == node.RouteCorrect
	return there, back || v.RouteBack(cidr).State == node.RouteCorrect
}
