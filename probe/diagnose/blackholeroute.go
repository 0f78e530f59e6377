package diagnose

import (
	"fmt"
	"net/netip"
	"slices"

	"github.com/lasthop/lasthop/probe/model"
	"github.com/lasthop/lasthop/probe/path"
	"github.com/lasthop/lasthop/probe/words"
)

// BlackholeRoute is the code of this finding.
const BlackholeRoute model.Code = "BlackholeRoute"

var blackholeRoute = kind{
	code:     BlackholeRoute,
	severity: model.Critical,
	find:     needing(findBlackholeRoute, model.SourceRoutes),
	ends:     []model.HopKind{model.HopRoute},
}

// discard is a route or, without one, a rule that throws packets away.
type discard struct {
	route *model.Route
	rule  *model.RoutingRule
}

func findBlackholeRoute(v *view) []finding {
	groups, unheld := map[discard]*lost{}, map[discard]*lost{}
	for d := range model.Each(v.Traffic.Drops) {
		if !v.ofPod(d) || v.explained(d) {
			continue
		}
		switch by, ok := discardedBy(v, d); {
		case !ok:
		case reserve(v, by, d.Dst):
			entry(unheld, by).add(v, d)
		default:
			entry(groups, by).addFor(concerned(v, d), d)
		}
	}
	var out []finding
	for by, l := range unheld {
		if l.packets >= minDrops {
			out = append(out, v.unheld(by, l))
		}
	}
	told := map[discard]bool{}
	for by, l := range groups {
		if l.packets >= minDrops {
			told[by] = true
			out = append(out, blackhole(v, by, l))
		}
	}
	return append(out, blackholedPods(v, told)...)
}

// discardedBy finds the route or rule by which the kernel refused a packet.
func discardedBy(v *view, d *model.Drop) (discard, bool) {
	// A rule that says unreachable is told as a route that is not there.
	if !d.LookupRefusedFor("NOT_SPECIFIED") && !d.LookupRefusedFor("IP_INNOROUTES") && !d.LookupRefused6() || d.Link == "" {
		return discard{}, false
	}
	q := v.arrived(d)
	way := v.routing().Lookup(q)
	if by, ok := discarding(&way); ok {
		return by, true
	}
	// A packet's mark is not known: a rule that looks at it may have led to the
	// table that discards, and any other route would not have.
	for r := range model.Each(v.Rules) {
		if q.Mark = r.Mark; r.Mask == 0 || q.Mark == 0 {
			continue
		}
		way := v.routing().Lookup(q)
		if by, ok := discarding(&way); ok {
			return by, true
		}
	}
	return discard{}, false
}

// concerned is the end of a discarded packet that is a pod: the sender where a
// rule led there by the sender, who then reaches nobody.
func concerned(v *view, d *model.Drop) netip.Addr {
	rule := v.routing().Lookup(v.arrived(d)).Rule
	bySender := rule != nil && !rule.Not && (rule.From.Bits() > 0 || rule.In != "" && !isUplinkName(v, rule.In))
	if bySender && !rule.To.IsValid() && len(v.pods[d.Src]) > 0 {
		return d.Src
	}
	return v.pod(d)
}

// isUplinkName reports whether packets leave the node through the link.
func isUplinkName(v *view, name string) bool {
	l := v.byName[name]
	return l != nil && l.Role == model.RoleUplink
}

// discarding is what throws a packet away by such a decision.
func discarding(way *path.Decision) (discard, bool) {
	switch {
	case !way.Discards():
		return discard{}, false
	case way.Route != nil:
		return discard{route: way.Route}, true
	}
	return discard{rule: way.Rule}, true
}

// unreturnable finds the route or rule because of which the reverse path filter
// refused a packet: the return path to its source is discarded.
func unreturnable(v *view, d *model.Drop) (discard, bool) {
	if !d.ReverseFiltered() || d.Link == "" || v.nodeAddrs[d.Src] {
		return discard{}, false
	}
	way := v.wayBack(d)
	return discarding(&way)
}

