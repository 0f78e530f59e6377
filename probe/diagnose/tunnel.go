package diagnose

import (
	"cmp"
	"net/netip"
	"slices"

	"github.com/lasthop/lasthop/probe/model"
	"github.com/lasthop/lasthop/probe/path"
)

// tunnelPeers are the ends of flows of the window that leave by a tunnel. Packets are counted by pair at uplinks alone,
// where those within a tunnel do not show: what is known of these is what connection tracking saw.
func (v *index) tunnelPeers() []model.Peer {
	if len(newTunnel(v).Links) == 0 || !v.Has(model.SourceConntrack) {
		return nil
	}
	found := map[pair]*model.Peer{}
	for f := range model.Each(v.Flows) {
		local, remote := f.Reply.Dst, f.Reply.Src
		if f.Proto != tcp || f.Start.IsZero() || len(v.Owners[f.Original.Src]) == 0 || len(v.Owners[remote]) > 0 ||
			v.nodeAddrs[remote] {
			continue
		}
		d := v.Routing().Lookup(path.Query{Src: f.Original.Src, Dst: remote})
		if len(d.Unsure) > 0 || len(d.Hops) != 1 {
			continue
		}
		l := v.ByIndex[d.Hops[0].IfIndex]
		lost := func(d *model.Drop) bool { return d.Link == l.Name && sending(d) }
		if l == nil || l.Role != model.RoleTunnel || v.lostPackets(lost) >= minDrops {
			continue
		}
		p := model.GetOrInsert(found, pair{local, remote})
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

func (v *index) isTunnel(ifindex int) bool {
	l := v.ByIndex[ifindex]
	return l != nil && l.Role == model.RoleTunnel
}

func newTunnel(v *index) model.Tunnel {
	t := model.Tunnel{Into: map[netip.Prefix]uint64{}, OutOf: map[netip.Prefix]uint64{}, For: map[netip.Addr]uint64{}}
	for l := range model.Each(v.Links) {
		if l.Role == model.RoleTunnel {
			t.Links = append(t.Links, model.TunnelLink{
				Place: v.place(l.Name, model.Egress), Kind: l.Kind, MAC: l.MAC, Up: l.Up,
			})
		}
	}
	return t
}

// silentThrough are the tunnels' pairs without a reply, with when their connections began.
func (v *index) silentThrough() (out []model.EndPair) {
	at := map[pair]int{}
	for p := range model.Each(v.peers) {
		if v.isTunnel(p.IfIndex) && v.unanswered(p) {
			at[pair{p.Local, p.Remote}] = len(out)
			route := &model.EndRoute{Link: v.linkName(p.IfIndex)}
			e := model.EndPair{Local: p.Local, Remote: p.Remote, EndRoute: route, Counts: model.Counts{Out: p.Out}, Silent: true}
			out = append(out, e)
		}
	}
	for f := range model.Each(v.Flows) {
		if i, silent := at[pair{f.Reply.Dst, f.Reply.Src}]; silent && !f.Replied && !f.Start.IsZero() {
			stretch(&out[i].First, &out[i].Last, f.Start)
		}
	}
	slices.SortFunc(out, model.ComparePairs)
	return out
}
