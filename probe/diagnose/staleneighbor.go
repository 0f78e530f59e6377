package diagnose

import (
	"maps"
	"net/netip"
	"slices"

	"github.com/lasthop/lasthop/probe/model"
	"github.com/lasthop/lasthop/probe/path"
	"github.com/lasthop/lasthop/probe/words"
)

func findStaleNeighbor(v *view) {
	silent := map[int][]unresolved{} // by the link, where several may have one cause
	for n := range model.Each(v.Neighbors) {
		if n.Proxy || len(v.Owners[n.Addr]) == 0 {
			continue
		}
		// Only the link by which the node sends to the pod matters. Where
		// the pod is not behind that link, the route is what is wrong.
		r := v.lookup(n.Addr)
		if r == nil || r.IfIndex != n.IfIndex || r.Gateway.IsValid() {
			continue
		}
		owners := v.Behind(n.Addr, n.IfIndex)
		if len(owners) == 0 {
			continue
		}
		if path.Resolved(n) {
			misdirected(v, n)
			continue
		}
		// Without packets lost to it the entry is only a memory.
		p, drops := owners[0], v.dropped(func(d *model.Drop) bool { return d.Dst == n.Addr && d.Is(model.NeighborFailed) })
		if drops >= minDrops && v.presentWholeWindow(p) && p.Up {
			silent[n.IfIndex] = append(silent[n.IfIndex], unresolved{n, p.MAC, drops})
		}
	}
	for _, link := range slices.Sorted(maps.Keys(silent)) {
		v.report(noneOn(v.index, v.linkName(link), silent[link]))
	}
}

// misdirected reports an entry with a MAC that no owner has.
func misdirected(v *view, n *model.Neighbor) {
	p := v.MissedPod(n)
	if p == nil || !v.presentWholeWindow(p) && n.State != "PERMANENT" {
		return
	}
	sent, link := v.framesBetween(n.Addr, n.IfIndex, model.Egress, model.AsDestination, n.MAC), v.linkName(n.IfIndex)
	frames := sentToWrongMAC(binding{n.Addr, n.MAC})
	f := v.faultOfEntry(n, sent, func(d *model.Drop) bool {
		// By IPv6 these are also the answers to the pod's own requests for its gateway's MAC,
		// so that the pod has no neighbour either.
		return frames(d) || d.Src == n.Addr && d.Src.Is6() && d.Link == "" && d.Is(model.NeighborFailed)
	})
	f.Pods, f.LastHopAlive = []netip.Addr{n.Addr}, v.place(link, model.Egress)
	f.facts["link"], f.facts["pod"] = link, p
	v.report(f)
}

// unresolved is an entry without a MAC for a pod that is there.
type unresolved struct {
	*model.Neighbor
	Right model.MAC
	Drops uint64
}

// noneOn is the finding on the entries of a link that have no MAC.
func noneOn(v *index, link string, list []unresolved) finding {
	f := finding{page: "StaleNeighbor-none"}
	f.Severity, f.LastHopAlive = model.Warning, v.place(link, model.Egress)
	var shown []model.Evidence
	var families []netip.Addr
	for _, n := range list {
		f.Pods, f.Packets = append(f.Pods, n.Addr), f.Packets+n.Drops
		shown = append(shown, words.Say("unresolved", facts{"entry": n, "link": link})...)
		if len(sameFamily(families, n.Addr)) == 0 {
			families = append(families, n.Addr)
		}
	}
	f.claims = func(d *model.Drop) bool { return slices.Contains(f.Pods, d.Dst) && d.Is(model.NeighborFailed) }
	f.facts = facts{"link": link, "list": list, "families": families, "shown": shown}
	return f
}
