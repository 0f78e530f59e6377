// Package collect reads what a node's kernel and its plugins' files hold, once,
// into plain values.
//
// It only reads. Everything happens in the node's network namespace, through
// sockets that were opened there; the pods' namespaces are entered for a
// reading and left again. A source that cannot be read is a gap in the
// snapshot, with the reason, and no error.
package collect

import (
	"context"
	"errors"
	"fmt"
	"net/netip"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"sync"

	"github.com/vishvananda/netlink"
	"golang.org/x/sys/unix"

	"github.com/lasthop/lasthop/probe/collect/azure"
	"github.com/lasthop/lasthop/probe/collect/cluster"
	"github.com/lasthop/lasthop/probe/collect/conntrack"
	"github.com/lasthop/lasthop/probe/collect/dump"
	"github.com/lasthop/lasthop/probe/collect/files"
	"github.com/lasthop/lasthop/probe/collect/kmod"
	"github.com/lasthop/lasthop/probe/collect/link"
	"github.com/lasthop/lasthop/probe/model"
	"github.com/lasthop/lasthop/probe/netns"
)

// FileError says where a given file is not what it should be.
type FileError = files.Error

// Options say which node is read, and what is known of it beforehand.
type Options struct {
	// NS is the node's network namespace. It stays the caller's, and open
	// until Close. Nil is the current one.
	NS *netns.NS
	// HostRoot is where the node's files are; empty is "/".
	HostRoot string
	// Uplinks are the links that lead off the node; empty lets the default
	// routes tell.
	Uplinks []string
	// PodCIDRs are the cluster's pod ranges; empty lets the node's rules tell.
	PodCIDRs []netip.Prefix
	// NodesFile is what `kubectl get nodes -o json` wrote, or empty.
	NodesFile string
	// RoutesFiles are what `az network … -o json` printed.
	RoutesFiles []string
}

// Collector reads one node. Its methods may be called by several goroutines.
type Collector struct {
	options Options
	ns      *netns.NS
	// own is true when ns is the collector's to close.
	own    bool
	conn   *dump.Conn
	handle *netlink.Handle
	// nft and ct are sockets for nfnetlink; nil where the kernel has none.
	nft, ct *dump.Conn
	noNFT   error
	noCT    error
	// before are the connection statistics at Open.
	before model.Conntrack
	nodes  []model.ClusterNode
	azure  model.Azure

	followers sync.WaitGroup
	mu        sync.Mutex
	// frames are the bridge rules last read, for Quick.
	frames []model.FrameRule
	// stop ends the followers.
	stop []func()
}

// Open prepares the reading of a node. It fails with a *model.UnsupportedError
// where the rights do not allow it, a *FileError for a bad nodes or routes file, and
// an *UplinkError for an uplink that is not there.
func Open(o Options) (*Collector, error) {
	if o.HostRoot == "" {
		o.HostRoot = "/"
	}
	c := &Collector{options: o, ns: o.NS}
	if err := c.open(); err != nil {
		return nil, errors.Join(err, c.Close())
	}
	return c, nil
}

func (c *Collector) open() (err error) {
	if c.options.NodesFile != "" {
		if c.nodes, err = cluster.Nodes(c.options.NodesFile); err != nil {
			return err
		}
	}
	if c.azure, err = azure.Read(c.options.RoutesFiles); err != nil {
		return err
	}
	if c.ns == nil {
		if c.ns, err = netns.Current(); err != nil {
			return err
		}
		c.own = true
	}
	if c.conn, c.handle, err = dump.Route(c.ns); err != nil {
		return allowed("read the node's network namespace", "as root, or with CAP_SYS_ADMIN to enter it", err)
	}
	if err := c.checkUplinks(); err != nil {
		return err
	}
	c.nft, c.noNFT = dump.Open(c.ns, unix.NETLINK_NETFILTER)
	if kmod.Present("nf_conntrack_netlink", "ctnetlink_dump_table") {
		c.ct, c.noCT = dump.Open(c.ns, unix.NETLINK_NETFILTER)
	} else {
		c.noCT = &model.UnsupportedError{
			Feature: "list connections", Remedy: "modprobe nf_conntrack_netlink",
			Err: errors.New("the kernel's module for it is not loaded"),
		}
	}
	if c.ct != nil {
		// Without it, counters count from the table's beginning; State
		// tells why they cannot be read.
		c.before, _ = conntrack.Statistics(context.Background(), c.ct)
	}
	return nil
}

