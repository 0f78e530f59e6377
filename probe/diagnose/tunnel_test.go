package diagnose

import (
	"net/netip"
	"slices"
	"testing"

	"github.com/lasthop/lasthop/probe/model"
)

// TestTunnelSilence: what leaves by a tunnel is judged by connection tracking, since
// uplinks show the tunnel's own packets only.
func TestTunnelSilence(t *testing.T) {
	tunnel := func(remote string, flows int, replied bool) *testNode {
		n := kubenet()
		n.Links = append(n.Links, model.Link{Index: 7, Name: "vx0", Kind: "vxlan", MAC: mac(nicMAC), Up: true, Carrier: true, Role: model.RoleTunnel})
		n.route(model.Route{Dst: prefix("172.20.2.0/24"), Gateway: addr("172.20.2.0"), IfIndex: 7})
		n.answered(pod5, "203.0.113.9")
		n.tracked(pod5, remote, tcp, 80, flows, replied)
		return n
	}
	check(t, []fixture{
		{"nothing comes back", func() *testNode { return tunnel(far, 5, false) }, []string{"NoReply likely 172.20.1.5 172.20.2.9"}},
		{"replies come", func() *testNode { return tunnel(far, 5, true) }, nil},
		{"a few requests", func() *testNode { return tunnel(far, 2, false) }, nil},
		{"the node drops them at the tunnel", func() *testNode {
			n := tunnel(far, 5, false)
			d := n.dropOn("vx0", "NO_TX_TARGET", "vxlan_xmit", pod5, far, 9)
			d.IfIndex = 7
			return n
		}, []string{"UnexplainedDrop proven 172.20.1.5 172.20.2.9"}},
		{"and it is known what forwards", func() *testNode {
			n := tunnel(far, 5, false).with(model.SourceBridge)
			n.dropOn("vx0", "NO_TX_TARGET", "vxlan_xmit", pod5, far, 9).IfIndex = 7
			return n
		}, []string{"StaleFDB proven 172.20.1.5 172.20.2.9"}},
		{"the tunnel's entry for the other node is gone", func() *testNode {
			n := tunnel(far, 5, false)
			n.dropOn("vx0", "NEIGH_FAILED", "neigh_invalidate", pod5, far, 9)
			n.arp("172.20.2.0", 7, model.Egress, false, nicMAC, 9)
			return n
		}, []string{"UnansweredARP proven 172.20.1.5 172.20.2.0"}},
		{"IPIP as Calico has it, with an address that the other node borrows", func() *testNode {
			n := tunnel(far, 5, true)
			n.Links[len(n.Links)-1].Kind, n.Links[len(n.Links)-1].Name = "ipip", "tunl0"
			n.route(model.Route{Dst: prefix("172.20.1.77/32"), Gateway: addr("10.50.0.5"), IfIndex: 7, Protocol: "bird"})
			n.route(model.Route{Dst: prefix("172.20.1.64/26"), Type: "blackhole", Protocol: "bird"})
			n.tracked(pod5, "172.20.1.77", tcp, 80, 5, true)
			return n
		}, nil},
		{"by the uplink, which counts pairs itself", func() *testNode { return tunnel("172.20.3.9", 5, false) }, nil},
	})
}

// TestTunnelEnds: where a tunnel sends what is for a pod is shown, and whether anything comes from there.
func TestTunnelEnds(t *testing.T) {
	to := func(end string, heard bool) func() *testNode {
		return func() *testNode {
			n := kubenet().with(model.SourceBridge)
			n.Links = append(n.Links, model.Link{Index: 7, Name: "vx0", Kind: "vxlan", Up: true, Carrier: true, Role: model.RoleTunnel})
			n.route(model.Route{Dst: prefix("172.20.2.0/24"), Gateway: addr("172.20.2.0"), IfIndex: 7})
			n.neighbor("172.20.2.0", "02:00:00:00:02:00", 7, "PERMANENT")
			n.FDB = append(n.FDB, model.FDBEntry{MAC: mac("02:00:00:00:02:00"), IfIndex: 7, Static: true, End: addr(end)})
			n.answered(pod5, "203.0.113.9")
			n.tracked(pod5, far, tcp, 80, 5, false)
			n.peer("10.50.0.4", end, model.PeerCount{Packets: 40, Other: 40}, model.Either(heard, model.PeerCount{Packets: 9, Other: 9}, none))
			return n
		}
	}
	situations(t, []situation{
		{"to an address from where nothing comes", to("10.50.0.99", false),
			[]string{"warning NoReply"}, "vx0 sends them to 10.50.0.99", "correctly"},
		{"to a node that is heard", to("10.50.0.5", true), []string{"warning NoReply"}, "vx0 correctly", "from where nothing comes"},
	})
}

