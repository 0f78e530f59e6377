package diagnose

import (
	"net/netip"
	"slices"

	"github.com/lasthop/lasthop/probe/model"
	"github.com/lasthop/lasthop/probe/path"
)

// ReversePathFilter is the code of this finding.
const ReversePathFilter model.Code = "ReversePathFilter"

var reversePathFilter = kind{
	code:     ReversePathFilter,
	severity: model.Warning,
	find:     findReversePathFilter,
	ends:     []model.HopKind{model.HopRoute},
}

// detour is a link by which packets arrive, and the decision about the way
// back that speaks against it.
type detour struct {
	link  string
	route *model.Route
	kind  string
}

func findReversePathFilter(v *view) []finding {
	return foundBy(v, func(d *model.Drop) (k detour, pod netip.Addr) {
		if k = v.detourOf(d); k.link != "" && v.drops.Lost(d) {
			pod = v.pod(d)
		}
		return k, pod
	}, v.filteredOn)
}

// detourOf is the detour of a packet that the filter refused, zero for others. A node's own
// address as source is refused in the same place.
func (v *view) detourOf(d *model.Drop) (k detour) {
	if d.ReverseFiltered() && d.Link != "" && !v.nodeAddrs[d.Src] {
		back := v.wayBack(d)
		k = detour{d.Link, back.Route, back.Type}
	}
	return k
}

// filteredOn is the finding on packets that arrive through one link and would be
// answered by another.
func (v *view) filteredOn(k detour, l *lost) finding {
	src, mode, back := l.drops[0].Src, v.Settings.ReverseFilter(k.link), v.wayBack(l.drops[0])
	f := finding{lost: l, claims: func(d *model.Drop) bool {
		// What pods send by that route may find nobody there.
		return v.detourOf(d) == k ||
			k.route != nil && (d.NeighborFailed() && v.routing().Lookup(v.arrived(d)).Route == k.route || v.errorDropped(d, l))
	}}
	f.LastHopAlive = v.place(k.link, model.Ingress)
	in := v.byName[k.link]
	f.facts = facts{
		"link": k.link, "src": src, "route": v.shown(back.Route), "mode": mode,
		"setting": path.LinkSetting(k.link, "rp_filter"), "drops": l.evidence(), "peers": sorted(l.peers),
		"doubt": in == nil || !back.Filtered(mode, in.Index) || !v.Has(model.SourceRoutes),
	}
	if len(v.pods[src]) > 0 && !v.misses(&back, src) {
		f.facts["pod"] = v.pods[src][0]
	} else {
		f.facts["detour"] = back.Type == "unicast" && back.Route != nil && v.detourOnly(back.Route)
	}
	return f
}

// detourOnly reports whether a route may be what is wrong, and can go: default routes,
// those of the uplinks' own networks, and those that lead to pods or to the next hops
// of others are needed.
func (v *view) detourOnly(r *model.Route) bool {
	if r.Dst.Bits() == 0 || r.Protocol == "kernel" && v.outer[r.IfIndex] {
		return false
	}
	for a := range v.pods {
		if r.Dst.Contains(a) && v.delivers(r, a) {
			return false
		}
	}
	return !slices.ContainsFunc(v.Routes, func(o model.Route) bool { return o.Gateway.IsValid() && r.Dst.Contains(o.Gateway) })
}
