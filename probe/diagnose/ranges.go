package diagnose

import (
	"maps"
	"net/netip"
	"slices"

	"github.com/lasthop/lasthop/probe/model"
)

// ranges is what is known of the cluster's address plan.
type ranges struct {
	// local are this node's own pod ranges.
	local []netip.Prefix
	// cluster are ranges of all pods: given, written in the node's rules, or supposed around the local ones.
	cluster []netip.Prefix
	// nodes are the ranges of other nodes that are known one by one. byPrefix
	// has them too: a node's addresses are looked up by their thousands.
	nodes    []nodeRange
	byPrefix map[netip.Prefix]nodeRange
	// lengths are those of byPrefix, the longest first.
	lengths []int
}

type nodeRange struct {
	netip.Prefix
	node *model.ClusterNode
}

// Where no rule tells the cluster's range either, it is supposed to be the block of this size around the node's
// own: 256 nodes' worth of the usual /24 or /64.
const (
	clusterBits4 = 16
	clusterBits6 = 56
	podBits4     = 24
	podBits6     = 64
)

func newRanges(v *index) ranges {
	r := ranges{byPrefix: map[netip.Prefix]nodeRange{}}
	for n := range model.Each(v.Cluster.Nodes) {
		for _, p := range n.PodCIDRs {
			if isSelf(v, n) {
				r.local = append(r.local, p)
			} else {
				r.add(nodeRange{p, n})
			}
		}
	}
	for _, l := range v.Links {
		if l.Role != model.RoleBridge {
			continue
		}
		for _, a := range l.Addresses {
			if p := a.Masked(); !p.IsSingleIP() && !slices.Contains(r.local, p) && v.holdsPods(p) &&
				!model.InAny(v.onLink, p.Addr()) {
				r.local = append(r.local, p)
			}
		}
	}
	r.cluster = slices.Clone(v.Cluster.PodCIDRs)
	for p := range model.Each(v.Pods) {
		for _, a := range podAddrs(p) {
			r.supposeAround(v, a)
		}
	}
	r.addListed(v)
	return r
}

// kept reports whether a rule keeps what is for a range from translation.
func kept(x *model.PacketRule) bool {
	return x.Table == "nat" && x.Target == "RETURN" && !x.Dst.IsZero() && !x.Dst.Not
}

// addListed adds the other nodes' ranges that the node's rules keep from translation
// one by one: those beside this node's own, and as large.
func (r *ranges) addListed(v *index) {
	for own := range model.Each(v.PacketRules) {
		if !kept(own) || !slices.Contains(r.local, own.Dst.Prefix) {
			continue
		}
		for x := range model.Each(v.PacketRules) {
			a, b := x.Dst.Prefix, own.Dst.Prefix
			if kept(x) && x.Chain == own.Chain && x.Backend == own.Backend && a.Bits() == b.Bits() &&
				a.Addr().Is4() == b.Addr().Is4() && model.Public(a.Addr()) == model.Public(b.Addr()) && !slices.Contains(r.cluster, a) {
				r.cluster = append(r.cluster, x.Dst.Prefix)
			}
		}
	}
}

// add takes in a range of another node. Of two that claim the same, the first has it.
func (r *ranges) add(n nodeRange) {
	r.nodes = append(r.nodes, n)
	if _, claimed := r.byPrefix[n.Masked()]; claimed {
		return
	}
	r.byPrefix[n.Masked()] = n
	if i, found := slices.BinarySearchFunc(r.lengths, n.Bits(), func(a, b int) int { return b - a }); !found {
		r.lengths = slices.Insert(r.lengths, i, n.Bits())
	}
}

// nodeAt is the known range of another node that holds an address, the narrowest; not valid where none does.
func (r *ranges) nodeAt(a netip.Addr) nodeRange {
	for _, bits := range r.lengths {
		if p, err := a.Prefix(bits); err == nil && r.byPrefix[p].IsValid() {
			return r.byPrefix[p]
		}
	}
	return nodeRange{}
}

// supposeAround adds the ranges that a pod's address suggests, unless they are
// known already or the address is of the node's own subnet.
func (r *ranges) supposeAround(v *index, a netip.Addr) {
	// A prefix holds no address with a zone, and a file may name any.
	a = a.Unmap().WithZone("")
	if !a.IsValid() || model.InAny(v.onLink, a) {
		return
	}
	if !model.InAny(r.local, a) {
		p, _ := a.Prefix(r.podBits(a))
		r.local = append(r.local, p)
	}
	if model.InAny(r.cluster, a) {
		return
	}
	r.cluster = append(r.cluster, r.suppose(v, a))
}

