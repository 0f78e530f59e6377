package traffic

import (
	"errors"
	"fmt"
	"maps"
	"os"
	"slices"

	"golang.org/x/sys/unix"

	"github.com/lasthop/lasthop/probe/netns"
)

// maxNumber bounds how many lasthops attach by clsact to one node at a time.
const maxNumber = 255

// number is what tells this lasthop from others of the node. It is taken as long as a socket is bound to its
// name. The kernel frees the name with the last process that has the socket, however it ends.
type number struct {
	n      uint16
	socket *os.File
}

const numberName = "@lasthop-%d"

// bindNumber takes a number in a network namespace, which abstract names belong
// to. The error is EADDRINUSE if its owner lives.
func bindNumber(ns *netns.NS, n uint16) (*number, error) {
	fd := -1
	err := ns.Do(func() (err error) {
		if fd, err = unix.Socket(unix.AF_UNIX, unix.SOCK_DGRAM|unix.SOCK_CLOEXEC, 0); err != nil {
			return err
		}
		return unix.Bind(fd, &unix.SockaddrUnix{Name: fmt.Sprintf(numberName, n)})
	})
	if err != nil {
		if fd >= 0 {
			unix.Close(fd)
		}
		return nil, fmt.Errorf("take number %d: %w", n, err)
	}
	return &number{n, os.NewFile(uintptr(fd), "number")}, nil
}

// takeNumber takes the first free number that no filter of the node bears.
func takeNumber(ns *netns.NS, r *rtnl) (*number, error) {
	for n := uint16(1); n <= maxNumber; n++ {
		got, err := bindNumber(ns, n)
		if errors.Is(err, unix.EADDRINUSE) {
			continue
		}
		if err != nil {
			return nil, err
		}
		// Looked up when the number is ours, so that no filter gets it.
		borne, err := r.numbers()
		if err == nil && borne[n] == 0 {
			return got, nil
		}
		if err := errors.Join(err, got.socket.Close()); err != nil {
			return nil, err
		}
	}
	return nil, fmt.Errorf("take number: all %d are taken", maxNumber)
}

// numbers returns how many links have filters of each lasthop.
func (r *rtnl) numbers() (map[uint16]int, error) {
	all, err := r.all()
	if err != nil {
		return nil, err
	}
	links := map[uint16]int{}
	for _, h := range all {
		of := map[uint16]bool{}
		for _, f := range slices.Concat(h[:]...) {
			of[f.number()] = true
		}
		delete(of, 0)
		for n := range of {
			links[n]++
		}
	}
	return links, nil
}

// leftovers calls each for every number whose owner is dead but whose filters are
// still there, on so many links. The number is taken meanwhile.
func leftovers(ns *netns.NS, each func(r *rtnl, n uint16, links int) error) error {
	r, err := openRTNL(ns)
	if err != nil {
		return err
	}
	defer r.close()
	borne, err := r.numbers()
	if err != nil {
		return err
	}
	var errs []error
	for _, n := range slices.Sorted(maps.Keys(borne)) {
		got, err := bindNumber(ns, n)
		if errors.Is(err, unix.EADDRINUSE) {
			continue
		}
		if err == nil {
			err = errors.Join(each(r, n, borne[n]), got.socket.Close())
		}
		errs = append(errs, err)
	}
	return errors.Join(errs...)
}

func everyLink(int) bool { return true }
