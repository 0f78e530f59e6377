package neighbor

import (
	"maps"
	"net/netip"
	"slices"

	"github.com/lasthop/lasthop/probe/fault"
	"github.com/lasthop/lasthop/probe/model"
	"github.com/lasthop/lasthop/probe/node"
	"github.com/lasthop/lasthop/probe/path"
	"github.com/lasthop/lasthop/probe/words"
)

// StaleNeighbor reports neighbor entries of pods with a MAC that is not the pod's.
func StaleNeighbor(v *fault.Input) {
	silent := map[int][]unresolved{} // by the link, where several may have one cause
	for n := range model.Each(v.Neighbors) {
		if n.Proxy || len(v.Owners[n.Addr]) == 0 {
			continue
		}
		// Only the link by which the node sends to the pod matters. Where
		// the pod is not behind that link, the route is what is wrong.
		r := v.Lookup(n.Addr)
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
		p, drops := owners[0], v.Dropped(func(d *model.Drop) bool { return d.Dst == n.Addr && d.Is(model.NeighborFailed) })
		if drops >= node.MinDrops && v.PresentWholeWindow(p) && p.Up {
			silent[n.IfIndex] = append(silent[n.IfIndex], unresolved{n, p.MAC, drops})
		}
	}
	for _, link := range slices.Sorted(maps.Keys(silent)) {
		v.Report(noneOn(v.Index, v.LinkName(link), silent[link]))
	}
}

// misdirected reports an entry with a MAC that no owner has.
func misdirected(v *fault.Input, n *model.Neighbor) {
	p := v.MissedPod(n)
	if p == nil || !v.PresentWholeWindow(p) && n.State != "PERMANENT" {
		return
	}
	sent, link := v.FramesBetween(n.Addr, n.IfIndex, model.Egress, model.AsDestination, n.MAC), v.LinkName(n.IfIndex)
	frames := node.SentToWrongMAC(node.Binding{Addr: n.Addr, MAC: n.MAC})
	f := faultOfEntry(v, n, sent, func(d *model.Drop) bool {
		// By IPv6 these are also the answers to the pod's own requests for its gateway's MAC,
		// so that the pod has no neighbour either.
		return frames(d) || d.Src == n.Addr && d.Src.Is6() && d.Link == "" && d.Is(model.NeighborFailed)
	})
	f.Pods, f.LastHopAlive = []netip.Addr{n.Addr}, v.Place(link, model.Egress)
	f.Facts["link"], f.Facts["pod"] = link, p
	v.Report(f)
}

// unresolved is an entry without a MAC for a pod that is there.
type unresolved struct {
	*model.Neighbor
	Right model.MAC
	Drops uint64
}

// noneOn is the finding on the entries of a link that have no MAC.
func noneOn(v *node.Index, link string, list []unresolved) fault.Fault {
	f := fault.Fault{Page: "StaleNeighbor-none"}
	f.Severity, f.LastHopAlive = model.Warning, v.Place(link, model.Egress)
	var shown []model.Evidence
	var families []netip.Addr
	for _, n := range list {
		f.Pods, f.Packets = append(f.Pods, n.Addr), f.Packets+n.Drops
		shown = append(shown, words.Say("unresolved", words.Facts{"entry": n, "link": link})...)
		if len(node.SameFamily(families, n.Addr)) == 0 {
			families = append(families, n.Addr)
		}
	}
	f.Claims = func(d *model.Drop) bool { return slices.Contains(f.Pods, d.Dst) && d.Is(model.NeighborFailed) }
	f.Facts = words.Facts{"link": link, "list": list, "families": families, "shown": shown}
	return f
}
