package path

import (
	"maps"
	"slices"
	"strings"

	"github.com/lasthop/lasthop/probe/model"
	"github.com/lasthop/lasthop/probe/words"
)

// hasCilium reports whether a program of Cilium's is at a hook of a link of the node's.
func (t *tracer) hasCilium(l *model.Link, d model.Direction) bool {
	return slices.ContainsFunc(t.Programs, func(p model.Program) bool {
		return p.IfIndex == l.Index && p.Netns == t.Node.Netns && p.Direction == d && p.Owner() == model.OwnerCilium
	})
}

// byCilium follows a packet that Cilium's program takes at a link, in place of the node's
// tables: where these lead to its own link, it hands packets to the pods that it knows, and
// sends others off the node by a tunnel. It reports whether it does.
func (j *journey) byCilium(in *model.Link) bool {
	if !j.hasCilium(in, model.Ingress) {
		return false
	}
	d := j.Routing().Lookup(Query{Src: j.src, Dst: j.dst, In: in.Name})
	if len(d.Hops) != 1 || j.ByIndex[d.Hops[0].IfIndex] == nil || j.ByIndex[d.Hops[0].IfIndex].Role != model.RoleRouter {
		return false
	}
	s := j.steps[len(j.steps)-1]
	if l := j.delivers(); l != nil {
		s.say("cilium-delivers", words.Facts{"link": l.Name})
		j.srcMAC, j.dstMAC = model.MAC{}, model.MAC{}
		j.toPort(l)
		return true
	}
	if j.pods[j.dst] != nil || len(j.Cilium.Local) == 0 {
		return false
	}
	s.say("cilium-sends", nil)
	j.add(model.PathHop{Kind: model.HopBeyond}).say("not-visible", words.Facts{"tunnel": true})
	j.over = true
	return true
}

// delivers is the link that Cilium's programs hand packets for the destination to, nil where
// they know of none.
func (j *journey) delivers() *model.Link {
	for _, x := range j.Cilium.Local {
		if x.Prefix.Addr() == j.dst {
			return j.ByIndex[x.IfIndex]
		}
	}
	return nil
}

// unserved reports whether Cilium's programs have the destination as a service without a
// backend: what asks it is refused where it connects.
func (j *journey) unserved() bool {
	return slices.ContainsFunc(j.Cilium.Services, func(x model.CiliumService) bool {
		return x.Addr.Addr() == j.dst && (j.dstPort == x.Addr.Port() || j.dstPort == 0) &&
			(x.Proto == 0 || j.ends.Proto == 0 || x.Proto == j.ends.Proto)
	})
}

// noteCilium says at a link with Cilium's program whose endpoint is behind it, and why the
// program dropped such packets.
func (j *journey) noteCilium(s *step) {
	l := model.First(j.Links, func(l *model.Link) bool { return l.Name == s.Link })
	if s.Kind != model.HopLink || l == nil || !j.hasCilium(l, s.direction) {
		return
	}
	if e := model.First(j.Cilium.Endpoints, func(e *model.CiliumEndpoint) bool { return e.IfIndex == l.Index }); e != nil {
		at := slices.IndexFunc(s.says, func(x said) bool { return strings.HasPrefix(x.name, "cilium-") })
		if at < 0 {
			at = len(s.says)
		}
		s.says = slices.Insert(s.says, at, said{"cilium", words.Facts{"endpoint": e}})
	}
	reason := map[model.Direction]model.Reason{model.Ingress: "TC_INGRESS", model.Egress: "TC_EGRESS"}[s.direction]
	dropped := map[model.CiliumReason]uint64{}
	for d := range model.Each(j.Traffic.Drops) {
		if d.Cilium.Reason != 0 && d.Reason == reason && d.IfIndex == l.Index && d.Netns == j.Node.Netns &&
			d.Src == s.src && d.Dst == s.dst {
			dropped[d.Cilium.Reason] += d.Packets
		}
	}
	for _, r := range slices.Sorted(maps.Keys(dropped)) {
		s.say("cilium-dropped", words.Facts{"packets": dropped[r], "reason": r})
	}
}
