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
	master := map[int]int{}
	for _, l := range s.Links {
		if l.Master != 0 {
			master[l.Index] = l.Master
		}
	}
	var out []model.MACRewrite
	for _, field := range []model.MACField{model.SourceMAC, model.DestinationMAC} {
		out = append(out, rewritesOf(s.Traffic.MACs, field, master)...)
	}
	slices.SortFunc(out, func(a, b model.MACRewrite) int {
		return cmp.Or(a.Addr.Compare(b.Addr), cmp.Compare(b.Packets, a.Packets), cmp.Compare(a.Field, b.Field),
			cmp.Compare(a.From.Link, b.From.Link), cmp.Compare(a.To.Link, b.To.Link),
			cmp.Compare(a.To.MAC.String(), b.To.MAC.String()))
	})
	return out
}

// port is where one value of a MAC field was seen on frames of one address.
type port struct {
	link      string
	ifindex   int
	direction model.Direction
	mac       model.MAC
}

func rewritesOf(pairs []model.MACPair, field model.MACField, master map[int]int) []model.MACRewrite {
	// The side follows from the field: what is written over a source
	// address concerns the sender, over a destination the receiver.
	side := model.AsSource
	if field == model.DestinationMAC {
		side = model.AsDestination
	}
	byAddr := map[netip.Addr]map[port]uint64{}
	for _, p := range pairs {
		if p.Side != side {
			continue
		}
		k := port{p.Link, p.IfIndex, p.Direction, p.Src}
		if field == model.DestinationMAC {
			k.mac = p.Dst
		}
		if byAddr[p.Addr] == nil {
			byAddr[p.Addr] = map[port]uint64{}
		}
		byAddr[p.Addr][k] += p.Packets
	}
	var out []model.MACRewrite
	for addr, ports := range byAddr {
		for from, in := range ports {
			if from.direction != model.Ingress || master[from.ifindex] == 0 {
				continue
			}
			for to, n := range ports {
				if to.direction != model.Egress || to.mac == from.mac || to.mac.IsZero() || master[to.ifindex] != master[from.ifindex] {
					continue
				}
				n = min(in, less(n, untouched(ports, master, master[to.ifindex], to.mac)))
				if n == 0 {
					continue
				}
				out = append(out, model.MACRewrite{
					Addr: addr, Field: field, Packets: n,
					From: model.MACPlace{MAC: from.mac, Link: from.link, Direction: from.direction},
					To:   model.MACPlace{MAC: to.mac, Link: to.link, Direction: to.direction},
				})
			}
		}
	}
	return out
}

// untouched is how many frames carried the MAC into the bridge, from the node
// itself or through a port: that many may leave with it and no rewrite.
func untouched(ports map[port]uint64, master map[int]int, bridge int, mac model.MAC) uint64 {
	var n uint64
	for p, packets := range ports {
		if p.mac != mac {
			continue
		}
		if p.ifindex == bridge && p.direction == model.Egress || master[p.ifindex] == bridge && p.direction == model.Ingress {
			n += packets
		}
	}
	return n
}

func less(a, b uint64) uint64 {
	if b > a {
		return 0
	}
	return a - b
}
