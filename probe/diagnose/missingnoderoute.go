package diagnose

import (
	"fmt"
	"maps"
	"net/netip"
	"slices"

	"github.com/lasthop/lasthop/probe/model"
	"github.com/lasthop/lasthop/probe/words"
)

// MissingNodeRoute is the code of this finding.
const MissingNodeRoute model.Code = "MissingNodeRoute"

var missingNodeRoute = kind{
	code:     MissingNodeRoute,
	severity: model.Critical,
	find:     findMissingNodeRoute,
}

// unrouted is the traffic with pods of another node that left by the default
// route, unanswered, or for which there was no route at all.
type unrouted struct {
	cidr netip.Prefix
	pods map[netip.Addr]bool
	// remotes are the addresses that do not answer.
	remotes map[netip.Addr]bool
	link    int
	packets uint64
	answers bool
	// replying says that only replies of this node's pods were seen to leave, to
	// requests that go on coming.
	replying bool
	// drops are the packets that found no route.
	drops []*model.Drop
}

func findMissingNodeRoute(v *view) []finding {
	if !v.Has(model.SourceRoutes, model.SourceTC) || len(v.Cluster.Azure.Tables) > 0 {
		return nil
	}
	siblings := nodeRoutes(v)
	if len(siblings) == 0 && !keepsNodeRoutes(v.Node.Plugin) && downTunnel(v) == nil {
		return nil
	}
	out := routeless(v, siblings)
	groups := map[netip.Prefix]*unrouted{}
	// knows holds the families whose default route leads to some node's pods.
	knows := map[bool]bool{}
	unreplied := v.unrepliedFlows()
	for p := range model.Each(v.peers) {
		cidr := v.remote(p.Remote)
		if !cidr.IsValid() || !v.surelyPods(p.Remote) || !v.byDefaultRoute(p.Remote) {
			continue
		}
		g := groups[cidr]
		if g == nil {
			g = &unrouted{cidr: cidr, pods: map[netip.Addr]bool{}, remotes: map[netip.Addr]bool{}}
			groups[cidr] = g
		}
		answered := v.answered(p)
		g.answers = g.answers || answered
		// An ICMP error may be the gateway's own.
		knows[p.Remote.Is4()] = knows[p.Remote.Is4()] || answered && (p.In.Replies > 0 || p.In.Other > 0)
		if v.sentAstray(p) {
			continue
		}
		replying := !v.unanswered(p)
		if replying && !(repliesInVain(p) && len(siblings) > 0 && v.nodeOf(cidr) != nil) {
			continue
		}
		g.replying = replying && (g.replying || len(g.remotes) == 0)
		if len(v.pods[p.Local]) > 0 {
			g.pods[p.Local] = true
		} else if m := unreplied[pair{p.Local, p.Remote}]; m != nil && v.nodeAddrs[p.Local] {
			// The plugin gives them the node's address.
			maps.Copy(g.pods, m.pods)
		}
		g.remotes[p.Remote], g.link = true, p.IfIndex
		g.packets += p.Out.Packets
	}
	for _, cidr := range slices.SortedFunc(maps.Keys(groups), comparePrefix) {
		g := groups[cidr]
		if !g.answers && len(g.pods) > 0 && !knows[cidr.Addr().Is4()] && !beyondRouter(v, cidr) && g.unlike(v, siblings) {
			out = append(out, withoutNodeRoute(v, g, siblings))
		}
	}
	return out
}

// repliesInVain reports whether all that comes of a pair are requests, such as echo
// requests, and all that leaves are replies to them: whether these arrive, no packet
// tells.
func repliesInVain(p *model.Peer) bool {
	return p.In.Requests >= minAsks && p.In.Replies+p.In.Other == 0 && p.Out.Replies >= minAsks && p.Out.Requests+p.Out.Other == 0
}

