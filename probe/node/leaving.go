package node

import (
	"net/netip"
	"slices"

	"github.com/lasthop/lasthop/probe/model"
	"github.com/lasthop/lasthop/probe/path"
)

// Amiss is what does not fit of packets as they leave by an uplink, though no table of the node refuses them.
type Amiss struct {
	// Source is an address of the uplink Of, and of no other link.
	Source netip.Addr
	Of     string
	// Mute is one of several addresses of a link, to which nobody replies, while replies come to Heard. Sole: one destination was
	// asked from it, which may be the one that does not reply, or no other is heard.
	Mute  netip.Addr
	Heard []netip.Addr
	Sole  bool
	// Self is a next hop that is the node itself.
	Self netip.Addr
	// Defaults are default routes of one metric by several links, of which the first is used.
	Defaults []*model.Route
	// Lowers are rules that set the TTL of the packets, which leave with one that the next router does not forward.
	Lowers []*model.PacketRule
}

// Is reports whether anything does not fit.
func (a *Amiss) Is() bool {
	return a.Source.IsValid() || a.Mute.IsValid() && !a.Sole || a.Self.IsValid() || a.Defaults != nil || a.Lowers != nil
}

// Amiss looks at what leaves by a link with these sources for some addresses that do not reply to a pod.
func (v *Index) Amiss(ifindex int, pod netip.Addr, locals AddrSet, remotes []netip.Addr) (out Amiss) {
	x := path.Packet{Src: pod, Dst: remotes[0]}
	lowers := model.Chosen(v.PacketRules, func(r *model.PacketRule) bool {
		return r.SetsTTL() && !r.Counter.Unused(r.Native) && x.Fits(r) >= path.Maybe
	})
	if len(lowers) > 0 && slices.ContainsFunc(Sorted(locals), func(a netip.Addr) bool {
		h := v.Hop(a, ifindex, model.Egress, model.AsSource)
		return h != nil && h.TTLs&0b11 != 0
	}) {
		out.Lowers = lowers
	}
	answered, here := AddrSet{}, AddrSet{} // by any link, and by this one
	for p := range model.Each(v.Peers) {
		if v.Answered(p) {
			answered.Add(p.Local)
			here[p.Local] = here[p.Local] || p.IfIndex == ifindex
		}
	}
	for _, a := range Sorted(locals) {
		l := v.Own[a]
		switch {
		case l == nil || here[a]:
		case !v.OnSameLink(ifindex, l.Index) && !v.OnSameLink(l.Index, ifindex):
			out.Source, out.Of = a, l.Name
		case !answered[a]:
			others := model.Filter(l.Addresses, func(p netip.Prefix) bool {
				return p.Addr() != a && p.Addr().Is4() == a.Is4() && p.Addr().IsGlobalUnicast()
			})
			for _, own := range others {
				if out.Mute = a; answered[own.Addr()] {
					out.Heard = model.With(out.Heard, own.Addr())
				}
			}
			out.Sole = len(remotes) == 1 || len(out.Heard) == 0
		}
	}
	for _, a := range remotes[:1] {
		d := v.Routing().Lookup(v.SentBy(Sorted(locals)[0], a))
		for _, h := range d.Hops {
			if v.Own[h.Gateway] != nil {
				out.Self = h.Gateway
			}
		}
		if d.Route == nil || d.Route.Dst.Bits() > 0 {
			break
		}
		out.Defaults = model.Chosen(v.Routes, func(r *model.Route) bool {
			return r.Dst == d.Route.Dst && r.Table == d.Table && r.Priority == d.Route.Priority && r.Type == d.Route.Type
		})
		if !slices.ContainsFunc(out.Defaults, func(r *model.Route) bool { return r.IfIndex != d.Route.IfIndex }) {
			out.Defaults = nil
		}
	}
	return out
}
