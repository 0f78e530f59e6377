package diagnose

import (
	"fmt"
	"slices"

	"github.com/lasthop/lasthop/probe/model"
	"github.com/lasthop/lasthop/probe/path"
	"github.com/lasthop/lasthop/probe/words"
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
	groups := map[detour]*lost{}
	for d := range model.Each(v.Traffic.Drops) {
		// A node's own address as source is refused in the same place.
		if !d.ReverseFiltered() || d.Link == "" || !v.ofPod(d) || v.nodeAddrs[d.Src] || !v.drops.Lost(d) || v.explained(d) {
			continue
		}
		way := v.wayBack(d)
		k := detour{link: d.Link, route: way.Route, kind: way.Type}
		entry(groups, k).add(v, d)
	}
	var out []finding
	for k, l := range groups {
		if l.packets >= minDrops {
			out = append(out, filteredOn(v, k, l))
		}
	}
	return out
}

// filteredOn is the finding on packets that arrive through one link and would be
// answered by another.
func filteredOn(v *view, k detour, l *lost) finding {
	mode, way := v.sysctls().ReverseFilter(k.link), v.wayBack(l.drops[0])
	f := l.finding()
	f.LastHopAlive = v.place(k.link, model.Ingress)
	f.Title = "the reverse path filter of " + k.link + " drops packets of pods"
	f.Evidence = l.evidence()
	if mode != "" {
		observe(&f, model.SourceSysctl, "rp_filter of %s is %s (the larger of its own and of all)", k.link, mode)
	}
	src := l.drops[0].Src
	elsewhere, text := "nowhere", "none"
	if way.Route != nil {
		text = v.routeText(way.Route)
		elsewhere = text
	}
	observe(&f, model.SourceRoutes, "the return path to %s: %s", src, text)
	f.Why = fmt.Sprintf("Packets from %s arrive through %s; the node's own return path is %s, so the filter takes the source for forged.", src, k.link, elsewhere)
	if in := v.byName[k.link]; in == nil || !way.Filtered(mode, in.Index) || !v.Has(model.SourceRoutes) {
		f.Confidence = model.Likely
		f.Unseen = append(f.Unseen, "the setting and the return path as they were when the packets were dropped")
		f.Alternatives = append(f.Alternatives, "the route or the setting has changed since")
	}
	switch {
	case len(v.pods[src]) > 0 && !v.misses(&way, src):
		p := v.pods[src][0]
		f.Why += fmt.Sprintf(" That way is the right one: the pod sends by another of its interfaces than %s.", p.Interface)
		f.Fix = append(f.Fix, fmt.Sprintf("%sip route show # have the routes to %s leave by %s", words.Inside(p), words.Addrs(sorted(l.peers)), p.Interface))
	case way.Type == "unicast" && way.Route != nil && v.detourOnly(way.Route):
		f.Fix = append(f.Fix, fmt.Sprintf("%s route del %s", words.IP(src), v.routeWords(way.Route)))
	}
	f.Fix = append(f.Fix, words.SetSysctl(path.LinkSetting(k.link, "rp_filter"), "2"))
	return finding{Finding: f, claims: func(d *model.Drop) bool {
		if d.ReverseFiltered() && d.Link == k.link && !v.nodeAddrs[d.Src] {
			way := v.wayBack(d)
			return way.Route == k.route && way.Type == k.kind
		}
		// What pods send by that route may find nobody there.
		return k.route != nil && (d.NeighborFailed() && v.routing().Lookup(v.arrived(d)).Route == k.route || v.errorDropped(d, l))
	}}
}

// detourOnly reports whether a route may be what is wrong, and can go: default routes,
// those of the uplinks' own networks, and those that lead to pods or to the next hops
// of others are needed.
func (v *view) detourOnly(r *model.Route) bool {
	if r.Dst.Bits() == 0 || r.Protocol == "kernel" && v.outer[r.IfIndex] {
		return false
	}
	d := path.Decision{Type: r.Type, Hops: []path.NextHop{{IfIndex: r.IfIndex}}}
	for a := range v.pods {
		if r.Dst.Contains(a) && !v.misses(&d, a) {
			return false
		}
	}
	return !slices.ContainsFunc(v.Routes, func(o model.Route) bool { return o.Gateway.IsValid() && r.Dst.Contains(o.Gateway) })
}
