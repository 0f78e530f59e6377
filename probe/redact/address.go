package redact

import (
	"encoding/binary"
	"fmt"
	"net/netip"
	"slices"

	"github.com/lasthop/lasthop/probe/model"
)

type special struct {
	prefix netip.Prefix
	// whole addresses stay as they are.
	whole bool
}

// specials are the ranges that the kernel, the cloud or a verdict treat in their own way. Longer ones come first.
var specials = []special{
	{netip.MustParsePrefix("168.63.129.16/32"), true},   // Azure's platform
	{netip.MustParsePrefix("169.254.169.254/32"), true}, // its metadata
	{netip.MustParsePrefix("169.254.1.1/32"), true},     // the next hop that several plugins give pods
	{netip.MustParsePrefix("169.254.0.0/16"), false},
	{netip.MustParsePrefix("192.168.0.0/16"), false},
	{netip.MustParsePrefix("172.16.0.0/12"), false},
	{netip.MustParsePrefix("100.64.0.0/10"), false},
	{netip.MustParsePrefix("10.0.0.0/8"), false},
	{netip.MustParsePrefix("127.0.0.0/8"), true},
	{netip.MustParsePrefix("0.0.0.0/8"), true},
	{netip.MustParsePrefix("224.0.0.0/3"), true},         // multicast, reserved, and netmasks
	{netip.MustParsePrefix("ff02::1:ff00:0/104"), false}, // they end like the address that is sought
	{netip.MustParsePrefix("::/96"), true},
	{netip.MustParsePrefix("64:ff9b::/96"), false},
	{netip.MustParsePrefix("fe80::/64"), false},
	{netip.MustParsePrefix("ff00::/8"), true},
	{netip.MustParsePrefix("fc00::/8"), false},
	{netip.MustParsePrefix("fd00::/8"), false},
	{netip.MustParsePrefix("2000::/3"), false},
}

// Addr is another address in place of one. The zero Addr stays.
func (r *Redactor) Addr(a netip.Addr) netip.Addr {
	switch {
	case r == nil || !a.IsValid():
		return a
	case a.Is4In6():
		return netip.AddrFrom16(r.Addr(a.Unmap()).As16())
	}
	if other, ok := r.broadcasts[a]; ok {
		return other
	}
	return remembered(r.addrs, a.WithZone(""), r.instead).WithZone(r.link(a.Zone()))
}

// remembered is what stands for x, computed only once: most are seen again and again.
func remembered[T comparable](known map[T]T, x T, compute func(T) T) T {
	const most = 1 << 16
	out, ok := known[x]
	if !ok {
		out = compute(x)
		if len(known) >= most {
			clear(known)
		}
		known[x] = out
	}
	return out
}

func (r *Redactor) instead(bare netip.Addr) netip.Addr {
	in := model.Find(specials, func(s special) bool { return s.prefix.Contains(bare) })
	if in.whole {
		return bare
	}
	b := bare.AsSlice()
	out, forced := append([]byte{}, b...), false
	for depth := max(0, in.prefix.Bits()); depth < 8*len(b)-8; depth++ {
		node, _ := bare.Prefix(depth)
		if towardsSpecial(node) || hostZeros(b, depth) {
			continue
		}
		// Not even by chance does an address stay as it was.
		if !forced && (len(b) == 4 || depth < 64) || r.decide("address", node.String()) {
			out[depth/8] ^= 0x80 >> (depth % 8)
		}
		forced = true
	}
	other, _ := netip.AddrFromSlice(out)
	return other
}

// towardsSpecial reports whether a range holds a special one, which must stay in it.
func towardsSpecial(node netip.Prefix) bool {
	return slices.ContainsFunc(specials, func(s special) bool {
		return s.prefix.Bits() > node.Bits() && node.Overlaps(s.prefix)
	})
}

// hostZeros reports whether an IPv6 address has zeros alone from its second half on up
// to depth, as those that people write have.
func hostZeros(b []byte, depth int) bool {
	return len(b) != 4 && depth >= 64 && binary.BigEndian.Uint64(b[8:])>>(127-depth)>>1 == 0
}

// decide is a bit that depends on the key and a text.
func (r *Redactor) decide(kind, text string) bool { return r.hash(kind, text)[0] >= '8' }

