package cluster

import (
	"fmt"
	"net/netip"
	"slices"

	"github.com/lasthop/lasthop/probe/model"
)

// Range is a range of the cluster's pods. By names the rule that it was found in.
type Range struct {
	Prefix netip.Prefix
	By     string
}

// Ranges finds the cluster's pod ranges in the node's own rules.
//
// Two kinds of rule name them: kube-proxy marks for masquerading what does not
// come from the cluster's range, and masquerading agents exempt the range. Agents
// exempt other ranges too, so that a range counts only if it holds pods of this
// node and none of the node's addresses on its uplinks.
func Ranges(s *model.Snapshot) []Range {
	var out []Range
	add := func(p netip.Prefix, r *model.PacketRule) {
		p = p.Masked()
		if !slices.ContainsFunc(out, func(x Range) bool { return x.Prefix == p }) {
			out = append(out, Range{p, fmt.Sprintf("%s %s rule %d", r.Table, r.Chain, r.Number)})
		}
	}
	masquerades := map[[2]string]bool{}
	for i := range s.PacketRules {
		if r := &s.PacketRules[i]; r.Target == "MASQUERADE" {
			masquerades[chain(r)] = true
		}
	}
	for r := range model.Each(s.PacketRules) {
		switch {
		case r.Table != "nat" && !r.Native:
		case model.CNIChain(r.Chain), r.Table == model.CNIMasqueradeTable:
			// A CNI plugin exempts its own network: the range of one node.
		case r.Target == "KUBE-MARK-MASQ" && r.Src.Not:
			if r.Src.Prefix.Bits() > 0 {
				add(r.Src.Prefix, r)
			}
		case r.Target == "MASQUERADE" && r.Dst.Not,
			(r.Target == "RETURN" || r.Target == "ACCEPT") && masquerades[chain(r)] && !r.Dst.IsZero() && !r.Dst.Not:
			if holdsPods(s, r.Dst.Prefix) && !holdsUplink(s, r.Dst.Prefix) {
				add(r.Dst.Prefix, r)
			}
		}
	}
	return out
}

func chain(r *model.PacketRule) [2]string { return [2]string{r.Table, r.Chain} }

// holdsPods reports whether the prefix holds the address of a pod of this node, or
// that of a bridge.
func holdsPods(s *model.Snapshot, p netip.Prefix) bool {
	holds := func(a netip.Prefix) bool { return p.Contains(a.Addr()) }
	return slices.ContainsFunc(s.Pods, func(pod model.Pod) bool { return slices.ContainsFunc(pod.Addresses, holds) }) ||
		slices.ContainsFunc(s.Links, func(l model.Link) bool {
			return l.Role == model.RoleBridge && slices.ContainsFunc(l.Addresses, holds)
		})
}

// holdsUplink reports whether the prefix overlaps the network of an uplink.
func holdsUplink(s *model.Snapshot, p netip.Prefix) bool {
	for _, l := range s.Links {
		up := slices.Contains(s.Node.Uplinks, l.Name)
		for _, port := range s.Links {
			// The bridge has the addresses of an uplink that is its port.
			up = up || port.Master == l.Index && slices.Contains(s.Node.Uplinks, port.Name)
		}
		if up && slices.ContainsFunc(l.Addresses, func(a netip.Prefix) bool { return p.Overlaps(a.Masked()) }) {
			return true
		}
	}
	return false
}
