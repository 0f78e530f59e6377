package diagnose

import (
	"net/netip"
	"slices"

	"github.com/lasthop/lasthop/probe/model"
)

// podAddrs are the pod's addresses.
func podAddrs(p *model.Pod) []netip.Addr { return addrs(p.Addresses) }

// addrs are addresses without their prefix lengths.
func addrs(list []netip.Prefix) []netip.Addr {
	out := make([]netip.Addr, len(list))
	for i, a := range list {
		out[i] = a.Addr()
	}
	return out
}

// fromOrTo reports whether a packet is of one of the addresses.
func fromOrTo(list []netip.Addr, d *model.Drop) bool {
	return slices.Contains(list, d.Src) || slices.Contains(list, d.Dst)
}

// sameFamily are the addresses of the family of like.
func sameFamily(list []netip.Addr, like netip.Addr) []netip.Addr {
	return slices.DeleteFunc(slices.Clone(list), func(a netip.Addr) bool { return a.Is4() != like.Is4() })
}

// stood reports whether the pod was there from the window's beginning. What is
// wrong of a younger one may be on its way to be right.
func (v *view) stood(p *model.Pod) bool { return !p.Since.After(v.Window.Start) }

// podsIn are the addresses of the running pods in any of the ranges.
func (v *view) podsIn(ranges []netip.Prefix) []netip.Addr {
	return slices.DeleteFunc(sorted(v.pods), func(a netip.Addr) bool { return !inAny(ranges, a) })
}

// vacant reports whether an address belongs to this node's pods and no pod has
// it, nor had it during the window.
func (v *view) vacant(a netip.Addr) bool {
	return inAny(v.ranges.local, a) && len(v.pods[a]) == 0 && !v.past[a] && !v.nodeAddrs[a]
}

// ownRange reports whether the address is in a range that is known to be this
// node's, and not only supposed.
func (v *view) ownRange(a netip.Addr) bool {
	for l := range model.Each(v.Links) {
		if l.Role == model.RoleBridge && slices.ContainsFunc(l.Addresses, func(p netip.Prefix) bool { return !p.IsSingleIP() && p.Contains(a) }) {
			return true
		}
	}
	for n := range model.Each(v.Cluster.Nodes) {
		if inAny(n.PodCIDRs, a) && slices.ContainsFunc(n.Addresses, func(x netip.Addr) bool { return v.nodeAddrs[x] }) {
			return true
		}
	}
	return false
}

// stateAlone weakens a finding for which nothing but state speaks; its page has the reason.
func (f *finding) stateAlone() {
	f.Confidence, f.Severity, f.facts["idle"] = model.Possible, model.Warning, true
}
