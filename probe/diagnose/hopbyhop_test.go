package diagnose

import (
	"testing"

	"github.com/lasthop/lasthop/probe/model"
)

// sendsTo is a pod that asks another of this node, in frames for a MAC, which every port of the bridge gets.
func (n *testNode) sendsTo(from, to int, hw string) *testNode {
	a, b := &n.Pods[from], &n.Pods[to]
	src, dst := a.Addresses[0].Addr().String(), b.Addresses[0].Addr().String()
	n.frames(dst, a.LinkIndex, model.Ingress, model.AsDestination, hw, 30)
	n.frames(src, a.LinkIndex, model.Ingress, model.AsSource, hw, 30)
	n.passes(src, a.LinkIndex, model.Ingress, model.AsSource, 30, 1)
	for i := range n.Pods {
		if i == from {
			continue
		}
		n.frames(dst, n.Pods[i].LinkIndex, model.Egress, model.AsDestination, hw, 30)
		if n.Pods[i].MAC != mac(hw) {
			d := n.dropOn(n.Pods[i].Link, "OTHERHOST", "ip_rcv_core", src, dst, 30)
			d.DstMAC, d.Netns, d.Proto = mac(hw), n.Pods[i].Netns, tcp
		}
	}
	n.handed(dst, 30, 30, 0)
	n.tracked(src, dst, tcp, 5432, 6, false)
	return n
}

// inNamespaces gives each pod a namespace of its own.
func (n *testNode) inNamespaces() *testNode {
	n.Node.Netns = 1
	for i := range n.Pods {
		n.Pods[i].Netns, n.Pods[i].Interface = uint32(70+i), "eth0"
	}
	return n.live()
}

// solicits is a node that asks for a pod's MAC by its bridge; at the pod's port so many requests left, and replies came.
func (n *testNode) solicits(a string, bridge, pod int, requests, reached, replies uint64) *testNode {
	n.arp(a, bridge, model.Egress, false, n.link(bridge).MAC.String(), requests)
	if reached > 0 {
		n.arp(a, n.Pods[pod].LinkIndex, model.Egress, false, n.link(bridge).MAC.String(), reached)
	}
	if replies > 0 {
		n.arp(a, n.Pods[pod].LinkIndex, model.Ingress, true, n.Pods[pod].MAC.String(), replies)
		n.arp(a, bridge, model.Ingress, true, n.Pods[pod].MAC.String(), replies)
		n.neighbor(a, n.Pods[pod].MAC.String(), bridge, "REACHABLE")
		return n
	}
	n.neighbor(a, "", bridge, "FAILED")
	n.dropOn(n.link(bridge).Name, "NEIGH_FAILED", "neigh_invalidate", "2001:db8::9", a, requests)
	return n
}

