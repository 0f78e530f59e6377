package route

import (
	"net/netip"
	"slices"

	"github.com/lasthop/lasthop/probe/fault"
	"github.com/lasthop/lasthop/probe/model"
	"github.com/lasthop/lasthop/probe/node"
	"github.com/lasthop/lasthop/probe/path"
	"github.com/lasthop/lasthop/probe/words"
)

// MissingPodRoute reports pods of this node to which it has no route, or one that leads elsewhere.
var MissingPodRoute = fault.Kind{Code: "MissingPodRoute", Severity: model.Critical, Find: missingPodRoute,
	Needs: fault.Sources{model.SourceRoutes, model.SourceLinks}, Rests: fault.Sources{model.SourcePods},
	Ends: fault.Hops{model.HopRoute}, Objects: fault.Objects{"first"}}

func missingPodRoute(v *fault.Input) {
	type cause struct {
		route *model.Route
		kind  string
		// further has an address that nothing on the node gives to the pod: each is one finding.
		further *node.MisroutedPod
	}
	groups := map[cause][]*node.MisroutedPod{}
	for a := range model.Each(v.MisroutedPods()) {
		findElsewhere(v, a)
		if a.Decision.Discards() && blocked(v.Index, a) || a.First.IsValid() && !a.Seen || byOtherNIC(v, a) {
			continue
		}
		k := cause{route: a.Decision.Route, kind: a.Decision.Type}
		if a.First.IsValid() {
			k.further = a
		}
		groups[k] = append(groups[k], a)
	}
	for _, list := range groups {
		routedElsewhere(v, list)
	}
}

// byOtherNIC reports whether the network brings what leaves for the pod back to another NIC of the node, whose rule leads
// to the pod, as a branch NIC's does in EKS: as many packets came by that as left, and the reverse path filter takes none.
func byOtherNIC(v *fault.Input, a *node.MisroutedPod) bool {
	if v.Dropped(func(d *model.Drop) bool { return refusedOf(a, d) }) >= node.MinDrops {
		return false
	}
	left := model.Sum(leftFor(v.Index, a), func(h *model.HopCount) uint64 { return h.Packets })
	return slices.ContainsFunc(v.UplinkList, func(l *model.Link) bool {
		d := v.Routing().Lookup(path.Query{Src: a.Query.Src, Dst: a.Addr, In: l.Name})
		h := v.Hop(a.Addr, l.Index, model.Ingress, model.AsDestination)
		return !a.Decision.Through(l.Index) && !v.Misses(&d, a.Addr) && (left == 0 || h != nil && h.Packets*10 >= left*9)
	})
}

// misrouting is where packets for a pod go instead.
type misrouting struct {
	Link                    string
	Discarded, Other, Again bool
}

// routedElsewhere reports pods that share a route which is not theirs, or on an
// address that a pod's interface has beside the one which the node routes to it.
func routedElsewhere(v *fault.Input, list []*node.MisroutedPod) {
	// One that was seen proves the route for all that share it.
	proven := slices.ContainsFunc(list, func(a *node.MisroutedPod) bool { return a.Seen })
	f := fault.Fault{Facts: words.Facts{"proven": proven, "unruled": true}}
	var said model.Finding
	var instead []misrouting
	for _, a := range list {
		// What a pod on a bridge gets from its neighbours there needs no route.
		if shares := proven && v.BridgeOf(a.Pod) != nil; !a.Seen && !shares && !unusedMisrouted(v.Index, a) {
			continue
		}
		f.Pods = append(f.Pods, a.Addr)
		instead = model.With(instead, misroutingOf(v.Index, a))
		restore(v.Index, a)
		if a.Facts["missing"] == true && !a.First.IsValid() {
			f.Lacks, f.LacksTo = node.LacksRoute, append(f.LacksTo, model.Host(a.Addr))
		}
		if a.Facts["unruled"] != true || f.Lacks != "" {
			f.Facts["unruled"] = nil
		}
		own := say("misrouted", a.Facts)
		said.Evidence, said.Fix = append(said.Evidence, own.Evidence...), model.With(said.Fix, own.Fix...)
	}
	if len(f.Pods) == 0 {
		return
	} else if a := list[0]; twins(v.Index, a) {
		f.Lacks, said.Fix = "", nil
		f.Facts["twin"], f.Facts["dev"], f.Facts["route"] = a.Facts["target"], a.Facts["dev"], a.Facts["route"]
	}
	f.Facts["shown"], f.Facts["ways"], f.Facts["fix"] = said.Evidence, instead, said.Fix
	f.Claims, f.Silences, f.Returns = misroutes(v.Index, node.SetOf(f.Pods)), node.SilencesAll(f.Pods), f.Pods
	f.LastHopAlive = v.Place(v.Uplink(), model.Ingress)
	if !proven {
		f.Confidence = model.Possible
	}
	if a := list[0]; a.First.IsValid() {
		f.Severity, f.Facts["first"], f.Facts["pod"], f.Facts["fix"] = model.Warning, a.First, a.Pod, nil
	} else {
		f.Packets = v.Dropped(f.Claims)
	}
	v.Report(f)
}

