package timeline

import (
	"hash/maphash"
	"slices"

	"github.com/lasthop/lasthop/probe/model"
)

// connections is a sysctl that is a count.
const connections = "net.netfilter.nf_conntrack_count"

// configuration are hashes of what decides over packets: what was dropped
// under another one needs not be explained by this one.
func configuration(s *model.Snapshot) []uint64 {
	var out []uint64
	add := func(h uint64) { out = append(out, h) }
	for i := range s.FrameRules {
		k, _ := frameMark(&s.FrameRules[i])
		add(k)
	}
	for i := range s.PacketRules {
		k, _ := packetMark(&s.PacketRules[i])
		add(k)
	}
	for _, c := range s.Chains {
		c.Counter = model.Counter{}
		add(maphash.Comparable(seed, c))
	}
	for _, c := range s.Sysctls {
		if c.Name != connections {
			add(maphash.Comparable(seed, c))
		}
	}
	for i := range s.Routes {
		add(routeHash(&s.Routes[i]))
	}
	for _, r := range s.Rules {
		add(maphash.Comparable(seed, struct {
			family, priority, table, jump int
			from, to, in, out, action     string
			mark, mask                    uint32
			not                           bool
		}{r.Family, r.Priority, r.Table, r.Goto, r.From.String(), r.To.String(), r.In, r.Out, r.Action, r.Mark, r.Mask, r.Not}))
	}
	for _, l := range s.Links {
		add(maphash.Comparable(seed, struct {
			index, master, mtu int
			mac                model.MAC
			up, carrier        bool
		}{l.Index, l.Master, l.MTU, l.MAC, l.Up, l.Carrier}))
	}
	for _, n := range s.Neighbors {
		if n.State == "PERMANENT" {
			add(maphash.Comparable(seed, n))
		}
	}
	slices.Sort(out)
	return out
}

func routeHash(r *model.Route) uint64 {
	type key struct {
		table, ifindex, priority int
		dst, gateway, kind       string
		next                     uint64
	}
	k := key{table: r.Table, ifindex: r.IfIndex, priority: r.Priority, dst: r.Dst.String(), gateway: r.Gateway.String(), kind: r.Type}
	for i := range r.NextHops {
		k.next = k.next*31 + maphash.Comparable(seed, key{ifindex: r.NextHops[i].IfIndex, gateway: r.NextHops[i].Gateway.String()})
	}
	return maphash.Comparable(seed, k)
}
