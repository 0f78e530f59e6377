package pods

import (
	"bufio"
	"net/netip"
	"os"
	"os/exec"
	"path/filepath"
	"reflect"
	"strconv"
	"strings"
	"testing"

	"github.com/lasthop/lasthop/probe/model"
)

// process starts a process whose root has a file system of its own at /etc, made by a script,
// and returns its directory of /proc.
func process(t *testing.T, script string) string {
	t.Helper()
	cmd := exec.Command("unshare", "--mount", "sh", "-ec", "mount -t tmpfs tmpfs /etc; "+script+"; echo up; exec cat")
	stdin, err := cmd.StdinPipe()
	if err != nil {
		t.Fatal(err)
	}
	stdout, err := cmd.StdoutPipe()
	if err != nil {
		t.Fatal(err)
	}
	if err := cmd.Start(); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		stdin.Close()
		if err := cmd.Wait(); err != nil {
			t.Error(err)
		}
	})
	if line, err := bufio.NewReader(stdout).ReadString('\n'); line != "up\n" {
		t.Fatalf("%q, %v", line, err)
	}
	return "/proc/" + strconv.Itoa(cmd.Process.Pid)
}

func TestResolver(t *testing.T) {
	own := []netip.Addr{netip.MustParseAddr("192.0.2.1")}
	const gone = "/proc/self/no such process"
	for name, tt := range map[string]struct {
		script string
		want   *model.Resolver
	}{
		"the cluster's": {"printf 'search shop.svc.cluster.local svc.cluster.local cluster.local\\nnameserver 10.0.0.10\\noptions ndots:5\\n' >/etc/resolv.conf",
			&model.Resolver{Servers: []netip.Addr{netip.MustParseAddr("10.0.0.10")}, By: model.ResolverCluster}},
		"the node's":       {"printf '# by hand\\nnameserver 192.0.2.1\\n' >/etc/resolv.conf", &model.Resolver{Servers: own, By: model.ResolverNode}},
		"another":          {"printf 'nameserver fd00::53%%eth0\\nnameserver x\\nnameserver\\n' >/etc/resolv.conf", &model.Resolver{Servers: []netip.Addr{netip.MustParseAddr("fd00::53")}}},
		"a pipe":           {"mkfifo /etc/resolv.conf", nil},
		"none":             {"true", nil},
		"four, too many":   {"for i in 1 2 3 4; do echo nameserver 10.0.0.$i; done >/etc/resolv.conf", &model.Resolver{Servers: addrs("10.0.0.1", "10.0.0.2", "10.0.0.3")}},
		"a node's in part": {"printf 'nameserver 192.0.2.1\\nnameserver 192.0.2.2\\n' >/etc/resolv.conf", &model.Resolver{Servers: addrs("192.0.2.1", "192.0.2.2")}},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			if got := Resolver([]string{gone, process(t, tt.script)}, func() []netip.Addr { return own }); !reflect.DeepEqual(got, tt.want) {
				t.Errorf("got %+v, want %+v", got, tt.want)
			}
		})
	}
}

// TestResolverLink: a link is followed where the process would follow it, and not on the node.
func TestResolverLink(t *testing.T) {
	p := process(t, "echo nameserver 192.0.2.1 >/etc/own")
	for to, want := range map[string]*model.Resolver{"/etc/passwd": nil, "/etc/own": {Servers: addrs("192.0.2.1")}} {
		link := p + "/root/etc/resolv.conf"
		if err := os.Symlink(to, link); err != nil {
			t.Fatal(err)
		}
		if got := Resolver([]string{p}, func() []netip.Addr { return nil }); !reflect.DeepEqual(got, want) {
			t.Errorf("to %s: got %+v, want %+v", to, got, want)
		}
		if err := os.Remove(link); err != nil {
			t.Fatal(err)
		}
	}
}

func addrs(list ...string) (out []netip.Addr) {
	for _, a := range list {
		out = append(out, netip.MustParseAddr(a))
	}
	return out
}

// TestNodeServers: kubelet gives pods the servers behind systemd-resolved, which listens at the
// node's loopback address.
func TestNodeServers(t *testing.T) {
	root := t.TempDir()
	if got := NodeServers(root); got != nil {
		t.Errorf("without a file: %v", got)
	}
	write := func(name, text string) {
		path := filepath.Join(root, name)
		if err := os.MkdirAll(filepath.Dir(path), 0o755); err != nil {
			t.Fatal(err)
		}
		if err := os.WriteFile(path, []byte(text), 0o644); err != nil {
			t.Fatal(err)
		}
	}
	write("run/systemd/resolve/resolv.conf", "nameserver 168.63.129.16\n")
	write("run/systemd/resolve/stub-resolv.conf", "nameserver 127.0.0.53\n")
	if err := os.Mkdir(filepath.Join(root, "etc"), 0o755); err != nil {
		t.Fatal(err)
	}
	if err := os.Symlink("../run/systemd/resolve/stub-resolv.conf", filepath.Join(root, "etc/resolv.conf")); err != nil {
		t.Fatal(err)
	}
	if got := NodeServers(root); !reflect.DeepEqual(got, addrs("168.63.129.16")) {
		t.Errorf("behind systemd-resolved: %v", got)
	}
	if err := os.Remove(filepath.Join(root, "etc/resolv.conf")); err != nil {
		t.Fatal(err)
	}
	write("etc/resolv.conf", "nameserver 192.0.2.1\n")
	if got := NodeServers(root); !reflect.DeepEqual(got, addrs("192.0.2.1")) {
		t.Errorf("the node's own: %v", got)
	}
}

func FuzzResolvConf(f *testing.F) {
	f.Add("search shop.svc.cluster.local svc.cluster.local\nnameserver 10.0.0.10\noptions ndots:5\n")
	f.Add("nameserver fe80::1%eth0\nsearch\nnameserver")
	f.Fuzz(func(t *testing.T, text string) {
		servers, search := resolvConf(text)
		if len(servers) > maxServers || strings.Contains(strings.Join(search, ""), "\n") {
			t.Errorf("%v %q", servers, search)
		}
		for _, a := range servers {
			if !a.IsValid() || a.Zone() != "" {
				t.Errorf("%v", a)
			}
		}
	})
}
