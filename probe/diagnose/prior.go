package diagnose

import (
	"net/netip"
	"slices"

	"github.com/lasthop/lasthop/probe/model"
)

// blamed reports whether a finding of one of the codes names the address.
func (v *view) blamed(a netip.Addr, codes ...model.Code) bool {
	return slices.ContainsFunc(v.prior, func(f finding) bool {
		return slices.Contains(codes, f.Code) && slices.Contains(f.Pods, a)
	})
}

// rangeBlamed reports whether an earlier finding of the codes is about all traffic
// of a range.
func (v *view) rangeBlamed(cidr netip.Prefix, codes ...model.Code) bool {
	return slices.ContainsFunc(v.prior, func(f finding) bool {
		return slices.Contains(codes, f.Code) && slices.Contains(f.Peers, cidr)
	})
}

// loops reports whether the pair's packets were found to loop: they are silent
// for that.
func (v *view) loops(p *model.Peer) bool {
	return slices.ContainsFunc(v.prior, func(f finding) bool {
		return f.Code == RoutingLoop && slices.Contains(f.Pods, p.Local) && slices.Contains(f.Peers, host(p.Remote))
	})
}
