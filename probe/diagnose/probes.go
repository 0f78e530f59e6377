package diagnose

import (
	"cmp"
	"net/netip"
	"slices"

	"github.com/lasthop/lasthop/probe/fault"
	"github.com/lasthop/lasthop/probe/fault/bridge"
	"github.com/lasthop/lasthop/probe/fault/neighbor"
	"github.com/lasthop/lasthop/probe/fault/silence"
	"github.com/lasthop/lasthop/probe/model"
	"github.com/lasthop/lasthop/probe/node"
	"github.com/lasthop/lasthop/probe/path"
)

// addrOn is the link's own address that goes with a neighbour on it. A next hop
// of IPv6 mostly has a link-local address, which nobody answers to from afar.
func addrOn(l *model.Link, neighbor netip.Addr) netip.Addr {
	return cmp.Or(model.Find(l.Addresses, func(a netip.Prefix) bool {
		return a.Contains(neighbor) && (a.Addr().Is4() || !a.Addr().IsLinkLocalUnicast())
	}), model.Find(l.Addresses, func(a netip.Prefix) bool {
		return a.Addr().Is4() == neighbor.Is4() && a.Addr().IsGlobalUnicast()
	})).Addr()
}

// The bounds of a plan: of all, and of each kind of subject.
const (
	mostProbes  = 16
	mostRanges  = 3
	mostTargets = 2
	mostSilent  = 2
)

// Probes plans the few questions, ICMP echo and ARP requests, whose answers tell apart what the snapshot alone
// does not: at most 16, from addresses of the node's own. It sends nothing.
//
// An echo from the node's address to the first address of another node's pod range is answered only if the
// network has a route to that range: the answer to the node's address needs none. One from an address of the
// node's own pod range to another node is answered only if the network has the route back.
func Probes(s *model.Snapshot) []model.Probe {
	p := &plan{v: newInput(s)}
	p.found = judge(p.v)
	p.ranges()
	p.silent()
	p.absent()
	return p.out
}

type plan struct {
	v     *fault.Input
	found []model.Finding
	out   []model.Probe
}

// ranges asks for the routes between this node and the other nodes' pods.
func (p *plan) ranges() {
	all := p.v.FabricRanges()
	if len(all) == 0 || node.Overlay(p.v.Node.Plugin) {
		return
	}
	silent, others := model.Split(all, func(r *node.RemoteRange) bool { return len(r.Silent) > 0 && !r.Answers })
	// One that answers shows what an answer is worth here.
	ranges := slices.Concat(silent[:min(len(silent), mostRanges)], others[:min(len(others), 1)])
	for _, r := range ranges {
		if first := r.CIDR.Addr().Next(); r.CIDR.Contains(first) {
			p.echo(netip.Addr{}, first)
		}
	}
	for _, six := range []bool{false, true} {
		own := ownRangeAddr(p.v.Index, six)
		for _, t := range otherNodes(p.v.Index, ranges, six) {
			p.echo(netip.Addr{}, t)
			if own.IsValid() {
				p.echo(own, t)
			}
		}
	}
	for _, r := range ranges {
		if len(r.Silent) > 0 {
			p.pod(r.Silent[0].Remote)
		}
	}
}

// silent asks the destinations that never answered the pods.
func (p *plan) silent() {
	asked := 0
	for f := range model.Each(p.found) {
		for _, peer := range f.Peers {
			if f.Code == silence.NoReply.Code && peer.IsSingleIP() && asked < mostSilent && p.pod(peer.Addr()) {
				asked++
			}
		}
	}
}

// pod asks a destination that never answered: from the node's address and, where the network routes the pods'
// ranges, from this node's range too. That reply needs both routes.
func (p *plan) pod(a netip.Addr) bool {
	out := p.echo(netip.Addr{}, a)
	if own := ownRangeAddr(p.v.Index, a.Is6()); own.IsValid() && p.v.Remote(a).IsValid() && p.v.ByDefaultRoute(a) {
		out = p.echo(own, a) || out
	}
	return out
}

// absent asks on bridges for addresses of which no owner is known.
func (p *plan) absent() {
	asked := 0
	for f := range model.Each(p.found) {
		var subjects []netip.Addr
		switch f.Code {
		case neighbor.UnansweredARP.Code:
			subjects = model.Map(f.Peers, netip.Prefix.Addr)
		case bridge.StaleARPReply.Code:
			subjects = f.Pods
		}
		for _, a := range subjects {
			if len(p.v.Owners[a]) == 0 && asked < mostSilent && p.arp(a) {
				asked++
			}
		}
	}
}

// echo plans an echo request to an address beyond the node, from one of the
// node's: the one that the forward path begins with, or another that the node has.
func (p *plan) echo(from, to netip.Addr) bool {
	q, ok := outgoing(p.v.Index, to)
	q.Kind, q.From = model.ProbeEcho, cmp.Or(from, q.From)
	return ok && p.add(q)
}

