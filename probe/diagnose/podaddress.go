package diagnose

import (
	"cmp"
	"net/netip"
	"slices"

	"github.com/lasthop/lasthop/probe/model"
	"github.com/lasthop/lasthop/probe/words"
)

func findPodAddress(v *view) {
	for p := range model.Each(v.Pods) {
		for _, a := range p.Duplicates {
			v.report(v.duplicateDetected(p, a))
		}
	}
	for _, p := range v.enterablePods() {
		for _, isIPv6 := range []bool{false, true} {
			if nameless := withoutAddress(v, p, isIPv6); nameless {
				break
			}
		}
	}
}

// duplicateDetected is the finding on an address that a pod's interface has and that the
// kernel does not use, since it was another machine's when it was added.
func (v *view) duplicateDetected(p *model.Pod, a netip.Addr) finding {
	u := v.unclaimedOf(p, []netip.Addr{a})
	prefix := cmp.Or(model.Find(p.Addresses, func(x netip.Prefix) bool { return x.Addr() == a }), model.Host(a))
	f := finding{
		page: "PodAddress-duplicate",
		facts: facts{
			"pod": p, "addr": a, "prefix": prefix, "unclaimed": u.evidence,
			"noPrefixRoute": !prefix.IsSingleIP() && !prefixRoute(p, prefix),
			"others":        slices.DeleteFunc(slices.Clone(v.Owners[a]), func(o *model.Pod) bool { return o.Netns == p.Netns }),
		},
		cutOff: []netip.Addr{a},
		claims: func(d *model.Drop) bool {
			return d.Dst == a || d.Src == a || d.Netns == p.Netns && solicited.Contains(d.Dst)
		},
	}
	f.Pods, f.LastHopAlive, f.Packets = f.cutOff, v.place(p.Link, model.Egress), u.packets()
	return f
}

// solicited are the groups that neighbour solicitations go to. A pod has joined those of its own addresses alone.
var solicited = netip.MustParsePrefix("ff02::1:ff00:0/104")

// withoutAddress is the finding on a pod that has no address of a family. nameless: nor is it
// known which it should have.
func withoutAddress(v *view, p *model.Pod, isIPv6 bool) (nameless bool) {
	if firstIn(p, isIPv6).IsValid() {
		return false
	}
	with := slices.DeleteFunc(v.alike(p), func(o *model.Pod) bool { return !firstIn(o, isIPv6).IsValid() })
	given := slices.DeleteFunc(slices.Clone(p.Given), func(a netip.Addr) bool {
		return a.Is6() != isIPv6 || len(v.Owners[a]) > 0 || v.nodeAddrs[a]
	})
	known := len(given) > 0
	if !known {
		given = v.soughtAfter(p, with, isIPv6)
	}
	// An interface without an address of this family is as it should be where the
	// pod has others, unless one is looked for.
	others := slices.ContainsFunc(v.Pods, func(o model.Pod) bool { return o.Netns == p.Netns && len(o.Addresses) > 0 })
	u := v.unclaimedOf(p, given)
	if u.answers || (others || !known && len(with) == 0) && u.packets() == 0 {
		return false
	}
	f := finding{
		facts: facts{
			"pod": p, "with": with, "given": given, "isIPv6": isIPv6, "unclaimed": u.evidence,
			"guessed": !known && u.packets() > 0,
		},
		cutOff: given,
		claims: func(d *model.Drop) bool { return d.FromOrTo(given) },
	}
	f.Pods, f.LastHopAlive, f.Packets = given, v.place(p.Link, model.Egress), u.packets()
	if u.packets() == 0 {
		f.stateAlone()
	}
	if len(with) > 0 {
		f.facts["usual"] = firstIn(with[0], isIPv6)
	}
	if from := pattern(with, isIPv6); len(given) > 0 && from != nil {
		bits := firstIn(from, isIPv6).Bits()
		want := model.Map(given, func(a netip.Addr) netip.Prefix { return netip.PrefixFrom(a, bits) })
		f.takeAfter(p, from, isIPv6, want...)
	}
	v.report(f)
	return len(given) == 0
}

// prefixRoute reports whether a pod's address came with a route to its network on the link.
func prefixRoute(p *model.Pod, a netip.Prefix) bool {
	return slices.ContainsFunc(p.Routes, func(r model.Route) bool { return r.Dst == a.Masked() && !r.Gateway.IsValid() })
}

// soughtAfter is the address that this pod must be missing, where nothing names it: the only one that the node
// or the pods look for in the other pods' network and that no pod has. Of several the pod's MAC may be made,
// and must be where other pods have no address either.
func (v *index) soughtAfter(p *model.Pod, with []*model.Pod, isIPv6 bool) []netip.Addr {
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
	for q, t := range v.resolutions(model.Egress) {
		a := q.addr
		near := slices.ContainsFunc(with, func(o *model.Pod) bool {
			return slices.ContainsFunc(ownIn(o, isIPv6), func(x netip.Prefix) bool { return x.Contains(a) })
		})
		if q.ifindex == p.LinkIndex && a.Is6() == isIPv6 && near && t.requests >= minDrops && !replied[a] &&
			len(v.Owners[a]) == 0 && !v.nodeAddrs[a] && !v.past[a] && !v.GatewayAddrs[a] {
			found = append(found, a)
		}
	}
	if len(found) > 1 {
		found = slices.DeleteFunc(found, func(a netip.Addr) bool { return !p.MAC.Names(a) })
	}
	if len(found) != 1 || bare && !p.MAC.Names(found[0]) {
		return nil
	}
	return found
}

// unclaimed is what came for addresses that a pod was given and does not have.
type unclaimed struct {
	requests, frames, drops uint64
	// answers: something behind the link has the address after all.
	answers  bool
	evidence []model.Evidence
}

func (u *unclaimed) packets() uint64 {
	if u.requests < minDrops && u.frames < minDrops && u.drops < minDrops {
		return 0
	}
	return cmp.Or(u.drops, u.frames, u.requests)
}

func (v *view) unclaimedOf(p *model.Pod, given []netip.Addr) unclaimed {
	var u unclaimed
	for _, a := range given {
		if h := v.hop(a, p.LinkIndex, model.Ingress, model.AsSource); h != nil && h.Packets > 0 && v.lately(h.Last) {
			u.answers = true
		}
		if h := v.hop(a, p.LinkIndex, model.Egress, model.AsDestination); h != nil {
			u.frames += h.Packets
		}
		t := v.resolutions(model.Egress)[question{p.LinkIndex, a}]
		u.answers = u.answers || t.replies > 0 && t.replies*2 >= t.requests
		u.requests += t.requests
		drops := v.dropped(func(d *model.Drop) bool { return d.Dst == a && (d.Netns == p.Netns || d.Is(model.NeighborFailed)) })
		u.drops += drops
		x := facts{"link": p.Link, "addr": a, "requests": t.requests, "replies": t.replies, "drops": drops}
		if r := v.lookup(a); r != nil && r.IfIndex == p.LinkIndex && r.Dst.IsSingleIP() {
			x["route"] = v.routeText(r)
		}
		u.evidence = append(u.evidence, words.Say("unclaimed", x)...)
	}
	u.evidence = append(u.evidence, words.Say("unclaimed", facts{"link": p.Link, "frames": u.frames})...)
	return u
}