// TestHopByHop: frames and requests for MACs are followed from port to port; the first place at which they are wrong, or
// do not go on, is the cause.
func TestHopByHop(t *testing.T) {
	const six = "fd20:0:0:1::5"
	onlink := func() *testNode {
		n := bridged().with(model.SourceBridge)
		n.neighbor("10.60.0.1", fabricMAC, 3, "REACHABLE")
		return n.inNamespaces()
	}
	beyond := func(n *testNode, hw string) *testNode {
		n.answered("10.60.0.21", "10.60.0.7")
		n.answered("10.60.0.21", "203.0.113.9")
		n.peer("10.60.0.20", "10.60.0.7", model.PeerCount{Packets: 30, Requests: 30}, none)
		n.Traffic.MACs[len(n.Traffic.MACs)-1].Dst = mac(hw)
		n.frames("10.60.0.20", 10, model.Ingress, model.AsSource, hw, 30)
		n.passes("10.60.0.20", 10, model.Ingress, model.AsSource, 30, 1)
		n.tracked("10.60.0.20", "10.60.0.7", tcp, 443, 6, false)
		return n
	}
	situations(t, []situation{
		{"a pod holds a MAC for another pod that nobody has", func() *testNode {
			return podBridge().inNamespaces().sendsTo(1, 2, deadMAC)
		}, []string{"critical StaleNeighbor"}, "neigh del 172.20.1.7", ""},
		{"healthy: a bridge that has not learnt the pod's port yet", func() *testNode {
			n := podBridge().inNamespaces().sendsTo(1, 2, "0a:58:00:00:00:07")
			n.Flows = nil
			n.tracked("172.20.1.6", "172.20.1.7", tcp, 5432, 6, true)
			n.handed("172.20.1.7", 0, 0, 30)
			return n
		}, nil, "", ""},
		{"healthy: a virtual machine in the pod has the address, with a MAC of its own", func() *testNode {
			n := podBridge().inNamespaces().sendsTo(1, 2, deadMAC)
			n.Flows, n.Traffic.Drops = nil, nil
			n.tracked("172.20.1.6", "172.20.1.7", tcp, 5432, 6, true)
			n.handed("172.20.1.7", 0, 0, 30)
			return n
		}, nil, "", ""},
		{"only its question names a virtual machine in the pod", func() *testNode {
			n := podBridge().inNamespaces().sendsTo(1, 2, deadMAC)
			n.arp("172.20.1.7", n.Pods[2].LinkIndex, model.Ingress, false, deadMAC, 3)
			return n
		}, []string{"critical StaleNeighbor"}, "neigh del 172.20.1.7", ""},
		{"a pod that does not answer what arrives with its MAC", func() *testNode {
			return podBridge().inNamespaces().sendsTo(1, 2, "0a:58:00:00:00:07")
		}, []string{"warning PodNotReplying"}, "", "neigh del"},
		{"a pod pins the MAC of a third pod for another, beside the VNet", func() *testNode {
			return onlink().sendsTo(0, 1, deadMAC)
		}, []string{"critical StaleNeighbor"}, "10.60.0.21", ""},
		{"solicitations that the bridge does not pass on", func() *testNode {
			return snooping().solicits(six, 3, 0, 20, 0, 0)
		}, []string{"critical BridgePortBlocked"}, "mcast", ""},
		{"solicitations that a pod does not answer", func() *testNode {
			return snooping().solicits(six, 3, 0, 20, 20, 0)
		}, []string{"warning StaleNeighbor"}, "", "mcast"},
		{"healthy: solicitations that are answered", func() *testNode {
			return snooping().solicits(six, 3, 0, 20, 20, 20)
		}, nil, "", ""},
		{"a pod holds a wrong MAC for a machine of its network", func() *testNode {
			return beyond(onlink(), deadMAC)
		}, []string{"warning NoReply"}, "holds it itself", ""},
		{"IPv6: a pod holds the MAC of a third pod for another", func() *testNode {
			n := dual().with(model.SourceBridge)
			n.pod("172.20.1.7", "0a:58:00:00:00:07", 3)
			n.Pods[0].Addresses, n.Pods[1].Addresses = n.Pods[0].Addresses[1:], n.Pods[1].Addresses[1:]
			return n.inNamespaces().sendsTo(0, 1, "0a:58:00:00:00:07")
		}, []string{"critical StaleNeighbor"}, "the pod behind tap12 has it", ""},
		{"another pod asks, and the port gets no broadcasts", func() *testNode {
			n := podBridge().inNamespaces()
			n.link(11).Port.BroadcastFlood = false
			n.arp("172.20.1.6", 10, model.Ingress, false, n.Pods[0].MAC.String(), 12)
			n.arp("172.20.1.6", 12, model.Egress, false, n.Pods[0].MAC.String(), 12)
			d := n.drop("NEIGH_FAILED", "neigh_invalidate", "172.20.1.5", "172.20.1.6", 12)
			d.Netns, d.IfIndex = n.Pods[0].Netns, 2
			return n
		}, []string{"critical BridgePortBlocked"}, "bcast_flood on", ""},
		{"healthy: pods whose frames for others all go to the network's MAC", func() *testNode {
			n := onlink().sendsTo(0, 1, fabricMAC)
			n.Flows, n.Traffic.Drops = nil, nil
			n.tracked("10.60.0.20", "10.60.0.21", tcp, 5432, 6, true)
			n.handed("10.60.0.21", 0, 0, 30)
			return n
		}, nil, "", ""},
		{"a machine of the network that does not answer", func() *testNode {
			return beyond(onlink(), fabricMAC)
		}, []string{"warning NoReply"}, "", ""},
	})
}

// snooping is a node whose bridge sends multicasts to the ports that joined their groups.
func snooping() *testNode {
	n := dual().with(model.SourceBridge)
	n.link(3).Bridge = &model.Bridge{Snooping: true}
	for _, p := range n.Pods {
		n.link(p.LinkIndex).Port = forwardingPort()
	}
	return n
}

// announces has a pod say that an address has its MAC, which the bridge floods.
func (n *testNode) announces(pod int, a string, times uint64) *testNode {
	from := &n.Pods[pod]
	for i := range n.Links {
		if l := &n.Links[i]; l.Role == model.RolePodLink {
			n.arp(a, l.Index, model.Either(l.Index == from.LinkIndex, model.Ingress, model.Egress), true, from.MAC.String(), times)
		}
	}
	n.arp(a, 3, model.Ingress, true, from.MAC.String(), times)
	return n
}

