package path

import (
	"net/netip"
	"slices"
	"strings"
	"testing"

	"github.com/lasthop/lasthop/probe/model"
)

// TestFork is a default route over two uplinks: the way is the one that was
// taken, and what was dropped on one link is not dropped on the other.
func TestFork(t *testing.T) {
	second := netip.MustParseAddr("10.77.0.1")
	node := func(rows ...model.PairCount) *model.Snapshot {
		s := look(routedNode(), append(rows, row(podA, far, "pa", 5, model.Ingress, 40))...)
		s.Links = append(s.Links, model.Link{Index: 3, Name: "enp2", MAC: mac(2), Up: true, Carrier: true, Role: model.RoleUplink,
			Addresses: []netip.Prefix{pfx("10.77.0.9/24")}})
		s.Routes[0].NextHops = []model.Route{{Gateway: second, IfIndex: 3}}
		s.Neighbors = append(s.Neighbors, model.Neighbor{Addr: second, IfIndex: 3, Link: "enp2", State: "FAILED"})
		return s
	}
	failed := func(s *model.Snapshot, link string, index int, n uint64) *model.Snapshot {
		s.Traffic.Drops = append(s.Traffic.Drops, model.Drop{Src: podA, Dst: far, Reason: "NEIGH_FAILED", Location: "neigh_invalidate", Link: link, IfIndex: index, Netns: 1, Packets: n})
		return s
	}
	by := func(link string, index int, n uint64) model.PairCount {
		return row(podA, far, link, index, model.Egress, n)
	}
	back := row(far, podA, "enp1", 2, model.Ingress, 31)
	finding := []model.Finding{{
		Code: "UnansweredARP", EndsAt: []model.HopKind{model.HopPod, model.HopNeighbor}, Pods: []netip.Addr{podA}, Peers: []netip.Prefix{netip.PrefixFrom(second, 32)},
		LastHopAlive: model.Place{Link: "enp2", Role: model.RoleUplink, Direction: model.Egress},
	}}
	tests := []struct {
		name          string
		s             *model.Snapshot
		findings      []model.Finding
		out, decision string
		back          string
	}{
		{"by the first", node(by("enp1", 2, 40)), nil, "pod pa nat policy route neighbor enp1 beyond", "default via 192.168.7.1 dev enp1, one of 2 next hops", ""},
		{"by the second", node(by("enp2", 3, 40)), nil, "pod pa nat policy route neighbor enp2 beyond", "default via 10.77.0.1 dev enp2, one of 2 next hops", ""},
		{"all lost on the second", failed(node(), "enp2", 3, 40), finding, "pod pa nat policy route neighborX", "the next hop 10.77.0.1 does not answer", ""},
		{"some lost on the second", failed(node(by("enp1", 2, 31), back), "enp2", 3, 9), finding, "pod pa nat policy route neighborX", "others of these packets go through 192.168.7.1 dev enp1", "beyond enp1 nat policy route neighbor pa pod"},
		{"some lost on the first", failed(node(by("enp2", 3, 31)), "enp1", 2, 9), nil, "pod pa nat policy route neighbor enp1 beyond", "others of these packets go through 10.77.0.1 dev enp2", ""},
		{"nothing tells", node(), nil, "pod pa nat policy route", "default through one of 2 next hops (unknown which): 192.168.7.1 dev enp1, 10.77.0.1 dev enp2", "beyond"},
	}
	for _, tt := range tests {
		t.Run(tt.name, func(t *testing.T) {
			p := Trace(tt.s, tt.findings, Ends{Pod: podA, To: far})
			if got := kinds(p.Forward); got != tt.out {
				t.Errorf("out  %s\nwant %s", got, tt.out)
			}
			if tt.back != "" && kinds(p.Return) != tt.back {
				t.Errorf("back %s\nwant %s", kinds(p.Return), tt.back)
			}
			if !slices.ContainsFunc(p.Forward, func(h model.PathHop) bool { return strings.Contains(h.Decision, tt.decision) }) {
				t.Errorf("no hop says %q: %+v", tt.decision, p.Forward)
			}
		})
	}
	t.Run("a drop on the other link", func(t *testing.T) {
		s := failed(node(by("enp1", 2, 40)), "enp2", 3, 9)
		s.Routes[0].NextHops = nil
		p := Trace(s, finding, Ends{Pod: podA, To: far})
		if got, want := kinds(p.Forward), "pod pa nat policy route neighbor enp1 beyond"; got != want {
			t.Errorf("out  %s\nwant %s", got, want)
		}
	})
	t.Run("two routers on one link", func(t *testing.T) {
		s := node(by("enp1", 2, 40))
		s.Routes[0].NextHops = []model.Route{{Gateway: second, IfIndex: 2}}
		s.Neighbors[1].IfIndex, s.Neighbors[1].Link = 2, "enp1"
		p := Trace(failed(s, "enp1", 2, 9), nil, Ends{Pod: podA, To: far})
		if got, want := kinds(p.Forward), "pod pa nat policy route neighborX"; got != want || p.Forward[5].Lost.N != 9 {
			t.Errorf("out  %s, lost %+v\nwant %s, 9 lost", got, p.Forward[5].Lost, want)
		}
	})
}
