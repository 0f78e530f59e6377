package diagnose

import (
	"cmp"
	"net/netip"

	"github.com/lasthop/lasthop/probe/model"
	"github.com/lasthop/lasthop/probe/path"
)

func findStaleFDB(v *view) {
	for e := range model.Each(v.FDB) {
		if !e.Static && !e.Local {
			continue
		}
		// The port's own address, or a pod's behind it: the MAC is there twice.
		if at := v.ByIndex[e.IfIndex]; at == nil || at.MAC == e.MAC {
			continue
		}
		var here []*model.Pod
		behind := false
		for p := range model.Each(v.Pods) {
			if b := v.bridgeOf(p); p.MAC == e.MAC && b != nil && path.AppliesTo(e, b, v.ByIndex[p.LinkIndex]) {
				here = append(here, p)
				behind = behind || p.LinkIndex == e.IfIndex && !e.Local
			}
		}
		if len(here) > 0 && !behind && v.presentWholeWindow(here[0]) {
			v.report(misforwarded(v, e, here[0]))
		}
	}
	v.tunnelEndsUnknown()
}

// tunnelEndsUnknown are the findings on next hops of a VXLAN whose node it does not know, since it has
// no forwarding entry for the next hop's MAC.
func (v *view) tunnelEndsUnknown() {
	for hop, l := range lostBy(v, func(d *model.Drop) (hop question, pod netip.Addr) {
		r := v.lookup(d.Dst)
		if !d.Is(model.NoTunnelEnd) || r == nil || !v.isTunnel(r.IfIndex) || !v.ofPod(d) {
			return hop, pod
		}
		return question{r.IfIndex, cmp.Or(r.Gateway, d.Dst)}, v.sender(d)
	}) {
		f := finding{page: "StaleFDB-none", lost: l, facts: facts{"hop": hop.addr, "link": v.linkName(hop.ifindex)}}
		n := model.First(v.Neighbors, func(n *model.Neighbor) bool { return n.IfIndex == hop.ifindex && n.Addr == hop.addr })
		if n != nil && path.Resolved(n) {
			f.facts["neighbor"] = n
		}
		if far := v.nodeOf(v.remote(sorted(l.peers)[0])); far != nil && len(internal(far)) > 0 {
			f.facts["node"], f.facts["at"] = far, internal(far)[0]
		}
		f.LastHopAlive = v.place(v.linkName(hop.ifindex), model.Egress)
		v.report(f)
	}
}

func misforwarded(v *view, e *model.FDBEntry, p *model.Pod) finding {
	pods, bridge := podAddrs(p), v.linkName(e.Bridge)
	f := finding{cutOff: pods, claims: func(d *model.Drop) bool {
		return d.FromOrTo(pods) && (d.Is(model.NeighborFailed|model.NotBridged) || d.Is(model.OtherHost) && d.DstMAC == e.MAC)
	}}
	var frames uint64
	if e.IfIndex != p.LinkIndex {
		for _, a := range pods {
			frames += v.framesBetween(a, e.IfIndex, model.Egress, model.AsDestination, e.MAC)
		}
	}
	f.Pods, f.LastHopAlive, f.Packets = pods, v.place(bridge, model.Egress), max(frames, v.dropped(f.claims))
	f.facts = facts{
		"entry": e, "pod": p, "bridge": bridge, "at": v.linkName(e.IfIndex), "self": e.IfIndex == e.Bridge,
		"frames": frames, "waited": v.dropped(unresolvedFor(pods)),
	}
	return f
}
