package route

import (
	"cmp"
	"net/netip"
	"slices"

	"github.com/lasthop/lasthop/probe/fault"
	"github.com/lasthop/lasthop/probe/model"
	"github.com/lasthop/lasthop/probe/node"
	"github.com/lasthop/lasthop/probe/path"
	"github.com/lasthop/lasthop/probe/words"
)

// discard is a route or, without one, a rule that throws packets away.
type discard struct {
	route *model.Route
	rule  *model.RoutingRule
}

// BlackholeRoute reports routes of type blackhole, unreachable or prohibit that discard pods' packets.
var BlackholeRoute = fault.Kind{Code: "BlackholeRoute", Severity: model.Critical, Find: blackholeRoute,
	Needs: fault.Sources{model.SourceRoutes}, Rests: fault.Sources{model.SourceLinks, model.SourcePods},
	Ends: fault.Hops{model.HopRoute, model.HopPod}, Objects: fault.Objects{"rule", "route"},
	Else: fault.Else{"BlackholeRoute-unheld"}}

func blackholeRoute(v *fault.Input) {
	// unheld: the route keeps packets for pods that are not there from leaving the node, as
	// Calico's does for its block of addresses.
	type key struct {
		discard
		unheld bool
	}
	reported := map[discard]bool{}
	fault.ReportBy(v, func(d *model.Drop) (k key, pod netip.Addr) {
		if pod = v.Pod(d); pod.IsValid() {
			k.discard, _ = discardedBy(v.Index, d)
		}
		k.unheld = ofBlock(v.Index, k.discard, d.Dst) && !livesElsewhere(v.Index, d.Dst)
		switch {
		case k == key{}:
			return k, netip.Addr{}
		case !k.unheld && ledBySender(v.Index, d):
			return k, d.Src
		}
		return k, pod
	}, func(k key, l *node.Lost) fault.Fault {
		if k.unheld {
			return unheld(v.Index, k.discard, l)
		}
		reported[k.discard] = true
		return blackhole(v, k.discard, l)
	})
	blackholedPods(v, reported)
	discardedInside(v)
}

// discardedInside reports routing rules and routes in pods that discard their replies, or what they ask their name servers:
// the kernel refuses that where it is sent, so that no packet shows it, and nobody means it of all servers.
func discardedInside(v *fault.Input) {
	type key struct {
		pod *model.Pod
		discard
	}
	discards := func(p *model.Pod, x path.Packet) (k key) {
		if rule, by := path.PodDiscards(p, x); rule != nil || by != nil {
			k = key{p, discard{by, rule}}
		}
		return k
	}
	report := func(k key, pods, peers []netip.Addr, flows []*model.Flow) {
		f := fault.Fault{Page: "BlackholeRoute-pod", Facts: words.Facts{"pod": k.pod, "flows": flows}}
		if k.rule != nil {
			f.Facts["rule"] = node.ShowRule(k.rule)
		}
		if k.route != nil {
			f.Facts["route"] = &node.ShownRoute{Route: k.route, Link: k.route.Link}
		}
		if len(flows) == 0 {
			f.Confidence = model.Possible
		}
		f.Severity, f.Pods, f.Packets, f.Peers = model.Warning, pods, uint64(len(flows)), model.Hosts(model.Unique(peers))
		f.LastHopAlive = model.Place{Link: k.pod.Interface, Role: model.RolePod, Direction: model.Either(len(flows) > 0, model.Ingress, model.Egress)}
		v.Report(f)
	}
	var groups node.Groups[key, []*model.Flow]
	for f := range model.Each(v.Flows) {
		if f.Replied || f.Start.IsZero() {
			continue
		}
		for _, p := range v.Owners[f.Reply.Src] {
			if k := discards(p, node.ReplyPacket(f)); k.pod != nil {
				node.Put(&groups, k, f)
			}
		}
	}
	for k, flows := range groups.All() {
		if len(*flows) >= node.MinAsks {
			report(k, node.Servers(*flows), model.Map(*flows, func(x *model.Flow) netip.Addr { return x.Reply.Dst }), *flows)
		}
	}
	for p := range model.Each(v.Pods) {
		var k key
		for i := 0; p.Resolver != nil && i < len(p.Resolver.Servers) && (i == 0 || k.pod != nil); i++ {
			s := p.Resolver.Servers[i]
			k = discards(p, path.Packet{Src: node.FirstIn(p, s.Is6()).Addr(), Dst: s, Proto: model.UDP, DstPort: node.DNSPort})
		}
		if k.pod != nil {
			report(k, node.PodAddrs(p), p.Resolver.Servers, nil)
		}
	}
}

