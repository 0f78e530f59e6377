package diagnose

import (
	"cmp"
	"maps"
	"net/netip"
	"slices"

	"github.com/lasthop/lasthop/probe/model"
	"github.com/lasthop/lasthop/probe/path"
)

// wrongHop is a neighbour entry of the node for a next hop that most likely holds
// a wrong MAC: no packet that was sent there was answered.
type wrongHop struct {
	entry  *model.Neighbor
	silent []*model.Peer
	// replies are the MACs with which the next hop answered ARP or neighbour
	// discovery. shared is the one MAC that all others of the link have.
	replies []model.MAC
	shared  model.MAC
	others  []netip.Addr
	// real is the MAC that frames come from where another machine took the address over.
	real model.MAC
	// arrives: packets of silent peers come in, though not from the entry's MAC.
	arrives bool
}

// pinned reports whether the kernel never asks again for the entry's address.
func pinned(n *model.Neighbor) bool { return n.State == "PERMANENT" || n.State == "NOARP" }

func (v *index) isWrongHopMAC(m model.MAC) bool {
	return slices.ContainsFunc(v.wrongHops(), func(w *wrongHop) bool { return w.entry.MAC == m })
}

// findWrongHops are the node's entries for next hops that are wrong. They depend on no gateway's MAC.
func (v *index) findWrongHops() []*wrongHop {
	if !v.Has(model.SourceTC, model.SourceNeighbors, model.SourceRoutes) {
		return nil
	}
	entries := map[question]*model.Neighbor{}
	for n := range model.Each(v.Neighbors) {
		if path.Resolved(n) && v.Outer[n.IfIndex] && len(v.Owners[n.Addr]) == 0 && !v.past[n.Addr] {
			entries[question{n.IfIndex, n.Addr}] = n
		}
	}
	found, answered := map[*model.Neighbor]*wrongHop{}, map[*model.Neighbor]bool{}
	for p := range model.Each(v.peers) {
		if p.Out.Packets == 0 || besideUplink(v, p) {
			continue
		}
		works := v.answered(p) || p.In.ICMPErrors > 0
		if !works && !v.unanswered(p) {
			continue
		}
		for _, h := range v.Routing().Lookup(v.sentBy(p.Local, p.Remote)).Hops {
			n := entries[question{h.IfIndex, cmp.Or(h.Gateway, p.Remote)}]
			switch {
			case n == nil || !v.leftWith(p, n.MAC):
			case works:
				answered[n] = true
			default:
				if found[n] == nil {
					found[n] = &wrongHop{entry: n}
				}
				found[n].silent = append(found[n].silent, p)
			}
		}
	}
	maps.DeleteFunc(found, func(n *model.Neighbor, w *wrongHop) bool { return answered[n] || !v.isWrong(w) })
	return slices.SortedFunc(maps.Values(found), func(a, b *wrongHop) int { return a.entry.Addr.Compare(b.entry.Addr) })
}

func (v *index) leftWith(p *model.Peer, to model.MAC) bool {
	return v.framesBetween(p.Local, p.IfIndex, model.Egress, model.AsSource, to) > 0
}

// isWrong weighs what contradicts an entry whose packets are not answered, and notes it. Silence alone does
// not: the next hop, or what is behind it, may be down.
func (v *index) isWrong(w *wrongHop) bool {
	n, announced := w.entry, int64(0)
	for a := range model.Each(v.Traffic.ARP) {
		here, in := v.onSameLink(a.IfIndex, n.IfIndex), a.Direction == model.Ingress
		if a.Addr != n.Addr || a.Reply != in {
			continue
		}
		switch {
		case !a.Reply && here:
			announced -= int64(a.Packets) // These are answered.
		case a.Reply && a.MAC == n.MAC:
			announced += int64(a.Packets)
		}
		if a.Reply && here && !a.MAC.IsZero() && !slices.Contains(w.replies, a.MAC) {
			// What was asked of its MAC alone need not say it again (RFC 4861, 4.4).
			w.replies = append(w.replies, a.MAC)
		}
	}
	if p := v.arped(n.Addr); p != nil {
		w.replies = append(w.replies, p.MACs...)
	}
	senders := v.sendersOn(n.IfIndex)
	if len(w.replies) > 0 && !slices.Contains(w.replies, n.MAC) {
		return true
	}
	if n.MAC.VirtualRouter() {
		// No frame ever comes from there, and its routers have MACs of their own.
		return false
	}
	if len(w.replies) > 0 {
		return v.takenOver(w, senders, announced)
	}
	same, different := v.otherEntries(n)
	if senders[n.MAC] && (same != 1 || len(different) == 0) {
		return false
	}
	unlike := func(o *model.Neighbor) bool { return o.MAC != different[0].MAC }
	if same == 0 && len(different) > 1 && !slices.ContainsFunc(different, unlike) && senders[different[0].MAC] {
		w.shared = different[0].MAC
		w.others = model.Map(different, func(o *model.Neighbor) netip.Addr { return o.Addr })
	}
	w.arrives = !senders[n.MAC] && len(senders) > 0 &&
		slices.ContainsFunc(w.silent, func(p *model.Peer) bool { return p.In.Packets > 0 })
	if pinned(n) {
		// Some plugins pin the nodes that they know, which are next hops too.
		return w.arrives || !w.shared.IsZero() || v.GatewayAddrs[n.Addr]
	}
	if n.State == "REACHABLE" {
		// The kernel has heard from that MAC lately that it has the address.
		w.real = w.shared
	}
	return w.arrives && !w.shared.IsZero() && len(v.sumPeers(w.silent).peers) > 1
}

