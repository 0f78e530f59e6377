package link

import (
	"cmp"
	"net/netip"
	"slices"

	"github.com/lasthop/lasthop/probe/fault"
	"github.com/lasthop/lasthop/probe/model"
	"github.com/lasthop/lasthop/probe/node"
	"github.com/lasthop/lasthop/probe/path"
	"github.com/lasthop/lasthop/probe/words"
)

// PathMTU reports packets that are too large for a link on their way.
var PathMTU = fault.Kind{Code: "PathMTU", Severity: model.Warning, Find: pathMTU,
	Ends: fault.Hops{model.HopRoute, model.HopLink, model.HopPod, model.HopBridge}, Else: fault.Else{"PathMTU !out", "PathMTU-joined"}}

func pathMTU(v *fault.Input) {
	groups := map[int]*node.Lost{}
	for _, l := range fault.LostBy(v, func(d *model.Drop) (_ node.Pair, pod netip.Addr) {
		if tooBig(v.Index, d) {
			pod = v.Pod(d)
		}
		return node.Pair{Local: d.Src, Remote: d.Dst}, pod
	}) {
		// A sender learns the size within a moment, unless the errors that tell it are dropped.
		if !l.Lasted() && errorsAbout(v.Index, l).Packets < node.MinDrops {
			continue
		}
		for _, d := range l.Drops {
			model.GetOrInsert(groups, nextLink(v.Index, d)).Add(v.Index, d)
		}
	}
	unlikeEnds(v)
	for next, l := range groups {
		v.Report(narrow(v.Index, next, l))
	}
}

// tooBig reports whether the next link's MTU is smaller than a dropped packet. A bridge drops what is too large for its port that
// leads out, and tells nobody.
func tooBig(v *node.Index, d *model.Drop) bool {
	if l := v.ByIndex[d.IfIndex]; l != nil && d.Is(model.ToPort) && v.Outer[l.Index] {
		if s := v.Classifier.Samples.Of(d); s != nil && l.MTU != 0 && s.Length > l.MTU {
			return true
		}
	}
	return d.Is(model.TooBig)
}

// nextLink is the index of the link by which a dropped packet would have left, 0 where that is not known.
func nextLink(v *node.Index, d *model.Drop) int {
	if d.Is(model.ToPort) {
		return d.IfIndex
	}
	if to := v.Routing().Lookup(v.Arrived(d)); len(to.Hops) > 0 && to.Type == "unicast" {
		return to.Hops[0].IfIndex
	}
	return 0
}

// narrow is the finding on packets that are too big for a link, and on the errors that a rule
// of the node drops, where that is why the senders do not learn the size.
func narrow(v *node.Index, next int, l *node.Lost) fault.Fault {
	most := node.MostDropped(l.Drops)[0]
	f := fault.Fault{Lost: l, Facts: words.Facts{"drops": l.Evidence(), "pod": v.Pod(most)}}
	in, out := v.LinkByName[most.Link], v.ByIndex[next]
	if from := v.Owners[most.Src]; most.Is(model.ToPort) && len(from) > 0 && out != nil {
		in = v.ByIndex[from[0].LinkIndex]
		f.Facts["bridged"], f.Facts["mss"] = true, out.MTU-headers(most.Src)
	}
	if in != nil {
		f.LastHopAlive = v.Place(in.Name, model.Ingress)
	}
	if out != nil && in != nil && in.MTU != 0 && out.MTU != 0 && out.MTU < in.MTU {
		f.Facts["in"], f.Facts["out"] = in, out
	}
	if errors := errorsAbout(v, l); errors.Packets >= node.MinDrops {
		f.Facts["errors"], f.Facts["taker"] = errors.Evidence(), taker(v, &errors)
	}
	// Those by which other senders learn the size have the same cause.
	f.Claims = func(d *model.Drop) bool { return tooBig(v, d) && nextLink(v, d) == next || v.ErrorDropped(d, l) }
	return f
}

// headers are the bytes of an IP and a TCP header without options.
func headers(a netip.Addr) int { return model.Either(a.Is6(), 40, 20) + 20 }

