package diagnose

import (
	"net/netip"
	"slices"

	"github.com/lasthop/lasthop/probe/model"
	"github.com/lasthop/lasthop/probe/path"
	"github.com/lasthop/lasthop/probe/words"
)

// PodDefaultRoute is the code of this finding.
const PodDefaultRoute model.Code = "PodDefaultRoute"

var podDefaultRoute = kind{
	code:     PodDefaultRoute,
	severity: model.Critical,
	find:     findPodDefaultRoute,
	ends:     []model.HopKind{model.HopPod},
}

func findPodDefaultRoute(v *view) []finding {
	var out []finding
	for _, p := range v.enterablePods() {
		for _, isIPv6 := range []bool{false, true} {
			// A pod has either a default route elsewhere or none.
			out = append(out, withoutPodDefault(v, p, isIPv6)...)
			out = append(out, defaultElsewhere(v, p, isIPv6)...)
		}
	}
	return out
}

func withoutPodDefault(v *view, p *model.Pod, isIPv6 bool) []finding {
	own := addrs(ownIn(p, isIPv6))
	if len(own) == 0 || sendsBeyond(p, isIPv6) {
		return nil
	}
	var with, without []*model.Pod
	for _, o := range v.alike(p) {
		switch {
		case len(ownIn(o, isIPv6)) == 0:
		case sendsBeyond(o, isIPv6):
			with = append(with, o)
		default:
			without = append(without, o)
		}
	}
	u := v.beyondLink(p, own)
	switch {
	case u.sends:
		// By a table that only the pod's rules lead to.
		return nil
	case len(with) == 0 && (len(without) > 0 || !u.lost()):
		// By intention: the network is isolated.
		return nil
	case len(with) <= len(without) && !u.lost():
		return nil
	}
	f := finding{facts: facts{
		"pod": p, "isIPv6": isIPv6, "with": with, "unsent": u.evidence(p), "single": u.lost() && len(with) == 0,
	}}
	f.LastHopAlive = model.Place{Link: p.Interface, Role: model.RolePod, Direction: model.Ingress}
	f.Pods, f.Packets = own, u.requests
	if len(with) > 0 {
		f.facts["usual"] = podDefault(with[0], isIPv6)
	}
	if !u.lost() {
		f.stateAlone()
	}
	v.giveDefault(&f, p, with, isIPv6)
	f.cutOff = own
	f.claims = func(d *model.Drop) bool {
		return p.Netns == d.Netns && (slices.Contains(own, d.Src) && path.PodRoute(p, d.Dst) == nil ||
			slices.Contains(own, d.Dst) && path.PodRoute(p, d.Src) == nil)
	}
	return []finding{f}
}

// defaultElsewhere is the finding on a pod whose default route is another interface's, as a
// plugin for further networks makes it, while the pods like it have it by the first one, and
// that gets no replies from beyond.
func defaultElsewhere(v *view, p *model.Pod, isIPv6 bool) []finding {
	own := addrs(ownIn(p, isIPv6))
	if len(own) == 0 || podDefault(p, isIPv6) != nil || !sendsBeyond(p, isIPv6) {
		return nil
	}
	var with []*model.Pod
	for _, o := range v.alike(p) {
		switch {
		case podDefault(o, isIPv6) != nil:
			with = append(with, o)
		case sendsBeyond(o, isIPv6):
			return nil // By intention: pods like it have that too.
		}
	}
	u, second := v.beyondLink(p, own), ""
	var defaults []interfaceRoute
	mine := map[netip.Addr]bool{}
	for o := range model.Each(v.Pods) {
		if o.Netns != p.Netns {
			continue
		}
		for _, a := range ownIn(o, isIPv6) {
			mine[a.Addr()] = true
		}
		if r := podDefault(o, isIPv6); r != nil {
			second = o.Interface
			defaults = append(defaults, interfaceRoute{r, o.Interface})
		}
	}
	x := v.sumPeers(v.inVain(mine))
	lost := func(d *model.Drop) bool {
		return (mine[d.Src] || mine[d.Dst]) && (d.NeighborFailed() || d.ReverseFiltered() || d.Netns == p.Netns && d.LookupRefused())
	}
	dropped := v.dropped(lost)
	if len(with) == 0 || u.sends || !u.lost() && x.packets+dropped < minDrops {
		return nil
	}
	f := finding{
		page: "PodDefaultRoute-elsewhere",
		facts: facts{
			"pod": p, "addr": own[0], "with": with, "usual": podDefault(with[0], isIPv6), "defaults": defaults,
			"second": second, "unsent": u.evidence(p), "packets": x.packets, "remotes": sorted(x.remotes), "dropped": dropped,
		},
		cutOff: sorted(mine), claims: lost,
	}
	f.Pods, f.Packets = f.cutOff, u.requests+x.packets+dropped
	f.LastHopAlive = model.Place{Link: p.Interface, Role: model.RolePod, Direction: model.Ingress}
	v.giveDefault(&f, p, with, isIPv6)
	return []finding{f}
}

