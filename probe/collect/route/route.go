// Package route reads the routing tables (RTM_GETROUTE) and the rules that select among them (RTM_GETRULE). The dumps
// need no capability. A table that changed during its dump is a gap: what was read comes with dump.ErrInterrupted.
package route

import (
	"cmp"
	"context"
	"encoding/binary"
	"errors"
	"fmt"
	"net/netip"
	"strconv"

	"github.com/vishvananda/netlink"
	"golang.org/x/sys/unix"

	"github.com/lasthop/lasthop/probe/collect/dump"
	"github.com/lasthop/lasthop/probe/model"
)

// Read lists the IPv4 and IPv6 routes of all tables, without link names. With an
// error, what could be read is returned too.
func Read(ctx context.Context, c dump.Dumper) ([]model.Route, error) {
	var out []model.Route
	var objects map[uint32]nexthop
	var errs []error
	for _, family := range []byte{unix.AF_INET, unix.AF_INET6} {
		request := make([]byte, unix.SizeofRtMsg)
		request[0] = family
		found, err := dump.List(ctx, "list routes", c, unix.RTM_GETROUTE, request, unix.RTM_NEWROUTE, func(m []byte) (model.Route, error) {
			// A kernel without IPv6 lists the routes of the families that it has.
			if len(m) > 0 && m[0] != family {
				return model.Route{}, dump.ErrSkip
			}
			return Decode(m)
		})
		errs = append(errs, err)
		for r := range model.Each(found) {
			// With net.ipv4.nexthop_compat_mode=0 only the object has the next hops.
			if r.Nexthop != 0 && r.IfIndex == 0 && r.Type == typeNames[unix.RTN_UNICAST] {
				if objects == nil {
					objects, err = nexthops(ctx, c)
					errs = append(errs, err)
				}
				if !resolve(r, objects) {
					errs = append(errs, fmt.Errorf("route to %s: its nexthop object %d was not read", r.Dst, r.Nexthop))
				}
			}
		}
		out = append(out, found...)
	}
	return out, errors.Join(errs...)
}

// Decode decodes an RTM_NEWROUTE or RTM_DELROUTE message: struct rtmsg and attributes. The error is dump.ErrSkip where the
// route is in no table. The netlink library leaves out the nexthop object.
func Decode(m []byte) (r model.Route, err error) {
	const id = 30 // RTA_NH_ID, which golang.org/x/sys/unix lacks
	a := dump.ParseAfter(m, unix.SizeofRtMsg)
	if err := a.Err(); err != nil {
		return r, err
	}
	if binary.NativeEndian.Uint32(m[8:])&unix.RTM_F_CLONED != 0 {
		return r, dump.ErrSkip
	}
	r = model.Route{
		Table:    int(m[4]),
		Type:     cmp.Or(typeNames[int(m[7])], strconv.Itoa(int(m[7]))),
		Protocol: netlink.RouteProtocol(m[5]).String(),
		Dst:      netip.PrefixFrom(model.Either(m[0] == unix.AF_INET6, netip.IPv6Unspecified(), netip.IPv4Unspecified()), 0),
	}
	err = a.Decode(binary.NativeEndian, dump.Fields{
		unix.RTA_DST: prefix(&r.Dst, m[1]), unix.RTA_GATEWAY: &r.Gateway, unix.RTA_VIA: via(&r.Gateway), unix.RTA_PREFSRC: &r.Src,
		unix.RTA_OIF: &r.IfIndex, unix.RTA_PRIORITY: dump.Unsigned(&r.Priority), unix.RTA_TABLE: dump.Unsigned(&r.Table),
		unix.RTA_MULTIPATH: func(a *dump.Attrs) {
			hops, err := multipath(a.Data)
			a.Fail(err)
			setHops(&r, hops)
		},
		id: &r.Nexthop,
	})
	return r, err
}

func setHops(r *model.Route, hops []model.Route) {
	if len(hops) > 0 {
		r.Gateway, r.IfIndex, r.NextHops = hops[0].Gateway, hops[0].IfIndex, append(r.NextHops, hops[1:]...)
	}
}

// multipath decodes the next hops of a route: struct rtnexthop and attributes, for each.
func multipath(b []byte) (out []model.Route, err error) {
	for len(b) > 0 {
		n := unix.SizeofRtNexthop
		if len(b) >= n {
			n = max(n, int(binary.NativeEndian.Uint16(b)))
		}
		if len(b) < n {
			return out, fmt.Errorf("next hop of %d bytes, %d bytes left", n, len(b))
		}
		hop := model.Route{IfIndex: int(binary.NativeEndian.Uint32(b[4:]))}
		err := dump.Parse(b[unix.SizeofRtNexthop:n]).Decode(binary.NativeEndian, dump.Fields{
			unix.RTA_GATEWAY: &hop.Gateway, unix.RTA_VIA: via(&hop.Gateway),
		})
		if err != nil {
			return out, err
		}
		out, b = append(out, hop), b[min((n+unix.RTA_ALIGNTO-1)&^(unix.RTA_ALIGNTO-1), len(b)):]
	}
	return out, nil
}

// via takes struct rtvia: a gateway of another family, behind the number of that.
func via(to *netip.Addr) func(*dump.Attrs) {
	return func(a *dump.Attrs) {
		ip, _ := netip.AddrFromSlice(a.Data[min(2, len(a.Data)):])
		*to = ip.Unmap()
	}
}

// typeNames are the names of the kernel's numbers (include/uapi/linux/rtnetlink.h).
var typeNames = map[int]string{
	unix.RTN_UNICAST: "unicast", unix.RTN_LOCAL: "local", unix.RTN_BROADCAST: "broadcast",
	unix.RTN_ANYCAST: "anycast", unix.RTN_MULTICAST: "multicast", unix.RTN_BLACKHOLE: "blackhole",
	unix.RTN_UNREACHABLE: "unreachable", unix.RTN_PROHIBIT: "prohibit", unix.RTN_THROW: "throw",
	unix.RTN_NAT: "nat",
}
