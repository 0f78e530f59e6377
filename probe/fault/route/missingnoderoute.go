package route

import (
	"cmp"
	"maps"
	"net/netip"
	"slices"

	"github.com/lasthop/lasthop/probe/fault"
	"github.com/lasthop/lasthop/probe/model"
	"github.com/lasthop/lasthop/probe/node"
	"github.com/lasthop/lasthop/probe/words"
)

// unrouted is the traffic with pods of another node that left by the default route, and got
// no reply, or for which there was no route at all.
type unrouted struct {
	node.Lost
	answers bool
	// replying says that only replies of this node's pods were seen to leave, to requests that go on coming.
	replying bool
}

// MissingNodeRoute reports ranges of other nodes' pods to which the node has no route.
var MissingNodeRoute = fault.Kind{Code: "MissingNodeRoute", Severity: model.Critical, Find: missingNodeRoute,
	Needs: fault.Sources{model.SourceRoutes, model.SourceTC}, Objects: fault.Objects{"f.Peers"},
	Traits: model.Astray | model.OnlySent | model.ByRoute,
	Else:   fault.Else{"MissingNodeRoute !node", "cloud", "!drops replying", "explicit"}}

func missingNodeRoute(v *fault.Input) {
	siblings := nodeRoutes(v.Index)
	// kindnet always has routes to other nodes' pods, the plain plugins do wherever no cloud has.
	keeps := slices.Contains([]string{"kindnet", "flannel", "bridge", "ptp"}, v.Node.Plugin)
	// A cloud that has a route table may route for all nodes, unless other nodes' recordings show routes that lead to them.
	if len(v.Cluster.Azure.Tables) > 0 && (len(siblings) == 0 || len(v.Others.Nodes) == 0) ||
		len(siblings) == 0 && !keeps && downTunnel(v.Index) == nil {
		return
	}
	routeless(v, siblings)
	groups := map[netip.Prefix]*unrouted{}
	// knows holds the families whose default route leads to some node's pods.
	knows := map[bool]bool{}
	for p := range model.Each(v.Peers) {
		cidr := v.Remote(p.Remote)
		if !cidr.IsValid() || !v.SurelyPods(p.Remote) ||
			!v.ByDefaultRoute(p.Remote) && (len(siblings) == 0 || !byGateway(v.Index, p, cidr)) {
			continue
		}
		g, answered := model.GetOrInsert(groups, cidr), v.Answered(p)
		g.answers = g.answers || answered
		// An ICMP error may be the gateway's own.
		knows[p.Remote.Is4()] = knows[p.Remote.Is4()] || answered && (p.In.Replies > 0 || p.In.Other > 0)
		if v.LeftWithWrongMAC(p) {
			continue
		}
		replying := !v.Unanswered(p)
		if replying && !(repliesInVain(p) && len(siblings) > 0 && v.NodeOf(cidr) != nil) {
			continue
		}
		g.replying = replying && (g.replying || len(g.Peers) == 0)
		g.AddPair(p, v.Senders(p), 0)
	}
	maps.DeleteFunc(groups, func(cidr netip.Prefix, g *unrouted) bool {
		return g.answers || len(g.Pods) == 0 || knows[cidr.Addr().Is4()] || beyondRouter(v.Index, cidr) || !g.unlike(v.Index, cidr, siblings)
	})
	if len(siblings) == 0 && downTunnel(v.Index) != nil && len(groups) > 0 {
		// All routes went with the tunnel.
		ranges := slices.SortedFunc(maps.Keys(groups), netip.Prefix.Compare)
		all := groups[ranges[0]]
		for _, cidr := range ranges[1:] {
			all.Merge(&groups[cidr].Lost)
		}
		f := withoutNodeRoute(v.Index, ranges[0], all, siblings)
		f.Peers = ranges
		v.Report(f)
		return
	}
	for cidr, g := range groups {
		v.Report(withoutNodeRoute(v.Index, cidr, g, siblings))
	}
}

// byGateway reports whether the route to a range, or to a wider one, leads to a gateway of the default routes, though
// the node that has the range may be on link: that is as good as no route.
func byGateway(v *node.Index, p *model.Peer, cidr netip.Prefix) bool {
	d, n := v.Routing().Lookup(v.SentBy(p.Local, p.Remote)), v.NodeOf(cidr)
	return !d.Discards() && d.Route != nil && len(d.Hops) == 1 && v.GatewayAddrs[d.Route.Gateway] &&
		(n != nil || d.Route.Dst.Bits() < cidr.Bits())
}

// repliesInVain reports whether all that comes of a pair are requests, such as echo requests, and all that
// leaves are replies to them: whether these arrive, no packet tells.
func repliesInVain(p *model.Peer) bool {
	return p.In.Requests >= node.MinAsks && p.In.Replies+p.In.Other == 0 && p.Out.Replies >= node.MinAsks &&
		p.Out.Requests+p.Out.Other == 0
}

// unlike reports whether more than the silence of one address shows that a route is
// missing here: the node has routes to others' pods, its plugin always writes them, a
// tunnel is down, or several addresses are silent while others beyond the uplink reply.
func (g *unrouted) unlike(v *node.Index, cidr netip.Prefix, siblings []*model.Route) bool {
	return len(siblings) > 0 || v.Node.Plugin == "kindnet" || downTunnel(v) != nil ||
		len(g.Peers) > 1 && len(node.Answering(v, cidr.Contains)) > 0
}

