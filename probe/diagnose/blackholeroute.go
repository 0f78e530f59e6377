package diagnose

import (
	"net/netip"
	"slices"

	"github.com/lasthop/lasthop/probe/model"
	"github.com/lasthop/lasthop/probe/path"
)

// discard is a route or, without one, a rule that throws packets away.
type discard struct {
	route *model.Route
	rule  *model.RoutingRule
}

func findBlackholeRoute(v *view) {
	// unheld: the route keeps packets for pods that are not there from leaving the node, as
	// Calico's does for its block of addresses.
	type key struct {
		discard
		unheld bool
	}
	reported := map[discard]bool{}
	reportBy(v, func(d *model.Drop) (k key, pod netip.Addr) {
		if pod = v.pod(d); pod.IsValid() {
			k.discard = discardedBy(v.index, d)
		}
		k.unheld = v.ofBlock(k.discard, d.Dst) && !v.livesElsewhere(d.Dst)
		switch {
		case k == key{}:
			return k, netip.Addr{}
		case !k.unheld && v.ledBySender(d):
			return k, d.Src
		}
		return k, pod
	}, func(k key, l *lost) finding {
		if k.unheld {
			return v.unheld(k.discard, l)
		}
		reported[k.discard] = true
		return v.blackhole(k.discard, l)
	})
	v.blackholedPods(reported)
}

// discardedBy finds the route or rule by which the kernel refused a packet; zero for none.
func discardedBy(v *index, d *model.Drop) discard {
	// A rule that says unreachable is reported as a route that is not there.
	if !d.Is(model.Discarded|model.NoRoute) || d.Link == "" {
		return discard{}
	}
	q := v.arrived(d)
	by := discarding(v.Routing().Lookup(q))
	// A packet's mark is not known: a rule that looks at it may have led to the
	// table that discards, and any other route would not have.
	for r := range model.Each(v.Rules) {
		if q.Mark = r.Mark; by == (discard{}) && r.Mask != 0 && q.Mark != 0 {
			by = discarding(v.Routing().Lookup(q))
		}
	}
	return by
}

// ledBySender reports whether a rule led a pod's packet there by its sender, who then reaches nobody.
func (v *index) ledBySender(d *model.Drop) bool {
	rule := v.Routing().Lookup(v.arrived(d)).Rule
	return rule != nil && !rule.Not && !rule.To.IsValid() && len(v.Owners[d.Src]) > 0 &&
		(rule.From.Bits() > 0 || rule.In != "" && v.place(rule.In, "").Role != model.RoleUplink)
}

// discarding is what throws a packet away by such a decision; zero where nothing does.
func discarding(d path.Decision) discard {
	switch {
	case !d.Discards():
		return discard{}
	case d.Route != nil:
		return discard{route: d.Route}
	}
	return discard{rule: d.Rule}
}

// unreturnable finds the route or rule because of which the reverse path filter
// refused a packet: the return path to its source is discarded.
func unreturnable(v *index, d *model.Drop) discard {
	if !d.Is(model.ReverseFiltered) || d.Link == "" || v.nodeAddrs[d.Src] {
		return discard{}
	}
	return discarding(v.returnPath(d))
}

// ofBlock reports whether a route discards what is for an address of the node's own range that no pod here has.
func (v *index) ofBlock(by discard, a netip.Addr) bool {
	return by.route != nil && len(v.Owners[a]) == 0 && (model.InAny(v.ranges.local, a) || v.past[a])
}

// unheld is the finding on addresses that nobody has, of a range that a route keeps for
// the node's pods: the route is right, and who asks has an old address.
func (v *index) unheld(by discard, l *lost) finding {
	nobody := slices.DeleteFunc(sorted(l.peers), func(a netip.Addr) bool { return !v.ofBlock(by, a) })
	f := finding{lost: l, page: "BlackholeRoute-unheld", facts: facts{
		"nobody": nobody, "first": nobody[:min(mostEvidence, len(nobody))],
		"route": v.shown(by.route), "drops": l.evidence(),
	}}
	// Else it is a scan, or what peers of a pod sent that was just deleted.
	held := slices.ContainsFunc(nobody, func(a netip.Addr) bool { return !v.past[a] })
	f.Severity = model.Either(l.lasting() && len(nobody) <= sweep && held, model.Warning, model.Info)
	f.LastHopAlive = v.place(mostDropped(l.drops)[0].Link, model.Ingress)
	return f
}

// livesElsewhere reports whether a pod of another node has an address: packets came from
// it by an uplink, or the files have a pod with it that is not here.
func (v *index) livesElsewhere(a netip.Addr) bool {
	return !v.past[a] && (slices.ContainsFunc(v.Cluster.Pods,
		func(p model.ClusterPod) bool { return slices.Contains(p.Addresses, a) }) ||
		slices.ContainsFunc(v.peers, func(p model.Peer) bool { return p.Remote == a && p.In.Packets > p.In.ICMPErrors }))
}

func (v *view) blackhole(by discard, l *lost) finding {
	at, shown := v.place(mostDropped(l.drops)[0].Link, model.Ingress), l.evidence()
	lent := model.Filter(model.Map(l.drops, func(d *model.Drop) netip.Addr { return d.Dst }),
		func(a netip.Addr) bool { return v.ofBlock(by, a) })
	f := v.discards(by, l)
	f.LastHopAlive, f.facts["lent"], f.facts["drops"] = at, model.Unique(lent), shown
	if len(lent) > 0 {
		f.lacks = lacksRoute
	}
	return f
}

// discards is a finding on a route or rule, of drops for which it was looked up. The reverse
// path filter refused others, as the return path to their source ends there.
func (v *view) discards(by discard, l *lost) finding {
	before := l.packets
	for d := range model.Each(v.Traffic.Drops) {
		if v.ofPod(d) && !v.explained(d) && !d.Is(model.Delivered) && unreturnable(v.index, d) == by {
			l.add(v.index, d)
		}
	}
	return finding{
		lost: l, facts: facts{"route": v.shown(by.route), "rule": showRule(by.rule), "refused": l.packets - before},
		claims: func(d *model.Drop) bool { return discardedBy(v.index, d) == by || unreturnable(v.index, d) == by },
	}
}

// blackholedPods are the findings on routes that throw away what is for a pod
// of the node, though nothing for it was seen to be dropped.
func (v *view) blackholedPods(reported map[discard]bool) {
	if !v.Has(model.SourceLinks) {
		return
	}
	byRoute := map[discard]*lost{}
	for a := range model.Each(v.misroutedPods()) {
		by := discarding(a.decision)
		if by != (discard{}) && !reported[by] && v.blocked(a) && v.unusedMisrouted(a) {
			model.GetOrInsert(byRoute, by).with(a.addr, netip.Addr{})
		}
	}
	for by, l := range byRoute {
		f := v.discards(by, l)
		l.peers = nil // Nobody reaches these pods.
		f.LastHopAlive = v.place(v.uplink(), model.Ingress)
		if l.packets < minDrops {
			f.Confidence, f.facts["unused"] = model.Possible, true
		}
		v.report(f)
	}
}
