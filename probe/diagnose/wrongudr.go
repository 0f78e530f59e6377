package diagnose

import (
	"cmp"
	"fmt"
	"maps"
	"math/bits"
	"net/netip"
	"slices"
	"strings"

	"github.com/lasthop/lasthop/probe/model"
	"github.com/lasthop/lasthop/probe/words"
)

// WrongUDR is the code of this finding.
const WrongUDR model.Code = "WrongUDR"

var wrongUDR = kind{
	code:     WrongUDR,
	severity: model.Critical,
	find:     findWrongUDR,
	ends:     []model.HopKind{model.HopBeyond, model.HopRoute}, // where the TTL ends
}

func findWrongUDR(v *view) []finding {
	own := v.ownCIDRs()
	if len(own) == 0 {
		return nil
	}
	self := v.self()
	ranges := map[netip.Prefix]*remoteRange{}
	for _, r := range v.remoteRanges() {
		ranges[r.cidr] = r
	}
	var out []finding
	told := map[netip.Prefix]bool{}
	for _, n := range v.ranges.nodes {
		if !v.byDefaultRoute(n.Addr()) || told[n.Prefix] {
			continue
		}
		r := ranges[n.Prefix]
		if r == nil {
			r = &remoteRange{cidr: n.Prefix}
		}
		fact := v.routeTo(n.Prefix, n.node, self)
		if (fact.state == routeWrong || fact.state == routeListedWrong) && !r.answers && !r.nodeAnswers {
			told[n.Prefix] = true
			out = append(out, misrouted(v, r, n.node, fact))
		}
	}
	for _, p := range own {
		out = append(out, misroutedHere(v, p, self, ranges)...)
	}
	for _, h := range strangers(v) {
		if !told[h.Prefix] {
			told[h.Prefix] = true
			out = append(out, stranger(v, h))
		}
	}
	return out
}

// misrouted is the finding on a route to another node's pods.
func misrouted(v *view, r *remoteRange, n *model.ClusterNode, fact routeFact) finding {
	f := wrongRow(v, r.cidr, n, fact)
	x := v.sumPeers(r.silent)
	f.Pods, f.Packets = sorted(x.pods), x.packets
	f.LastHopAlive = v.place(v.uplink(), model.Egress)
	if f.Packets > 0 {
		observe(&f, model.SourceTC, "%s egress: %s to %s; ingress: no reply", v.uplink(), words.Count(f.Packets, "packet"), r.cidr)
	} else {
		f.Pods = v.podsIn(v.ownCIDRs())
	}
	if fact.state == routeListedWrong {
		f.Confidence = model.Possible
		if f.Packets > 0 {
			f.Confidence = model.Proven
		}
		f.Unseen = []string{"which subnets the table is associated with"}
	}
	for _, h := range strangers(v) {
		if h.Prefix == r.cidr {
			f.Evidence = append(f.Evidence, strangerEvidence(h))
		}
	}
	return finding{Finding: f, claims: explainsRange(v, r.cidr), silences: v.silencesNetwork(&f), returns: f.Pods}
}

// misroutedHere looks for a route of the other nodes that sends this node's own
// range elsewhere.
func misroutedHere(v *view, own netip.Prefix, self *model.ClusterNode, ranges map[netip.Prefix]*remoteRange) []finding {
	for _, r := range ranges {
		if r.answers && r.cidr.Addr().Is4() == own.Addr().Is4() {
			return nil
		}
	}
	senders := []*model.ClusterNode{self}
	for i := range v.Cluster.Nodes {
		senders = append(senders, &v.Cluster.Nodes[i])
	}
	for _, sender := range senders {
		fact := v.routeTo(own, self, sender)
		if fact.state != routeWrong && fact.state != routeListedWrong {
			continue
		}
		f := wrongRow(v, own, self, fact)
		f.Pods = v.podsIn([]netip.Prefix{own})
		f.LastHopAlive = v.place(v.uplink(), model.Egress)
		f.Packets = v.sumPeers(silentPeers(slices.Collect(maps.Values(ranges)))).packets
		if f.Packets > 0 {
			observe(&f, model.SourceTC, "%s egress: %s of pods to other nodes' pods; ingress: no reply", v.uplink(), words.Count(f.Packets, "packet"))
		} else if fact.state == routeListedWrong {
			f.Confidence = model.Possible
		}
		if fact.state == routeListedWrong {
			f.Unseen = []string{"which subnets the table is associated with"}
		}
		return []finding{{Finding: f, silences: v.silencesNetwork(&f), returns: f.Pods}}
	}
	return nil
}

