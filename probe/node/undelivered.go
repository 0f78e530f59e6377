package node

import (
	"cmp"
	"net/netip"
	"slices"

	"github.com/lasthop/lasthop/probe/model"
	"github.com/lasthop/lasthop/probe/path"
)

// Undelivered are packets for a pod that arrived and left by no link, while no drop of them was counted.
type Undelivered struct {
	Addr netip.Addr
	Pod  *model.Pod
	// In is what arrived, by one link. Delivered of it left by the pod's link, Lost by none.
	In              *model.HopCount
	Delivered, Lost uint64
}

// Undelivered lists these packets. Where some may pass the pod's link unseen, or be meant for others, nothing is known.
func (v *Index) Undelivered() (out []Undelivered) {
	if !v.Has(model.SourceTC, model.SourceDrops, model.SourceLinks, model.SourcePods, model.SourceConntrack) || v.MayRedirect() ||
		slices.ContainsFunc(v.PacketRules, func(r model.PacketRule) bool { return r.Target == "TPROXY" }) {
		return nil
	}
	// What rules lead elsewhere, and what waits for a MAC.
	elsewhere, drops := AddrSet{}, model.Grouped(v.Whole.Traffic.Drops, func(d *model.Drop) netip.Addr { return d.Dst })
	for f := range model.Each(v.Flows) {
		if f.Original.Dst != f.Reply.Src {
			elsewhere.Add(f.Original.Dst)
		}
	}
	for n := range model.Each(v.Neighbors) {
		if !path.Resolved(n) && !n.Proxy {
			elsewhere.Add(n.Addr)
		}
	}
	for p := range model.Each(v.Pods) {
		if l := v.ByIndex[p.LinkIndex]; l == nil || l.Role != model.RolePodLink || !v.PresentWholeWindow(p) {
			continue
		}
		for _, a := range PodAddrs(p) {
			if len(v.Owners[a]) == 1 && v.Own[a] == nil && !v.Classifier.Past[a] && !elsewhere[a] && v.Traffic.Lost.Of(a).Hops == 0 {
				u := v.undelivered(p, a, drops[a])
				// The counters of two links are not read at one instant: what comes in a second may be between them.
				apart := float64(u.In.Packets) / max(v.Window.Duration().Seconds(), 1)
				if u.Lost >= ManyRefused && u.Lost*DroppedShare >= u.In.Packets && float64(u.Lost) > apart {
					out = append(out, u)
				}
			}
		}
	}
	return out
}

func (v *Index) undelivered(p *model.Pod, a netip.Addr, drops []*model.Drop) Undelivered {
	u := Undelivered{Addr: a, Pod: p, In: &model.HopCount{}}
	var away, fromUplink, inside uint64
	for _, h := range v.HopsOf[a] {
		l := v.ByIndex[h.IfIndex]
		switch {
		case l == nil || h.Side != model.AsDestination:
		case h.Direction == model.Egress && h.IfIndex == p.LinkIndex:
			fromUplink, inside = h.FromUplink, h.FromInside
		case h.Direction == model.Egress:
			away += h.Packets
		case (l.Role == model.RoleUplink || l.Role == model.RoleTunnel) && h.Packets > u.In.Packets:
			u.In = h
		}
	}
	in := v.ByIndex[u.In.IfIndex]
	if in == nil || !u.In.First.IsZero() && !model.Lasted(u.In.First, u.In.Last) {
		return u
	}
	// Frames for others' MACs are copies, or not for this node.
	mine := append(v.Takes(in), p.MAC)
	for _, m := range v.MACPairs[a] {
		if m.IfIndex == in.Index && m.Direction == model.Ingress && m.Side == model.AsDestination &&
			!m.Dst.IsZero() && !slices.Contains(mine, m.Dst) {
			away += m.Packets
		}
	}
	for _, d := range drops {
		if d.Netns == 0 || d.Netns != p.Netns {
			away += d.Packets
		}
	}
	// A bridge or tunnel may have handed them on in its own name, as other pods' are.
	if u.Delivered = fromUplink; fromUplink > 0 || in.Role != model.RoleUplink || in.Master != 0 {
		u.Delivered += inside
	}
	u.Lost = u.In.Packets - min(u.In.Packets, u.Delivered+away)
	return u
}

// Unsent are flows of pods, by the uplink that they are routed to, of which no packet got there: connection tracking has
// them, so that they passed the node's rules, nothing replied, and no drop was counted. Where a route of the pod's own leads
// by another pod, its link is the one.
func (v *Index) Unsent() map[int][]*model.Flow {
	out := map[int][]*model.Flow{}
	if !v.Has(model.SourceTC, model.SourceDrops, model.SourceLinks, model.SourcePods, model.SourceConntrack, model.SourceRoutes) ||
		v.MayRedirect() {
		return out
	}
	silent := model.Chosen(v.Flows, func(f *model.Flow) bool {
		// What leaves with an address of nobody here is counted nowhere.
		counted := v.Own[f.Reply.Dst] != nil || len(v.Owners[f.Reply.Dst]) > 0
		return !f.Replied && !f.Start.IsZero() && v.Window.Settled(f.Start) && len(v.Owners[f.Original.Src]) == 1 && v.Elsewhere(f.Reply.Src) && counted
	})
	if len(silent) == 0 {
		return out
	}
	seen := make(map[Pair]bool, len(v.Whole.Traffic.Peers)+len(v.Whole.Traffic.Drops))
	for p := range model.Each(v.Whole.Traffic.Peers) {
		seen[Pair{p.Local, model.Either(p.Range.IsValid(), netip.Addr{}, p.Remote)}] = true
	}
	for d := range model.Each(v.Whole.Traffic.Drops) {
		seen[Pair{d.Src, d.Dst}] = true
	}
	for _, f := range silent {
		from, as, to := f.Original.Src, f.Reply.Dst, f.Reply.Src
		if seen[Pair{as, to}] || seen[Pair{from, to}] || seen[Pair{as, netip.Addr{}}] || v.Traffic.Lost.Of(as).Peers > 0 {
			continue
		}
		if r := path.PodLed(v.Owners[from][0], FlowPacket(f)); r != nil && len(v.Owners[r.Gateway]) == 1 {
			link := v.Owners[r.Gateway][0].LinkIndex
			out[link] = append(out[link], f)
			continue
		}
		if !v.givesNode(from) {
			continue
		}
		h := v.Routing().Lookup(v.SentBy(from, to)).Hops
		if len(h) != 1 || !v.IsUplink(h[0].IfIndex) || v.ByIndex[h[0].IfIndex].Master != 0 {
			continue
		}
		if n := v.NeighborAt(cmp.Or(h[0].Gateway, to), h[0].IfIndex); n != nil && path.Resolved(n) {
			out[h[0].IfIndex] = append(out[h[0].IfIndex], f)
		}
	}
	return out
}

// givesNode reports whether frames from a pod's address are for the node, as far as that is known. A bridge has connection
// tracking see others as well.
func (v *Index) givesNode(a netip.Addr) bool {
	p := v.Owners[a][0]
	l, known := v.Router(p), false
	for _, m := range v.MACPairs[a] {
		if m.IfIndex == p.LinkIndex && m.Direction == model.Ingress && m.Side == model.AsSource {
			if l == nil || slices.Contains(v.Takes(l), m.Dst) {
				return true
			}
			known = true
		}
	}
	return !known
}
