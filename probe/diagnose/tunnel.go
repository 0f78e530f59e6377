package diagnose

import (
	"cmp"
	"net/netip"
	"slices"

	"github.com/lasthop/lasthop/probe/model"
	"github.com/lasthop/lasthop/probe/path"
)

// tunnelPeers are the ends of flows of the window that leave by a tunnel. Packets are
// counted by pair at uplinks alone, where those within a tunnel do not show: what is
// known of these is what connection tracking saw.
func (v *view) tunnelPeers() []model.Peer {
	if len(newTunnel(v).Links) == 0 || !v.Has(model.SourceConntrack) {
		return nil
	}
	found := map[pair]*model.Peer{}
	for f := range model.Each(v.Flows) {
		local, remote := f.Reply.Dst, f.Reply.Src
		if f.Proto != tcp || f.Start.IsZero() || len(v.pods[f.Original.Src]) == 0 || len(v.pods[remote]) > 0 || v.nodeAddrs[remote] {
			continue
		}
		d := v.routing().Lookup(path.Query{Src: f.Original.Src, Dst: remote})
		if len(d.Unsure) > 0 || len(d.Hops) != 1 {
			continue
		}
		l := v.links[d.Hops[0].IfIndex]
		if l == nil || l.Role != model.RoleTunnel || v.lostIn(l.Name) {
			continue
		}
		p := entry(found, pair{local, remote})
		// A flow's own time is that of the listing that found it.
		p.Local, p.Remote, p.IfIndex, p.Link, p.FirstOut = local, remote, l.Index, l.Name, v.Window.Start
		p.Out.Packets++
		p.Out.Requests++
		if f.Replied {
			p.In.Packets++
			p.In.Replies++
		}
	}
	var out []model.Peer
	for _, p := range found {
		out = append(out, *p)
	}
	slices.SortFunc(out, func(a, b model.Peer) int { return cmp.Or(a.Local.Compare(b.Local), a.Remote.Compare(b.Remote)) })
	return out
}

// lostIn reports whether the kernel dropped packets that it had routed to a link.
func (v *view) lostIn(link string) bool {
	return v.dropped(func(d *model.Drop) bool { return d.Link == link && sending(d) }) >= minDrops
}

// isTunnel reports whether a link is one.
func (v *view) isTunnel(ifindex int) bool {
	l := v.links[ifindex]
	return l != nil && l.Role == model.RoleTunnel
}

func newTunnel(v *view) Tunnel {
	t := Tunnel{Into: map[netip.Prefix]uint64{}, OutOf: map[netip.Prefix]uint64{}, For: map[netip.Addr]uint64{}}
	for l := range model.Each(v.Links) {
		if l.Role == model.RoleTunnel {
			t.Links = append(t.Links, TunnelLink{v.place(l.Name, model.Egress), l.Kind, l.MAC, l.Up})
		}
	}
	return t
}

// add adds what was counted at a tunnel's link.
func (t *Tunnel) add(h *model.HopCount) {
	switch {
	case h.Prefix.IsValid() && h.Direction == model.Egress && h.Side == model.AsDestination:
		t.Into[h.Prefix] += h.Packets
	case h.Prefix.IsValid() && h.Direction == model.Ingress && h.Side == model.AsSource:
		t.OutOf[h.Prefix] += h.Packets
	case h.Addr.IsValid() && h.Direction == model.Ingress && h.Side == model.AsDestination:
		t.For[h.Addr] += h.Packets
	}
}

// silent adds the tunnel's pairs without a reply, and when their connections began.
func (t *Tunnel) silent(v *view) {
	at := map[pair]int{}
	for p := range model.Each(v.peers) {
		if v.isTunnel(p.IfIndex) && v.unanswered(p) {
			at[pair{p.Local, p.Remote}] = len(t.Silent)
			way := &EndRoute{Link: v.linkName(p.IfIndex)}
			e := EndPair{Local: p.Local, Remote: p.Remote, EndRoute: way, Counts: Counts{Out: p.Out}, Silent: true}
			t.Silent = append(t.Silent, e)
		}
	}
	for f := range model.Each(v.Flows) {
		if i, silent := at[pair{f.Reply.Dst, f.Reply.Src}]; silent && !f.Replied && !f.Start.IsZero() {
			stretch(&t.Silent[i].First, &t.Silent[i].Last, f.Start)
		}
	}
	slices.SortFunc(t.Silent, comparePairs)
}
