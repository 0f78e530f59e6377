package node

import (
	"net/netip"
	"slices"

	"github.com/lasthop/lasthop/probe/model"
)

// CiliumDelivers reports whether Cilium's programs have the address as a local pod's.
func (v *Index) CiliumDelivers(a netip.Addr) bool {
	return slices.ContainsFunc(v.Cilium.Local, func(x model.CiliumAddress) bool { return x.Prefix.Addr() == a })
}

// SentToWrongMAC accounts for drops of frames for the address that carry the wrong MAC.
func SentToWrongMAC(wrong Binding) func(*model.Drop) bool {
	return func(d *model.Drop) bool { return d.Dst == wrong.Addr && d.DstMAC == wrong.MAC }
}

// SilentBy are the peers that do not reply to these pods alone, whose packets leave the node in
// frames for a wrong MAC, also with the node's address.
func (v *Index) SilentBy(wrong model.MAC, pods []netip.Addr) []netip.Addr {
	these, others := map[netip.Addr]bool{}, map[netip.Addr]bool{}
	for p := range model.Each(v.Peers) {
		if !v.Unanswered(p) {
			continue
		}
		set, behind := others, Sorted(v.Senders(p))
		other := func(a netip.Addr) bool { return !slices.Contains(pods, a) }
		if len(behind) > 0 && !slices.ContainsFunc(behind, other) && v.LeftWith(p, wrong) {
			set = these
		}
		set[p.Remote] = true
	}
	return slices.DeleteFunc(Sorted(these), func(a netip.Addr) bool { return others[a] })
}