// takenOver reports whether another machine says that it has the next hop's address, and
// notes who really has it: the one whose frames come in, while none comes from that
// machine. Where the two did not both say so, that machine must have announced it unasked.
func (v *index) takenOver(w *wrongHop, senders map[model.MAC]bool, announced int64) bool {
	for _, m := range w.replies {
		if senders[m] && m != w.entry.MAC {
			w.real = m
		}
	}
	arrives := slices.ContainsFunc(w.silent, func(p *model.Peer) bool { return p.In.Packets > 0 })
	if w.real.IsZero() && len(senders) == 1 && announced >= minDrops && arrives && len(v.sumPeers(w.silent).peers) > 1 {
		w.real = slices.Collect(maps.Keys(senders))[0]
	}
	return !w.real.IsZero() && !senders[w.entry.MAC]
}

// onSameLink reports whether the first link is the second, or a port of it.
func (v *index) onSameLink(port, link int) bool {
	l := v.ByIndex[port]
	return port == link || l != nil && l.Master == link
}

// sendersOn are the source MACs of the frames that came in by a link or by the uplinks that are its ports.
func (v *index) sendersOn(link int) map[model.MAC]bool {
	out := map[model.MAC]bool{}
	for m := range model.Each(v.Traffic.MACs) {
		if m.Direction == model.Ingress && m.Side == model.AsDestination && v.isUplink(m.IfIndex) &&
			v.onSameLink(m.IfIndex, link) {
			out[m.Src] = true
		}
	}
	return out
}

// otherEntries are the entries for other machines of the same link and IP
// version: how many have the same MAC, and those that have another.
func (v *index) otherEntries(n *model.Neighbor) (same int, different []*model.Neighbor) {
	others := model.Chosen(v.Neighbors, func(o *model.Neighbor) bool {
		return o.IfIndex == n.IfIndex && o.Addr != n.Addr && o.Addr.Is4() == n.Addr.Is4() && path.Resolved(o) &&
			len(v.Owners[o.Addr]) == 0 && !v.past[o.Addr]
	})
	different = slices.DeleteFunc(slices.Clone(others), func(o *model.Neighbor) bool { return o.MAC == n.MAC })
	return len(others) - len(different), different
}

func findWrongNextHopMAC(v *view) {
	for _, w := range v.wrongHops() {
		v.report(wrongEntry(v.index, w))
	}
	// So do other nodes, whose frames for this node's pods then arrive for a MAC that the link does not have.
	// A drop names the link of arrival too where the node itself gave the frame that MAC later.
	misaddressed := map[int]*lost{}
	for d := range model.Each(v.Traffic.Drops) {
		if d.Is(model.OtherHost) && (v.Outer[d.IfIndex] || v.isTunnel(d.IfIndex)) && len(v.Owners[d.Dst]) > 0 &&
			v.framesBetween(d.Dst, d.IfIndex, model.Ingress, model.AsDestination, d.DstMAC) > 0 && v.drops.Lost(d) && !v.explained(d) {
			model.GetOrInsert(misaddressed, d.IfIndex).addFor(d.Dst, d)
		}
	}
	for ifindex, l := range misaddressed {
		if l.lasting() {
			f := finding{page: "WrongNextHopMAC-own", lost: l, facts: facts{
				"link": v.ByIndex[ifindex], "for": mostDropped(l.drops)[0].DstMAC, "drops": l.evidence(),
			}}
			f.LastHopAlive = v.place(v.linkName(ifindex), model.Ingress)
			v.report(f)
		}
	}
}

func wrongEntry(v *index, w *wrongHop) finding {
	n, x := w.entry, v.sumPeers(w.silent)
	link, port, remotes := v.linkName(n.IfIndex), v.linkName(x.link), sorted(x.peers)
	takenOver, shared := !w.real.IsZero(), !w.shared.IsZero()
	contradicted := !takenOver && len(w.replies) > 0
	f := finding{lost: x, facts: facts{
		"entry": n, "link": link, "port": port, "remotes": remotes, "replies": w.replies, "told": contradicted,
		"gateway": v.GatewayAddrs[n.Addr], "others": w.others, "pinned": pinned(n),
		"answering": answering(v, func(a netip.Addr) bool { return x.peers[a] }),
	}}
	f.LastHopAlive = v.place(port, model.Egress)
	if takenOver {
		f.facts["real"] = w.real
	}
	if shared {
		f.facts["shared"] = w.shared
	}
	if w.arrives {
		f.facts["senders"] = slices.SortedFunc(maps.Keys(v.sendersOn(n.IfIndex)), model.MAC.Compare)
	}
	if !w.arrives && !takenOver && !contradicted && !shared && len(remotes) == 1 {
		f.Severity = model.Warning
	}
	sure := contradicted || shared && pinned(n) && (w.arrives || len(remotes) > 1)
	if f.facts["sure"], f.Confidence = sure, model.Likely; sure {
		f.Confidence = model.Proven
	}
	return f
}
