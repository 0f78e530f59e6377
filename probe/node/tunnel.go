package node

import (
	"cmp"
	"maps"
	"net/netip"
	"slices"

	"github.com/lasthop/lasthop/probe/model"
	"github.com/lasthop/lasthop/probe/path"
)

// tunnelPeers are the ends of flows of the window that leave by a tunnel. Packets are counted by pair at uplinks alone,
// where those within a tunnel do not show: what is known of these is what connection tracking saw.
func (v *Index) tunnelPeers() []model.Peer {
	if len(NewTunnel(v).Links) == 0 || !v.Has(model.SourceConntrack) {
		return nil
	}
	found := map[Pair]*model.Peer{}
	for f := range model.Each(v.Flows) {
		local, remote := f.Reply.Dst, f.Reply.Src
		if f.Proto != model.TCP || f.Start.IsZero() || len(v.Owners[f.Original.Src]) == 0 || len(v.Owners[remote]) > 0 ||
			v.Own[remote] != nil {
			continue
		}
		d := v.Routing().Lookup(v.Sent(FlowPacket(f)))
		if len(d.Unsure) > 0 || len(d.Hops) != 1 {
			continue
		}
		l := v.ByIndex[d.Hops[0].IfIndex]
		lost := func(d *model.Drop) bool { return d.Link == l.Name && Sending(d) }
		if l == nil || l.Role != model.RoleTunnel || v.LostPackets(lost) >= MinDrops {
			continue
		}
		p := model.GetOrInsert(found, Pair{local, remote})
		// A flow's own time is that of the listing that found it.
		p.Local, p.Remote, p.IfIndex, p.Link, p.FirstOut = local, remote, l.Index, l.Name, v.Window.Start
		p.Out.Packets++
		p.Out.Requests++
		if f.Replied {
			p.In.Packets++
			p.In.Replies++
		}
	}
	out := model.Map(slices.Collect(maps.Values(found)), func(p *model.Peer) model.Peer { return *p })
	slices.SortFunc(out, func(a, b model.Peer) int { return cmp.Or(a.Local.Compare(b.Local), a.Remote.Compare(b.Remote)) })
	return out
}

// IsTunnel reports whether a link is a tunnel.
func (v *Index) IsTunnel(ifindex int) bool {
	l := v.ByIndex[ifindex]
	return l != nil && l.Role == model.RoleTunnel
}

// NewTunnel is what the node has of tunnels.
func NewTunnel(v *Index) model.Tunnel {
	t := model.Tunnel{Into: map[netip.Prefix]uint64{}, OutOf: map[netip.Prefix]uint64{}, For: map[netip.Addr]uint64{}}
	for l := range model.Each(v.Links) {
		if l.Role == model.RoleTunnel {
			t.Links = append(t.Links, model.TunnelLink{
				Place: v.Place(l.Name, model.Egress), Kind: l.Kind, MAC: l.MAC, Up: l.Up,
			})
		}
	}
	return t
}

// TunnelEnd is where a tunnel sends what is for an address: by the FDB entry for the MAC of its next hop.
type TunnelEnd struct {
	Remote, Hop netip.Addr
	MAC         model.MAC
	End         netip.Addr
}

// TunnelEnds are those of addresses that a pod sends to by a tunnel, and of the ends those for which packets leave by an uplink
// while none comes.
func (v *Index) TunnelEnds(pod netip.Addr, link int, remotes []netip.Addr) (ends []TunnelEnd, deaf []netip.Addr) {
	out, in := map[netip.Addr]uint64{}, map[netip.Addr]uint64{}
	for p := range model.Each(v.Peers) {
		out[p.Remote], in[p.Remote] = out[p.Remote]+p.Out.Packets, in[p.Remote]+p.In.Packets
	}
	for _, a := range remotes {
		e := v.EndOf(pod, link, a)
		if !e.End.IsValid() {
			continue
		}
		if ends = append(ends, e); out[e.End] >= MinPackets && in[e.End] == 0 {
			deaf = model.With(deaf, e.End)
		}
	}
	return ends[:min(len(ends), MostEvidence)], deaf
}

// TunnelPair is a pod and an address that it asks by a tunnel, with the end to which the tunnel sends that. Answered: replies come.
type TunnelPair struct {
	*model.Peer
	Pod      netip.Addr
	End      TunnelEnd
	Answered bool
}