// suppose is the range of all pods that one pod's address suggests: what the node's rules keep from translation
// together with it, or the block around the node's own range.
func (r *ranges) suppose(v *index, a netip.Addr) netip.Prefix {
	var best netip.Prefix
	for x := range model.Each(v.PacketRules) {
		if kept(x) && x.Dst.Prefix.Contains(a) && x.Dst.Prefix.Bits() > max(best.Bits(), 0) {
			best = x.Dst.Prefix
		}
	}
	bits := closeBits(a)
	if own := r.local[slices.IndexFunc(r.local, func(p netip.Prefix) bool { return p.Contains(a) })]; own.Bits() < bits {
		bits = max(own.Bits()-8, 0)
	}
	p, _ := a.Prefix(bits)
	return model.Either(best.IsValid() && best.Bits() < bits, best, p)
}

// closeBits is the length of a block that holds several nodes' pods.
func closeBits(a netip.Addr) int {
	return model.Either(a.Is6(), clusterBits6, clusterBits4)
}

// podBits is the length of one node's pod range in the address's family.
func (r *ranges) podBits(a netip.Addr) int {
	for _, p := range r.local {
		if p.Addr().Is4() == a.Is4() {
			return p.Bits()
		}
	}
	return model.Either(a.Is4(), podBits4, podBits6)
}

func (v *index) holdsPods(p netip.Prefix) bool {
	for a := range v.Owners {
		if p.Contains(a) {
			return true
		}
	}
	return false
}

// remote is the pod range of the other node that holds an address: the node's where it is known, else one of
// the size of this node's own. It is not valid for an address that is no other node's pod.
func (v *index) remote(a netip.Addr) netip.Prefix {
	if n := v.ranges.nodeAt(a); n.IsValid() {
		return n.Prefix
	}
	if v.nodeAddrs[a] || model.InAny(v.onLink, a) || model.InAny(v.ranges.local, a) || !model.InAny(v.ranges.cluster, a) {
		return netip.Prefix{}
	}
	// No pod has an address beside those of services.
	if !v.surelyPods(a) && len(v.Tables().Services(a)) > 0 {
		return netip.Prefix{}
	}
	p, _ := a.Prefix(v.ranges.podBits(a))
	return p
}

// surelyPods reports whether an address is of a pod range that is known, or of the block close around this
// node's own; not of one that is only supposed from what the rules keep from translation.
func (v *index) surelyPods(a netip.Addr) bool {
	if model.InAny(v.Cluster.PodCIDRs, a) || v.ranges.nodeAt(a).IsValid() {
		return true
	}
	return slices.ContainsFunc(v.ranges.local, func(own netip.Prefix) bool {
		block, err := own.Addr().Prefix(min(own.Bits(), closeBits(a)))
		return err == nil && block.Contains(a)
	})
}

// nodeOf is the node whose pod range this is, where that is known.
func (v *index) nodeOf(p netip.Prefix) *model.ClusterNode { return v.ranges.byPrefix[p.Masked()].node }

// RemoteRanges lists the other nodes' pod ranges: first those that packets and
// flows in the snapshot suggest, then the others that are known, each sorted.
func RemoteRanges(s *model.Snapshot) []netip.Prefix {
	v := newIndex(s)
	// Many flows have few addresses.
	addrs := map[netip.Addr]bool{}
	for p := range model.Each(v.Traffic.Peers) {
		addrs[p.Remote] = true
	}
	for f := range model.Each(s.Flows) {
		addrs[f.Original.Dst], addrs[f.Reply.Src], addrs[f.Original.Src] = true, true, true
	}
	seen := map[netip.Prefix]bool{}
	for a := range addrs {
		seen[v.remote(a)] = true
	}
	delete(seen, netip.Prefix{})
	known := map[netip.Prefix]bool{}
	for _, n := range v.ranges.nodes {
		if !seen[n.Prefix] {
			known[n.Prefix] = true
		}
	}
	return append(slices.SortedFunc(maps.Keys(seen), netip.Prefix.Compare),
		slices.SortedFunc(maps.Keys(known), netip.Prefix.Compare)...)
}

