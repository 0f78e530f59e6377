package lab

import (
	"context"
	"errors"
	"fmt"
	"io/fs"
	"net"
	"net/netip"
	"os"
	"path/filepath"
	"runtime"
	"slices"
	"strings"
	"time"

	"github.com/vishvananda/netlink"
	vnetns "github.com/vishvananda/netns"
	"golang.org/x/sys/unix"

	"github.com/lasthop/lasthop/kind/scenario"
	"github.com/lasthop/lasthop/probe/model"
	"github.com/lasthop/lasthop/probe/netns"
)

// space is an open namespace of the lab with a netlink handle in it. All of
// its methods act inside the namespace.
type space struct {
	name string
	ns   *netns.NS
	nl   *netlink.Handle
	// tables are those in which the tools keep rules.
	tables model.Backend
}

// netnsDir is where `ip netns` looks for namespaces.
var netnsDir = netns.Dirs[0]

// createNetns makes a namespace that `ip netns` knows by the name. The name
// must be free.
func createNetns(name string) error {
	if err := shareNetnsDir(); err != nil {
		return err
	}
	file := filepath.Join(netnsDir, name)
	f, err := os.OpenFile(file, os.O_CREATE|os.O_EXCL|os.O_RDONLY, 0)
	if err != nil {
		return fmt.Errorf("create network namespace: %w", err)
	}
	f.Close()
	made := make(chan error, 1)
	go func() {
		// The thread ends with the goroutine, since it stays locked: it
		// is in the new namespace for good.
		runtime.LockOSThread()
		err := unix.Unshare(unix.CLONE_NEWNET)
		if err == nil {
			err = unix.Mount("/proc/thread-self/ns/net", file, "none", unix.MS_BIND, "")
		}
		made <- err
	}()
	if err := <-made; err != nil {
		return errors.Join(fmt.Errorf("create network namespace %s: %w", name, err), os.Remove(file))
	}
	return nil
}

// shareNetnsDir makes the directory a shared mount of its own, as `ip netns`
// does when it first adds a namespace. Done later by another process it would
// hide our mounts under a second set, which then could not be removed.
func shareNetnsDir() error {
	if err := os.MkdirAll(netnsDir, 0o755); err != nil {
		return fmt.Errorf("create %s: %w", netnsDir, err)
	}
	share := func() error { return unix.Mount("", netnsDir, "none", unix.MS_SHARED|unix.MS_REC, "") }
	err := share()
	if !errors.Is(err, unix.EINVAL) {
		return wrap(err, "share %s", netnsDir)
	}
	if err := unix.Mount(netnsDir, netnsDir, "none", unix.MS_BIND|unix.MS_REC, ""); err != nil {
		return fmt.Errorf("mount %s: %w", netnsDir, err)
	}
	return wrap(share(), "share %s", netnsDir)
}

// deleteNetns removes a namespace by name. One that is not there, or was left
// half made, is no error.
func deleteNetns(name string) error {
	file := filepath.Join(netnsDir, name)
	if err := unix.Unmount(file, unix.MNT_DETACH); err != nil && !errors.Is(err, unix.EINVAL) && !errors.Is(err, unix.ENOENT) {
		return fmt.Errorf("unmount network namespace %s: %w", name, err)
	}
	if err := os.Remove(file); err != nil && !errors.Is(err, fs.ErrNotExist) {
		return fmt.Errorf("remove network namespace: %w", err)
	}
	return nil
}

func openSpace(name string, tables model.Backend) (*space, error) {
	ns, err := netns.Named(name)
	if err != nil {
		return nil, err
	}
	nl, err := netlink.NewHandleAt(vnetns.NsHandle(ns.FD()), unix.NETLINK_ROUTE, unix.NETLINK_NETFILTER)
	if err != nil {
		ns.Close()
		return nil, fmt.Errorf("open netlink in %s: %w", name, err)
	}
	return &space{name: name, ns: ns, nl: nl, tables: tables}, nil
}

func (sp *space) close() {
	sp.nl.Close()
	sp.ns.Close()
}

// wrap adds what was being done to an error, if there is one.
func wrap(err error, format string, args ...any) error {
	if err == nil {
		return nil
	}
	return fmt.Errorf(format+": %w", append(args, err)...)
}

// sysctl sets a kernel setting, named by its path under /proc/sys/net.
func (sp *space) sysctl(name, val string) error {
	return sp.ns.Do(func() error { return sp.set(name, val) })
}

