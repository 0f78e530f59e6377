package diagnose

import (
	"cmp"
	"maps"
	"net/netip"
	"slices"

	"github.com/lasthop/lasthop/probe/model"
)

func findPathMTU(v *view) {
	groups := map[int]*lost{}
	for _, l := range lostBy(v, func(d *model.Drop) (_ pair, pod netip.Addr) {
		if d.Is(model.TooBig) {
			pod = v.pod(d)
		}
		return pair{d.Src, d.Dst}, pod
	}) {
		// A sender learns the size within a moment, unless the errors that tell it are dropped.
		if !l.lasted() && v.errorsAbout(l).packets < minDrops {
			continue
		}
		for _, d := range l.drops {
			model.GetOrInsert(groups, nextLink(v.index, d)).add(v.index, d)
		}
	}
	v.unlikeEnds()
	for next, l := range groups {
		v.report(narrow(v.index, next, l))
	}
}

// nextLink is the index of the link by which a dropped packet would have left, 0 where that is not known.
func nextLink(v *index, d *model.Drop) int {
	if to := v.Routing().Lookup(v.arrived(d)); len(to.Hops) > 0 && to.Type == "unicast" {
		return to.Hops[0].IfIndex
	}
	return 0
}

// narrow is the finding on packets that are too big for a link, and on the errors that a rule
// of the node drops, where that is why the senders do not learn the size.
func narrow(v *index, next int, l *lost) finding {
	most := mostDropped(l.drops)[0]
	f := finding{lost: l, facts: facts{"drops": l.evidence(), "pod": v.pod(most)}}
	f.LastHopAlive = v.place(most.Link, model.Ingress)
	in, out := v.byName[most.Link], v.ByIndex[next]
	if out != nil && in != nil && in.MTU != 0 && out.MTU != 0 && out.MTU < in.MTU {
		f.facts["in"], f.facts["out"] = in, out
	}
	if errors := v.errorsAbout(l); errors.packets >= minDrops {
		f.facts["errors"] = errors.evidence()
	}
	// Those by which other senders learn the size have the same cause.
	f.claims = func(d *model.Drop) bool { return d.Is(model.TooBig) && nextLink(v, d) == next || v.errorDropped(d, l) }
	return f
}

// errorsAbout are the errors about lost packets that a rule of the node drops.
func (v *index) errorsAbout(l *lost) (errors lost) {
	for d := range model.Each(v.Traffic.Drops) {
		if v.errorDropped(d, l) {
			errors.add(v, d)
		}
	}
	return errors
}

// smallestMTU is what every link lets pass (RFC 8200).
const smallestMTU = 1280

// misfit is where packets are too big between two links of one network segment. No router is there to tell the sender.
type misfit struct {
	lost
	pod *model.Pod
	// link is the node's end of the pod's link; inward: the pod's own end is the
	// smaller one, or refuses for a reason that is not seen.
	link   *model.Link
	inward bool
	length int
}

// unlikeEnds finds the pods whose link has two MTUs, or one that differs from its
// bridge's, while packets are lost for it.
func (v *view) unlikeEnds() {
	type key struct {
		link   int
		inward bool
	}
	found := map[key]*misfit{}
	for d := range model.Each(v.Traffic.Drops) {
		if !d.Is(model.Unspecified) || !v.ofPod(d) || v.explained(d) {
			continue
		}
		s := v.drops.Samples.Of(d)
		if s == nil {
			continue
		}
		if m := v.misfitOf(d, s.Length); m != nil {
			k := key{m.link.Index, m.inward}
			if found[k] == nil {
				found[k] = m
			}
			found[k].length = max(found[k].length, s.Length)
			for _, a := range []netip.Addr{d.Src, d.Dst} {
				if m.pod.Has(a) {
					found[k].addFor(a, d)
					break
				}
			}
		}
	}
	for _, m := range found {
		if m.packets >= minDrops {
			v.report(v.unlike(m))
		}
	}
}

// misfitOf says between which links a packet of that length did not fit; nil where it
// would have, or where it was dropped elsewhere.
func (v *index) misfitOf(d *model.Drop, length int) *misfit {
	across, bridged := d.Is(model.Across), d.Is(model.ToPort)
	for p := range model.Each(v.Pods) {
		l := v.ByIndex[p.LinkIndex]
		if l == nil || l.MTU == 0 || !p.Has(d.Src) && !p.Has(d.Dst) {
			continue
		}
		switch {
		case across && p.Has(d.Src) && p.Netns == d.Netns && d.Netns != v.Node.Netns && length > l.MTU,
			bridged && d.IfIndex == l.Index && p.Has(d.Dst) && length > l.MTU:
			return &misfit{pod: p, link: l}
		case across && p.Has(d.Dst) && d.IfIndex == l.Index && (d.Netns == 0 || d.Netns == v.Node.Netns) &&
			length > smallestMTU:
			return &misfit{pod: p, link: l, inward: true}
		}
	}
	return nil
}

// unlike is the finding on a link with two MTUs.
func (v *index) unlike(m *misfit) finding {
	f := finding{page: "PathMTU-unlike", lost: &m.lost, facts: facts{
		"pod": m.pod, "link": m.link, "inward": m.inward, "length": m.length, "drops": m.evidence(),
	}}
	f.LastHopAlive = model.Place{Link: m.pod.Interface, Role: model.RolePod, Direction: model.Egress}
	if m.inward {
		f.LastHopAlive, f.Confidence = v.place(m.link.Name, model.Egress), model.Likely
	} else if usual := v.usualMTU(m.link); m.link.MTU < usual {
		f.facts["usual"] = usual
	}
	return f
}

// usualMTU is what most pods' links have, or the uplinks where there is no other pod.
func (v *index) usualMTU(but *model.Link) int {
	counts := map[int]int{}
	add := func(ifindex int) {
		if l := v.ByIndex[ifindex]; l != nil && l != but {
			counts[l.MTU]++
		}
	}
	for p := range model.Each(v.Pods) {
		add(p.LinkIndex)
	}
	if len(counts) == 0 {
		for i := range v.Outer {
			add(i)
		}
	}
	return slices.MaxFunc(append(slices.Collect(maps.Keys(counts)), 0),
		func(a, b int) int { return cmp.Or(counts[a]-counts[b], a-b) })
}
