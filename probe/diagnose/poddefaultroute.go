package diagnose

import (
	"fmt"
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
	for p := range v.enterablePods() {
		for _, isIPv6 := range []bool{false, true} {
			// A pod has either a default route elsewhere or none.
			out = append(out, withoutPodDefault(v, p, isIPv6)...)
			out = append(out, defaultElsewhere(v, p, isIPv6)...)
		}
	}
	return out
}

func withoutPodDefault(v *view, p *model.Pod, isIPv6 bool) []finding {
	own := ownIn(p, isIPv6)
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
	family := "IPv4"
	if isIPv6 {
		family = "IPv6"
	}
	f := model.Finding{
		Confidence:   model.Proven,
		LastHopAlive: model.Place{Link: p.Interface, Role: model.RolePod, Direction: model.Ingress},
		Title:        words.PodName(p) + " has no default route",
		Why: fmt.Sprintf("The pod has no default route for %s: it sends nothing beyond its own link, and replies to nobody there.",
			family),
		Evidence: []model.Evidence{seen(model.SourcePods, "in the pod: no default route for %s", family)},
		Packets:  u.requests,
	}
	for _, a := range own {
		f.Pods = append(f.Pods, a.Addr())
	}
	if len(with) > 0 {
		observe(&f, model.SourcePods, "%s: one by %s", like(with), gatewayText(podDefault(with[0], isIPv6)))
	}
	f.Evidence = append(f.Evidence, u.evidence(p)...)
	if !u.lost() {
		stateAlone(&f, "a request from beyond the pod's link: what the pod itself cannot send makes no packet",
			"the pod is to have none")
	} else if len(with) == 0 {
		f.Confidence = model.Likely
		f.Alternatives = []string{"the pod is to have none: there is no other to compare it with"}
	}
	f.Fix = defaultFix(v, p, with, isIPv6)
	return []finding{{Finding: f, cutOff: f.Pods, claims: func(d *model.Drop) bool {
		return p.Netns == d.Netns && (slices.Contains(f.Pods, d.Src) && path.PodRoute(p, d.Dst) == nil ||
			slices.Contains(f.Pods, d.Dst) && path.PodRoute(p, d.Src) == nil)
	}}}
}

// defaultElsewhere is the finding on a pod whose default route is another interface's, as a
// plugin for further networks makes it, while the pods like it have it by the first one, and
// that gets no replies from beyond.
func defaultElsewhere(v *view, p *model.Pod, isIPv6 bool) []finding {
	own := ownIn(p, isIPv6)
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
	f := model.Finding{Confidence: model.Likely, Packets: u.requests}
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
			observe(&f, model.SourcePods, "in the pod: default by %s dev %s", gatewayText(r), o.Interface)
		}
	}
	f.Pods = sorted(mine)
	x := v.sumPeers(v.inVain(mine))
	lost := func(d *model.Drop) bool {
		return (mine[d.Src] || mine[d.Dst]) && (d.NeighborFailed() || d.ReverseFiltered() || d.Netns == p.Netns && d.LookupRefused())
	}
	dropped := v.dropped(lost)
	if len(with) == 0 || u.sends || !u.lost() && x.packets+dropped < minDrops {
		return nil
	}
	f.Packets += x.packets + dropped
	f.LastHopAlive = model.Place{Link: p.Interface, Role: model.RolePod, Direction: model.Ingress}
	f.Title = fmt.Sprintf("the default route of %s is not by %s", words.PodName(p), p.Interface)
	f.Why = fmt.Sprintf("%s sends what is for others beyond its links by another of its interfaces than %s, and gets no replies. "+
		"The pods like it send by %s.", words.PodName(p), p.Interface, p.Interface)
	observe(&f, model.SourcePods, "%s: default by %s dev %s", like(with), gatewayText(podDefault(with[0], isIPv6)), p.Interface)
	f.Evidence = append(f.Evidence, u.evidence(p)...)
	observeSome(&f, x.packets, model.SourceTC, "%s of the pod to %s; no reply",
		words.Count(x.packets, "packet"), words.Addrs(sorted(x.remotes)))
	observeSome(&f, dropped, model.SourceDrops, "%s from or to the pod dropped on the way by that interface",
		words.Count(dropped, "packet"))
	f.Alternatives = []string{"the pod is to send by the other network, and that is broken"}
	del := words.Inside(p) + words.IP(own[0].Addr()) + " route del default"
	if second != "" {
		del += " dev " + words.Quote(second)
	}
	f.Fix = append([]string{del}, defaultFix(v, p, with, isIPv6)...)
	f.Fix = append(f.Fix, "take the gateway from the configuration of the further network, or the default-route from the pod's annotation")
	return []finding{{Finding: f, cutOff: f.Pods, claims: lost}}
}

