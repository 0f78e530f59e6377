package diagnose

import (
	"net/netip"
	"slices"

	"github.com/lasthop/lasthop/probe/model"
	"github.com/lasthop/lasthop/probe/path"
	"github.com/lasthop/lasthop/probe/words"
)

// leftOverRule reports whether a routing rule that leads packets for a pod astray
// can go: no pod is reached by its table, packets for the pod find the main table
// without it, and all others that it may take go the same way without it.
func (v *view) leftOverRule(r *model.RoutingRule, a *misroutedPod) bool {
	text := words.RoutingRuleText(r)
	without := *v.Snapshot
	without.Rules = slices.DeleteFunc(slices.Clone(v.Rules), func(o model.RoutingRule) bool {
		return o.Family == r.Family && words.RoutingRuleText(&o) == text
	})
	d := path.NewState(&without).Routing().Lookup(a.query)
	return (d.Table == mainTable || d.Route == nil) && !v.leadsToPods(r) && v.onlyForPods(r)
}

// leadsToPods reports whether the table of a rule leads to the link of a pod that is
// there.
func (v *view) leadsToPods(r *model.RoutingRule) bool {
	for a := range v.pods {
		if c := v.routing().Covering(r.Table, a); len(c) > 0 && c[0].Type == "unicast" && v.delivers(c[0], a) {
			return true
		}
	}
	return false
}

// onlyForPods reports whether no packet but those for pods of this node would take
// another way without a rule.
func (v *view) onlyForPods(r *model.RoutingRule) bool {
	if r.To.IsValid() && !r.Not && v.forPods(r.To) {
		return true
	}
	return !slices.ContainsFunc(v.Routes, func(route model.Route) bool {
		if route.Table != r.Table || route.Dst.Addr().Is6() != (r.Family == 6) || v.forPods(route.Dst) {
			return false
		}
		main := v.routing().Covering(mainTable, route.Dst.Addr())
		return len(main) == 0 || main[0].Type != route.Type || main[0].Gateway != route.Gateway || main[0].IfIndex != route.IfIndex
	})
}

// forPods reports whether a prefix holds addresses of this node's pods alone.
func (v *view) forPods(p netip.Prefix) bool {
	return len(v.pods[p.Addr()]) > 0 && p.IsSingleIP() || slices.ContainsFunc(v.ranges.local, func(own netip.Prefix) bool {
		return own.Bits() <= p.Bits() && own.Contains(p.Addr())
	})
}

// leftOverRoute reports whether the route of a rule's table that leads a pod's packets
// astray is about the pod or its range alone, and is all that does.
func (v *view) leftOverRoute(r *model.RoutingRule, a *misroutedPod, target netip.Prefix) bool {
	wrong := a.decision.Route
	if wrong == nil || wrong.Table != r.Table || wrong.Dst.Bits() < target.Bits() {
		return false
	}
	without := *v.Snapshot
	text := v.routeText(wrong)
	same := func(o model.Route) bool { return v.routeText(&o) == text }
	without.Routes = slices.DeleteFunc(slices.Clone(v.Routes), same)
	d := path.NewState(&without).Routing().Lookup(a.query)
	return d.Table == mainTable || !v.misses(&d, a.addr)
}