// set is sysctl of who is in the namespace.
func (sp *space) set(name, val string) error {
	return wrap(os.WriteFile(filepath.Join(sysctlDir, name), []byte(val), 0), "set sysctl in %s", sp.name)
}

// sysctlDir has the settings of the namespace of who reads it.
const sysctlDir = "/proc/sys/net"

// readSysctl reads a kernel setting; its parts have one space between them.
func (sp *space) readSysctl(name string) (val string, err error) {
	err = sp.ns.Do(func() error {
		text, err := os.ReadFile(filepath.Join(sysctlDir, name))
		val = strings.Join(strings.Fields(string(text)), " ")
		return wrap(err, "read sysctl in %s", sp.name)
	})
	return val, err
}

// sysctls sets several, given as name, value, name, value; those that this
// kernel does not have are left out.
func (sp *space) sysctls(pairs ...string) error {
	if len(pairs) == 0 {
		return nil
	}
	return sp.ns.Do(func() error {
		for i := 0; i+1 < len(pairs); i += 2 {
			if err := sp.set(pairs[i], pairs[i+1]); err != nil && !errors.Is(err, fs.ErrNotExist) {
				return err
			}
		}
		return nil
	})
}

// link finds a link by name.
func (sp *space) link(name string) (netlink.Link, error) {
	l, err := sp.nl.LinkByName(name)
	return l, wrap(err, "find link %s in %s", name, sp.name)
}

// withLink does something to a link.
func (sp *space) withLink(name, what string, f func(netlink.Link) error) error {
	l, err := sp.link(name)
	if err != nil {
		return err
	}
	return wrap(f(l), "%s %s in %s", what, name, sp.name)
}

// veth adds a pair of links with one end in the peer's namespace. A zero MAC
// is the kernel's to choose.
func (sp *space) veth(name string, mac model.MAC, peer *space, peerName string, peerMAC model.MAC) error {
	l := &netlink.Veth{
		LinkAttrs:        netlink.LinkAttrs{Name: name, HardwareAddr: hardware(mac)},
		PeerName:         peerName,
		PeerHardwareAddr: hardware(peerMAC),
		PeerNamespace:    netlink.NsFd(peer.ns.FD()),
	}
	return wrap(sp.nl.LinkAdd(l), "add link %s in %s", name, sp.name)
}

// bond adds a bond with one port, which must be down.
func (sp *space) bond(name string, mac model.MAC, port string) error {
	l := netlink.NewLinkBond(netlink.LinkAttrs{Name: name, HardwareAddr: hardware(mac)})
	l.Mode, l.Miimon = netlink.BOND_MODE_ACTIVE_BACKUP, 10
	if err := sp.nl.LinkAdd(l); err != nil {
		return fmt.Errorf("add bond %s in %s: %w", name, sp.name, err)
	}
	return sp.withLink(port, "enslave", func(p netlink.Link) error { return sp.nl.LinkSetMaster(p, l) })
}

// vlan adds a VLAN on a link.
func (sp *space) vlan(name, on string, tag int) error {
	return sp.withLink(on, "add VLAN on", func(l netlink.Link) error {
		attrs := netlink.LinkAttrs{Name: name, ParentIndex: l.Attrs().Index}
		return sp.nl.LinkAdd(&netlink.Vlan{LinkAttrs: attrs, VlanId: tag, VlanProtocol: netlink.VLAN_PROTOCOL_8021Q})
	})
}

// bridge adds a bridge. With a zero MAC it takes that of its ports.
func (sp *space) bridge(name string, mac model.MAC) error {
	l := &netlink.Bridge{LinkAttrs: netlink.LinkAttrs{Name: name, HardwareAddr: hardware(mac)}}
	return wrap(sp.nl.LinkAdd(l), "add bridge %s in %s", name, sp.name)
}

// port puts a link into a bridge.
func (sp *space) port(name, bridge string, hairpin bool) error {
	br, err := sp.link(bridge)
	if err != nil {
		return err
	}
	return sp.withLink(name, "enslave", func(l netlink.Link) error {
		if err := sp.nl.LinkSetMaster(l, br); err != nil {
			return err
		}
		return sp.nl.LinkSetHairpin(l, hairpin)
	})
}