// TestAnnouncements: who says that an address has its MAC is found by the link at which that comes in.
func TestAnnouncements(t *testing.T) {
	misled := func(n *testNode, gateway string, poisoner int) *testNode {
		hw := n.Pods[poisoner].MAC.String()
		for i := range n.Pods {
			if p := &n.Pods[i]; i != poisoner {
				n.gateway(p, gateway, hw, "REACHABLE")
				n.frames(p.Addresses[0].Addr().String(), p.LinkIndex, model.Ingress, model.AsSource, hw, 25)
				d := n.dropOn(n.Pods[poisoner].Link, "IP_INADDRERRORS", "ip_error", p.Addresses[0].Addr().String(), "203.0.113.9", 25)
				d.Netns, d.DstMAC = n.Pods[poisoner].Netns, mac(hw)
			}
		}
		return n
	}
	situations(t, []situation{
		{"a pod announces the bridge's address to the others", func() *testNode {
			return misled(podBridge().inNamespaces().announces(2, "172.20.1.1", 10), "172.20.1.1", 2)
		}, []string{"critical WrongGatewayMAC"}, "tap12", ""},
		{"a pod announces another's address", func() *testNode {
			n := podBridge().inNamespaces().announces(2, "172.20.1.5", 10)
			n.neighbor("172.20.1.5", n.Pods[2].MAC.String(), 3, "STALE")
			n.frames("172.20.1.5", 3, model.Egress, model.AsDestination, n.Pods[2].MAC.String(), 25)
			n.frames("172.20.1.5", 12, model.Egress, model.AsDestination, n.Pods[2].MAC.String(), 25)
			d := n.dropOn("tap12", "IP_INADDRERRORS", "ip_error", "203.0.113.9", "172.20.1.5", 25)
			d.Netns, d.DstMAC = n.Pods[2].Netns, n.Pods[2].MAC
			return n
		}, []string{"critical StaleNeighbor"}, "tcpdump -c 3 -eni tap12", ""},
		{"a machine of the network announces a pod's address", func() *testNode {
			n := bridged().with(model.SourceBridge).inNamespaces()
			n.arp("10.60.0.20", 2, model.Ingress, true, deadMAC, 12)
			return n
		}, []string{"critical DuplicatePodIP"}, "nic0", ""},
		{"healthy: a pod announces its virtual address each second", func() *testNode {
			return podBridge().inNamespaces().announces(1, "172.20.1.200", 10)
		}, nil, "", ""},
		{"healthy: a pod announces its own", func() *testNode {
			return podBridge().inNamespaces().announces(1, "172.20.1.6", 10)
		}, nil, "", ""},
		{"healthy: a router takes over the gateway's address from another", func() *testNode {
			n := bridged().with(model.SourceBridge).inNamespaces()
			n.arp("10.60.0.1", 2, model.Ingress, true, deadMAC, 5)
			n.neighbor("10.60.0.1", deadMAC, 3, "REACHABLE")
			n.Neighbors = n.Neighbors[1:]
			for i := range n.Pods {
				n.gateway(&n.Pods[i], "10.60.0.1", deadMAC, "REACHABLE")
				n.peer(n.Pods[i].Addresses[0].Addr().String(), "203.0.113.9", syn, synAck)
				n.Traffic.MACs[len(n.Traffic.MACs)-1].Dst = mac(deadMAC)
			}
			return n
		}, nil, "", ""},
	})
}

