package diagnose

import (
	"github.com/lasthop/lasthop/probe/model"
	"github.com/lasthop/lasthop/probe/path"
)

// StaleFDB is the code of this finding.
const StaleFDB model.Code = "StaleFDB"

var staleFDB = kind{
	code:     StaleFDB,
	severity: model.Critical,
	find:     needing(findStaleFDB, model.SourceLinks, model.SourcePods, model.SourceBridge),
	ends:     []model.HopKind{model.HopBridge, model.HopNeighbor, model.HopPod},
}

func findStaleFDB(v *view) []finding {
	var out []finding
	for e := range model.Each(v.FDB) {
		if !e.Static && !e.Local {
			continue
		}
		// The port's own address, or a pod's behind it: the MAC is there twice.
		if at := v.links[e.IfIndex]; at == nil || at.MAC == e.MAC {
			continue
		}
		var here []*model.Pod
		behind := false
		for p := range model.Each(v.Pods) {
			if b := v.bridgeOf(p); p.MAC == e.MAC && b != nil && path.AppliesTo(e, b, v.links[p.LinkIndex]) {
				here = append(here, p)
				behind = behind || p.LinkIndex == e.IfIndex && !e.Local
			}
		}
		if len(here) > 0 && !behind && v.stood(here[0]) {
			out = append(out, misforwarded(v, e, here[0]))
		}
	}
	return out
}

func misforwarded(v *view, e *model.FDBEntry, p *model.Pod) finding {
	pods, bridge := podAddrs(p), v.linkName(e.Bridge)
	f := finding{cutOff: pods, claims: func(d *model.Drop) bool {
		return fromOrTo(pods, d) && (d.NeighborFailed() || d.OtherHost() && d.DstMAC == e.MAC || d.NotBridged())
	}}
	var frames uint64
	if e.IfIndex != p.LinkIndex {
		for _, a := range pods {
			frames += v.frames(a, e.IfIndex, model.Egress, model.AsDestination, e.MAC)
		}
	}
	f.Pods, f.LastHopAlive, f.Packets = pods, v.place(bridge, model.Egress), max(frames, v.dropped(f.claims))
	f.facts = facts{
		"entry": e, "pod": p, "bridge": bridge, "at": v.linkName(e.IfIndex), "self": e.IfIndex == e.Bridge,
		"frames": frames, "waited": v.dropped(unresolvedFor(pods)),
	}
	return f
}