// inVain are the pairs of which some address asked beyond the node and heard nothing.
func (v *view) inVain(from map[netip.Addr]bool) []*model.Peer {
	var out []*model.Peer
	for p := range model.Each(v.peers) {
		if from[p.Local] && v.elsewhere(p.Remote) && v.unanswered(p) {
			out = append(out, p)
		}
	}
	return out
}

func gatewayText(r *model.Route) string {
	switch {
	case r == nil:
		return "another interface"
	case !r.Gateway.IsValid():
		return "its link"
	}
	return r.Gateway.String()
}

// defaultFix gives the pod the routes of those that have a default route.
func defaultFix(v *view, p *model.Pod, with []*model.Pod, isIPv6 bool) []string {
	with = slices.DeleteFunc(slices.Clone(with), func(o *model.Pod) bool { return podDefault(o, isIPv6) == nil })
	from, votes := typicalPod(with, func(o *model.Pod) netip.Addr { return podDefault(o, isIPv6).Gateway })
	if from != nil && (votes > 1 || len(with) == 1) {
		return copyRoutes(p, from, isIPv6)
	}
	if gw := v.ownGateway(p, isIPv6); gw.IsValid() {
		return []string{addRoute(p, &model.Route{Dst: netip.PrefixFrom(gw, 0).Masked(), Gateway: gw})}
	}
	return []string{"find the gateway of the pod's network, in its plugin's configuration, then: " +
		fmt.Sprintf("%sip route add default via GATEWAY dev %s", words.Inside(p), words.Quote(p.Interface))}
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
	var found []netip.Addr
	for r := range model.Each(p.Routes) {
		if r.Dst.IsValid() && r.Dst.IsSingleIP() && r.Dst.Addr().Is6() == isIPv6 && !r.Gateway.IsValid() && !p.Has(r.Dst.Addr()) {
			found = append(found, r.Dst.Addr())
		}
	}
	if len(found) == 1 {
		return found[0]
	}
	return netip.Addr{}
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
func (v *view) beyondLink(p *model.Pod, own []netip.Prefix) unsent {
	u := unsent{remotes: map[netip.Addr]bool{}}
	mine := func(a netip.Addr) bool {
		return slices.ContainsFunc(own, func(x netip.Prefix) bool { return x.Addr() == a })
	}
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
		to := v.hop(a.Addr(), p.LinkIndex, model.Egress, model.AsDestination)
		from := v.hop(a.Addr(), p.LinkIndex, model.Ingress, model.AsSource)
		if to != nil && (from == nil || from.Packets == 0) {
			u.in += to.Packets
		}
	}
	return u
}

func (u *unsent) evidence(p *model.Pod) []model.Evidence {
	var out []model.Evidence
	from := words.Addrs(sorted(u.remotes))
	if u.requests > 0 {
		out = append(out, seen(model.SourceTC, "%s from %s, where no route of the pod leads: no packet back", words.Count(u.requests, "request"), from))
	}
	if u.flows > 0 {
		out = append(out, seen(model.SourceConntrack, "%s to the pod from %s UNREPLIED", words.Count(u.flows, "flow"), from))
	}
	if u.in > 0 {
		out = append(out, seen(model.SourceTC, "%s egress: %s for the pod; ingress: none from it", p.Link, words.Count(u.in, "packet")))
	}
	return out
}
