package pods

import (
	"net/netip"
	"os"
	"path/filepath"
	"slices"
	"strings"

	"golang.org/x/sys/unix"

	"github.com/lasthop/lasthop/probe/input"
	"github.com/lasthop/lasthop/probe/model"
)

// Bounds of a resolv.conf. The C library takes three servers of it.
const (
	maxResolvConf = 64 << 10 // bytes
	maxServers    = 3
)

// Resolver is where the programs of a pod ask for names: by the resolv.conf of the first of its processes, directories
// of /proc, that can be read. It is nil where none can. own are the servers of the node's own, see NodeServers.
func Resolver(processes []string, own func() []netip.Addr) *model.Resolver {
	for _, p := range processes {
		text, err := readIn(p+"/root", "etc/resolv.conf")
		if err != nil {
			continue
		}
		servers, search := resolvConf(text)
		r := model.Resolver{Servers: servers}
		switch {
		// A domain of services, which kubelet writes where a pod asks the cluster's DNS.
		case slices.ContainsFunc(search, func(domain string) bool { return slices.Contains(strings.Split(domain, "."), "svc") }):
			r.By = model.ResolverCluster
		case len(servers) > 0 && slices.Equal(servers, own()):
			r.By = model.ResolverNode
		}
		return &r
	}
	return nil
}

// NodeServers are the name servers of the node below a root, as kubelet hands them on: those of
// systemd-resolved where it has the node's file lead to itself.
func NodeServers(root string) []netip.Addr {
	for _, name := range []string{"etc/resolv.conf", "run/systemd/resolve/resolv.conf"} {
		text, err := readIn(root, name)
		if servers, _ := resolvConf(text); err == nil && !slices.ContainsFunc(servers, netip.Addr.IsLoopback) {
			return servers
		}
	}
	return nil
}

// resolvConf are the servers and the domains to search of a resolv.conf(5).
func resolvConf(text string) (servers []netip.Addr, search []string) {
	for line := range strings.Lines(text) {
		fields := strings.Fields(line)
		if len(fields) < 2 {
			continue
		}
		switch fields[0] {
		case "nameserver":
			if a, err := netip.ParseAddr(fields[1]); err == nil && len(servers) < maxServers {
				servers = append(servers, a.Unmap().WithZone(""))
			}
		case "search":
			search = fields[1:]
		}
	}
	return servers, search
}

// readIn reads a regular file below a root, links in which lead nowhere else.
func readIn(root, name string) (string, error) {
	dir, err := os.OpenFile(filepath.Clean(root), unix.O_PATH|unix.O_DIRECTORY, 0)
	if err != nil {
		return "", err
	}
	defer dir.Close()
	fd, err := unix.Openat2(int(dir.Fd()), name, &unix.OpenHow{
		Flags: unix.O_RDONLY | unix.O_NONBLOCK | unix.O_CLOEXEC, Resolve: unix.RESOLVE_IN_ROOT | unix.RESOLVE_NO_MAGICLINKS,
	})
	if err != nil {
		return "", err
	}
	f, err := input.Opened(os.NewFile(uintptr(fd), name), input.Regular)
	if err != nil {
		return "", err
	}
	defer f.Close()
	text, err := input.All(f, maxResolvConf)
	return string(text), err
}
