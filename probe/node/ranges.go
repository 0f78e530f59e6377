package node

import (
	"maps"
	"net/netip"
	"slices"

	"github.com/lasthop/lasthop/probe/model"
)

// Ranges is what is known of the cluster's address plan.
type Ranges struct {
	// Local are this node's own pod ranges, Own these and those of containers beside its pods, which no other node knows.
	Local, Own []netip.Prefix
	// Cluster are ranges of all pods: given, written in the node's rules, or supposed around the local ones.
	Cluster []netip.Prefix
	// Nodes are the ranges of other nodes that are known one by one. byPrefix
	// has them too: a node's addresses are looked up by their thousands.
	Nodes    []Range
	byPrefix map[netip.Prefix]Range
	// lengths are those of byPrefix, the longest first.
	lengths []int
}

// Range is a range of pods and its node.
type Range struct {
	netip.Prefix
	Node *model.ClusterNode
}

// Where no rule tells the cluster's range either, it is supposed to be the block of this size around the node's
// own: 256 nodes' worth of the usual /24 or /64.
const (
	clusterBits4 = 16
	clusterBits6 = 56
	podBits4     = 24
	podBits6     = 64
)

func newRanges(v *Index) Ranges {
	r := Ranges{byPrefix: map[netip.Prefix]Range{}}
	for n := range model.Each(v.Cluster.Nodes) {
		for _, p := range n.PodCIDRs {
			if isSelf(v, n) {
				r.Local = append(r.Local, p)
			} else {
				r.add(Range{p, n})
			}
		}
	}
	for _, l := range v.Links {
		if l.Role != model.RoleBridge {
			continue
		}
		for _, a := range l.Addresses {
			if l.Engine != "" {
				r.Own = append(r.Own, a.Masked())
			} else if p := a.Masked(); !p.IsSingleIP() && !slices.Contains(r.Local, p) && v.HoldsPods(p) &&
				!model.InAny(v.OnLink, p.Addr()) {
				r.Local = append(r.Local, p)
			}
		}
	}
	r.Cluster = slices.Clone(v.Cluster.PodCIDRs)
	for p := range model.Each(v.Pods) {
		for _, a := range model.Either(p.Engine == "", PodAddrs(p), nil) {
			r.supposeAround(v, a)
		}
	}
	r.addListed(v)
	r.Own = append(r.Own, r.Local...)
	return r
}

// kept reports whether a rule keeps what is for a range from translation.
func kept(x *model.PacketRule) bool {
	return x.Table == "nat" && x.Target == "RETURN" && !x.Dst.IsZero() && !x.Dst.Not
}

// addListed adds the other nodes' ranges that the node's rules keep from translation
// one by one: those beside this node's own, and as large.
func (r *Ranges) addListed(v *Index) {
	for own := range model.Each(v.PacketRules) {
		if !kept(own) || !slices.Contains(r.Local, own.Dst.Prefix) {
			continue
		}
		for x := range model.Each(v.PacketRules) {
			a, b := x.Dst.Prefix, own.Dst.Prefix
			if kept(x) && x.Chain == own.Chain && x.Backend == own.Backend && a.Bits() == b.Bits() &&
				a.Addr().Is4() == b.Addr().Is4() && model.Public(a.Addr()) == model.Public(b.Addr()) && !slices.Contains(r.Cluster, a) {
				r.Cluster = append(r.Cluster, x.Dst.Prefix)
			}
		}
	}
}

// add takes in a range of another node. Of two that claim the same, the first has it.
func (r *Ranges) add(n Range) {
	r.Nodes = append(r.Nodes, n)
	if _, claimed := r.byPrefix[n.Masked()]; claimed {
		return
	}
	r.byPrefix[n.Masked()] = n
	if i, found := slices.BinarySearchFunc(r.lengths, n.Bits(), func(a, b int) int { return b - a }); !found {
		r.lengths = slices.Insert(r.lengths, i, n.Bits())
	}
}

// NodeAt is the known range of another node that holds an address, the narrowest; not valid where none does.
func (r *Ranges) NodeAt(a netip.Addr) Range {
	for _, bits := range r.lengths {
		if p, err := a.Prefix(bits); err == nil && r.byPrefix[p].IsValid() {
			return r.byPrefix[p]
		}
	}
	return Range{}
}

// supposeAround adds the ranges that a pod's address suggests, unless they are
// known already or the address is of the node's own subnet.
func (r *Ranges) supposeAround(v *Index, a netip.Addr) {
	// A prefix holds no address with a zone, and a file may name any.
	a = a.Unmap().WithZone("")
	if !a.IsValid() || model.InAny(v.OnLink, a) {
		return
	}
	if !model.InAny(r.Local, a) {
		p, _ := a.Prefix(r.PodBits(a))
		r.Local = append(r.Local, p)
	}
	if model.InAny(r.Cluster, a) {
		return
	}
	r.Cluster = append(r.Cluster, r.suppose(v, a))
}

// suppose is the range of all pods that one pod's address suggests: what the node's rules keep from translation
// together with it, or the block around the node's own range.
func (r *Ranges) suppose(v *Index, a netip.Addr) netip.Prefix {
	var best netip.Prefix
	for x := range model.Each(v.PacketRules) {
		if kept(x) && x.Dst.Prefix.Contains(a) && x.Dst.Prefix.Bits() > max(best.Bits(), 0) {
			best = x.Dst.Prefix
		}
	}
	bits := closeBits(a)
	if own := r.Local[slices.IndexFunc(r.Local, func(p netip.Prefix) bool { return p.Contains(a) })]; own.Bits() < bits {
		bits = max(own.Bits()-8, 0)
	}
	p, _ := a.Prefix(bits)
	return model.Either(best.IsValid() && best.Bits() < bits, best, p)
}