// taker is the rule that drops the errors, where by matches and counts only one may; nil otherwise.
func taker(v *node.Index, errors *node.Lost) *model.PacketRule {
	d := errors.Drops[0]
	x, other := path.Packet{Src: d.Src, Dst: d.Dst, Proto: d.Proto, SrcLocal: true}, model.Either(d.Dst.Is4(), "ip6", "ip")
	may := model.Chosen(v.PacketRules, func(r *model.PacketRule) bool {
		drops := r.Target == "DROP" || r.Target == "REJECT"
		return drops && r.Family != other && r.Counter.Delta >= errors.Packets && x.Fits(r) >= path.Maybe
	})
	if len(may) != 1 {
		return nil
	}
	return may[0]
}

// errorsAbout are the errors about lost packets that a rule of the node drops.
func errorsAbout(v *node.Index, l *node.Lost) (errors node.Lost) {
	for d := range model.Each(v.Traffic.Drops) {
		if v.ErrorDropped(d, l) {
			errors.Add(v, d)
		}
	}
	return errors
}

// smallestMTU is what every link lets pass (RFC 8200).
const smallestMTU = 1280

// misfit is where packets are too big between two links of one network segment. No router is there to tell the sender.
type misfit struct {
	node.Lost
	pod *model.Pod
	// link is the node's end of the pod's link; inward: the pod's own end is the
	// smaller one, or refuses for a reason that is not seen.
	link   *model.Link
	inward bool
	length int
}

// unlikeEnds finds the pods whose link has two MTUs, or one that differs from its
// bridge's, while packets are lost for it.
func unlikeEnds(v *fault.Input) {
	type key struct {
		link   int
		inward bool
	}
	found := map[key]*misfit{}
	for d := range model.Each(v.Traffic.Drops) {
		if !d.Is(model.Unspecified) || !v.OfPod(d) || v.Explained(d) {
			continue
		}
		s := v.Classifier.Samples.Of(d)
		if s == nil {
			continue
		}
		if m := misfitOf(v.Index, d, s.Length); m != nil {
			k := key{m.link.Index, m.inward}
			if found[k] == nil {
				found[k] = m
			}
			found[k].length = max(found[k].length, s.Length)
			found[k].AddFor(model.Either(m.pod.Has(d.Src), d.Src, d.Dst), d)
		}
	}
	for _, m := range found {
		if m.Packets >= node.MinDrops {
			v.Report(unlike(v.Index, m))
		}
	}
}

// misfitOf says between which links a packet of that length did not fit; nil where it
// would have, or where it was dropped elsewhere.
func misfitOf(v *node.Index, d *model.Drop, length int) *misfit {
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
			length > cmp.Or(p.MTU, smallestMTU):
			return &misfit{pod: p, link: l, inward: true}
		}
	}
	return nil
}

// unlike is the finding on a link with two MTUs.
func unlike(v *node.Index, m *misfit) fault.Fault {
	f := fault.Fault{Page: "PathMTU-unlike", Lost: &m.Lost, Facts: words.Facts{
		"pod": m.pod, "link": m.link, "inward": m.inward, "length": m.length, "drops": m.Evidence(),
	}}
	f.LastHopAlive = model.Place{Link: m.pod.Interface, Role: model.RolePod, Direction: model.Egress}
	if m.inward {
		f.LastHopAlive, f.Confidence = v.Place(m.link.Name, model.Egress), model.Either(m.pod.MTU == 0, model.Likely, model.Proven)
	} else if usual := usualMTU(v, m.link); m.link.MTU < usual {
		f.Facts["usual"] = usual
	}
	return f
}

// usualMTU is what most pods' links have, or the uplinks where there is no other pod; 0 where neither is known.
func usualMTU(v *node.Index, but *model.Link) int {
	others := func(l *model.Link) bool { return l != nil && l != but }
	links := model.Filter(model.Map(v.Pods, func(p model.Pod) *model.Link { return v.ByIndex[p.LinkIndex] }), others)
	if len(links) == 0 {
		links = model.Chosen(v.Links, func(l *model.Link) bool { return v.Outer[l.Index] && l != but })
	}
	mtus := slices.Sorted(slices.Values(model.Map(links, func(l *model.Link) int { return -l.MTU })))
	most, _ := model.Commonest(mtus, func(n int) int { return n })
	return -most
}
