// Package pods finds the network namespaces at the far ends of a node's links and
// reads what they hold: links, routes, neighbours, programs and full listeners.
//
// A namespace is matched to its link by the kernel's numbers: the link has its peer's index and the number of the
// peer's namespace (IFLA_LINK and IFLA_LINK_NETNSID), and RTM_GETNSID returns the number of an open namespace.
// Names do not matter. Namespaces are searched below /run/netns, /run/docker/netns and /proc/PID/ns, and entering
// one takes CAP_SYS_ADMIN. One that cannot be entered is a gap: its links and addresses are read through the
// node's socket, its routes and neighbours are unknown.
//
// Nothing is kept open between two readings: an open socket or file would keep
// the namespace of a deleted pod, and its links, alive.
package pods

import (
	"context"
	"errors"
	"fmt"
	"io/fs"
	"net/netip"
	"runtime"
	"slices"
	"sync"

	"github.com/vishvananda/netlink"
	"golang.org/x/sync/errgroup"
	"golang.org/x/sys/unix"

	"github.com/lasthop/lasthop/probe/collect/dump"
	"github.com/lasthop/lasthop/probe/collect/iptables"
	"github.com/lasthop/lasthop/probe/collect/kmod"
	"github.com/lasthop/lasthop/probe/collect/link"
	"github.com/lasthop/lasthop/probe/collect/neigh"
	"github.com/lasthop/lasthop/probe/collect/program"
	"github.com/lasthop/lasthop/probe/collect/route"
	"github.com/lasthop/lasthop/probe/collect/socket"
	"github.com/lasthop/lasthop/probe/model"
	"github.com/lasthop/lasthop/probe/netns"
)

// Namespace is what one namespace behind a node's link holds.
type Namespace struct {
	// Inode is 0 and Name empty if the namespace was not entered.
	Inode uint32
	Name  string
	// Cookie is that of netns.NS.
	Cookie uint64
	// Processes are those of Candidate.
	Processes []string
	Links     []model.Link
	// Routes are those of the main table, Tables those of others that Rules lead to. Without Entered, routes and neighbours are
	// unknown.
	Routes    []model.Route
	Rules     []model.RoutingRule
	Tables    []model.Route
	Neighbors []model.Neighbor
	Entered   bool
	// Programs are those on its links if Node.Programs is set. Refused says why some could not be read.
	Programs []model.Program
	Refused  error
	// Backlog is read if Node.Programs is set.
	Backlog *model.Backlog
	// Inside is read if Node.Lossy has the inode.
	Inside *model.Inside
}

// Node is what Read needs of the node's own namespace.
type Node struct {
	Inode  uint32
	Conn   *dump.Conn
	Handle *netlink.Handle
	// Links are those whose far ends are read.
	Links []model.Link
	// Programs asks for the programs on the far links and the listeners too.
	Programs bool
	// Lossy are the namespaces, by inode, whose rules and listeners are read.
	Lossy  []uint32
	Kernel *kmod.Kernel
	// Known, if not nil, are the processes of namespaces by inode, as they were found
	// before. Then processes are searched only if not all namespaces have names.
	Known map[uint32][]string
}

// Read reads the namespaces behind the links and returns them by their numbers in the node's namespace.
// Namespaces that disappear meanwhile are left out. With an error, what could be read is returned too.
func Read(ctx context.Context, n Node, roots ...string) (map[int]*Namespace, error) {
	wanted := map[int]bool{}
	for _, l := range n.Links {
		if link.Paired(l.Kind) && l.PeerNetNSID >= 0 {
			wanted[l.PeerNetNSID] = true
		}
	}
	found := map[int]*Namespace{}
	if len(wanted) == 0 {
		return found, nil
	}
	var s search
	s.named(roots)
	if n.Known == nil {
		s.processes(roots)
	}
	refused, err := n.enterAll(ctx, s.found, wanted, found)
	for _, ns := range found {
		ns.Processes = append(ns.Processes, n.Known[ns.Inode]...)
	}
	if named := len(s.found); err == nil && n.Known != nil && len(found) < len(wanted) {
		s.processes(roots)
		var more []error
		more, err = n.enterAll(ctx, s.found[named:], wanted, found)
		refused = append(refused, more...)
	}
	errs := append(s.errs, refused...)
	if err != nil {
		return found, err
	}
	outside := 0
	for id := range wanted {
		if found[id] != nil {
			continue
		}
		outside++
		t, err := link.ReadAt(ctx, n.Conn, id)
		if err != nil {
			errs = append(errs, fmt.Errorf("read namespace number %d: %w", id, err))
			continue
		}
		found[id] = &Namespace{Links: t.Links}
	}
	if outside > 0 {
		errs = append(errs, fmt.Errorf("%s not entered: their gateways and routes are unknown (processes that could not be inspected: %d)",
			model.Quantity(outside, "network namespace"), s.hidden))
	}
	return found, errors.Join(errs...)
}

