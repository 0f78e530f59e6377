package traffic

import (
	"errors"
	"fmt"
	"os"
	"syscall"

	"github.com/vishvananda/netlink/nl"
	"golang.org/x/sys/unix"

	"github.com/lasthop/lasthop/probe/collect/dump"
	"github.com/lasthop/lasthop/probe/netns"
)

// news tells which links had their qdiscs or filters changed, by anybody.
type news struct {
	*os.File
	// buf holds one notification, or some.
	buf []byte
}

func openNews(ns *netns.NS) (*news, error) {
	file, err := dump.Subscribe(ns, unix.NETLINK_ROUTE, nil, unix.RTNLGRP_TC)
	if err != nil {
		return nil, fmt.Errorf("follow tc filters: %w", err)
	}
	return &news{file, make([]byte, 64<<10)}, nil
}

// read returns the links that notifications have come about since the last call.
// all says that some were lost: every link may have changed.
func (n *news) links() (links map[int]bool, all bool, err error) {
	links = map[int]bool{}
	for {
		size, _, err := unix.Recvfrom(int(n.Fd()), n.buf, unix.MSG_DONTWAIT)
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
