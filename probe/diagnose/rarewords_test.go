package diagnose

import (
	"fmt"
	"net/netip"
	"strings"
	"testing"

	"github.com/lasthop/lasthop/probe/model"
)

// TestRareWords: what findings say in situations that few nodes are in.
func TestRareWords(t *testing.T) {
	for _, tt := range []struct {
		name string
		node func() *testNode
		want []string
	}{
		{"a route table that is too small", func() *testNode {
			n := three()
			for i := range 410 {
				n.Cluster.Nodes = append(n.Cluster.Nodes, model.ClusterNode{PodCIDRs: []netip.Prefix{prefix(fmt.Sprintf("10.%d.%d.0/24", 100+i/200, i%200))}})
			}
			n.table(rightRows)
			return n
		}, []string{
			"413 routes needed, but the limit of a route table is 400", "The table is full.", "nodes: 413 nodes with 413 pod ranges",
			"cloud: route table rt-a in tables.json holds 3 routes",
		}},
		{"a pair of links without Cilium's program", func() *testNode {
			n := routedNode().with(model.SourcePrograms)
			n.Links = append(n.Links,
				model.Link{Index: 30, Name: "in", Kind: "veth", Peer: 31, PeerNetNSID: -1, Up: true, Carrier: true, Role: model.RoleRouter},
				model.Link{Index: 31, Name: "out", Kind: "veth", Peer: 30, PeerNetNSID: -1, Up: true, Carrier: true, Role: model.RoleRouter})
			n.passes("10.60.0.20", 31, model.Egress, model.AsDestination, 640, 60)
			n.passes("10.60.0.20", 30, model.Ingress, model.AsDestination, 640, 60)
			n.drop("IP_INHDR", "ip_forward", "10.60.0.21", "10.60.0.20", 10).IfIndex = 30
			return n
		}, []string{
			"packets for 10.60.0.20 loop between out and in", "in ingress: 640 packets for 10.60.0.20, with 60 different TTLs",
			"bpftool net show dev out; ip route get 10.60.0.20 # find what should deliver packets for 10.60.0.20 to the pod",
		}},
		{"a pod that sends by its second interface", func() *testNode {
			n := kubenet().live()
			n.sysctl("net.ipv4.conf.all.rp_filter", "1")
			n.dropOn("veth9", "IP_RPFILTER", "ip_rcv_finish_core", "172.20.1.5", "203.0.113.9", 8)
			n.Pods[0].Interface = "eth0"
			return n
		}, []string{
			"The node's route is correct: the pod sends through another interface than eth0.",
			"ip route show # make the routes to 203.0.113.9 use eth0",
		}},
		{"a queue that drops", func() *testNode {
			n := kubenet()
			n.silent(pod5, "203.0.113.9")
			n.Queues = []model.Queue{{Link: n.Links[0].Name, DropsDelta: 5}}
			return n
		}, []string{"Packets that the queue of " + kubenet().Links[0].Name + " dropped (5 from any sender in the window) are not counted here"}},
		{"Kubernetes knows that the route is missing", func() *testNode {
			n := three()
			n.Cluster.Nodes[2].NoRoute = "no route was created"
			n.answered(pod5, "172.20.2.9")
			n.silent(pod5, "172.20.3.8")
			n.silent(pod5, "172.20.3.9")
			return n
		}, []string{"nodes: node n3: NetworkUnavailable, no route was created"}},
		{"a row that leads here", func() *testNode {
			n := three()
			n.table([]model.UDR{rightRows[0], rightRows[1], udr("172.20.3.0/24", "10.50.0.4")})
			n.Cluster.Azure.Subnets = []model.Subnet{{Prefixes: []netip.Prefix{prefix("10.50.0.0/16")}, RouteTable: tableA, File: "subnet.json"}}
			n.silent(pod5, "172.20.3.9")
			return n
		}, []string{
			"the route for 172.20.3.0/24 leads to 10.50.0.4, not to node n3 at 10.50.0.6", "gets another range, and its route is not updated. That machine is this node.",
			`route table rt-a in tables.json, which applies to the subnet in subnet.json: route "to-10.50.0.4" sends 172.20.3.0/24 to VirtualAppliance 10.50.0.4`,
			"nodes: 10.50.0.4 is node n1",
		}},
		{"a pod without any route", func() *testNode {
			n := routed()
			n.unroute("10.50.0.20/32")
			n.unroute("0.0.0.0/0")
			n.unroute("10.50.0.0/16")
			return n
		}, []string{"10.50.0.20 is behind tap10, but the lookup for a packet from 10.50.0.21 on tap11 finds no route", "Packets for it are discarded."}},
		{"a service whose chain is empty", func() *testNode {
			n := kubenet()
			n.Chains = append(n.Chains, model.Chain{Backend: model.NFT, Family: "ip", Table: "nat", Name: "PREROUTING", Hook: "PREROUTING", Priority: -100})
			n.natRules(
				model.PacketRule{Chain: "PREROUTING", Target: "KUBE-SERVICES"},
				model.PacketRule{Chain: "KUBE-SERVICES", Dst: to("10.0.0.10/32"), Target: "KUBE-SVC-A", Text: "-d 10.0.0.10/32 -j KUBE-SVC-A"},
				model.PacketRule{Chain: "KUBE-SVC-A", Target: "RETURN"},
			)
			n.answered("10.50.0.4", "10.50.0.5")
			n.silent(pod5, "10.0.0.10")
			return n
		}, []string{"iptables: this rule matches 10.0.0.10, but leads to no rule that translates it: nat KUBE-SERVICES rule "}},
	} {
		t.Run(tt.name, func(t *testing.T) {
			said := sentences(tt.node())
			for _, want := range tt.want {
				if !strings.Contains(said, want) {
					t.Errorf("nothing says %q in\n%s", want, said)
				}
			}
		})
	}
}

// sentences are all that the findings on a node say, in lines.
func sentences(n *testNode) string {
	var said []string
	for _, f := range Diagnose(&n.Snapshot) {
		said = append(said, f.Title, f.Why)
		for _, e := range f.Evidence {
			said = append(said, e.Source+": "+e.Text)
		}
		said = append(append(append(said, f.Unseen...), f.Alternatives...), steps(f)...)
	}
	return strings.Join(said, "\n")
}
