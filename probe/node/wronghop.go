package node

import (
	"cmp"
	"maps"
	"net/netip"
	"slices"

	"github.com/lasthop/lasthop/probe/model"
	"github.com/lasthop/lasthop/probe/path"
)

// WrongHop is a neighbour entry of the node for a next hop that most likely holds
// a wrong MAC: no packet that was sent there was answered.
type WrongHop struct {
	Entry  *model.Neighbor
	Silent []*model.Peer
	// Replies are the MACs with which the next hop answered ARP or neighbour
	// discovery. shared is the one MAC that all others of the link have.
	Replies []model.MAC
	Shared  model.MAC
	Others  []netip.Addr
	// Real is the MAC that frames come from where another machine took the address over.
	Real model.MAC
	// arrives: packets of silent peers come in, though not from the entry's MAC.
	Arrives bool
}

// Pinned reports whether the kernel never asks again for the entry's address.
func Pinned(n *model.Neighbor) bool { return n.State == "PERMANENT" || n.State == "NOARP" }

func (v *Index) isWrongHopMAC(m model.MAC) bool {
	return slices.ContainsFunc(v.WrongHops(), func(w *WrongHop) bool { return w.Entry.MAC == m })
}

// findWrongHops are the node's entries for next hops that are wrong. They depend on no gateway's MAC.
func (v *Index) findWrongHops() []*WrongHop {
	if !v.Has(model.SourceTC, model.SourceNeighbors, model.SourceRoutes) {
		return nil
	}
	entries := map[Question]*model.Neighbor{}
	for n := range model.Each(v.Neighbors) {
		if path.Resolved(n) && v.Outer[n.IfIndex] && len(v.Owners[n.Addr]) == 0 && !v.Classifier.Past[n.Addr] {
			entries[Question{n.IfIndex, n.Addr}] = n
		}
	}
	found, answered := map[*model.Neighbor]*WrongHop{}, map[*model.Neighbor]bool{}
	for p := range model.Each(v.Peers) {
		if p.Out.Packets == 0 || BesideUplink(v, p) {
			continue
		}
		works := v.Answered(p) || p.In.ICMPErrors > 0
		if !works && !v.Unanswered(p) {
			continue
		}
		for _, h := range v.Routing().Lookup(v.SentBy(p.Local, p.Remote)).Hops {
			n := entries[Question{h.IfIndex, cmp.Or(h.Gateway, p.Remote)}]
			switch {
			case n == nil || !v.LeftWith(p, n.MAC):
			case works:
				answered[n] = true
			default:
				if found[n] == nil {
					found[n] = &WrongHop{Entry: n}
				}
				found[n].Silent = append(found[n].Silent, p)
			}
		}
	}
	maps.DeleteFunc(found, func(n *model.Neighbor, w *WrongHop) bool { return answered[n] || !v.isWrong(w) })
	return slices.SortedFunc(maps.Values(found), func(a, b *WrongHop) int { return a.Entry.Addr.Compare(b.Entry.Addr) })
}

// LeftWith reports whether packets of a pair left with a MAC.
func (v *Index) LeftWith(p *model.Peer, to model.MAC) bool {
	return v.FramesBetween(p.Local, p.IfIndex, model.Egress, model.AsSource, to) > 0
}

