package main

import (
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"syscall"

	"github.com/lasthop/lasthop/probe/netns"
)

// openNode opens the node's network namespace, and names the node.
func openNode(flag string) (ns *netns.NS, name string, err error) {
	defer func() { err = cannotObserve(err) }()
	if flag != "" {
		ns, err = netns.Named(flag)
		if errors.Is(err, os.ErrNotExist) {
			err = fmt.Errorf("%w\n`ip netns list` and `lasthop lab list` list the namespaces that have a name", err)
		}
		return ns, nameOf(flag), err
	}
	if name, err = os.Hostname(); err != nil {
		return nil, "", fmt.Errorf("name the node: %w", err)
	}
	if inForeignRoot() {
		if ns, err = netns.Open("/proc/1/ns/net"); err == nil {
			return ns, name, nil
		}
	}
	ns, err = netns.Current()
	return ns, name, err
}

// nameOf is a namespace's name, even if it was given as a path.
func nameOf(flag string) string {
	if slices.Contains(netns.Dirs, filepath.Dir(flag)) {
		return filepath.Base(flag)
	}
	return flag
}

// inForeignRoot reports whether this is a container that sees the node's
// processes: PID 1 has another root directory. Under `ip netns exec`, for example,
// the root is the same, and the user wants the current namespace.
func inForeignRoot() bool {
	var ours, first syscall.Stat_t
	if syscall.Stat("/", &ours) != nil || syscall.Stat("/proc/1/root/", &first) != nil {
		return false
	}
	return ours.Dev != first.Dev || ours.Ino != first.Ino
}

// hostRoot is the directory of the node's files. kubectl debug mounts them at
// /host.
func hostRoot(flag string) string {
	if flag != "" {
		return flag
	}
	if st, err := os.Stat("/host"); err == nil && st.IsDir() {
		return "/host"
	}
	return "/"
}
