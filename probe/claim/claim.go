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

// Claim is held until it is closed.
type Claim struct{ sockets []*os.File }

// Take claims programs in the network namespace of the calling thread.
func Take(programs ...uint32) (*Claim, error) {
	c := &Claim{}
	for _, id := range programs {
		fd, err := socket()
		if err == nil {
			c.sockets = append(c.sockets, os.NewFile(uintptr(fd), "claim"))
			err = unix.Bind(fd, address(id))
		}
		if err != nil {
			return nil, errors.Join(fmt.Errorf("claim program %d: %w", id, err), c.Close())
		}
	}
	return c, nil
}

// Sockets are what holds the claim, for another process. A nil Claim has none.
func (c *Claim) Sockets() []*os.File {
	if c == nil {
		return nil
	}
	return c.sockets
}

// Close gives the claim up. A nil Claim is none.
func (c *Claim) Close() error {
	if c == nil {
		return nil
	}
	var errs []error
	for _, s := range c.sockets {
		errs = append(errs, s.Close())
	}
	c.sockets = nil
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
