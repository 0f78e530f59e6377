package model

import "net/netip"

// Unicast reports whether an address may be of one machine that pods ask: it is global,
// or an IPv4 address of a link, as those of metadata services and of nodes' own name
// servers are.
func Unicast(a netip.Addr) bool { return a.IsGlobalUnicast() || a.Is4() && a.IsLinkLocalUnicast() }