// findTunnelPairs finds none where no pair is silent: those that get replies are of interest beside it.
func (v *Index) findTunnelPairs() (out []TunnelPair) {
	silent := func(p *model.Peer) bool { return v.IsTunnel(p.IfIndex) && v.Unanswered(p) && Lasted(p) }
	if model.First(v.Peers, silent) == nil {
		return nil
	}
	for p := range model.Each(v.Peers) {
		if answered := v.IsTunnel(p.IfIndex) && v.Answered(p); answered || silent(p) {
			out = append(out, model.Map(Sorted(v.Senders(p)), func(pod netip.Addr) TunnelPair {
				return TunnelPair{p, pod, v.EndOf(pod, p.IfIndex, p.Remote), answered}
			})...)
		}
	}
	return out
}

// EndOf is where a tunnel sends what a pod sends to an address: by the FDB entry for its next hop's MAC or, where a tunnel
// carries no frames, to the next hop. Its End is not valid where that is not known.
func (v *Index) EndOf(pod netip.Addr, link int, a netip.Addr) (out TunnelEnd) {
	for _, h := range v.Routing().Lookup(v.SentBy(pod, a)).Hops {
		n := v.NeighborAt(cmp.Or(h.Gateway, a), link)
		switch {
		case h.IfIndex != link:
		case tunnelProtocols[v.ByIndex[link].Kind] > 0:
			return TunnelEnd{Remote: a, Hop: h.Gateway, End: h.Gateway}
		case n != nil:
			if e := model.Find(v.Forwarding(n.MAC), func(e *model.FDBEntry) bool { return e.IfIndex == link && e.End.IsValid() }); e != nil {
				return TunnelEnd{a, n.Addr, e.MAC, e.End}
			}
		}
	}
	return out
}

// tunnelProtocols are the IP protocols of tunnels that carry packets, by kinds of links.
var tunnelProtocols = map[string]uint8{"ipip": 4, "sit": 41, "gre": 47, "ip6gre": 47, "ip6tnl": 41}

// Carrier is a rule of this node, or the chain whose policy, that surely drops the packets in which a tunnel carries those
// between pods and one end, or those that come from there.
type Carrier struct {
	Rule   *model.PacketRule
	Policy *model.Chain
	Link   int
}

// RefusedCarrier is that for what a pod sends by a tunnel, with one such packet; zero where there is none.
func (v *Index) RefusedCarrier(of *TunnelPair) (c Carrier, p path.Packet) {
	l, e, own := v.ByIndex[of.IfIndex], of.End, AddrSet{}
	if l == nil || !e.End.IsValid() || l.TunnelPort == 0 && tunnelProtocols[l.Kind] == 0 {
		return c, p
	}
	route := v.Lookup(e.End)
	if route == nil || v.ByIndex[route.IfIndex] == nil {
		return c, p
	}
	for _, x := range v.ByIndex[route.IfIndex].Addresses {
		if x.Addr().Is4() == e.End.Is4() && x.Addr().IsGlobalUnicast() {
			own.Add(x.Addr())
		}
	}
	if len(own) != 1 {
		return c, p // Which of them the tunnel has is not known.
	}
	c.Link = l.Index
	p = path.Packet{Src: Sorted(own)[0], Dst: e.End, Proto: cmp.Or(tunnelProtocols[l.Kind], model.UDP), DstPort: l.TunnelPort,
		SrcLocal: true, Out: []string{v.NatLink(route.IfIndex)}}
	if c.Rule, c.Policy = v.Tables().Refused(p, "OUTPUT", "POSTROUTING"); c.Rule != nil || c.Policy != nil {
		return c, p
	}
	p.Src, p.Dst, p.SrcLocal, p.DstLocal, p.In, p.Out = p.Dst, p.Src, false, true, p.Out, nil
	if l.TunnelPort > 0 {
		p.State = "new" // Each end sends to the tunnel's port, from another.
	}
	if c.Rule, c.Policy = v.Tables().Refused(p, "PREROUTING", "INPUT"); c.Rule == nil && c.Policy == nil {
		return Carrier{}, p
	}
	return c, p
}
