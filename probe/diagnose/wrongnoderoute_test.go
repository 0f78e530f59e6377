package diagnose

import (
	"slices"
	"testing"

	"github.com/lasthop/lasthop/probe/model"
)

// TestWrongNodeRoute has a node with routes to other nodes' pods, of which that for
// 172.20.3.0/24 does not lead to the node that has the range.
func TestWrongNodeRoute(t *testing.T) {
	const wrong = "172.20.1.5 172.20.3.0/24"
	routes := func(via string) *testNode {
		n := plain()
		n.clusterNode("10.50.0.5", "172.20.2.0/24")
		n.clusterNode("10.50.0.6", "172.20.3.0/24")
		n.answered("172.20.1.5", "172.20.2.9")
		n.route(model.Route{Dst: prefix("172.20.3.0/24"), Gateway: addr(via), IfIndex: 2})
		return n
	}
	silent := func(n *testNode) *testNode {
		n.silent("172.20.1.5", "172.20.3.9")
		return n
	}
	check(t, []fixture{
		{"it leads to another node", func() *testNode { return silent(routes("10.50.0.5")) }, []string{"WrongNodeRoute proven " + wrong}},
		{"to another, which forwards", func() *testNode {
			n := routes("10.50.0.5")
			n.answered("172.20.1.5", "172.20.3.9")
			return n
		}, nil},
		{"some of which replies", func() *testNode {
			n := silent(routes("10.50.0.5"))
			n.answered("172.20.1.5", "172.20.3.10")
			return n
		}, []string{"NoReply likely 172.20.1.5 172.20.3.9"}},
		{"to who is no node", func() *testNode { return silent(routes("10.50.0.77")) }, []string{"WrongNodeRoute likely " + wrong}},
		{"to nobody", func() *testNode {
			n := routes("10.50.0.77")
			n.dropOn("ens5", "NEIGH_FAILED", "arp_error_report", "172.20.1.5", "172.20.3.9", 9)
			return n
		}, []string{"WrongNodeRoute proven " + wrong}},
		{"to that node", func() *testNode { return silent(routes("10.50.0.6")) }, []string{"NoReply likely 172.20.1.5 172.20.3.9"}},
		{"to a gateway", func() *testNode { return silent(routes("10.50.0.1")) }, []string{"MissingNodeRoute likely " + wrong}},
		{"to a router, of a node behind it", func() *testNode {
			n := silent(routes("10.50.0.9"))
			n.Cluster.Nodes[1].Addresses[0] = addr("10.99.0.6")
			return n
		}, []string{"NoReply likely 172.20.1.5 172.20.3.9"}},
		{"a route to all pods leads to a router", func() *testNode {
			n := plain()
			n.clusterNode("10.50.0.6", "172.20.3.0/24")
			n.answered("172.20.1.5", "172.20.2.9")
			n.route(model.Route{Dst: prefix("172.20.0.0/16"), Gateway: addr("10.50.0.9"), IfIndex: 2})
			return silent(n)
		}, []string{"NoReply likely 172.20.1.5 172.20.3.9"}},
		{"whose range it is was not told", func() *testNode {
			n := silent(routes("10.50.0.5"))
			n.Cluster.Nodes = nil
			return n
		}, []string{"NoReply likely 172.20.1.5 172.20.3.9"}},
	})
	fix := Diagnose(&silent(routes("10.50.0.5")).Snapshot)[0].Fix
	if want := "ip route replace 172.20.3.0/24 via 10.50.0.6 dev ens5"; !slices.Contains(fix, want) {
		t.Errorf("fix %q, want %q", fix, want)
	}
}