// twins reports whether the addresses that the route leads to are other machines', too: packets come from there.
func twins(v *node.Index, a *node.MisroutedPod) bool {
	r := a.Decision.Route
	if r == nil || !r.Gateway.IsValid() || r.Dst.Bits() == 0 || !v.Outer[r.IfIndex] {
		return false
	}
	from := v.Hop(a.Addr, r.IfIndex, model.Ingress, model.AsSource)
	return from != nil && from.Packets >= node.MinPackets ||
		slices.ContainsFunc(v.Peers, func(p model.Peer) bool { return p.IfIndex == r.IfIndex && r.Dst.Contains(p.Remote) && v.Answered(&p) })
}

// misroutes accounts for the drops of packets from and to addresses that the node routes elsewhere than to their pods.
func misroutes(v *node.Index, wrong map[netip.Addr]bool) func(*model.Drop) bool {
	return func(d *model.Drop) bool {
		// What the node itself sends comes back to it with its own address.
		own := v.Own[d.Src] != nil && d.Is(model.OwnSource|model.InputRouting)
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

// leftFor is what was counted of packets for the pod at the links that the decision leads to.
func leftFor(v *node.Index, a *node.MisroutedPod) []*model.HopCount {
	return model.Filter(v.HopsOf[a.Addr], func(h *model.HopCount) bool {
		return h.Side == model.AsDestination && h.Direction == model.Egress && a.Decision.Through(h.IfIndex) &&
			h.Packets >= node.MinPackets
	})
}

// refusedOf reports whether the reverse path filter refused what the pod sent to where the wrong decision was found: that
// stands against it.
func refusedOf(a *node.MisroutedPod, d *model.Drop) bool {
	return d.Src == a.Addr && d.Dst == a.Query.Src && d.Is(model.ReverseFiltered)
}

// findElsewhere looks for packets for the pod that went elsewhere.
func findElsewhere(v *fault.Input, a *node.MisroutedPod) {
	var hops []passing
	for _, h := range leftFor(v.Index, a) {
		p := passing{v.LinkName(h.IfIndex), h, v.Hop(a.Addr, h.IfIndex, model.Ingress, model.AsDestination), h.TTLs}
		if p.In != nil {
			p.TTLs |= p.In.TTLs
		}
		hops = append(hops, p)
	}
	l := v.LostTo(func(d *model.Drop) bool {
		return d.Dst == a.Addr && d.Is(model.LookupRefused|model.NeighborFailed) || refusedOf(a, d)
	})
	a.Seen = len(hops) > 0 || l.Packets >= node.MinDrops
	a.Facts = words.Facts{
		"addr": a.Addr, "further": a.First.IsValid(), "link": a.Pod.Link, "query": a.Query,
		"route": v.Shown(a.Decision.Route), "hops": hops,
	}
	if l.Packets >= node.MinDrops {
		a.Facts["drops"] = l.Evidence()
	}
}

func misroutingOf(v *node.Index, a *node.MisroutedPod) misrouting {
	if a.Decision.Type != "unicast" {
		return misrouting{Discarded: true}
	}
	l := v.ByIndex[a.Decision.Hops[0].IfIndex]
	return misrouting{Link: l.Name, Other: l.Role == model.RolePodLink, Again: v.Outer[l.Index]}
}

// leading is a rule that leads packets for a pod to the wrong place: it goes, or the route
// there does, or another rule comes before it, as other pods' do.
type leading struct {
	*node.ShownRule
	Rule, Route bool
	Before      int
	Like        *node.ShownRule
}

// restore adds what brings the route, or the rule, back.
func restore(v *node.Index, a *node.MisroutedPod) {
	target, dev := model.Host(a.Addr), a.Pod.Link
	if l := v.ByIndex[a.Pod.LinkIndex]; l.Master != 0 && v.ByIndex[l.Master] != nil {
		dev = v.ByIndex[l.Master].Name
		for _, p := range v.ByIndex[l.Master].Addresses {
			if p.Contains(a.Addr) {
				target = p.Masked()
			}
		}
	}
	var rules []leading
	for _, r := range a.Rules {
		x := leading{ShownRule: node.ShowRule(r), Rule: leftOverRule(v, r, a), Before: r.Priority - 1}
		x.Route = !x.Rule && leftOverRoute(v, r, a, target)
		if like := leadsLike(v, r, a); like != nil && !x.Rule && !x.Route {
			x.Before, x.Like, a.Facts["unruled"] = like.Priority, node.ShowRule(like), true
		}
		rules = append(rules, x)
	}
	r, main := a.Decision.Route, v.Routing().Covering(node.MainTable, a.Addr)
	a.Facts["target"], a.Facts["dev"], a.Facts["rules"] = target, dev, rules
	a.Facts["gone"] = r != nil && r.Table == node.MainTable && r.Dst.Bits() >= target.Bits()
	a.Facts["missing"] = len(main) == 0 || !delivers(v, main[0], a.Addr)
}

// leadsLike is the rule that leads what is for another pod to the main table before a rule that leads it elsewhere.
func leadsLike(v *node.Index, r *model.RoutingRule, a *node.MisroutedPod) *model.RoutingRule {
	return model.First(v.Rules, func(o *model.RoutingRule) bool {
		return o.To.IsSingleIP() && !o.Not && o.Table == node.MainTable && o.Family == r.Family && o.Priority < r.Priority &&
			o.To.Addr() != a.Addr && len(v.Owners[o.To.Addr()]) > 0
	})
}
