// Package neigh reads neighbour tables and the forwarding databases of
// bridges.
package neigh

import (
	"context"
	"fmt"
	"net/netip"
	"strconv"

	"github.com/vishvananda/netlink"
	"golang.org/x/sys/unix"

	"github.com/lasthop/lasthop/probe/collect/dump"
	"github.com/lasthop/lasthop/probe/model"
)

// Read lists the neighbour entries and the proxied addresses. As `ip neigh`
// does, it leaves out what needs no resolution (multicast, loopback). Link
// names are left to the caller, who has them by index.
func Read(ctx context.Context, h *netlink.Handle) ([]model.Neighbor, error) {
	out, err := Entries(ctx, h)
	if err != nil {
		return out, err
	}
	var proxies []netlink.Neigh
	err = dump.Retry(ctx, func() (err error) {
		proxies, err = h.NeighProxyList(0, netlink.FAMILY_ALL)
		return err
	})
	for _, n := range proxies {
		if a, ok := netip.AddrFromSlice(n.IP); ok {
			out = append(out, model.Neighbor{Addr: a.Unmap(), IfIndex: n.LinkIndex, Proxy: true})
		}
	}
	if err != nil {
		return out, fmt.Errorf("list proxied neighbours: %w", err)
	}
	return out, nil
}

// Entries is Read without the proxied addresses.
func Entries(ctx context.Context, h *netlink.Handle) ([]model.Neighbor, error) {
	var list []netlink.Neigh
	err := dump.Retry(ctx, func() (err error) {
		list, err = h.NeighList(0, netlink.FAMILY_ALL)
		return err
	})
	var out []model.Neighbor
	for _, n := range list {
		a, ok := netip.AddrFromSlice(n.IP)
		if !ok || n.State == unix.NUD_NOARP || n.Flags&unix.NTF_PROXY != 0 {
			continue
		}
		out = append(out, model.Neighbor{
			Addr:    a.Unmap(),
			MAC:     model.MACFrom(n.HardwareAddr),
			IfIndex: n.LinkIndex,
			State:   state(n.State),
		})
	}
	if err != nil {
		return out, fmt.Errorf("list neighbours: %w", err)
	}
	return out, nil
}

func state(n int) string {
	switch n {
	case unix.NUD_NONE:
		return "NONE"
	case unix.NUD_INCOMPLETE:
		return "INCOMPLETE"
	case unix.NUD_REACHABLE:
		return "REACHABLE"
	case unix.NUD_STALE:
		return "STALE"
	case unix.NUD_DELAY:
		return "DELAY"
	case unix.NUD_PROBE:
		return "PROBE"
	case unix.NUD_FAILED:
		return "FAILED"
	case unix.NUD_PERMANENT:
		return "PERMANENT"
	}
	return strconv.Itoa(n)
}

// FDB lists the addresses that bridges have learnt or hold.
func FDB(ctx context.Context, h *netlink.Handle) ([]model.FDBEntry, error) {
	var list []netlink.Neigh
	err := dump.Retry(ctx, func() (err error) {
		list, err = h.NeighList(0, unix.AF_BRIDGE)
		return err
	})
	var out []model.FDBEntry
	for _, n := range list {
		// Without a master it is a device's own filter, not a bridge's.
		if n.MasterIndex == 0 {
			continue
		}
		out = append(out, model.FDBEntry{
			MAC:     model.MACFrom(n.HardwareAddr),
			IfIndex: n.LinkIndex,
			Bridge:  n.MasterIndex,
			VLAN:    n.Vlan,
			Local:   n.State&unix.NUD_PERMANENT != 0,
		})
	}
	if err != nil {
		return out, fmt.Errorf("list bridge addresses: %w", err)
	}
	return out, nil
}
