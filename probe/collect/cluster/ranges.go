package cluster

import (
	"fmt"
	"net/netip"
	"slices"

	"github.com/lasthop/lasthop/probe/model"
)

// Range is a range of the cluster's pods and what told so.
type Range struct {
	Prefix netip.Prefix
	By     string
}

// Ranges learns the cluster's pod ranges from the node's own rules.
//
// Two kinds of rule name them: kube-proxy marks for masquerading what does not
// come from the cluster's range, and every masquerading agent lets the range
// through unmasqueraded. The latter also exclude other ranges, so that a range
// counts only if it holds pods of this node and none of the node's own
// addresses on its uplinks.
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
	for i := range s.PacketRules {
		r := &s.PacketRules[i]
		switch {
		case r.Table != "nat" && !r.Native:
		case model.CNIChain(r.Chain), r.Table == model.CNIMasqueradeTable:
			// A CNI plugin excludes its own network: one node's range.
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

// holdsPods reports whether a pod of this node, or the range of a bridge that
// pods are on, lies within the prefix.
func holdsPods(s *model.Snapshot, p netip.Prefix) bool {
	for i := range s.Pods {
		for _, a := range s.Pods[i].Addresses {
			if p.Contains(a.Addr()) {
				return true
			}
		}
	}
	for _, l := range s.Links {
		if l.Role != model.RoleBridge {
			continue
		}
		for _, a := range l.Addresses {
			if p.Contains(a.Addr()) {
				return true
			}
		}
	}
	return false
}

// holdsUplink reports whether the prefix touches a network that the node has
// an address on towards the outside.
func holdsUplink(s *model.Snapshot, p netip.Prefix) bool {
	for _, l := range s.Links {
		up := slices.Contains(s.Node.Uplinks, l.Name)
		for _, port := range s.Links {
			// The addresses of a bridged uplink are on the bridge.
			up = up || port.Master == l.Index && slices.Contains(s.Node.Uplinks, port.Name)
		}
		if up && slices.ContainsFunc(l.Addresses, func(a netip.Prefix) bool { return p.Overlaps(a.Masked()) }) {
			return true
		}
	}
	return false
}
