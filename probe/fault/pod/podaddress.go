package pod

import (
	"cmp"
	"net/netip"
	"slices"

	"github.com/lasthop/lasthop/probe/fault"
	"github.com/lasthop/lasthop/probe/model"
	"github.com/lasthop/lasthop/probe/node"
	"github.com/lasthop/lasthop/probe/words"
)

// Address reports pods whose interface lacks the address that the cluster knows.
var Address = fault.Kind{Code: "PodAddress", Severity: model.Critical, Find: findAddress,
	Rests: fault.Sources{model.SourceTC}, Ends: fault.Hops{model.HopPod, model.HopNeighbor},
	Objects: fault.Objects{"pod.Link addr", "pod.Link"}, Else: fault.Else{"guessed"}}

func findAddress(v *fault.Input) {
	for p := range model.Each(v.Pods) {
		for _, a := range p.Duplicates {
			v.Report(duplicateDetected(v, p, a))
		}
	}
	for _, p := range enterablePods(v.Index) {
		for _, isIPv6 := range []bool{false, true} {
			if nameless := withoutAddress(v, p, isIPv6); nameless {
				break
			}
		}
	}
}

// duplicateDetected is the finding on an address that a pod's interface has and that the
// kernel does not use, since it was another machine's when it was added.
func duplicateDetected(v *fault.Input, p *model.Pod, a netip.Addr) fault.Fault {
	u := unclaimedOf(v, p, []netip.Addr{a})
	prefix := cmp.Or(model.Find(p.Addresses, func(x netip.Prefix) bool { return x.Addr() == a }), model.Host(a))
	f := fault.Fault{
		Page: "PodAddress-duplicate",
		Facts: words.Facts{
			"pod": p, "addr": a, "prefix": prefix, "unclaimed": u.evidence,
			"noPrefixRoute": !prefix.IsSingleIP() && !p.PrefixRoute(prefix),
			"others":        slices.DeleteFunc(slices.Clone(v.Owners[a]), func(o *model.Pod) bool { return o.Netns == p.Netns }),
		},
		CutOff: []netip.Addr{a},
		Claims: func(d *model.Drop) bool {
			return d.Dst == a || d.Src == a || d.Netns == p.Netns && model.IsSolicited(d.Dst)
		},
	}
	f.Pods, f.LastHopAlive, f.Packets = f.CutOff, v.Place(p.Link, model.Egress), u.packets()
	return f
}

// withoutAddress is the finding on a pod that has no address of a family. nameless: nor is it
// known which it should have.
func withoutAddress(v *fault.Input, p *model.Pod, isIPv6 bool) (nameless bool) {
	if node.FirstIn(p, isIPv6).IsValid() {
		return false
	}
	with := slices.DeleteFunc(alike(v.Index, p), func(o *model.Pod) bool { return !node.FirstIn(o, isIPv6).IsValid() })
	given := slices.DeleteFunc(slices.Clone(p.Given), func(a netip.Addr) bool {
		return a.Is6() != isIPv6 || len(v.Owners[a]) > 0 || v.Own[a] != nil
	})
	known := len(given) > 0
	if !known {
		given = soughtAfter(v.Index, p, with, isIPv6)
	}
	// An interface without an address of this family is as it should be where the
	// pod has others, unless one is looked for.
	others := slices.ContainsFunc(v.Pods, func(o model.Pod) bool { return o.Netns == p.Netns && len(o.Addresses) > 0 })
	u := unclaimedOf(v, p, given)
	if u.answers || (others || !known && len(with) == 0) && u.packets() == 0 {
		return false
	}
	f := fault.Fault{
		Facts: words.Facts{
			"pod": p, "with": with, "given": given, "isIPv6": isIPv6, "unclaimed": u.evidence,
			"guessed": !known && u.packets() > 0,
			// The kernel then refuses the address, too.
			"disabled": slices.ContainsFunc(v.Traffic.Drops, func(d model.Drop) bool { return d.Reason == "IPV6DISABLED" && d.FromOrTo(given) }),
		},
		CutOff: given,
		// Without another address, it sends with that of its link, which no router forwards.
		Claims: func(d *model.Drop) bool {
			return d.FromOrTo(given) && !d.Is(model.Netfilter) || isIPv6 && d.Src.IsLinkLocalUnicast() && d.IfIndex == p.LinkIndex
		},
	}
	f.Pods, f.LastHopAlive, f.Packets = given, v.Place(p.Link, model.Egress), u.packets()
	if u.packets() == 0 {
		f.StateAlone()
	}
	if len(with) > 0 {
		f.Facts["usual"] = node.FirstIn(with[0], isIPv6)
	}
	if from := pattern(with, isIPv6); len(given) > 0 && from != nil {
		bits := node.FirstIn(from, isIPv6).Bits()
		f.TakeAfter(p, from, isIPv6, model.Map(given, func(a netip.Addr) netip.Prefix { return netip.PrefixFrom(a, bits) })...)
	}
	v.Report(f)
	return len(given) == 0
}

