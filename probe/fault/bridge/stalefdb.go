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
	Objects: fault.Objects{"bridge entry.MAC", "link missing", "link"},
	Else:    fault.Else{"StaleFDB-none unused", "StaleFDB-none unread", "StaleFDB-end other"}}

func staleFDB(v *fault.Input) {
	for e := range model.Each(v.FDB) {
		if !e.Static && !e.Local {
			continue
		}
		// The port's own address, or a pod's behind it: the MAC is there twice.
		if at := v.ByIndex[e.IfIndex]; at == nil || at.MAC == e.MAC {
			continue
		}
		if b := v.ByIndex[e.Bridge]; b != nil && b.MAC == e.MAC && e.IfIndex != b.Index && !e.Local && path.AppliesTo(e, b, b) {
			v.Report(misforwarded(v, e, nil, model.Flat(bridgePods(v.Index, b), node.PodAddrs)))
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
			v.Report(misforwarded(v, e, here[0], node.PodAddrs(here[0])))
		}
	}
	tunnelEndsUnknown(v)
	tunnelEndsWrong(v)
}

// tunnelHop is a next hop of a tunnel whose FDB entry is wrong or missing, with what was lost to it.
type tunnelHop struct {
	node.Lost
	node.TunnelEnd
	Neighbor *model.Neighbor
	// Node is the one that the cluster has for what is behind the hop, At its address; nil where that is not known.
	Node *model.ClusterNode
	At   netip.Addr
	// Other is the next hop that answers at the same end.
	Other node.TunnelEnd
}

// String is the next hop's address, Asked are the addresses behind it.
func (h *tunnelHop) String() string      { return h.Hop.String() }
func (h *tunnelHop) Asked() []netip.Addr { return node.Sorted(h.Peers) }

// locate adds the node with an address.
func (h *tunnelHop) locate(v *node.Index, remote netip.Addr) {
	if far := v.NodeOf(v.Remote(remote)); far != nil && len(node.Internal(far)) > 0 {
		h.Node, h.At = far, node.Internal(far)[0]
	}
}

// ofTunnel is the finding on next hops of one tunnel: one program writes all its entries.
func ofTunnel(v *fault.Input, page string, link int, hops []*tunnelHop, facts words.Facts) fault.Fault {
	l, name := &node.Lost{}, v.LinkName(link)
	for _, h := range hops {
		l.Merge(&h.Lost)
	}
	f := fault.Fault{Page: page, Lost: l, Facts: facts}
	f.Facts["link"], f.Facts["hops"], f.Facts["requests"], f.Facts["peers"] = name, hops, l.Requests, node.Sorted(l.Peers)
	f.LastHopAlive = v.Place(name, model.Egress)
	return f
}

// tunnelEndsWrong are the findings on VXLANs that send the packets of silent next hops to a node that is another's: by the
// nodes' addresses, or since it sends those of a next hop that answers there as well.
func tunnelEndsWrong(v *fault.Input) {
	type place struct {
		link int
		end  netip.Addr
	}
	var byHop node.Groups[node.Question, tunnelHop]
	answers := map[place]node.TunnelEnd{}
	for p := range model.Each(v.TunnelPairs()) {
		switch e := p.End; {
		case e.MAC.IsZero():
		case p.Answered:
			answers[place{p.IfIndex, e.End}] = e
		case !v.Silenced(p.Pod, model.Host(p.Remote)):
			h := byHop.Of(node.Question{Ifindex: p.IfIndex, Addr: e.Hop})
			h.TunnelEnd = e
			h.AddPair(p.Peer, node.SetOf([]netip.Addr{p.Pod}), v.Asked(p.Peer))
		}
	}
	var byLink node.Groups[int, []*tunnelHop]
	for hop, h := range byHop.All() {
		other, wrong := answers[place{hop.Ifindex, h.End}]
		// An address that a node borrowed has a route of its own, and so have blocks that are no node's range.
		if route := v.Lookup(h.Remote); route != nil && route.Dst == v.Remote(h.Remote) {
			h.locate(v.Index, h.Remote)
		}
		if h.Node != nil {
			wrong = !slices.Contains(node.Internal(h.Node), h.End)
		} else if wrong = wrong && other.MAC != h.MAC; wrong {
			h.Other = other
		}
		if wrong && h.Requests >= node.MinAsks {
			node.Put(&byLink, hop.Ifindex, h)
		}
	}
	for link, hops := range byLink.All() {
		shared := slices.ContainsFunc(*hops, func(h *tunnelHop) bool { return h.Node == nil })
		v.Report(ofTunnel(v, "StaleFDB-end", link, *hops, words.Facts{"other": shared}))
	}
}

