package silence

import (
	"cmp"
	"maps"
	"net/netip"
	"slices"

	"github.com/lasthop/lasthop/probe/fault"
	"github.com/lasthop/lasthop/probe/model"
	"github.com/lasthop/lasthop/probe/node"
	"github.com/lasthop/lasthop/probe/path"
	"github.com/lasthop/lasthop/probe/words"
)

// dropKind is what one cause's drops have in common. It may drop on many links:
// FORWARD drops packets with the link that each came in by.
type dropKind struct {
	reason   model.Reason
	location string
}

// UnexplainedDrop reports drops that no other kind explains.
var UnexplainedDrop = fault.Kind{Code: "UnexplainedDrop", Severity: model.Info, Find: unexplainedDrop,
	Objects: fault.Objects{"reason location", "location", "link"}, Traits: model.Unknown,
	Else: fault.Else{"UnexplainedDrop-undelivered", "UnexplainedDrop-unsent", "UnexplainedDrop-router"}}

func unexplainedDrop(v *fault.Input) {
	left := model.Chosen(v.Traffic.Drops, func(d *model.Drop) bool {
		return v.CauseOf(d).Ordinary == model.ExcusedFew
	})
	groups := map[dropKind]*node.Lost{}
	folded := model.Chosen(v.Whole.Traffic.Drops, func(d *model.Drop) bool {
		return d.Range.IsValid() && v.FoldedCause(d).Ordinary == model.ExcusedFew
	})
	for _, d := range append(left, folded...) {
		k := dropKind{d.Reason, d.Location}
		if d.Is(model.NeighborFailed) {
			// One of the packets that wait is freed as failed, the others are purged.
			k.reason = "NEIGH_FAILED"
		}
		model.GetOrInsert(groups, k).Add(v.Index, d)
	}
	for k, l := range groups {
		if l.Packets >= node.MinDrops {
			v.Report(unexplained(v.Index, k, l))
		}
	}
	byLink := map[int][]node.Undelivered{}
	for _, u := range v.Undelivered() {
		if !v.Silenced(netip.Addr{}, model.Host(u.Addr)) && !v.Returned[u.Addr] {
			byLink[u.In.IfIndex] = append(byLink[u.In.IfIndex], u)
		}
	}
	for _, list := range byLink {
		v.Report(undelivered(v.Index, list))
	}
	for link, flows := range v.Unsent() {
		flows = slices.DeleteFunc(flows, func(f *model.Flow) bool {
			by := func(to netip.Addr) bool { return v.SilencedBy(f.Original.Src, model.Host(to), f) != "" }
			return by(f.Reply.Src) || by(f.Original.Dst)
		})
		if len(flows) >= node.MinAsks {
			v.Report(unsent(v.Index, link, flows))
		}
	}
}

// takers are the filters of tc at a link's hook, and the rules, that may take packets away without a drop.
func takers(v *node.Index, link int, d model.Direction) ([]*model.Program, []*model.PacketRule) {
	filters := model.Chosen(v.Programs, func(p *model.Program) bool {
		return p.Direction == d && p.Kind == model.ProgramTC && p.Netns == v.Node.Netns && v.OnSameLink(link, p.IfIndex)
	})
	return filters, takes(v, func(r *model.PacketRule) bool { return r.Target == "NFQUEUE" || r.Target == model.TargetForward })
}

// takes are the rules that match and counted.
func takes(v *node.Index, match func(*model.PacketRule) bool) []*model.PacketRule {
	return model.Chosen(v.PacketRules, func(r *model.PacketRule) bool { return match(r) && !r.Counter.Unused(r.Native) })
}

// forwards are the rules that may send a packet out by another link than its route.
func forwards(v *node.Index, p path.Packet) []*model.PacketRule {
	return takes(v, func(r *model.PacketRule) bool { return r.Target == model.TargetForward && p.Fits(r) >= path.Maybe })
}

// unsent is the finding on flows of pods that are routed to an uplink and did not get there.
func unsent(v *node.Index, link int, flows []*model.Flow) fault.Fault {
	filters, rules := takers(v, link, model.Egress)
	f := fault.Fault{Page: "UnexplainedDrop-unsent", Facts: words.Facts{
		"link": v.LinkName(link), "flows": flows, "filters": filters, "rules": rules, "known": len(filters)+len(rules) > 0,
	}}
	f.Severity, f.LastHopAlive, f.Packets = model.Critical, v.Place(v.LinkName(link), model.Egress), uint64(len(flows))
	if p := model.First(v.Pods, func(p *model.Pod) bool { return p.LinkIndex == link }); p != nil {
		f.Page, f.Severity, f.Facts["router"] = "UnexplainedDrop-router", model.Warning, p
		f.LastHopAlive = v.Place(v.Owners[flows[0].Original.Src][0].Link, model.Ingress)
	}
	for _, x := range flows {
		f.Pods, f.Peers = model.With(f.Pods, x.Original.Src), model.With(f.Peers, model.Host(x.Original.Dst))
	}
	return f
}

