package main

import (
	"context"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"syscall"

	"github.com/lasthop/lasthop/probe/collect/dump"
	"github.com/lasthop/lasthop/probe/collect/files"
	"github.com/lasthop/lasthop/probe/collect/link"
	"github.com/lasthop/lasthop/probe/input"
	"github.com/lasthop/lasthop/probe/model"
	"github.com/lasthop/lasthop/probe/netns"
	"github.com/lasthop/lasthop/probe/traffic"
)

// openNode is openNode for a command that does nothing but observe.
func (o *observing) openNode(ctx context.Context) (ns *netns.NS, name string, err error) {
	if err := errors.Join(checkMemory(), dropRights(o.Active)); err != nil {
		return nil, "", err
	}
	return openNode(ctx, o.Netns)
}

func openNode(ctx context.Context, flag string) (ns *netns.NS, name string, err error) {
	defer func() { err = cannotObserve(err) }()
	if flag != "" {
		ns, err = netns.Named(flag)
		if errors.Is(err, os.ErrNotExist) {
			err = fmt.Errorf("%w\n`ip netns list` and `lasthop lab list` list named namespaces", err)
		}
		return ns, nameOf(flag), err
	}
	first, err := withFirst()
	if err != nil {
		return nil, "", err
	}
	if !first && inForeignRoot() {
		ns, err = openFirst()
		return ns, files.Hostname(hostRoot("")), err // the container's own name is the pod's
	}
	if ns, err = netns.Current(); err != nil {
		return nil, "", err
	}
	// Another namespace than that of PID 1 is intended, as with `ip netns exec`.
	if first && !traffic.InFirstPIDs() {
		err = checkNode(ctx, ns)
	}
	if err == nil {
		name, err = os.Hostname()
	}
	if err != nil {
		ns.Close()
		return nil, "", err
	}
	return ns, name, nil
}

// nameOf is a namespace's name, even if it was given as a path.
func nameOf(flag string) string {
	return model.Either(slices.Contains(netns.Dirs, filepath.Dir(flag)), filepath.Base(flag), flag)
}

// withFirst reports whether PID 1 is in the same network namespace. Reading /proc/1/ns/net takes rights over PID 1;
// /proc/1/net takes none, and its files have inode numbers of their own in each namespace.
func withFirst() (bool, error) {
	var ours, first syscall.Stat_t
	if err := errors.Join(syscall.Stat("/proc/thread-self/net/dev", &ours), syscall.Stat("/proc/1/net/dev", &first)); err != nil {
		return false, fmt.Errorf("compare the network namespace with that of PID 1: %w", err)
	}
	return ours.Ino == first.Ino, nil
}

// inForeignRoot reports whether this is a container that sees the node's processes: PID 1 has another root directory.
// Under `ip netns exec`, for example, the root is the same.
func inForeignRoot() bool {
	ours, err := rootOf("self")
	first, err2 := rootOf("1")
	return errors.Join(err, err2) == nil && ours != first
}

// rootOf is the device and the directory on it that a process has as its root, by its
// table of mounts, which takes no rights to read.
func rootOf(pid string) (string, error) {
	text, err := os.ReadFile("/proc/" + pid + "/mountinfo")
	if err != nil {
		return "", err
	}
	root := ""
	for line := range strings.Lines(string(text)) {
		// 36 35 98:0 /dir /mount/point …; what was mounted last is what is seen.
		if f := strings.Fields(line); len(f) > 4 && f[4] == "/" {
			root = f[2] + " " + f[3]
		}
	}
	return root, nil
}

// openFirst opens the network namespace of PID 1 from a container that is not in it.
func openFirst() (*netns.NS, error) {
	ns, err := netns.Open("/proc/1/ns/net")
	if err == nil {
		if err = ns.Do(func() error { return nil }); err == nil {
			return ns, nil
		}
		ns.Close()
	}
	if !errors.Is(err, os.ErrPermission) {
		return nil, err
	}
	return nil, fmt.Errorf("this container is not in the node's network namespace, and cannot enter it: %w\n"+
		"add hostNetwork, or the capabilities SYS_PTRACE and SYS_ADMIN: %s", err, fullRights)
}

var errNotNode = errors.New("this network namespace does not belong to a node")

// checkNode returns an error if the namespace of this container looks like that of a
// pod: its links lead to one other namespace, and what runs pods does not run here. A
// node in a container (kind, k3d) has links to pods, or at least runs a kubelet.
func checkNode(ctx context.Context, ns *netns.NS) error {
	conn, handle, err := dump.Route(ns)
	if err != nil {
		return err
	}
	defer conn.Close()
	defer handle.Close()
	t, err := link.Read(ctx, conn)
	if err != nil {
		return err
	}
	out := outward(t.Links)
	if len(out) == 0 || runsPods() {
		return nil
	}
	return fmt.Errorf("%w but to a container: %s leads to another namespace, no other link is up, and no kubelet or "+
		"container runtime runs here\n"+
		"add hostNetwork and hostPID to the pod: %s\n"+
		"with only hostPID, use --netns /proc/1/ns/net; if this is the node after all, use --netns /proc/self/ns/net",
		errNotNode, strings.Join(out, ", "), fullRights)
}

// outward names the links if there are no others than those of a pod: all that are up
// have their other end in one and the same namespace.
func outward(links []model.Link) []string {
	var names []string
	to := link.Here
	for _, l := range links {
		switch {
		case l.PeerNetNSID != link.Here && (to == link.Here || to == l.PeerNetNSID):
			to, names = l.PeerNetNSID, append(names, l.Name)
		case l.Up && l.Name != "lo":
			return nil
		}
	}
	return names
}

// runsPods reports whether a process is visible that starts pods.
func runsPods() bool {
	comms, _ := filepath.Glob("/proc/[0-9]*/comm") // only a bad pattern is an error
	return slices.ContainsFunc(comms, func(file string) bool {
		text, err := input.Read(file, input.Regular, 1<<10)
		// k3s and k0s run all in one process, as microk8s does (kubelite).
		name, _, _ := strings.Cut(strings.TrimSpace(string(text)), "-")
		return err == nil && slices.Contains([]string{"kubelet", "kubelite", "k3s", "k0s", "rke2", "containerd", "crio", "dockerd"}, name)
	})
}

// hostRoot is the directory of the node's files. kubectl debug mounts them at /host. In a container without that, they
// can be read through PID 1, with rights over it; without those the reports say that they could not be read.
func hostRoot(flag string) string {
	if flag != "" {
		return flag
	}
	if st, err := os.Stat("/host"); err == nil && st.IsDir() {
		return "/host"
	}
	return model.Either(inForeignRoot(), "/proc/1/root", "/")
}