// up brings links up.
func (sp *space) up(names ...string) error {
	for _, name := range names {
		if err := sp.withLink(name, "bring up", sp.nl.LinkSetUp); err != nil {
			return err
		}
	}
	return nil
}

// down takes a link down.
func (sp *space) down(name string) error { return sp.withLink(name, "take down", sp.nl.LinkSetDown) }

// joinUp brings both ends of a pair of links up, and waits until they are.
func joinUp(ctx context.Context, a *space, aName string, b *space, bName string) error {
	if err := a.up(aName); err != nil {
		return err
	}
	if err := b.up(bName); err != nil {
		return err
	}
	if err := a.awaitUp(ctx, aName); err != nil {
		return err
	}
	return b.awaitUp(ctx, bName)
}

// awaitUp waits until a link is operational. The kernel gives it a queue, and
// notifies its bridge, only some time after both ends were brought up; what is
// sent before is lost.
func (sp *space) awaitUp(ctx context.Context, name string) error {
	return wrap(poll(ctx, 2*time.Millisecond, func() (bool, error) {
		l, err := sp.link(name)
		return err == nil && l.Attrs().OperState == netlink.OperUp, err
	}), "wait for link %s in %s", name, sp.name)
}

// poll asks again and again until it is done, there is an error, or ctx ends.
func poll(ctx context.Context, period time.Duration, done func() (bool, error)) error {
	tick := time.NewTicker(period)
	defer tick.Stop()
	for {
		if ok, err := done(); ok || err != nil {
			return err
		}
		select {
		case <-ctx.Done():
			return ctx.Err()
		case <-tick.C:
		}
	}
}

// awaitSettled waits until no IPv6 address of a link that is up is tentative.
// The kernel sends no solicitation for them, but joins their multicast groups
// only some time later: solicitations that arrive before are lost.
func (sp *space) awaitSettled(ctx context.Context) error {
	return wrap(poll(ctx, 2*time.Millisecond, func() (bool, error) {
		links, err := sp.nl.LinkList()
		if err != nil {
			return false, err
		}
		up := map[int]bool{}
		for _, l := range links {
			up[l.Attrs().Index] = l.Attrs().OperState == netlink.OperUp
		}
		all, err := sp.nl.AddrList(nil, netlink.FAMILY_V6)
		return !slices.ContainsFunc(all, func(a netlink.Addr) bool { return up[a.LinkIndex] && a.Flags&unix.IFA_F_TENTATIVE != 0 }), err
	}), "wait for IPv6 addresses in %s", sp.name)
}

// awaitDuplicate waits until an IPv6 address has failed duplicate address detection.
func (sp *space) awaitDuplicate(ctx context.Context) error {
	return wrap(poll(ctx, 2*time.Millisecond, func() (bool, error) {
		all, err := sp.nl.AddrList(nil, netlink.FAMILY_V6)
		return slices.ContainsFunc(all, func(a netlink.Addr) bool { return a.Flags&unix.IFA_F_DADFAILED != 0 }), err
	}), "wait for a duplicate IPv6 address in %s", sp.name)
}

// addr gives a link an address. A link-scoped one is never chosen as the
// source of what goes elsewhere.
func (sp *space) addr(link string, p netip.Prefix, scope netlink.Scope) error {
	return sp.withLink(link, "address", func(l netlink.Link) error {
		return sp.nl.AddrAdd(l, &netlink.Addr{IPNet: ipNet(p), Scope: int(scope)})
	})
}

// haveAddr gives a link an address or takes it away.
func (sp *space) haveAddr(link string, p netip.Prefix, have bool) error {
	if have {
		return sp.addr(link, p, netlink.SCOPE_UNIVERSE)
	}
	return sp.withLink(link, "take address from", func(l netlink.Link) error {
		return sp.nl.AddrDel(l, &netlink.Addr{IPNet: ipNet(p)})
	})
}

// flushAddrs takes all IPv4 addresses from a link.
func (sp *space) flushAddrs(link string, isIPv6 bool) error {
	return sp.withLink(link, "take addresses from", func(l netlink.Link) error {
		family := netlink.FAMILY_V4
		if isIPv6 {
			family = netlink.FAMILY_V6
		}
		all, err := sp.nl.AddrList(l, family)
		for _, a := range all {
			if !a.IP.IsLinkLocalUnicast() {
				err = errors.Join(err, sp.nl.AddrDel(l, &a))
			}
		}
		return err
	})
}

