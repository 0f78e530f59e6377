package route

import (
	"net/netip"
	"slices"

	"github.com/lasthop/lasthop/probe/model"
	"github.com/lasthop/lasthop/probe/node"
	"github.com/lasthop/lasthop/probe/path"
)

// delivers reports whether a route by itself leads to a pod that holds the address.
func delivers(v *node.Index, r *model.Route, a netip.Addr) bool {
	return !v.Misses(&path.Decision{Type: r.Type, Hops: []path.NextHop{{IfIndex: r.IfIndex}}}, a)
}

// blocked reports whether a route or rule that discards stands in front of a
// right route to the pod: it is the fault then, and not that route's absence.
func blocked(v *node.Index, a *node.MisroutedPod) bool {
	if a.Decision.Route == nil || a.Decision.Route.Dst.IsSingleIP() {
		return true
	}
	return slices.ContainsFunc(v.Routing().Covering(node.MainTable, a.Addr), func(r *model.Route) bool {
		return r != a.Decision.Route && r.Type == "unicast" && delivers(v, r, a.Addr)
	})
}

// unusedMisrouted reports whether the state alone is reported: the pod has been there all along, it has the
// node for a router, and nothing was delivered to it by other means.
func unusedMisrouted(v *node.Index, a *node.MisroutedPod) bool {
	return !a.Pod.Since.IsZero() && v.PresentWholeWindow(a.Pod) && v.Router(a.Pod) != nil &&
		v.Hop(a.Addr, a.Pod.LinkIndex, model.Egress, model.AsDestination) == nil
}

// leftOverRule reports whether a routing rule that leads packets for a pod astray
// can go: no pod is reached by its table, packets for the pod find the main table
// without it, and all others that it may take go the same way without it.
func leftOverRule(v *node.Index, r *model.RoutingRule, a *node.MisroutedPod) bool {
	d := path.NewTrial(v.State).Without([]any{r}).Routing().Lookup(a.Query)
	return (d.Table == node.MainTable || d.Route == nil) && !leadsToPods(v, r) && onlyForPods(v, r)
}

// leadsToPods reports whether the table of a rule leads to the link of a pod that is there.
func leadsToPods(v *node.Index, r *model.RoutingRule) bool {
	for a := range v.Owners {
		if c := v.Routing().Covering(r.Table, a); len(c) > 0 && c[0].Type == "unicast" && delivers(v, c[0], a) {
			return true
		}
	}
	return false
}

// onlyForPods reports whether no packet but those for pods of this node would take another way without a rule.
func onlyForPods(v *node.Index, r *model.RoutingRule) bool {
	if r.To.IsValid() && !r.Not && forPods(v, r.To) {
		return true
	}
	return !slices.ContainsFunc(v.Routes, func(route model.Route) bool {
		if route.Table != r.Table || route.Dst.Addr().Is6() != (r.Family == 6) || forPods(v, route.Dst) {
			return false
		}
		main := v.Routing().Covering(node.MainTable, route.Dst.Addr())
		return len(main) == 0 || main[0].Type != route.Type || main[0].Gateway != route.Gateway ||
			main[0].IfIndex != route.IfIndex
	})
}

// forPods reports whether a prefix holds addresses of this node's pods alone.
func forPods(v *node.Index, p netip.Prefix) bool {
	return len(v.Owners[p.Addr()]) > 0 && p.IsSingleIP() || slices.ContainsFunc(v.Ranges.Local, func(own netip.Prefix) bool {
		return own.Bits() <= p.Bits() && own.Contains(p.Addr())
	})
}

// leftOverRoute reports whether the route of a rule's table that leads a pod's packets
// astray is about the pod or its range alone, and is all that does.
func leftOverRoute(v *node.Index, r *model.RoutingRule, a *node.MisroutedPod, target netip.Prefix) bool {
	wrong := a.Decision.Route
	if wrong == nil || wrong.Table != r.Table || wrong.Dst.Bits() < target.Bits() {
		return false
	}
	d := path.NewTrial(v.State).Without([]any{wrong}).Routing().Lookup(a.Query)
	return d.Table == node.MainTable || !v.Misses(&d, a.Addr)
}
