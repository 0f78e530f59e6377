package diagnose

import (
	"fmt"
	"net/netip"
	"slices"

	"github.com/lasthop/lasthop/probe/model"
	"github.com/lasthop/lasthop/probe/path"
	"github.com/lasthop/lasthop/probe/words"
)

// MissingTableRoute is the code of this finding.
const MissingTableRoute model.Code = "MissingTableRoute"

var missingTableRoute = kind{
	code:     MissingTableRoute,
	severity: model.Critical,
	find:     findMissingTableRoute,
	ends:     []model.HopKind{model.HopBeyond},
}

// podRule is a rule for a pod's own packets, which leads to a table that decides or, where
// it has no route for them, is passed.
type podRule struct {
	*model.RoutingRule
	passed bool
}

func findMissingTableRoute(v *view) []finding {
	if !v.Has(model.SourceRoutes) || !slices.ContainsFunc(v.Rules, func(r model.RoutingRule) bool { return r.From.IsValid() }) {
		return nil
	}
	silent, answered := map[podRule][]*model.Peer{}, map[podRule]bool{}
	tables, repliesBy := map[int]bool{}, map[netip.Addr][]*model.RoutingRule{}
	var rules []podRule
	for p := range model.Each(v.peers) {
		r := v.podRule(p)
		switch {
		case r.RoutingRule == nil:
		case v.unanswered(p) && v.elsewhere(p.Remote):
			if silent[r] == nil {
				rules = append(rules, r)
			}
			silent[r] = append(silent[r], p)
		case p.In.Packets > 0:
			answered[r], tables[r.Table] = true, true
			repliesBy[p.Remote] = append(repliesBy[p.Remote], r.RoutingRule)
		}
	}
	var out []finding
	for _, r := range rules {
		if r.passed && !answered[r] {
			out = append(out, v.withoutRoute(r.RoutingRule, silent[r]))
		} else if other := v.rightTable(r.RoutingRule, silent[r], repliesBy); !r.passed && !tables[r.Table] && other != nil {
			out = append(out, v.wrongTable(r.RoutingRule, other, silent[r]))
		}
	}
	return out
}

// podRule is the rule for a pod's own packets to a peer whose table decides, or has no route
// for them, so that another table's default route does; nil for none.
func (v *view) podRule(p *model.Peer) podRule {
	if len(v.pods[p.Local]) == 0 {
		return podRule{}
	}
	d := v.routing().Lookup(v.fromPod(p.Local, p.Remote))
	if d.Type != "unicast" || d.Route.Dst.Bits() > 1 {
		return podRule{}
	}
	if i := slices.IndexFunc(d.Passed, func(r *model.RoutingRule) bool { return r.From.IsValid() && !r.Not }); i >= 0 {
		return podRule{d.Passed[i], true}
	}
	if r := d.Rule; r.From.IsSingleIP() && !r.Not {
		return podRule{r, false}
	}
	return podRule{}
}

// rightTable is the rule of another pod, of the same priority, that leads by another next
// hop, and by which two or more of the silent peers reply; nil for none. What drops packets
// of one pod on purpose seldom stands before several peers.
func (v *view) rightTable(r *model.RoutingRule, silent []*model.Peer, repliesBy map[netip.Addr][]*model.RoutingRule) *model.RoutingRule {
	var other *model.RoutingRule
	remotes := map[netip.Addr]bool{}
	for _, p := range silent {
		own := v.routing().Lookup(v.fromPod(p.Local, p.Remote))
		at := slices.IndexFunc(repliesBy[p.Remote], func(o *model.RoutingRule) bool {
			return o.Priority == r.Priority && o.Table != r.Table && o.From.IsSingleIP() &&
				!slices.Equal(v.routing().Lookup(v.fromPod(o.From.Addr(), p.Remote)).Hops, own.Hops)
		})
		if at >= 0 {
			other, remotes[p.Remote] = repliesBy[p.Remote][at], true
		}
	}
	if len(remotes) < 2 {
		return nil
	}
	return other
}