// isWrong weighs what contradicts an entry whose packets are not answered, and notes it. Silence alone does
// not: the next hop, or what is behind it, may be down.
func (v *Index) isWrong(w *WrongHop) bool {
	n, announced := w.Entry, int64(0)
	for a := range model.Each(v.Traffic.ARP) {
		here, in := v.OnSameLink(a.IfIndex, n.IfIndex), a.Direction == model.Ingress
		if a.Addr != n.Addr || a.Reply != in {
			continue
		}
		switch {
		case !a.Reply && here:
			announced -= int64(a.Packets) // These are answered.
		case a.Reply && a.MAC == n.MAC:
			announced += int64(a.Packets)
		}
		if a.Reply && here && !a.MAC.IsZero() && !slices.Contains(w.Replies, a.MAC) {
			// What was asked of its MAC alone need not say it again (RFC 4861, 4.4).
			w.Replies = append(w.Replies, a.MAC)
		}
	}
	if p := v.Arped(n.Addr); p != nil {
		w.Replies = append(w.Replies, p.MACs...)
	}
	senders := v.SendersOn(n.IfIndex)
	if len(w.Replies) > 0 && !slices.Contains(w.Replies, n.MAC) {
		return true
	}
	if n.MAC.VirtualRouter() {
		// No frame ever comes from there, and its routers have MACs of their own.
		return false
	}
	if len(w.Replies) > 0 {
		return v.takenOver(w, senders, announced)
	}
	same, different := v.otherEntries(n)
	if senders[n.MAC] && (same != 1 || len(different) == 0) {
		return false
	}
	unlike := func(o *model.Neighbor) bool { return o.MAC != different[0].MAC }
	if same == 0 && len(different) > 1 && !slices.ContainsFunc(different, unlike) && senders[different[0].MAC] {
		w.Shared = different[0].MAC
		w.Others = model.Map(different, func(o *model.Neighbor) netip.Addr { return o.Addr })
	}
	w.Arrives = !senders[n.MAC] && len(senders) > 0 &&
		slices.ContainsFunc(w.Silent, func(p *model.Peer) bool { return p.In.Packets > 0 })
	if Pinned(n) {
		// Some plugins pin the nodes that they know, which are next hops too.
		return w.Arrives || !w.Shared.IsZero() || v.GatewayAddrs[n.Addr]
	}
	if n.State == "REACHABLE" {
		// The kernel has heard from that MAC lately that it has the address.
		w.Real = w.Shared
	}
	return w.Arrives && !w.Shared.IsZero() && len(v.SumPeers(w.Silent).Peers) > 1
}

// takenOver reports whether another machine says that it has the next hop's address, and
// notes who really has it: the one whose frames come in, while none comes from that
// machine. Where the two did not both say so, that machine must have announced it unasked.
func (v *Index) takenOver(w *WrongHop, senders map[model.MAC]bool, announced int64) bool {
	for _, m := range w.Replies {
		if senders[m] && m != w.Entry.MAC {
			w.Real = m
		}
	}
	arrives := slices.ContainsFunc(w.Silent, func(p *model.Peer) bool { return p.In.Packets > 0 })
	if w.Real.IsZero() && len(senders) == 1 && announced >= MinDrops && arrives && len(v.SumPeers(w.Silent).Peers) > 1 {
		w.Real = slices.Collect(maps.Keys(senders))[0]
	}
	return !w.Real.IsZero() && !senders[w.Entry.MAC]
}

// OnSameLink reports whether the first link is the second, or a port of it.
func (v *Index) OnSameLink(port, link int) bool {
	l := v.ByIndex[port]
	return port == link || l != nil && l.Master == link
}

// SendersOn are the source MACs of the frames that came in by a link or by the uplinks that are its ports.
func (v *Index) SendersOn(link int) map[model.MAC]bool {
	out := map[model.MAC]bool{}
	for m := range model.Each(v.Traffic.MACs) {
		if m.Direction == model.Ingress && m.Side == model.AsDestination && v.IsUplink(m.IfIndex) &&
			v.OnSameLink(m.IfIndex, link) {
			out[m.Src] = true
		}
	}
	return out
}

// otherEntries are the entries for other machines of the same link and IP
// version: how many have the same MAC, and those that have another.
func (v *Index) otherEntries(n *model.Neighbor) (same int, different []*model.Neighbor) {
	others := model.Chosen(v.Neighbors, func(o *model.Neighbor) bool {
		return o.IfIndex == n.IfIndex && o.Addr != n.Addr && o.Addr.Is4() == n.Addr.Is4() && path.Resolved(o) &&
			len(v.Owners[o.Addr]) == 0 && !v.Classifier.Past[o.Addr]
	})
	different = slices.DeleteFunc(slices.Clone(others), func(o *model.Neighbor) bool { return o.MAC == n.MAC })
	return len(others) - len(different), different
}
