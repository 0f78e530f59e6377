package traffic

import (
	"cmp"
	"slices"

	"github.com/lasthop/lasthop/bpf"
	"github.com/lasthop/lasthop/probe/model"
)

// Traffic returns the counts since Open, as of the last Poll.
func (e *Engine) Traffic() model.Traffic {
	e.mu.Lock()
	defer e.mu.Unlock()
	t := model.Traffic{Peers: e.peers(), Pairs: e.pairs(), ARP: e.arp(), Lost: e.lost()}
	t.Hops, t.MACs = e.hops()
	if e.drops != nil {
		t.Drops = e.drops.list(e.linkIn)
		t.Samples = e.drops.sampled(e.linkIn)
	}
	return t
}

// Peers returns the part of Traffic of that name, at less cost.
func (e *Engine) Peers() []model.Peer {
	e.mu.Lock()
	defer e.mu.Unlock()
	return e.peers()
}

// linkIn names a link of a namespace, empty for any but the node's.
func (e *Engine) linkIn(netns uint32, index int) string {
	return model.Either(netns != e.ns.Inode(), "", e.links.names[index])
}

func (e *Engine) linkOf(slot uint16) (int, string) {
	index, _ := e.links.slots.key(slot)
	return index, e.links.names[index]
}

func (e *Engine) hops() ([]model.HopCount, []model.MACPair) {
	counted, seen := 0, 0
	for h := range model.Each(e.counters.hops) {
		if h.n.Packets > 0 {
			counted, seen = counted+1, seen+len(h.macs)
		}
	}
	hops, pairs := slices.Grow([]model.HopCount(nil), counted), slices.Grow([]model.MACPair(nil), seen)
	for h := range model.Each(e.counters.hops) {
		addr, prefix, ok := e.addrs.of(h.key.Addr)
		if !ok || h.n.Packets == 0 {
			continue
		}
		n := &h.n
		c := model.HopCount{
			Addr: addr, Prefix: prefix, Direction: h.direction, Side: h.side,
			Packets: n.Packets, Bytes: n.Bytes, SYN: n.Syn, SYNACK: n.Synack, RST: n.Rst, ICMPErrors: n.IcmpErrors,
			FromInside: n.FromInside, FromUplink: n.FromUplink, TTLs: n.Ttls, First: h.first, Last: h.last,
		}
		c.IfIndex, c.Link = e.linkOf(h.key.Link)
		hops = append(hops, c)
		if !addr.IsValid() {
			continue
		}
		for m, n := range h.macs {
			pairs = append(pairs, model.MACPair{
				Addr: addr, IfIndex: c.IfIndex, Link: c.Link, Direction: c.Direction, Side: c.Side,
				Src: m.src, Dst: m.dst, Packets: n,
			})
		}
	}
	slices.SortFunc(hops, func(a, b model.HopCount) int {
		if c := a.Addr.Compare(b.Addr); c != 0 {
			return c // comparing prefixes takes long
		}
		return cmp.Or(a.Prefix.Compare(b.Prefix), cmp.Compare(a.IfIndex, b.IfIndex),
			cmp.Compare(a.Direction, b.Direction), cmp.Compare(a.Side, b.Side))
	})
	slices.SortFunc(pairs, func(a, b model.MACPair) int {
		return cmp.Or(a.Addr.Compare(b.Addr), cmp.Compare(a.IfIndex, b.IfIndex),
			cmp.Compare(a.Direction, b.Direction), cmp.Compare(a.Side, b.Side),
			slices.Compare(a.Src[:], b.Src[:]), slices.Compare(a.Dst[:], b.Dst[:]))
	})
	return hops, pairs
}

func (e *Engine) peers() []model.Peer {
	out := slices.Grow([]model.Peer(nil), len(e.counters.peers.list))
	for key, p := range e.counters.peers.list {
		addr, _, ok := e.addrs.of(key.local)
		if !ok {
			continue
		}
		const ingress, egress = bpf.TCDirectionINGRESS, bpf.TCDirectionEGRESS
		m := model.Peer{
			Local: addr, Out: peerCount(p.count[egress]), In: peerCount(p.count[ingress]),
			FirstOut: p.firstOut, LastOut: p.last[egress], LastIn: p.last[ingress],
		}
		if key.far() == bpf.TCFarFAR_ADDRESS {
			m.Remote = key.remote
		} else {
			m.Range = prefixOf(key.remote, key.bits, addr)
		}
		m.IfIndex, m.Link = e.linkOf(key.link)
		out = append(out, m)
	}
	slices.SortFunc(out, func(a, b model.Peer) int {
		return cmp.Or(a.Local.Compare(b.Local), a.Remote.Compare(b.Remote), a.Range.Compare(b.Range), cmp.Compare(a.IfIndex, b.IfIndex))
	})
	return out
}

func peerCount(n bpf.TCPeerCount) model.PeerCount {
	c := model.NewPeerCount(n.Packets, n.Requests, n.Replies, uint64(n.IcmpErrors))
	c.Fragments = uint64(n.Fragments)
	return c
}

