package diagnose

import (
	"cmp"
	"maps"
	"math/bits"
	"net/netip"
	"slices"

	"github.com/lasthop/lasthop/probe/model"
)

func findWrongUDR(v *view) {
	own := v.ownCIDRs()
	if len(own) == 0 {
		return
	}
	self := v.self()
	ranges := model.Table(v.remoteRanges(), func(r **remoteRange) (netip.Prefix, *remoteRange) { return (*r).cidr, *r })
	reported := map[netip.Prefix]bool{}
	for _, n := range v.ranges.nodes {
		if !v.byDefaultRoute(n.Addr()) || reported[n.Prefix] {
			continue
		}
		r := cmp.Or(ranges[n.Prefix], &remoteRange{cidr: n.Prefix})
		fact := v.routeTo(n.Prefix, n.node, self)
		if fact.wrong() && !r.answers && !r.nodeAnswers {
			reported[n.Prefix] = true
			v.report(misrouted(v.index, r, n.node, fact))
		}
	}
	for _, p := range own {
		misroutedHere(v, p, self, ranges)
	}
	for _, h := range strangers(v.index) {
		if !reported[h.Prefix] {
			reported[h.Prefix] = true
			v.report(h.finding(v.index))
		}
	}
}

func (f routeFact) wrong() bool { return f.state == routeWrong || f.state == routeListedWrong }

func misrouted(v *index, r *remoteRange, n *model.ClusterNode, fact routeFact) finding {
	x := v.sumPeers(r.silent)
	pods := model.Either(x.packets == 0, v.podsIn(v.ownCIDRs()), sorted(x.pods))
	f := wrongRow(v, r.cidr, n, fact, x.packets, pods)
	f.claims = explainsRange(r.cidr)
	f.facts["strangers"] = slices.DeleteFunc(strangers(v), func(h stranger) bool { return h.Prefix != r.cidr })
	return f
}

// misroutedHere looks for a route of the other nodes that sends this node's own range elsewhere.
func misroutedHere(v *view, own netip.Prefix, self *model.ClusterNode, ranges map[netip.Prefix]*remoteRange) {
	for _, r := range ranges {
		if r.answers && r.cidr.Addr().Is4() == own.Addr().Is4() {
			return
		}
	}
	all := slices.Collect(model.Each(v.Cluster.Nodes))
	for _, sender := range append([]*model.ClusterNode{self}, all...) {
		if fact := v.routeTo(own, self, sender); fact.wrong() {
			lost := v.sumPeers(silentPeers(slices.Collect(maps.Values(ranges)))).packets
			f := wrongRow(v.index, own, self, fact, lost, v.podsIn([]netip.Prefix{own}))
			f.facts["own"] = true
			v.report(f)
			return
		}
	}
}

func wrongRow(
	v *index, cidr netip.Prefix, n *model.ClusterNode, fact routeFact, lost uint64, pods []netip.Addr,
) finding {
	leads := func(to func(netip.Addr) bool) bool { return slices.ContainsFunc(fact.Row.NextHops, to) }
	others := model.Chosen(v.Cluster.Nodes, func(o *model.ClusterNode) bool {
		return o != n && leads(func(a netip.Addr) bool { return slices.Contains(o.Addresses, a) })
	})
	hop := nextHop(n, cidr)
	f := finding{returns: pods, facts: facts{
		"fact": fact, "range": cidr, "node": n, "hop": hop, "row": v.row(fact.Table, "", cidr, hop), "others": others,
		"self": leads(func(a netip.Addr) bool { return v.nodeAddrs[a] }), "listed": fact.state == routeListedWrong,
	}}
	f.Pods, f.Peers, f.Packets, f.LastHopAlive = pods, []netip.Prefix{cidr}, lost, v.place(v.uplink(), model.Egress)
	if fact.state == routeListedWrong && lost == 0 {
		f.Confidence = model.Possible
	}
	f.silences = v.silencesNetwork(&f.Finding)
	return f
}

// stranger are packets for a range of another node that arrive at an uplink. Again: they go round.
type stranger struct {
	*model.HopCount
	Again bool
}

// strangers are the ranges of other nodes whose packets arrive at an uplink. A bridge that floods may show a
// few; only what this node takes for its own to forward, and sends out again, was sent to it.
func strangers(v *index) []stranger {
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
	var out []stranger
	for h := range model.Each(v.Traffic.Hops) {
		again := bits.OnesCount64(h.TTLs) > 2
		if h.Prefix.IsValid() && h.Direction == model.Ingress && h.Side == model.AsDestination &&
			v.isUplink(h.IfIndex) && h.Packets >= minStrangers && v.byDefaultRoute(h.Prefix.Addr()) &&
			!model.InAny(v.ranges.local, h.Prefix.Addr()) && v.surelyPods(h.Prefix.Addr()) &&
			(forwarded[hop{h.Prefix, h.IfIndex}] > 0 || again) {
			out = append(out, stranger{h, again})
		}
	}
	slices.SortFunc(out, func(a, b stranger) int { return netip.Prefix.Compare(a.Prefix, b.Prefix) })
	return out
}

// minStrangers is how many packets for another node's pods must arrive: a
// range that moves from node to node has some in flight.
const minStrangers = 5

func (h stranger) finding(v *index) finding {
	f := finding{page: "WrongUDR-stranger", claims: explainsRange(h.Prefix)}
	f.Peers, f.Packets, f.LastHopAlive = []netip.Prefix{h.Prefix}, h.Packets, v.place(h.Link, model.Ingress)
	row := v.rangeRow(h.Prefix, nil)
	f.facts = facts{"range": h.Prefix, "passing": h, "row": row, "hop": row.Hop, "node": v.nodeOf(h.Prefix)}
	for p := range model.Each(v.peers) {
		// What goes round comes in again, and would count as an answer.
		if h.Prefix.Contains(p.Remote) && len(v.Owners[p.Local]) > 0 && !slices.Contains(f.Pods, p.Local) &&
			p.Out.Packets >= minPackets {
			f.Pods = append(f.Pods, p.Local)
		}
	}
	f.silences, f.returns = v.silencesNetwork(&f.Finding), f.Pods
	return f
}

// explainsRange accounts for drops of packets on their way to a range, or back from there after they went round.
func explainsRange(cidr netip.Prefix) func(*model.Drop) bool {
	return func(d *model.Drop) bool {
		return cidr.Contains(d.Dst) && d.Is(model.InIP)
	}
}
