package node

import (
	"cmp"
	"net/netip"
	"slices"

	"github.com/lasthop/lasthop/probe/model"
	"github.com/lasthop/lasthop/probe/path"
)

// SilentHop is a next hop beyond a link that does not tell its MAC, and what was lost to it. The link is an
// uplink, a bridge that holds one, or another that does not lead to this node's pods, such as a tunnel.
type SilentHop struct {
	// Gateway says that packets for other addresses go by it.
	Gateway bool
	// askers are the addresses of pods that ask themselves.
	Pods, Askers AddrSet
	Packets      uint64
	// Flows are those of the window that go by it with the node's address.
	Flows uint64
	Resolution
}

// AwaitTranslated adds what pods send with the node's address: its drops bear that address, and are not
// counted. That no flow by a next hop is replied to, and that the hop has no MAC, tells as much.
func (v *Index) AwaitTranslated(found map[Question]*SilentHop) {
	for n := range model.Each(v.Neighbors) {
		k := Question{n.IfIndex, n.Addr}
		if !v.Outer[n.IfIndex] || path.Resolved(n) || found[k] != nil || !AskedBeyond(v, k).InVain() {
			continue
		}
		m, replied := SilentHop{Gateway: v.NextHops[n.Addr]}, false
		for f := range model.Each(v.Flows) {
			if f.Start.IsZero() || f.Reply.Dst == f.Original.Src || len(v.Owners[f.Original.Src]) == 0 || !v.LeavesBy(f, k) {
				continue
			}
			replied = replied || f.Replied
			m.Pods.Add(f.Original.Src)
			m.Flows++
		}
		if !replied && m.Flows > 0 {
			found[k] = &m
		}
	}
}

// LeavesBy reports whether the packets of a flow go by a next hop.
func (v *Index) LeavesBy(f *model.Flow, k Question) bool {
	return slices.ContainsFunc(v.Routing().Lookup(v.Sent(FlowPacket(f))).Hops, func(h path.NextHop) bool {
		return h.IfIndex == k.Ifindex && cmp.Or(h.Gateway, f.Reply.Src) == k.Addr
	})
}

// AskedBeyond counts what left the node by a link, or by the uplinks or pods' links that are ports of it, to ask for an address, and
// the replies that came in. A question of the node passes the bridge and the port, a pod's the port alone. Where a queue drops much
// of what passes, it may have dropped the questions.
func AskedBeyond(v *Index, k Question) Resolution {
	for q := range model.Each(v.Queues) {
		l := v.ByIndex[q.IfIndex]
		if l != nil && Overfull(q) && (l.Index == k.Ifindex || l.Master == k.Ifindex && l.Role == model.RoleUplink) {
			return Resolution{}
		}
	}
	asked := v.Resolutions(model.Egress)
	link, ports := asked[k], Resolution{}
	for _, l := range v.ByIndex {
		switch t := asked[Question{l.Index, k.Addr}]; {
		case l.Master != k.Ifindex:
		case l.Role == model.RoleUplink:
			ports = Resolution{ports.Requests + t.Requests, ports.Replies + t.Replies}
		case !v.Outer[k.Ifindex]: // Each port sends a copy.
			ports = Resolution{max(ports.Requests, t.Requests), ports.Replies + t.Replies}
		}
	}
	return Resolution{max(link.Requests, ports.Requests), max(link.Replies, ports.Replies)}
}

// findTranslated are the pods whose packets go with the node's address, by that and the remote one.
func (v *Index) findTranslated() map[Pair][]netip.Addr {
	out := map[Pair][]netip.Addr{}
	for f := range model.Each(v.Flows) {
		if src := f.Original.Src; src != f.Reply.Dst && len(v.Owners[src]) > 0 {
			k := Pair{f.Reply.Dst, f.Reply.Src}
			out[k] = append(out[k], src)
		}
	}
	return out
}

// AwaitedHop is the address whose MAC a freed packet waited for. Of several hops
// over the same link it is the one that is not resolved.
func AwaitedHop(v *Index, d *model.Drop) (netip.Addr, bool) {
	q := v.SentBy(d.Src, d.Dst)
	if v.Classifier.Samples.Of(d) != nil {
		q = v.Sent(v.PacketOf(d)) // Rules may look at its ports.
	}
	decision := v.Routing().Lookup(q)
	var hops []netip.Addr
	for _, h := range decision.Hops {
		if h.IfIndex == d.IfIndex {
			hops = append(hops, cmp.Or(h.Gateway, d.Dst))
		}
	}
	if len(hops) > 1 {
		hops = slices.DeleteFunc(hops, func(a netip.Addr) bool {
			n := v.NeighborAt(a, d.IfIndex)
			return n != nil && path.Resolved(n)
		})
	}
	if len(hops) != 1 || len(v.Owners[hops[0]]) > 0 || v.Classifier.Past[hops[0]] {
		return netip.Addr{}, false
	}
	return hops[0], true
}
