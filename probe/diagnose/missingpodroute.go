package diagnose

import (
	"net/netip"
	"slices"

	"github.com/lasthop/lasthop/probe/model"
)

func findMissingPodRoute(v *view) {
	type cause struct {
		route *model.Route
		kind  string
		// further has an address that nothing on the node gives to the pod: each is one finding.
		further *misroutedPod
	}
	groups := map[cause][]*misroutedPod{}
	for a := range model.Each(v.misroutedPods()) {
		v.findElsewhere(a)
		if a.decision.Discards() && v.blocked(a) || a.first.IsValid() && !a.seen {
			continue
		}
		k := cause{route: a.decision.Route, kind: a.decision.Type}
		if a.first.IsValid() {
			k.further = a
		}
		groups[k] = append(groups[k], a)
	}
	for _, list := range groups {
		v.routedElsewhere(list)
	}
}

// misrouting is where packets for a pod go instead.
type misrouting struct {
	Link                    string
	Discarded, Other, Again bool
}

// routedElsewhere reports pods that share a route which is not theirs, or on an
// address that a pod's interface has beside the one which the node routes to it.
func (v *view) routedElsewhere(list []*misroutedPod) {
	// One that was seen proves the route for all that share it.
	proven := slices.ContainsFunc(list, func(a *misroutedPod) bool { return a.seen })
	f := finding{facts: facts{"proven": proven}}
	var said model.Finding
	var instead []misrouting
	for _, a := range list {
		// What a pod on a bridge gets from its neighbours there needs no route.
		shares := proven && v.bridgeOf(a.pod) != nil
		if !a.seen && !shares && !v.unusedMisrouted(a) {
			continue
		}
		f.Pods = append(f.Pods, a.addr)
		instead = model.With(instead, v.misroutingOf(a))
		v.restore(a)
		if a.facts["missing"] == true && !a.first.IsValid() {
			f.lacks = lacksRoute
		}
		own := say("misrouted", a.facts)
		said.Evidence, said.Fix = append(said.Evidence, own.Evidence...), model.With(said.Fix, own.Fix...)
	}
	if len(f.Pods) == 0 {
		return
	}
	f.facts["shown"], f.facts["ways"], f.facts["fix"] = said.Evidence, instead, said.Fix
	f.claims, f.silences, f.returns = v.misroutes(setOf(f.Pods)), silencesAll(f.Pods), f.Pods
	f.LastHopAlive = v.place(v.uplink(), model.Ingress)
	if !proven {
		f.Confidence = model.Possible
	}
	if a := list[0]; a.first.IsValid() {
		f.Severity, f.facts["first"], f.facts["pod"], f.facts["fix"] = model.Warning, a.first, a.pod, nil
	} else {
		f.Packets = v.dropped(f.claims)
	}
	v.report(f)
}

// misroutes accounts for the drops of packets from and to addresses that the node routes elsewhere than to their pods.
func (v *index) misroutes(wrong map[netip.Addr]bool) func(*model.Drop) bool {
	return func(d *model.Drop) bool {
		// What the node itself sends comes back to it with its own address.
		own := v.nodeAddrs[d.Src] && d.Is(model.OwnSource|model.InputRouting)
		// The reverse path filter holds that route against what the pod
		// sends, its ARP requests for a gateway among that.
		return wrong[d.Dst] && (d.Is(model.LookupRefused|model.Expired|model.NeighborFailed) || own) ||
			(wrong[d.Src] || wrong[d.Dst]) && d.Is(model.ReverseFiltered) || wrong[d.Src] && d.Link == "" && d.Is(model.NeighborFailed)
	}
}

// passing is what a link counted of packets for a pod: as they left by it, and came back.
type passing struct {
	Link    string
	Out, In *model.HopCount
	TTLs    uint64
}

// findElsewhere looks for packets for the pod that went elsewhere.
func (v *view) findElsewhere(a *misroutedPod) {
	var hops []passing
	for _, h := range v.hops[a.addr] {
		if h.Side == model.AsDestination && h.Direction == model.Egress && a.decision.Through(h.IfIndex) &&
			h.Packets >= minPackets {
			p := passing{v.linkName(h.IfIndex), h, v.hop(a.addr, h.IfIndex, model.Ingress, model.AsDestination), h.TTLs}
			if p.In != nil {
				p.TTLs |= p.In.TTLs
			}
			hops = append(hops, p)
		}
	}
	var l lost
	for d := range model.Each(v.Traffic.Drops) {
		if d.Dst == a.addr && d.Is(model.LookupRefused|model.NeighborFailed) && !v.explained(d) {
			l.add(v.index, d)
		}
	}
	a.seen = len(hops) > 0 || l.packets >= minDrops
	a.facts = facts{
		"addr": a.addr, "further": a.first.IsValid(), "link": a.pod.Link, "query": a.query,
		"route": v.shown(a.decision.Route), "hops": hops,
	}
	if l.packets >= minDrops {
		a.facts["drops"] = l.evidence()
	}
}

func (v *index) misroutingOf(a *misroutedPod) misrouting {
	if a.decision.Type != "unicast" {
		return misrouting{Discarded: true}
	}
	l := v.ByIndex[a.decision.Hops[0].IfIndex]
	return misrouting{Link: l.Name, Other: l.Role == model.RolePodLink, Again: v.Outer[l.Index]}
}

// leading is a rule that leads packets for a pod to the wrong place: it goes, or the route
// there does, or another rule comes before it.
type leading struct {
	*shownRule
	Rule, Route bool
	Before      int
}

// restore adds what brings the route, or the rule, back.
func (v *index) restore(a *misroutedPod) {
	target, dev := model.Host(a.addr), a.pod.Link
	if l := v.ByIndex[a.pod.LinkIndex]; l.Master != 0 && v.ByIndex[l.Master] != nil {
		dev = v.ByIndex[l.Master].Name
		for _, p := range v.ByIndex[l.Master].Addresses {
			if p.Contains(a.addr) {
				target = p.Masked()
			}
		}
	}
	var rules []leading
	for _, r := range a.rules {
		x := leading{shownRule: showRule(r), Rule: v.leftOverRule(r, a), Before: r.Priority - 1}
		x.Route = !x.Rule && v.leftOverRoute(r, a, target)
		rules = append(rules, x)
	}
	r, main := a.decision.Route, v.Routing().Covering(mainTable, a.addr)
	a.facts["target"], a.facts["dev"], a.facts["rules"] = target, dev, rules
	a.facts["gone"] = r != nil && r.Table == mainTable && r.Dst.Bits() >= target.Bits()
	a.facts["missing"] = len(main) == 0 || !v.delivers(main[0], a.addr)
}