// routeless reports ranges for which a node without a default route has no route: the kernel drops what is for them.
func routeless(v *fault.Input, siblings []*model.Route) {
	for cidr, l := range fault.LostBy(v, func(d *model.Drop) (cidr netip.Prefix, pod netip.Addr) {
		if a, is := unroutable(v.Index, d); is && v.SurelyPods(a) && v.Remote(a).IsValid() {
			cidr, pod = v.Remote(a), v.Pod(d)
		}
		return cidr, pod
	}) {
		if l.Link = v.AnUplink(); !beyondRouter(v.Index, cidr) && !lacksAllRoutes(v.Index, cidr, siblings) {
			v.Report(withoutNodeRoute(v.Index, cidr, &unrouted{Lost: *l}, siblings))
		}
	}
}

// lacksAllRoutes reports whether more is missing than the route to one range: the NIC is down by which all
// went, or has no address, or there is no default route nor any sign that such ranges have routes of their own.
func lacksAllRoutes(v *node.Index, cidr netip.Prefix, siblings []*model.Route) bool {
	return !node.HasDefault(v, false) &&
		(downNIC(v) != nil || cidr.Addr().Is4() && unaddressed(v) || len(siblings) == 0 && v.NodeOf(cidr) == nil && v.Node.Plugin != "kindnet")
}

// beyondRouter reports whether a range is of a node that is on no link of this
// one: no route of this node's can lead there but a router's.
func beyondRouter(v *node.Index, cidr netip.Prefix) bool {
	n := v.NodeOf(cidr)
	return n != nil && !linkedHop(v, n, cidr).IsValid()
}

// linkedHop is the node's address, of the range's family, that is on link; not valid where none is.
func linkedHop(v *node.Index, n *model.ClusterNode, cidr netip.Prefix) netip.Addr {
	return model.Find(node.SameFamily(node.Internal(n), cidr.Addr()), func(a netip.Addr) bool { return node.Directly(v, a) })
}

// nodeRoutes are the node's routes to other nodes' pods, by those nodes or by a tunnel.
func nodeRoutes(v *node.Index) []*model.Route {
	return model.Chosen(v.Routes, func(r *model.Route) bool {
		return r.Table == node.MainTable && r.Type == "unicast" && r.Dst.Bits() > 0 && r.Gateway.IsValid() &&
			(v.IsTunnel(r.IfIndex) || v.Outer[r.IfIndex] && node.Directly(v, r.Gateway) && !v.GatewayAddrs[r.Gateway]) &&
			v.Remote(r.Dst.Addr()).IsValid() && v.SurelyPods(r.Dst.Addr())
	})
}

func withoutNodeRoute(v *node.Index, cidr netip.Prefix, g *unrouted, siblings []*model.Route) fault.Fault {
	link, n := v.LinkName(g.Link), v.NodeOf(cidr)
	f := fault.Fault{Lost: &g.Lost, Lacks: node.LacksRoute, LacksTo: []netip.Prefix{cidr}, Facts: words.Facts{
		"range": cidr, "link": link, "dev": v.NatLink(g.Link), "replying": g.replying, "node": n, "hop": node.NodeIP,
		"drops": dropEvidence(g.Drops),
	}}
	f.Peers, f.LastHopAlive = []netip.Prefix{cidr}, v.Place(link, model.Egress)
	if most := node.MostDropped(g.Drops); len(most) > 0 {
		f.LastHopAlive = v.Place(most[0].Link, model.Ingress)
	} else {
		remote := node.Sorted(g.Peers)[0]
		f.Facts["vanished"] = slices.ContainsFunc(slices.Collect(maps.Keys(v.Others.Lost)), func(p node.Pair) bool { return cidr.Contains(p.Remote) })
		f.Facts["remote"], f.Facts["route"] = remote, v.Shown(v.Lookup(remote))
		f.Facts["explicit"] = !v.ByDefaultRoute(remote)
	}
	f.Facts["siblings"] = model.Map(siblings[:min(len(siblings), 2)], v.Shown)
	// Packets from there are refused as well, since they come by a link that leads to nothing.
	own := model.SetOf(g.Drops)
	f.Claims = func(d *model.Drop) bool {
		return own[d] || d.Is(model.ReverseFiltered) && cidr.Contains(d.Src)
	}
	if i := slices.IndexFunc(siblings, func(r *model.Route) bool { return v.IsTunnel(r.IfIndex) }); i >= 0 {
		over := siblings[i].IfIndex
		f.Facts["over"] = v.LinkName(over)
		if n := model.First(v.Neighbors, func(n *model.Neighbor) bool { return n.IfIndex == over && cidr.Contains(n.Addr) }); n != nil {
			f.Facts["vtep"] = n.Addr
		}
	}
	if n != nil {
		f.Facts["hop"] = linkedHop(v, n, cidr)
	} else if len(v.Cluster.Nodes) > len(v.Others.Nodes) {
		f.Confidence = model.Possible
	}
	// Another route by a gateway is the daemon's, too, that is to write this one.
	var kept words.Command
	for _, r := range append(slices.Clip(siblings), model.Chosen(v.Routes, func(r *model.Route) bool { return r.Gateway.IsValid() })...) {
		kept = cmp.Or(kept, words.ChangeRoute(r.Protocol, cidr))
	}
	f.Facts["kept"] = kept
	if len(siblings) == 0 {
		f.Facts["cloud"], f.Facts["tunnel"] = true, downTunnel(v)
	}
	return f
}

// downTunnel is a tunnel of the node that has an address and is down; nil where none is.
func downTunnel(v *node.Index) *model.Link {
	return model.First(v.Links, func(l *model.Link) bool { return v.IsTunnel(l.Index) && !l.Up && len(l.Addresses) > 0 })
}
