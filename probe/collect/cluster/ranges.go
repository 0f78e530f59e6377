package cluster

import (
	"fmt"
	"net/netip"
	"slices"
	"strings"

	"github.com/lasthop/lasthop/probe/model"
)

// Range is a range of the cluster's pods. By names the rule that it was found in.
type Range struct {
	Prefix netip.Prefix
	By     string
}

// Ranges finds the cluster's pod ranges in the node's own rules.
//
// Two kinds of rule name them: kube-proxy marks for masquerading what does not come from the cluster's range, and
// masquerading agents exempt the range. Agents exempt other ranges too, so that a range counts only if it holds
// pods of this node and none of the node's addresses on its uplinks. A table of nft's own that no agent is known
// to write is the site's, and may exempt anything: its range counts where no agent's rule has one, and it is
// about as wide as a cluster's.
func Ranges(s *model.Snapshot) []Range {
	var out, sites []Range
	add := func(p netip.Prefix, r *model.PacketRule) {
		list := model.Either(r.Native && !agentsTable(r.Table), &sites, &out)
		p = p.Masked()
		if !slices.ContainsFunc(*list, func(x Range) bool { return x.Prefix == p }) {
			*list = append(*list, Range{p, fmt.Sprintf("%s %s rule %d", r.Table, r.Chain, r.Number)})
		}
	}
	masquerades := map[[2]string]bool{}
	for r := range model.Each(s.PacketRules) {
		if r.Target == "MASQUERADE" {
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
	for _, x := range sites {
		known := slices.ContainsFunc(out, func(o Range) bool { return o.Prefix.Addr().Is4() == x.Prefix.Addr().Is4() })
		if !known && likeCluster(s, x.Prefix) {
			out = append(out, x)
		}
	}
	return out
}

// agentsTable reports whether an nft table is one that plugins and agents write.
func agentsTable(name string) bool {
	return slices.ContainsFunc([]string{"kube-proxy", "calico", "kindnet", "ip-masq-agent", "cilium"}, func(prefix string) bool {
		return strings.HasPrefix(name, prefix)
	})
}

// widest is how many bits a cluster's range may be wider than that of one node: Kubernetes is tested with 5,000 nodes.
const widest = 13

// likeCluster reports whether a range is about as wide as a cluster of nodes with
// ranges like this one's would have, as the bridge of its pods tells.
func likeCluster(s *model.Snapshot, p netip.Prefix) bool {
	return slices.ContainsFunc(s.Links, func(l model.Link) bool {
		return l.Role == model.RoleBridge && slices.ContainsFunc(l.Addresses, func(own netip.Prefix) bool {
			return p.Contains(own.Addr()) && !own.IsSingleIP() && own.Bits()-p.Bits() <= widest
		})
	})
}

func chain(r *model.PacketRule) [2]string { return [2]string{r.Table, r.Chain} }

// holdsPods reports whether the prefix holds the address of a pod of this node, or that of a bridge.
func holdsPods(s *model.Snapshot, p netip.Prefix) bool {
	holds := func(a netip.Prefix) bool { return p.Contains(a.Addr()) }
	podIn := func(pod model.Pod) bool { return pod.Engine == "" && slices.ContainsFunc(pod.Addresses, holds) }
	return slices.ContainsFunc(s.Pods, podIn) ||
		slices.ContainsFunc(s.Links, func(l model.Link) bool {
			return l.Role == model.RoleBridge && l.Engine == "" && slices.ContainsFunc(l.Addresses, holds)
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