// interfaceRoute is a route by an interface of a pod.
type interfaceRoute struct {
	*model.Route
	Interface string
}

// inVain are the pairs of which some address asked beyond the node and heard nothing.
func (v *view) inVain(from map[netip.Addr]bool) []*model.Peer {
	return chosen(v.peers, func(p *model.Peer) bool {
		return from[p.Local] && v.elsewhere(p.Remote) && v.unanswered(p)
	})
}

// giveDefault has the page give the pod the routes of those that have a default route.
func (v *view) giveDefault(f *finding, p *model.Pod, with []*model.Pod, isIPv6 bool) {
	with = slices.DeleteFunc(slices.Clone(with), func(o *model.Pod) bool { return podDefault(o, isIPv6) == nil })
	from, votes := commonest(with, func(o *model.Pod) netip.Addr { return podDefault(o, isIPv6).Gateway })
	if from != nil && (votes > 1 || len(with) == 1) {
		f.facts["routes"] = lackedRoutes(p, from, isIPv6)
	} else if gw := v.ownGateway(p, isIPv6); gw.IsValid() {
		f.facts["routes"] = []lackedRoute{{Route: &model.Route{Dst: netip.PrefixFrom(gw, 0).Masked(), Gateway: gw}}}
	} else {
		f.facts["noGateway"] = true
	}
}

// ownGateway is the pod's gateway as far as its own link shows it: the bridge's
// address in the pod's network, or the only single address that the pod routes by
// its link.
func (v *view) ownGateway(p *model.Pod, isIPv6 bool) netip.Addr {
	if b := v.bridgeOf(p); b != nil {
		for _, a := range b.Addresses {
			if a.Addr().Is6() == isIPv6 && a.Addr().IsGlobalUnicast() && slices.ContainsFunc(ownIn(p, isIPv6), func(x netip.Prefix) bool { return x.Contains(a.Addr()) }) {
				return a.Addr()
			}
		}
	}
	found := chosen(p.Routes, func(r *model.Route) bool {
		return r.Dst.IsSingleIP() && r.Dst.Addr().Is6() == isIPv6 && !r.Gateway.IsValid() && !p.Has(r.Dst.Addr())
	})
	if len(found) != 1 {
		return netip.Addr{}
	}
	return found[0].Dst.Addr()
}

// unsent is what a pod should have sent to addresses that none of its routes leads
// to.
type unsent struct {
	// requests came from there and got no reply; in came to the pod by its link
	// while nothing left it.
	requests, in, flows uint64
	remotes             map[netip.Addr]bool
	// sends: the pod sends there all the same.
	sends bool
}

func (u *unsent) lost() bool {
	return u.requests >= minDrops || u.flows >= minDrops || u.in >= minDrops
}

// beyondLink sums up a pod's traffic with addresses that its routes do not lead to.
func (v *view) beyondLink(p *model.Pod, own []netip.Addr) unsent {
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

func (u *unsent) evidence(p *model.Pod) []model.Evidence {
	return words.Say("unsent", facts{
		"link": p.Link, "from": sorted(u.remotes), "requests": u.requests, "flows": u.flows, "in": u.in,
	})
}
