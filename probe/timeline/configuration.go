package timeline

import (
	"hash/maphash"
	"maps"
	"slices"
	"strings"

	"github.com/lasthop/lasthop/probe/model"
)

// setup are hashes of what decides over packets: what was dropped under another
// one needs not be explained by this one. What is about a link is kept by the
// link's index, and what is about none at 0.
type setup map[int][]uint64

// same reports whether nothing has changed. Links that came or went are left
// out: pods come and go, and what happens to the others does not change by it.
func (a setup) same(b setup) bool {
	for link, hashes := range a {
		if now, both := b[link]; both && !slices.Equal(hashes, now) {
			return false
		}
	}
	return true
}

// connections is a sysctl that is a count.
const connections = "net.netfilter.nf_conntrack_count"

func newSetup(s *model.Snapshot) setup {
	out := setup{0: nil}
	names := map[string]int{}
	for _, l := range s.Links {
		names[l.Name] = l.Index
		out[l.Index] = append(out[l.Index], maphash.Comparable(seed, struct {
			master, mtu int
			mac         model.MAC
			up, carrier bool
		}{l.Master, l.MTU, l.MAC, l.Up, l.Carrier}))
	}
	add := func(link int, h uint64) {
		if _, known := out[link]; !known {
			link = 0
		}
		out[link] = append(out[link], h)
	}
	for i := range s.FrameRules {
		k, _ := frameMark(&s.FrameRules[i])
		add(0, k)
	}
	for i := range s.PacketRules {
		k, _ := packetMark(&s.PacketRules[i])
		add(0, k)
	}
	for _, c := range s.Chains {
		c.Counter = model.Counter{}
		add(0, maphash.Comparable(seed, c))
	}
	for _, c := range s.Sysctls {
		if c.Name != connections {
			add(names[linkOf(c.Name)], maphash.Comparable(seed, c))
		}
	}
	for i := range s.Routes {
		add(s.Routes[i].IfIndex, routeHash(&s.Routes[i]))
	}
	for i := range s.Rules {
		add(0, ruleHash(&s.Rules[i]))
	}
	for _, n := range s.Neighbors {
		if n.State == "PERMANENT" {
			add(n.IfIndex, maphash.Comparable(seed, n))
		}
	}
	for _, link := range slices.Collect(maps.Keys(out)) {
		slices.Sort(out[link])
	}
	return out
}

// linkOf is the link that a sysctl is of, empty for one of all links.
func linkOf(name string) string {
	for _, prefix := range []string{"net.ipv4.conf.", "net.ipv6.conf.", "net.ipv4.neigh.", "net.ipv6.neigh."} {
		if rest, ok := strings.CutPrefix(name, prefix); ok {
			// sysctl writes the dots of a link's name as slashes.
			link, _, _ := strings.Cut(rest, ".")
			return strings.ReplaceAll(link, "/", ".")
		}
	}
	return ""
}

func ruleHash(r *model.RoutingRule) uint64 {
	return maphash.Comparable(seed, struct {
		family, priority, table, jump int
		from, to, in, out, action     string
		mark, mask                    uint32
		not                           bool
	}{r.Family, r.Priority, r.Table, r.Goto, r.From.String(), r.To.String(), r.In, r.Out, r.Action, r.Mark, r.Mask, r.Not})
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
