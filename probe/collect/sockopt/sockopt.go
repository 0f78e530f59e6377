// Package sockopt reads the tables of legacy iptables and ebtables, which the kernel
// gives as options of an IP socket. It takes CAP_NET_ADMIN.
//
// A request for a table that is not there loads its module and makes the table. The caller knows that it is there.
package sockopt

import (
	"errors"
	"fmt"
	"runtime"
	"unsafe"

	"golang.org/x/sys/unix"
)

// Get calls getsockopt with b, which the kernel reads and writes. Addresses in b may only be those of b itself.
func Get(fd, level, option int, b []byte) error {
	if len(b) == 0 {
		return unix.EINVAL
	}
	n := uint32(len(b))
	_, _, errno := unix.Syscall6(unix.SYS_GETSOCKOPT, uintptr(fd), uintptr(level), uintptr(option),
		uintptr(unsafe.Pointer(&b[0])), uintptr(unsafe.Pointer(&n)), 0)
	runtime.KeepAlive(b)
	if errno != 0 {
		return errno
	}
	return nil
}

// attempts limits how often a table that changes between two requests is read anew.
const attempts = 4

// Retry calls f with a socket of the domain until it returns something else than changed, which the kernel
// returns where a table was replaced between two requests, but a few times at most.
func Retry(domain int, changed error, f func(fd int) error) error {
	fd, err := unix.Socket(domain, unix.SOCK_DGRAM|unix.SOCK_CLOEXEC, 0)
	if err != nil {
		return fmt.Errorf("open socket: %w", err)
	}
	defer unix.Close(fd)
	for range attempts {
		if err = f(fd); !errors.Is(err, changed) {
			return err
		}
	}
	return err
}