// allowed turns a lack of rights into the error that says what would help.
func allowed(feature, remedy string, err error) error {
	if errors.Is(err, unix.EPERM) || errors.Is(err, unix.EACCES) {
		return &model.UnsupportedError{Feature: feature, Remedy: remedy, Err: err}
	}
	return err
}

func (c *Collector) checkUplinks() error {
	if len(c.options.Uplinks) == 0 {
		return nil
	}
	t, err := link.Read(context.Background(), c.conn)
	if err != nil {
		return err
	}
	var names []string
	for _, l := range t.Links {
		names = append(names, l.Name)
	}
	for _, u := range c.options.Uplinks {
		if !slices.Contains(names, u) {
			return &UplinkError{u, names}
		}
	}
	return nil
}

// UplinkError says that a given uplink is none of the node's links.
type UplinkError struct {
	Name  string
	Links []string
}

func (e *UplinkError) Error() string {
	return fmt.Sprintf("uplink %q: no such link on the node; it has %s", e.Name, strings.Join(e.Links, ", "))
}

// Close ends what Follow started and closes the sockets.
func (c *Collector) Close() error {
	c.mu.Lock()
	stop := c.stop
	c.stop = nil
	c.mu.Unlock()
	for _, f := range stop {
		f()
	}
	c.followers.Wait()
	for _, conn := range []*dump.Conn{c.conn, c.nft, c.ct} {
		if conn != nil {
			conn.Close()
		}
	}
	if c.handle != nil {
		c.handle.Close()
	}
	if c.own {
		return c.ns.Close()
	}
	return nil
}

// Follow returns a channel that gets a value after links, addresses, routes or
// namespaces of the node have changed; changes that come before it is taken
// are told once. It is closed when ctx ends or the collector is closed.
func (c *Collector) Follow(ctx context.Context) (<-chan struct{}, error) {
	w, err := link.Watch(c.ns)
	if err != nil {
		return nil, allowed("follow changes of links", "", err)
	}
	ctx, cancel := context.WithCancel(ctx)
	c.mu.Lock()
	c.stop = append(c.stop, cancel)
	c.mu.Unlock()
	changes := make(chan struct{}, 1)
	c.followers.Go(func() {
		defer close(changes)
		defer w.Close()
		defer cancel()
		w.Run(ctx, func() {
			select {
			case changes <- struct{}{}:
			default:
			}
		})
	})
	return changes, nil
}

// roots are where namespaces are looked for.
func (c *Collector) roots() []string {
	if filepath.Clean(c.options.HostRoot) == "/" {
		return []string{"/"}
	}
	return []string{"/", c.options.HostRoot}
}

// nodeName is the name of the node: of its object in the nodes file, told by
// its addresses; of its namespace, when that is a named one; of the host.
func (c *Collector) nodeName(links []model.Link) string {
	// By IPVS a node has the address of every service.
	own := nodeAddresses(links)
	for _, n := range c.nodes {
		if slices.ContainsFunc(n.Addresses, func(a netip.Addr) bool { return own[a] }) {
			return n.Name
		}
	}
	if name := c.namespaceName(); name != "" {
		return name
	}
	if b, err := os.ReadFile(filepath.Join(c.options.HostRoot, "etc/hostname")); err == nil {
		if name := strings.TrimSpace(string(b)); name != "" {
			return name
		}
	}
	name, err := os.Hostname()
	if err != nil {
		return ""
	}
	return name
}

func (c *Collector) namespaceName() string {
	for _, dir := range netns.Dirs {
		entries, err := os.ReadDir(dir)
		if err != nil {
			continue
		}
		for _, e := range entries {
			var st unix.Stat_t
			if unix.Stat(filepath.Join(dir, e.Name()), &st) == nil && uint32(st.Ino) == c.ns.Inode() {
				return e.Name()
			}
		}
	}
	return ""
}