// tunnelEndsUnknown are the findings on VXLANs that do not know the node of next hops, since they have no forwarding entry
// for their MACs.
func tunnelEndsUnknown(v *fault.Input) {
	var byLink node.Groups[int, []*tunnelHop]
	for hop, l := range fault.LostBy(v, func(d *model.Drop) (hop node.Question, pod netip.Addr) {
		r := v.Lookup(d.Dst)
		if !d.Is(model.NoTunnelEnd) || r == nil || !v.IsTunnel(r.IfIndex) || !v.OfPod(d) {
			return hop, pod
		}
		return node.Question{Ifindex: r.IfIndex, Addr: cmp.Or(r.Gateway, d.Dst)}, v.Sender(d)
	}) {
		h := &tunnelHop{Lost: *l, TunnelEnd: node.TunnelEnd{Hop: hop.Addr}}
		if n := v.NeighborAt(hop.Addr, hop.Ifindex); n != nil && path.Resolved(n) {
			h.Neighbor = n
		}
		h.locate(v.Index, h.Asked()[0])
		node.Put(&byLink, hop.Ifindex, h)
	}
	for link, hops := range byLink.All() {
		facts := words.Facts{"missing": true, "unread": !v.Has(model.SourceNeighbors),
			"unknown": model.Filter(*hops, func(h *tunnelHop) bool { return h.Node == nil })}
		if slices.ContainsFunc(*hops, func(h *tunnelHop) bool { return h.Neighbor != nil }) {
			facts["unused"] = unusedEnds(v.Index, link)
		}
		v.Report(ofTunnel(v, "StaleFDB-none", link, *hops, facts))
	}
}

// unusedEnds are a tunnel's entries for MACs that no next hop has: the neighbour entry of one may be what is wrong.
func unusedEnds(v *node.Index, link int) []*model.FDBEntry {
	return model.Chosen(v.FDB, func(e *model.FDBEntry) bool {
		return e.IfIndex == link && e.End.IsValid() && !e.MAC.IsZero() &&
			model.First(v.Neighbors, func(n *model.Neighbor) bool { return n.IfIndex == link && n.MAC == e.MAC }) == nil
	})
}

// misforwarded is the finding on an entry that leads frames elsewhere than to a pod or, with none, to the bridge itself: its
// pods reach each other then, and nobody else.
func misforwarded(v *fault.Input, e *model.FDBEntry, p *model.Pod, pods []netip.Addr) fault.Fault {
	bridge, side := v.LinkName(e.Bridge), model.Either(p == nil, model.AsSource, model.AsDestination)
	f := fault.Fault{CutOff: pods, Claims: func(d *model.Drop) bool {
		return d.FromOrTo(pods) && (d.Is(model.NeighborFailed|model.NotBridged) || d.Is(model.OtherHost) && d.DstMAC == e.MAC)
	}}
	if p == nil {
		of := node.SetOf(pods)
		f.CutOff, f.Silences = nil, func(asker netip.Addr, asked netip.Prefix) bool { return of[asker] != of[asked.Addr()] }
	}
	var frames uint64
	if p == nil || e.IfIndex != p.LinkIndex {
		for _, a := range pods {
			frames += v.FramesBetween(a, e.IfIndex, model.Egress, side, e.MAC)
		}
	}
	f.Pods, f.LastHopAlive, f.Packets = pods, v.Place(bridge, model.Egress), max(frames, v.Dropped(f.Claims))
	f.Facts = words.Facts{
		"entry": e, "pod": p, "bridge": bridge, "at": v.LinkName(e.IfIndex), "self": e.IfIndex == e.Bridge,
		"frames": frames, "waited": v.Dropped(unresolvedFor(pods)), "router": p == nil,
	}
	return f
}
