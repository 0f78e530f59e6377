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
	Objects: fault.Objects{"bridge entry.MAC", "link missing", "link"}, Else: fault.Else{"StaleFDB-none unused", "StaleFDB-none unread", "StaleFDB-end other"}}

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

// tunnelHop is a next hop of a tunnel whose FDB entry is wrong or missing, with the node that the cluster's list has for what is
// behind it, and that node's address, where they are known.
type tunnelHop struct {
	node.TunnelEnd
	Neighbor *model.Neighbor
	Node     *model.ClusterNode
	At       netip.Addr
	// Other is the next hop that answers at the same end.
	Other *node.TunnelEnd
	Peers []netip.Addr
}

// locate adds the node with an address.
func (h *tunnelHop) locate(v *node.Index, remote netip.Addr) {
	if far := v.NodeOf(v.Remote(remote)); far != nil && len(node.Internal(far)) > 0 {
		h.Node, h.At = far, node.Internal(far)[0]
	}
}

// tunnelEndsWrong are the findings on VXLANs that send the packets of silent next hops to a node that is another's: by the
// nodes' addresses, or since it sends those of a next hop that answers there as well. What writes a link's entries is one cause.
func tunnelEndsWrong(v *fault.Input) {
	type place struct {
		link int
		end  netip.Addr
	}
	type silent struct {
		node.Lost
		first node.TunnelEnd
	}
	type astray struct {
		node.Lost
		hops []tunnelHop
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
	var byLink node.Groups[int, astray]
	for hop, g := range byHop.All() {
		h := tunnelHop{TunnelEnd: g.first, Peers: node.Sorted(g.Peers)}
		other, wrong := answers[place{hop.Ifindex, h.End}]
		// An address that a node borrowed has a route of its own, and so have blocks that are no node's range.
		if route := v.Lookup(h.Remote); route != nil && route.Dst == v.Remote(h.Remote) {
			h.locate(v.Index, h.Remote)
		}
		if h.Node != nil {
			wrong = !slices.Contains(node.Internal(h.Node), h.End)
		} else if wrong = wrong && other.MAC != h.MAC; wrong {
			h.Other = &other
		}
		if wrong && g.Requests >= node.MinAsks {
			x := byLink.Of(hop.Ifindex)
			x.Merge(&g.Lost)
			x.hops = append(x.hops, h)
		}
	}
	for link, x := range byLink.All() {
		name := v.LinkName(link)
		v.Report(fault.Fault{Page: "StaleFDB-end", Lost: &x.Lost, Finding: model.Finding{LastHopAlive: v.Place(name, model.Egress)},
			Facts: words.Facts{"hops": x.hops, "link": name, "requests": x.Requests, "peers": node.Sorted(x.Peers),
				"other": slices.ContainsFunc(x.hops, func(h tunnelHop) bool { return h.Other != nil })}})
	}
}

// tunnelEndsUnknown are the findings on VXLANs that do not know the node of next hops, since they have no forwarding entry
// for their MACs.
func tunnelEndsUnknown(v *fault.Input) {
	hopOf := func(d *model.Drop) (hop node.Question) {
		r := v.Lookup(d.Dst)
		if !d.Is(model.NoTunnelEnd) || r == nil || !v.IsTunnel(r.IfIndex) || !v.OfPod(d) {
			return hop
		}
		return node.Question{Ifindex: r.IfIndex, Addr: cmp.Or(r.Gateway, d.Dst)}
	}
	for link, l := range fault.LostBy(v, func(d *model.Drop) (link int, pod netip.Addr) {
		if link = hopOf(d).Ifindex; link != 0 {
			pod = v.Sender(d)
		}
		return link, pod
	}) {
		f := fault.Fault{Page: "StaleFDB-none", Lost: l}
		var hops node.Groups[netip.Addr, tunnelHop]
		var lacking, unknown []tunnelHop
		for _, d := range l.Drops {
			h := hops.Of(hopOf(d).Addr)
			h.Peers = model.With(h.Peers, node.OtherEnd(d, v.Sender(d)))
		}
		unused := unusedEnds(v.Index, link)
		for hop, h := range hops.All() {
			h.Hop = hop
			n := model.First(v.Neighbors, func(n *model.Neighbor) bool { return n.IfIndex == link && n.Addr == hop })
			if n != nil && path.Resolved(n) {
				h.Neighbor = n
			}
			h.locate(v.Index, h.Peers[0])
			if lacking = append(lacking, *h); h.Node == nil {
				unknown = append(unknown, *h)
			}
		}
		if !slices.ContainsFunc(lacking, func(h tunnelHop) bool { return h.Neighbor != nil }) {
			unused = nil
		}
		name := v.LinkName(link)
		f.LastHopAlive = v.Place(name, model.Egress)
		f.Facts = words.Facts{"missing": true, "hops": lacking, "unknown": unknown, "link": name, "unused": unused,
			"unread": !v.Has(model.SourceNeighbors)}
		v.Report(f)
	}
}

// String is the next hop's address.
func (h tunnelHop) String() string { return h.Hop.String() }

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
