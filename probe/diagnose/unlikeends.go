package diagnose

import (
	"net/netip"
	"slices"
	"strings"

	"github.com/lasthop/lasthop/probe/model"
)

// smallestMTU is what every link lets pass (RFC 8200).
const smallestMTU = 1280

// misfit is where packets are too big between two links of one network segment. No
// router is there to tell the sender.
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
func (v *view) unlikeEnds() []finding {
	type key struct {
		link   int
		inward bool
	}
	found := map[key]*misfit{}
	for d := range model.Each(v.Traffic.Drops) {
		if !d.Unspecified() || !v.ofPod(d) || v.explained(d) {
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
	var out []finding
	for _, m := range found {
		if m.packets >= minDrops {
			out = append(out, v.unlike(m))
		}
	}
	return out
}

// misfitOf says between which links a packet of that length did not fit; nil where it
// would have, or where it was dropped elsewhere.
func (v *view) misfitOf(d *model.Drop, length int) *misfit {
	across := strings.HasPrefix(d.Location, "__dev_forward_skb") || strings.HasPrefix(d.Location, "____dev_forward_skb")
	bridged := slices.Contains([]string{"br_nf_dev_queue_xmit", "br_dev_queue_push_xmit", "__br_forward", "br_forward_finish"}, d.Location)
	for p := range model.Each(v.Pods) {
		l := v.links[p.LinkIndex]
		if l == nil || l.MTU == 0 || !p.Has(d.Src) && !p.Has(d.Dst) {
			continue
		}
		switch {
		case across && p.Has(d.Src) && p.Netns == d.Netns && d.Netns != v.Node.Netns && length > l.MTU,
			bridged && d.IfIndex == l.Index && p.Has(d.Dst) && length > l.MTU:
			return &misfit{pod: p, link: l}
		case across && p.Has(d.Dst) && d.IfIndex == l.Index && (d.Netns == 0 || d.Netns == v.Node.Netns) && length > smallestMTU:
			return &misfit{pod: p, link: l, inward: true}
		}
	}
	return nil
}

// unlike is the finding on a link with two MTUs.
func (v *view) unlike(m *misfit) finding {
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
func (v *view) usualMTU(but *model.Link) int {
	counts := map[int]int{}
	add := func(ifindex int) {
		if l := v.links[ifindex]; l != nil && l != but {
			counts[l.MTU]++
		}
	}
	for p := range model.Each(v.Pods) {
		add(p.LinkIndex)
	}
	if len(counts) == 0 {
		for i := range v.outer {
			add(i)
		}
	}
	best := 0
	for mtu, n := range counts {
		if n > counts[best] || n == counts[best] && mtu > best {
			best = mtu
		}
	}
	return best
}
