package diagnose

import (
	"cmp"
	"fmt"
	"net/netip"
	"slices"

	"github.com/lasthop/lasthop/probe/model"
)

// The bounds of a plan: of all, and of each kind of subject.
const (
	mostProbes  = 16
	mostRanges  = 3
	mostTargets = 2
	mostSilent  = 2
)

// Probes plans the few questions, ICMP echo and ARP requests, whose answers
// tell apart what the snapshot alone does not: at most 16, from addresses of
// the node's own. It sends nothing.
//
// An echo from the node's address to the first address of another node's pod
// range is answered only if the network has a route to that range: the answer
// to the node's address needs none. One from an address of the node's own pod
// range to another node is answered only if the network has the route back.
func Probes(s *model.Snapshot) []model.Probe {
	p := &plan{v: newView(s)}
	p.v.judge()
	p.ranges()
	p.silent()
	p.absent()
	return p.out
}

// plan is a plan in the making.
type plan struct {
	v   *view
	out []model.Probe
}

// ranges asks for the routes between this node and the other nodes' pods.
func (p *plan) ranges() {
	all := p.v.fabricRanges()
	if len(all) == 0 || overlay(p.v.Node.Plugin) {
		return
	}
	silent, others := splitRanges(all, func(r *remoteRange) bool { return len(r.silent) > 0 && !r.answers })
	// One that answers shows what an answer is worth here.
	ranges := slices.Concat(silent[:min(len(silent), mostRanges)], others[:min(len(others), 1)])
	for _, r := range ranges {
		if first := r.cidr.Addr().Next(); r.cidr.Contains(first) {
			p.echo(netip.Addr{}, first)
		}
	}
	for _, six := range []bool{false, true} {
		own := p.v.ownRangeAddr(six)
		for _, t := range p.v.otherNodes(ranges, six) {
			p.echo(netip.Addr{}, t)
			if own.IsValid() {
				p.echo(own, t)
			}
		}
	}
	for _, r := range ranges {
		if len(r.silent) > 0 {
			p.echo(netip.Addr{}, r.silent[0].Remote)
		}
	}
}

// silent asks the destinations that never answered the pods.
func (p *plan) silent() {
	asked := 0
	for i := range p.v.prior {
		f := &p.v.prior[i]
		for _, peer := range f.Peers {
			if f.Code == NoReply && peer.IsSingleIP() && asked < mostSilent && p.echo(netip.Addr{}, peer.Addr()) {
				asked++
			}
		}
	}
}

// absent asks on bridges for addresses of which no owner is known.
func (p *plan) absent() {
	asked := 0
	for i := range p.v.prior {
		f := &p.v.prior[i]
		var subjects []netip.Addr
		switch f.Code {
		case UnansweredARP:
			for _, peer := range f.Peers {
				subjects = append(subjects, peer.Addr())
			}
		case StaleARPReply:
			subjects = f.Pods
		}
		for _, a := range subjects {
			if len(p.v.pods[a]) == 0 && asked < mostSilent && p.arp(a) {
				asked++
			}
		}
	}
}

// echo plans an echo request to an address beyond the node, from one of the
// node's: the one that the way there begins with, or another that the node has.
func (p *plan) echo(from, to netip.Addr) bool {
	q, ok := p.v.wayOff(to)
	if !ok {
		return false
	}
	q.Kind, q.From = model.ProbeEcho, cmp.Or(from, q.From)
	return p.add(q)
}

