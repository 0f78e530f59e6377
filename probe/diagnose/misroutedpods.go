package diagnose

import (
	"net/netip"
	"slices"

	"github.com/lasthop/lasthop/probe/model"
	"github.com/lasthop/lasthop/probe/path"
	"github.com/lasthop/lasthop/probe/words"
)

// misroutedPod is a pod whose address the node routes elsewhere.
type misroutedPod struct {
	pod  *model.Pod
	addr netip.Addr
	// query was answered with decision.
	query    path.Query
	decision path.Decision
	// rules send other packets for the pod to the same wrong place.
	rules []*model.RoutingRule
	// first is the pod's address that the node routes to it, where this is a further one of the interface.
	first netip.Addr
	// facts are what shows it, seen that packets for the pod went elsewhere.
	facts facts
	seen  bool
}

// findMisroutedPods lists the addresses of pods that some packet would miss.
func (v *index) findMisroutedPods() []misroutedPod {
	sources := model.Table(v.peers, func(p *model.Peer) (local, remote netip.Addr) { return p.Local, p.Remote })
	// The addresses with which the node sends are the lowest of each IP version that is on link at an uplink.
	own := map[bool]netip.Addr{}
	for _, a := range slices.Backward(sorted(v.nodeAddrs)) {
		if model.InAny(v.onLink, a) {
			own[a.Is4()] = a
		}
	}
	var out []misroutedPod
	for i := range v.Pods {
		p := &v.Pods[i]
		// A link that is down takes its route along: that is another cause.
		if l := v.ByIndex[p.LinkIndex]; l == nil || !l.Up || !p.Up || l.Role == model.RoleUplink {
			continue
		}
		before, routed := len(out), map[bool]netip.Addr{}
		for _, a := range podAddrs(p) {
			if !a.IsGlobalUnicast() {
				continue
			}
			var m misroutedPod
			for _, q := range askers(v, i, a, sources[a], own[a.Is4()]) {
				d := v.Routing().Lookup(q)
				if len(d.Unsure) > 0 || !v.misses(&d, a) {
					continue
				}
				if m.pod == nil {
					m = misroutedPod{pod: p, addr: a, query: q, decision: d}
				}
				if r := d.Rule; r != nil && r.Table != mainTable && r.Priority > 0 && !slices.Contains(m.rules, r) {
					m.rules = append(m.rules, r)
				}
			}
			if m.pod != nil {
				out = append(out, m)
			} else {
				routed[a.Is4()] = a
			}
		}
		for i := range out[before:] {
			m := &out[before+i]
			m.first = routed[m.addr.Is4()]
		}
	}
	return out
}

// askers are packets for a pod's address as they come from off the node, from the node itself, and from another
// pod that the node is a router for. remote and own are senders of the first two, where there are any.
func askers(v *index, pod int, a, remote, own netip.Addr) []path.Query {
	var out []path.Query
	family := func(g *model.Neighbor) bool { return g.Addr.Is4() == a.Is4() }
	if g := model.First(v.Gateways, family); g != nil && !remote.IsValid() {
		remote = g.Addr
	}
	if up := v.anUplink(); up != 0 && remote.IsValid() && remote.Is4() == a.Is4() {
		out = append(out, path.Query{Src: remote, Dst: a, In: v.natLink(up)})
	}
	if own.IsValid() {
		out = append(out, path.Query{Src: own, Dst: a})
	}
	other := &v.Pods[(pod+1)%len(v.Pods)]
	like := sameFamily(podAddrs(other), a)
	if l := v.router(other); l != nil && l != v.router(&v.Pods[pod]) && len(like) > 0 {
		out = append(out, path.Query{Src: like[0], Dst: a, In: l.Name})
	}
	return out
}

// misses reports whether a decision leads away from all pods that hold the address.
func (v *index) misses(d *path.Decision, a netip.Addr) bool {
	return v.Routing().Misses(d, v.Owners[a])
}

// delivers reports whether a route by itself leads to a pod that holds the address.
func (v *index) delivers(r *model.Route, a netip.Addr) bool {
	return !v.misses(&path.Decision{Type: r.Type, Hops: []path.NextHop{{IfIndex: r.IfIndex}}}, a)
}

// blocked reports whether a route or rule that discards stands in front of a
// right route to the pod: it is the fault then, and not that route's absence.
func (v *index) blocked(a *misroutedPod) bool {
	if a.decision.Route == nil || a.decision.Route.Dst.IsSingleIP() {
		return true
	}
	return slices.ContainsFunc(v.Routing().Covering(mainTable, a.addr), func(r *model.Route) bool {
		return r != a.decision.Route && r.Type == "unicast" && v.delivers(r, a.addr)
	})
}

// unusedMisrouted reports whether the state alone is worth a word: the pod has been there all along, it has the
// node for a router, and nothing was delivered to it by other means.
func (v *index) unusedMisrouted(a *misroutedPod) bool {
	return !a.pod.Since.IsZero() && v.presentWholeWindow(a.pod) && v.router(a.pod) != nil &&
		v.hop(a.addr, a.pod.LinkIndex, model.Egress, model.AsDestination) == nil
}

// leftOverRule reports whether a routing rule that leads packets for a pod astray
// can go: no pod is reached by its table, packets for the pod find the main table
// without it, and all others that it may take go the same way without it.
func (v *index) leftOverRule(r *model.RoutingRule, a *misroutedPod) bool {
	text := words.RoutingRuleText(r)
	without := *v.Snapshot
	without.Rules = slices.DeleteFunc(slices.Clone(v.Rules), func(o model.RoutingRule) bool {
		return o.Family == r.Family && words.RoutingRuleText(&o) == text
	})
	d := path.NewState(&without).Routing().Lookup(a.query)
	return (d.Table == mainTable || d.Route == nil) && !v.leadsToPods(r) && v.onlyForPods(r)
}

// leadsToPods reports whether the table of a rule leads to the link of a pod that is there.
func (v *index) leadsToPods(r *model.RoutingRule) bool {
	for a := range v.Owners {
		if c := v.Routing().Covering(r.Table, a); len(c) > 0 && c[0].Type == "unicast" && v.delivers(c[0], a) {
			return true
		}
	}
	return false
}

// onlyForPods reports whether no packet but those for pods of this node would take another way without a rule.
func (v *index) onlyForPods(r *model.RoutingRule) bool {
	if r.To.IsValid() && !r.Not && v.forPods(r.To) {
		return true
	}
	return !slices.ContainsFunc(v.Routes, func(route model.Route) bool {
		if route.Table != r.Table || route.Dst.Addr().Is6() != (r.Family == 6) || v.forPods(route.Dst) {
			return false
		}
		main := v.Routing().Covering(mainTable, route.Dst.Addr())
		return len(main) == 0 || main[0].Type != route.Type || main[0].Gateway != route.Gateway ||
			main[0].IfIndex != route.IfIndex
	})
}

// forPods reports whether a prefix holds addresses of this node's pods alone.
func (v *index) forPods(p netip.Prefix) bool {
	return len(v.Owners[p.Addr()]) > 0 && p.IsSingleIP() || slices.ContainsFunc(v.ranges.local, func(own netip.Prefix) bool {
		return own.Bits() <= p.Bits() && own.Contains(p.Addr())
	})
}

// leftOverRoute reports whether the route of a rule's table that leads a pod's packets
// astray is about the pod or its range alone, and is all that does.
func (v *index) leftOverRoute(r *model.RoutingRule, a *misroutedPod, target netip.Prefix) bool {
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
