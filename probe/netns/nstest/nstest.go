// Package nstest creates network namespaces for tests and runs commands in them. It takes root.
package nstest

import (
	"fmt"
	"os"
	"os/exec"
	"runtime"
	"strings"
	"testing"

	"golang.org/x/sys/unix"

	"github.com/lasthop/lasthop/probe/netns"
)

// NS is a namespace that lives as long as its test.
type NS struct {
	*netns.NS
	// Name is its name for `ip netns`, or empty.
	Name string
	t    testing.TB
}

// New creates an empty namespace without a name. It disappears with the test, or with the process.
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

// Named creates a namespace that `ip netns` lists, as container runtimes do. By the
// beginning of its name `lasthop lab down --all` finds it if the test is killed.
func Named(t testing.TB, name string) *NS {
	t.Helper()
	name = fmt.Sprintf("lasthop-collect%d-%s", os.Getpid(), name)
	run(t, "", "ip", "netns", "add", name)
	t.Cleanup(func() { run(t, "", "ip", "netns", "del", name) })
	ns, err := netns.Named(name)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { ns.Close() })
	return &NS{NS: ns, Name: name, t: t}
}

// Run runs the script as a shell script in the namespace. The test fails if one of them fails.
func (n *NS) Run(script ...string) {
	n.t.Helper()
	n.Output(script...)
}

// Output is Run that returns what the commands print.
func (n *NS) Output(script ...string) string {
	n.t.Helper()
	return run(n.t, strings.Join(script, "\n"), "nsenter", "--net="+n.Path(), "sh", "-e")
}

// Feed runs one command in the namespace with the given input and returns what it prints.
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
