package diagnose

import (
	"net/netip"
	"slices"

	"github.com/lasthop/lasthop/probe/model"
	"github.com/lasthop/lasthop/probe/path"
)

// bridgeOf is the bridge that a pod's link is a port of; nil when the pod is
// routed, or its link's master is no bridge.
func (v *view) bridgeOf(p *model.Pod) *model.Link {
	l := v.links[p.LinkIndex]
	if l == nil || l.Master == 0 {
		return nil
	}
	if m := v.links[l.Master]; m != nil && m.Kind == "bridge" {
		return m
	}
	return nil
}

// routed reports whether the node reaches the pod by a link of its own.
func (v *view) routed(p *model.Pod) bool {
	l := v.links[p.LinkIndex]
	return l != nil && l.Master == 0
}

// stood reports whether the pod was there from the window's beginning. What is
// wrong of a younger one may be on its way to be right.
func (v *view) stood(p *model.Pod) bool { return !p.Since.After(v.Window.Start) }

// podAddrs are the pod's addresses.
func podAddrs(p *model.Pod) []netip.Addr {
	out := make([]netip.Addr, len(p.Addresses))
	for i, a := range p.Addresses {
		out[i] = a.Addr()
	}
	return out
}

// blamed reports whether a finding of one of the codes names the address.
func (v *view) blamed(a netip.Addr, codes ...model.Code) bool {
	return slices.ContainsFunc(v.prior, func(f finding) bool {
		return slices.Contains(codes, f.Code) && slices.Contains(f.Pods, a)
	})
}

// resolved reports whether a neighbour entry holds a MAC that is used.
func resolved(n *model.Neighbor) bool {
	switch n.State {
	case "FAILED", "INCOMPLETE", "NONE":
		return false
	}
	return !n.MAC.IsZero() && !n.Proxy
}

// lookup is the route that the node takes to an address; nil when it has none.
func (v *view) lookup(a netip.Addr) *model.Route {
	return v.routing().Lookup(path.Query{Dst: a}).Route
}