// byRule begins a finding on what pods send by a rule in vain.
func (v *view) byRule(silent []*model.Peer) (f model.Finding, way path.Decision) {
	f.Confidence = model.Likely
	for _, p := range silent {
		f.Pods, f.Peers, f.Packets = append(f.Pods, p.Local), append(f.Peers, host(p.Remote)), f.Packets+p.Out.Packets
	}
	f.Pods = sortedPods(f.Pods)
	slices.SortFunc(f.Peers, comparePrefix)
	f.Peers = slices.Compact(f.Peers)
	way = v.routing().Lookup(v.fromPod(silent[0].Local, silent[0].Remote))
	f.LastHopAlive = v.place(way.Hops[0].Link, model.Egress)
	f.Unseen = []string{"whether the network takes this source from " + way.Hops[0].Link}
	f.Alternatives = []string{"the network drops what the pod sends, whatever NIC it leaves by"}
	return f, way
}

// sentInVain is the evidence that nothing came back for a finding's packets.
func sentInVain(f *model.Finding) model.Evidence {
	return seen(model.SourceTC, "%s egress: %s of %s; ingress: none", f.LastHopAlive.Link, words.Count(f.Packets, "packet"), words.Addrs(f.Pods))
}

// wrongTable is the finding on a rule whose table leads elsewhere than that of the pods like
// the rule's.
func (v *view) wrongTable(r, other *model.RoutingRule, silent []*model.Peer) finding {
	f, way := v.byRule(silent)
	right := v.routing().Lookup(v.fromPod(other.From.Addr(), silent[0].Remote))
	f.Title = fmt.Sprintf("table %d is not the one for what %s sends", r.Table, words.Addrs(f.Pods))
	f.Why = fmt.Sprintf("The rule for %s leads to table %d, by which the packets leave %s, and there is no reply. Another pod's rule leads to table %d, "+
		"and by that the same peers reply.", r.From, r.Table, f.LastHopAlive.Link, other.Table)
	f.Evidence = []model.Evidence{
		seen(model.SourceRoutes, "%s; there: %s", path.RoutingRuleText(r), v.routeText(way.Route)),
		seen(model.SourceRoutes, "of another pod: %s; there: %s", path.RoutingRuleText(other), v.routeText(right.Route)),
		sentInVain(&f),
	}
	f.Fix = []string{
		fmt.Sprintf("%s rule add from %s lookup %d priority %d", words.IP(r.From.Addr()), r.From, other.Table, r.Priority),
		fmt.Sprintf("%s rule del %s priority %d", words.IP(r.From.Addr()), words.RoutingRule(r), r.Priority),
		"or restart the plugin's agent on this node, which makes these rules anew",
	}
	return finding{Finding: f, cutOff: f.Pods}
}

func (v *view) withoutRoute(r *model.RoutingRule, silent []*model.Peer) finding {
	f, way := v.byRule(silent)
	first, out := silent[0], way.Hops[0]
	f.Title = fmt.Sprintf("table %d has no route for what %s sends", r.Table, words.Addrs(f.Pods))
	f.Why = fmt.Sprintf("The rule for %s leads to table %d, which has no route to %s. The kernel goes on, and the packets leave by %s. There is no reply.",
		r.From, r.Table, first.Remote, out.Link)
	f.Evidence = []model.Evidence{
		seen(model.SourceRoutes, "%s", path.RoutingRuleText(r)),
		seen(model.SourceRoutes, "table %d: no route to %s; what decides is: %s", r.Table, first.Remote, v.routeText(way.Route)),
		sentInVain(&f),
	}
	for _, a := range v.ruledAlike(r) {
		d := v.routing().Lookup(v.fromPod(a, first.Remote))
		if d.Route != nil && d.Rule != nil {
			observe(&f, model.SourceRoutes, "of another pod: %s; there: %s", path.RoutingRuleText(d.Rule), v.routeText(d.Route))
			break
		}
	}
	f.Fix = []string{v.podTableFix(r, first.Remote)}
	return finding{Finding: f, cutOff: f.Pods}
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
			return fmt.Sprintf("%s route add default via %s dev %s table %d", words.IP(to), route.Dst.Addr(), words.Quote(v.linkName(route.IfIndex)), r.Table)
		}
	}
	return fmt.Sprintf("give table %d the default route of the NIC that the pods of %s belong to, or restart the plugin's agent on this node, which makes it", r.Table, r.From)
}
