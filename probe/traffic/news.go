package traffic

import (
	"errors"
	"fmt"
	"syscall"

	"github.com/vishvananda/netlink/nl"
	"golang.org/x/sys/unix"

	"github.com/lasthop/lasthop/probe/netns"
)

// news tells which links had their qdiscs or filters changed, by anybody.
type news struct {
	fd int
	// buf holds one notification, or some.
	buf []byte
}

func openNews(ns *netns.NS) (*news, error) {
	n := &news{fd: -1, buf: make([]byte, 64<<10)}
	err := ns.Do(func() (err error) {
		if n.fd, err = unix.Socket(unix.AF_NETLINK, unix.SOCK_RAW|unix.SOCK_CLOEXEC|unix.SOCK_NONBLOCK, unix.NETLINK_ROUTE); err != nil {
			return err
		}
		return unix.Bind(n.fd, &unix.SockaddrNetlink{Family: unix.AF_NETLINK, Groups: 1 << (unix.RTNLGRP_TC - 1)})
	})
	if err != nil {
		return nil, errors.Join(fmt.Errorf("follow tc filters: %w", err), n.close())
	}
	return n, nil
}

// read returns the links that notifications have come about since the last call.
// all says that some were lost: every link may have changed.
func (n *news) read() (links map[int]bool, all bool, err error) {
	links = map[int]bool{}
	for {
		size, _, err := unix.Recvfrom(n.fd, n.buf, 0)
		switch {
		case errors.Is(err, unix.EAGAIN):
			return links, all, nil
		case errors.Is(err, unix.ENOBUFS):
			all = true
			continue
		case errors.Is(err, unix.EINTR):
			continue
		case err != nil:
			return nil, true, fmt.Errorf("follow tc filters: %w", err)
		}
		list, err := syscall.ParseNetlinkMessage(n.buf[:size])
		if err != nil {
			return nil, true, fmt.Errorf("follow tc filters: %w", err)
		}
		for _, m := range list {
			if len(m.Data) >= nl.SizeofTcMsg {
				links[int(nl.DeserializeTcMsg(m.Data).Ifindex)] = true
			}
		}
	}
}

func (n *news) close() error {
	if n.fd < 0 {
		return nil
	}
	return unix.Close(n.fd)
}
