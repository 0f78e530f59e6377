package diagnose

import (
	"fmt"
	"slices"

	"github.com/lasthop/lasthop/probe/model"
	"github.com/lasthop/lasthop/probe/path"
	"github.com/lasthop/lasthop/probe/words"
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
	pods, at, bridge := podAddrs(p), v.linkName(e.IfIndex), v.linkName(e.Bridge)
	lost := func(d *model.Drop) bool {
		mine := slices.Contains(pods, d.Src) || slices.Contains(pods, d.Dst)
		return mine && (d.NeighborFailed() || d.OtherHost() && d.DstMAC == e.MAC || d.NotBridged())
	}
	f := model.Finding{
		Confidence:   model.Proven,
		Pods:         pods,
		LastHopAlive: v.place(bridge, model.Egress),
		Title:        fmt.Sprintf("%s forwards the MAC of %s to %s", bridge, words.Addrs(pods), at),
		Why: fmt.Sprintf("The forwarding database of %s leads %s, the MAC of %s, to %s; the pod is behind %s, and a static entry does not follow it.",
			bridge, e.MAC, words.PodName(p), at, p.Link),
		Fix:     []string{deleteFDB(v, e)},
		Packets: v.dropped(lost),
	}
	kind := "static"
	if e.Local {
		kind = "permanent"
		f.Title = fmt.Sprintf("%s gives frames for %s to the node", bridge, words.Addrs(pods))
		f.Why = fmt.Sprintf("The forwarding database of %s has %s, the MAC of %s, for an address of the node's own: frames for it end at the node, and not at %s.",
			bridge, e.MAC, words.PodName(p), p.Link)
	}
	observe(&f, model.SourceBridge, "%s dev %s master %s %s", e.MAC, at, bridge, kind)
	observe(&f, model.SourcePods, "%s is the MAC of %s in the pod, whose link is %s", e.MAC, p.Interface, p.Link)
	var frames uint64
	for _, a := range pods {
		frames += v.frames(a, e.IfIndex, model.Egress, model.AsDestination, e.MAC)
	}
	if frames > 0 && e.IfIndex != p.LinkIndex {
		observe(&f, model.SourceTC, "%s egress: %s for the pod", at, words.Count(frames, "frame"))
		f.Packets = max(f.Packets, frames)
	}
	if f.Packets > 0 {
		n := v.dropped(unresolvedFor(pods))
		observeSome(&f, n, model.SourceDrops, "%s from or to the pod dropped: neighbour resolution failed",
			words.Count(n, "packet"))
	} else {
		f.Unseen = append(f.Unseen, "a frame for the pod that went there")
	}
	return finding{Finding: f, cutOff: pods, claims: lost}
}

// deleteFDB is the command that deletes a forwarding entry.
func deleteFDB(v *view, e *model.FDBEntry) string {
	where := "master"
	if e.IfIndex == e.Bridge {
		where = "self"
	}
	vlan := ""
	if e.VLAN != 0 {
		vlan = fmt.Sprintf(" vlan %d", e.VLAN)
	}
	return fmt.Sprintf("bridge fdb del %s dev %s %s%s", e.MAC, words.Quote(v.linkName(e.IfIndex)), where, vlan)
}
