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

// detour is a link by which packets arrive, and the decision about the return path that speaks against it.
type detour struct {
	link  string
	route *model.Route
	kind  string
}

// ReversePathFilter reports packets that rp_filter drops, as their source is not reached by the link that they came in by.
var ReversePathFilter = fault.Kind{Code: "ReversePathFilter", Severity: model.Warning, Find: reversePathFilter,
	Rests: fault.Sources{model.SourceLinks, model.SourcePods, model.SourceTC}, Ends: fault.Hops{model.HopRoute},
	Objects: fault.Objects{"link"}, Else: fault.Else{"doubt"}}

func reversePathFilter(v *fault.Input) {
	hops := v.SilentNextHops()
	fault.ReportBy(v, func(d *model.Drop) (k detour, pod netip.Addr) {
		if k = detourOf(v.Index, d); k.link != "" && v.Classifier.Lost(d) {
			if k.route != nil && (v.Unconnected(k.route.IfIndex) || hops[node.Question{Ifindex: k.route.IfIndex, Addr: k.route.Gateway}] != nil) {
				// No reply would get there either: that is the fault.
				return k, pod
			}
			pod = v.Pod(d)
		}
		return k, pod
	}, func(k detour, l *node.Lost) fault.Fault { return filteredOn(v.Index, k, l) })
}

// detourOf is the detour of a packet that the filter refused, zero for others. A node's own
// address as source is refused in the same place.
func detourOf(v *node.Index, d *model.Drop) (k detour) {
	if d.Is(model.ReverseFiltered) && d.Link != "" && v.Own[d.Src] == nil {
		back := v.ReturnPath(d)
		k = detour{d.Link, back.Route, back.Type}
	}
	return k
}

// filteredOn is the finding on packets that arrive through one link and would be answered by another.
func filteredOn(v *node.Index, k detour, l *node.Lost) fault.Fault {
	src, mode, back := l.Drops[0].Src, v.Settings.ReverseFilter(k.link), v.ReturnPath(l.Drops[0])
	f := fault.Fault{Lost: l, Claims: func(d *model.Drop) bool {
		// What pods send by that route may find nobody there.
		return detourOf(v, d) == k ||
			k.route != nil && (d.Is(model.NeighborFailed) && v.Routing().Lookup(v.Arrived(d)).Route == k.route || v.ErrorDropped(d, l))
	}}
	f.LastHopAlive = v.Place(k.link, model.Ingress)
	in := v.LinkByName[k.link]
	f.Facts = words.Facts{
		"link": k.link, "src": src, "route": v.Shown(back.Route), "mode": mode,
		"setting": path.LinkSetting(k.link, "rp_filter"), "drops": l.Evidence(), "peers": node.Sorted(l.Peers),
		"doubt":  in == nil || !back.Filtered(mode, in) || !v.Has(model.SourceRoutes),
		"strict": in != nil && !in.HasIPv4(), "all": v.Settings[path.LinkSetting("all", "rp_filter")] != "0",
	}
	if rule := back.Rule; rule != nil && rule.Priority > 0 && rule.Priority < 32766 {
		f.Facts["rule"] = node.ShowRule(rule)
	}
	if p := foreign(v, in, src); p != nil {
		f.Facts["foreign"], f.Facts["held"] = p, p.Has(src)
	} else if p := model.First(v.Pods, func(p *model.Pod) bool { return p.Has(src) }); p != nil {
		if l := v.ByIndex[p.LinkIndex]; l != nil && (back.Through(l.Index) || l.Master != 0 && back.Through(l.Master)) {
			f.Facts["pod"] = p
		} else if main := v.Routing().Lookup(path.Query{Dst: src}); f.Facts["rule"] != nil && !v.Routing().Misses(&main, []*model.Pod{p}) {
			// Loosened, the filter would let requests pass whose replies go astray.
			own := model.Find(v.Ranges.Own, func(r netip.Prefix) bool { return r.Contains(src) })
			f.Facts["astray"], f.Facts["before"] = cmp.Or(own, model.Host(src)), back.Rule.Priority-1
		}
	} else {
		f.Facts["detour"] = back.Type == "unicast" && back.Route != nil && (in == nil || !back.Through(in.Index)) && detourOnly(v, back.Route)
	}
	q := v.Arrived(l.Drops[0])
	switch setting := v.Settings.SourceMark(k.link); {
	case setting != "" && back.Rule != nil && back.Rule.Mask != 0 && q.Mark.Value&back.Rule.Mask != 0:
		// Another route would do, were it not for the mark.
		f.Facts["marked"], f.Facts["marks"], f.Facts["detour"] = setting, q.MarkedBy, nil
		f.Sets = []model.Sysctl{{Name: setting, Value: "0"}}
	case f.Facts["foreign"] != nil || f.Facts["detour"] == true || f.Facts["astray"] != nil:
	case f.Facts["strict"] == true:
		for _, link := range []string{k.link, "all"} {
			f.Sets = append(f.Sets, model.Sysctl{Name: path.LinkSetting(link, "rp_filter"), Value: "0"})
		}
	default:
		f.Sets = []model.Sysctl{{Name: path.LinkSetting(k.link, "rp_filter"), Value: "2"}}
	}
	return f
}

// foreign is the pod behind a link that sends with an address which it has on no interface, or which the node does not route
// to it: without the filter, replies would not get back either.
func foreign(v *node.Index, in *model.Link, src netip.Addr) *model.Pod {
	if in == nil {
		return nil
	}
	sender := model.First(v.Pods, func(p *model.Pod) bool { return p.LinkIndex == in.Index })
	if sender == nil || slices.ContainsFunc(v.Pods, func(p model.Pod) bool {
		return p.Has(src) && (p.LinkIndex == in.Index || p.Netns != 0 && p.Netns == sender.Netns) &&
			!v.Routing().Misses(new(v.Routing().Lookup(path.Query{Dst: src})), []*model.Pod{&p})
	}) {
		return nil
	}
	return sender
}

// detourOnly reports whether a route may be what is wrong, and can go: default routes, those of the uplinks'
// own networks, and those that lead to pods or to the next hops of others are needed.
func detourOnly(v *node.Index, r *model.Route) bool {
	if r.Dst.Bits() == 0 || r.Protocol == "kernel" && v.Outer[r.IfIndex] {
		return false
	}
	for a := range v.Owners {
		if r.Dst.Contains(a) && delivers(v, r, a) {
			return false
		}
	}
	return !slices.ContainsFunc(v.Routes,
		func(o model.Route) bool { return o.Gateway.IsValid() && r.Dst.Contains(o.Gateway) })
}
