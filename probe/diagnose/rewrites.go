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
		b.master[l.Index], b.uplink[l.Index] = l.Master, l.Role == model.RoleUplink
	}
	out := b.rewrites(s.Traffic.MACs)
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

// subject is the MAC of an address's frames that is held against itself: what is written
// over a source concerns the sender, over a destination the receiver.
type subject struct {
	addr  netip.Addr
	field model.MACField
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

func (b *bridging) rewrites(pairs []model.MACPair) []model.MACRewrite {
	bySubject := map[subject]map[port]frames{}
	for _, p := range pairs {
		of, mac, other := subject{p.Addr, model.SourceMAC}, p.Src, p.Dst
		if p.Side == model.AsDestination {
			of, mac, other = subject{p.Addr, model.DestinationMAC}, p.Dst, p.Src
		}
		at := port{model.MACPlace{MAC: mac, Link: p.Link, Direction: p.Direction}, p.IfIndex}
		if bySubject[of] == nil {
			bySubject[of] = map[port]frames{}
		}
		if bySubject[of][at] == nil {
			bySubject[of][at] = frames{}
		}
		bySubject[of][at][other] += p.Packets
	}
	var out []model.MACRewrite
	for of, ports := range bySubject {
		lost := b.lost.Of(of.addr).MACs
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
				n := min(b.common(in, left, of.field, to), all-min(all, untouched))
				if n > 0 {
					out = append(out, model.MACRewrite{
						Addr: of.addr, Field: of.field, Packets: n, From: from.MACPlace, To: to.MACPlace,
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
