// Package netns opens network namespaces and runs code inside them.
//
// A network namespace is an attribute of a thread, so Do locks its goroutine to a thread. Sockets stay in the namespace
// in which they were created, also after Do has returned.
package netns

import (
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"runtime"
	"strings"

	"golang.org/x/sys/unix"
)

// Dirs are the directories in which `ip netns` and container runtimes mount named namespaces.
var Dirs = []string{"/run/netns", "/var/run/netns"}

// NS is an open network namespace. It is safe for concurrent use until it is closed.
type NS struct {
	file  *os.File
	inode uint32
}

// ErrNotNamespace is returned for a file that is no network namespace. A file in
// Dirs is none before it is mounted and after it is unmounted.
var ErrNotNamespace = errors.New("not a network namespace")

// Current opens the namespace of the calling thread.
func Current() (*NS, error) { return Open(ownPath) }

// ownPath is the namespace of the thread that opens it.
const ownPath = "/proc/thread-self/ns/net"

// Open opens a network namespace by the path of its file.
func Open(path string) (*NS, error) {
	// Without O_NONBLOCK, opening a named pipe would wait for its writer.
	f, err := os.OpenFile(path, os.O_RDONLY|unix.O_NONBLOCK, 0)
	if err != nil {
		return nil, fmt.Errorf("open network namespace: %w", err)
	}
	var fs unix.Statfs_t
	var st unix.Stat_t
	err = errors.Join(unix.Fstatfs(int(f.Fd()), &fs), unix.Fstat(int(f.Fd()), &st))
	if err == nil && (fs.Type != unix.NSFS_MAGIC || !isNetwork(f)) {
		err = ErrNotNamespace
	}
	if err != nil {
		f.Close()
		return nil, fmt.Errorf("open network namespace %s: %w", path, err)
	}
	return &NS{file: f, inode: uint32(st.Ino)}, nil
}

// isNetwork reports whether a namespace's file is that of a network namespace.
func isNetwork(f *os.File) bool {
	kind, err := unix.IoctlRetInt(int(f.Fd()), unix.NS_GET_NSTYPE)
	return err == nil && kind == unix.CLONE_NEWNET
}

// Named opens a namespace by its name in `ip netns`, or by a path if name contains a slash.
func Named(name string) (*NS, error) {
	if strings.ContainsRune(name, '/') {
		return Open(name)
	}
	var errs []error
	for _, dir := range Dirs {
		ns, err := Open(filepath.Join(dir, name))
		if err == nil {
			return ns, nil
		}
		if !errors.Is(err, os.ErrNotExist) {
			errs = append(errs, err)
		}
	}
	if len(errs) > 0 {
		return nil, errors.Join(errs...)
	}
	return nil, fmt.Errorf("open network namespace %q: not in %s: %w", name, Dirs[0], os.ErrNotExist)
}

// FD returns the file descriptor, which is valid until Close.
func (n *NS) FD() int { return int(n.file.Fd()) }

// Inode returns the namespace's inode (struct ns_common.inum), which identifies it.
func (n *NS) Inode() uint32 { return n.inode }

// Cookie returns what no other namespace has until the next boot, while the inode of one that
// is gone is given to the next; 0 before Linux 5.14, which does not tell it.
func (n *NS) Cookie() (cookie uint64, err error) {
	err = n.Do(func() error {
		fd, err := unix.Socket(unix.AF_UNIX, unix.SOCK_DGRAM|unix.SOCK_CLOEXEC, 0)
		if err != nil {
			return fmt.Errorf("ask for a network namespace's cookie: %w", err)
		}
		defer unix.Close(fd)
		cookie, err = unix.GetsockoptUint64(fd, unix.SOL_SOCKET, unix.SO_NETNS_COOKIE)
		if err != nil && !errors.Is(err, unix.ENOPROTOOPT) {
			return fmt.Errorf("ask for a network namespace's cookie: %w", err)
		}
		return nil
	})
	return cookie, err
}

// Path returns a path to the namespace that other processes can open too. It is valid until Close.
func (n *NS) Path() string { return fmt.Sprintf("/proc/%d/fd/%d", os.Getpid(), n.FD()) }

// Close closes the descriptor.
func (n *NS) Close() error { return n.file.Close() }

// Do calls f on a thread inside the namespace. Goroutines that f starts are not inside.
func (n *NS) Do(f func() error) error {
	done := make(chan error, 1)
	go func() { done <- n.do(f) }()
	return <-done
}

func (n *NS) do(f func() error) error {
	runtime.LockOSThread()
	// By system calls alone: labs come here for each request that they send.
	home, err := unix.Open(ownPath, unix.O_RDONLY|unix.O_CLOEXEC, 0)
	if err != nil {
		runtime.UnlockOSThread()
		return fmt.Errorf("open network namespace: %w", err)
	}
	defer unix.Close(home)
	var st unix.Stat_t
	if err := unix.Fstat(home, &st); err != nil || uint32(st.Ino) == n.inode {
		// setns needs CAP_SYS_ADMIN, even into the present namespace.
		defer runtime.UnlockOSThread()
		if err != nil {
			return fmt.Errorf("open network namespace: %w", err)
		}
		return f()
	}
	if err := unix.Setns(n.FD(), unix.CLONE_NEWNET); err != nil {
		runtime.UnlockOSThread()
		return fmt.Errorf("enter network namespace: %w", err)
	}
	err = f()
	if back := unix.Setns(home, unix.CLONE_NEWNET); back != nil {
		// The goroutine exits without unlocking, so the runtime ends the
		// thread: no other goroutine may run in this namespace.
		return errors.Join(err, fmt.Errorf("leave network namespace: %w", back))
	}
	runtime.UnlockOSThread()
	return err
}
