package fabric

import (
	"cmp"
	"maps"
	"math/bits"
	"net/netip"
	"slices"

	"github.com/lasthop/lasthop/probe/fault"
	"github.com/lasthop/lasthop/probe/model"
	"github.com/lasthop/lasthop/probe/node"
	"github.com/lasthop/lasthop/probe/words"
)

// WrongUDR reports rows of the route table that lead to another node than that whose pods they are for.
var WrongUDR = fault.Kind{Code: "WrongUDR", Severity: model.Critical, Find: wrongUDR,
	Needs: fault.Sources{model.SourceLinks}, Traits: model.Unheard | model.Astray | model.ByRoute | model.Foreign,
	Ends: fault.Hops{model.HopBeyond, model.HopRoute},
	Else: fault.Else{"WrongUDR-stranger !node", "WrongUDR-joined unknownHops", "WrongUDR-joined translated"}}

func wrongUDR(v *fault.Input) {
	own := v.OwnCIDRs()
	if len(own) == 0 {
		return
	}
	self := v.Self()
	ranges := model.Table(v.RemoteRanges(), func(r **node.RemoteRange) (netip.Prefix, *node.RemoteRange) { return (*r).CIDR, *r })
	reported := map[netip.Prefix]bool{}
	for _, n := range v.Ranges.Nodes {
		if !v.ByDefaultRoute(n.Addr()) || reported[n.Prefix] {
			continue
		}
		r := cmp.Or(ranges[n.Prefix], &node.RemoteRange{CIDR: n.Prefix})
		if fact := v.RouteTo(n.Prefix, n.Node, self); fact.Wrong() && !r.Answers && !r.NodeAnswers {
			reported[n.Prefix] = true
			v.Report(misrouted(v.Index, r, n.Node, fact))
		}
	}
	for _, p := range own {
		misroutedHere(v, p, self, ranges)
	}
	for _, h := range strangers(v.Index) {
		if !reported[h.Prefix] {
			reported[h.Prefix] = true
			v.Report(h.finding(v.Index))
		}
	}
}

func misrouted(v *node.Index, r *node.RemoteRange, n *model.ClusterNode, fact node.RouteFact) fault.Fault {
	x := v.SumPeers(r.Silent)
	f := wrongRow(v, r.CIDR, n, fact, x.Packets, model.Either(x.Packets == 0, podsIn(v, v.OwnCIDRs()), node.Sorted(x.Pods)))
	f.Claims = explainsRange(r.CIDR)
	f.Facts["strangers"] = slices.DeleteFunc(strangers(v), func(h stranger) bool { return h.Prefix != r.CIDR })
	return f
}

// misroutedHere looks for a route of the other nodes that sends this node's own range elsewhere.
func misroutedHere(v *fault.Input, own netip.Prefix, self *model.ClusterNode, ranges map[netip.Prefix]*node.RemoteRange) {
	for _, r := range ranges {
		if r.Answers && r.CIDR.Addr().Is4() == own.Addr().Is4() {
			return
		}
	}
	all := slices.Collect(model.Each(v.Cluster.Nodes))
	for _, sender := range append([]*model.ClusterNode{self}, all...) {
		if fact := v.RouteTo(own, self, sender); fact.Wrong() {
			lost := v.SumPeers(silentPeers(slices.Collect(maps.Values(ranges)))).Packets
			f := wrongRow(v.Index, own, self, fact, lost, podsIn(v.Index, []netip.Prefix{own}))
			f.Facts["own"] = true
			v.Report(f)
			return
		}
	}
}

func wrongRow(
	v *node.Index, cidr netip.Prefix, n *model.ClusterNode, fact node.RouteFact, lost uint64, pods []netip.Addr,
) fault.Fault {
	leads := func(to func(netip.Addr) bool) bool { return slices.ContainsFunc(fact.Row.NextHops, to) }
	others := model.Chosen(v.Cluster.Nodes, func(o *model.ClusterNode) bool {
		return o != n && leads(func(a netip.Addr) bool { return slices.Contains(o.Addresses, a) })
	})
	hop := nextHop(n, cidr)
	f := fault.Fault{Returns: pods, Facts: words.Facts{
		"fact": fact, "range": cidr, "node": n, "hop": hop, "row": v.Row(fact.Table, "", cidr, hop), "others": others,
		"self": leads(func(a netip.Addr) bool { return v.Own[a] != nil }), "listed": fact.State == node.RouteListedWrong,
	}}
	f.Pods, f.Peers, f.Packets, f.LastHopAlive = pods, []netip.Prefix{cidr}, lost, v.Place(v.Uplink(), model.Egress)
	if fact.State == node.RouteListedWrong && lost == 0 {
		f.Confidence = model.Possible
	}
	f.Silences = silencesNetwork(v, &f.Finding)
	return f
}

// stranger are packets for a range of another node that arrive at an uplink. Again: they go round.
type stranger struct {
	*model.HopCount
	Again bool
}

// strangers are the ranges of other nodes whose packets arrive at an uplink. A bridge that floods may show a
// few; only what this node takes for its own to forward, and sends out again, was sent to it.
func strangers(v *node.Index) []stranger {
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
			v.IsUplink(h.IfIndex) && h.Packets >= minStrangers && v.ByDefaultRoute(h.Prefix.Addr()) &&
			!model.InAny(v.Ranges.Local, h.Prefix.Addr()) && v.SurelyPods(h.Prefix.Addr()) &&
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

func (h stranger) finding(v *node.Index) fault.Fault {
	f := fault.Fault{Page: "WrongUDR-stranger", Claims: explainsRange(h.Prefix)}
	f.Peers, f.Packets, f.LastHopAlive = []netip.Prefix{h.Prefix}, h.Packets, v.Place(h.Link, model.Ingress)
	row := rangeRow(v, h.Prefix, nil)
	f.Facts = words.Facts{"range": h.Prefix, "passing": h, "row": row, "hop": row.Hop, "node": v.NodeOf(h.Prefix), "self": v.Node.Name}
	if v.NodeOf(h.Prefix) != nil {
		row.Update = true
		AddRows(&f.Finding, row)
	}
	for p := range model.Each(v.Peers) {
		// What goes round comes in again, and would count as an answer.
		if h.Prefix.Contains(p.Remote) && len(v.Owners[p.Local]) > 0 && !slices.Contains(f.Pods, p.Local) &&
			p.Out.Packets >= node.MinPackets {
			f.Pods = append(f.Pods, p.Local)
		}
	}
	f.Silences, f.Returns = silencesNetwork(v, &f.Finding), f.Pods
	return f
}

// explainsRange accounts for drops of packets on their way to a range, or back from there after they went round.
func explainsRange(cidr netip.Prefix) func(*model.Drop) bool {
	return func(d *model.Drop) bool {
		return cidr.Contains(d.Dst) && d.Is(model.InIP)
	}
}
