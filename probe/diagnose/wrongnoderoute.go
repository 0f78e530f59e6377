package diagnose

import (
	"net/netip"
	"slices"

	"github.com/lasthop/lasthop/probe/model"
	"github.com/lasthop/lasthop/probe/path"
	"github.com/lasthop/lasthop/probe/words"
)

// WrongNodeRoute is the code of this finding.
const WrongNodeRoute model.Code = "WrongNodeRoute"

var wrongNodeRoute = kind{
	code:     WrongNodeRoute,
	severity: model.Critical,
	find:     needing(findWrongNodeRoute, model.SourceRoutes, model.SourceTC),
	ends:     []model.HopKind{model.HopBeyond, model.HopNeighbor},
}

// NodeRoute is a node's own route to pods of another.
type NodeRoute struct {
	Dst     netip.Prefix
	Gateway netip.Addr
	Link    string
	Table   int
	// Text is the route as ip(8) prints it.
	Text string
}

// Replace is the command that gives it another next hop.
func (r *NodeRoute) Replace(hop netip.Addr) string {
	return words.ReplaceRoute(r.Dst, hop, r.Link, r.Table)
}

// nodeRoute is the route by which packets leave for a range of other nodes' pods, if it has one
// next hop on a link and is no wider than the range; nil for others. That of a default route
// may lead to all of them.
func (v *view) nodeRoute(q path.Query, cidr netip.Prefix) *NodeRoute {
	d := v.routing().Lookup(q)
	r := d.Route
	if r == nil || r.Type != "unicast" || !r.Gateway.IsValid() || len(d.Hops) != 1 || !v.outer[r.IfIndex] || v.gatewayAddrs[r.Gateway] ||
		r.Dst.Bits() < cidr.Bits() || !directly(v, r.Gateway) {
		return nil
	}
	return &NodeRoute{r.Dst, r.Gateway, v.linkName(r.IfIndex), d.Table, v.routeText(r)}
}

// strayed is what left for another node's pods by a route with a wrong next hop.
type strayed struct {
	route *NodeRoute
	cidr  netip.Prefix
	right netip.Addr
	exchange
	drops   []*model.Drop
	silent  []*model.Peer
	answers bool
}

func findWrongNodeRoute(v *view) []finding {
	var order []*strayed
	of := func(q path.Query) *strayed {
		cidr := v.remote(q.Dst)
		n := v.nodeOf(cidr)
		if !cidr.IsValid() || n == nil {
			return nil
		}
		r, right := v.nodeRoute(q, cidr), linkedHop(v, n, cidr)
		if r == nil || !right.IsValid() || slices.Contains(n.Addresses, r.Gateway) {
			return nil
		}
		i := slices.IndexFunc(order, func(s *strayed) bool { return *s.route == *r })
		if i < 0 {
			i, order = len(order), append(order, &strayed{route: r, cidr: cidr, right: right})
		}
		return order[i]
	}
	for p := range model.Each(v.peers) {
		if s := of(v.sentBy(p)); s != nil && !v.sentAstray(p) {
			if s.answers = s.answers || v.answered(p); v.unanswered(p) {
				s.silent = append(s.silent, p)
			}
		}
	}
	for d := range model.Each(v.Traffic.Drops) {
		if d.NeighborFailed() && v.ofPod(d) {
			if s := of(v.fromPod(v.pod(d), d.Dst)); s != nil {
				s.drops = append(s.drops, d)
			}
		}
	}
	var out []finding
	for _, s := range order {
		s.exchange = v.sumPeers(s.silent)
		sent := s.packets
		for _, d := range s.drops {
			s.packets += d.Packets
			s.pods.add(v.pod(d))
		}
		if s.answers || s.packets < minAsks || len(s.pods) == 0 {
			continue
		}
		f := finding{claims: sameDrops(s.drops), facts: facts{
			"route": s.route, "range": s.cidr, "node": v.nodeOf(s.cidr), "right": s.right,
			"silent": len(s.silent), "sent": sent, "drops": dropEvidence(s.drops),
			"other": model.First(v.Cluster.Nodes, func(o *model.ClusterNode) bool {
				return slices.Contains(o.Addresses, s.route.Gateway)
			}),
		}}
		f.Pods, f.Peers, f.Packets = sorted(s.pods), []netip.Prefix{s.cidr}, s.packets
		f.LastHopAlive = v.place(s.route.Link, model.Egress)
		out = append(out, f)
	}
	return out
}
