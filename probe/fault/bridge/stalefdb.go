package bridge

import (
	"cmp"
	"net/netip"
	"slices"

	"github.com/lasthop/lasthop/probe/fault"
	"github.com/lasthop/lasthop/probe/model"
	"github.com/lasthop/lasthop/probe/node"
	"github.com/lasthop/lasthop/probe/path"
	"github.com/lasthop/lasthop/probe/words"
)

// StaleFDB reports forwarding entries of bridges and tunnels that lead frames to the wrong port or node.
var StaleFDB = fault.Kind{Code: "StaleFDB", Severity: model.Critical, Find: staleFDB,
	Needs:   fault.Sources{model.SourceLinks, model.SourcePods, model.SourceBridge},
	Ends:    fault.Hops{model.HopBridge, model.HopNeighbor, model.HopPod},
	Objects: fault.Objects{"bridge entry.MAC", "link hop"}, Else: fault.Else{"StaleFDB-none unused", "StaleFDB-none unread", "StaleFDB-end other"}}

func staleFDB(v *fault.Input) {
	for e := range model.Each(v.FDB) {
		if !e.Static && !e.Local {
			continue
		}
		// The port's own address, or a pod's behind it: the MAC is there twice.
		if at := v.ByIndex[e.IfIndex]; at == nil || at.MAC == e.MAC {
			continue
		}
		var here []*model.Pod
		behind := false
		for p := range model.Each(v.Pods) {
			if b := v.BridgeOf(p); p.MAC == e.MAC && b != nil && path.AppliesTo(e, b, v.ByIndex[p.LinkIndex]) {
				here = append(here, p)
				behind = behind || p.LinkIndex == e.IfIndex && !e.Local
			}
		}
		if len(here) > 0 && !behind && v.PresentWholeWindow(here[0]) {
			v.Report(misforwarded(v, e, here[0]))
		}
	}
	tunnelEndsUnknown(v)
	tunnelEndsWrong(v)
}

// tunnelEndsWrong are the findings on next hops of a VXLAN that are silent, and whose packets it sends to a node that is another's:
// by the nodes' addresses, or since it sends those of a next hop that answers there as well.
func tunnelEndsWrong(v *fault.Input) {
	type place struct {
		link int
		end  netip.Addr
	}
	type silent struct {
		node.Lost
		first node.TunnelEnd
	}
	var byHop node.Groups[node.Question, silent]
	answers := map[place]node.TunnelEnd{}
	for p := range model.Each(v.TunnelPairs()) {
		switch e := p.End; {
		case e.MAC.IsZero():
		case p.Answered:
			answers[place{p.IfIndex, e.End}] = e
		case !v.Silenced(p.Pod, model.Host(p.Remote)):
			g := byHop.Of(node.Question{Ifindex: p.IfIndex, Addr: e.Hop})
			g.first = e
			g.AddPair(p.Peer, node.SetOf([]netip.Addr{p.Pod}), v.Asked(p.Peer))
		}
	}
	for hop, g := range byHop.All() {
		e, link := g.first, v.LinkName(hop.Ifindex)
		other, shared := answers[place{hop.Ifindex, e.End}]
		f := fault.Fault{Page: "StaleFDB-end", Lost: &g.Lost, Facts: words.Facts{
			"end": e, "link": link, "requests": g.Requests, "peers": node.Sorted(g.Peers)}}
		f.Confidence = model.Likely
		// An address that a node borrowed has a route of its own, and so have blocks that are no node's range.
		cidr, route := v.Remote(e.Remote), v.Lookup(e.Remote)
		if far := v.NodeOf(cidr); far != nil && len(node.Internal(far)) > 0 && route != nil && route.Dst == cidr {
			f.Facts["node"], f.Facts["at"] = far, node.Internal(far)[0]
			if shared = !slices.Contains(node.Internal(far), e.End); shared {
				f.Confidence = model.Proven
			}
		} else if shared = shared && other.MAC != e.MAC; shared {
			f.Facts["other"] = other
		}
		if f.LastHopAlive = v.Place(link, model.Egress); shared && g.Requests >= node.MinAsks {
			v.Report(f)
		}
	}
}

// tunnelEndsUnknown are the findings on next hops of a VXLAN whose node it does not know, since it has
// no forwarding entry for the next hop's MAC.
func tunnelEndsUnknown(v *fault.Input) {
	for hop, l := range fault.LostBy(v, func(d *model.Drop) (hop node.Question, pod netip.Addr) {
		r := v.Lookup(d.Dst)
		if !d.Is(model.NoTunnelEnd) || r == nil || !v.IsTunnel(r.IfIndex) || !v.OfPod(d) {
			return hop, pod
		}
		return node.Question{Ifindex: r.IfIndex, Addr: cmp.Or(r.Gateway, d.Dst)}, v.Sender(d)
	}) {
		f := fault.Fault{Page: "StaleFDB-none", Lost: l, Facts: words.Facts{
			"hop": hop.Addr, "link": v.LinkName(hop.Ifindex), "unread": !v.Has(model.SourceNeighbors)}}
		n := model.First(v.Neighbors, func(n *model.Neighbor) bool { return n.IfIndex == hop.Ifindex && n.Addr == hop.Addr })
		if n != nil && path.Resolved(n) {
			f.Facts["neighbor"], f.Facts["unused"] = n, unusedEnds(v.Index, hop.Ifindex)
		}
		if far := v.NodeOf(v.Remote(node.Sorted(l.Peers)[0])); far != nil && len(node.Internal(far)) > 0 {
			f.Facts["node"], f.Facts["at"] = far, node.Internal(far)[0]
		}
		f.LastHopAlive = v.Place(v.LinkName(hop.Ifindex), model.Egress)
		v.Report(f)
	}
}

// unusedEnds are a tunnel's entries for MACs that no next hop has: the neighbour entry of one may be what is wrong.
func unusedEnds(v *node.Index, link int) []*model.FDBEntry {
	return model.Chosen(v.FDB, func(e *model.FDBEntry) bool {
		return e.IfIndex == link && e.End.IsValid() && !e.MAC.IsZero() &&
			model.First(v.Neighbors, func(n *model.Neighbor) bool { return n.IfIndex == link && n.MAC == e.MAC }) == nil
	})
}

func misforwarded(v *fault.Input, e *model.FDBEntry, p *model.Pod) fault.Fault {
	pods, bridge := node.PodAddrs(p), v.LinkName(e.Bridge)
	f := fault.Fault{CutOff: pods, Claims: func(d *model.Drop) bool {
		return d.FromOrTo(pods) && (d.Is(model.NeighborFailed|model.NotBridged) || d.Is(model.OtherHost) && d.DstMAC == e.MAC)
	}}
	var frames uint64
	if e.IfIndex != p.LinkIndex {
		for _, a := range pods {
			frames += v.FramesBetween(a, e.IfIndex, model.Egress, model.AsDestination, e.MAC)
		}
	}
	f.Pods, f.LastHopAlive, f.Packets = pods, v.Place(bridge, model.Egress), max(frames, v.Dropped(f.Claims))
	f.Facts = words.Facts{
		"entry": e, "pod": p, "bridge": bridge, "at": v.LinkName(e.IfIndex), "self": e.IfIndex == e.Bridge,
		"frames": frames, "waited": v.Dropped(unresolvedFor(pods)),
	}
	return f
}
