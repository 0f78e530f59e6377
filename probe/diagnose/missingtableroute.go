package diagnose

import (
	"cmp"
	"net/netip"
	"slices"

	"github.com/lasthop/lasthop/probe/model"
)

// podRule is a rule for a pod's own packets, which leads to a table that decides or, where
// it has no route for them, is passed; or the rule for everybody's, where the pod has none.
type podRule struct {
	*model.RoutingRule
	passed bool
	// without is the pod that has no rule of its own.
	without netip.Addr
}

// inVain is a podRule with the peers that did not reply to what is sent by it.
type inVain struct {
	silent   []*model.Peer
	answered bool
}

func findMissingTableRoute(v *view) {
	if !v.Has(model.SourceRoutes) || !slices.ContainsFunc(v.Rules,
		func(r model.RoutingRule) bool { return r.From.IsValid() }) {
		return
	}
	var byRule groups[podRule, inVain]
	tables, repliesBy := map[int]bool{}, map[netip.Addr][]*model.RoutingRule{}
	// The rules of several pods may lead to one table, which has no route for any.
	passed := map[[2]int]*model.RoutingRule{}
	for p := range model.Each(v.peers) {
		r := v.ruleOf(p)
		if r.passed {
			k := [2]int{r.Table, r.Priority}
			r.RoutingRule = cmp.Or(passed[k], r.RoutingRule)
			passed[k] = r.RoutingRule
		}
		switch {
		case r.RoutingRule == nil:
		case v.unanswered(p) && v.elsewhere(p.Remote):
			of := byRule.of(r)
			of.silent = append(of.silent, p)
		case v.answered(p):
			byRule.of(r).answered, tables[r.Table] = true, true
			repliesBy[p.Remote] = append(repliesBy[p.Remote], r.RoutingRule)
		}
	}
	for r, of := range byRule.all() {
		switch {
		case len(of.silent) == 0:
		case r.passed && !of.answered:
			v.report(v.withoutRoute(r.RoutingRule, of.silent))
		case !r.passed && !of.answered && (r.without.IsValid() || !tables[r.Table]):
			v.wrongTable(r.RoutingRule, of.silent, repliesBy)
		}
	}
}

// podRule is the rule whose table's default route decides on a pod's packets to a peer, or the
// pod's own one whose table has no route for them; nil for none.
func (v *index) ruleOf(p *model.Peer) podRule {
	if len(v.Owners[p.Local]) == 0 {
		return podRule{}
	}
	d := v.Routing().Lookup(v.sentBy(p.Local, p.Remote))
	if d.Type != "unicast" {
		return podRule{}
	}
	byDefault := d.Route.Dst.Bits() <= 1
	i := slices.IndexFunc(d.Passed, func(r *model.RoutingRule) bool { return r.From.IsValid() && !r.Not })
	// A table may have the route to its gateway alone.
	further := func(r model.Route) bool { return r.Table == d.Passed[i].Table && !r.Dst.IsSingleIP() }
	if i >= 0 && (byDefault || !slices.ContainsFunc(v.Routes, further)) {
		return podRule{RoutingRule: d.Passed[i], passed: true}
	}
	switch from := d.Rule.From; {
	case !byDefault || i >= 0:
		return podRule{}
	case d.Rule.Not || from.IsValid() && !from.IsSingleIP():
		return podRule{}
	case from.IsValid():
		return podRule{RoutingRule: d.Rule}
	}
	return podRule{RoutingRule: d.Rule, without: p.Local}
}

// wrongTable reports a pod's rule whose table leads elsewhere than that of pods like it, or on a pod that lacks
// such a rule: another pod's rule, of the same priority, leads by another next hop, and by that two or more of
// the silent peers reply. What drops packets of one pod on purpose seldom stands before several peers.
func (v *view) wrongTable(
	r *model.RoutingRule, silent []*model.Peer, repliesBy map[netip.Addr][]*model.RoutingRule,
) {
	var other *model.RoutingRule
	remotes := map[netip.Addr]bool{}
	for _, p := range silent {
		own := v.Routing().Lookup(v.sentBy(p.Local, p.Remote))
		at := slices.IndexFunc(repliesBy[p.Remote], func(o *model.RoutingRule) bool {
			return (o.Priority == r.Priority || !r.From.IsValid()) && o.Table != r.Table && o.From.IsSingleIP() &&
				!slices.Equal(v.Routing().Lookup(v.sentBy(o.From.Addr(), p.Remote)).Hops, own.Hops)
		})
		if at >= 0 {
			other, remotes[p.Remote] = repliesBy[p.Remote][at], true
		}
	}
	if len(remotes) < 2 {
		return
	}
	right := v.Routing().Lookup(v.sentBy(other.From.Addr(), silent[0].Remote))
	f := v.byRule(r, silent, facts{"other": showRule(other), "right": v.shown(right.Route)})
	f.page = "MissingTableRoute-wrong"
	if !r.From.IsValid() {
		f.page, f.lacks = "MissingTableRoute-rule", lacksRule
	}
	v.report(f)
}

// byRule is a finding on what pods send by a rule in vain.
func (v *index) byRule(r *model.RoutingRule, silent []*model.Peer, facts facts) finding {
	d := v.Routing().Lookup(v.sentBy(silent[0].Local, silent[0].Remote))
	l := v.sumPeers(silent)
	f := finding{lost: l, facts: facts, cutOff: sorted(l.pods)}
	f.LastHopAlive = v.place(d.Hops[0].Link, model.Egress)
	f.facts["rule"], f.facts["route"], f.facts["to"] = showRule(r), v.shown(d.Route), silent[0].Remote
	return f
}

func (v *index) withoutRoute(r *model.RoutingRule, silent []*model.Peer) finding {
	f, to := v.byRule(r, silent, facts{}), silent[0].Remote
	f.lacks = lacksRoute
	for o := range model.Each(v.Rules) {
		alike := o.Priority == r.Priority && o.Family == r.Family && o.From.IsSingleIP() && o.From != r.From &&
			len(v.Owners[o.From.Addr()]) > 0
		d := v.Routing().Lookup(v.sentBy(o.From.Addr(), to))
		if alike && f.facts["other"] == nil && d.Route != nil && d.Rule != nil && d.Rule.Table == o.Table {
			f.facts["other"], f.facts["right"] = showRule(d.Rule), v.shown(d.Route)
		}
	}
	// The table may still have its gateway on a NIC.
	f.facts["gateway"] = v.shown(model.First(v.Routes, func(o *model.Route) bool {
		return o.Table == r.Table && o.Dst.IsSingleIP() && o.Dst.Addr().Is4() == to.Is4() && !o.Gateway.IsValid() &&
			o.Type == "unicast" && v.Outer[o.IfIndex]
	}))
	return f
}
