package lab

import (
	"errors"
	"net/netip"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"github.com/vishvananda/netlink"

	"github.com/lasthop/lasthop/kind/scenario"
)

// TestReusedIP: the IPAM plugin that has forgotten what it gave out gives a
// living pod's address to another, and takes it back.
func TestReusedIP(t *testing.T) {
	for _, plugin := range []string{"bridge", "ptp"} {
		t.Run(plugin, func(t *testing.T) {
			t.Parallel()
			l := up(t, parse(t, `
name: reused
topology:
  plugin: `+plugin+`
  nodes: [{name: one, pods: [a, b, c]}]
traffic: [{from: [one/a, one/b, one/c], to: [one/a, one/b, one/c], proto: [tcp, icmp], rate: 10}]
`), "reused-"+plugin)
			a, b := netip.MustParseAddr("10.244.0.2"), netip.MustParseAddr("10.244.0.3")
			f := scenario.Fault{Type: scenario.ReusedIP, Node: "one", Pod: "one/a", Via: b}
			if err := l.Inject(t.Context(), f); err != nil {
				t.Fatal(err)
			}
			holds(t, l, "one/a", a)
			holds(t, l, "one/b", a)
			taken := filepath.Join(l.HostRoot("one"), cniStateDir, cniNetwork)
			if _, err := os.Stat(filepath.Join(taken, a.String())); err != nil {
				t.Error(err)
			}
			if _, err := os.Stat(filepath.Join(taken, b.String())); !errors.Is(err, os.ErrNotExist) {
				t.Errorf("%s is still taken: %v", b, err)
			}
			if err := l.Undo(t.Context(), f); err != nil {
				t.Fatal(err)
			}
			holds(t, l, "one/b", b)
			trial(t, l, 1, 0, alive)
		})
	}
}

// holds checks that a pod has the one address.
func holds(t *testing.T, l *Lab, place string, want netip.Addr) {
	t.Helper()
	err := l.with(place, func(sp *space) error {
		link, err := sp.link(podInterface)
		if err != nil {
			return err
		}
		list, err := sp.nl.AddrList(link, netlink.FAMILY_V4)
		if len(list) != 1 || list[0].IP.String() != want.String() {
			t.Errorf("%s has %v, want %s", place, list, want)
		}
		return err
	})
	if err != nil {
		t.Fatal(err)
	}
}

// TestPluginsLeaveNothing: what the plugins keep is within the lab, and of the
// caller's scenario they change nothing.
func TestPluginsLeaveNothing(t *testing.T) {
	s := load(t, "healthy-bridge")
	link := s.Topology.Nodes[0].Pods[0].Link
	state := []string{"/var/lib/cni", "/etc/cni"}
	before := there(state)
	l := up(t, s, "leaves")
	if got := s.Topology.Nodes[0].Pods[0].Link; got != link {
		t.Errorf("the caller's pod has link %s now, was %s", got, link)
	}
	root := l.HostRoot("aks-1")
	if _, err := os.Stat(filepath.Join(root, "etc/cni/net.d")); err != nil {
		t.Error(err)
	}
	if err := l.Down(t.Context()); err != nil {
		t.Fatal(err)
	}
	if now := there(append(state, root)); !slices.Equal(now, before) {
		t.Errorf("there are %v now, were %v", now, before)
	}
}

// TestCache: libcni's cache has each pod's names, of CNI plugins and of others, and
// forgets a pod that was deleted.
func TestCache(t *testing.T) {
	for _, name := range []string{"healthy-kubenet", "healthy-ptp"} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			l := up(t, load(t, name), "cache-"+name)
			n := l.Scenario().Topology.Nodes[0]
			dir := filepath.Join(l.HostRoot(n.Name), cniCacheDir, "results")
			names := func() (found []string) {
				files, err := os.ReadDir(dir)
				if err != nil {
					t.Fatal(err)
				}
				for _, f := range files {
					text, err := os.ReadFile(filepath.Join(dir, f.Name()))
					if err != nil {
						t.Fatal(err)
					}
					for _, p := range n.Pods {
						if strings.Contains(string(text), `["K8S_POD_NAME","`+p.Name+`"]`) && strings.Contains(string(text), p.IP.String()) {
							found = append(found, p.Name)
						}
					}
				}
				return found
			}
			if got := names(); len(got) != len(n.Pods) {
				t.Errorf("the cache has %v of %d pods", got, len(n.Pods))
			}
			pod := &n.Pods[0]
			c := &churn{builder: builder{Lab: l, topology: &l.s.Topology, log: func(string, ...any) {}}, node: &l.s.Topology.Nodes[0]}
			if err := l.with(n.Name, func(sp *space) error { return c.remove(t.Context(), pod, sp) }); err != nil {
				t.Fatal(err)
			}
			if got := names(); len(got) != len(n.Pods)-1 || slices.Contains(got, pod.Name) {
				t.Errorf("without %s the cache has %v", pod.Name, got)
			}
		})
	}
}

func there(paths []string) []string {
	var out []string
	for _, p := range paths {
		if _, err := os.Stat(p); err == nil {
			out = append(out, p)
		}
	}
	return out
}

// TestMissingPlugin: the error names the package. The system's directories
// cannot be hidden from this process, so the name is one that no package has.
func TestMissingPlugin(t *testing.T) {
	s := &scenario.Scenario{Topology: scenario.Topology{Nodes: []scenario.Node{{Plugin: scenario.Bridge}}}}
	if err := findPlugins(s); err != nil {
		t.Fatal(err)
	}
	err := findPlugin("lasthop-no-such-plugin")
	var missing *MissingToolError
	if !errors.As(err, &missing) || missing.Package != "containernetworking-plugins" {
		t.Errorf("got %v", err)
	}
}