// route is a route in words.
type route struct {
	dst netip.Prefix
	// via is the next hop; without it the destination is on the link.
	via  netip.Addr
	link string
	// onlink takes the next hop to be on the link whatever the addresses
	// say.
	onlink bool
	// blackhole drops silently, and needs no link.
	blackhole bool
	// local delivers to the node itself.
	local bool
	table int
	// protocol is who made it.
	protocol netlink.RouteProtocol
}

func (sp *space) routeOf(r route) (*netlink.Route, error) {
	if r.blackhole {
		return &netlink.Route{Dst: ipNet(r.dst), Type: unix.RTN_BLACKHOLE, Protocol: r.protocol}, nil
	}
	l, err := sp.link(r.link)
	if err != nil {
		return nil, err
	}
	out := &netlink.Route{Dst: ipNet(r.dst), LinkIndex: l.Attrs().Index, Table: r.table, Scope: netlink.SCOPE_LINK, Protocol: r.protocol}
	if r.local {
		out.Type, out.Table, out.Scope = unix.RTN_LOCAL, unix.RT_TABLE_LOCAL, netlink.SCOPE_HOST
	}
	if r.via.IsValid() {
		out.Scope, out.Gw = netlink.SCOPE_UNIVERSE, r.via.AsSlice()
	}
	if r.onlink {
		out.Flags = int(netlink.FLAG_ONLINK)
	}
	return out, nil
}

// route sets routes in their order, whether or not there are others for their
// destinations.
func (sp *space) route(routes ...route) error {
	for _, r := range routes {
		nr, err := sp.routeOf(r)
		if err == nil {
			err = sp.nl.RouteReplace(nr)
		}
		if err != nil {
			return fmt.Errorf("set route %s in %s: %w", r.dst, sp.name, err)
		}
	}
	return nil
}

// newRoute adds a route. Another one for its destination is an error.
func (sp *space) newRoute(r route) error {
	nr, err := sp.routeOf(r)
	if err == nil {
		err = sp.nl.RouteAdd(nr)
	}
	return wrap(err, "add route %s in %s", r.dst, sp.name)
}

// haveRoute sets a route or deletes it.
func (sp *space) haveRoute(r route, have bool) error {
	if have {
		return sp.route(r)
	}
	return sp.unroute(r)
}

// unroute deletes a route. One that is not there is no error: a link that
// went down took it along.
func (sp *space) unroute(r route) error {
	nr, err := sp.routeOf(r)
	if err != nil {
		return err
	}
	// Of any scope: ptp gives its routes to pods that of the host.
	nr.Scope = netlink.SCOPE_NOWHERE
	if err := sp.nl.RouteDel(nr); err != nil && !errors.Is(err, unix.ESRCH) {
		return fmt.Errorf("delete route %s in %s: %w", r.dst, sp.name, err)
	}
	return nil
}

// neigh pins a neighbour to a MAC.
func (sp *space) neigh(link string, a netip.Addr, mac model.MAC) error {
	return sp.withLink(link, "set neighbour on", func(l netlink.Link) error {
		return sp.nl.NeighSet(&netlink.Neigh{LinkIndex: l.Attrs().Index, IP: a.AsSlice(), HardwareAddr: hardware(mac), State: netlink.NUD_PERMANENT})
	})
}

// proxy has a link answer for an address that is behind another.
func (sp *space) proxy(link string, a netip.Addr) error {
	return sp.withLink(link, "set proxy on", func(l netlink.Link) error {
		return sp.nl.NeighSet(&netlink.Neigh{LinkIndex: l.Attrs().Index, IP: a.AsSlice(), Flags: netlink.NTF_PROXY, Family: netlink.FAMILY_V6})
	})
}

// unneigh forgets a neighbour.
func (sp *space) unneigh(link string, a netip.Addr) error {
	return sp.withLink(link, "delete neighbour on", func(l netlink.Link) error {
		return sp.nl.NeighDel(&netlink.Neigh{LinkIndex: l.Attrs().Index, IP: a.AsSlice()})
	})
}

// haveNeigh pins a neighbour to a MAC or forgets it.
func (sp *space) haveNeigh(link string, a netip.Addr, mac model.MAC, have bool) error {
	if have {
		return sp.neigh(link, a, mac)
	}
	return sp.unneigh(link, a)
}