// undelivered is the finding on pods' packets that arrived by one link and are on none.
func undelivered(v *node.Index, list []node.Undelivered) fault.Fault {
	in := list[0].In
	filters, rules := takers(v, in.IfIndex, model.Ingress)
	f := fault.Fault{Page: "UnexplainedDrop-undelivered", Facts: words.Facts{
		"link": v.LinkName(in.IfIndex), "list": list, "filters": filters, "rules": rules, "known": len(filters)+len(rules) > 0,
	}}
	f.Severity, f.LastHopAlive = model.Critical, v.Place(v.LinkName(in.IfIndex), model.Ingress)
	for _, u := range list {
		f.Pods, f.Packets = append(f.Pods, u.Addr), f.Packets+u.Lost
		if u.Delivered > 0 {
			f.Severity = model.Warning
		}
		for p := range model.Each(v.Peers) {
			if p.Local == u.Addr && p.In.Packets > 0 && !v.FlowsOf(p).NewReplied {
				f.Peers = model.With(f.Peers, model.Host(p.Remote))
			}
		}
	}
	return f
}

func unexplained(v *node.Index, k dropKind, l *node.Lost) fault.Fault {
	first := node.MostDropped(l.Drops)[0]
	means, broken := first.Means(), refused(first)
	var rules []*model.PacketRule
	var pod *model.Pod
	switch ttls := entryTTLs(v, first); {
	case first.Is(model.Expired) && ttls == 1<<1 && v.Owners[first.Src] != nil:
		means, broken, pod = "low", true, v.Owners[first.Src][0]
	case first.Is(model.Expired) && ttls != 0 && ttls&(1<<1) == 0:
		means, broken, rules = "lowered", true, model.Chosen(v.PacketRules, (*model.PacketRule).SetsTTL)
	case atLoopback(first):
		means = "loopback"
	}
	ends, from, to := nothingPasses(v, l), first.Src, first.Dst
	if v.Owners[from] == nil {
		from, to = to, from
	}
	f := fault.Fault{Lost: l, Facts: words.Facts{
		"reason": k.reason, "location": k.location, "means": means, "from": from, "to": to,
		"silent": []netip.Addr{ends.Local, ends.Remote}, "rules": rules, "link": first.Link, "pod": pod,
		"takers": forwards(v, v.PacketOf(first)),
	}}
	if broken && l.Lasting() || ends.Local.IsValid() {
		f.Severity = model.Warning
	}
	// A packet dropped on the way out had been routed to the link; any other came in by it.
	f.LastHopAlive = v.Place(first.Link, model.Ingress)
	if node.Sending(first) {
		f.LastHopAlive.Direction = model.Egress
	}
	return f
}

// entryTTLs are the TTLs, as bits, that a pod's packets had where they came into the node. Where none is as low as what
// expired, a rule of this node lowered it; where all are, so the pod sends them, which traceroute does not.
func entryTTLs(v *node.Index, d *model.Drop) (ttls uint64) {
	pod := v.Sender(d)
	side := model.Either(pod == d.Src, model.AsSource, model.AsDestination)
	own := model.First(v.Pods, func(p *model.Pod) bool { return p.Has(pod) })
	for _, h := range v.HopsOf[pod] {
		entry := v.IsUplink(h.IfIndex) || side == model.AsSource && own != nil && own.LinkIndex == h.IfIndex
		if entry && h.Direction == model.Ingress && h.Side == side {
			ttls |= h.TTLs
		}
	}
	return ttls
}

// atLoopback reports whether a packet for a loopback address came by another link.
func atLoopback(d *model.Drop) bool { return d.Dst.IsLoopback() && d.Is(model.NotLocalNet) }

// refused reports whether a drop is of a kind that no healthy network has for long.
func refused(d *model.Drop) bool { return d.Is(model.Broken) || atLoopback(d) }

// nothingPasses are two ends whose drops go on while no flow shows that packets get from one to the other, those that
// lost most.
// They are not valid where there are none, or where healthy networks drop so: by limits, and what is asked at
// once of IPv6 on a node that leads nowhere by it.
func nothingPasses(v *node.Index, l *node.Lost) (most node.Pair) {
	if !v.Has(model.SourceConntrack) {
		return most
	}
	byPair := map[node.Pair]*node.Lost{}
	for _, d := range l.Drops {
		if d.Is(model.Ordinary|model.NoRoom) || d.Is(model.NoSocket) && !v.Has(model.SourcePods) || !model.Unicast(d.Src) || !model.Unicast(d.Dst) ||
			d.Src.Is6() && d.Is(model.LookupRefused) && !node.HasDefault(v, true) {
			continue
		}
		model.GetOrInsert(byPair, node.Pair{Local: d.Src, Remote: d.Dst}).Add(v, d)
	}
	maps.DeleteFunc(byPair, func(_ node.Pair, of *node.Lost) bool { return !of.Lasting() })
	for f := range model.Each(v.Flows) {
		if !f.Replied || f.Start.IsZero() || len(byPair) == 0 {
			continue
		}
		// Connection tracking sees a reply before the node may drop it. That one end acknowledges it shows that it passed.
		passes := []model.Tuple{f.Original, {Src: f.Reply.Dst, Dst: f.Reply.Src}}
		if f.Established() {
			passes = append(passes, f.Reply, model.Tuple{Src: f.Original.Dst, Dst: f.Original.Src})
		}
		for _, t := range passes {
			delete(byPair, node.Pair{Local: t.Src, Remote: t.Dst})
		}
	}
	var packets uint64
	for k, of := range byPair {
		if of.Packets > packets || of.Packets == packets &&
			cmp.Or(k.Local.Compare(most.Local), k.Remote.Compare(most.Remote)) < 0 {
			most, packets = k, of.Packets
		}
	}
	return most
}