// arp plans an ARP request on the bridge that the address is behind. The answer
// could overwrite an entry of the node's, so none that works may be there.
func (p *plan) arp(to netip.Addr) bool {
	v := p.v
	r := v.Lookup(to)
	if r == nil || !to.Is4() || r.Gateway.IsValid() || r.Type != "unicast" {
		return false
	}
	l := v.ByIndex[r.IfIndex]
	n := v.NeighborAt(to, r.IfIndex)
	if l == nil || l.Kind != "bridge" || l.MAC.IsZero() || n != nil && path.Resolved(n) && n.State != "PERMANENT" {
		return false
	}
	from := addrOn(l, to)
	return from.IsValid() && p.add(model.Probe{
		Kind: model.ProbeARP, IfIndex: l.Index, Link: l.Name, From: from, To: to,
		SrcMAC: l.MAC, DstMAC: model.Broadcast,
	})
}

// add takes a question that is not asked yet, as long as there is room.
func (p *plan) add(q model.Probe) bool {
	same := func(o model.Probe) bool { return o.Kind == q.Kind && o.From == q.From && o.To == q.To }
	if len(p.out) >= mostProbes || slices.ContainsFunc(p.out, same) {
		return false
	}
	p.out = append(p.out, q)
	return true
}

// outgoing is how a packet of the node's own gets to an address beyond it: link,
// source and MACs. It is false where that is not known, or the link is no uplink.
func outgoing(v *node.Index, to netip.Addr) (model.Probe, bool) {
	r := v.Lookup(to)
	if r == nil || r.Type != "unicast" || v.Own[to] != nil {
		return model.Probe{}, false
	}
	first := r
	if len(r.NextHops) > 0 {
		first = &r.NextHops[0]
	}
	l, hop := v.ByIndex[first.IfIndex], cmp.Or(first.Gateway, to)
	if l == nil || l.MAC.IsZero() || !v.Outer[l.Index] {
		return model.Probe{}, false
	}
	q := model.Probe{IfIndex: l.Index, Link: l.Name, From: r.Src, To: to, SrcMAC: l.MAC}
	if v.Own[q.From] == nil {
		q.From = addrOn(l, hop)
	}
	if q.From.Is4() != to.Is4() {
		return model.Probe{}, false
	}
	if n := v.NeighborAt(hop, l.Index); n != nil && path.Resolved(n) {
		q.DstMAC = n.MAC
	}
	// A gateway passes on to its own network too.
	for n := range model.Each(v.Gateways) {
		if q.DstMAC.IsZero() && n.IfIndex == l.Index && n.Addr.Is4() == to.Is4() && hop == to && path.Resolved(n) {
			q.DstMAC = n.MAC
		}
	}
	return q, q.From.IsValid() && !q.DstMAC.IsZero()
}

// ownRangeAddr is an address of this node's pod range of a family that the node
// itself has, as kubenet's bridge does; not valid where there is none.
func ownRangeAddr(v *node.Index, six bool) netip.Addr {
	own := v.OwnCIDRs()
	for _, l := range v.Links {
		for _, a := range l.Addresses {
			if a.Addr().Is6() == six && model.InAny(own, a.Addr()) && len(v.Owners[a.Addr()]) == 0 {
				return a.Addr()
			}
		}
	}
	return netip.Addr{}
}

// otherNodes are machines that tell whether there is a route back, by their addresses of the ranges' family:
// the ranges' owners where they are known, else who is in the node's subnet: those first who answer, then
// neighbours, next hops of routes, and whoever is sent packets.
func otherNodes(v *node.Index, ranges []*node.RemoteRange, six bool) []netip.Addr {
	if !slices.ContainsFunc(ranges, func(r *node.RemoteRange) bool { return r.Six() == six }) {
		return nil
	}
	var out []netip.Addr
	add := func(list ...netip.Addr) {
		for _, a := range list {
			if a.Is6() == six && !a.IsLinkLocalUnicast() && v.Own[a] == nil && len(v.Owners[a]) == 0 &&
				!slices.Contains(out, a) && len(out) < mostTargets {
				out = append(out, a)
			}
		}
	}
	for _, r := range ranges {
		if n := v.NodeOf(r.CIDR); n != nil {
			add(node.Internal(n)...)
		}
	}
	near := func(a netip.Addr) bool {
		return node.Directly(v, a) && !slices.ContainsFunc(v.Gateways, func(n model.Neighbor) bool { return n.Addr == a })
	}
	for p := range model.Each(v.Peers) {
		if near(p.Remote) && v.Answered(p) {
			add(p.Remote)
		}
	}
	for n := range model.Each(v.Neighbors) {
		if near(n.Addr) && path.Resolved(n) && n.State != "PERMANENT" {
			add(n.Addr)
		}
	}
	for r := range model.Each(v.Routes) {
		if r.Gateway.IsValid() && near(r.Gateway) && !v.GatewayAddrs[r.Gateway] {
			add(r.Gateway)
		}
	}
	for p := range model.Each(v.Peers) {
		if near(p.Remote) {
			add(p.Remote)
		}
	}
	return out
}
