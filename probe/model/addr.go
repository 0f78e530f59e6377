package model

import (
	"encoding/binary"
	"net/netip"
	"slices"
)

// Unicast reports whether an address may be of one machine that pods ask: it is global, or an IPv4 address of a link,
// as those of metadata services and of nodes' own name servers are.
func Unicast(a netip.Addr) bool { return a.IsGlobalUnicast() || a.Is4() && a.IsLinkLocalUnicast() }

// Host is the prefix that holds one address.
func Host(a netip.Addr) netip.Prefix { return netip.PrefixFrom(a, a.BitLen()) }

// Hosts are the prefixes that hold one address each; nil for none.
func Hosts(list []netip.Addr) []netip.Prefix {
	return Flat(list, func(a netip.Addr) []netip.Prefix { return []netip.Prefix{Host(a)} })
}

// InAny reports whether a prefix of the list holds the address.
func InAny(list []netip.Prefix, a netip.Addr) bool {
	return slices.ContainsFunc(list, func(p netip.Prefix) bool { return p.Contains(a) })
}

// Unique are the addresses of a list, sorted and each once.
func Unique(list []netip.Addr) []netip.Addr {
	return slices.Compact(slices.SortedFunc(slices.Values(list), netip.Addr.Compare))
}

// sharedAddresses are those of carriers' translators (RFC 6598). Clouds and overlays use them as private ones.
var sharedAddresses = netip.MustParsePrefix("100.64.0.0/10")

// Public reports whether an address is one of the internet.
func Public(a netip.Addr) bool {
	return a.IsGlobalUnicast() && !a.IsPrivate() && !sharedAddresses.Contains(a)
}

// BroadcastOf is the broadcast address of an IPv4 network, the zero Addr where there is none.
func BroadcastOf(p netip.Prefix) netip.Addr {
	if !p.Addr().Is4() || p.Bits() < 0 || p.Bits() > 30 {
		return netip.Addr{}
	}
	a := p.Masked().Addr().As4()
	host := uint32(1)<<(32-p.Bits()) - 1
	binary.BigEndian.PutUint32(a[:], binary.BigEndian.Uint32(a[:])|host)
	return netip.AddrFrom4(a)
}

// RoutesAll reports whether a prefix is a default route, or one of the two halves that programs put before it.
func RoutesAll(p netip.Prefix, isIPv6 bool) bool {
	return p.IsValid() && p.Bits() <= 1 && p.Addr().Is6() == isIPv6
}

// solicited are the groups that neighbour solicitations go to. A host has joined those of its own addresses alone.
var solicited = netip.MustParsePrefix("ff02::1:ff00:0/104")

// IsSolicited reports whether an address is such a group.
func IsSolicited(a netip.Addr) bool { return solicited.Contains(a) }

// SolicitedNode is the group of an address, which it shares the last three bytes with; not valid of IPv4.
func SolicitedNode(a netip.Addr) netip.Addr {
	if !a.Is6() {
		return netip.Addr{}
	}
	group, of := solicited.Addr().As16(), a.As16()
	copy(group[13:], of[13:])
	return netip.AddrFrom16(group)
}
