package node

import (
	"cmp"
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
		if f.Proto != TCP || f.Start.IsZero() || len(v.Owners[f.Original.Src]) == 0 || len(v.Owners[remote]) > 0 ||
			v.NodeAddrs[remote] {
			continue
		}
		d := v.Routing().Lookup(path.Query{Src: f.Original.Src, Dst: remote})
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
	var out []model.Peer
	for _, p := range found {
		out = append(out, *p)
	}
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