// discardedBy finds the route or rule by which the kernel refused a packet, zero for none, and the packet.
func discardedBy(v *node.Index, d *model.Drop) (by discard, q path.Query) {
	// A rule that says unreachable is reported as a route that is not there.
	if !d.Is(model.Discarded|model.NoRoute) || d.Link == "" {
		return by, q
	}
	q = v.Arrived(d)
	if by = discarding(v.Routing().Lookup(q)); by != (discard{}) {
		return by, q
	}
	// What else writes its mark is not known: a rule that looks at it may have led to the
	// table that discards, and any other route would not have.
	for r := range model.Each(v.Rules) {
		if marked := q; r.Mask != 0 && r.Mark != 0 {
			marked.Mark.Value, marked.Mark.Loose = r.Mark, 0
			if by = discarding(v.Routing().Lookup(marked)); by != (discard{}) {
				return by, marked
			}
		}
	}
	return by, q
}

// ledBySender reports whether a rule led a pod's packet there by its sender, who then reaches nobody.
func ledBySender(v *node.Index, d *model.Drop) bool {
	rule := v.Routing().Lookup(v.Arrived(d)).Rule
	return rule != nil && !rule.Not && !rule.To.IsValid() && len(v.Owners[d.Src]) > 0 &&
		(rule.From.Bits() > 0 || rule.In != "" && v.Place(rule.In, "").Role != model.RoleUplink)
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
func unreturnable(v *node.Index, d *model.Drop) discard {
	if !d.Is(model.ReverseFiltered) || d.Link == "" || v.Own[d.Src] != nil {
		return discard{}
	}
	return discarding(v.ReturnPath(d))
}

// ofBlock reports whether a route discards what is for an address of the node's own range that no pod here has.
func ofBlock(v *node.Index, by discard, a netip.Addr) bool {
	return by.route != nil && len(v.Owners[a]) == 0 && (model.InAny(v.Ranges.Local, a) || v.Classifier.Past[a])
}

// unheld is the finding on addresses that nobody has, of a range that a route keeps for
// the node's pods: the route is right, and who asks has an old address.
func unheld(v *node.Index, by discard, l *node.Lost) fault.Fault {
	nobody := slices.DeleteFunc(node.Sorted(l.Peers), func(a netip.Addr) bool { return !ofBlock(v, by, a) })
	f := fault.Fault{Lost: l, Page: "BlackholeRoute-unheld", Facts: words.Facts{
		"nobody": nobody, "first": nobody[:min(node.MostEvidence, len(nobody))],
		"route": v.Shown(by.route), "drops": l.Evidence(),
	}}
	// Else it is a scan, or what peers of a pod sent that was just deleted.
	held := slices.ContainsFunc(nobody, func(a netip.Addr) bool { return !v.Classifier.Past[a] })
	f.Severity = model.Either(l.Lasting() && len(nobody) <= node.Sweep && held, model.Warning, model.Info)
	if downTunnel(v) != nil {
		f.Severity = model.Info // Routes to addresses that others borrowed went with it.
	}
	f.LastHopAlive = v.Place(node.MostDropped(l.Drops)[0].Link, model.Ingress)
	return f
}

// livesElsewhere reports whether a pod of another node has an address: packets came from
// it by an uplink or a tunnel, or the files have a pod with it that is not here.
func livesElsewhere(v *node.Index, a netip.Addr) bool {
	refused := func(d model.Drop) bool { return d.Src == a && d.Is(model.ReverseFiltered) && v.IsTunnel(d.IfIndex) }
	return !v.Classifier.Past[a] && (slices.ContainsFunc(v.Traffic.Drops, refused) || slices.ContainsFunc(v.Cluster.Pods,
		func(p model.ClusterPod) bool { return slices.Contains(p.Addresses, a) }) ||
		slices.ContainsFunc(v.Peers, func(p model.Peer) bool { return p.Remote == a && p.In.Packets > p.In.ICMPErrors }))
}

func blackhole(v *fault.Input, by discard, l *node.Lost) fault.Fault {
	at, shown := v.Place(node.MostDropped(l.Drops)[0].Link, model.Ingress), l.Evidence()
	lent := model.Filter(model.Map(l.Drops, func(d *model.Drop) netip.Addr { return d.Dst }),
		func(a netip.Addr) bool { return ofBlock(v.Index, by, a) })
	f := discards(v, by, l)
	if _, q := discardedBy(v.Index, node.MostDropped(l.Drops)[0]); by.route != nil {
		// A rule of somebody's leads there: also one that looks at a mark.
		if rule := v.Routing().Lookup(q).Rule; rule != nil && rule.Table != node.MainTable && rule.Priority > 0 {
			f.Facts["led"] = node.ShowRule(rule)
			if rule.Mask != 0 {
				f.Facts["marks"], f.Facts["unmarked"], f.Facts["in"] = q.MarkedBy, len(q.MarkedBy) == 0, q.In
			}
		}
	}
	f.LastHopAlive, f.Facts["lent"], f.Facts["drops"] = at, model.Unique(lent), shown
	if r := by.route; r != nil && len(lent) == 0 && slices.ContainsFunc(v.Routes, func(o model.Route) bool {
		return o.Protocol == r.Protocol && o.Gateway.IsValid() && o.Dst.Bits() > r.Dst.Bits() && r.Dst.Contains(o.Dst.Addr())
	}) {
		// A daemon announces the range as one by this route, and has others within it: one of those is missing.
		part := func(d *model.Drop) netip.Prefix { return cmp.Or(v.Remote(d.Dst), model.Host(d.Dst)) }
		of := model.With(nil, model.Map(l.Drops, part)...)
		if kept := words.ChangeRoute(r.Protocol, of[0]); kept != "" {
			f.Undoes, f.Lacks, f.Facts["aggregate"], f.Facts["kept"] = nil, node.LacksRoute, of, kept
		}
	}
	if len(lent) > 0 {
		f.Lacks, f.LacksTo = node.LacksRoute, model.Hosts(lent)
	}
	return f
}

// discards is a finding on a route or rule, of drops for which it was looked up. The reverse
// path filter refused others, as the return path to their source ends there.
func discards(v *fault.Input, by discard, l *node.Lost) fault.Fault {
	refused := v.LostTo(func(d *model.Drop) bool { return unreturnable(v.Index, d) == by })
	l.Merge(refused)
	return fault.Fault{
		Undoes: by.route,
		Lost:   l, Facts: words.Facts{"route": v.Shown(by.route), "rule": node.ShowRule(by.rule), "refused": refused.Packets},
		Claims: func(d *model.Drop) bool {
			own, _ := discardedBy(v.Index, d)
			return own == by || unreturnable(v.Index, d) == by
		},
	}
}

// blackholedPods are the findings on routes that throw away what is for a pod
// of the node, though nothing for it was seen to be dropped.
func blackholedPods(v *fault.Input, reported map[discard]bool) {
	if !v.Has(model.SourceLinks) {
		return
	}
	byRoute := map[discard]*node.Lost{}
	for a := range model.Each(v.MisroutedPods()) {
		by := discarding(a.Decision)
		// A rule about some sources says nothing of what others send.
		forAll := by.rule == nil || !by.rule.From.IsValid()
		refused := func(d model.Drop) bool { return d.Src == a.Addr && unreturnable(v.Index, &d) == by }
		if by != (discard{}) && forAll && !reported[by] && blocked(v.Index, a) &&
			(unusedMisrouted(v.Index, a) || slices.ContainsFunc(v.Traffic.Drops, refused)) {
			model.GetOrInsert(byRoute, by).With(a.Addr, netip.Addr{})
		}
	}
	for by, l := range byRoute {
		f := discards(v, by, l)
		l.Peers = nil // Nobody reaches these pods.
		f.LastHopAlive = v.Place(v.Uplink(), model.Ingress)
		if len(l.Drops) > 0 {
			f.LastHopAlive, f.Facts["drops"] = v.Place(node.MostDropped(l.Drops)[0].Link, model.Ingress), l.Evidence()
		}
		if l.Packets < node.MinDrops {
			f.Confidence, f.Facts["unused"] = model.Possible, true
		}
		v.Report(f)
	}
}