// TestTakenRange: a link of the node, such as a container engine's bridge, has a network
// that other nodes' pods are in.
func TestTakenRange(t *testing.T) {
	engine := func(network, asked string) *testNode {
		n := kubenet().live()
		n.Links = append(n.Links, model.Link{Index: 7, Name: "br-engine", Kind: "bridge", Up: true, Role: model.RoleBridge,
			Addresses: []netip.Prefix{prefix(network)}})
		n.route(model.Route{Dst: prefix(network).Masked(), IfIndex: 7})
		n.dropOn("br-engine", "NEIGH_FAILED", "neigh_invalidate", pod5, asked, 9)
		n.arp(asked, 7, model.Egress, false, nicMAC, 9)
		return n
	}
	for _, tt := range []struct {
		name string
		node *testNode
		want []string
	}{
		{"that of another node's pods", engine("172.20.2.1/24", far), []string{"critical UnansweredARP 172.20.2.0/24 on br-engine overlaps other nodes' pod ranges"}},
		{"its own", engine("192.168.9.1/24", "192.168.9.7"), []string{"warning UnansweredARP next hop 192.168.9.7 on br-engine does not answer ARP"}},
	} {
		t.Run(tt.name, func(t *testing.T) {
			if got := judged(tt.node); !slices.Equal(got, tt.want) {
				t.Errorf("got %q, want %q", got, tt.want)
			}
		})
	}
}

// TestTunnelEndUnknown: the next hop's MAC is pinned, and the node that it is at is known from outside.
func TestTunnelEndUnknown(t *testing.T) {
	n := kubenet().with(model.SourceBridge)
	n.Links = append(n.Links, model.Link{Index: 7, Name: "flannel.1", Kind: "vxlan", MAC: mac(nicMAC), Up: true, Carrier: true, Role: model.RoleTunnel})
	n.route(model.Route{Dst: prefix("172.20.2.0/24"), Gateway: addr("172.20.2.0"), IfIndex: 7})
	n.Neighbors = append(n.Neighbors, model.Neighbor{Addr: addr("172.20.2.0"), MAC: mac("0e:00:00:00:00:02"), IfIndex: 7, State: "PERMANENT"})
	n.Cluster.Nodes = []model.ClusterNode{
		{Name: "worker", Addresses: []netip.Addr{addr("10.50.0.4")}, PodCIDRs: []netip.Prefix{prefix("172.20.1.0/24")}},
		{Name: "k3s-2", Addresses: []netip.Addr{addr("10.50.0.5")}, PodCIDRs: []netip.Prefix{prefix("172.20.2.0/24")}},
	}
	n.dropOn("flannel.1", "NO_TX_TARGET", "vxlan_xmit", pod5, far, 9).IfIndex = 7
	other := *n
	other.FDB = append(other.FDB, model.FDBEntry{MAC: mac("0e:00:00:00:00:77"), IfIndex: 7, End: addr("10.50.0.5"), Static: true})
	tell(t, &other, []string{"StaleFDB likely 172.20.1.5 172.20.2.9"},
		[]string{"172.20.2.0 has the MAC 0e:00:00:00:00:77, and its neighbour entry is wrong"}, []string{"bridge fdb append"})
	tell(t, n, []string{"StaleFDB proven 172.20.1.5 172.20.2.9"}, []string{
		"flannel.1 has no FDB entry for the next hop 172.20.2.0", "0e:00:00:00:00:02, the MAC of 172.20.2.0",
		"neighbors: 172.20.2.0 dev flannel.1 lladdr 0e:00:00:00:00:02 PERMANENT", "172.20.2.9 is in the pod range of 10.50.0.5",
		"bridge fdb append 0e:00:00:00:00:02 dev flannel.1 dst 10.50.0.5 self permanent",
	}, []string{"--nodes"})
}