// reserve reports whether a route keeps packets for pods that are not there
// from leaving the node, as Calico's does for its block of addresses.
func reserve(v *view, by discard, dst netip.Addr) bool {
	return v.ofBlock(by, dst) && !v.livesElsewhere(dst)
}

// ofBlock reports whether a route discards what is for an address of the node's own
// range that no pod here has.
func (v *view) ofBlock(by discard, a netip.Addr) bool {
	return by.route != nil && len(v.pods[a]) == 0 && (inAny(v.ranges.local, a) || v.past[a])
}

// unheld is the finding on addresses that nobody has, of a range that a route keeps for
// the node's pods: the route is right, and who asks has an old address.
func (v *view) unheld(by discard, l *lost) finding {
	f := l.finding()
	f.Severity, f.Confidence = model.Warning, model.Likely
	nobody := slices.DeleteFunc(sorted(l.peers), func(a netip.Addr) bool { return !v.ofBlock(by, a) })
	if !l.lasting() || len(nobody) > sweep || !slices.ContainsFunc(nobody, func(a netip.Addr) bool { return !v.past[a] }) {
		f.Severity = model.Info // A scan, or peers of a pod that was just deleted.
	}
	f.LastHopAlive = v.place(mostDropped(l.drops)[0].Link, model.Ingress)
	f.Title = "no pod has " + words.Addrs(nobody)
	f.Why = fmt.Sprintf("%s of this node send to %s. No pod of this node has that, and the route that keeps the range of the node's pods discards it.",
		words.Count(uint64(len(f.Pods)), "pod"), words.Addrs(nobody))
	observe(&f, model.SourceRoutes, "%s (protocol %s)", v.routeText(by.route), by.route.Protocol)
	f.Evidence = append(f.Evidence, l.evidence()...)
	f.Unseen = []string{"who had the address before"}
	f.Alternatives = []string{"a pod of another node borrowed the address, and this node lacks the route to it"}
	for _, a := range nobody[:min(mostEvidence, len(nobody))] {
		f.Fix = append(f.Fix, fmt.Sprintf("kubectl get endpointslices,pods -A -o wide | grep -wF %s # nothing should have it", a))
	}
	return finding{Finding: f, claims: sameDrops(l.drops)}
}

// livesElsewhere reports whether a pod of another node has an address: packets came from
// it by an uplink, or the files have a pod with it that is not here.
func (v *view) livesElsewhere(a netip.Addr) bool {
	return !v.past[a] && (slices.ContainsFunc(v.Cluster.Pods, func(p model.ClusterPod) bool { return slices.Contains(p.Addresses, a) }) ||
		slices.ContainsFunc(v.peers, func(p model.Peer) bool { return p.Remote == a && p.In.Packets > p.In.ICMPErrors }))
}

// blackhole is the finding on a route that threw packets of pods away.
func blackhole(v *view, by discard, l *lost) finding {
	f := l.finding()
	f.LastHopAlive = v.place(mostDropped(l.drops)[0].Link, model.Ingress)
	describe(v, &f, by)
	lent := map[netip.Addr]bool{}
	for _, d := range l.drops {
		if v.ofBlock(by, d.Dst) {
			lent[d.Dst] = true
		}
	}
	if len(lent) > 0 {
		f.Title = "no route to " + words.Addrs(sorted(lent)) + ", which a pod of another node has"
		f.Why = fmt.Sprintf("%s is of this node's own range and of a pod of another node, which borrowed it. The route to that pod is missing, so that "+
			"its packets fall to the route that discards the rest of the range: %s.", words.Addrs(sorted(lent)), v.routeText(by.route))
		f.Fix = nil
		for _, a := range sorted(lent) {
			f.Fix = append(f.Fix, fmt.Sprintf("%s route add %s via NODE # the address of the node that has the pod: kubectl get pods -A -o wide", words.IP(a), host(a)))
		}
		f.Fix = append(f.Fix, "restart the plugin's agent on this node, such as calico-node, which keeps these routes")
	}
	f.Evidence = append(f.Evidence, l.evidence()...)
	addRefused(v, &f, by)
	return finding{Finding: f, claims: discards(v, by)}
}

