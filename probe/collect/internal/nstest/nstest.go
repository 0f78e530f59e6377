// Package nstest gives tests network namespaces of their own, and commands
// that run inside.
package nstest

import (
	"fmt"
	"os"
	"os/exec"
	"runtime"
	"strings"
	"testing"

	"github.com/vishvananda/netlink"
	vnetns "github.com/vishvananda/netns"
	"golang.org/x/sys/unix"

	"github.com/lasthop/lasthop/probe/netns"
)

// NS is a namespace that lives as long as its test.
type NS struct {
	*netns.NS
	// Name is what `ip netns` knows it by, empty without one.
	Name string
	t    testing.TB
}

// New makes an empty namespace without a name: nothing is left of it once the
// test, or the whole process, is gone.
func New(t testing.TB) *NS {
	t.Helper()
	type made struct {
		ns  *netns.NS
		err error
	}
	c := make(chan made)
	go func() {
		// The goroutine ends locked, so that its thread ends too.
		runtime.LockOSThread()
		if err := unix.Unshare(unix.CLONE_NEWNET); err != nil {
			c <- made{err: fmt.Errorf("make network namespace: %w", err)}
			return
		}
		ns, err := netns.Current()
		c <- made{ns, err}
	}()
	m := <-c
	if m.err != nil {
		t.Fatal(m.err)
	}
	t.Cleanup(func() { m.ns.Close() })
	return &NS{NS: m.ns, t: t}
}

// Named makes a namespace that `ip netns` knows, as container runtimes do. The
// name is prefixed with the process's number.
func Named(t testing.TB, name string) *NS {
	t.Helper()
	name = fmt.Sprintf("collect%d-%s", os.Getpid(), name)
	run(t, "", "ip", "netns", "add", name)
	t.Cleanup(func() { run(t, "", "ip", "netns", "del", name) })
	ns, err := netns.Named(name)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { ns.Close() })
	return &NS{NS: ns, Name: name, t: t}
}

// Run has a shell inside the namespace run the lines of a script, and fails the
// test when one fails.
func (n *NS) Run(script ...string) {
	n.t.Helper()
	n.Output(script...)
}

// Output is Run; it returns what the commands print.
func (n *NS) Output(script ...string) string {
	n.t.Helper()
	return run(n.t, strings.Join(script, "\n"), "nsenter", "--net="+n.Path(), "sh", "-e")
}

// Feed runs one command inside the namespace with the given input.
func (n *NS) Feed(input string, command ...string) string {
	n.t.Helper()
	return run(n.t, input, append([]string{"nsenter", "--net=" + n.Path()}, command...)...)
}

func run(t testing.TB, input string, command ...string) string {
	t.Helper()
	c := exec.Command(command[0], command[1:]...)
	c.Stdin = strings.NewReader(input)
	out, err := c.CombinedOutput()
	if err != nil {
		t.Fatalf("%s: %v\n%s%s", strings.Join(command, " "), err, input, out)
	}
	return string(out)
}

// Batch runs commands of ip(8), one a line.
func Batch(t testing.TB, lines string) {
	t.Helper()
	run(t, lines, "ip", "-batch", "-")
}

// Handle opens a netlink handle in a named namespace.
func Handle(name string) (*netlink.Handle, error) {
	ns, err := netns.Named(name)
	if err != nil {
		return nil, err
	}
	defer ns.Close()
	return netlink.NewHandleAt(vnetns.NsHandle(ns.FD()), unix.NETLINK_ROUTE)
}
