package diagnose

import (
	"cmp"
	"net/netip"
	"slices"
	"time"

	"github.com/lasthop/lasthop/probe/model"
)

// What is wrong inside a pod's namespace is judged by comparison with the pods
// that hang on the node as it does: no address plan is supposed.

// enterable reports whether a pod's own state can be judged: its namespace was
// read, its link is up, and it was there through the window.
func (v *index) enterable(p *model.Pod) bool {
	l := v.ByIndex[p.LinkIndex]
	return l != nil && l.Up && l.Carrier && p.Up && p.Netns != 0 && v.presentWholeWindow(p)
}

// enterablePods are the pods whose own state can be judged; none where pods could not be read.
func (v *index) enterablePods() []*model.Pod {
	if v.Status(model.SourcePods) == model.Missing {
		return nil
	}
	return model.Chosen(v.Pods, v.enterable)
}

// alike are the other pods that hang on the node as a pod does: on the same bridge,
// or each on a link of its own. Interfaces that plugins for further networks make
// have other names than the first one, and are compared among themselves.
func (v *index) alike(p *model.Pod) []*model.Pod {
	l := v.ByIndex[p.LinkIndex]
	return model.Chosen(v.Pods, func(o *model.Pod) bool {
		x := v.ByIndex[o.LinkIndex]
		return x != nil && l != nil && o.Netns != p.Netns && x.Master == l.Master && o.Interface == p.Interface &&
			v.enterable(o)
	})
}

// ownIn are the global addresses of a pod's interface in a family.
func ownIn(p *model.Pod, isIPv6 bool) []netip.Prefix {
	return model.Filter(p.Addresses, sameFamilyIn(isIPv6))
}

// firstIn is the first of them; not valid without one.
func firstIn(p *model.Pod, isIPv6 bool) netip.Prefix {
	return model.Find(p.Addresses, sameFamilyIn(isIPv6))
}

func sameFamilyIn(isIPv6 bool) func(netip.Prefix) bool {
	return func(a netip.Prefix) bool { return a.Addr().Is6() == isIPv6 && a.Addr().IsGlobalUnicast() }
}

func podDefault(p *model.Pod, isIPv6 bool) *model.Route {
	return model.First(p.Routes, func(r *model.Route) bool { return model.RoutesAll(r.Dst, isIPv6) })
}

func sendsBeyond(p *model.Pod, isIPv6 bool) bool {
	return podDefault(p, isIPv6) != nil ||
		slices.ContainsFunc(p.Elsewhere, func(x netip.Prefix) bool { return model.RoutesAll(x, isIPv6) })
}

// settledRoutes are the routes of a pod that did not come with its address, in the
// order in which they can be made: the route to a gateway before the routes by it.
func settledRoutes(p *model.Pod, isIPv6 bool) []*model.Route {
	out := model.Chosen(p.Routes, func(r *model.Route) bool {
		if !r.Dst.IsValid() || r.Dst.Addr().Is6() != isIPv6 {
			return false
		}
		toGateway := func(g model.Neighbor) bool { return r.Dst == model.Host(g.Addr) }
		return r.Protocol != "kernel" && !r.Dst.Addr().IsLinkLocalUnicast() || slices.ContainsFunc(p.Gateways, toGateway)
	})
	slices.SortStableFunc(out, func(a, b *model.Route) int { return cmp.Compare(a.Gateway.BitLen(), b.Gateway.BitLen()) })
	return out
}

// lackedRoute is a route that a pod should have as another has it. OnLink: it has none to the gateway.
type lackedRoute struct {
	*model.Route
	OnLink bool
}

// lackedRoutes are the routes of another pod that a pod lacks, once it has the prefixes of held on its link.
func lackedRoutes(p, from *model.Pod, isIPv6 bool, held ...netip.Prefix) []lackedRoute {
	var out []lackedRoute
	reached := slices.Clone(held)
	for r := range model.Each(p.Routes) {
		if r.Dst.IsValid() && !r.Gateway.IsValid() {
			reached = append(reached, r.Dst)
		}
	}
	for _, r := range settledRoutes(from, isIPv6) {
		if slices.ContainsFunc(p.Routes, func(o model.Route) bool { return o.Dst == r.Dst && o.Gateway == r.Gateway }) {
			continue
		}
		via := r.Gateway.IsValid()
		out = append(out, lackedRoute{r, via && !model.InAny(reached, r.Gateway) && !r.Gateway.IsLinkLocalUnicast()})
		if !via {
			reached = append(reached, r.Dst)
		}
	}
	return out
}

// takeAfter has the page give a pod addresses, with the routes that another pod has.
func (f *finding) takeAfter(p, from *model.Pod, isIPv6 bool, addrs ...netip.Prefix) {
	var held []netip.Prefix
	usual := firstIn(from, isIPv6)
	if prefixRoute(from, usual) {
		held = model.Map(addrs, netip.Prefix.Masked)
	}
	f.facts["noPrefixRoute"] = held == nil && !usual.IsSingleIP()
	f.facts["addrs"], f.facts["routes"] = addrs, lackedRoutes(p, from, isIPv6, held...)
}

// lately reports whether something was last seen so near to the window's end that
// it holds for the state that was read there. A time that is not known does.
func (v *index) lately(last time.Time) bool {
	return last.IsZero() || !model.Lasted(last, v.Window.End)
}

// pattern is the pod of a list that another is to be like: one that shares prefix length and gateway with most,
// among those that have a default route where any has one.
func pattern(list []*model.Pod, isIPv6 bool) *model.Pod {
	type shape struct {
		bits    int
		gateway netip.Addr
	}
	routed := slices.DeleteFunc(slices.Clone(list), func(p *model.Pod) bool { return podDefault(p, isIPv6) == nil })
	if len(routed) > 0 {
		list = routed
	}
	from, _ := model.Commonest(list, func(p *model.Pod) shape {
		s := shape{bits: firstIn(p, isIPv6).Bits()}
		if r := podDefault(p, isIPv6); r != nil {
			s.gateway = r.Gateway
		}
		return s
	})
	return from
}