func (e *Engine) pairs() []model.PairCount {
	out := slices.Grow([]model.PairCount(nil), len(e.counters.pairs.entries))
	for key, t := range e.counters.pairs.entries {
		index := int(key.Ifindex)
		out = append(out, model.PairCount{
			Src: addrFrom(key.Src), Dst: addrFrom(key.Dst), IfIndex: index, Link: e.links.names[index],
			Direction: direction(key.Direction), Packets: t.packets,
		})
	}
	slices.SortFunc(out, func(a, b model.PairCount) int {
		return cmp.Or(a.Src.Compare(b.Src), a.Dst.Compare(b.Dst), cmp.Compare(a.IfIndex, b.IfIndex),
			cmp.Compare(a.Direction, b.Direction))
	})
	return out
}

func (e *Engine) arp() []model.ARPCount {
	out := slices.Grow([]model.ARPCount(nil), len(e.counters.neighbors.entries))
	for key, t := range e.counters.neighbors.entries {
		index := int(key.Ifindex)
		out = append(out, model.ARPCount{
			IfIndex: index, Link: e.links.names[index], Direction: direction(key.Direction), Reply: key.Reply != 0,
			Addr: addrFrom(key.Addr), MAC: key.Mac, Packets: t.packets,
		})
	}
	slices.SortFunc(out, func(a, b model.ARPCount) int {
		return cmp.Or(cmp.Compare(a.IfIndex, b.IfIndex), cmp.Compare(a.Direction, b.Direction),
			cmp.Compare(flag(a.Reply), flag(b.Reply)), a.Addr.Compare(b.Addr),
			slices.Compare(a.MAC[:], b.MAC[:]))
	})
	return out
}

// lost sums up what could not be counted, with the reasons.
func (e *Engine) lost() model.Lost {
	var l model.Lost
	why := func(total *uint64, n uint64, text string) {
		if n > 0 {
			*total += n
			l.Detail = append(l.Detail, model.Uncounted{Packets: n, Why: text})
		}
	}
	tc := &e.counters.lost
	why(&l.Unparsed, tc[bpf.TCLostLOST_UNREADABLE], "packets whose header could not be read")
	why(&l.Malformed, tc[bpf.TCLostLOST_MALFORMED], "packets with a truncated or invalid header")
	why(&l.Counters, tc[bpf.TCLostLOST_LINK], "packets on links that were not known yet")
	why(&l.Counters, e.counters.missed, "packets during another one's count")
	why(&l.Counters, tc[bpf.TCLostLOST_PEER], "packets of peers on a hot-plugged CPU")
	why(&l.Counters, tc[bpf.TCLostLOST_HOP], "packets at hops without a free counter")
	why(&l.Counters, tc[bpf.TCLostLOST_PAIR], "packets of address pairs without a free counter")
	why(&l.Counters, tc[bpf.TCLostLOST_NEIGH], "ARP or ND messages without a free counter")
	var macs uint64
	for i := range e.counters.hops {
		macs += e.counters.hops[i].n.MacsLost
	}
	why(&l.MACs, macs, "packets at hops with too many MAC pairs")
	if d := e.drops; d != nil {
		why(&l.Unparsed, d.lost[bpf.TCLostLOST_UNREADABLE], "dropped packets whose header could not be read")
		why(&l.Malformed, d.lost[bpf.TCLostLOST_MALFORMED], "dropped packets with a truncated or invalid header")
		why(&l.Counters, d.lost[bpf.TCLostLOST_DROP], "drops without a free counter")
		why(&l.Events, d.lost[bpf.TCLostLOST_RING], "drop samples: the ring buffer was full")
		why(&l.Events, d.lost[bpf.TCLostLOST_RATE], "drop samples above the rate limit")
		why(&l.Missed, d.missed, "drops on this machine during another one's count")
		why(&l.Events, d.unsampled, "drop samples of too many kinds")
	}
	e.locked(func() {
		why(&l.Gaps, e.gapsSeen, "times another program removed lasthop's programs from a link, or was attached before them")
	})
	l.Addrs, l.Others = e.lostOf(), tc[bpf.TCLostLOST_NEIGH]
	for _, reason := range []bpf.TCLost{bpf.TCLostLOST_HOP, bpf.TCLostLOST_PEER, bpf.TCLostLOST_PAIR, bpf.TCLostLOST_DROP} {
		l.Others += tc[reason]
		if e.drops != nil {
			l.Others += e.drops.lost[reason]
		}
	}
	for _, a := range l.Addrs {
		l.Others -= min(l.Others, a.Hops+a.Peers+a.Pairs+a.Drops)
	}
	return l
}

func (e *Engine) lostOf() []model.AddrLoss {
	macs := map[uint16]uint64{}
	for h := range model.Each(e.counters.hops) {
		macs[h.key.Addr] += h.n.MacsLost
	}
	var out []model.AddrLoss
	for i, n := range e.counters.lostOf {
		slot := uint16(i)
		a, _, ok := e.addrs.of(slot)
		l := model.AddrLoss{
			Addr: a, Hops: n[bpf.TCLostLOST_HOP], Peers: n[bpf.TCLostLOST_PEER], Pairs: n[bpf.TCLostLOST_PAIR],
			Drops: n[bpf.TCLostLOST_DROP], MACs: macs[slot],
		}
		if ok && a.IsValid() && l != (model.AddrLoss{Addr: a}) {
			out = append(out, l)
		}
	}
	slices.SortFunc(out, func(a, b model.AddrLoss) int { return a.Addr.Compare(b.Addr) })
	return out
}
