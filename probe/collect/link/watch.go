package link

import (
	"context"
	"fmt"
	"os"

	"golang.org/x/sys/unix"

	"github.com/lasthop/lasthop/probe/netns"
)

// groups are the changes that Watch is told of: links, addresses and routes
// come and go, and namespaces get a number here.
var groups = []int{
	unix.RTNLGRP_LINK, unix.RTNLGRP_NSID,
	unix.RTNLGRP_IPV4_IFADDR, unix.RTNLGRP_IPV6_IFADDR,
	unix.RTNLGRP_IPV4_ROUTE, unix.RTNLGRP_IPV6_ROUTE,
}

// Watcher waits for changes in one namespace.
type Watcher struct{ file *os.File }

// Watch subscribes to changes of links, addresses, routes and the numbers of
// namespaces. Where the rights allow, those of the pods' namespaces are
// included: a pod's address is set inside.
func Watch(ns *netns.NS) (*Watcher, error) {
	var file *os.File
	err := ns.Do(func() (err error) {
		file, err = subscribe()
		return err
	})
	if err != nil {
		return nil, fmt.Errorf("subscribe to link changes: %w", err)
	}
	return &Watcher{file}, nil
}

func subscribe() (*os.File, error) {
	fd, err := unix.Socket(unix.AF_NETLINK, unix.SOCK_RAW|unix.SOCK_CLOEXEC|unix.SOCK_NONBLOCK, unix.NETLINK_ROUTE)
	if err != nil {
		return nil, err
	}
	if err := unix.Bind(fd, &unix.SockaddrNetlink{Family: unix.AF_NETLINK}); err != nil {
		unix.Close(fd)
		return nil, err
	}
	for _, g := range groups {
		if err := unix.SetsockoptInt(fd, unix.SOL_NETLINK, unix.NETLINK_ADD_MEMBERSHIP, g); err != nil {
			unix.Close(fd)
			return nil, err
		}
	}
	// Needs CAP_NET_BROADCAST; without it the node's own changes remain.
	_ = unix.SetsockoptInt(fd, unix.SOL_NETLINK, unix.NETLINK_LISTEN_ALL_NSID, 1)
	return os.NewFile(uintptr(fd), "netlink"), nil
}

// Run calls f after each change, until the context ends or the watcher is
// closed. Changes that come while f runs may be told at once. What changed is
// not said: after a lost message nobody knows.
func (w *Watcher) Run(ctx context.Context, f func()) {
	stop := context.AfterFunc(ctx, func() { w.file.Close() })
	defer stop()
	conn, err := w.file.SyscallConn()
	if err != nil {
		return
	}
	// The messages are not read, only taken: the kernel cuts what is longer.
	b := make([]byte, 1)
	for {
		var failed error
		err := conn.Read(func(fd uintptr) bool {
			_, _, failed = unix.Recvfrom(int(fd), b, unix.MSG_TRUNC)
			return failed != unix.EAGAIN
		})
		if err != nil {
			return
		}
		switch failed {
		case nil, unix.ENOBUFS:
			f()
		case unix.EINTR:
		default:
			return
		}
	}
}

// Close ends Run.
func (w *Watcher) Close() error { return w.file.Close() }
