// Package collect reads what a node's kernel and its plugins' files hold, once, into plain values.
//
// It reads by netlink (rtnetlink, nfnetlink), getsockopt, BPF queries and files below /proc, /sys, /etc/cni and
// /var; each package below says what and with which rights. All sockets are opened in the node's network
// namespace. The pods' namespaces are entered during a reading, which takes CAP_SYS_ADMIN, and nothing of them is
// kept open. Nothing is written and no kernel module is loaded.
//
// A source that cannot be read, or only in part, is no error: it is a gap in Snapshot.Sources, with the reason.
package collect

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"net/netip"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"sync/atomic"

	"github.com/vishvananda/netlink"
	"golang.org/x/sys/unix"

	"github.com/lasthop/lasthop/probe/collect/azure"
	"github.com/lasthop/lasthop/probe/collect/change"
	"github.com/lasthop/lasthop/probe/collect/cilium"
	"github.com/lasthop/lasthop/probe/collect/cluster"
	"github.com/lasthop/lasthop/probe/collect/conntrack"
	"github.com/lasthop/lasthop/probe/collect/dump"
	"github.com/lasthop/lasthop/probe/collect/files"
	"github.com/lasthop/lasthop/probe/collect/iptables"
	"github.com/lasthop/lasthop/probe/collect/kmod"
	"github.com/lasthop/lasthop/probe/collect/link"
	"github.com/lasthop/lasthop/probe/collect/names"
	"github.com/lasthop/lasthop/probe/model"
	"github.com/lasthop/lasthop/probe/netns"
)

// FileError says that a file given by an option cannot be read, or where its content is not what was expected.
type FileError = files.Error

// Options select the node and what is known of it.
type Options struct {
	// NS is the node's network namespace, nil for the current one. The caller keeps it open until Close and closes it.
	NS *netns.NS
	// HostRoot is the directory of the node's files; empty is "/".
	HostRoot string
	// Uplinks are the links that lead off the node. If empty, they are found by the default routes.
	Uplinks []string
	// PodCIDRs are the cluster's pod ranges. If empty, they are found by the node's rules.
	PodCIDRs []netip.Prefix
	// NodesFile is a file that `kubectl get nodes -o json` wrote, PodsFile one of `kubectl get pods -A -o json`; or empty.
	NodesFile, PodsFile string
	// NodesHint says how the user can give the first; empty where that is not possible.
	NodesHint string
	// RoutesFiles are files that `az network … -o json` wrote.
	RoutesFiles []string
	// Azure, if set, is asked once, for what such files tell.
	Azure *azure.Client
	// Stdin is what "-" stands for as the name of one of these files.
	Stdin io.Reader
}

// Collector reads one node. It is safe for concurrent use.
type Collector struct {
	options Options
	ns      *netns.NS
	// ownNS is true if Close closes ns.
	ownNS bool
	// conn and handle are rtnetlink sockets.
	conn   *dump.Conn
	handle *netlink.Handle
	kernel *kmod.Kernel
	// nft and ct are nfnetlink sockets, nil until Open has the namespace.
	nft, ct *dump.Netfilter
	packets iptables.Reader
	cilium  cilium.Reader
	// noFiles says why the node's files may not be read, nil if they may.
	noFiles error
	// before are the statistics of connection tracking at Open.
	before model.Conntrack
	// flows is how many were listed last.
	flows     atomic.Int64
	nodes     []model.ClusterNode
	nodesFrom string
	azure     model.Azure
	asked     *asked
	names     naming

	followers sync.WaitGroup
	mu        sync.Mutex
	// frames are the bridge rules of the last State, for Quick.
	frames []model.FrameRule
	// local are the addresses whose flows the last State kept, for Flows.
	local map[netip.Addr]bool
	// processes are those of the namespaces behind the node's links at the last State, by inode, for Quick.
	processes map[uint32][]string
	// stop ends the followers.
	stop []func()
}

// Open opens the sockets and reads the given files. It fails with a *model.UnsupportedError if the namespace may not
// be entered, a *FileError for a bad file that was given, and an *UplinkError for an uplink that does not exist.
func Open(o Options) (*Collector, error) {
	o.HostRoot = cmp.Or(o.HostRoot, "/")
	c := &Collector{
		options: o, ns: o.NS, kernel: kmod.New(o.HostRoot), names: naming{finder: names.New(o.HostRoot)},
		processes: map[uint32][]string{},
	}
	if _, err := os.ReadDir(o.HostRoot); errors.Is(err, fs.ErrPermission) {
		c.noFiles = allowed("read the node's files", "needs CAP_SYS_PTRACE, or a container that mounts them at /host", err)
	}
	if err := c.open(); err != nil {
		return nil, errors.Join(err, c.Close())
	}
	c.askAzure()
	return c, nil
}

