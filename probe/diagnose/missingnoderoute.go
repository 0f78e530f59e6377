package diagnose

import (
	"net/netip"
	"slices"

	"github.com/lasthop/lasthop/probe/model"
)

// unrouted is the traffic with pods of another node that left by the default route, and got
// no reply, or for which there was no route at all.
type unrouted struct {
	lost
	answers bool
	// replying says that only replies of this node's pods were seen to leave, to requests that go on coming.
	replying bool
}

func findMissingNodeRoute(v *view) {
	siblings := nodeRoutes(v.index)
	// kindnet always has routes to other nodes' pods, the plain plugins do wherever no cloud has.
	keeps := slices.Contains([]string{"kindnet", "flannel", "bridge", "ptp"}, v.Node.Plugin)
	if len(v.Cluster.Azure.Tables) > 0 || len(siblings) == 0 && !keeps && downTunnel(v.index) == nil {
		return
	}
	routeless(v, siblings)
	groups := map[netip.Prefix]*unrouted{}
	// knows holds the families whose default route leads to some node's pods.
	knows := map[bool]bool{}
	for p := range model.Each(v.peers) {
		cidr := v.remote(p.Remote)
		if !cidr.IsValid() || !v.surelyPods(p.Remote) || !v.byDefaultRoute(p.Remote) {
			continue
		}
		g, answered := model.GetOrInsert(groups, cidr), v.answered(p)
		g.answers = g.answers || answered
		// An ICMP error may be the gateway's own.
		knows[p.Remote.Is4()] = knows[p.Remote.Is4()] || answered && (p.In.Replies > 0 || p.In.Other > 0)
		if v.leftWithWrongMAC(p) {
			continue
		}
		replying := !v.unanswered(p)
		if replying && !(repliesInVain(p) && len(siblings) > 0 && v.nodeOf(cidr) != nil) {
			continue
		}
		g.replying = replying && (g.replying || len(g.peers) == 0)
		g.addPair(p, v.senders(p), 0)
	}
	for cidr, g := range groups {
		if !g.answers && len(g.pods) > 0 && !knows[cidr.Addr().Is4()] && !beyondRouter(v.index, cidr) &&
			g.unlike(v.index, cidr, siblings) {
			v.report(withoutNodeRoute(v.index, cidr, g, siblings))
		}
	}
}

// repliesInVain reports whether all that comes of a pair are requests, such as echo requests, and all that
// leaves are replies to them: whether these arrive, no packet tells.
func repliesInVain(p *model.Peer) bool {
	return p.In.Requests >= minAsks && p.In.Replies+p.In.Other == 0 && p.Out.Replies >= minAsks &&
		p.Out.Requests+p.Out.Other == 0
}

// unlike reports whether more than the silence of one address shows that a route is
// missing here: the node has routes to others' pods, its plugin always writes them, a
// tunnel is down, or several addresses are silent while others beyond the uplink reply.
func (g *unrouted) unlike(v *index, cidr netip.Prefix, siblings []*model.Route) bool {
	return len(siblings) > 0 || v.Node.Plugin == "kindnet" || downTunnel(v) != nil ||
		len(g.peers) > 1 && len(answering(v, cidr.Contains)) > 0
}

// routeless reports ranges for which a node without a default route has no route: the kernel drops what is for them.
func routeless(v *view, siblings []*model.Route) {
	groups := map[netip.Prefix]*unrouted{}
	for d := range model.Each(v.Traffic.Drops) {
		a, is := v.unroutable(d)
		cidr := v.remote(a)
		if !is || !v.ofPod(d) || !cidr.IsValid() || !v.surelyPods(a) {
			continue
		}
		g := model.GetOrInsert(groups, cidr)
		g.link = v.anUplink()
		g.add(v.index, d)
	}
	for cidr, g := range groups {
		if g.packets >= minDrops && !beyondRouter(v.index, cidr) && !v.lacksAllRoutes(cidr, siblings) {
			v.report(withoutNodeRoute(v.index, cidr, g, siblings))
		}
	}
}

// lacksAllRoutes reports whether more is missing than the route to one range: the NIC is down by which all
// went, or there is no default route nor any sign that such ranges have routes of their own.
func (v *index) lacksAllRoutes(cidr netip.Prefix, siblings []*model.Route) bool {
	return !hasDefault(v, false) &&
		(downNIC(v) != nil || len(siblings) == 0 && v.nodeOf(cidr) == nil && v.Node.Plugin != "kindnet")
}

// beyondRouter reports whether a range is of a node that is on no link of this
// one: no route of this node's can lead there but a router's.
func beyondRouter(v *index, cidr netip.Prefix) bool {
	n := v.nodeOf(cidr)
	return n != nil && !linkedHop(v, n, cidr).IsValid()
}

// linkedHop is the node's address, of the range's family, that is on link; not valid where none is.
func linkedHop(v *index, n *model.ClusterNode, cidr netip.Prefix) netip.Addr {
	return model.Find(sameFamily(internal(n), cidr.Addr()), func(a netip.Addr) bool { return directly(v, a) })
}

// directly reports whether the node reaches an address without a router: within
// a network on a link that leads off the node, or by a route of its own.
func directly(v *index, a netip.Addr) bool { return v.onLinkAlone[a] || model.InAny(v.onLink, a) }

// nodeRoutes are the node's routes to other nodes' pods, by those nodes.
func nodeRoutes(v *index) []*model.Route {
	return model.Chosen(v.Routes, func(r *model.Route) bool {
		return r.Table == mainTable && r.Type == "unicast" && r.Dst.Bits() > 0 && r.Gateway.IsValid() && v.Outer[r.IfIndex] &&
			directly(v, r.Gateway) && v.remote(r.Dst.Addr()).IsValid() && v.surelyPods(r.Dst.Addr()) &&
			!v.GatewayAddrs[r.Gateway]
	})
}

// CloudRoutes is what else may be, where no route of the node's shows that it should have
// those to other nodes' pods itself.
func CloudRoutes() string { return say("cloudRoutes", nil).Alternatives[0] }

func withoutNodeRoute(v *index, cidr netip.Prefix, g *unrouted, siblings []*model.Route) finding {
	link, n := v.linkName(g.link), v.nodeOf(cidr)
	f := finding{lost: &g.lost, lacks: lacksRoute, facts: facts{
		"range": cidr, "link": link, "dev": v.natLink(g.link), "replying": g.replying, "node": n, "hop": NodeIP,
		"drops": dropEvidence(g.drops),
	}}
	f.Peers, f.LastHopAlive = []netip.Prefix{cidr}, v.place(link, model.Egress)
	if most := mostDropped(g.drops); len(most) > 0 {
		f.LastHopAlive = v.place(most[0].Link, model.Ingress)
	} else {
		remote := sorted(g.peers)[0]
		f.facts["remote"], f.facts["route"] = remote, v.shown(v.lookup(remote))
	}
	f.facts["siblings"] = model.Map(siblings[:min(len(siblings), 2)], v.shown)
	if n != nil {
		f.facts["hop"] = linkedHop(v, n, cidr)
	} else if len(v.ranges.nodes) > 0 {
		f.Confidence = model.Possible
	}
	if len(siblings) == 0 {
		f.facts["cloud"], f.facts["tunnel"] = []string{CloudRoutes()}, downTunnel(v)
	}
	return f
}

// downTunnel is a tunnel of the node that has an address and is down; nil where none is.
func downTunnel(v *index) *model.Link {
	return model.First(v.Links, func(l *model.Link) bool { return v.isTunnel(l.Index) && !l.Up && len(l.Addresses) > 0 })
}
