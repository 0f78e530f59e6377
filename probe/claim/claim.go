// Package claim lets lasthops know each other's BPF programs. The names of programs, by which they are known otherwise,
// take CAP_SYS_ADMIN; to see that a program is there takes only CAP_NET_ADMIN.
//
// A claim is a socket that is bound to an abstract name with the program's number, in the network namespace where the
// program is attached. The kernel frees it with its process. A claim is no proof, since anybody in the namespace can
// make one: only what could be said of any program is left out of a report for it.
package claim

import (
	"errors"
	"fmt"
	"os"
	"strings"

	"golang.org/x/sys/unix"
)

// Claim is held until it is closed, by this process and those that its sockets are given to.
type Claim struct{ Sockets []*os.File }

// Take claims programs in the network namespace of the calling thread. If it fails, nothing is claimed.
func Take(programs ...uint32) (*Claim, error) {
	c := &Claim{}
	for _, id := range programs {
		fd, err := socket()
		if err == nil {
			c.Sockets = append(c.Sockets, os.NewFile(uintptr(fd), "claim"))
			err = unix.Bind(fd, address(id))
		}
		if err != nil {
			return c, errors.Join(fmt.Errorf("claim program %d: %w", id, err), c.Close())
		}
	}
	return c, nil
}

// Close gives the claim up.
func (c *Claim) Close() error {
	var errs []error
	for _, s := range c.Sockets {
		errs = append(errs, s.Close())
	}
	c.Sockets = nil
	return errors.Join(errs...)
}

const prefix = "lasthop_"

// Ours reports whether a program is one of lasthop's, those of other processes too, by its name or, where that was
// refused and is empty, by a claim. They pass every packet on. A program whose number is unknown too, 0, is not.
func Ours(name string, program uint32) bool {
	return strings.HasPrefix(name, prefix) || name == "" && program != 0 && Held(program)
}

// Held reports whether a lasthop has claimed a program in the network namespace of the
// calling thread. What cannot be found out is not claimed.
func Held(program uint32) bool {
	fd, err := socket()
	if err != nil {
		return false
	}
	defer unix.Close(fd)
	// This sends nothing: it only looks the name up.
	return unix.Connect(fd, address(program)) == nil
}

func socket() (int, error) { return unix.Socket(unix.AF_UNIX, unix.SOCK_DGRAM|unix.SOCK_CLOEXEC, 0) }

func address(program uint32) unix.Sockaddr {
	return &unix.SockaddrUnix{Name: fmt.Sprintf("@lasthop-program-%d", program)}
}
