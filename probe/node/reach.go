package node

import (
	"net/netip"
	"slices"

	"github.com/lasthop/lasthop/probe/model"
	"github.com/lasthop/lasthop/probe/words"
)

// Reach is what echo requests show of a path.
type Reach int

const (
	// ReachUnknown is that no packet shows whether a direction works.
	ReachUnknown Reach = iota
	// ReachWorks is that packets arrive.
	ReachWorks
	// ReachFails is that they do not.
	ReachFails
)

// near reports whether the range's node is in this node's subnet, and so under
// the same route table; one that is not known is supposed to be.
func (v *Index) near(r *RemoteRange) bool {
	n := v.NodeOf(r.CIDR)
	return n == nil || slices.ContainsFunc(Internal(n), func(a netip.Addr) bool { return Directly(v, a) })
}

// echoes are the echo requests from the node's address, or from its own pod range.
func (v *Index) echoes(fromRange bool) []*model.Probe {
	return model.Chosen(v.Probes, func(p *model.Probe) bool {
		return p.Kind == model.ProbeEcho && model.InAny(v.OwnCIDRs(), p.From) == fromRange
	})
}

// Echoed is what came of the echo request from the node's address to another: nil where none was sent.
func (v *Index) Echoed(to netip.Addr) *model.Probe {
	return model.Find(v.echoes(false), func(p *model.Probe) bool { return p.To == to })
}

// Arped is what came of the ARP request for an address; nil where none was sent.
func (v *Index) Arped(a netip.Addr) *model.Probe {
	return model.First(v.Probes, func(p *model.Probe) bool { return p.Kind == model.ProbeARP && p.To == a })
}

// ByGateway reports whether none but a gateway answered, which may answer for all, as Azure's fabric does.
func (v *Index) ByGateway(p *model.Probe) bool {
	return !slices.ContainsFunc(p.MACs, func(m model.MAC) bool { return !v.IsGatewayMAC(m) })
}

// probed is a range with what the node's echo requests say of the paths to and from it.
func (v *Index) probed(r RemoteRange) *RemoteRange {
	reaches := func(p *model.Probe) bool { return p.Answered && r.CIDR.Contains(p.To) }
	r.Probes = model.Filter(v.echoes(false), func(p *model.Probe) bool { return r.CIDR.Contains(p.To) })
	r.NodeAnswers = r.NodeAnswers || slices.ContainsFunc(r.Probes, reaches)
	switch {
	case r.NodeAnswers || slices.ContainsFunc(v.echoes(true), reaches):
		r.There = ReachWorks
	case v.Echoed(r.CIDR.Addr().Next()) != nil && firstAnswers(v, r.Six()) && OwnerAnswers(v, &r):
		r.There = ReachFails
	}
	r.Back = probedBack(v, &r)
	return &r
}

// Six reports whether the range is of IPv6. What probes of one family tell, they tell of its routes alone.
func (r *RemoteRange) Six() bool { return r.CIDR.Addr().Is6() }

// firstAnswers reports whether the first address of another node's range is sure to be somebody: kubenet's
// bridge has it; elsewhere another range's shows it by an answer.
func firstAnswers(v *Index, six bool) bool {
	return v.Node.Plugin == "kubenet" || slices.ContainsFunc(v.Probes, func(p model.Probe) bool {
		cidr := v.Remote(p.To)
		return p.Kind == model.ProbeEcho && p.Answered && p.To.Is6() == six && cidr.IsValid() && p.To == cidr.Addr().Next()
	})
}

// OwnerAnswers reports whether the range's node itself answered an echo; where
// it is not known, whether any machine did, so that echo gets about here.
func OwnerAnswers(v *Index, r *RemoteRange) bool {
	if own := v.OwnerAddrs(r); len(own) > 0 {
		return slices.ContainsFunc(own, func(a netip.Addr) bool {
			p := v.Echoed(a)
			return p != nil && p.Answered
		})
	}
	return v.EchoAnswered(r.Six())
}

// OwnerAddrs are the addresses of the range's family that its node has; none where they are not known.
func (v *Index) OwnerAddrs(r *RemoteRange) []netip.Addr {
	n := v.NodeOf(r.CIDR)
	if n == nil {
		return nil
	}
	return SameFamily(Internal(n), r.CIDR.Addr())
}

// EchoAnswered reports whether any machine answered an echo of the node's own.
func (v *Index) EchoAnswered(six bool) bool {
	return slices.ContainsFunc(v.echoes(false), func(p *model.Probe) bool { return p.Answered && p.To.Is6() == six })
}

// probedBack tells whether what the range's node sends to this node's pods gets here: by echo requests from this node's
// pod range to that node, to its pods, or to another node of the same subnet, or by pods' requests that arrive.
func probedBack(v *Index, r *RemoteRange) Reach {
	if r.podAsks > 0 {
		return ReachWorks
	}
	owner, near, out := v.NodeOf(r.CIDR), v.near(r), ReachUnknown
	for _, p := range v.echoes(true) {
		its := r.CIDR.Contains(p.To) || owner != nil && slices.Contains(owner.Addresses, p.To)
		if p.To.Is6() != r.Six() || !its && !(near && Directly(v, p.To)) {
			continue
		}
		if p.Answered {
			return ReachWorks
		}
		if direct := v.Echoed(p.To); direct != nil && direct.Answered {
			out = ReachFails
		}
	}
	return out
}

// BackShared reports whether a range under the same route table answers this node's
// pods, so that the route back to them is there.
func (v *Index) BackShared(r *RemoteRange) bool {
	return v.near(r) && slices.ContainsFunc(v.RemoteRanges(), func(o *RemoteRange) bool {
		return o.Answers && o.Six() == r.Six() && v.near(o)
	})
}

// BackProbes are the echo requests from this node's pod range of a family, each with the one from the
// node's address; nil where that was not sent.
func (v *Index) BackProbes(six bool) []*model.Probe {
	sent := model.Filter(v.echoes(true), func(p *model.Probe) bool { return p.To.Is6() == six })
	return model.Flat(sent, func(p *model.Probe) []*model.Probe { return []*model.Probe{p, v.Echoed(p.To)} })
}

// echoes are requests of one address to others, all answered or none.
type echoes struct {
	From     netip.Addr
	Link     string
	Answered bool
	To       []netip.Addr
}

// ProbeEvidence is a line for each address that sent requests, each probe once.
func ProbeEvidence(list []*model.Probe) []model.Evidence {
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
	return words.Say("probes", words.Facts{"echoes": out})
}

// ARPEvidence is a probe by ARP, as evidence.
func (v *Index) ARPEvidence(p *model.Probe) model.Evidence {
	return words.Say("probes", words.Facts{"arp": p, "gateway": v.ByGateway(p)})[0]
}