// closeBits is the length of a block that holds several nodes' pods.
func closeBits(a netip.Addr) int {
	return model.Either(a.Is6(), clusterBits6, clusterBits4)
}

// PodBits is the length of one node's pod range in the address's family.
func (r *Ranges) PodBits(a netip.Addr) int {
	for _, p := range r.Local {
		if p.Addr().Is4() == a.Is4() {
			return p.Bits()
		}
	}
	return model.Either(a.Is4(), podBits4, podBits6)
}

// HoldsPods reports whether pods have addresses in a range, and not containers beside them.
func (v *Index) HoldsPods(p netip.Prefix) bool {
	for a, owners := range v.Owners {
		if p.Contains(a) && owners[0].Engine == "" {
			return true
		}
	}
	return false
}

// Remote is the pod range of the other node that holds an address: the node's where it is known, else one of
// the size of this node's own. It is not valid for an address that is no other node's pod.
func (v *Index) Remote(a netip.Addr) netip.Prefix {
	if n := v.Ranges.NodeAt(a); n.IsValid() {
		return n.Prefix
	}
	if v.Own[a] != nil || model.InAny(v.OnLink, a) || model.InAny(v.Ranges.Own, a) || !model.InAny(v.Ranges.Cluster, a) {
		return netip.Prefix{}
	}
	// No pod has an address beside those of services.
	if !v.SurelyPods(a) && len(v.Tables().Services(a)) > 0 {
		return netip.Prefix{}
	}
	p, _ := a.Prefix(v.Ranges.PodBits(a))
	return p
}

// SurelyPods reports whether an address is of a pod range that is known, or of the block close around this
// node's own; not of one that is only supposed from what the rules keep from translation.
func (v *Index) SurelyPods(a netip.Addr) bool {
	if model.InAny(v.Cluster.PodCIDRs, a) || v.Ranges.NodeAt(a).IsValid() {
		return true
	}
	return slices.ContainsFunc(v.Ranges.Local, func(own netip.Prefix) bool {
		block, err := own.Addr().Prefix(min(own.Bits(), closeBits(a)))
		return err == nil && block.Contains(a)
	})
}

// NodeOf is the node whose pod range this is, where that is known.
func (v *Index) NodeOf(p netip.Prefix) *model.ClusterNode { return v.Ranges.byPrefix[p.Masked()].Node }

// RemoteRange is the traffic with one other node's pods. It is never changed once it is made: several findings read it.
type RemoteRange struct {
	CIDR netip.Prefix
	// Silent are pairs without a reply.
	Silent []*model.Peer
	// answers, NodeAnswers: a pod of this node, or the node itself, was answered from the range.
	Answers     bool
	NodeAnswers bool
	// Asks are packets from the range that want a reply from here, podAsks those of them for pods.
	Asks, podAsks uint64
	// Probes are the node's own echo requests to it; there and back is what they and others tell of the two paths.
	Probes      []*model.Probe
	There, Back Reach
}

// PrefixOf is the range itself.
func PrefixOf(r *RemoteRange) netip.Prefix { return r.CIDR }

// CompareRanges orders ranges by their prefix.
func CompareRanges(a, b *RemoteRange) int { return netip.Prefix.Compare(a.CIDR, b.CIDR) }

// Overlay reports whether the fabric itself routes pods, without a route table.
func Overlay(plugin string) bool { return plugin == "azure-overlay" || plugin == "azure-cilium" }

// FabricRanges are the remote ranges, and those of known nodes that there was no traffic with.
func (v *Index) FabricRanges() []*RemoteRange {
	ranges := slices.Clone(v.RemoteRanges())
	seen := model.SetOf(model.Map(ranges, PrefixOf))
	for _, n := range v.Ranges.Nodes {
		if !seen[n.Prefix] && v.ByDefaultRoute(n.Addr()) {
			ranges = append(ranges, v.probed(RemoteRange{CIDR: n.Prefix}))
		}
	}
	slices.SortFunc(ranges, CompareRanges)
	return ranges
}

// findRanges groups what was seen at the uplink by the other node's range, sorted by prefix. Ranges that the
// node does not reach through its default gateway are not the fabric's to route.
func (v *Index) findRanges() []*RemoteRange {
	byCIDR := map[netip.Prefix]*RemoteRange{}
	for p := range model.Each(v.Peers) {
		cidr := v.Remote(p.Remote)
		if !cidr.IsValid() || !v.ByDefaultRoute(p.Remote) {
			continue
		}
		r := model.GetOrInsert(byCIDR, cidr)
		r.CIDR = cidr
		r.Asks += p.In.Requests
		_, pod := v.Owners[p.Local]
		if pod {
			r.podAsks += p.In.Requests
		}
		switch {
		case v.Answered(p):
			r.Answers = r.Answers || pod
			r.NodeAnswers = r.NodeAnswers || !pod
		case pod && v.Unanswered(p) && !v.Swept[Pair{p.Local, p.Remote}] && !v.LeftWithWrongMAC(p):
			r.Silent = append(r.Silent, p)
		}
	}
	var out []*RemoteRange
	for _, r := range slices.SortedFunc(maps.Values(byCIDR), CompareRanges) {
		r.Answers = r.Answers || oneRefused(v, r.Silent)
		out = append(out, v.probed(*r))
	}
	return out
}

// oneRefused reports whether ICMP errors come back about one address of a range
// alone: most likely the node that has the range says that it has no such pod.
func oneRefused(v *Index, silent []*model.Peer) bool {
	of := v.SumPeers(slices.DeleteFunc(slices.Clone(silent), func(p *model.Peer) bool { return !v.Refused(p) }))
	return len(of.Peers) == 1
}
