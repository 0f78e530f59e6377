package scenario

import (
	"fmt"
	"maps"
	"net/netip"
	"os"
	"path/filepath"
	"reflect"
	"slices"
	"testing"

	"github.com/lasthop/lasthop/probe/model"
)

// TestSeed: a seed changes what the file leaves open and nothing else, and the
// same seed always changes it alike.
func TestSeed(t *testing.T) {
	const file = `
name: s
topology:
  stack: dual
  nodes:
    - {name: a, pods: [p, q, {name: fixed, mac: "02:00:00:00:00:99", link: veth9}]}
    - {name: b, pods: [x]}
    - {name: c, podCIDR: 10.7.0.0/24, pods: [y]}
traffic: [{from: [a/p, a/q, b/x], to: [a/fixed, c/y, outside], proto: [tcp, udp, icmp]}]
seed: %d
`
	read := func(seed int) *Scenario {
		s, err := Parse("s.yaml", fmt.Appendf(nil, file, seed))
		if err != nil {
			t.Fatalf("seed %d: %v", seed, err)
		}
		return s
	}
	plain, err := Parse("s.yaml", []byte(file[:len(file)-len("seed: %d\n")]))
	if err != nil || !reflect.DeepEqual(plain, read(0)) {
		t.Errorf("seed 0 is not the file as it is: %v", err)
	}
	addrs, macs, links := map[netip.Addr]int{}, map[model.MAC]int{}, map[string]int{}
	for seed := range 4 {
		s := read(seed)
		if !reflect.DeepEqual(s, read(seed)) {
			t.Errorf("seed %d: not the same each time", seed)
		}
		if s.Observe != "a" || s.Topology.Node("c").PodCIDR != netip.MustParsePrefix("10.7.0.0/24") {
			t.Errorf("seed %d: observes %s, c has %s", seed, s.Observe, s.Topology.Node("c").PodCIDR)
		}
		if _, p := s.Topology.Pod("a/fixed"); p.MAC != (model.MAC{2, 0, 0, 0, 0, 0x99}) || p.Link != "veth9" {
			t.Errorf("seed %d: fixed is %+v", seed, p)
		}
		flows := func(s *Scenario) []string {
			var out []string
			for _, f := range s.Traffic {
				out = append(out, f.String())
			}
			return slices.Sorted(slices.Values(out))
		}
		if !slices.Equal(flows(s), flows(plain)) {
			t.Errorf("seed %d: flows %q", seed, flows(s))
		}
		for _, n := range s.Topology.Nodes {
			for _, a := range []netip.Addr{n.IP, n.IP6} {
				addrs[a]++
			}
			macs[n.MAC]++
			for _, p := range n.Pods {
				if p.Name != "fixed" {
					addrs[p.IP]++
					addrs[p.IP6]++
					macs[p.MAC]++
					links[p.Link]++
				}
			}
		}
	}
	for what, n := range map[string]int{"addresses": len(addrs), "MACs": len(macs), "links": len(links)} {
		if want := map[string]int{"addresses": 4 * 14, "MACs": 4 * 7, "links": 4 * 4}[what]; n != want {
			t.Errorf("%d different %s, want %d", n, what, want)
		}
	}
	if reflect.DeepEqual(read(1).Traffic, read(2).Traffic) {
		t.Error("traffic starts in one order")
	}
}

// TestSeedsOfFiles: every healthy scenario can be had at every seed.
func TestSeedsOfFiles(t *testing.T) {
	files := map[string][]byte{}
	for _, pattern := range []string{"../scenarios/*.yaml", "../../cmd/lasthop/testdata/scenarios/*.yaml"} {
		names, err := filepath.Glob(pattern)
		if err != nil || len(names) == 0 {
			t.Fatalf("no files %s: %v", pattern, err)
		}
		for _, name := range names {
			if files[name], err = os.ReadFile(name); err != nil {
				t.Fatal(err)
			}
		}
	}
	for _, name := range slices.Sorted(maps.Keys(files)) {
		s, err := Parse(name, files[name])
		if err != nil {
			t.Fatal(err)
		}
		for seed := 1; seed <= maxSeed && s.Expect.Healthy(); seed++ {
			if _, err := Parse(name, fmt.Appendf(files[name], "\nseed: %d\n", seed)); err != nil {
				t.Errorf("seed %d: %v", seed, err)
			}
		}
	}
}