// enterAll adds those of the candidates that are wanted to found. Refused says why some
// could not be read; the error is that of ctx.
func (n Node) enterAll(ctx context.Context, candidates []Candidate, wanted map[int]bool, found map[int]*Namespace) (refused []error, err error) {
	var mu sync.Mutex
	g, each := errgroup.WithContext(ctx)
	g.SetLimit(runtime.GOMAXPROCS(0))
	for _, c := range candidates {
		if c.Inode == n.Inode {
			continue
		}
		g.Go(func() error {
			id, ns, err := n.enter(each, c, wanted)
			if isGone(err, c.Path) {
				return each.Err()
			}
			mu.Lock()
			defer mu.Unlock()
			if err != nil {
				refused = append(refused, fmt.Errorf("read namespace %s: %w", c.Name, err))
			}
			if ns != nil {
				found[id] = ns
			}
			return each.Err()
		})
	}
	return refused, g.Wait()
}

// isGone reports whether a candidate is no namespace any more: its process has ended, or its name is a plain file, as
// before a namespace is mounted on it and after. That file has mode 0: who lacks CAP_DAC_OVERRIDE may not open it.
func isGone(err error, path string) bool {
	if errors.Is(err, fs.ErrPermission) {
		var st unix.Stat_t
		return unix.Stat(path, &st) == nil && st.Dev != namespaces
	}
	return errors.Is(err, fs.ErrNotExist) || errors.Is(err, unix.ESRCH) || errors.Is(err, netns.ErrNotNamespace)
}

// enter opens a candidate and reads it if it is one of those wanted, else it returns nil.
func (n Node) enter(ctx context.Context, c Candidate, wanted map[int]bool) (int, *Namespace, error) {
	ns, err := netns.Open(c.Path)
	if err != nil {
		return 0, nil, err
	}
	defer ns.Close()
	var id int
	err = dump.Retry(ctx, "get its netns ID", func() (err error) {
		id, err = n.Handle.GetNetNsIdByFd(ns.FD())
		return err
	})
	if err != nil || !wanted[id] {
		return 0, nil, err
	}
	conn, err := dump.Open(ns, unix.NETLINK_ROUTE)
	if err != nil {
		return 0, nil, err
	}
	defer conn.Close()
	t, err := link.Read(ctx, conn)
	if err != nil {
		return id, nil, err
	}
	out := &Namespace{Inode: ns.Inode(), Name: c.Name, Processes: c.Processes, Links: t.Links, Entered: true}
	if out.Cookie, err = ns.Cookie(); err != nil {
		return id, nil, err
	}
	routes, failed := route.Read(ctx, conn)
	rules, unread := route.Rules(ctx, conn)
	out.Rules = slices.DeleteFunc(rules, func(r model.RoutingRule) bool { return r.Priority == 0 || r.Priority >= mainRule })
	for _, r := range routes {
		r.Link = model.Find(out.Links, func(l model.Link) bool { return l.Index == r.IfIndex }).Name
		if r.Table == unix.RT_TABLE_MAIN {
			out.Routes = append(out.Routes, r)
		} else if slices.ContainsFunc(out.Rules, func(by model.RoutingRule) bool { return by.Table == r.Table }) {
			out.Tables = append(out.Tables, r)
		}
	}
	failed = errors.Join(failed, unread)
	out.Neighbors, err = neigh.Entries(ctx, conn)
	if n.Programs {
		out.Programs, out.Refused = program.Read(ctx, ns, conn, out.Links)
		var unread error
		out.Backlog, unread = socket.Read(ns)
		failed = errors.Join(failed, unread)
	}
	if slices.Contains(n.Lossy, out.Inode) {
		var unread error
		out.Inside, unread = n.inside(ctx, ns)
		failed = errors.Join(failed, unread)
	}
	return id, out, errors.Join(failed, err)
}

// mainRule is the priority of the kernel's rule for the main table.
const mainRule = 32766

