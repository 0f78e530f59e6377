package dump

import (
	"errors"
	"os"

	"golang.org/x/sys/unix"

	"github.com/lasthop/lasthop/probe/netns"
)

// Subscribe opens a netlink socket in the namespace that gets the notifications of some groups. set, if any, sets options
// of the socket before; what it fails to set is left as it is.
func Subscribe(ns *netns.NS, protocol int, set func(fd int), groups ...int) (file *os.File, err error) {
	err = ns.Do(func() error {
		fd, err := unix.Socket(unix.AF_NETLINK, unix.SOCK_RAW|unix.SOCK_CLOEXEC|unix.SOCK_NONBLOCK, protocol)
		if err != nil {
			return err
		}
		file = os.NewFile(uintptr(fd), "netlink")
		if set != nil {
			set(fd)
		}
		err = unix.Bind(fd, &unix.SockaddrNetlink{Family: unix.AF_NETLINK})
		for _, g := range groups {
			if err == nil {
				err = unix.SetsockoptInt(fd, unix.SOL_NETLINK, unix.NETLINK_ADD_MEMBERSHIP, g)
			}
		}
		return err
	})
	if err != nil && file != nil {
		return nil, errors.Join(err, file.Close())
	}
	return file, err
}

// Drain passes on what a subscribed socket has got, in b, until there is no more. lost says that more had come than the
// socket had room for. The kernel says so once, before a message.
func Drain(fd int, b []byte, take func(messages []byte)) (lost bool, err error) {
	for said := false; ; {
		n, _, err := unix.Recvfrom(fd, b, unix.MSG_DONTWAIT)
		switch {
		case err == nil:
			said = false
			take(b[:n])
		case errors.Is(err, unix.EAGAIN), said && errors.Is(err, unix.ENOBUFS):
			return lost, nil
		case errors.Is(err, unix.ENOBUFS):
			said, lost = true, true
		case !errors.Is(err, unix.EINTR):
			return lost, err
		}
	}
}
