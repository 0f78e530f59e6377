// Package netns opens network namespaces and runs code inside them.
//
// The kernel ties a namespace to a thread, so Do locks its goroutine to one
// for as long as it is inside. Sockets keep the namespace they were made in,
// also after Do has returned.
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

// Dirs are where `ip netns` and container runtimes keep named namespaces.
var Dirs = []string{"/run/netns", "/var/run/netns"}

// NS is an open network namespace. It is safe for concurrent use until
// closed.
type NS struct {
	file  *os.File
	inode uint32
}

// ErrNotNamespace is told of a file that is no network namespace: of one in the
// directory of names, not yet or no more.
var ErrNotNamespace = errors.New("not a network namespace")

// Current opens the namespace of the calling thread.
func Current() (*NS, error) { return Open("/proc/thread-self/ns/net") }

// Open opens a namespace by the path of its file.
func Open(path string) (*NS, error) {
	// Without O_NONBLOCK, opening a named pipe would wait for its writer.
	f, err := os.OpenFile(path, os.O_RDONLY|unix.O_NONBLOCK, 0)
	if err != nil {
		return nil, fmt.Errorf("open network namespace: %w", err)
	}
	var fs unix.Statfs_t
	if err := unix.Fstatfs(int(f.Fd()), &fs); err != nil {
		f.Close()
		return nil, fmt.Errorf("open network namespace %s: %w", path, err)
	}
	if fs.Type != unix.NSFS_MAGIC || !isNetwork(f) {
		f.Close()
		return nil, fmt.Errorf("open network namespace %s: %w", path, ErrNotNamespace)
	}
	var st unix.Stat_t
	if err := unix.Fstat(int(f.Fd()), &st); err != nil {
		f.Close()
		return nil, fmt.Errorf("open network namespace %s: %w", path, err)
	}
	return &NS{file: f, inode: uint32(st.Ino)}, nil
}

// isNetwork tells a network namespace's file from those of other kinds.
func isNetwork(f *os.File) bool {
	kind, err := unix.IoctlRetInt(int(f.Fd()), unix.NS_GET_NSTYPE)
	return err == nil && kind == unix.CLONE_NEWNET
}

// Named opens a namespace by the name that `ip netns` knows it by, or by a
// path when it holds a slash.
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

// FD is the namespace's descriptor. It stays valid until Close.
func (n *NS) FD() int { return int(n.file.Fd()) }

// Inode is the number that the kernel identifies the namespace by
// (struct ns_common.inum).
func (n *NS) Inode() uint32 { return n.inode }

// Path names the namespace for as long as it is open, also to other processes.
func (n *NS) Path() string { return fmt.Sprintf("/proc/%d/fd/%d", os.Getpid(), n.FD()) }

// Close closes the descriptor.
func (n *NS) Close() error { return n.file.Close() }

// Do runs f with its thread inside the namespace. f must not start goroutines
// that rely on being inside.
func (n *NS) Do(f func() error) error {
	done := make(chan error, 1)
	go func() {
		done <- n.do(f)
	}()
	return <-done
}

func (n *NS) do(f func() error) error {
	runtime.LockOSThread()
	home, err := Current()
	if err != nil {
		runtime.UnlockOSThread()
		return err
	}
	defer home.Close()
	if home.inode == n.inode {
		// Entering takes CAP_SYS_ADMIN, being there does not.
		defer runtime.UnlockOSThread()
		return f()
	}
	if err := unix.Setns(n.FD(), unix.CLONE_NEWNET); err != nil {
		runtime.UnlockOSThread()
		return fmt.Errorf("enter network namespace: %w", err)
	}
	err = f()
	if back := unix.Setns(home.FD(), unix.CLONE_NEWNET); back != nil {
		// The goroutine ends locked, which ends the thread: nobody else
		// may run in a foreign namespace.
		return errors.Join(err, fmt.Errorf("leave network namespace: %w", back))
	}
	runtime.UnlockOSThread()
	return err
}
