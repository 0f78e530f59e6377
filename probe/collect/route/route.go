// Package route reads the routing tables (RTM_GETROUTE) and the rules that select among them (RTM_GETRULE). The dumps
// need no capability. A table that changed during its dump is a gap: what was read comes with dump.ErrInterrupted.
package route

import (
	"cmp"
	"context"
	"net"
	"net/netip"
	"strconv"

	"github.com/vishvananda/netlink"
	"golang.org/x/sys/unix"

	"github.com/lasthop/lasthop/probe/collect/dump"
	"github.com/lasthop/lasthop/probe/model"
)

// Read lists the IPv4 and IPv6 routes of all tables, without link names. With an
// error, what could be read is returned too.
func Read(ctx context.Context, h *netlink.Handle) ([]model.Route, error) {
	var out []model.Route
	err := dump.Retry(ctx, "list routes", func() error {
		out = nil
		all := &netlink.Route{Table: unix.RT_TABLE_UNSPEC}
		return h.RouteListFilteredIter(netlink.FAMILY_ALL, all, netlink.RT_FILTER_TABLE, func(r netlink.Route) bool {
			if r.Family == unix.AF_INET || r.Family == unix.AF_INET6 {
				out = append(out, from(r))
			}
			return true
		})
	})
	return out, err
}

func from(r netlink.Route) model.Route {
	out := model.Route{
		Table:    r.Table,
		Dst:      prefix(r.Dst),
		Gateway:  gateway(r.Gw, r.Via),
		Src:      addr(r.Src),
		IfIndex:  r.LinkIndex,
		Type:     cmp.Or(typeNames[r.Type], strconv.Itoa(r.Type)),
		Scope:    cmp.Or(scopeNames[int(r.Scope)], strconv.Itoa(int(r.Scope))),
		Protocol: r.Protocol.String(),
		Priority: r.Priority,
	}
	for i, hop := range r.MultiPath {
		gw := gateway(hop.Gw, hop.Via)
		if i == 0 {
			out.Gateway, out.IfIndex = gw, hop.LinkIndex
			continue
		}
		out.NextHops = append(out.NextHops, model.Route{Gateway: gw, IfIndex: hop.LinkIndex})
	}
	return out
}

func addr(ip net.IP) netip.Addr {
	a, _ := netip.AddrFromSlice(ip)
	return a.Unmap()
}

func gateway(gw net.IP, via netlink.Destination) netip.Addr {
	if v, ok := via.(*netlink.Via); ok && gw == nil {
		return addr(v.Addr)
	}
	return addr(gw)
}

// prefix converts a destination, which the library sets for default routes too.
func prefix(n *net.IPNet) netip.Prefix {
	// The library returns 0.0.0.0 as 16 bytes with a mask of 4.
	ones, _ := n.Mask.Size()
	return netip.PrefixFrom(addr(n.IP), ones).Masked()
}

// Names of the kernel's numbers (include/uapi/linux/rtnetlink.h).
var (
	typeNames = map[int]string{
		unix.RTN_UNICAST: "unicast", unix.RTN_LOCAL: "local", unix.RTN_BROADCAST: "broadcast",
		unix.RTN_ANYCAST: "anycast", unix.RTN_MULTICAST: "multicast", unix.RTN_BLACKHOLE: "blackhole",
		unix.RTN_UNREACHABLE: "unreachable", unix.RTN_PROHIBIT: "prohibit", unix.RTN_THROW: "throw",
		unix.RTN_NAT: "nat",
	}
	scopeNames = map[int]string{
		unix.RT_SCOPE_UNIVERSE: "global", unix.RT_SCOPE_SITE: "site", unix.RT_SCOPE_LINK: "link",
		unix.RT_SCOPE_HOST: "host", unix.RT_SCOPE_NOWHERE: "nowhere",
	}
)
