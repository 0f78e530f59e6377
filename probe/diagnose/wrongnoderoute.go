package diagnose

import (
	"fmt"
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
	find:     findWrongNodeRoute,
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
	command := fmt.Sprintf("%s route replace %s via %s dev %s", words.IP(r.Dst.Addr()), r.Dst, hop, words.Quote(r.Link))
	if r.Table != mainTable {
		command += fmt.Sprintf(" table %d", r.Table)
	}
	return command
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
	if !v.Has(model.SourceRoutes, model.SourceTC) || len(v.ranges.nodes) == 0 {
		return nil
	}
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
		if s.exchange = v.sumPeers(s.silent); s.pods == nil {
			s.pods = map[netip.Addr]bool{}
		}
		for _, d := range s.drops {
			s.packets += d.Packets
			s.pods[v.pod(d)] = true
		}
		if !s.answers && s.packets >= minAsks && len(s.pods) > 0 {
			out = append(out, finding{Finding: s.finding(v), claims: sameDrops(s.drops)})
		}
	}
	slices.SortFunc(out, func(a, b finding) int { return comparePrefix(a.Peers[0], b.Peers[0]) })
	return out
}

func (s *strayed) finding(v *view) model.Finding {
	r, n := s.route, v.nodeOf(s.cidr)
	f := model.Finding{
		Confidence: model.Proven, Pods: sorted(s.pods), Peers: []netip.Prefix{s.cidr}, Packets: s.packets, LastHopAlive: v.place(r.Link, model.Egress),
		Title: fmt.Sprintf("the route for %s leads to %s, not to %s at %s", r.Dst, r.Gateway, n.Name, s.right),
		Why: fmt.Sprintf("%s has the pods of %s. What goes to them leaves %s for %s, which does not have them, and nothing returns.",
			n.Name, s.cidr, r.Link, r.Gateway),
		Fix: []string{r.Replace(s.right), "find what wrote the route: an agent with an old address of that node writes it again"},
	}
	observe(&f, model.SourceRoutes, "%s", r.Text)
	if len(s.silent) > 0 {
		observe(&f, model.SourceTC, "%s egress: %s to %s; ingress: no reply", r.Link, words.Count(s.exchange.packets, "packet"), s.cidr)
	}
	f.Evidence = append(f.Evidence, dropEvidence(s.drops)...)
	i := slices.IndexFunc(v.Cluster.Nodes, func(o model.ClusterNode) bool { return slices.Contains(o.Addresses, r.Gateway) })
	if i >= 0 {
		observe(&f, model.SourceRoutes, "%s is the address of %s", r.Gateway, v.Cluster.Nodes[i].Name)
	} else if len(s.drops) == 0 {
		f.Confidence = model.Likely
		f.Alternatives = []string{fmt.Sprintf("%[1]s is another address of %[2]s, or a router that leads there, and the packets are lost later", r.Gateway, n.Name)}
	}
	return f
}
