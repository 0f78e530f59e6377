package diagnose

import (
	"net/netip"
	"strings"
	"testing"

	"github.com/lasthop/lasthop/probe/model"
)

// TestUnheldAddress: who keeps asking for an address of the node's block that nobody has
// is told so, and the block's route is left alone.
func TestUnheldAddress(t *testing.T) {
	n := kubenet()
	n.route(model.Route{Dst: prefix("172.20.1.64/26"), Type: "blackhole", Protocol: "bird"})
	d := n.dropOn("ens5", "NOT_SPECIFIED", "ip_error", "172.20.1.5", "172.20.1.77", 12)
	d.First, d.Last = n.Window.Start, n.Window.End
	found := Diagnose(&n.Snapshot)
	if len(found) != 1 || found[0].Code != "BlackholeRoute" || found[0].Severity != model.Warning || found[0].Title != "no pod has 172.20.1.77" ||
		strings.Contains(strings.Join(found[0].Fix, "\n"), "route del") {
		t.Errorf("%+v", found)
	}
}

// TestBorrowedAddress: an address of the node's own block that a pod elsewhere has needs
// a route; one that nobody has is kept from leaving by the block's blackhole.
func TestBorrowedAddress(t *testing.T) {
	const pod, borrowed = "172.20.1.5", "172.20.1.77"
	for _, elsewhere := range []bool{true, false} {
		n := kubenet()
		n.route(model.Route{Dst: prefix("172.20.1.64/26"), Type: "blackhole", Protocol: "bird"})
		n.dropOn("ens5", "NOT_SPECIFIED", "ip_error", pod, borrowed, 12)
		if elsewhere {
			n.Cluster.Pods = []model.ClusterPod{{Namespace: "shop", Name: "db", Addresses: []netip.Addr{addr(borrowed)}}}
		}
		found := agreed(t, n)
		told := len(found) == 1 && found[0].Code == "BlackholeRoute" && found[0].Severity == model.Critical &&
			strings.HasPrefix(found[0].Fix[0], "ip route add "+borrowed+"/32 via ")
		if told != elsewhere || !elsewhere && len(found) > 0 && found[0].Severity != model.Info {
			t.Errorf("elsewhere %v: %+v", elsewhere, found)
		}
	}
}
