// Package pods finds the network namespaces at the other ends of a node's
// links and reads what they hold.
//
// A namespace is matched to its link by the numbers that the kernel gives:
// the link names its peer's index and the peer's namespace (IFLA_LINK and
// IFLA_LINK_NETNSID), and RTM_GETNSID tells the number of an opened one. Names
// play no part. Nothing is kept open between two readings: an open socket or
// file would keep the namespace of a pod that is gone, and its links, alive.
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
	"github.com/lasthop/lasthop/probe/collect/link"
	"github.com/lasthop/lasthop/probe/collect/neigh"
	"github.com/lasthop/lasthop/probe/collect/program"
	"github.com/lasthop/lasthop/probe/collect/route"
	"github.com/lasthop/lasthop/probe/model"
	"github.com/lasthop/lasthop/probe/netns"
)

// Namespace is what one namespace behind a node's link holds.
type Namespace struct {
	// Inode is 0 and Name empty where the namespace could be asked through
	// the node's links only.
	Inode uint32
	Name  string
	Links []model.Link
	// Routes are those of the main table. Entered is false where routes and
	// neighbours could not be read.
	Routes    []model.Route
	Neighbors []model.Neighbor
	Entered   bool
	// Programs are those on its links, where Node asks for them, Refused why
	// they could not be read.
	Programs []model.Program
	Refused  error
}

// Node is what Read needs of the node's own namespace.
type Node struct {
	Inode  uint32
	Conn   *dump.Conn
	Handle *netlink.Handle
	// Links are those whose other ends are looked for.
	Links []model.Link
	// Programs is true where the programs on the far links are wanted too.
	Programs bool
}

// Read reads the namespaces behind the links, by the number that the node
// knows them by. Those that go away meanwhile are left out. With an error,
// what could be read is returned too.
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
	candidates, hidden, err := Find(roots...)
	errs := []error{err}
	var mu sync.Mutex
	g, each := errgroup.WithContext(ctx)
	g.SetLimit(runtime.GOMAXPROCS(0))
	for _, c := range candidates {
		if c.Inode == n.Inode {
			continue
		}
		g.Go(func() error {
			id, ns, err := n.enter(each, c, wanted)
			// A name is a plain file before its namespace is mounted on it.
			gone := errors.Is(err, fs.ErrNotExist) || errors.Is(err, unix.ESRCH) || errors.Is(err, netns.ErrNotNamespace)
			if err == nil && ns == nil || gone {
				return each.Err()
			}
			mu.Lock()
			defer mu.Unlock()
			if err != nil {
				errs = append(errs, fmt.Errorf("read namespace %s: %w", c.Name, err))
			}
			if ns != nil {
				found[id] = ns
			}
			return nil
		})
	}
	if err := g.Wait(); err != nil {
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
		errs = append(errs, fmt.Errorf("%d not entered, so without gateways and routes (%d processes could not be looked into)", outside, hidden))
	}
	return found, errors.Join(errs...)
}

// enter opens a candidate and reads it when it is one of those wanted; else it
// returns nil.
func (n Node) enter(ctx context.Context, c Candidate, wanted map[int]bool) (int, *Namespace, error) {
	ns, err := netns.Open(c.Path)
	if err != nil {
		return 0, nil, err
	}
	defer ns.Close()
	id, err := n.Handle.GetNetNsIdByFd(ns.FD())
	if err != nil || !wanted[id] {
		return 0, nil, err
	}
	conn, h, err := dump.Route(ns)
	if err != nil {
		return 0, nil, err
	}
	defer conn.Close()
	defer h.Close()
	out := &Namespace{Inode: ns.Inode(), Name: c.Name}
	t, err := link.Read(ctx, conn)
	if err != nil {
		return id, nil, err
	}
	out.Links = t.Links
	routes, failed := route.Read(ctx, h)
	for _, r := range routes {
		if r.Table == unix.RT_TABLE_MAIN {
			r.Link = name(out.Links, r.IfIndex)
			out.Routes = append(out.Routes, r)
		}
	}
	out.Neighbors, err = neigh.Entries(ctx, conn)
	out.Entered = true
	if n.Programs {
		out.Programs, out.Refused = program.Read(ctx, ns, conn, out.Links)
	}
	return id, out, errors.Join(failed, err)
}

func name(links []model.Link, index int) string {
	for i := range links {
		if links[i].Index == index {
			return links[i].Name
		}
	}
	return ""
}

// Far returns the namespace and link at the other end of a node's link, nil
// where they are not known.
func Far(found map[int]*Namespace, l *model.Link) (*Namespace, *model.Link) {
	ns := found[l.PeerNetNSID]
	if ns == nil || !link.Paired(l.Kind) {
		return nil, nil
	}
	for i := range ns.Links {
		far := &ns.Links[i]
		if far.Index == l.Peer && far.Peer == l.Index && far.Kind == l.Kind {
			return ns, far
		}
	}
	return nil, nil
}

// IsPod reports whether the namespace is a pod to the node that its link far
// leads to: it sends what it has no better route for through one of its links
// to that node, or has that link alone. A namespace that has links to several
// nodes or beyond, with its default elsewhere, is the network and no pod.
func (ns *Namespace) IsPod(far *model.Link) bool {
	hasDefault := false
	for _, r := range ns.Routes {
		if r.Dst.Bits() != 0 || r.Type != "unicast" {
			continue
		}
		hasDefault = true
		hops := append([]model.Route{r}, r.NextHops...)
		for _, hop := range hops {
			if i := slices.IndexFunc(ns.Links, func(l model.Link) bool { return l.Index == hop.IfIndex }); i >= 0 &&
				ns.Links[i].PeerNetNSID == far.PeerNetNSID && link.Paired(ns.Links[i].Kind) {
				return true
			}
		}
	}
	if hasDefault {
		return false
	}
	others := 0
	for _, l := range ns.Links {
		// Devices that every namespace gets from a module (tunl0, sit0)
		// are down; the loopback device has no address.
		if l.Index != far.Index && l.Up && !l.MAC.IsZero() {
			others++
		}
	}
	return others == 0
}

// Pod describes a pod by the node's link and the namespace behind it.
func (ns *Namespace) Pod(near, far *model.Link) model.Pod {
	p := model.Pod{
		MAC:       far.MAC,
		Interface: far.Name,
		Link:      near.Name,
		LinkIndex: near.Index,
		LinkMAC:   near.MAC,
		Netns:     ns.Inode,
		NetnsName: ns.Name,
		Up:        far.Up,
	}
	for _, a := range far.Addresses {
		if !a.Addr().IsLinkLocalUnicast() {
			p.Addresses = append(p.Addresses, a)
		}
	}
	slices.SortStableFunc(p.Addresses, func(a, b netip.Prefix) int { return a.Addr().BitLen() - b.Addr().BitLen() })
	for _, r := range ns.Routes {
		if r.IfIndex != far.Index {
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
