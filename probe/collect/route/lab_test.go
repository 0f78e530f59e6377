package route

import (
	"fmt"
	"math/rand/v2"
	"net/netip"
	"os"
	"slices"
	"strings"
	"testing"

	"github.com/lasthop/lasthop/kind"
	"github.com/lasthop/lasthop/kind/lab"
	"github.com/lasthop/lasthop/probe/collect/dump"
	"github.com/lasthop/lasthop/probe/model"
	"github.com/lasthop/lasthop/probe/netns"
	"github.com/lasthop/lasthop/probe/path"
)

// TestPredictionInLab is TestPrediction over the nodes as the network plugins
// leave them, and over nodes with broken routes: between random pods, nodes and
// addresses beyond, no prediction may differ from the kernel's own.
func TestPredictionInLab(t *testing.T) {
	broken := []string{"missing-pod-route", "missing-pod-route-residue", "blackhole-route", "reverse-path-filter", "pod-link-down-routed"}
	for i, info := range kind.Scenarios() {
		if !strings.HasPrefix(info.Name, "healthy-") && !slices.Contains(broken, info.Name) {
			continue
		}
		if testing.Short() && i%12 != 0 {
			continue
		}
		t.Run(info.Name, func(t *testing.T) {
			t.Parallel()
			s, err := kind.Load(info.Name)
			if err != nil {
				t.Fatal(err)
			}
			l, err := lab.Up(t.Context(), s, lab.Options{ID: fmt.Sprintf("r%d-%d", os.Getpid(), i)})
			if err != nil {
				t.Fatal(err)
			}
			defer func() {
				if err := l.Down(t.Context()); err != nil {
					t.Error(err)
				}
			}()
			for i, n := range l.Nodes() {
				t.Run(n.Name, func(t *testing.T) { compareNode(t, n.Netns, rand.New(rand.NewPCG(uint64(i), 7))) })
			}
		})
	}
}

// compareNode asks a node for random packets that arrive at random links.
func compareNode(t *testing.T, name string, g *rand.Rand) {
	t.Helper()
	const packets = 300
	ns, err := netns.Named(name)
	if err != nil {
		t.Fatal(err)
	}
	defer ns.Close()
	c, h, err := dump.Route(ns)
	if err != nil {
		t.Fatal(err)
	}
	defer c.Close()
	defer h.Close()
	s := snapshot(t, c, h)
	var ends []netip.Addr
	for _, r := range s.Routes {
		if r.Dst.Addr().Is4() && r.Type != "broadcast" && !r.Dst.Addr().IsLoopback() {
			ends = append(ends, r.Dst.Addr(), r.Dst.Masked().Addr().Next())
		}
	}
	ends = append(ends, netip.MustParseAddr("192.0.2.1"), netip.MustParseAddr("10.255.9.9"))
	broadcast := func(a netip.Addr) bool {
		return a.IsUnspecified() || a.IsLoopback() || slices.ContainsFunc(s.Routes, func(r model.Route) bool { return r.Type == "broadcast" && r.Dst.Contains(a) })
	}
	ends = slices.DeleteFunc(ends, broadcast)
	var links []string
	for _, l := range s.Links {
		if l.Name != "lo" && l.Up && l.Carrier && l.Master == 0 {
			links = append(links, l.Name)
		}
	}
	local := func(a netip.Addr) bool {
		return slices.ContainsFunc(s.Links, func(l model.Link) bool {
			return slices.ContainsFunc(l.Addresses, func(p netip.Prefix) bool { return p.Addr() == a })
		})
	}
	strict := filters(t, ns, links)
	r := path.NewState(s).Routing()
	asked := 0
	for range packets {
		q := path.Query{Src: ends[g.IntN(len(ends))], Dst: ends[g.IntN(len(ends))], In: links[g.IntN(len(links))]}
		if q.Src == q.Dst || local(q.Src) {
			// What comes in with an address of the node's own is refused
			// before any table is asked.
			continue
		}
		asked++
		got, want := predict(r, q, strict[q.In]), kernel(t, h, q)
		if !slices.Contains(got, want) {
			t.Errorf("%+v:\npredicted %+v\n   kernel %+v", q, got, want)
		}
	}
	if asked == 0 {
		t.Error("nothing was asked")
	}
}

// filters are the links whose reverse path filter is strict: the greater of the
// settings of all links and of the link counts, and 2 is loose.
func filters(t *testing.T, ns *netns.NS, links []string) map[string]bool {
	t.Helper()
	out := map[string]bool{}
	err := ns.Do(func() error {
		for _, l := range links {
			most := ""
			for _, conf := range []string{"all", l} {
				b, err := os.ReadFile("/proc/sys/net/ipv4/conf/" + conf + "/rp_filter")
				if err != nil {
					return err
				}
				most = max(most, strings.TrimSpace(string(b)))
			}
			out[l] = most == "1"
		}
		return nil
	})
	if err != nil {
		t.Fatal(err)
	}
	return out
}
