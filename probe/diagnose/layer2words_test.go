package diagnose

import (
	"net/netip"
	"slices"
	"strings"
	"testing"

	"github.com/lasthop/lasthop/probe/model"
)

// TestLayer2Words: what findings say in states that the scenarios of the lab do not have.
func TestLayer2Words(t *testing.T) {
	six := func(n *testNode) *testNode {
		for i := range n.Pods {
			p := &n.Pods[i]
			p.Addresses = append(p.Addresses, prefix([]string{"fd00::5/64", "fd00::6/64", "fd00::7/64"}[i]))
			p.Gateways = append(p.Gateways, model.Neighbor{Addr: addr("fd00::1")})
		}
		return n
	}
	sharedMAC := func() *testNode {
		n := six(inside3())
		n.Pods[1].MAC = n.Pods[0].MAC
		return n
	}
	tests := []struct {
		name string
		node func() *testNode
		code model.Code
		// want are lines of the finding, in their order.
		want []string
	}{
		{"a rule answered ARP, and pods believed it", func() *testNode {
			n := bridged()
			n.FrameRules[1].MAC = mac(deadMAC)
			n.arp("10.60.0.20", 11, model.Egress, true, deadMAC, 2)
			n.frames("10.60.0.20", 11, model.Ingress, model.AsDestination, deadMAC, 40)
			return n
		}, "StaleARPReply", []string{
			"title: stale ARP answer for 10.60.0.20 from an ebtables rule",
			"why: An ebtables rule answers ARP for 10.60.0.20 with a2:96:88:20:cb:c6 instead of the pod's 0a:58:00:00:00:20; " +
				"nobody on this node has it. Hosts that get this answer send packets to the stale MAC. The packets never reach the pod.",
			"tc: tap11 egress: 2 ARP replies that 10.60.0.20 is at a2:96:88:20:cb:c6",
			"tc: 40 packets for 10.60.0.20 from pods have the destination MAC a2:96:88:20:cb:c6",
		}},
		{"a rule answers ARP for an address that nobody has", func() *testNode {
			n := bridged()
			n.arpreply("10.60.0.99", deadMAC).Counter.Delta = 4
			n.Probes = []model.Probe{{Kind: model.ProbeARP, Link: "azure0", IfIndex: 3, From: addr("10.60.0.4"), To: addr("10.60.0.99")}}
			return n
		}, "StaleARPReply", []string{
			"pods: no pod on this node has 10.60.0.99; nobody on this node has a2:96:88:20:cb:c6",
			"probes: ARP request from 10.60.0.4 on azure0 for 10.60.0.99: no answer",
			"unseen: which pod has 10.60.0.99 now: none on this node",
			"else: the pod was deleted, and its peers still send to it",
		}},
		{"STP's forward delay runs, and packets are lost", func() *testNode {
			n := podBridge()
			n.link(3).Bridge.STP = true
			n.link(10).Port.State, n.link(10).Port.Settling = model.PortLearning, true
			n.unheard(0)
			return n
		}, "BridgePortBlocked", []string{
			"severity: info", "title: bridge port tap10 does not forward yet: state learning",
			"why: tap10 is the port of the pod behind tap10 on br-pods. The STP forward delay is running, as for every port that came up recently. " +
				"No frame passes between the pod and the bridge.",
			"links: tap10, a port of br-pods: state learning, and the bridge runs STP; the forward delay is running",
			"tc: tap10 ingress: 7 requests for MACs; egress: no reply",
			"drops: 60 packets from or to the pod dropped: neighbour resolution failed",
			"fix: bridge -d link show dev tap10 # wait for the forward delay to end: at most one minute",
		}},
		{"a bridge with an IPv6 gateway was taken down", func() *testNode {
			n := six(podBridge())
			n.link(3).Up, n.Routes = false, n.Routes[:2]
			return n
		}, "BridgePortBlocked", []string{
			"links: br-pods is down", "unseen: a packet that was lost", "fix: ip link set dev br-pods up", "fix: ip -6 addr add fd00::1/64 dev br-pods",
		}},
		{"a bridge's rule with a match that was not read", func() *testNode {
			n := bridged()
			r := n.dropRule(model.FrameRule{IPDst: model.AddrMatch{Prefix: prefix("10.60.0.20/32")}, Text: "--ip-dst 10.60.0.20 [limit] -j DROP"}, 9)
			r.Unknown = []string{"limit", "among"}
			n.drop("NETFILTER_DROP", "nf_hook_slow", "10.60.0.21", "10.60.0.20", 3).IfIndex = 10
			n.drop("NETFILTER_DROP", "nf_hook_slow", "10.60.0.9", "10.60.0.20", 6).IfIndex = 10
			return n
		}, "BridgeRuleDrop", []string{
			"confidence: likely", "title: rule 6 of bridge chain filter FORWARD drops frames",
			"drops: 9 packets that match it dropped at nf_hook_slow (NETFILTER_DROP), most of them 10.60.0.9 to 10.60.0.20",
			"unseen: matches of the rule that lasthop cannot decode: [limit among]",
		}},
		{"pods of two families have one MAC, and a rule has another", func() *testNode {
			n := sharedMAC()
			n.dnat("172.20.1.6", deadMAC)
			return n
		}, "DuplicateMAC", []string{
			"title: two pods have the MAC 0a:58:00:00:00:05", "unseen: a packet that reached the wrong pod",
			"else: VLANs on the bridge separate the pods",
			"fix: nsenter --net=/run/netns/cni-1 sysctl -w net.ipv4.conf.eth0.arp_notify=1",
			"fix: nsenter --net=/run/netns/cni-1 sysctl -w net.ipv6.conf.eth0.ndisc_notify=1",
			"fix: nsenter --net=/run/netns/cni-1 ip link set dev eth0 address a2:96:88:20:cb:c6",
		}},
		{"three pods have one MAC", func() *testNode {
			n := sharedMAC()
			n.Pods[2].MAC = n.Pods[0].MAC
			return n
		}, "DuplicateMAC", []string{"title: 3 pods have the MAC 0a:58:00:00:00:05"}},
		{"an address of two pods, with no route to it", func() *testNode {
			n := kubenet()
			n.Routes = n.Routes[1:2]
			n.Pods[1].Addresses = n.Pods[0].Addresses
			return n
		}, "DuplicatePodIP", []string{
			"why: the pod behind tap10 and the pod behind tap11 have the same address 172.20.1.5 on interfaces that are up.",
			"pods: the pod behind tap11:  has the address 172.20.1.5, MAC 0a:58:00:00:00:06, behind tap11",
		}},
		{"the default route is by a second interface that is known", func() *testNode {
			n := inside3()
			n.pod("192.168.5.9", "0a:58:00:00:00:09", 0)
			p := n.inner(3, "192.168.5.9/24", "default via 192.168.5.1")
			p.Interface, p.Netns, p.NetnsName = "net1", 100, "cni-0"
			n.inner(0, "172.20.1.5/24").Elsewhere = []netip.Prefix{prefix("0.0.0.0/0")}
			n.peer("172.20.1.5", "172.20.3.9", none, syn)
			return n
		}, "PodDefaultRoute", []string{
			"title: the default route of the pod behind tap10 does not use eth0",
			"pods: in the pod: default via 192.168.5.1 dev net1",
			"pods: the pod behind tap11 and 1 similar pod: default via 172.20.1.1 dev eth0",
			"fix: nsenter --net=/run/netns/cni-0 ip route del default dev net1",
		}},
		{"a static entry of the bridge's own, in a VLAN", func() *testNode {
			n := podBridge()
			n.FDB = []model.FDBEntry{{MAC: n.Pods[0].MAC, IfIndex: 3, Bridge: 3, VLAN: 7, Local: true}}
			n.link(3).Bridge.VLANFiltering = true
			n.link(3).VLANs, n.link(10).VLANs = &model.VLANs{PVID: 7}, &model.VLANs{PVID: 7}
			return n
		}, "StaleFDB", []string{
			"title: FDB of br-pods sends frames for 172.20.1.5 to the node", "bridge: 0a:58:00:00:00:05 dev br-pods master br-pods permanent",
			"fix: bridge fdb del 0a:58:00:00:00:05 dev br-pods self vlan 7",
		}},
	}
	for _, tt := range tests {
		t.Run(tt.name, func(t *testing.T) {
			found := Diagnose(&tt.node().Snapshot)
			i := slices.IndexFunc(found, func(f model.Finding) bool { return f.Code == tt.code })
			if i < 0 {
				t.Fatalf("no %s in %+v", tt.code, found)
			}
			got := linesOf(&found[i])
			rest := got
			for _, want := range tt.want {
				at := slices.Index(rest, want)
				if at < 0 {
					t.Fatalf("%q is not said, or not in its place:\n%s", want, strings.Join(got, "\n"))
				}
				rest = rest[at+1:]
			}
		})
	}
}

// linesOf are the lines of a finding, each with its part.
func linesOf(f *model.Finding) []string {
	out := []string{"severity: " + string(f.Severity), "confidence: " + string(f.Confidence), "title: " + f.Title, "why: " + f.Why}
	for _, e := range f.Evidence {
		out = append(out, e.Source+": "+e.Text)
	}
	add := func(part string, list []string) {
		for _, x := range list {
			out = append(out, part+": "+x)
		}
	}
	add("unseen", f.Unseen)
	add("else", f.Alternatives)
	add("fix", steps(*f))
	return out
}
