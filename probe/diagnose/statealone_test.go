package diagnose

import (
	"net/netip"
	"slices"
	"strings"
	"testing"

	"github.com/lasthop/lasthop/probe/model"
)

// situation is a node with what an expert says of it: the findings that ask for action, as "severity Code"; what they
// say somewhere; and what no fix may have.
type situation struct {
	name string
	node func() *testNode
	want []string
	says string
	not  string
}

func situations(t *testing.T, list []situation) {
	for _, tt := range list {
		t.Run(tt.name, func(t *testing.T) {
			var got []string
			var said, fixes strings.Builder
			for _, f := range agreed(t, tt.node()) {
				if f.Severity != model.Info {
					got = append(got, string(f.Severity)+" "+string(f.Code))
				}
				said.WriteString(f.Title + "\n" + f.Why + "\n")
				for _, e := range f.Evidence {
					said.WriteString(e.Text + "\n")
				}
				fixes.WriteString(strings.Join(steps(f), "\n") + "\n")
			}
			if !slices.Equal(got, tt.want) {
				t.Errorf("findings %q, want %q\n%s%s", got, tt.want, said.String(), fixes.String())
			}
			if all := said.String() + fixes.String(); !strings.Contains(all, tt.says) {
				t.Errorf("nothing says %q\n%s", tt.says, all)
			}
			if tt.not != "" && strings.Contains(fixes.String(), tt.not) {
				t.Errorf("a fix has %q\n%s", tt.not, fixes.String())
			}
		})
	}
}

// exchanges has a pod send and get packets through its link.
func (n *testNode) exchanges(i int, a string) {
	n.passes(a, n.Pods[i].LinkIndex, model.Ingress, model.AsSource, 40, 1)
	n.passes(a, n.Pods[i].LinkIndex, model.Egress, model.AsDestination, 40, 1)
}

// bridgeOf adds a bridge, with its network.
func (n *testNode) bridgeOf(index int, name, hw, own string) {
	n.Links = append(n.Links, model.Link{Index: index, Name: name, Kind: "bridge", MAC: mac(hw), Up: true, Carrier: true,
		Role: model.RoleBridge, Addresses: []netip.Prefix{prefix(own)}})
	n.route(model.Route{Dst: prefix(own).Masked(), IfIndex: index, Protocol: "kernel"})
}

// securityGroups is a node of EKS with a pod that has a branch NIC: what the pod sends, and what comes by that NIC,
// is looked up in a table of its own. The node itself reaches the pod by the network.
func securityGroups(podRoute bool) *testNode {
	n := newNode("ens5", "10.11.32.10", "10.11.32.0/20", "10.11.32.1")
	n.pod("10.11.40.7", "0a:58:00:00:00:07", 0)
	n.inner(0, "10.11.40.7/32", "169.254.1.1", "default via 169.254.1.1")
	n.Links = append(n.Links, model.Link{Index: 40, Name: "vlan.eth.1", Kind: "vlan", MAC: mac("00:0d:3a:00:00:40"), Up: true,
		Carrier: true, Role: model.RoleUplink})
	n.Node.Plugin, n.Node.Uplinks = "aws", []string{"ens5", "vlan.eth.1"}
	n.route(model.Route{Table: 101, Dst: prefix("0.0.0.0/0"), Gateway: addr("10.11.32.1"), IfIndex: 40})
	n.route(model.Route{Table: 101, Dst: prefix("10.11.32.1/32"), IfIndex: 40})
	if podRoute {
		n.route(model.Route{Table: 101, Dst: prefix("10.11.40.7/32"), IfIndex: 10})
	}
	n.Rules = []model.RoutingRule{
		{Family: 4, Priority: 0, Table: 255, Action: "lookup"},
		{Family: 4, Priority: 10, In: "vlan.eth.1", Table: 101, Action: "lookup"},
		{Family: 4, Priority: 10, In: "tap10", Table: 101, Action: "lookup"},
		{Family: 4, Priority: 32766, Table: 254, Action: "lookup"},
	}
	return n.live()
}

// isolatedTwins are two pods with one inner address, each on a bridge of its own, or both on one.
func isolatedTwins(bridge int) *testNode {
	n := kubenet()
	n.bridgeOf(8, "br-lab1", "0a:00:00:00:00:08", "192.168.100.1/24")
	n.Links = append(n.Links, model.Link{Index: 9, Name: "br-lab2", Kind: "bridge", MAC: mac("0a:00:00:00:00:09"), Up: true,
		Carrier: true, Role: model.RoleBridge})
	n.pod("192.168.100.2", "0a:58:00:00:01:02", 8)
	n.pod("192.168.100.2", "0a:58:00:00:02:02", bridge)
	for i := range n.Pods {
		n.Pods[i].Netns = uint32(100 + i)
	}
	n.exchanges(2, "192.168.100.2")
	n.exchanges(3, "192.168.100.2")
	return n.live()
}