// inside reads what decides on packets in a namespace; nil with an error.
func (n Node) inside(ctx context.Context, ns *netns.NS) (*model.Inside, error) {
	c := dump.NewNetfilter(ns, n.Kernel, kmod.NFTables)
	defer c.Close()
	var r iptables.Reader
	t, _, err := r.Read(ctx, ns, n.Kernel, c)
	if err != nil {
		return nil, fmt.Errorf("read its rules: %w", err)
	}
	loopback, err := socket.Loopback(ns)
	if err != nil {
		return nil, err
	}
	// Nothing tells what was counted in the window alone.
	once := func(c *model.Counter) { c.Added, c.Restarted = true, c.Packets > 0 }
	for x := range model.Each(t.Rules) {
		once(&x.Counter)
	}
	for x := range model.Each(t.Chains) {
		once(&x.Counter)
	}
	return &model.Inside{PacketRules: t.Rules, Chains: t.Chains, Sets: t.Sets, Loopback: loopback}, nil
}

// Far returns the namespace and link at the far end of a node's link, nil if they are not known.
func Far(found map[int]*Namespace, l *model.Link) (*Namespace, *model.Link) {
	ns := found[l.PeerNetNSID]
	if ns == nil || !link.Paired(l.Kind) {
		return nil, nil
	}
	if far := model.First(ns.Links, func(far *model.Link) bool {
		return far.Index == l.Peer && far.Peer == l.Index && far.Kind == l.Kind
	}); far != nil {
		return ns, far
	}
	return nil, nil
}

// IsPod reports whether the namespace is a pod of the node that its link far leads to: it has a default route
// through one of its links to that node or, without any, no link that is up to another node. A namespace with a
// default route elsewhere and a NIC or a bridge, or with links to several nodes, is the network and no pod. A pod's
// default route may go by a tunnel or another network's interface of its own.
func (ns *Namespace) IsPod(far *model.Link) bool {
	hasDefault := false
	for _, r := range ns.Routes {
		if r.Dst.Bits() != 0 || r.Type != "unicast" {
			continue
		}
		hasDefault = true
		for _, hop := range append([]model.Route{r}, r.NextHops...) {
			if i := slices.IndexFunc(ns.Links, func(l model.Link) bool { return l.Index == hop.IfIndex }); i >= 0 &&
				ns.Links[i].PeerNetNSID == far.PeerNetNSID && link.Paired(ns.Links[i].Kind) {
				return true
			}
		}
	}
	return !slices.ContainsFunc(ns.Links, func(l model.Link) bool {
		return hasDefault && (l.Kind == "bridge" || l.Kind == "" && !l.MAC.IsZero()) ||
			l.Up && link.Paired(l.Kind) && l.PeerNetNSID >= 0 && l.PeerNetNSID != far.PeerNetNSID
	})
}

// Pod returns the pod behind the node's link near, whose far end is far.
func (ns *Namespace) Pod(near, far *model.Link) model.Pod {
	p := model.Pod{
		MAC: far.MAC, Interface: far.Name, MTU: far.MTU, Up: far.Up, Link: near.Name, LinkIndex: near.Index, LinkMAC: near.MAC,
		Rules: ns.Rules, Tables: ns.Tables, Netns: ns.Inode, NetnsName: ns.Name, NetnsCookie: ns.Cookie, Backlog: ns.Backlog, Inside: ns.Inside,
	}
	for _, a := range far.Addresses {
		if a.Addr().IsLinkLocalUnicast() {
			continue
		}
		p.Addresses = append(p.Addresses, a)
		if slices.Contains(far.Duplicates, a.Addr()) {
			p.Duplicates = append(p.Duplicates, a.Addr())
		}
	}
	slices.SortStableFunc(p.Addresses, func(a, b netip.Prefix) int { return a.Addr().BitLen() - b.Addr().BitLen() })
	for _, r := range ns.Routes {
		// The kernel gives a route that discards no interface for IPv4, and loopback for IPv6. One for all or half of all
		// addresses is meant: a VPN's, while it is not connected.
		discards := r.Dst.Bits() > 1 && model.Discards(r.Type)
		if r.IfIndex != far.Index && !discards {
			p.Elsewhere = append(p.Elsewhere, r.Dst)
			continue
		}
		p.Routes = append(p.Routes, r)
		if r.Dst.Bits() != 0 || !r.Gateway.IsValid() {
			continue
		}
		gw := model.Neighbor{Addr: r.Gateway, IfIndex: far.Index, Link: far.Name}
		for _, n := range ns.Neighbors {
			if n.Addr == gw.Addr && n.IfIndex == gw.IfIndex {
				gw.MAC, gw.State = n.MAC, n.State
			}
		}
		p.Gateways = append(p.Gateways, gw)
	}
	return p
}
