package diagnose

import (
	"cmp"
	"net/netip"
	"slices"

	"github.com/lasthop/lasthop/probe/model"
)

// MACRewrites lists the frames whose Ethernet address changed between two
// ports of one bridge. A bridge never does that by itself, so it was bridge
// netfilter or a tc program. Frames that the node routed are left out: they
// passed the bridge's own device.
func MACRewrites(s *model.Snapshot) []model.MACRewrite {
	b := bridging{master: map[int]int{}, uplink: map[int]bool{}, lost: &s.Traffic.Lost}
	for _, l := range s.Links {
		if l.Master != 0 {
			b.master[l.Index] = l.Master
		}
		b.uplink[l.Index] = l.Role == model.RoleUplink
	}
	var out []model.MACRewrite
	for _, field := range []model.MACField{model.SourceMAC, model.DestinationMAC} {
		out = append(out, b.rewrites(s.Traffic.MACs, field)...)
	}
	slices.SortFunc(out, func(a, b model.MACRewrite) int {
		return cmp.Or(a.Addr.Compare(b.Addr), cmp.Compare(b.Packets, a.Packets), cmp.Compare(a.Field, b.Field),
			cmp.Compare(a.From.Link, b.From.Link), cmp.Compare(a.To.Link, b.To.Link),
			cmp.Compare(a.To.MAC.String(), b.To.MAC.String()))
	})
	return out
}

// bridging is which link is a port of which bridge.
type bridging struct {
	master map[int]int
	uplink map[int]bool
	// lost has the packets of an address whose pair of MACs was not recorded: that
	// many may have carried any MAC anywhere.
	lost *model.Lost
}

// port is where one value of a MAC field was seen on frames of one address.
type port struct {
	model.MACPlace
	ifindex int
}

// frames counts what was seen at a port, by the frames' other Ethernet address.
type frames map[model.MAC]uint64

func (f frames) total() uint64 {
	var n uint64
	for _, packets := range f {
		n += packets
	}
	return n
}

func (b *bridging) rewrites(pairs []model.MACPair, field model.MACField) []model.MACRewrite {
	// The side follows from the field: what is written over a source
	// address concerns the sender, over a destination the receiver.
	side := model.AsSource
	if field == model.DestinationMAC {
		side = model.AsDestination
	}
	byAddr := map[netip.Addr]map[port]frames{}
	for _, p := range pairs {
		if p.Side != side {
			continue
		}
		k, other := port{model.MACPlace{MAC: p.Src, Link: p.Link, Direction: p.Direction}, p.IfIndex}, p.Dst
		if field == model.DestinationMAC {
			k.MAC, other = p.Dst, p.Src
		}
		if byAddr[p.Addr] == nil {
			byAddr[p.Addr] = map[port]frames{}
		}
		if byAddr[p.Addr][k] == nil {
			byAddr[p.Addr][k] = frames{}
		}
		byAddr[p.Addr][k][other] += p.Packets
	}
	var out []model.MACRewrite
	for addr, ports := range byAddr {
		lost := b.lost.Of(addr).MACs
		for from, in := range ports {
			if from.Direction != model.Ingress || b.master[from.ifindex] == 0 {
				continue
			}
			for to, left := range ports {
				if to.Direction != model.Egress || to.MAC == from.MAC || to.MAC.IsZero() ||
					b.master[to.ifindex] != b.master[from.ifindex] {
					continue
				}
				all, untouched := left.total(), b.untouched(ports, b.master[to.ifindex], to.MAC)+lost
				n := min(b.common(in, left, field, to), all-min(all, untouched))
				if n > 0 {
					out = append(out, model.MACRewrite{
						Addr: addr, Field: field, Packets: n, From: from.MACPlace, To: to.MACPlace,
					})
				}
			}
		}
	}
	return out
}

// common is how many of the frames that came in can be among those that left:
// what gives a frame another destination lets its source be. Only what leaves
// by an uplink may have another source as well, the network card's.
func (b *bridging) common(in, left frames, field model.MACField, to port) uint64 {
	if field == model.SourceMAC || b.uplink[to.ifindex] {
		return min(in.total(), left.total())
	}
	var n uint64
	for other, packets := range left {
		n += min(packets, in[other])
	}
	return n
}

// untouched is how many frames carried the MAC into the bridge, from the node
// itself or through a port: that many may leave with it and no rewrite.
func (b *bridging) untouched(ports map[port]frames, bridge int, mac model.MAC) uint64 {
	var n uint64
	for p, f := range ports {
		in := p.ifindex == bridge && p.Direction == model.Egress ||
			b.master[p.ifindex] == bridge && p.Direction == model.Ingress
		if p.MAC == mac && in {
			n += f.total()
		}
	}
	return n
}
