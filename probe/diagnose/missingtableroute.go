package diagnose

import (
	"fmt"
	"net/netip"
	"slices"

	"github.com/lasthop/lasthop/probe/model"
	"github.com/lasthop/lasthop/probe/path"
)

// MissingTableRoute is the code of this finding.
const MissingTableRoute model.Code = "MissingTableRoute"

var missingTableRoute = kind{
	page: Page{
		Code:     MissingTableRoute,
		Severity: model.Critical,
		Title:    "a routing rule leads a pod's packets to a table that has no route for them",
		Meaning: "Where a node has several network cards (AWS VPC CNI, and others that give pods addresses of a card), a rule for each " +
			"pod leads to the table of its card. When that table loses its default route, or the rule names another table, the " +
			"kernel goes on with the next rules, and the packets leave by the main table's card. The network takes no such source " +
			"from that card. Nothing is dropped on the node, and other pods work.",
		Evidence: "the rule; the table without a route for the destination; where the packets go instead; that nobody answers this pod, " +
			"over a table that others use.",
		Fix: "give the table its default route again, by the gateway of its card, or have the plugin's agent on this node make its rules and tables anew.",
	},
	find: findMissingTableRoute,
	ends: []model.HopKind{model.HopBeyond},
}

func findMissingTableRoute(v *view) []finding {
	if !v.Has(model.SourceRoutes) || !slices.ContainsFunc(v.Rules, func(r model.RoutingRule) bool { return r.From.IsValid() }) {
		return nil
	}
	silent, answered := map[*model.RoutingRule][]*model.Peer{}, map[*model.RoutingRule]bool{}
	var rules []*model.RoutingRule
	for p := range model.Each(v.peers) {
		r := v.passedRule(p)
		switch {
		case r == nil:
		case v.unanswered(p) && v.elsewhere(p.Remote):
			if silent[r] == nil {
				rules = append(rules, r)
			}
			silent[r] = append(silent[r], p)
		case p.In.Packets > 0:
			answered[r] = true
		}
	}
	var out []finding
	for _, r := range rules {
		if !answered[r] {
			out = append(out, v.withoutRoute(r, silent[r]))
		}
	}
	return out
}

// passedRule is the rule for a pod's own packets whose table has no route for what it
// sends a peer, so that another table's default route decides; nil for none.
func (v *view) passedRule(p *model.Peer) *model.RoutingRule {
	if len(v.pods[p.Local]) == 0 {
		return nil
	}
	d := v.routing().Lookup(v.fromPod(p.Local, p.Remote))
	if d.Type != "unicast" || d.Route.Dst.Bits() > 1 {
		return nil
	}
	if i := slices.IndexFunc(d.Passed, func(r *model.RoutingRule) bool { return r.From.IsValid() && !r.Not }); i >= 0 {
		return d.Passed[i]
	}
	return nil
}

func (v *view) withoutRoute(r *model.RoutingRule, silent []*model.Peer) finding {
	f := model.Finding{Confidence: model.Likely}
	for _, p := range silent {
		f.Pods, f.Peers, f.Packets = append(f.Pods, p.Local), append(f.Peers, host(p.Remote)), f.Packets+p.Out.Packets
	}
	f.Pods = sortedPods(f.Pods)
	slices.SortFunc(f.Peers, comparePrefix)
	f.Peers = slices.Compact(f.Peers)
	first := silent[0]
	way := v.routing().Lookup(v.fromPod(first.Local, first.Remote))
	out := way.Hops[0]
	f.LastHopAlive = v.place(out.Link, model.Egress)
	f.Title = fmt.Sprintf("table %d has no route for what %s sends", r.Table, addrs(f.Pods))
	f.Why = fmt.Sprintf("The rule for %s leads to table %d, which has no route to %s. The kernel goes on, and the packets leave by %s. Nothing comes back there.",
		r.From, r.Table, first.Remote, out.Link)
	f.Evidence = []model.Evidence{
		seen(model.SourceRoutes, "%s", path.RoutingRuleText(r)),
		seen(model.SourceRoutes, "table %d: no route to %s; what decides is: %s", r.Table, first.Remote, v.routeText(way.Route)),
		seen(model.SourceTC, "%s egress: %s of %s; ingress: none", out.Link, count(f.Packets, "packet"), addrs(f.Pods)),
	}
	for _, a := range v.ruledAlike(r) {
		d := v.routing().Lookup(v.fromPod(a, first.Remote))
		if d.Route != nil && d.Rule != nil {
			observe(&f, model.SourceRoutes, "of another pod: %s; there: %s", path.RoutingRuleText(d.Rule), v.routeText(d.Route))
			break
		}
	}
	f.Unseen = []string{"whether the network takes this source from " + out.Link}
	f.Alternatives = []string{"the network drops what the pod sends, whatever card it leaves by"}
	f.Fix = []string{v.podTableFix(r, first.Remote)}
	return finding{Finding: f, accounts: f.Pods}
}

// ruledAlike are the other pods that have a rule of the same priority.
func (v *view) ruledAlike(r *model.RoutingRule) []netip.Addr {
	var out []netip.Addr
	for o := range model.Each(v.Rules) {
		if o.Priority == r.Priority && o.Family == r.Family && o.From.IsSingleIP() && o.From != r.From && len(v.pods[o.From.Addr()]) > 0 {
			out = append(out, o.From.Addr())
		}
	}
	return out
}

// podTableFix gives the table a default route by the gateway that it still knows on its
// card, or by words.
func (v *view) podTableFix(r *model.RoutingRule, to netip.Addr) string {
	for route := range model.Each(v.Routes) {
		if route.Table == r.Table && route.Dst.IsSingleIP() && route.Dst.Addr().Is4() == to.Is4() && !route.Gateway.IsValid() &&
			route.Type == "unicast" && v.outer[route.IfIndex] {
			return fmt.Sprintf("%s route add default via %s dev %s table %d", ip(to), route.Dst.Addr(), shellWord(v.linkName(route.IfIndex)), r.Table)
		}
	}
	return fmt.Sprintf("give table %d the default route of the card that the pods of %s belong to, or restart the plugin's agent on this node, which makes it", r.Table, r.From)
}