// unlike reports whether more than the silence of one address shows that a route is
// missing here: the node has routes to others' pods, its plugin always writes them, a
// tunnel is down, or several addresses are silent while others beyond the uplink reply.
func (g *unrouted) unlike(v *view, siblings []*model.Route) bool {
	return len(siblings) > 0 || v.Node.Plugin == "kindnet" || downTunnel(v) != nil ||
		len(g.remotes) > 1 && len(answering(v, g.cidr.Contains)) > 0
}

// routeless are the findings on ranges for which a node without a default route
// has no route: the kernel drops what is for them.
func routeless(v *view, siblings []*model.Route) []finding {
	groups := map[netip.Prefix]*unrouted{}
	for d := range model.Each(v.Traffic.Drops) {
		a, is := v.unroutable(d)
		if !is || !v.ofPod(d) {
			continue
		}
		cidr := v.remote(a)
		if !cidr.IsValid() || !v.surelyPods(a) {
			continue
		}
		g := groups[cidr]
		if g == nil {
			g = &unrouted{cidr: cidr, pods: map[netip.Addr]bool{}, remotes: map[netip.Addr]bool{}, link: v.anUplink()}
			groups[cidr] = g
		}
		g.pods[v.pod(d)] = true
		g.packets += d.Packets
		g.drops = append(g.drops, d)
	}
	var out []finding
	for _, cidr := range slices.SortedFunc(maps.Keys(groups), comparePrefix) {
		if g := groups[cidr]; g.packets >= minDrops && !beyondRouter(v, cidr) && !v.lacksAllRoutes(cidr, siblings) {
			out = append(out, withoutNodeRoute(v, g, siblings))
		}
	}
	return out
}

// lacksAllRoutes reports whether more is missing than the route to one range: the card is
// down by which all went, or there is no default route nor any sign that such ranges
// have routes of their own.
func (v *view) lacksAllRoutes(cidr netip.Prefix, siblings []*model.Route) bool {
	return !hasDefault(v, false) &&
		(downCard(v) != nil || len(siblings) == 0 && v.nodeOf(cidr) == nil && v.Node.Plugin != "kindnet")
}

// keepsNodeRoutes reports whether a plugin's nodes commonly have routes to each
// other's pods: kindnet always, the plain ones wherever no cloud has.
func keepsNodeRoutes(plugin string) bool {
	return plugin == "kindnet" || plugin == "bridge" || plugin == "ptp"
}

// beyondRouter reports whether a range is of a node that is on no link of this
// one: no route of this node's can lead there but a router's.
func beyondRouter(v *view, cidr netip.Prefix) bool {
	n := v.nodeOf(cidr)
	return n != nil && !linkedHop(v, n, cidr).IsValid()
}

// linkedHop is the node's address, of the range's family, that is on link; not
// valid where none is.
func linkedHop(v *view, n *model.ClusterNode, cidr netip.Prefix) netip.Addr {
	for _, a := range internal(n) {
		if a.Is4() == cidr.Addr().Is4() && directly(v, a) {
			return a
		}
	}
	return netip.Addr{}
}

// directly reports whether the node reaches an address without a router: within
// a network on a link that leads off the node, or by a route of its own.
func directly(v *view, a netip.Addr) bool { return v.onLinkAlone[a] || inAny(v.onLink, a) }

// nodeRoutes are the node's routes to other nodes' pods, by those nodes.
func nodeRoutes(v *view) []*model.Route {
	var out []*model.Route
	for r := range model.Each(v.Routes) {
		if r.Table == mainTable && r.Type == "unicast" && r.Dst.Bits() > 0 && r.Gateway.IsValid() && v.outer[r.IfIndex] &&
			directly(v, r.Gateway) && v.remote(r.Dst.Addr()).IsValid() && v.surelyPods(r.Dst.Addr()) && !v.gatewayAddrs[r.Gateway] {
			out = append(out, r)
		}
	}
	return out
}

// CloudRoutes is what else may be, where no route of the node's shows that it should have
// those to other nodes' pods itself.
const CloudRoutes = "a cloud carries the pods' packets, and its route table lacks this range"