// arp plans an ARP request on the bridge that the address is behind. The answer
// could overwrite an entry of the node's, so none that works may be there.
func (p *plan) arp(to netip.Addr) bool {
	v := p.v
	r := v.lookup(to)
	if r == nil || !to.Is4() || r.Gateway.IsValid() || r.Type != "unicast" {
		return false
	}
	l := v.links[r.IfIndex]
	if l == nil || l.Kind != "bridge" || l.MAC.IsZero() {
		return false
	}
	if slices.ContainsFunc(v.Neighbors, func(n model.Neighbor) bool {
		return n.Addr == to && n.IfIndex == l.Index && resolved(&n) && n.State != "PERMANENT"
	}) {
		return false
	}
	from := v.addrOn(l, to)
	if !from.IsValid() {
		return false
	}
	return p.add(model.Probe{Kind: model.ProbeARP, IfIndex: l.Index, Link: l.Name, From: from, To: to, SrcMAC: l.MAC, DstMAC: model.Broadcast})
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

// wayOff is how a packet of the node's own gets to an address beyond it: link,
// source and MACs. It is false where that is not known, or the way is no uplink.
func (v *view) wayOff(to netip.Addr) (model.Probe, bool) {
	r := v.lookup(to)
	if r == nil || r.Type != "unicast" || v.nodeAddrs[to] {
		return model.Probe{}, false
	}
	first := r
	if len(r.NextHops) > 0 {
		first = &r.NextHops[0]
	}
	l, hop := v.links[first.IfIndex], to
	if first.Gateway.IsValid() {
		hop = first.Gateway
	}
	if l == nil || l.MAC.IsZero() || !v.leadsOff(l) {
		return model.Probe{}, false
	}
	q := model.Probe{IfIndex: l.Index, Link: l.Name, From: r.Src, To: to, SrcMAC: l.MAC}
	if !v.nodeAddrs[q.From] {
		q.From = v.addrOn(l, hop)
	}
	if q.From.Is4() != to.Is4() {
		return model.Probe{}, false
	}
	for i := range v.Neighbors {
		if n := &v.Neighbors[i]; n.Addr == hop && n.IfIndex == l.Index && resolved(n) {
			q.DstMAC = n.MAC
		}
	}
	// A gateway passes on to its own network too.
	for i := range v.gateways {
		if n := &v.gateways[i]; q.DstMAC.IsZero() && n.IfIndex == l.Index && n.Addr.Is4() == to.Is4() && hop == to && resolved(n) {
			q.DstMAC = n.MAC
		}
	}
	return q, q.From.IsValid() && !q.DstMAC.IsZero()
}

// leadsOff reports whether frames leave the node by the link: an uplink, or the
// bridge or bond that holds one.
func (v *view) leadsOff(l *model.Link) bool {
	return l.Role == model.RoleUplink || slices.ContainsFunc(v.Links, func(x model.Link) bool {
		return x.Role == model.RoleUplink && x.Master == l.Index
	})
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

// ownRangeAddr is an address of this node's pod range of a family that the node
// itself has, as kubenet's bridge does; not valid where there is none.
func (v *view) ownRangeAddr(six bool) netip.Addr {
	own := v.ownCIDRs()
	for _, l := range v.Links {
		for _, a := range l.Addresses {
			if a.Addr().Is6() == six && inAny(own, a.Addr()) && len(v.pods[a.Addr()]) == 0 {
				return a.Addr()
			}
		}
	}
	return netip.Addr{}
}

// otherNodes are machines that a route back can be told by, by their addresses of
// the ranges' family: the ranges' owners where they are known, else who is in the
// node's subnet, those first who answer.
func (v *view) otherNodes(ranges []*remoteRange, six bool) []netip.Addr {
	if !slices.ContainsFunc(ranges, func(r *remoteRange) bool { return r.six() == six }) {
		return nil
	}
	var out []netip.Addr
	add := func(a netip.Addr) {
		if a.Is6() == six && !a.IsLinkLocalUnicast() && !v.nodeAddrs[a] && len(v.pods[a]) == 0 && !slices.Contains(out, a) && len(out) < mostTargets {
			out = append(out, a)
		}
	}
	for _, r := range ranges {
		if n := v.nodeOf(r.cidr); n != nil {
			for _, a := range internal(n) {
				add(a)
			}
		}
	}
	near := func(a netip.Addr) bool {
		return inAny(v.onLink, a) && !slices.ContainsFunc(v.gateways, func(n model.Neighbor) bool { return n.Addr == a })
	}
	for i := range v.peers {
		if p := &v.peers[i]; near(p.Remote) && v.answered(p) {
			add(p.Remote)
		}
	}
	for i := range v.Neighbors {
		if n := &v.Neighbors[i]; near(n.Addr) && resolved(n) && n.State != "PERMANENT" {
			add(n.Addr)
		}
	}
	return out
}

// reach is what echo requests told of a way.
type reach int

const (
	reachUnknown reach = iota
	reachWorks
	reachFails
)

// fromOwnRange reports whether an address is of this node's pod ranges.
func (v *view) fromOwnRange(a netip.Addr) bool {
	if !v.beyond.ownKnown {
		v.beyond.own, v.beyond.ownKnown = v.ownCIDRs(), true
	}
	return inAny(v.beyond.own, a)
}

// near reports whether the range's node is in this node's subnet, and so under
// the same route table; one that is not known is supposed to be.
func (v *view) near(r *remoteRange) bool {
	n := v.nodeOf(r.cidr)
	return n == nil || slices.ContainsFunc(internal(n), func(a netip.Addr) bool { return inAny(v.onLink, a) })
}

// echoed is what came of the echo request from the node's address to another:
// nil where none was sent.
func (v *view) echoed(to netip.Addr) *model.Probe {
	for i := range v.Probes {
		if p := &v.Probes[i]; p.Kind == model.ProbeEcho && p.To == to && !v.fromOwnRange(p.From) {
			return p
		}
	}
	return nil
}

// arped is what came of the ARP request for an address; nil where none was sent.
func (v *view) arped(a netip.Addr) *model.Probe {
	for i := range v.Probes {
		if p := &v.Probes[i]; p.Kind == model.ProbeARP && p.To == a {
			return p
		}
	}
	return nil
}

// byGateway reports whether none but a gateway answered, which may answer for
// all, as Azure's fabric does.
func (v *view) byGateway(p *model.Probe) bool {
	return !slices.ContainsFunc(p.MACs, func(m model.MAC) bool { return !v.isGatewayMAC(m) })
}

// probe notes what the node's echo requests tell of the way to a range.
func (v *view) probe(r *remoteRange) {
	first := v.echoed(r.cidr.Addr().Next())
	for i := range v.Probes {
		p := &v.Probes[i]
		if p.Kind == model.ProbeEcho && r.cidr.Contains(p.To) && !v.fromOwnRange(p.From) {
			r.probes = append(r.probes, p)
			r.nodeAnswers = r.nodeAnswers || p.Answered
		}
	}
	r.there = reachUnknown
	switch {
	case r.nodeAnswers:
		r.there = reachWorks
	case first != nil && v.firstAnswers(r.six()) && v.ownerAnswers(r):
		r.there = reachFails
	}
	r.back = v.probedBack(r)
}

// six reports whether the range is of IPv6. What probes of one family tell, they
// tell of its routes alone.
func (r *remoteRange) six() bool { return r.cidr.Addr().Is6() }

// firstAnswers reports whether the first address of another node's range is
// sure to be somebody: kubenet's bridge has it; elsewhere another range's shows
// it by an answer.
func (v *view) firstAnswers(six bool) bool {
	return v.Node.Plugin == "kubenet" || slices.ContainsFunc(v.Probes, func(p model.Probe) bool {
		cidr := v.remote(p.To)
		return p.Kind == model.ProbeEcho && p.Answered && p.To.Is6() == six && cidr.IsValid() && p.To == cidr.Addr().Next()
	})
}

// ownerAnswers reports whether the range's node itself answered an echo; where
// it is not known, whether any machine did, so that echo gets about here.
func (v *view) ownerAnswers(r *remoteRange) bool {
	own := v.ownerAddrs(r)
	if len(own) > 0 {
		return slices.ContainsFunc(own, func(a netip.Addr) bool {
			p := v.echoed(a)
			return p != nil && p.Answered
		})
	}
	return v.echoAnswered(r.six())
}

// ownerAddrs are the addresses of the range's family that its node has; none
// where they are not known.
func (v *view) ownerAddrs(r *remoteRange) []netip.Addr {
	n := v.nodeOf(r.cidr)
	if n == nil {
		return nil
	}
	return slices.DeleteFunc(internal(n), func(a netip.Addr) bool { return a.Is6() != r.six() })
}

// ownerSilent reports whether the range's node is known and did not answer an
// echo.
func (v *view) ownerSilent(r *remoteRange) bool {
	return !v.ownerAnswers(r) && slices.ContainsFunc(v.ownerAddrs(r), func(a netip.Addr) bool { return v.echoed(a) != nil })
}

// echoAnswered reports whether any machine answered an echo of the node's own.
func (v *view) echoAnswered(six bool) bool {
	return slices.ContainsFunc(v.Probes, func(p model.Probe) bool {
		return p.Kind == model.ProbeEcho && p.Answered && p.To.Is6() == six && !v.fromOwnRange(p.From)
	})
}

// probedBack tells whether what the range's node sends to this node's pods gets
// here: by echo requests from this node's pod range to that node, or to another
// of the same subnet, or by pods' requests that arrive.
func (v *view) probedBack(r *remoteRange) reach {
	if r.podAsks > 0 {
		return reachWorks
	}
	owner, near := v.nodeOf(r.cidr), v.near(r)
	out := reachUnknown
	for i := range v.Probes {
		p := &v.Probes[i]
		its := owner != nil && slices.Contains(owner.Addresses, p.To)
		if p.Kind != model.ProbeEcho || p.To.Is6() != r.six() || !v.fromOwnRange(p.From) || !its && !(near && inAny(v.onLink, p.To)) {
			continue
		}
		if p.Answered {
			return reachWorks
		}
		if direct := v.echoed(p.To); direct != nil && direct.Answered {
			out = reachFails
		}
	}
	return out
}

// backProbes are the echo requests from this node's pod range of a family.
func (v *view) backProbes(six bool) []*model.Probe {
	var out []*model.Probe
	for i := range v.Probes {
		if p := &v.Probes[i]; p.Kind == model.ProbeEcho && p.To.Is6() == six && v.fromOwnRange(p.From) {
			out = append(out, p, v.echoed(p.To))
		}
	}
	return slices.DeleteFunc(out, func(p *model.Probe) bool { return p == nil })
}

// probed is probes as evidence, each once: a line for each address that asked.
func probed(list []*model.Probe) []model.Evidence {
	type asker struct {
		from     netip.Addr
		link     string
		answered bool
	}
	by := map[asker][]netip.Addr{}
	var order []asker
	for _, p := range list {
		k := asker{p.From, p.Link, p.Answered}
		if slices.Contains(by[k], p.To) {
			continue
		}
		if by[k] == nil {
			order = append(order, k)
		}
		by[k] = append(by[k], p.To)
	}
	var out []model.Evidence
	for _, k := range order {
		result := "no answer from "
		if k.answered {
			result = "answers from "
		}
		out = append(out, model.Evidence{Source: model.SourceProbes, Text: fmt.Sprintf(
			"echo from %s on %s: %s%s", k.from, k.link, result, addrs(by[k]))})
	}
	return out
}

// arpEvidence is what came of an ARP request.
func (v *view) arpEvidence(p *model.Probe) model.Evidence {
	text := fmt.Sprintf("ARP request from %s on %s for %s: ", p.From, p.Link, p.To)
	switch {
	case !p.Answered:
		text += "no answer"
	case v.byGateway(p):
		text += "answered by the gateway, which answers for others"
	default:
		text += "answered with " + addrs(p.MACs)
	}
	return model.Evidence{Source: model.SourceProbes, Text: text}
}
