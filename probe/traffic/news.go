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
type news struct{ *os.File }

func openNews(ns *netns.NS) (*news, error) {
	file, err := dump.Subscribe(ns, unix.NETLINK_ROUTE, nil, unix.RTNLGRP_TC)
	if err != nil {
		return nil, fmt.Errorf("follow tc filters: %w", err)
	}
	return &news{file}, nil
}

// read returns the links that notifications have come about since the last call.
// all says that some were lost: every link may have changed.
func (n *news) links() (links map[int]bool, all bool, err error) {
	links = map[int]bool{}
	var malformed error
	all, err = dump.Drain(int(n.Fd()), make([]byte, 64<<10), func(b []byte) {
		list, err := syscall.ParseNetlinkMessage(b)
		malformed = errors.Join(malformed, err)
		for _, m := range list {
			if len(m.Data) >= nl.SizeofTcMsg {
				links[int(nl.DeserializeTcMsg(m.Data).Ifindex)] = true
			}
		}
	})
	if err = errors.Join(err, malformed); err != nil {
		return nil, true, fmt.Errorf("follow tc filters: %w", err)
	}
	return links, all, nil
}
