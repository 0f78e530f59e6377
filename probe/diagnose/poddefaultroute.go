package diagnose

import (
	"net/netip"
	"slices"

	"github.com/lasthop/lasthop/probe/model"
	"github.com/lasthop/lasthop/probe/path"
	"github.com/lasthop/lasthop/probe/words"
)

func findPodDefaultRoute(v *view) {
	for _, p := range v.enterablePods() {
		for _, isIPv6 := range []bool{false, true} {
			if own := model.Map(ownIn(p, isIPv6), netip.Prefix.Addr); len(own) > 0 && podDefault(p, isIPv6) == nil {
				withoutPodDefault(v, p, own, isIPv6)
			}
		}
	}
}

// withoutPodDefault reports a pod that has no default route by its interface.
func withoutPodDefault(v *view, p *model.Pod, own []netip.Addr, isIPv6 bool) {
	var with, elsewhere, without []*model.Pod
	for _, o := range v.alike(p) {
		switch {
		case podDefault(o, isIPv6) != nil:
			with = append(with, o)
		case sendsBeyond(o, isIPv6):
			elsewhere = append(elsewhere, o)
		case len(ownIn(o, isIPv6)) > 0:
			without = append(without, o)
		}
	}
	u := v.beyondLink(p, own)
	if u.sends {
		return // By a table that only the pod's rules lead to.
	}
	unsent := facts{"link": p.Link, "from": sorted(u.remotes), "requests": u.requests, "flows": u.flows, "in": u.in}
	f := finding{facts: facts{"pod": p, "isIPv6": isIPv6, "with": with, "unsent": words.Say("unsent", unsent)}, cutOff: own}
	f.Packets, f.LastHopAlive = u.requests, model.Place{Link: p.Interface, Role: model.RolePod, Direction: model.Ingress}
	if len(with) > 0 {
		f.facts["usual"] = podDefault(with[0], isIPv6)
	}
	from, votes := model.Commonest(with, func(o *model.Pod) netip.Addr { return podDefault(o, isIPv6).Gateway })
	if gw := v.bridgePrefix(p, own[0]).Addr(); votes > 1 || len(with) == 1 {
		f.facts["routes"] = lackedRoutes(p, from, isIPv6)
	} else if gw.IsValid() {
		f.facts["routes"] = []lackedRoute{{Route: &model.Route{Dst: netip.PrefixFrom(gw, 0).Masked(), Gateway: gw}}}
	} else {
		f.facts["noGateway"] = true
	}
	switch {
	case sendsBeyond(p, isIPv6):
		if len(with) == 0 || len(elsewhere) > 0 || !v.defaultElsewhere(&f, p, &u, isIPv6) {
			return // By intention, where pods like it have that too.
		}
		v.report(f)
		return
	case len(with) == 0 && len(without) > 0, len(with) <= len(without) && !u.lost():
		return // By intention: the network is isolated.
	case !u.lost():
		f.stateAlone()
	}
	f.Pods, f.facts["single"] = own, len(with) == 0
	f.claims = func(d *model.Drop) bool {
		return p.Netns == d.Netns && (slices.Contains(own, d.Src) && path.PodRoute(p, d.Dst) == nil ||
			slices.Contains(own, d.Dst) && path.PodRoute(p, d.Src) == nil)
	}
	v.report(f)
}

// defaultElsewhere makes it one on a pod whose default route is another interface's, as a
// plugin for further networks makes it, while the pods like it have it by the first one, and
// that gets no replies from beyond: it reports whether that is so.
func (v *view) defaultElsewhere(f *finding, p *model.Pod, u *unsent, isIPv6 bool) bool {
	type interfaceRoute struct {
		*model.Route
		Interface string
	}
	var defaults []interfaceRoute
	var mine addrSet
	for o := range model.Each(v.Pods) {
		if o.Netns != p.Netns {
			continue
		}
		mine.add(model.Map(ownIn(o, isIPv6), netip.Prefix.Addr)...)
		if r := podDefault(o, isIPv6); r != nil {
			f.facts["second"] = o.Interface
			defaults = append(defaults, interfaceRoute{r, o.Interface})
		}
	}
	x := v.sumPeers(v.inVain(mine))
	f.claims = func(d *model.Drop) bool {
		return (mine[d.Src] || mine[d.Dst]) &&
			(d.Is(model.NeighborFailed|model.ReverseFiltered) || d.Netns == p.Netns && d.Is(model.LookupRefused))
	}
	dropped := v.dropped(f.claims)
	f.page, f.cutOff = "PodDefaultRoute-elsewhere", sorted(mine)
	f.Pods, f.Packets = f.cutOff, f.Packets+x.packets+dropped
	f.facts["addr"], f.facts["defaults"] = firstIn(p, isIPv6).Addr(), defaults
	f.facts["packets"], f.facts["remotes"], f.facts["dropped"] = x.packets, sorted(x.peers), dropped
	return u.lost() || x.packets+dropped >= minDrops
}

// inVain are the pairs of which some address asked beyond the node and heard nothing.
func (v *index) inVain(from map[netip.Addr]bool) []*model.Peer {
	return model.Chosen(v.peers, func(p *model.Peer) bool { return from[p.Local] && v.elsewhere(p.Remote) && v.unanswered(p) })
}

// unsent is what a pod should have sent to addresses that none of its routes leads to.
type unsent struct {
	// requests came from there and got no reply; in came to the pod by its link while nothing left it.
	requests, in, flows uint64
	remotes             map[netip.Addr]bool
	// sends: the pod sends there all the same.
	sends bool
}

func (u *unsent) lost() bool {
	return u.requests >= minDrops || u.flows >= minDrops || u.in >= minDrops
}

// beyondLink sums up a pod's traffic with addresses that its routes do not lead to.
func (v *index) beyondLink(p *model.Pod, own []netip.Addr) unsent {
	u := unsent{remotes: map[netip.Addr]bool{}}
	mine := func(a netip.Addr) bool { return slices.Contains(own, a) }
	beyond := func(a netip.Addr) bool { return a.IsValid() && !mine(a) && path.PodRoute(p, a) == nil }
	for x := range model.Each(v.peers) {
		if !mine(x.Local) || !beyond(x.Remote) {
			continue
		}
		u.sends = u.sends || x.Out.Packets > 0 && v.lately(x.LastOut)
		if x.Out.Packets == 0 && x.In.Requests > 0 {
			u.requests += x.In.Requests
			u.remotes[x.Remote] = true
		}
	}
	for f := range model.Each(v.Flows) {
		// After translation the pod is the source of the replies.
		if mine(f.Reply.Src) && beyond(f.Reply.Dst) && !f.Replied && !f.Start.IsZero() {
			u.flows++
			u.remotes[f.Reply.Dst] = true
		}
	}
	for _, a := range own {
		to := v.hop(a, p.LinkIndex, model.Egress, model.AsDestination)
		from := v.hop(a, p.LinkIndex, model.Ingress, model.AsSource)
		if to != nil && (from == nil || from.Packets == 0) {
			u.in += to.Packets
		}
	}
	return u
}