// remoteRange is the traffic with one other node's pods. It is never changed once it is made: several findings read it.
type remoteRange struct {
	cidr netip.Prefix
	// silent are pairs without a reply.
	silent []*model.Peer
	// answers, nodeAnswers: a pod of this node, or the node itself, was answered from the range.
	answers     bool
	nodeAnswers bool
	// asks are packets from the range that want a reply from here, podAsks those of them for pods.
	asks, podAsks uint64
	// probes are the node's own echo requests to it; there and back is what they and others tell of the two paths.
	probes      []*model.Probe
	there, back reach
}

func prefixOf(r *remoteRange) netip.Prefix { return r.cidr }

func compareRanges(a, b *remoteRange) int { return netip.Prefix.Compare(a.cidr, b.cidr) }

// overlay reports whether the fabric itself routes pods, without a route table.
func overlay(plugin string) bool { return plugin == "azure-overlay" || plugin == "azure-cilium" }

// splitRanges parts the ranges that are so from the others.
func splitRanges(list []*remoteRange, is func(*remoteRange) bool) (so, others []*remoteRange) {
	for _, r := range list {
		if is(r) {
			so = append(so, r)
		} else {
			others = append(others, r)
		}
	}
	return so, others
}

// fabricRanges are the remote ranges, and those of known nodes that there was no traffic with.
func (v *index) fabricRanges() []*remoteRange {
	ranges := slices.Clone(v.remoteRanges())
	seen := model.SetOf(model.Map(ranges, prefixOf))
	for _, n := range v.ranges.nodes {
		if !seen[n.Prefix] && v.byDefaultRoute(n.Addr()) {
			ranges = append(ranges, v.probed(remoteRange{cidr: n.Prefix}))
		}
	}
	slices.SortFunc(ranges, compareRanges)
	return ranges
}

// findRanges groups what was seen at the uplink by the other node's range, sorted by prefix. Ranges that the
// node does not reach through its default gateway are not the fabric's to route.
func (v *index) findRanges() []*remoteRange {
	byCIDR := map[netip.Prefix]*remoteRange{}
	for p := range model.Each(v.peers) {
		cidr := v.remote(p.Remote)
		if !cidr.IsValid() || !v.byDefaultRoute(p.Remote) {
			continue
		}
		r := model.GetOrInsert(byCIDR, cidr)
		r.cidr = cidr
		r.asks += p.In.Requests
		_, pod := v.Owners[p.Local]
		if pod {
			r.podAsks += p.In.Requests
		}
		switch {
		case v.answered(p):
			r.answers = r.answers || pod
			r.nodeAnswers = r.nodeAnswers || !pod
		case pod && v.unanswered(p) && !v.swept[pair{p.Local, p.Remote}] && !v.leftWithWrongMAC(p):
			r.silent = append(r.silent, p)
		}
	}
	var out []*remoteRange
	for _, r := range slices.SortedFunc(maps.Values(byCIDR), compareRanges) {
		r.answers = r.answers || oneRefused(v, r.silent)
		out = append(out, v.probed(*r))
	}
	return out
}

// unclaimedRanges are the ranges without those silent peers whose silence a finding claims.
func (v *view) unclaimedRanges(list []*remoteRange) []*remoteRange {
	out := make([]*remoteRange, len(list))
	for i, r := range list {
		c := *r
		c.silent = slices.DeleteFunc(slices.Clone(r.silent),
			func(p *model.Peer) bool { return v.silenced(p.Local, model.Host(p.Remote)) })
		out[i] = &c
	}
	return out
}

// silencesNetwork are the requests of a finding's pods to its peers. Where these are this node's
// own ranges, or several others, the routes of all ranges are in doubt: the requests are those to
// anybody within the network, of pods with addresses that need a route.
func (v *index) silencesNetwork(f *model.Finding) func(netip.Addr, netip.Prefix) bool {
	peers, pods := silencesPeers(f), setOf(f.Pods)
	all := len(f.Peers) > 1 || slices.ContainsFunc(f.Peers,
		func(p netip.Prefix) bool { return slices.Contains(v.ranges.local, p) })
	return func(asker netip.Addr, asked netip.Prefix) bool {
		return peers(asker, asked) || all && pods[asker] && !model.InAny(v.onLink, asker) &&
			(v.remote(asked.Addr()).IsValid() || model.InAny(v.onLink, asked.Addr()))
	}
}

// oneRefused reports whether ICMP errors come back about one address of a range
// alone: most likely the node that has the range says that it has no such pod.
func oneRefused(v *index, silent []*model.Peer) bool {
	of := v.sumPeers(slices.DeleteFunc(slices.Clone(silent), func(p *model.Peer) bool { return !v.refused(p) }))
	return len(of.peers) == 1
}