// resolve has the kernel ask for a neighbour's MAC, and waits until it knows it or has asked in vain.
func (sp *space) resolve(ctx context.Context, link string, a netip.Addr) error {
	return sp.withLink(link, "resolve neighbour on", func(l netlink.Link) error {
		updates, done := make(chan netlink.NeighUpdate), make(chan struct{})
		defer func() {
			close(done)
			go func() {
				for range updates { // It closes the channel when it has ended.
				}
			}()
		}()
		ns := vnetns.NsHandle(sp.ns.FD())
		err := netlink.NeighSubscribeWithOptions(updates, done, netlink.NeighSubscribeOptions{Namespace: &ns, ListExisting: true})
		if err != nil {
			return err
		}
		if err := sp.nl.NeighSet(&netlink.Neigh{LinkIndex: l.Attrs().Index, IP: a.AsSlice(), Flags: netlink.NTF_USE}); err != nil {
			return err
		}
		const pending = netlink.NUD_NONE | netlink.NUD_INCOMPLETE
		for {
			select {
			case <-ctx.Done():
				return ctx.Err()
			case u, open := <-updates:
				if got, _ := netip.AddrFromSlice(u.IP); !open || got.Unmap() == a && u.LinkIndex == l.Attrs().Index && u.State&^pending != 0 {
					return nil
				}
			}
		}
	})
}

// forgetFlows empties the connection tracking table.
func (sp *space) forgetFlows() error {
	return wrap(sp.nl.ConntrackTableFlush(netlink.ConntrackTable), "flush flows in %s", sp.name)
}

// forgetNeighbors deletes what the kernel learnt, or tries to learn, of an
// address on a link; of all addresses when there is none.
func (sp *space) forgetNeighbors(link string, a netip.Addr) error {
	return sp.withLink(link, "forget neighbours on", func(l netlink.Link) error {
		all, err := sp.nl.NeighList(l.Attrs().Index, netlink.FAMILY_ALL)
		if err != nil {
			return err
		}
		for _, n := range all {
			got, _ := netip.AddrFromSlice(n.IP)
			got = got.Unmap()
			if n.State&(netlink.NUD_PERMANENT|netlink.NUD_NOARP) != 0 || a.IsValid() && got != a {
				continue
			}
			if err := sp.nl.NeighDel(&n); err != nil && !errors.Is(err, unix.ENOENT) {
				return err
			}
		}
		return nil
	})
}

// rule is a policy routing rule in words.
type rule struct {
	priority, table int
	from, to        netip.Prefix
	mark            uint32
}

func (r rule) netlink() *netlink.Rule {
	out := netlink.NewRule()
	out.Family, out.Priority, out.Table = netlink.FAMILY_V4, r.priority, r.table
	if r.from.Addr().Is6() || r.to.Addr().Is6() {
		out.Family = netlink.FAMILY_V6
	}
	if r.from.IsValid() {
		out.Src = ipNet(r.from)
	}
	if r.mark != 0 {
		out.Mark, out.Mask = r.mark, &r.mark
	}
	if r.to.IsValid() {
		out.Dst = ipNet(r.to)
	}
	return out
}

func (sp *space) rule(r rule) error {
	return wrap(sp.nl.RuleAdd(r.netlink()), "add rule %d in %s", r.priority, sp.name)
}

func (sp *space) unrule(r rule) error {
	return wrap(sp.nl.RuleDel(r.netlink()), "delete rule %d in %s", r.priority, sp.name)
}

var defaultRoute = netip.MustParsePrefix("0.0.0.0/0")

// defaultFor is the default route of an address's family.
func defaultFor(a netip.Addr) netip.Prefix {
	if a.Is6() {
		return netip.MustParsePrefix("::/0")
	}
	return defaultRoute
}

// host is the address as a prefix of its own.
func host(a netip.Addr) netip.Prefix { return netip.PrefixFrom(a, a.BitLen()) }

func ipNet(p netip.Prefix) *net.IPNet {
	return &net.IPNet{IP: p.Addr().AsSlice(), Mask: net.CIDRMask(p.Bits(), p.Addr().BitLen())}
}

func hardware(m model.MAC) net.HardwareAddr {
	if m.IsZero() {
		return nil
	}
	return m[:]
}

// The places of a lab beside its nodes and pods.
const (
	outsideName = scenario.OutsideName
	fabricName  = "fabric"
)