// addRefused adds what the reverse path filter refused because of the same
// route, as the return path to the source ends there, and says how many these are.
func addRefused(v *view, f *model.Finding, by discard) uint64 {
	refused := v.dropped(func(d *model.Drop) bool {
		is, ok := unreturnable(v, d)
		ok = ok && v.ofPod(d) && is == by
		if ok && len(f.Peers) > 0 && !slices.Contains(f.Peers, host(d.Src)) {
			f.Peers = append(f.Peers, host(d.Src))
		}
		if ok && !slices.Contains(f.Pods, v.pod(d)) {
			f.Pods = append(f.Pods, v.pod(d))
		}
		return ok
	})
	if refused > 0 {
		f.Packets += refused
		observe(f, model.SourceDrops, "%s refused by the reverse path filter: the return path to their source ends there too", words.Count(refused, "packet"))
	}
	return refused
}

// describe names what discards and how it is removed.
func describe(v *view, f *model.Finding, by discard) {
	if by.route == nil {
		text := path.RoutingRuleText(by.rule)
		f.Title = fmt.Sprintf("rule %d discards packets of pods", by.rule.Priority)
		f.Why = "The node's routing rule " + text + " throws them away."
		observe(f, model.SourceRoutes, "rule %s", text)
		f.Fix = []string{fmt.Sprintf("%s rule del %s", words.IP(f.Pods[0]), words.RoutingRule(by.rule))}
		return
	}
	text := v.routeText(by.route)
	f.Title = fmt.Sprintf("%s route to %s covers packets of pods", by.route.Type, by.route.Dst)
	f.Why = "The node's own route " + text + " throws them away; the kernel gives no reason for such a drop."
	observe(f, model.SourceRoutes, "%s (protocol %s)", text, by.route.Protocol)
	f.Fix = []string{fmt.Sprintf("%s route del %s", words.IP(by.route.Dst.Addr()), v.routeWords(by.route))}
}

// discards accounts for the drops that the route or rule causes.
func discards(v *view, by discard) func(*model.Drop) bool {
	return func(d *model.Drop) bool {
		is, ok := discardedBy(v, d)
		if !ok {
			is, ok = unreturnable(v, d)
		}
		return ok && is == by
	}
}

// blackholedPods are the findings on routes that throw away what is for a pod
// of the node, though nothing for it was seen to be dropped.
func blackholedPods(v *view, told map[discard]bool) []finding {
	if !v.Has(model.SourceLinks) {
		return nil
	}
	groups := map[discard][]netip.Addr{}
	var order []discard
	for _, a := range v.misroutedPods() {
		by := discard{route: a.decision.Route}
		if by.route == nil {
			by.rule = a.decision.Rule
		}
		if !a.decision.Discards() || told[by] || !v.blocked(&a) || !v.unusedMisrouted(&a) {
			continue
		}
		if groups[by] == nil {
			order = append(order, by)
		}
		groups[by] = append(groups[by], a.addr)
	}
	var out []finding
	for _, by := range order {
		f := model.Finding{
			Confidence:   model.Possible,
			Pods:         groups[by],
			LastHopAlive: v.place(v.uplink(), model.Ingress),
			Unseen:       []string{"a packet for the pod that was dropped for it"},
			Alternatives: []string{"a program on the links delivers past the kernel's routing"},
		}
		describe(v, &f, by)
		if addRefused(v, &f, by) >= minDrops {
			f.Confidence, f.Unseen, f.Alternatives = model.Proven, nil, nil
		}
		out = append(out, finding{Finding: f, claims: discards(v, by)})
	}
	return out
}
