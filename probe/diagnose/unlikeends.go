package diagnose

import (
	"fmt"
	"net/netip"
	"slices"
	"strings"

	"github.com/lasthop/lasthop/probe/model"
	"github.com/lasthop/lasthop/probe/words"
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
		s := v.samples.Of(d)
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
	slices.SortFunc(out, func(a, b finding) int { return strings.Compare(a.Title, b.Title) })
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
	f, p, l := m.finding(), m.pod, m.link
	f.Evidence = m.evidence()
	observe(&f, model.SourceDrops, "a packet of %d bytes was among them", m.length)
	observe(&f, model.SourceLinks, "%s has MTU %d", l.Name, l.MTU)
	f.Why = fmt.Sprintf("The kernel dropped %s at the link of %s, which do not fit it. No router is there, so no ICMP error tells the sender.",
		words.Count(f.Packets, "packet"), words.PodName(p))
	usual := v.usualMTU(l)
	f.LastHopAlive = model.Place{Link: p.Interface, Role: model.RolePod, Direction: model.Egress}
	inPod := func(mtu int) string {
		return fmt.Sprintf("%sip link set dev %s mtu %d", words.Inside(p), words.Quote(p.Interface), mtu)
	}
	switch {
	case m.inward:
		f.LastHopAlive = v.place(l.Name, model.Egress)
		f.Confidence = model.Likely
		f.Title = fmt.Sprintf("%s has a smaller MTU than %s (%d)", words.PodName(p), l.Name, l.MTU)
		f.Unseen = []string{"the MTU of " + p.Interface + " in the pod"}
		f.Fix = []string{inPod(l.MTU)}
	case l.MTU < usual:
		f.Title = fmt.Sprintf("packets of %s are too big for %s (MTU %d)", words.PodName(p), l.Name, l.MTU)
		observe(&f, model.SourceLinks, "the links of other pods, or the uplink, have MTU %d", usual)
		f.Fix = []string{fmt.Sprintf("ip link set dev %s mtu %d", words.Quote(l.Name), usual)}
	default:
		f.Title = fmt.Sprintf("%s has a larger MTU than %s (%d)", words.PodName(p), l.Name, l.MTU)
		f.Fix = []string{inPod(l.MTU)}
	}
	return finding{Finding: f, claims: sameDrops(m.drops)}
}

// usualMTU is what most pods' links have, or the uplinks where there is no other pod.
func (v *view) usualMTU(but *model.Link) int {
	counts := map[int]int{}
	for p := range model.Each(v.Pods) {
		if l := v.links[p.LinkIndex]; l != nil && l != but {
			counts[l.MTU]++
		}
	}
	if len(counts) == 0 {
		for i := range v.outer {
			if l := v.links[i]; l != nil {
				counts[l.MTU]++
			}
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
