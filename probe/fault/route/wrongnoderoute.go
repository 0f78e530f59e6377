package route

import (
	"net/netip"
	"slices"

	"github.com/lasthop/lasthop/probe/fault"
	"github.com/lasthop/lasthop/probe/model"
	"github.com/lasthop/lasthop/probe/node"
	"github.com/lasthop/lasthop/probe/path"
	"github.com/lasthop/lasthop/probe/words"
)

// NodeRoute is the route by which packets leave for a range of other nodes' pods, if it has one next hop on a
// link and is no wider than the range; nil for others.
func NodeRoute(v *node.Index, q path.Query, cidr netip.Prefix) *model.NodeRoute {
	d := v.Routing().Lookup(q)
	r := d.Route
	if r == nil || r.Type != "unicast" || !r.Gateway.IsValid() || len(d.Hops) != 1 || !v.Outer[r.IfIndex] ||
		r.Dst.Bits() < cidr.Bits() || !node.Directly(v, r.Gateway) {
		return nil
	}
	return &model.NodeRoute{
		Dst: r.Dst, Gateway: r.Gateway, Link: v.LinkName(r.IfIndex), Table: d.Table, Text: v.RouteText(r),
		Protocol: r.Protocol, Router: v.GatewayAddrs[r.Gateway],
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

// WrongNodeRoute reports routes to other nodes' pods by a next hop that is not that node.
var WrongNodeRoute = fault.Kind{Code: "WrongNodeRoute", Severity: model.Critical, Find: wrongNodeRoute,
	Needs: fault.Sources{model.SourceRoutes, model.SourceTC}, Ends: fault.Hops{model.HopBeyond, model.HopNeighbor},
	Objects: fault.Objects{"f.Peers route.Gateway"}, Traits: model.Astray | model.OnlySent,
	Else: fault.Else{"!other !drops"}}

func wrongNodeRoute(v *fault.Input) {
	var order []*misroutedTraffic
	of := func(q path.Query) *misroutedTraffic {
		cidr := v.Remote(q.Dst)
		n := v.NodeOf(cidr)
		if !cidr.IsValid() || n == nil {
			return nil
		}
		r, right := NodeRoute(v.Index, q, cidr), linkedHop(v.Index, n, cidr)
		if r == nil || r.Router || !right.IsValid() || slices.Contains(n.Addresses, r.Gateway) {
			return nil
		}
		i := slices.IndexFunc(order, func(s *misroutedTraffic) bool { return *s.route == *r })
		if i < 0 {
			i, order = len(order), append(order, &misroutedTraffic{route: r, cidr: cidr, right: right})
		}
		return order[i]
	}
	for p := range model.Each(v.Peers) {
		if s := of(v.SentBy(p.Local, p.Remote)); s != nil && !v.LeftWithWrongMAC(p) {
			if s.answers = s.answers || v.Answered(p); v.Unanswered(p) {
				s.silent = append(s.silent, p)
			}
		}
	}
	for d := range model.Each(v.Traffic.Drops) {
		if d.Is(model.NeighborFailed) && v.OfPod(d) {
			if s := of(v.SentBy(v.Pod(d), d.Dst)); s != nil {
				s.drops = append(s.drops, d)
			}
		}
	}
	for _, s := range order {
		l := v.SumPeers(s.silent)
		sent := l.Packets
		for _, d := range s.drops {
			l.Add(v.Index, d)
		}
		if s.answers || l.Packets < node.MinAsks || len(l.Pods) == 0 {
			continue
		}
		f := fault.Fault{Lost: l, Facts: words.Facts{
			"route": s.route, "range": s.cidr, "node": v.NodeOf(s.cidr), "right": s.right,
			"silent": len(s.silent), "sent": sent, "drops": dropEvidence(s.drops),
			"other": model.First(v.Cluster.Nodes, func(o *model.ClusterNode) bool {
				return slices.Contains(o.Addresses, s.route.Gateway)
			}),
		}}
		f.Peers, f.LastHopAlive = []netip.Prefix{s.cidr}, v.Place(s.route.Link, model.Egress)
		v.Report(f)
	}
}
