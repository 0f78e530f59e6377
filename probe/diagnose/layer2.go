package diagnose

import (
	"net/netip"
	"slices"
	"strings"

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
	return slices.ContainsFunc(v.verdicts, func(f verdict) bool {
		return slices.Contains(codes, f.Code) && slices.Contains(f.Pods, a)
	})
}

// dropped sums the drops that match and that nothing found before explains.
// What a transport or a socket frees as it goes is none.
func (v *view) dropped(match func(*model.Drop) bool) uint64 {
	var n uint64
	for i := range v.Traffic.Drops {
		if d := &v.Traffic.Drops[i]; !d.OfSocket() && match(d) && !v.explained(d) {
			n += d.Packets
		}
	}
	return n
}

// otherHost reports whether a frame was freed because it was for another MAC;
// before Linux 5.17 the place tells it.
func otherHost(d *model.Drop) bool {
	return d.Reason == "OTHERHOST" || d.Reason == "" && (d.Location == "ip_rcv" || d.Location == "ip_rcv_core" || d.Location == "ip6_rcv_core")
}

// neighborFailed reports whether a packet was freed because its next hop's MAC
// could not be found out. Of several that wait the kernel tells one as failed
// and purges the others' queue.
func neighborFailed(d *model.Drop) bool {
	return strings.HasPrefix(string(d.Reason), "NEIGH_") || d.Location == "neigh_invalidate" ||
		d.Reason == "" && d.Location == "arp_error_report"
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
