package diagnose

import (
	"net/netip"
	"slices"

	"github.com/lasthop/lasthop/probe/model"
	"github.com/lasthop/lasthop/probe/path"
)

// nodeRoute is the route by which packets leave for a range of other nodes' pods, if it has one next hop on a
// link and is no wider than the range; nil for others. That of a default route may lead to all of them.
func (v *index) nodeRoute(q path.Query, cidr netip.Prefix) *model.NodeRoute {
	d := v.Routing().Lookup(q)
	r := d.Route
	if r == nil || r.Type != "unicast" || !r.Gateway.IsValid() || len(d.Hops) != 1 || !v.Outer[r.IfIndex] ||
		v.GatewayAddrs[r.Gateway] || r.Dst.Bits() < cidr.Bits() || !directly(v, r.Gateway) {
		return nil
	}
	return &model.NodeRoute{
		Dst: r.Dst, Gateway: r.Gateway, Link: v.linkName(r.IfIndex), Table: d.Table, Text: v.routeText(r),
	}
}

// misroutedTraffic is what left for another node's pods by a route with a wrong next hop.
type misroutedTraffic struct {
	route   *model.NodeRoute
	cidr    netip.Prefix
	right   netip.Addr
	drops   []*model.Drop
	silent  []*model.Peer
	answers bool
}

func findWrongNodeRoute(v *view) {
	var order []*misroutedTraffic
	of := func(q path.Query) *misroutedTraffic {
		cidr := v.remote(q.Dst)
		n := v.nodeOf(cidr)
		if !cidr.IsValid() || n == nil {
			return nil
		}
		r, right := v.nodeRoute(q, cidr), linkedHop(v.index, n, cidr)
		if r == nil || !right.IsValid() || slices.Contains(n.Addresses, r.Gateway) {
			return nil
		}
		i := slices.IndexFunc(order, func(s *misroutedTraffic) bool { return *s.route == *r })
		if i < 0 {
			i, order = len(order), append(order, &misroutedTraffic{route: r, cidr: cidr, right: right})
		}
		return order[i]
	}
	for p := range model.Each(v.peers) {
		if s := of(v.sentBy(p.Local, p.Remote)); s != nil && !v.leftWithWrongMAC(p) {
			if s.answers = s.answers || v.answered(p); v.unanswered(p) {
				s.silent = append(s.silent, p)
			}
		}
	}
	for d := range model.Each(v.Traffic.Drops) {
		if d.Is(model.NeighborFailed) && v.ofPod(d) {
			if s := of(v.sentBy(v.pod(d), d.Dst)); s != nil {
				s.drops = append(s.drops, d)
			}
		}
	}
	for _, s := range order {
		l := v.sumPeers(s.silent)
		sent := l.packets
		for _, d := range s.drops {
			l.add(v.index, d)
		}
		if s.answers || l.packets < minAsks || len(l.pods) == 0 {
			continue
		}
		f := finding{lost: l, facts: facts{
			"route": s.route, "range": s.cidr, "node": v.nodeOf(s.cidr), "right": s.right,
			"silent": len(s.silent), "sent": sent, "drops": dropEvidence(s.drops),
			"other": model.First(v.Cluster.Nodes, func(o *model.ClusterNode) bool {
				return slices.Contains(o.Addresses, s.route.Gateway)
			}),
		}}
		f.Peers, f.LastHopAlive = []netip.Prefix{s.cidr}, v.place(s.route.Link, model.Egress)
		v.report(f)
	}
}
