package diagnose

import (
	"net/netip"
	"testing"

	"github.com/lasthop/lasthop/probe/model"
)

// TestNodeRanges: an address is of the node with the narrowest range that holds
// it, and of the first where two claim the same.
func TestNodeRanges(t *testing.T) {
	n := kubenet()
	for name, ranges := range map[string][]string{
		"wide": {"10.8.0.0/16", "fd00:8::/48"}, "narrow": {"10.8.7.0/24", "fd00:8:0:7::/64"},
	} {
		c := model.ClusterNode{Name: name, Addresses: []netip.Addr{addr("10.0.0.77")}}
		for _, r := range ranges {
			c.PodCIDRs = append(c.PodCIDRs, netip.MustParsePrefix(r))
		}
		n.Cluster.Nodes = append(n.Cluster.Nodes, c)
	}
	n.Cluster.Nodes = append(n.Cluster.Nodes, model.ClusterNode{Name: "late", PodCIDRs: []netip.Prefix{netip.MustParsePrefix("10.8.7.0/24")}})
	v := newInput(&n.Snapshot)
	for a, want := range map[string]string{
		"10.8.7.9": "narrow", "10.8.8.9": "wide", "10.8.6.255": "wide", "10.9.0.1": "",
		"fd00:8:0:7::9": "narrow", "fd00:8:0:8::9": "wide", "fd00:9::1": "",
	} {
		got := ""
		if owner := v.NodeOf(v.Remote(addr(a))); owner != nil {
			got = owner.Name
		}
		if got != want {
			t.Errorf("%s is of node %q, want %q", a, got, want)
		}
	}
}