// wrongRow is the part of the finding that the files show.
func wrongRow(v *view, cidr netip.Prefix, n *model.ClusterNode, fact routeFact) model.Finding {
	where := fact.row.Type
	if len(fact.row.NextHops) > 0 {
		where = words.Addrs(fact.row.NextHops)
	}
	hop := nextHop(n, cidr)
	f := model.Finding{
		Confidence: model.Proven,
		Peers:      []netip.Prefix{cidr},
		Title:      fmt.Sprintf("the route for %s leads to %s, not to node %s at %s", cidr, where, n.Name, hop),
		Why: fmt.Sprintf("The route %q sends what is for the pods of node %s to %s, which does not have them. ", fact.row.Name, n.Name, where) +
			"So it is after a node was replaced or got another range, and its route stayed.",
		Evidence: []model.Evidence{
			fact.evidence(),
			seen(model.SourceNodes, "node %s has %s and the address %s", n.Name, cidr, hop),
		},
		Fix: []string{fmt.Sprintf("az network route-table route update %s --name %s --next-hop-type VirtualAppliance --next-hop-ip-address %s",
			v.routeArgs(fact.table), words.Quote(cmp.Or(fact.row.Name, "ROUTE")), hop)},
	}
	if slices.ContainsFunc(fact.row.NextHops, func(a netip.Addr) bool { return v.nodeAddrs[a] }) {
		f.Why += " That machine is this node."
	}
	for other := range model.Each(v.Cluster.Nodes) {
		if other != n && slices.ContainsFunc(fact.row.NextHops, func(a netip.Addr) bool { return slices.Contains(other.Addresses, a) }) {
			observe(&f, model.SourceNodes, "%s is node %s", where, other.Name)
		}
	}
	return f
}

// strangers are the ranges of other nodes whose packets arrive at an uplink. A
// bridge that floods may show a few; only what this node takes for its own to
// forward, and sends out again, was sent to it.
func strangers(v *view) []*model.HopCount {
	type hop struct {
		cidr netip.Prefix
		link int
	}
	forwarded := map[hop]uint64{}
	for h := range model.Each(v.Traffic.Hops) {
		if h.Prefix.IsValid() && h.Direction == model.Egress && h.Side == model.AsDestination {
			forwarded[hop{h.Prefix, h.IfIndex}] += h.Packets
		}
	}
	var out []*model.HopCount
	for h := range model.Each(v.Traffic.Hops) {
		if !h.Prefix.IsValid() || h.Direction != model.Ingress || h.Side != model.AsDestination || !v.isUplink(h.IfIndex) {
			continue
		}
		if h.Packets >= minStrangers && v.byDefaultRoute(h.Prefix.Addr()) && !inAny(v.ranges.local, h.Prefix.Addr()) && v.surelyPods(h.Prefix.Addr()) &&
			(forwarded[hop{h.Prefix, h.IfIndex}] > 0 || bits.OnesCount64(h.TTLs) > 2) {
			out = append(out, h)
		}
	}
	slices.SortFunc(out, func(a, b *model.HopCount) int { return comparePrefix(a.Prefix, b.Prefix) })
	return out
}

// minStrangers is how many packets for another node's pods must arrive: a
// range that moves from node to node has some in flight.
const minStrangers = 5

func strangerEvidence(h *model.HopCount) model.Evidence {
	s := fmt.Sprintf("%s ingress: %s for %s", h.Link, words.Count(h.Packets, "packet"), h.Prefix)
	if n := bits.OnesCount64(h.TTLs); n > 2 {
		s += fmt.Sprintf(", with %d different TTLs: they come again and again", n)
	}
	return seen(model.SourceTC, "%s", s)
}

// stranger is the finding on packets that arrive for another node's pods.
func stranger(v *view, h *model.HopCount) finding {
	f := model.Finding{
		Confidence:   model.Likely,
		Peers:        []netip.Prefix{h.Prefix},
		LastHopAlive: v.place(h.Link, model.Ingress),
		Title:        fmt.Sprintf("packets for %s arrive here, which are another node's pods", h.Prefix),
		Why: "The fabric sends this node packets for pods that it does not have: the route for their range has this node as its next hop. " +
			"This node sends them back into the fabric, and so on until their TTL ends.",
		Evidence: []model.Evidence{strangerEvidence(h)},
		Packets:  h.Packets,
		Unseen:   []string{"the route table itself: no row of it is visible from a node"},
		Fix: []string{fmt.Sprintf("az network route-table route update %s --name ROUTE --next-hop-type VirtualAppliance --next-hop-ip-address NODE_IP # the row for %s, the node that has it",
			v.routeArgs(nil), h.Prefix)},
	}
	if n := v.nodeOf(h.Prefix); n != nil {
		f.Confidence, f.Unseen = model.Proven, nil
		hop := nextHop(n, h.Prefix)
		observe(&f, model.SourceNodes, "node %s has %s and the address %s", n.Name, h.Prefix, hop)
		f.Fix = []string{fmt.Sprintf("az network route-table route update %s --name %s --next-hop-type VirtualAppliance --next-hop-ip-address %s",
			v.routeArgs(nil), words.Quote(n.Name), hop)}
	} else {
		f.Alternatives = []string{"the range " + h.Prefix.String() + " is supposed: --nodes FILE tells whose it is"}
	}
	for p := range model.Each(v.peers) {
		// What goes round comes in again, and would count as an answer.
		if h.Prefix.Contains(p.Remote) && len(v.pods[p.Local]) > 0 && !slices.Contains(f.Pods, p.Local) && p.Out.Packets >= minPackets {
			f.Pods = append(f.Pods, p.Local)
		}
	}
	return finding{Finding: f, claims: explainsRange(v, h.Prefix), silences: v.silencesNetwork(&f), returns: f.Pods}
}

// explainsRange accounts for drops of packets on their way to a range, or back
// from there after they went round.
func explainsRange(v *view, cidr netip.Prefix) func(*model.Drop) bool {
	return func(d *model.Drop) bool {
		return cidr.Contains(d.Dst) && (strings.HasPrefix(d.Location, "ip_") || strings.HasPrefix(d.Location, "ip6_"))
	}
}