func (c *Collector) open() (err error) {
	if err := c.openGiven(); err != nil {
		return err
	}
	if c.ns == nil {
		if c.ns, err = netns.Current(); err != nil {
			return err
		}
		c.ownNS = true
	}
	if c.conn, c.handle, err = dump.Route(c.ns); err != nil {
		return allowed("read the node's network namespace", "needs root, or CAP_SYS_ADMIN to enter it", err)
	}
	if err := c.checkUplinks(); err != nil {
		return err
	}
	c.nft = dump.NewNetfilter(c.ns, c.kernel, kmod.NFTables)
	c.ct = dump.NewNetfilter(c.ns, c.kernel, kmod.ConntrackNetlink)
	if ct, err := c.ct.Conn(); err == nil {
		// State reports why the statistics cannot be read.
		c.before, _ = conntrack.Statistics(context.Background(), ct)
	}
	return nil
}

// openGiven reads the files that the user gave.
func (c *Collector) openGiven() (err error) {
	given := files.Given{Stdin: c.options.Stdin}
	var text []byte
	if c.options.NodesFile != "" {
		if c.nodesFrom, text, err = given.Read(c.options.NodesFile); err != nil {
			return err
		}
		if c.nodes, err = cluster.DecodeNodes(c.nodesFrom, text); err != nil {
			return err
		}
	}
	if c.options.PodsFile != "" {
		from, text, err := given.Read(c.options.PodsFile)
		if err != nil {
			return err
		}
		list, err := cluster.DecodePods(from, text)
		if err != nil {
			return err
		}
		c.names.know(from, list)
	}
	c.azure, err = azure.Read(given, c.options.RoutesFiles)
	return err
}

// allowed turns a refusal by the kernel into an error with a remedy.
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
	names := model.Map(t.Links, func(l model.Link) string { return l.Name })
	for _, u := range c.options.Uplinks {
		if !slices.Contains(names, u) {
			return &UplinkError{u, names}
		}
	}
	return nil
}

// UplinkError says that the uplink Name is none of the node's links.
type UplinkError struct {
	Name  string
	Links []string
}

func (e *UplinkError) Error() string {
	return fmt.Sprintf("uplink %q: no such link; this node has %s", e.Name, strings.Join(e.Links, ", "))
}

// Close ends all followers and closes the sockets.
func (c *Collector) Close() error {
	c.mu.Lock()
	stop := c.stop
	c.stop = nil
	c.mu.Unlock()
	for _, f := range stop {
		f()
	}
	c.followers.Wait()
	if c.conn != nil {
		c.conn.Close()
	}
	for _, conn := range []*dump.Netfilter{c.nft, c.ct} {
		if conn != nil {
			conn.Close()
		}
	}
	if c.handle != nil {
		c.handle.Close()
	}
	if c.ownNS {
		return c.ns.Close()
	}
	return nil
}

// Follow returns a channel that receives a value after links, addresses, routes or namespaces of the node have
// changed. Changes made before the value is received lead to one value. The channel is closed when ctx ends or
// the collector is closed.
func (c *Collector) Follow(ctx context.Context) (<-chan struct{}, error) {
	w, err := link.Watch(c.ns)
	if err != nil {
		return nil, allowed("watch links", "", err)
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

// Changes subscribes to the changes of the node's state, with what the kernel says of who made them.
func (c *Collector) Changes() (*change.Watcher, error) {
	w, err := change.Watch(c.ns, c.kernel)
	return w, allowed("follow changes", "", err)
}

// roots are the directories below which namespaces are searched.
func (c *Collector) roots() []string {
	if filepath.Clean(c.options.HostRoot) == "/" || c.noFiles != nil {
		return []string{"/"}
	}
	return []string{"/", c.options.HostRoot}
}

// nodeName returns the name of the node in the nodes file, which has its addresses;
// else the name of its namespace; else the host's name.
func (c *Collector) nodeName(links []model.Link) string {
	own := nodeAddresses(links)
	for _, n := range c.nodes {
		if slices.ContainsFunc(n.Addresses, func(a netip.Addr) bool { return own[a] }) {
			return n.Name
		}
	}
	if name := c.namespaceName(); name != "" {
		return name
	}
	if name := files.Hostname(c.options.HostRoot); name != "" {
		return name
	}
	name, _ := os.Hostname()
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