// Prefix is another range in place of one; what is in the one is in the other.
func (r *Redactor) Prefix(p netip.Prefix) netip.Prefix {
	if !p.IsValid() {
		return p
	}
	out := netip.PrefixFrom(r.Addr(p.Addr()), p.Bits())
	if p == p.Masked() {
		out = out.Masked()
	}
	return out
}

// broadcastsOf notes the broadcast addresses that Addr alone would take elsewhere than to the end of their range.
func (r *Redactor) broadcastsOf(list []netip.Prefix) {
	for _, p := range list {
		if !p.Addr().Is4() || p.Bits() < 8 || p.Bits() >= 24 {
			continue
		}
		from := model.BroadcastOf(p)
		if _, ok := r.broadcasts[from]; !ok {
			r.broadcasts[from] = model.BroadcastOf(r.Prefix(p.Masked()))
		}
	}
}

// azureFabric is what answers every ARP request on every network of Azure's.
var azureFabric = model.MAC{0x12, 0x34, 0x56, 0x78, 0x9a, 0xbc}

// MAC is another Ethernet address in place of one. Its first byte stays, and so do
// Azure's and multicast addresses but for the end of an IPv6 address.
func (r *Redactor) MAC(m model.MAC) model.MAC {
	first := 8
	switch {
	case m.IsZero(), m == azureFabric:
		return m
	case m[0] == 0x33 && m[1] == 0x33 && m[2] == 0xff:
		first = 24
	case m.IsMulticast():
		return m
	}
	return remembered(r.macs, m, func(out model.MAC) model.MAC {
		before := model.MAC{}
		copy(before[:], m[:first/8])
		for depth := first; depth < 48; depth++ {
			bit := byte(0x80 >> (depth % 8))
			if depth == first || r.decide("mac", fmt.Sprintf("%x/%d", before, depth)) {
				out[depth/8] ^= bit
			}
			before[depth/8] |= m[depth/8] & bit
		}
		return out
	})
}

// head is the head of a packet with other addresses, without options and payload.
// Checksums of what is above IP are zero.
func (r *Redactor) head(protocol uint16, b []byte) []byte {
	b = append([]byte{}, b...)
	switch {
	case protocol == 0x0806 && len(b) >= 28 && b[4] == 6 && b[5] == 4:
		for _, at := range []int{8, 18} {
			m := r.MAC(model.MACFrom(b[at : at+6]))
			copy(b[at:], m[:])
			r.rewrite(b[at+6 : at+10])
		}
		return b[:28]
	case protocol == 0x0800 && len(b) >= 20:
		size := int(b[0]&15) * 4
		if size < 20 || size > len(b) {
			return nil
		}
		r.rewrite(b[12:16])
		r.rewrite(b[16:20])
		clear(b[20:size]) // ends the list of options
		clear(b[10:12])
		binary.BigEndian.PutUint16(b[10:], checksum(b[:size]))
		if binary.BigEndian.Uint16(b[6:])&0x1fff != 0 {
			return b[:size]
		}
		return b[:size+transport(b[9], b[size:])]
	case protocol == 0x86dd && len(b) >= 40:
		r.rewrite(b[8:24])
		r.rewrite(b[24:40])
		return b[:40+transport(b[6], b[40:])]
	}
	return nil
}

func (r *Redactor) rewrite(b []byte) {
	a, _ := netip.AddrFromSlice(b)
	copy(b, r.Addr(a).AsSlice())
}

// transports are the sizes of transport headers, and where their checksums are. What follows
// in an ICMP message may quote another packet, or name a neighbour.
var transports = map[byte]struct{ size, sum int }{6: {20, 16}, 17: {8, 6}, 1: {8, 2}, 58: {8, 2}}

// transport is how much of a packet its transport header is, and clears its checksum. Of an unknown one it is nothing.
func transport(proto byte, b []byte) int {
	size, sum := transports[proto].size, transports[proto].sum
	size = min(size, len(b))
	if sum+2 <= size {
		clear(b[sum : sum+2])
	}
	if proto == 6 && size == 20 {
		b[12] = 5<<4 | b[12]&15
	}
	return size
}

func checksum(b []byte) uint16 {
	sum := uint32(0)
	for i := 0; i+1 < len(b); i += 2 {
		sum += uint32(b[i])<<8 | uint32(b[i+1])
	}
	for sum>>16 != 0 {
		sum = sum&0xffff + sum>>16
	}
	return ^uint16(sum)
}