// TestOriginals: a frame that a host frees since it is for another MAC is a copy only if its original got to that MAC.
func TestOriginals(t *testing.T) {
	const second = "00:0d:3a:00:00:02"
	arriving := func(at int, both bool) *testNode {
		n := twoNICs(routed())
		n.link(4).MAC = mac(second)
		n.frames("10.50.0.20", at, model.Ingress, model.AsDestination, second, 30)
		d := n.dropOn(n.link(at).Name, "OTHERHOST", "ip_rcv_core", far, "10.50.0.20", 30)
		d.DstMAC, d.First, d.Last, d.Proto = mac(second), start, end, tcp
		if both {
			n.frames("10.50.0.20", 4, model.Ingress, model.AsDestination, second, 30)
			n.arrives("10.50.0.20", 4, 30, 0, 30, 0)
			n.peer("10.50.0.20", far, synAck, syn)
		}
		return n
	}
	unlearnt := func(flood bool) *testNode {
		n := podBridge().inNamespaces()
		n.FDB = n.FDB[1:]
		n.link(10).Port.Flood = flood
		n.neighbor("172.20.1.5", "0a:58:00:00:00:05", 3, "PERMANENT")
		n.passes("172.20.1.5", 2, model.Ingress, model.AsDestination, 30, 1)
		n.frames("172.20.1.5", 3, model.Egress, model.AsDestination, "0a:58:00:00:00:05", 30)
		for _, p := range n.Pods {
			if p.LinkIndex == 10 && !flood {
				continue
			}
			n.frames("172.20.1.5", p.LinkIndex, model.Egress, model.AsDestination, "0a:58:00:00:00:05", 30)
			if p.LinkIndex != 10 {
				d := n.dropOn(p.Link, "OTHERHOST", "ip_rcv_core", far, "172.20.1.5", 30)
				d.DstMAC, d.Netns, d.First, d.Last = mac("0a:58:00:00:00:05"), p.Netns, start, end
			}
		}
		if flood {
			n.handed("172.20.1.5", 30, 0, 0)
		}
		return n
	}
	toGateway := func(leaves bool) *testNode {
		n := bridged().with(model.SourceBridge).inNamespaces()
		n.frames("10.60.0.20", 10, model.Ingress, model.AsSource, fabricMAC, 30)
		n.frames("10.60.0.20", 11, model.Egress, model.AsSource, fabricMAC, 30)
		n.Neighbors[0].IfIndex = 3
		d := n.dropOn("tap11", "OTHERHOST", "ip_rcv_core", "10.60.0.20", "203.0.113.9", 30)
		d.DstMAC, d.Netns, d.First, d.Last = mac(fabricMAC), n.Pods[1].Netns, start, end
		n.tracked("10.60.0.20", "203.0.113.9", tcp, 443, 5, leaves)
		if leaves {
			n.answered("10.60.0.20", "203.0.113.9")
		}
		return n
	}
	gatewayOf := func(hw string, reaches bool) *testNode {
		n := kubenet().live()
		n.bridgeOf(8, "docker0", "02:42:00:00:00:08", "172.17.0.1/16")
		for _, b := range []int{10, 3} {
			n.frames("172.20.1.5", b, model.Ingress, model.AsSource, hw, 30)
		}
		if !reaches {
			d := n.dropOn("br-pods", "OTHERHOST", "ip_rcv_core", "172.20.1.5", "203.0.113.9", 30)
			d.DstMAC, d.First, d.Last = mac(hw), start, end
			return n
		}
		n.answered("172.20.1.5", "203.0.113.9")
		return n
	}
	situations(t, []situation{
		{"frames for a pod arrive by one NIC with the MAC of the other", func() *testNode { return arriving(2, false) },
			[]string{"critical WrongNextHopMAC"}, second, ""},
		{"healthy: a switch floods frames to both NICs", func() *testNode { return arriving(2, true) }, nil, "", ""},
		{"a port that gets no unknown MACs, and the pod's is not learnt", func() *testNode { return unlearnt(false) },
			[]string{"critical BridgePortBlocked"}, "flood on", ""},
		{"healthy: frames go to all ports until the pod speaks", func() *testNode { return unlearnt(true) }, nil, "", ""},
		{"a pod, whose entries were not read, sends to the MAC of another bridge", func() *testNode { return gatewayOf("02:42:00:00:00:08", false) },
			[]string{"warning UnexplainedDrop"}, "OTHERHOST", ""},
		{"healthy: frames for the network's gateway go to all ports, the NIC among them", func() *testNode { return toGateway(true) }, nil, "", ""},
		{"frames for the network's gateway go to pods' ports alone", func() *testNode { return toGateway(false) },
			[]string{"warning UnexplainedDrop"}, "OTHERHOST", ""},
		{"a rule drops the originals, and other ports get copies", func() *testNode {
			n := toGateway(false)
			n.dropOn("tap10", "NETFILTER_DROP", "nft_do_chain", "10.60.0.20", "203.0.113.9", 30)
			return n
		}, nil, "NETFILTER_DROP", "ip_rcv_core"},
		{"healthy: a VLAN has the MAC of its NIC", func() *testNode {
			n := arriving(2, false)
			n.link(2).MAC = mac(second)
			return n
		}, nil, "", ""},
		{"healthy: some MACs were not counted", func() *testNode {
			n := arriving(2, false)
			n.Traffic.Lost = model.Lost{MACs: 9}
			return n
		}, nil, "", ""},
		{"healthy: a pod sends to its bridge", func() *testNode { return gatewayOf("0a:00:00:00:00:03", true) }, nil, "", ""},
	})
}
