package diagnose

import (
	"net/netip"
	"slices"
	"strings"

	"github.com/lasthop/lasthop/probe/model"
	"github.com/lasthop/lasthop/probe/words"
)

// place is a link with its role.
func (v *view) place(link string, d model.Direction) model.Place {
	p := model.Place{Link: link, Direction: d}
	if l := v.byName[link]; l != nil {
		p.Role = l.Role
	}
	return p
}

func (v *view) linkName(ifindex int) string {
	if l := v.links[ifindex]; l != nil {
		return l.Name
	}
	return v.uplink()
}

// uplink is the name that stands for the uplinks in a sentence.
func (v *view) uplink() string {
	if len(v.Node.Uplinks) == 0 {
		return "the uplink"
	}
	return strings.Join(v.Node.Uplinks, ", ")
}

// isUplink reports whether packets leave the node through the link.
func (v *view) isUplink(ifindex int) bool {
	l := v.links[ifindex]
	return l != nil && l.Role == model.RoleUplink
}

// anUplink is the first of the uplinks, 0 where none is known.
func (v *view) anUplink() int {
	if len(v.uplinks) == 0 {
		return 0
	}
	return v.uplinks[0].Index
}

// leadsOff reports whether frames leave the node by the link: an uplink, or the
// bridge or bond that holds one.
func (v *view) leadsOff(l *model.Link) bool {
	return l.Role == model.RoleUplink || slices.ContainsFunc(v.uplinks, func(x *model.Link) bool { return x.Master == l.Index })
}

// bridgeOf is the bridge that a pod's link is a port of; nil when the pod is
// routed, or its link's master is no bridge.
func (v *view) bridgeOf(p *model.Pod) *model.Link { return v.Bridge(v.links[p.LinkIndex]) }

// routed reports whether the node reaches the pod by a link of its own.
func (v *view) routed(p *model.Pod) bool {
	l := v.links[p.LinkIndex]
	return l != nil && l.Master == 0
}

// router is the node's link by which the packets of a pod arrive that has the
// node for its gateway; nil for one that has not.
func (v *view) router(p *model.Pod) *model.Link {
	l := v.links[p.LinkIndex]
	if l == nil || len(p.Gateways) == 0 {
		return nil
	}
	if l.Master == 0 {
		return l
	}
	if slices.ContainsFunc(p.Gateways, func(n model.Neighbor) bool { return v.nodeAddrs[n.Addr] }) {
		return v.links[l.Master]
	}
	return nil
}

// natLink is the link that POSTROUTING names for packets that leave through an
// uplink: the bridge, where the uplink is a port of one.
func (v *view) natLink(ifindex int) string {
	l := v.links[ifindex]
	if l == nil {
		return ""
	}
	if m := v.links[l.Master]; m != nil {
		return m.Name
	}
	return l.Name
}

// outLink is the link that POSTROUTING names for packets to an address.
func (v *view) outLink(dst netip.Addr) string {
	if pods := v.pods[dst]; len(pods) > 0 {
		names := v.withMaster(pods[0].Link)
		return names[len(names)-1]
	}
	return v.natLink(v.anUplink())
}

// addrOn is the link's own address that goes with a neighbour on it. A next hop
// of IPv6 mostly has a link-local address, which nobody answers to from afar.
func (v *view) addrOn(l *model.Link, neighbor netip.Addr) netip.Addr {
	for _, a := range l.Addresses {
		if a.Contains(neighbor) && (a.Addr().Is4() || !a.Addr().IsLinkLocalUnicast()) {
			return a.Addr()
		}
	}
	for _, a := range l.Addresses {
		if a.Addr().Is4() == neighbor.Is4() && a.Addr().IsGlobalUnicast() {
			return a.Addr()
		}
	}
	return netip.Addr{}
}

// holds reports whether the link itself has the address.
func (v *view) holds(link string, a netip.Addr) bool {
	l := v.byName[link]
	return l != nil && l.Has(a)
}

// hop is the count of an address at a link, nil where there is none.
func (v *view) hop(a netip.Addr, ifindex int, dir model.Direction, side model.Side) *model.HopCount {
	for _, h := range v.hops[a] {
		if h.IfIndex == ifindex && h.Direction == dir && h.Side == side {
			return h
		}
	}
	return nil
}

// dead says why a link carries nothing; empty where it should.
func dead(l *model.Link) string {
	switch {
	case !l.Up:
		return "is down"
	case !l.Carrier:
		return "has no carrier"
	}
	return ""
}

// raise is what to do about a dead link first.
func raise(l *model.Link) string {
	if !l.Up {
		return "ip link set dev " + words.Quote(l.Name) + " up"
	}
	return "see what " + l.Name + " is connected to: ip -d link show dev " + words.Quote(l.Name)
}