// soughtAfter is the address that this pod must be missing, where nothing names it: the only one that the node
// or the pods look for in the other pods' network and that no pod has. Of several the pod's MAC may be made,
// and must be where other pods have no address either.
func soughtAfter(v *node.Index, p *model.Pod, with []*model.Pod, isIPv6 bool) []netip.Addr {
	l := v.ByIndex[p.LinkIndex]
	if len(with) == 0 {
		return nil
	}
	bare := slices.ContainsFunc(v.Pods, func(o model.Pod) bool {
		x := v.ByIndex[o.LinkIndex]
		return x != nil && x.Master == l.Master && o.Netns != p.Netns && len(o.Addresses) == 0
	})
	replied := map[netip.Addr]bool{}
	for a := range model.Each(v.Traffic.ARP) {
		replied[a.Addr] = replied[a.Addr] || a.Reply
	}
	var found []netip.Addr
	for q, t := range v.Resolutions(model.Egress) {
		a := q.Addr
		near := slices.ContainsFunc(with, func(o *model.Pod) bool {
			return slices.ContainsFunc(node.OwnIn(o, isIPv6), func(x netip.Prefix) bool { return x.Contains(a) })
		})
		if q.Ifindex == p.LinkIndex && a.Is6() == isIPv6 && near && t.Requests >= node.MinDrops && !replied[a] &&
			len(v.Owners[a]) == 0 && v.Own[a] == nil && !v.Classifier.Past[a] && !v.GatewayAddrs[a] {
			found = append(found, a)
		}
	}
	if len(found) > 1 {
		found = slices.DeleteFunc(found, func(a netip.Addr) bool { return !p.MAC.Names(a) })
	}
	return model.Either(len(found) != 1 || bare && !p.MAC.Names(found[0]), nil, found)
}

// unclaimed is what came for addresses that a pod was given and does not have.
type unclaimed struct {
	requests, frames, drops uint64
	// answers: something behind the link has the address after all.
	answers  bool
	evidence []model.Evidence
}

func (u *unclaimed) packets() uint64 {
	if u.requests < node.MinDrops && u.frames < node.MinDrops && u.drops < node.MinDrops {
		return 0
	}
	return cmp.Or(u.drops, u.frames, u.requests)
}

func unclaimedOf(v *fault.Input, p *model.Pod, given []netip.Addr) unclaimed {
	var u unclaimed
	for _, a := range given {
		if h := v.Hop(a, p.LinkIndex, model.Ingress, model.AsSource); h != nil && h.Packets > 0 && v.Lately(h.Last) {
			u.answers = true
		}
		if h := v.Hop(a, p.LinkIndex, model.Egress, model.AsDestination); h != nil {
			u.frames += h.Packets
		}
		t := v.Resolutions(model.Egress)[node.Question{Ifindex: p.LinkIndex, Addr: a}]
		u.answers = u.answers || t.Replies > 0 && t.Replies*2 >= t.Requests
		u.requests += t.Requests
		drops := v.Dropped(func(d *model.Drop) bool { return d.Dst == a && (d.Netns == p.Netns || d.Is(model.NeighborFailed)) })
		u.drops += drops
		x := words.Facts{"link": p.Link, "addr": a, "requests": t.Requests, "replies": t.Replies, "drops": drops}
		if r := v.Lookup(a); r != nil && r.IfIndex == p.LinkIndex && r.Dst.IsSingleIP() {
			x["route"] = v.RouteText(r)
		}
		u.evidence = append(u.evidence, words.Say("unclaimed", x)...)
	}
	u.evidence = append(u.evidence, words.Say("unclaimed", words.Facts{"link": p.Link, "frames": u.frames})...)
	return u
}