func withoutNodeRoute(v *view, g *unrouted, siblings []*model.Route) finding {
	link := v.linkName(g.link)
	f := model.Finding{
		Confidence:   model.Likely,
		Pods:         sorted(g.pods),
		Peers:        []netip.Prefix{g.cidr},
		Packets:      g.packets,
		LastHopAlive: v.place(link, model.Egress),
		Title:        "no route to the pods of another node, " + g.cidr.String(),
		Why: fmt.Sprintf("What goes to %s follows the default route out of %s, to a gateway that does not know these pods, and nothing returns.",
			g.cidr, link),
		Evidence: []model.Evidence{seen(model.SourceTC, "%s egress: %s to %s; ingress: no reply", link, words.Count(g.packets, "packet"), g.cidr)},
	}
	if most := mostDropped(g.drops); len(most) > 0 {
		f.LastHopAlive = v.place(most[0].Link, model.Ingress)
		f.Why = fmt.Sprintf("The node has no route to %s, nor a default route: it drops what goes there.", g.cidr)
		f.Evidence = dropEvidence(g.drops)
	} else if remote := sorted(g.remotes)[0]; v.lookup(remote) != nil {
		observe(&f, model.SourceRoutes, "the lookup for %s ends at: %s", remote, v.routeText(v.lookup(remote)))
	}
	for _, r := range siblings[:min(len(siblings), 2)] {
		observe(&f, model.SourceRoutes, "other nodes' pods have routes: %s", v.routeText(r))
	}
	if g.replying {
		f.Title = "no route for the replies to the pods of another node, " + g.cidr.String()
		f.Why = fmt.Sprintf("Requests come from %s, and the replies of this node's pods follow the default route out of %s, to a gateway that does not "+
			"know these pods.", g.cidr, link)
		f.Evidence[0] = seen(model.SourceTC, "%s egress: %s, all replies, to %s; ingress: nothing but requests", link, words.Count(g.packets, "packet"), g.cidr)
	}
	hop, n := "NODE_IP", v.nodeOf(g.cidr)
	if n != nil {
		hop = linkedHop(v, n, g.cidr).String()
	}
	switch {
	case n != nil && len(siblings) > 0 && !g.replying:
		f.Confidence = model.Proven
	case n == nil && len(v.ranges.nodes) > 0:
		f.Confidence = model.Possible
	}
	if n == nil {
		f.Unseen = []string{"which node has the range"}
		f.Alternatives = []string{"the range is that of a node that is gone"}
	}
	if len(siblings) == 0 {
		f.Alternatives = append(f.Alternatives, CloudRoutes)
	}
	if len(g.drops) == 0 && f.Confidence != model.Proven {
		f.Alternatives = append(f.Alternatives, "the gateway knows that range, and the return path to this node's pods is missing")
	}
	f.Fix = []string{fmt.Sprintf("%s route replace %s via %s dev %s", words.IP(g.cidr.Addr()), g.cidr, hop, words.Quote(v.natLink(g.link)))}
	if t := downTunnel(v); t != nil && len(siblings) == 0 {
		f.Why += fmt.Sprintf(" %s, a tunnel of the node, is down, and the routes by it went with it.", t.Name)
		observe(&f, model.SourceLinks, "%s %s", t.Name, dead(t))
		f.Fix = []string{raise(t), "restart the agent that writes the routes by " + t.Name + ": they do not come back by themselves"}
	}
	return finding{Finding: f, claims: sameDrops(g.drops)}
}

// downTunnel is a tunnel of the node that has an address and is down; nil where none is.
func downTunnel(v *view) *model.Link {
	i := slices.IndexFunc(v.Links, func(l model.Link) bool { return l.Role == model.RoleTunnel && !l.Up && len(l.Addresses) > 0 })
	if i < 0 {
		return nil
	}
	return &v.Links[i]
}
