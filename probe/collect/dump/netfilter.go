package dump

import (
	"sync"

	"golang.org/x/sys/unix"

	"github.com/lasthop/lasthop/probe/collect/kmod"
	"github.com/lasthop/lasthop/probe/netns"
)

// Netfilter is an nfnetlink socket for the requests to one kernel module. It is opened once the module is there:
// opening one loads nfnetlink, and a request loads the module that it is for. It is safe for concurrent use.
type Netfilter struct {
	ns     *netns.NS
	kernel *kmod.Kernel
	module kmod.Module

	mu   sync.Mutex
	conn *Conn
}

// NewNetfilter opens nothing yet. The namespace stays open until Close.
func NewNetfilter(ns *netns.NS, kernel *kmod.Kernel, module kmod.Module) *Netfilter {
	return &Netfilter{ns: ns, kernel: kernel, module: module}
}

// Conn returns the socket. It fails with a *kmod.MissingError while the module is not there.
func (n *Netfilter) Conn() (*Conn, error) {
	n.mu.Lock()
	defer n.mu.Unlock()
	if n.conn != nil {
		return n.conn, nil
	}
	if err := n.kernel.Check(n.module); err != nil {
		return nil, err
	}
	conn, err := Open(n.ns, unix.NETLINK_NETFILTER)
	if err != nil {
		return nil, err
	}
	n.conn = conn
	return conn, nil
}

// Close closes the socket, if it was opened.
func (n *Netfilter) Close() {
	n.mu.Lock()
	defer n.mu.Unlock()
	if n.conn != nil {
		n.conn.Close()
		n.conn = nil
	}
}
