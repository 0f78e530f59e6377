package scenario

import (
	"fmt"
	"math/rand/v2"
	"net/netip"
	"slices"

	"github.com/lasthop/lasthop/probe/model"
)

// seed decides what a file leaves open: addresses, MACs, names of links, the
// order of nodes and pods, and that in which traffic starts. The same seed
// decides the same. Of seed 0 they are the well-known ones, in the file's order.
type seed int

const maxSeed = 9

// vnet lies in 10.0.0.0/8, or of even seeds in 192.168.0.0/16.
func (s seed) vnet() netip.Prefix {
	switch {
	case s == 0:
		return netip.MustParsePrefix("10.240.0.0/16")
	case s%2 == 0:
		return netip.MustParsePrefix("192.168.0.0/17")
	}
	return ipv4Range(10, 200-11*byte(s), 16)
}

// podCIDR lies in 10.0.0.0/8, or of even seeds in the range that carriers share.
func (s seed) podCIDR() netip.Prefix {
	switch {
	case s == 0:
		return netip.MustParsePrefix("10.244.0.0/16")
	case s%2 == 0:
		return ipv4Range(100, 96+byte(s), 16)
	}
	return ipv4Range(10, 20+byte(s), 16)
}

// internet is a host beyond the edge.
func (s seed) internet(host byte) netip.Addr {
	if s == 0 {
		return netip.AddrFrom4([4]byte{203, 0, 113, host})
	}
	return netip.AddrFrom4([4]byte{198, 51, 100, host + 16*byte(s)})
}

func (s seed) vnet6() netip.Prefix {
	return netip.MustParsePrefix(fmt.Sprintf("fd10:%d::/48", 240+int(s)))
}

func (s seed) podCIDR6() netip.Prefix {
	return netip.MustParsePrefix(fmt.Sprintf("fd00:10:%d::/56", 244+int(s)))
}

func (s seed) nic() string { return []string{"eth0", "ens160", "enP1s1"}[s%3] }

// fabricMAC is Azure's, or another.
func (s seed) fabricMAC() model.MAC {
	if s == 0 {
		return model.MAC{0x12, 0x34, 0x56, 0x78, 0x9a, 0xbc}
	}
	return localMAC(s.salt("the fabric"))
}

// firstOf is the range of the first node that has none: a /24 of all pods'.
func (s seed) firstOf(all netip.Prefix) netip.Prefix {
	bits := max(24, all.Bits())
	if first := nth4(all, 3*uint32(s)<<(32-bits)); all.Contains(first) {
		return netip.PrefixFrom(first, bits)
	}
	return netip.PrefixFrom(all.Addr(), bits)
}

// offset is where the search for a free host begins.
func (s seed) offset(from uint32) uint32 { return from + 7*uint32(s) }

// salt is the name from which a MAC, or the name of a link, is made.
func (s seed) salt(name string) string {
	if s == 0 {
		return name
	}
	return fmt.Sprintf("%s %d", name, s)
}

// reorder rotates the nodes, and the pods of each. The same node is observed.
func (s seed) reorder(raw *rawScenario) {
	t := &raw.Topology
	if s == 0 || len(t.Nodes) == 0 {
		return
	}
	if !raw.Observe.set() {
		raw.Observe = t.Nodes[0].Name
		if len(raw.Watch.v) > 0 {
			raw.Observe = raw.Watch.v[0].Node
		}
	}
	t.Nodes = rotated(t.Nodes, s)
	for i := range t.Nodes {
		t.Nodes[i].Pods = rotated(t.Nodes[i].Pods, s)
	}
}

// shuffle changes the order in which flows start.
func (s seed) shuffle(flows []Flow) {
	if s != 0 {
		rand.New(rand.NewPCG(uint64(s), 0)).Shuffle(len(flows), func(i, j int) { flows[i], flows[j] = flows[j], flows[i] })
	}
}

func rotated[S ~[]E, E any](list S, s seed) S {
	if len(list) == 0 {
		return list
	}
	k := int(s) % len(list)
	return slices.Concat(list[k:], list[:k])
}

func ipv4Range(a, b byte, bits int) netip.Prefix {
	return netip.PrefixFrom(netip.AddrFrom4([4]byte{a, b, 0, 0}), bits)
}
