package timeline

import (
	"fmt"
	"hash/maphash"
	"net/netip"
	"slices"
	"strings"

	"github.com/lasthop/lasthop/probe/model"
)

// setup holds hashes of the configuration that decides on packets, by link index, 0 for what concerns no single
// link. Drops under one setup need not be explained by another.
type setup map[int][]uint64

// same reports whether the configuration is unchanged. It ignores links that were
// added or removed: pods come and go without affecting others.
func (a setup) same(b setup) bool {
	for link, hashes := range a {
		if now, both := b[link]; both && !slices.Equal(hashes, now) {
			return false
		}
	}
	return true
}

// connections is a sysctl that is a counter, not a setting.
const connections = "net.netfilter.nf_conntrack_count"

func newSetup(s *model.Snapshot, k *keeper) setup {
	out, names := setup{0: nil}, map[string]int{}
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
		key, _ := frameMark(&s.FrameRules[i])
		add(0, key)
	}
	add(0, k.of(s.PacketRules).sum)
	for _, c := range s.Chains {
		c.Counter = model.Counter{}
		add(0, maphash.Comparable(seed, c))
	}
	for x := range model.Each(s.Sets) {
		for _, e := range x.Elements {
			add(0, maphash.Comparable(seed, [4]string{x.Family, x.Table, x.Name, e.Key + "=" + e.Value}))
		}
	}
	for _, c := range s.Sysctls {
		if c.Name != connections {
			add(names[linkOf(c.Name)], maphash.Comparable(seed, c))
		}
	}
	for i := range s.Routes {
		add(s.Routes[i].IfIndex, routeHash(&s.Routes[i]))
	}
	for _, r := range s.Rules {
		r.Unknown = nil
		add(0, maphash.String(seed, fmt.Sprint(r)))
	}
	for _, n := range s.Neighbors {
		if n.State == "PERMANENT" {
			add(n.IfIndex, maphash.Comparable(seed, n))
		}
	}
	for _, hashes := range out {
		slices.Sort(hashes)
	}
	return out
}

// linkOf returns the link of a per-link sysctl, else empty.
func linkOf(name string) string {
	for _, prefix := range []string{"net.ipv4.conf.", "net.ipv6.conf.", "net.ipv4.neigh.", "net.ipv6.neigh."} {
		if rest, ok := strings.CutPrefix(name, prefix); ok {
			// Sysctl names have slashes for the dots of a link's name.
			link, _, _ := strings.Cut(rest, ".")
			return strings.ReplaceAll(link, "/", ".")
		}
	}
	return ""
}

// follows reports whether the kernel sets a setting with another: the links' forwarding of IPv4.
func follows(name, all string) bool {
	return all == "net.ipv4.ip_forward" && strings.HasPrefix(name, "net.ipv4.conf.") && strings.HasSuffix(name, ".forwarding")
}

func routeHash(r *model.Route) uint64 {
	var hash maphash.Hash
	hash.SetSeed(seed)
	maphash.WriteComparable(&hash, struct {
		table, priority int
		dst             netip.Prefix
		kind            string
	}{r.Table, r.Priority, r.Dst, r.Type})
	for _, hop := range append([]model.Route{*r}, r.NextHops...) {
		maphash.WriteComparable(&hash, struct {
			gateway netip.Addr
			ifindex int
		}{hop.Gateway, hop.IfIndex})
	}
	return hash.Sum64()
}
