package pod

import (
	"net/netip"
	"slices"

	"github.com/lasthop/lasthop/probe/fault"
	"github.com/lasthop/lasthop/probe/model"
	"github.com/lasthop/lasthop/probe/node"
	"github.com/lasthop/lasthop/probe/path"
	"github.com/lasthop/lasthop/probe/words"
)

// DefaultRoute reports pods without a default route, or with a wrong one.
var DefaultRoute = fault.Kind{Code: "PodDefaultRoute", Severity: model.Critical, Find: defaultRoute,
	Rests: fault.Sources{model.SourceLinks}, Ends: fault.Hops{model.HopPod},
	Objects: fault.Objects{"pod.Link isIPv6", "pod.Link"}, Else: fault.Else{"PodDefaultRoute-elsewhere", "single"}}

func defaultRoute(v *fault.Input) {
	for _, p := range enterablePods(v.Index) {
		for _, isIPv6 := range []bool{false, true} {
			if own := model.Map(node.OwnIn(p, isIPv6), netip.Prefix.Addr); len(own) > 0 && podDefault(p, isIPv6) == nil {
				withoutPodDefault(v, p, own, isIPv6)
			}
		}
	}
}

// withoutPodDefault reports a pod that has no default route by its interface.
func withoutPodDefault(v *fault.Input, p *model.Pod, own []netip.Addr, isIPv6 bool) {
	var with, elsewhere, without []*model.Pod
	for _, o := range alike(v.Index, p) {
		switch {
		case podDefault(o, isIPv6) != nil:
			with = append(with, o)
		case sendsBeyond(o, isIPv6):
			elsewhere = append(elsewhere, o)
		case len(node.OwnIn(o, isIPv6)) > 0:
			without = append(without, o)
		}
	}
	u := beyondLink(v.Index, p, own)
	if u.sends {
		return // By a table that only the pod's rules lead to.
	}
	unsent := words.Facts{"link": p.Link, "from": node.Sorted(u.remotes), "requests": u.requests, "flows": u.flows, "in": u.in}
	f := fault.Fault{Facts: words.Facts{"pod": p, "isIPv6": isIPv6, "with": with, "unsent": words.Say("unsent", unsent)}, CutOff: own}
	f.Packets, f.LastHopAlive = u.requests, model.Place{Link: p.Interface, Role: model.RolePod, Direction: model.Ingress}
	if len(with) > 0 {
		f.Facts["usual"] = podDefault(with[0], isIPv6)
	}
	from, votes := model.Commonest(with, func(o *model.Pod) netip.Addr { return podDefault(o, isIPv6).Gateway })
	if gw := bridgePrefix(v.Index, p, own[0]).Addr(); votes > 1 || len(with) == 1 {
		f.Facts["routes"] = node.LackedRoutes(p, from, isIPv6)
	} else if gw.IsValid() {
		f.Facts["routes"] = []node.LackedRoute{{Route: &model.Route{Dst: netip.PrefixFrom(gw, 0).Masked(), Gateway: gw}}}
	} else {
		f.Facts["noGateway"] = true
	}
	switch {
	case sendsBeyond(p, isIPv6):
		if len(with) == 0 || len(elsewhere) > 0 || !defaultElsewhere(v, &f, p, &u, isIPv6) {
			return // By intention, where pods like it have that too.
		}
		v.Report(f)
		return
	case len(with) == 0 && len(without) > 0, len(with) <= len(without) && !u.lost():
		return // By intention: the network is isolated.
	case !u.lost():
		f.StateAlone()
	}
	f.Pods, f.Facts["single"] = own, len(with) == 0
	f.Claims = func(d *model.Drop) bool {
		return p.Netns == d.Netns && (slices.Contains(own, d.Src) && path.PodRoute(p, d.Dst) == nil ||
			slices.Contains(own, d.Dst) && path.PodRoute(p, d.Src) == nil)
	}
	v.Report(f)
}

// defaultElsewhere makes it one on a pod whose default route is another interface's, as a
// plugin for further networks makes it, while the pods like it have it by the first one, and
// that gets no replies from beyond: it reports whether that is so.
func defaultElsewhere(v *fault.Input, f *fault.Fault, p *model.Pod, u *unsent, isIPv6 bool) bool {
	type interfaceRoute struct {
		*model.Route
		Interface string
	}
	var defaults []interfaceRoute
	var mine node.AddrSet
	for o := range model.Each(v.Pods) {
		if o.Netns != p.Netns {
			continue
		}
		mine.Add(model.Map(node.OwnIn(o, isIPv6), netip.Prefix.Addr)...)
		if r := podDefault(o, isIPv6); r != nil {
			f.Facts["second"], defaults = o.Interface, append(defaults, interfaceRoute{r, o.Interface})
		}
	}
	x := v.SumPeers(v.InVain(mine))
	f.Claims = func(d *model.Drop) bool {
		return (mine[d.Src] || mine[d.Dst]) &&
			(d.Is(model.NeighborFailed|model.ReverseFiltered) || d.Netns == p.Netns && d.Is(model.LookupRefused))
	}
	dropped := v.Dropped(f.Claims)
	f.Page, f.CutOff = "PodDefaultRoute-elsewhere", node.Sorted(mine)
	f.Pods, f.Packets = f.CutOff, f.Packets+x.Packets+dropped
	f.Facts["addr"], f.Facts["defaults"] = node.FirstIn(p, isIPv6).Addr(), defaults
	f.Facts["packets"], f.Facts["remotes"], f.Facts["dropped"] = x.Packets, node.Sorted(x.Peers), dropped
	return u.lost() || x.Packets+dropped >= node.MinDrops
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
	return u.requests >= node.MinDrops || u.flows >= node.MinDrops || u.in >= node.MinDrops
}

// beyondLink sums up a pod's traffic with addresses that its routes do not lead to.
func beyondLink(v *node.Index, p *model.Pod, own []netip.Addr) unsent {
	u := unsent{remotes: map[netip.Addr]bool{}}
	mine := func(a netip.Addr) bool { return slices.Contains(own, a) }
	beyond := func(a netip.Addr) bool { return a.IsValid() && !mine(a) && path.PodRoute(p, a) == nil }
	for x := range model.Each(v.Peers) {
		if !mine(x.Local) || !beyond(x.Remote) {
			continue
		}
		u.sends = u.sends || x.Out.Packets > 0 && v.Lately(x.LastOut)
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
		to := v.Hop(a, p.LinkIndex, model.Egress, model.AsDestination)
		if from := v.Hop(a, p.LinkIndex, model.Ingress, model.AsSource); to != nil && (from == nil || from.Packets == 0) {
			u.in += to.Packets
		}
	}
	return u
}
