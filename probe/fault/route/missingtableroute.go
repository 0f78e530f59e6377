package route

import (
	"cmp"
	"net/netip"
	"slices"

	"github.com/lasthop/lasthop/probe/fault"
	"github.com/lasthop/lasthop/probe/model"
	"github.com/lasthop/lasthop/probe/node"
	"github.com/lasthop/lasthop/probe/words"
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

// MissingTableRoute reports routing tables that a rule sends packets to and that lack a route.
var MissingTableRoute = fault.Kind{Code: "MissingTableRoute", Severity: model.Critical, Find: missingTableRoute,
	Ends: fault.Hops{model.HopBeyond}, Objects: fault.Objects{"rule"},
	Else: fault.Else{"MissingTableRoute", "MissingTableRoute-rule", "MissingTableRoute-wrong", "MissingTableRoute-diverted"}}

func missingTableRoute(v *fault.Input) {
	if !v.Has(model.SourceRoutes) || !slices.ContainsFunc(v.Rules,
		func(r model.RoutingRule) bool { return r.Table != node.MainTable && r.Priority > 0 }) {
		return
	}
	diverted(v)
	var byRule node.Groups[podRule, inVain]
	tables, repliesBy := map[int]bool{}, map[netip.Addr][]*model.RoutingRule{}
	// The rules of several pods may lead to one table, which has no route for any.
	passed := map[[2]int]*model.RoutingRule{}
	for p := range model.Each(v.Peers) {
		r := ruleOf(v.Index, p)
		if r.passed {
			k := [2]int{r.Table, r.Priority}
			r.RoutingRule = cmp.Or(passed[k], r.RoutingRule)
			passed[k] = r.RoutingRule
		}
		switch {
		case r.RoutingRule == nil:
		case v.Unanswered(p) && v.Elsewhere(p.Remote):
			of := byRule.Of(r)
			of.silent = append(of.silent, p)
		case v.Answered(p):
			byRule.Of(r).answered, tables[r.Table] = true, true
			repliesBy[p.Remote] = append(repliesBy[p.Remote], r.RoutingRule)
		}
	}
	for r, of := range byRule.All() {
		switch {
		case len(of.silent) == 0:
		case r.passed && !of.answered:
			v.Report(withoutRoute(v.Index, r.RoutingRule, of.silent))
		case !r.passed && !of.answered && (r.without.IsValid() || !tables[r.Table]):
			wrongTable(v, r.RoutingRule, of.silent, repliesBy)
		}
	}
}

// podRule is the rule whose table's default route decides on a pod's packets to a peer, or the
// pod's own one whose table has no route for them; nil for none.
func ruleOf(v *node.Index, p *model.Peer) podRule {
	if len(v.Owners[p.Local]) == 0 {
		return podRule{}
	}
	d := v.Routing().Lookup(v.SentBy(p.Local, p.Remote))
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
func wrongTable(v *fault.Input,
	r *model.RoutingRule, silent []*model.Peer, repliesBy map[netip.Addr][]*model.RoutingRule,
) {
	var other *model.RoutingRule
	remotes := map[netip.Addr]bool{}
	for _, p := range silent {
		own := v.Routing().Lookup(v.SentBy(p.Local, p.Remote))
		at := slices.IndexFunc(repliesBy[p.Remote], func(o *model.RoutingRule) bool {
			return (o.Priority == r.Priority || !r.From.IsValid()) && o.Table != r.Table && o.From.IsSingleIP() &&
				!slices.Equal(v.Routing().Lookup(v.SentBy(o.From.Addr(), p.Remote)).Hops, own.Hops)
		})
		if at >= 0 {
			other, remotes[p.Remote] = repliesBy[p.Remote][at], true
		}
	}
	if len(remotes) < 2 {
		return
	}
	right := v.Routing().Lookup(v.SentBy(other.From.Addr(), silent[0].Remote))
	f := byRule(v.Index, r, silent, words.Facts{"other": node.ShowRule(other), "right": v.Shown(right.Route)})
	f.Page = "MissingTableRoute-wrong"
	if !r.From.IsValid() {
		f.Page, f.Lacks = "MissingTableRoute-rule", node.LacksRule
	}
	v.Report(f)
}

// byRule is a finding on what pods send by a rule and no route takes.
func byRule(v *node.Index, r *model.RoutingRule, silent []*model.Peer, facts words.Facts) fault.Fault {
	d := v.Routing().Lookup(v.SentBy(silent[0].Local, silent[0].Remote))
	l := v.SumPeers(silent)
	f := fault.Fault{Lost: l, Facts: facts, CutOff: node.Sorted(l.Pods)}
	f.LastHopAlive = v.Place(d.Hops[0].Link, model.Egress)
	f.Facts["rule"], f.Facts["route"], f.Facts["to"] = node.ShowRule(r), v.Shown(d.Route), silent[0].Remote
	return f
}

func withoutRoute(v *node.Index, r *model.RoutingRule, silent []*model.Peer) fault.Fault {
	f, to := byRule(v, r, silent, words.Facts{}), silent[0].Remote
	f.Lacks = node.LacksRoute
	for o := range model.Each(v.Rules) {
		alike := o.Priority == r.Priority && o.Family == r.Family && o.From.IsSingleIP() && o.From != r.From &&
			len(v.Owners[o.From.Addr()]) > 0
		d := v.Routing().Lookup(v.SentBy(o.From.Addr(), to))
		if alike && f.Facts["other"] == nil && d.Route != nil && d.Rule != nil && d.Rule.Table == o.Table {
			f.Facts["other"], f.Facts["right"] = node.ShowRule(d.Rule), v.Shown(d.Route)
		}
	}
	// The table may still have its gateway on a NIC.
	f.Facts["gateway"] = v.Shown(model.First(v.Routes, func(o *model.Route) bool {
		return o.Table == r.Table && o.Dst.IsSingleIP() && o.Dst.Addr().Is4() == to.Is4() && !o.Gateway.IsValid() &&
			o.Type == "unicast" && v.Outer[o.IfIndex]
	}))
	return f
}
