package diagnose

import (
	"net/netip"
	"slices"
	"strings"
	"testing"

	"github.com/lasthop/lasthop/probe/model"
)

// podBridge is a node whose three pods are ports of a bridge that is their gateway.
func podBridge() *testNode {
	n := kubenet().with(model.SourceBridge)
	n.pod("172.20.1.7", "0a:58:00:00:00:07", 3)
	n.link(3).Bridge = &model.Bridge{}
	for i := range n.Pods {
		p := &n.Pods[i]
		p.Addresses[0] = netip.PrefixFrom(p.Addresses[0].Addr(), 24)
		p.Interface = "eth0"
		n.gateway(p, "172.20.1.1", "0a:00:00:00:00:03", "REACHABLE")
		n.link(p.LinkIndex).Port = forwardingPort()
		n.FDB = append(n.FDB, model.FDBEntry{MAC: p.MAC, IfIndex: p.LinkIndex, Bridge: 3})
	}
	return n
}

func forwardingPort() *model.BridgePort {
	return &model.BridgePort{State: model.PortForwarding, Learning: true, Flood: true, BroadcastFlood: true}
}

// unheard is what is seen of a pod that asks for its gateway in vain, and that the
// node asks for.
func (n *testNode) unheard(pod int) {
	p := &n.Pods[pod]
	a, g := p.Addresses[0].Addr().String(), p.Gateways[0].Addr.String()
	p.Gateways[0].MAC, p.Gateways[0].State = model.MAC{}, "INCOMPLETE"
	n.arp(g, p.LinkIndex, model.Ingress, false, p.MAC.String(), 7)
	n.drop("NEIGH_FAILED", "neigh_invalidate", a, "203.0.113.9", 30)
	n.drop("NEIGH_FAILED", "neigh_invalidate", "203.0.113.9", a, 30)
	n.neighbor(a, "", 3, "INCOMPLETE")
}

// heard is a packet that left for the pod by its link.
func (n *testNode) heard(pod int) {
	p := &n.Pods[pod]
	n.Traffic.Hops = append(n.Traffic.Hops, model.HopCount{Addr: p.Addresses[0].Addr(), IfIndex: p.LinkIndex,
		Direction: model.Egress, Side: model.AsDestination, Packets: 40})
}

// offBridgeNode is podBridge with the first pod's link taken out of it.
func offBridgeNode() *testNode {
	n := podBridge()
	n.link(10).Master, n.link(10).Port = 0, nil
	n.FDB = n.FDB[1:]
	return n
}

// nicOffBridgeNode is a node whose bridge has the default route and no longer the NIC.
func nicOffBridgeNode() *testNode {
	n := bridged()
	n.Links[0].Master, n.Links[0].Role, n.Node.Uplinks = 0, model.RoleOther, nil
	return n
}

// withoutGateway is podBridge without the bridge's address and what came with it.
func withoutGateway() *testNode {
	n := podBridge()
	n.link(3).Addresses = nil
	n.Routes = n.Routes[:2]
	return n
}

