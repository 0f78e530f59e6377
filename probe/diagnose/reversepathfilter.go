package diagnose

import (
	"net/netip"
	"slices"

	"github.com/lasthop/lasthop/probe/model"
	"github.com/lasthop/lasthop/probe/path"
)

// detour is a link by which packets arrive, and the decision about the return path that speaks against it.
type detour struct {
	link  string
	route *model.Route
	kind  string
}

func findReversePathFilter(v *view) {
	hops := v.silentNextHops()
	reportBy(v, func(d *model.Drop) (k detour, pod netip.Addr) {
		if k = v.detourOf(d); k.link != "" && v.drops.Lost(d) {
			if k.route != nil && hops[question{k.route.IfIndex, k.route.Gateway}] != nil {
				// No reply would get there either: that is the fault.
				return k, pod
			}
			pod = v.pod(d)
		}
		return k, pod
	}, func(k detour, l *lost) finding { return v.filteredOn(k, l) })
}

// detourOf is the detour of a packet that the filter refused, zero for others. A node's own
// address as source is refused in the same place.
func (v *index) detourOf(d *model.Drop) (k detour) {
	if d.Is(model.ReverseFiltered) && d.Link != "" && !v.nodeAddrs[d.Src] {
		back := v.returnPath(d)
		k = detour{d.Link, back.Route, back.Type}
	}
	return k
}

// filteredOn is the finding on packets that arrive through one link and would be answered by another.
func (v *index) filteredOn(k detour, l *lost) finding {
	src, mode, back := l.drops[0].Src, v.Settings.ReverseFilter(k.link), v.returnPath(l.drops[0])
	f := finding{lost: l, claims: func(d *model.Drop) bool {
		// What pods send by that route may find nobody there.
		return v.detourOf(d) == k ||
			k.route != nil && (d.Is(model.NeighborFailed) && v.Routing().Lookup(v.arrived(d)).Route == k.route || v.errorDropped(d, l))
	}}
	f.LastHopAlive = v.place(k.link, model.Ingress)
	in := v.byName[k.link]
	f.facts = facts{
		"link": k.link, "src": src, "route": v.shown(back.Route), "mode": mode,
		"setting": path.LinkSetting(k.link, "rp_filter"), "drops": l.evidence(), "peers": sorted(l.peers),
		"doubt":  in == nil || !back.Filtered(mode, in) || !v.Has(model.SourceRoutes),
		"strict": in != nil && !in.HasIPv4(),
	}
	if rule := back.Rule; rule != nil && rule.Priority > 0 && rule.Priority < 32766 {
		f.facts["rule"] = showRule(rule)
	}
	if p := model.First(v.Pods, func(p *model.Pod) bool { return p.Has(src) }); p != nil {
		if l := v.ByIndex[p.LinkIndex]; l != nil && (back.Through(l.Index) || l.Master != 0 && back.Through(l.Master)) {
			f.facts["pod"] = p
		}
	} else {
		f.facts["detour"] = back.Type == "unicast" && back.Route != nil && v.detourOnly(back.Route)
	}
	return f
}

// detourOnly reports whether a route may be what is wrong, and can go: default routes, those of the uplinks'
// own networks, and those that lead to pods or to the next hops of others are needed.
func (v *index) detourOnly(r *model.Route) bool {
	if r.Dst.Bits() == 0 || r.Protocol == "kernel" && v.Outer[r.IfIndex] {
		return false
	}
	for a := range v.Owners {
		if r.Dst.Contains(a) && v.delivers(r, a) {
			return false
		}
	}
	return !slices.ContainsFunc(v.Routes,
		func(o model.Route) bool { return o.Gateway.IsValid() && r.Dst.Contains(o.Gateway) })
}
