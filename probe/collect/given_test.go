package collect

import (
	"net/netip"
	"slices"
	"testing"

	"github.com/lasthop/lasthop/probe/collect/files"
	"github.com/lasthop/lasthop/probe/model"
)

// A pod whose interface has no address is given what the node routes to its link,
// and what entries and rules resolve to its MAC; not what another pod has.
func TestGiven(t *testing.T) {
	addr := netip.MustParseAddr
	hw := func(b byte) model.MAC { return model.MAC{2, 0, 0, 0, 0, b} }
	v := view{
		links: []model.Link{{Index: 3, Name: "br", Kind: "bridge", MAC: hw(3), Addresses: []netip.Prefix{netip.MustParsePrefix("10.9.0.1/24")}}, {Index: 4, Name: "a", Master: 3}, {Index: 5, Name: "b", Master: 3}, {Index: 6, Name: "c"}, {Index: 8, Name: "d", Master: 3}},
		routes: []model.Route{
			{Dst: netip.MustParsePrefix("10.9.0.6/32"), IfIndex: 6, Type: "unicast"},
			{Dst: netip.MustParsePrefix("10.8.0.0/24"), IfIndex: 6, Type: "unicast"},
			{Dst: netip.MustParsePrefix("10.7.0.1/32"), IfIndex: 6, Type: "unicast", Gateway: addr("10.9.0.6")},
		},
		neighbors: []model.Neighbor{
			{Addr: addr("10.9.0.4"), MAC: hw(4), IfIndex: 3},
			{Addr: addr("10.9.0.44"), MAC: hw(4), IfIndex: 9},
			{Addr: addr("10.9.0.5"), MAC: hw(4), IfIndex: 3},
			{Addr: addr("10.9.0.7"), IfIndex: 3},
		},
		frames: []model.FrameRule{{Target: model.TargetARPReply, MAC: hw(4), ARPDst: model.AddrMatch{Prefix: netip.MustParsePrefix("10.9.0.4/32")}}},
	}
	pods := []model.Pod{
		{LinkIndex: 4, MAC: hw(4)},
		{LinkIndex: 5, MAC: hw(5), Addresses: []netip.Prefix{netip.MustParsePrefix("10.9.0.5/24")}},
		{LinkIndex: 6, MAC: hw(6)},
		{LinkIndex: 7},
		{LinkIndex: 8, MAC: model.MAC{10, 88, 10, 9, 0, 13}},
	}
	v.setGiven(pods)
	check := func(want ...[]netip.Addr) {
		t.Helper()
		for i, w := range want {
			if !slices.Equal(pods[i].Given, w) {
				t.Errorf("pod %d is given %v, want %v", i, pods[i].Given, w)
			}
		}
	}
	check([]netip.Addr{addr("10.9.0.4")}, nil, []netip.Addr{addr("10.9.0.6")}, nil, []netip.Addr{addr("10.9.0.13")})
	var f files.Files
	f.Config.Taken = []netip.Addr{addr("10.9.0.4"), addr("10.9.0.5"), addr("10.9.0.6"), addr("10.9.0.8")}
	giveFiled(pods, f)
	check([]netip.Addr{addr("10.9.0.4")}, nil, []netip.Addr{addr("10.9.0.6")}, []netip.Addr{addr("10.9.0.8")})

	// Of several that nobody has there is no telling.
	pods[3].Given = nil
	f.Config.Taken = append(f.Config.Taken, addr("10.9.0.9"))
	giveFiled(pods, f)
	check([]netip.Addr{addr("10.9.0.4")}, nil, []netip.Addr{addr("10.9.0.6")}, nil)
}
