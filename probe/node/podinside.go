package node

import (
	"cmp"
	"net/netip"
	"slices"
	"time"

	"github.com/lasthop/lasthop/probe/model"
)

// InVain are the pairs of which some address asked beyond the node and heard nothing.
func (v *Index) InVain(from map[netip.Addr]bool) []*model.Peer {
	return model.Chosen(v.Peers, func(p *model.Peer) bool { return from[p.Local] && v.Elsewhere(p.Remote) && v.Unanswered(p) })
}

// Enterable reports whether a pod's own state can be judged: its namespace was
// read, its link is up, and it was there through the window.
func (v *Index) Enterable(p *model.Pod) bool {
	l := v.ByIndex[p.LinkIndex]
	return l != nil && l.Up && l.Carrier && p.Up && p.Netns != 0 && v.PresentWholeWindow(p)
}

// OwnIn are the global addresses of a pod's interface in a family.
func OwnIn(p *model.Pod, isIPv6 bool) []netip.Prefix {
	return model.Filter(p.Addresses, sameFamilyIn(isIPv6))
}

// FirstIn is the first of them; not valid without one.
func FirstIn(p *model.Pod, isIPv6 bool) netip.Prefix {
	return model.Find(p.Addresses, sameFamilyIn(isIPv6))
}

func sameFamilyIn(isIPv6 bool) func(netip.Prefix) bool {
	return func(a netip.Prefix) bool { return a.Addr().Is6() == isIPv6 && a.Addr().IsGlobalUnicast() }
}

// settledRoutes are the routes of a pod that did not come with its address, in the
// order in which they can be made: the route to a gateway before the routes by it.
func settledRoutes(p *model.Pod, isIPv6 bool) []*model.Route {
	out := model.Chosen(p.Routes, func(r *model.Route) bool {
		if !r.Dst.IsValid() || r.Dst.Addr().Is6() != isIPv6 || model.Discards(r.Type) {
			return false
		}
		toGateway := func(g model.Neighbor) bool { return r.Dst == model.Host(g.Addr) }
		return r.Protocol != "kernel" && !r.Dst.Addr().IsLinkLocalUnicast() || slices.ContainsFunc(p.Gateways, toGateway)
	})
	slices.SortStableFunc(out, func(a, b *model.Route) int { return cmp.Compare(a.Gateway.BitLen(), b.Gateway.BitLen()) })
	return out
}

// LackedRoute is a route that a pod should have as another has it. OnLink: it has none to the gateway.
type LackedRoute struct {
	*model.Route
	OnLink bool
}

// LackedRoutes are the routes of another pod that a pod lacks, once it has the prefixes of held on its link.
func LackedRoutes(p, from *model.Pod, isIPv6 bool, held ...netip.Prefix) []LackedRoute {
	var out []LackedRoute
	reached := slices.Clone(held)
	direct := model.Chosen(p.Routes, func(r *model.Route) bool { return r.Dst.IsValid() && !r.Gateway.IsValid() })
	reached = append(reached, model.Map(direct, func(r *model.Route) netip.Prefix { return r.Dst })...)
	for _, r := range settledRoutes(from, isIPv6) {
		if slices.ContainsFunc(p.Routes, func(o model.Route) bool { return o.Dst == r.Dst && o.Gateway == r.Gateway }) {
			continue
		}
		via := r.Gateway.IsValid()
		out = append(out, LackedRoute{r, via && !model.InAny(reached, r.Gateway) && !r.Gateway.IsLinkLocalUnicast()})
		if !via {
			reached = append(reached, r.Dst)
		}
	}
	return out
}

// Converse reports whether all of these pods send by their links, and get packets there.
func (v *Index) Converse(pods []netip.Addr) bool {
	passes := func(a netip.Addr, p *model.Pod, d model.Direction, side model.Side) bool {
		h := v.Hop(a, p.LinkIndex, d, side)
		return h != nil && h.Packets >= MinPackets && v.Lately(h.Last)
	}
	return len(pods) > 0 && !slices.ContainsFunc(pods, func(a netip.Addr) bool {
		return !slices.ContainsFunc(v.Owners[a], func(p *model.Pod) bool {
			return passes(a, p, model.Ingress, model.AsSource) && passes(a, p, model.Egress, model.AsDestination)
		})
	})
}

// Lately reports whether something was last seen so near to the window's end that
// it holds for the state that was read there. A time that is not known does.
func (v *Index) Lately(last time.Time) bool {
	return last.IsZero() || !model.Lasted(last, v.Window.End)
}