func TestBridge(t *testing.T) {
	tests := []struct {
		name string
		node func() *testNode
		want []string
		// fix is the first line of the first finding's fix.
		fix string
	}{
		{"ports of a bridge, all well", podBridge, nil, ""},

		{"a link off its bridge", func() *testNode {
			n := offBridgeNode()
			n.unheard(0)
			return n
		}, []string{"PodLinkOffBridge proven 172.20.1.5"}, "ip link set dev tap10 master br-pods"},
		{"a link off its bridge, and nothing was sent", offBridgeNode,
			[]string{"PodLinkOffBridge possible 172.20.1.5"}, "ip link set dev tap10 master br-pods"},
		{"a link off its bridge, whose pods have the network's gateway", func() *testNode {
			n := bridged().with(model.SourceBridge)
			for i := range n.Pods {
				n.Pods[i].Addresses[0] = netip.PrefixFrom(n.Pods[i].Addresses[0].Addr(), 16)
				n.gateway(&n.Pods[i], "10.60.0.1", fabricMAC, "REACHABLE")
			}
			n.neighbor("10.60.0.1", fabricMAC, 3, "REACHABLE")
			n.link(10).Master = 0
			n.link(11).Hairpin = true
			n.unheard(0)
			return n
		}, []string{"PodLinkOffBridge proven 10.60.0.20"}, "ip link set dev tap10 master azure0"},
		{"a NIC off its bridge", func() *testNode {
			n := nicOffBridgeNode()
			n.drop("NEIGH_FAILED", "neigh_invalidate", "10.60.0.20", "203.0.113.9", 30)
			return n
		}, []string{"BridgePortBlocked proven 10.60.0.20 10.60.0.21"}, "ip link set dev nic0 master azure0"},
		{"a NIC off its bridge, and nothing was sent", nicOffBridgeNode,
			[]string{"BridgePortBlocked possible 10.60.0.20 10.60.0.21"}, "ip link set dev nic0 master azure0"},
		{"a bridge that no link of the node was a port of: its gateway may be a machine's behind a port", func() *testNode {
			n := nicOffBridgeNode()
			n.Links[0].Addresses = []netip.Prefix{prefix("192.0.2.4/24")}
			return n
		}, nil, ""},
		{"a bridge with a port that is no pod's", func() *testNode {
			n := nicOffBridgeNode()
			n.Links = append(n.Links, model.Link{Index: 44, Name: "bond0", Kind: "bond", Up: true, Carrier: true, Master: 3})
			return n
		}, nil, ""},
		{"a link of another bridge, and nothing was sent: bridges may be connected", func() *testNode {
			n := offBridgeNode()
			n.Links = append(n.Links, model.Link{Index: 4, Name: "br-other", Kind: "bridge", Up: true, Carrier: true})
			n.link(10).Master = 4
			return n
		}, nil, ""},
		{"a link of another bridge, and nobody answers", func() *testNode {
			n := offBridgeNode()
			n.Links = append(n.Links, model.Link{Index: 4, Name: "br-other", Kind: "bridge", Up: true, Carrier: true})
			n.link(10).Master = 4
			n.unheard(0)
			return n
		}, []string{"PodLinkOffBridge proven 172.20.1.5"}, "ip link set dev tap10 master br-pods"},
		{"the pod hears somebody without its bridge", func() *testNode {
			n := offBridgeNode()
			n.gateway(&n.Pods[0], "172.20.1.1", "fe:00:00:00:00:0a", "REACHABLE")
			n.heard(0)
			return n
		}, nil, ""},
		{"a routed pod beside a bridge", func() *testNode {
			n := offBridgeNode()
			n.Routes = append(n.Routes, model.Route{Table: 254, Dst: prefix("172.20.1.5/32"), IfIndex: 10, Type: "unicast"})
			n.gateway(&n.Pods[0], "172.20.1.1", "fe:00:00:00:00:0a", "REACHABLE")
			return n
		}, nil, ""},
		{"routed pods in the range of a bridge that an earlier plugin left", func() *testNode {
			n := routedNode()
			n.Links = append(n.Links, model.Link{Index: 3, Name: "azure0", Kind: "bridge", Up: true, Carrier: true, Role: model.RoleBridge,
				Addresses: []netip.Prefix{prefix("10.60.0.4/16")}})
			return n
		}, nil, ""},

		{"a port that is disabled", func() *testNode {
			n := podBridge()
			n.link(10).Port.State = model.PortDisabled
			n.unheard(0)
			return n
		}, []string{"BridgePortBlocked proven 172.20.1.5"}, "bridge link set dev tap10 state 3"},
		{"a port that is disabled, and nothing was sent", func() *testNode {
			n := podBridge()
			n.link(10).Port.State = model.PortDisabled
			return n
		}, []string{"BridgePortBlocked proven 172.20.1.5"}, "bridge link set dev tap10 state 3"},
		{"STP's forward delay runs", func() *testNode {
			n := podBridge()
			n.link(3).Bridge.STP = true
			n.link(10).Port.State, n.link(10).Port.Settling = model.PortLearning, true
			return n
		}, nil, ""},
		{"an STP daemon's forward delay may run", func() *testNode {
			n := podBridge()
			n.link(3).Bridge.STP = true
			n.link(10).Port.State = model.PortListening
			return n
		}, nil, ""},
		{"STP blocks the port", func() *testNode {
			n := podBridge()
			n.link(3).Bridge.STP = true
			n.link(10).Port.State = model.PortBlocking
			return n
		}, []string{"BridgePortBlocked possible 172.20.1.5"}, "bridge -d link show # find the loop: what else besides 'the pod behind tap10' connects tap10 to br-pods?"},
		{"STP blocks the port, and the kernel says so", func() *testNode {
			n := podBridge()
			n.link(3).Bridge.STP = true
			n.link(10).Port.State = model.PortBlocking
			n.dropOn("tap10", "BRIDGE_INGRESS_STP_STATE", "br_handle_frame", "172.20.1.5", "203.0.113.9", 30)
			return n
		}, []string{"BridgePortBlocked proven 172.20.1.5"}, "bridge -d link show # find the loop: what else besides 'the pod behind tap10' connects tap10 to br-pods?"},
		{"frames with a wrong source are no matter of the port", func() *testNode {
			n := podBridge()
			n.link(3).Bridge.STP = true
			n.link(10).Port.State = model.PortBlocking
			n.dropOn("tap10", "MAC_INVALID_SOURCE", "br_handle_frame", "172.20.1.5", "203.0.113.9", 30)
			return n
		}, []string{"BridgePortBlocked possible 172.20.1.5"}, "bridge -d link show # find the loop: what else besides 'the pod behind tap10' connects tap10 to br-pods?"},
		{"the port's settings were not read", func() *testNode {
			n := podBridge()
			n.link(10).Port = nil
			return n
		}, nil, ""},
		{"a locked port", func() *testNode {
			n := podBridge()
			n.link(10).Port.Locked = true
			n.FDB = n.FDB[1:]
			n.unheard(0)
			return n
		}, []string{"BridgePortBlocked proven 172.20.1.5"}, "bridge link set dev tap10 locked off # unless the port is meant to be locked"},
		{"a locked port with an entry for its pod", func() *testNode {
			n := podBridge()
			n.link(10).Port.Locked = true
			return n
		}, nil, ""},
		{"a port that neither learns nor floods", func() *testNode {
			n := podBridge()
			n.link(10).Port.Learning, n.link(10).Port.Flood = false, false
			n.FDB = n.FDB[1:]
			n.unheard(0)
			return n
		}, []string{"BridgePortBlocked proven 172.20.1.5"}, "bridge link set dev tap10 learning on flood on # unless this is intended"},
		{"a bridge that is down", func() *testNode {
			n := podBridge()
			n.link(3).Up, n.Routes = false, n.Routes[:2]
			for i := range n.Pods {
				n.link(n.Pods[i].LinkIndex).Port.State = model.PortDisabled
				n.unheard(i)
			}
			return n
		}, []string{"BridgePortBlocked proven 172.20.1.5 172.20.1.6 172.20.1.7"}, "ip link set dev br-pods up"},

		{"a port in another VLAN than the gateway", func() *testNode {
			n := vlanBridge(1, 7, 1, 1)
			n.unheard(0)
			return n
		}, []string{"BridgePortBlocked proven 172.20.1.5"},
			"bridge vlan add dev tap10 vid 1 pvid untagged # and bridge vlan del dev tap10 vid 7, unless the pod is meant to be in that VLAN"},
		{"a port without a VLAN for untagged frames", func() *testNode { return vlanBridge(1, 0, 1, 1) },
			[]string{"BridgePortBlocked possible 172.20.1.5"}, "bridge vlan add dev tap10 vid 1 pvid untagged"},
		{"the gateway is in another VLAN than all pods", func() *testNode { return vlanBridge(1, 7, 7, 7) },
			[]string{"BridgePortBlocked possible 172.20.1.5", "BridgePortBlocked possible 172.20.1.6", "BridgePortBlocked possible 172.20.1.7"},
			"bridge vlan add dev br-pods vid 7 pvid untagged self"},
		{"all in one VLAN", func() *testNode { return vlanBridge(7, 7, 7, 7) }, nil, ""},

		{"isolated ports, and pods that ask each other in vain", func() *testNode {
			n := isolatedPair()
			n.arp("172.20.1.6", 10, model.Ingress, false, "0a:58:00:00:00:05", 6)
			n.drop("NEIGH_FAILED", "neigh_invalidate", "172.20.1.5", "172.20.1.6", 20)
			return n
		}, []string{"BridgePortBlocked proven 172.20.1.5 172.20.1.6 172.20.1.5 172.20.1.6"},
			"bridge link set dev tap10 isolated off # unless these pods are meant to be separated"},
		{"isolated ports, and pods that know each other's MAC", func() *testNode {
			n := isolatedPair()
			n.drop("NOT_SPECIFIED", "br_handle_frame_finish", "172.20.1.5", "172.20.1.6", 20)
			return n
		}, []string{"BridgePortBlocked proven 172.20.1.5 172.20.1.6 172.20.1.5 172.20.1.6"},
			"bridge link set dev tap10 isolated off # unless these pods are meant to be separated"},
		{"isolated ports, and pods that have nothing to say to each other", func() *testNode {
			n := isolatedPair()
			n.answered("172.20.1.5", "172.20.2.9")
			n.answered("172.20.1.6", "172.20.2.9")
			return n
		}, nil, ""},
		{"one isolated port, and a pod that does not answer", func() *testNode {
			n := podBridge()
			n.link(10).Port.Isolated = true
			n.arp("172.20.1.6", 10, model.Ingress, false, "0a:58:00:00:00:05", 6)
			return n
		}, nil, ""},

		{"a bridge without its pods' gateway", func() *testNode {
			n := withoutGateway()
			for i := range n.Pods {
				n.unheard(i)
			}
			return n
		}, []string{"BridgeAddress proven 172.20.1.5 172.20.1.6 172.20.1.7"}, "ip addr add 172.20.1.1/24 dev br-pods"},
		{"a bridge with another address than its pods' gateway", func() *testNode {
			n := podBridge()
			n.link(3).Addresses = []netip.Prefix{prefix("172.20.1.254/24")}
			n.arp("172.20.1.1", 10, model.Ingress, false, "0a:58:00:00:00:05", 6)
			return n
		}, []string{"BridgeAddress proven 172.20.1.5 172.20.1.6 172.20.1.7"}, "ip addr add 172.20.1.1/24 dev br-pods"},
		{"a bridge without an address, and nothing was sent", withoutGateway,
			[]string{"BridgeAddress possible 172.20.1.5 172.20.1.6 172.20.1.7"}, "ip addr add 172.20.1.1/24 dev br-pods"},
		{"the gateway of a bridge without an address is a pod", func() *testNode {
			n := withoutGateway()
			n.Pods[2].Addresses = append(n.Pods[2].Addresses, prefix("172.20.1.1/24"))
			n.Pods[2].Gateways = nil
			n.Routes = append(n.Routes, model.Route{Table: 254, Dst: prefix("172.20.1.0/24"), IfIndex: 3, Type: "unicast"})
			for i := range n.Pods[:2] {
				n.gateway(&n.Pods[i], "172.20.1.1", n.Pods[2].MAC.String(), "REACHABLE")
			}
			return n
		}, nil, ""},
		{"the gateway is behind another port of a bridge without an address", func() *testNode {
			n := withoutGateway()
			n.Links = append(n.Links, model.Link{Index: 5, Name: "vm0", Kind: "tun", Master: 3, Up: true, Carrier: true})
			n.Routes = append(n.Routes, model.Route{Table: 254, Dst: prefix("172.20.1.0/24"), IfIndex: 3, Type: "unicast"})
			for i := range n.Pods {
				n.gateway(&n.Pods[i], "172.20.1.1", "52:54:00:00:00:01", "REACHABLE")
			}
			return n
		}, nil, ""},
		{"a bridge with neither port nor address", func() *testNode {
			n := routedNode()
			n.Links = append(n.Links, model.Link{Index: 3, Name: "docker0", Kind: "bridge", Up: true, Role: model.RoleBridge, Bridge: &model.Bridge{}})
			return n
		}, nil, ""},

		{"a static entry for a pod at another port", func() *testNode {
			n := podBridge()
			n.FDB[0] = model.FDBEntry{MAC: n.Pods[0].MAC, IfIndex: 11, Bridge: 3, Static: true}
			n.frames("172.20.1.5", 11, model.Egress, model.AsDestination, "0a:58:00:00:00:05", 40)
			n.unheard(0)
			return n
		}, []string{"StaleFDB proven 172.20.1.5"}, "bridge fdb del 0a:58:00:00:00:05 dev tap11 master"},
		{"a local entry for a pod at its own port", func() *testNode {
			n := podBridge()
			n.FDB[0] = model.FDBEntry{MAC: n.Pods[0].MAC, IfIndex: 10, Bridge: 3, Local: true}
			return n
		}, []string{"StaleFDB proven 172.20.1.5"}, "bridge fdb del 0a:58:00:00:00:05 dev tap10 master"},
		{"a static entry at the pod's port, and a learnt one at another", func() *testNode {
			n := podBridge()
			n.FDB[0].Static = true
			n.FDB[1].IfIndex = 12
			return n
		}, nil, ""},
		{"a static entry of a VLAN, on a bridge that does not filter", func() *testNode {
			n := podBridge()
			n.FDB = append(n.FDB, model.FDBEntry{MAC: n.Pods[0].MAC, IfIndex: 11, Bridge: 3, VLAN: 5, Static: true})
			return n
		}, nil, ""},
	}
	for _, test := range tests {
		t.Run(test.name, func(t *testing.T) {
			var got []string
			findings := agreed(t, test.node())
			for _, f := range findings {
				got = append(got, brief(f))
			}
			if !slices.Equal(got, test.want) {
				t.Fatalf("got  %s\nwant %s", strings.Join(got, "\n     "), strings.Join(test.want, "\n     "))
			}
			if len(findings) == 0 {
				return
			}
			if todo := slices.Concat(findings[0].Fix, findings[0].Next); todo[0] != test.fix {
				t.Errorf("fix %q, want %q", todo[0], test.fix)
			}
		})
	}
}

// isolatedPair is podBridge with two ports that are isolated.
func isolatedPair() *testNode {
	n := podBridge()
	n.link(10).Port.Isolated, n.link(11).Port.Isolated = true, true
	return n
}

// vlanBridge is podBridge with the PVIDs of the bridge and of each pod's port.
func vlanBridge(bridge int, ports ...int) *testNode {
	n := podBridge()
	pvid := func(id int) *model.VLANs {
		if id == 0 {
			return &model.VLANs{}
		}
		return &model.VLANs{PVID: id, Ranges: []model.VLANRange{{First: id, Last: id}}}
	}
	n.link(3).Bridge.VLANFiltering, n.link(3).VLANs = true, pvid(bridge)
	for i, id := range ports {
		n.link(n.Pods[i].LinkIndex).VLANs = pvid(id)
	}
	return n
}