// TestStateAlone: what only looks unlike the others is tried against the pod's own packets, and where these pass it
// accuses nobody.
func TestStateAlone(t *testing.T) {
	situations(t, []situation{
		{"a /32 among /24, whose traffic passes", func() *testNode {
			n := inside3()
			n.inner(1, "172.20.1.6/32", "172.20.1.1", "default via 172.20.1.1")
			n.exchanges(1, "172.20.1.6")
			return n
		}, nil, "", ""},
		{"a /32 without a way to its neighbours, whose packets for them die", func() *testNode {
			n := inside3()
			n.inner(1, "172.20.1.6/32")
			d := n.drop("IP_OUTNOROUTES", "ip_error", "172.20.1.6", "172.20.1.7", 20)
			d.Netns = n.Pods[1].Netns
			return n
		}, []string{"critical PodPrefix"}, "", ""},
		{"no default route on purpose, and all that it wants is answered", func() *testNode {
			n := inside3()
			n.inner(1, "172.20.1.6/24")
			n.exchanges(1, "172.20.1.6")
			return n
		}, nil, "", ""},
		{"no default route on purpose, and it is quiet beside a policy that drops others' packets", func() *testNode {
			n := inside3()
			n.inner(1, "172.20.1.6/24")
			n.chain(model.NFT, "ip", "filter", "FORWARD", "FORWARD", "ACCEPT", 0)
			n.filter(model.NFT, "FORWARD", 30, model.PacketRule{Dst: to("172.20.1.6/32"), Target: "DROP", Text: "-d 172.20.1.6/32 -j DROP"})
			n.dropOn("tap11", "NETFILTER_DROP", "nft_do_chain", "172.20.1.5", "172.20.1.6", 30)
			return n
		}, []string{"warning PolicyDrop", "warning PodDefaultRoute"}, "-d 172.20.1.6/32 -j DROP", ""},
		{"no default route, and requests from beyond get none", func() *testNode {
			n := inside3()
			n.inner(1, "172.20.1.6/24")
			n.exchanges(1, "172.20.1.6")
			n.peer("172.20.1.6", far, none, syn)
			return n
		}, []string{"critical PodDefaultRoute"}, "", ""},
		{"one inner address in two isolated networks", func() *testNode { return isolatedTwins(9) }, nil, "", ""},
		{"one address twice on one bridge", func() *testNode { return isolatedTwins(8) }, []string{"critical DuplicatePodIP"}, "", ""},
		{"EKS, a pod with a security group", func() *testNode {
			n := securityGroups(true)
			n.passes("10.11.40.7", 2, model.Egress, model.AsDestination, 40, 1)
			n.passes("10.11.40.7", 40, model.Ingress, model.AsDestination, 40, 1)
			n.exchanges(0, "10.11.40.7")
			return n
		}, nil, "", "route"},
		{"EKS, the pod's table has no route to it", func() *testNode {
			n := securityGroups(false)
			n.passes("10.11.40.7", 2, model.Egress, model.AsDestination, 40, 1)
			n.passes("10.11.40.7", 40, model.Ingress, model.AsDestination, 80, 40)
			n.passes("10.11.40.7", 40, model.Egress, model.AsDestination, 80, 40)
			n.passes("10.11.40.7", 10, model.Ingress, model.AsSource, 40, 1)
			return n
		}, []string{"critical MissingPodRoute"}, "", ""},
		{"Docker beside k3s, one network of it internal", func() *testNode {
			n := kubenet()
			n.bridgeOf(8, "docker0", "02:42:00:00:00:08", "172.17.0.1/16")
			n.bridgeOf(9, "br-4f1d2", "02:42:00:00:00:09", "172.18.0.1/16")
			for i, a := range []string{"172.17.0.2", "172.17.0.3", "172.18.0.2"} {
				n.pod(a, "02:42:ac:11:00:0"+string(rune('2'+i)), 8)
			}
			n.link(n.Pods[4].LinkIndex).Master = 9
			n.inner(0, "172.20.1.5/24", "default via 172.20.1.1")
			n.inner(1, "172.20.1.6/24", "default via 172.20.1.1")
			n.inner(2, "172.17.0.2/16", "default via 172.17.0.1").Gateways[0].MAC = n.link(8).MAC
			n.inner(3, "172.17.0.3/16", "default via 172.17.0.1").Gateways[0].MAC = n.link(8).MAC
			n.inner(4, "172.18.0.2/16")
			n.exchanges(2, "172.17.0.2")
			n.exchanges(3, "172.17.0.3")
			n.exchanges(4, "172.18.0.2")
			return n.live()
		}, nil, "", ""},
		{"a virtual machine has the address that its pod's interface lacks", func() *testNode {
			n := routed3()
			n.inner(2, "")
			n.Pods[2].Given = []netip.Addr{addr("10.50.0.22")}
			n.exchanges(2, "10.50.0.22")
			return n
		}, nil, "", ""},
		{"nobody has the address that the plugin gave", func() *testNode {
			n := routed3()
			n.inner(2, "")
			n.Pods[2].Given = []netip.Addr{addr("10.50.0.22")}
			n.toPod(2, "10.50.0.22", 40)
			n.asks(2, "10.50.0.22", model.Egress, false, 9)
			return n
		}, []string{"critical PodAddress"}, "", ""},
		{"the pod's gateway entry has another MAC, of a router that forwards", func() *testNode {
			n := routedNode().live()
			n.Pods[0].Gateways[0].MAC = mac(deadMAC)
			n.exchanges(0, "10.60.0.20")
			n.answered("10.60.0.20", out)
			return n
		}, nil, "", ""},
		{"the pod's gateway entry has a MAC that nobody takes", func() *testNode {
			n := routedNode().live()
			n.Pods[0].Gateways[0].MAC = mac(deadMAC)
			n.frames("10.60.0.20", 10, model.Ingress, model.AsSource, deadMAC, 40)
			n.passes("10.60.0.20", 10, model.Ingress, model.AsSource, 40, 1)
			d := n.dropOn("tap10", "OTHERHOST", "ip_rcv_core", "10.60.0.20", out, 40)
			d.DstMAC = mac(deadMAC)
			return n
		}, []string{"critical WrongGatewayMAC"}, "", ""},
		{"Calico's blackhole of its block, with the pods' routes in front", func() *testNode {
			n := newNode("ens5", "10.20.0.4", "10.20.0.0/24", "10.20.0.1")
			n.Node.Plugin = "calico"
			n.pod("10.244.9.65", "0a:58:00:00:00:65", 0)
			n.route(model.Route{Dst: prefix("10.244.9.64/26"), Type: "blackhole"})
			n.route(model.Route{Dst: prefix("10.244.9.65/32"), IfIndex: 10})
			n.exchanges(0, "10.244.9.65")
			return n.live()
		}, nil, "", ""},
		{"and the pod's route is gone", func() *testNode {
			n := newNode("ens5", "10.20.0.4", "10.20.0.0/24", "10.20.0.1")
			n.Node.Plugin = "calico"
			n.pod("10.244.9.65", "0a:58:00:00:00:65", 0)
			n.route(model.Route{Dst: prefix("10.244.9.64/26"), Type: "blackhole"})
			n.dropOn("ens5", "NOT_SPECIFIED", "ip_error", "10.20.0.9", "10.244.9.65", 20)
			n.passes("10.244.9.65", 2, model.Ingress, model.AsDestination, 20, 1)
			return n.live()
		}, []string{"critical MissingPodRoute"}, "", "route del"},
		{"one inner address in two VRFs", func() *testNode {
			n := routed3()
			for i, vrf := range []int{50, 51} {
				n.Links = append(n.Links, model.Link{Index: vrf, Name: "vrf" + string(rune('0'+i)), Kind: "vrf", Up: true, Carrier: true})
				n.link(10 + i).Master = vrf
				n.inner(i, "100.64.0.2/30", "default via 100.64.0.1")
			}
			return n.live()
		}, nil, "", ""},
		{"a pod of a wide prefix whose packets pass, by a router that answers for all", func() *testNode {
			n := inside3()
			n.inner(2, "172.20.1.7/16", "default via 172.20.1.1")
			n.exchanges(2, "172.20.1.7")
			return n
		}, nil, "", ""},
		{"a pod of a wide prefix that looks for another node's pods on its link", func() *testNode {
			n := inside3()
			n.inner(2, "172.20.1.7/16", "default via 172.20.1.1")
			n.exchanges(2, "172.20.1.7")
			n.asks(2, far, model.Ingress, false, 20)
			d := n.drop("NEIGH_FAILED", "neigh_invalidate", "172.20.1.7", far, 20)
			d.Netns = n.Pods[2].Netns
			return n
		}, []string{"critical PodPrefix"}, "", ""},
	})
}
