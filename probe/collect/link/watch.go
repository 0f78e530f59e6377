package link

import (
	"context"
	"errors"
	"fmt"
	"os"

	"golang.org/x/sys/unix"

	"github.com/lasthop/lasthop/probe/collect/dump"
	"github.com/lasthop/lasthop/probe/netns"
)

// groups are the multicast groups of the changes that Watch notifies of. A
// namespace gets a number (RTNLGRP_NSID) when its link is first seen here.
var groups = []int{
	unix.RTNLGRP_LINK, unix.RTNLGRP_NSID,
	unix.RTNLGRP_IPV4_IFADDR, unix.RTNLGRP_IPV6_IFADDR,
	unix.RTNLGRP_IPV4_ROUTE, unix.RTNLGRP_IPV6_ROUTE,
}

// Watcher waits for changes in one namespace.
type Watcher struct{ file *os.File }

// Watch subscribes to changes of links, addresses, routes and namespace numbers. With CAP_NET_BROADCAST it
// includes those in the pods' namespaces, where a pod's address is set.
func Watch(ns *netns.NS) (*Watcher, error) {
	file, err := dump.Subscribe(ns, unix.NETLINK_ROUTE, func(fd int) {
		// Without CAP_NET_BROADCAST the changes in the node's own namespace remain.
		_ = unix.SetsockoptInt(fd, unix.SOL_NETLINK, unix.NETLINK_LISTEN_ALL_NSID, 1)
	}, groups...)
	if err != nil {
		return nil, fmt.Errorf("subscribe to link changes: %w", err)
	}
	return &Watcher{file}, nil
}

// Run calls f after each change, until ctx ends or the watcher is closed. Several changes during one call of f
// may lead to a single further call. What changed is not passed on, since messages may be lost.
func (w *Watcher) Run(ctx context.Context, f func()) {
	stop := context.AfterFunc(ctx, func() { w.file.Close() })
	defer stop()
	conn, err := w.file.SyscallConn()
	if err != nil {
		return
	}
	// Only the arrival of a message counts; the kernel truncates its content.
	b := make([]byte, 1)
	for err == nil {
		var failed error
		err = conn.Read(func(fd uintptr) bool {
			some, lost := false, false
			lost, failed = dump.Drain(int(fd), b, func([]byte) { some = true })
			return some || lost || failed != nil
		})
		if err = errors.Join(err, failed); err == nil {
			f()
		}
	}
}

// Close ends Run.
func (w *Watcher) Close() error { return w.file.Close() }
