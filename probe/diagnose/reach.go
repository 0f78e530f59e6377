package diagnose

import (
	"net/netip"
	"slices"

	"github.com/lasthop/lasthop/probe/model"
	"github.com/lasthop/lasthop/probe/words"
)

// reach is what echo requests told of a path.
type reach int

const (
	reachUnknown reach = iota
	reachWorks
	reachFails
)

// near reports whether the range's node is in this node's subnet, and so under
// the same route table; one that is not known is supposed to be.
func (v *index) near(r *remoteRange) bool {
	n := v.nodeOf(r.cidr)
	return n == nil || slices.ContainsFunc(internal(n), func(a netip.Addr) bool { return directly(v, a) })
}

// echoed is what came of the echo request from the node's address to another: nil where none was sent.
func (v *index) echoed(to netip.Addr) *model.Probe {
	return model.First(v.Probes, func(p *model.Probe) bool {
		return p.Kind == model.ProbeEcho && p.To == to && !model.InAny(v.ownCIDRs(), p.From)
	})
}

// arped is what came of the ARP request for an address; nil where none was sent.
func (v *index) arped(a netip.Addr) *model.Probe {
	return model.First(v.Probes, func(p *model.Probe) bool { return p.Kind == model.ProbeARP && p.To == a })
}

// byGateway reports whether none but a gateway answered, which may answer for all, as Azure's fabric does.
func (v *index) byGateway(p *model.Probe) bool {
	return !slices.ContainsFunc(p.MACs, func(m model.MAC) bool { return !v.isGatewayMAC(m) })
}

// probed is a range with what the node's echo requests say of the paths to and from it.
func (v *index) probed(r remoteRange) *remoteRange {
	reached := false
	for p := range model.Each(v.Probes) {
		if p.Kind != model.ProbeEcho || !r.cidr.Contains(p.To) {
			continue
		}
		reached = reached || p.Answered
		if !model.InAny(v.ownCIDRs(), p.From) {
			r.probes = append(r.probes, p)
			r.nodeAnswers = r.nodeAnswers || p.Answered
		}
	}
	switch {
	case r.nodeAnswers || reached:
		r.there = reachWorks
	case v.echoed(r.cidr.Addr().Next()) != nil && firstAnswers(v, r.six()) && ownerAnswers(v, &r):
		r.there = reachFails
	}
	r.back = probedBack(v, &r)
	return &r
}

// six reports whether the range is of IPv6. What probes of one family tell, they tell of its routes alone.
func (r *remoteRange) six() bool { return r.cidr.Addr().Is6() }

// firstAnswers reports whether the first address of another node's range is sure to be somebody: kubenet's
// bridge has it; elsewhere another range's shows it by an answer.
func firstAnswers(v *index, six bool) bool {
	return v.Node.Plugin == "kubenet" || slices.ContainsFunc(v.Probes, func(p model.Probe) bool {
		cidr := v.remote(p.To)
		return p.Kind == model.ProbeEcho && p.Answered && p.To.Is6() == six && cidr.IsValid() && p.To == cidr.Addr().Next()
	})
}

// ownerAnswers reports whether the range's node itself answered an echo; where
// it is not known, whether any machine did, so that echo gets about here.
func ownerAnswers(v *index, r *remoteRange) bool {
	own := v.ownerAddrs(r)
	if len(own) > 0 {
		return slices.ContainsFunc(own, func(a netip.Addr) bool {
			p := v.echoed(a)
			return p != nil && p.Answered
		})
	}
	return v.echoAnswered(r.six())
}

// ownerAddrs are the addresses of the range's family that its node has; none where they are not known.
func (v *index) ownerAddrs(r *remoteRange) []netip.Addr {
	n := v.nodeOf(r.cidr)
	if n == nil {
		return nil
	}
	return sameFamily(internal(n), r.cidr.Addr())
}

// ownerSilent reports whether the range's node is known and did not answer an echo.
func (v *index) ownerSilent(r *remoteRange) bool {
	return !ownerAnswers(v, r) && slices.ContainsFunc(v.ownerAddrs(r),
		func(a netip.Addr) bool { return v.echoed(a) != nil })
}

// echoAnswered reports whether any machine answered an echo of the node's own.
func (v *index) echoAnswered(six bool) bool {
	return slices.ContainsFunc(v.Probes, func(p model.Probe) bool {
		return p.Kind == model.ProbeEcho && p.Answered && p.To.Is6() == six && !model.InAny(v.ownCIDRs(), p.From)
	})
}

// probedBack tells whether what the range's node sends to this node's pods gets here: by echo requests from this node's
// pod range to that node, to its pods, or to another node of the same subnet, or by pods' requests that arrive.
func probedBack(v *index, r *remoteRange) reach {
	if r.podAsks > 0 {
		return reachWorks
	}
	owner, near := v.nodeOf(r.cidr), v.near(r)
	out := reachUnknown
	for p := range model.Each(v.Probes) {
		its := r.cidr.Contains(p.To) || owner != nil && slices.Contains(owner.Addresses, p.To)
		if p.Kind != model.ProbeEcho || p.To.Is6() != r.six() || !model.InAny(v.ownCIDRs(), p.From) ||
			!its && !(near && directly(v, p.To)) {
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

// routesProven reports whether replies, probes or files show that the network has
// the route to another node's pods, and the one back from that node.
func (v *index) routesProven(cidr netip.Prefix) (there, back bool) {
	for _, r := range v.remoteRanges() {
		if r.cidr == cidr {
			there, back = r.answers || r.there == reachWorks, r.back == reachWorks || v.backShared(r)
		}
	}
	there = there || v.routeTo(cidr, v.nodeOf(cidr), v.self()).state == routeCorrect
	return there, back || v.routeBack(cidr).state == routeCorrect
}

// backShared reports whether a range under the same route table answers this node's
// pods, so that the route back to them is there.
func (v *index) backShared(r *remoteRange) bool {
	return v.near(r) && slices.ContainsFunc(v.remoteRanges(), func(o *remoteRange) bool {
		return o.answers && o.six() == r.six() && v.near(o)
	})
}

// backProbes are the echo requests from this node's pod range of a family, each with the one from the
// node's address; nil where that was not sent.
func (v *index) backProbes(six bool) []*model.Probe {
	var out []*model.Probe
	for p := range model.Each(v.Probes) {
		if p.Kind == model.ProbeEcho && p.To.Is6() == six && model.InAny(v.ownCIDRs(), p.From) {
			out = append(out, p, v.echoed(p.To))
		}
	}
	return out
}

// echoes are requests of one address to others, all answered or none.
type echoes struct {
	From     netip.Addr
	Link     string
	Answered bool
	To       []netip.Addr
}

// probeEvidence is a line for each address that sent requests, each probe once.
func probeEvidence(list []*model.Probe) []model.Evidence {
	var out []echoes
	for _, p := range list {
		if p == nil {
			continue
		}
		at := slices.IndexFunc(out, func(e echoes) bool {
			return e.From == p.From && e.Link == p.Link && e.Answered == p.Answered
		})
		if at < 0 {
			at, out = len(out), append(out, echoes{From: p.From, Link: p.Link, Answered: p.Answered})
		}
		out[at].To = model.With(out[at].To, p.To)
	}
	return words.Say("probes", facts{"echoes": out})
}

func (v *index) arpEvidence(p *model.Probe) model.Evidence {
	return words.Say("probes", facts{"arp": p, "gateway": v.byGateway(p)})[0]
}
