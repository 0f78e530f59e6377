package diagnose

import (
	"net/netip"
	"slices"

	"github.com/lasthop/lasthop/probe/model"
)

// found reports whether a finding of one of the codes is about the pod and about
// the peer. The zero values stand for any.
func (v *view) found(pod netip.Addr, peer netip.Prefix, codes ...model.Code) bool {
	return slices.ContainsFunc(v.prior, func(f finding) bool {
		return slices.Contains(codes, f.Code) &&
			(!pod.IsValid() || slices.Contains(f.Pods, pod)) && (!peer.IsValid() || slices.Contains(f.Peers, peer))
	})
}
