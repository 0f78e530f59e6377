package diagnose

import (
	"fmt"
	"net/netip"
	"strings"
	"testing"
	"time"

	"github.com/lasthop/lasthop/probe/model"
	"github.com/lasthop/lasthop/probe/node"
)

// The pods of these fixtures have namespaces that were read.

// inner gives the pod at an index an address with a prefix, and routes as ip(8)
// prints them: "DST [via GATEWAY]".
func (n *testNode) inner(i int, a string, routes ...string) *model.Pod {
	p := &n.Pods[i]
	p.Netns, p.NetnsName, p.Interface = uint32(100+i), fmt.Sprintf("cni-%d", i), "eth0"
	p.Addresses, p.Routes, p.Gateways = nil, nil, nil
	if a != "" {
		p.Addresses = []netip.Prefix{prefix(a)}
		if !p.Addresses[0].IsSingleIP() && (len(routes) == 0 || !strings.HasPrefix(routes[0], "noprefix")) {
			p.Routes = []model.Route{{Table: 254, Dst: p.Addresses[0].Masked(), Type: "unicast", Protocol: "kernel"}}
		}
	}
	for _, text := range routes {
		dst, gw, by := strings.Cut(text, " via ")
		if dst == "noprefix" {
			continue
		}
		r := model.Route{Table: 254, Type: "unicast", Protocol: "boot"}
		if by {
			r.Gateway = addr(gw)
			p.Gateways = append(p.Gateways, model.Neighbor{Addr: r.Gateway, MAC: n.gatewayMAC(i), State: "REACHABLE"})
		}
		switch {
		case dst == "default" && r.Gateway.Is6():
			r.Dst = prefix("::/0")
		case dst == "default":
			r.Dst = prefix("0.0.0.0/0")
		case strings.Contains(dst, "/"):
			r.Dst = prefix(dst)
		default:
			r.Dst = model.Host(addr(dst))
		}
		p.Routes = append(p.Routes, r)
	}
	return p
}

// gatewayMAC is that of the pod's bridge, or of its link.
func (n *testNode) gatewayMAC(i int) model.MAC {
	for _, l := range n.Links {
		if l.Index == n.Pods[i].LinkIndex && l.Master == 0 {
			return l.MAC
		}
	}
	return mac("0a:00:00:00:00:03")
}

// inside3 is a node with three pods on a bridge, all well.
func inside3() *testNode {
	n := kubenet()
	n.pod("172.20.1.7", "0a:58:00:00:00:07", 3)
	for i, a := range []string{"172.20.1.5/24", "172.20.1.6/24", "172.20.1.7/24"} {
		n.inner(i, a, "default via 172.20.1.1")
	}
	return n
}

// routed3 is a node with three pods, each routed by a link of its own.
func routed3() *testNode {
	n := newNode("ens5", "10.50.0.4", "10.50.0.0/16", "10.50.0.1")
	for i, a := range []string{"10.50.0.20", "10.50.0.21", "10.50.0.22"} {
		n.pod(a, fmt.Sprintf("0a:58:00:00:00:%02d", 20+i), 0)
		n.inner(i, a+"/32", "169.254.1.1", "default via 169.254.1.1")
		n.Routes = append(n.Routes, model.Route{Table: 254, Dst: model.Host(addr(a)), IfIndex: 10 + i, Type: "unicast"})
	}
	return n
}

func (n *testNode) toPod(i int, a string, packets uint64) {
	n.Traffic.Hops = append(n.Traffic.Hops, model.HopCount{Addr: addr(a), IfIndex: n.Pods[i].LinkIndex, Link: n.Pods[i].Link,
		Direction: model.Egress, Side: model.AsDestination, Packets: packets})
}

func (n *testNode) asks(i int, a string, d model.Direction, reply bool, packets uint64) {
	n.Traffic.ARP = append(n.Traffic.ARP, model.ARPCount{IfIndex: n.Pods[i].LinkIndex, Link: n.Pods[i].Link, Direction: d,
		Reply: reply, Addr: addr(a), Packets: packets})
}

func TestInsidePods(t *testing.T) {
	in := func(i int) string { return fmt.Sprintf("nsenter --net=/run/netns/cni-%d ", i) }
	tests := []struct {
		name string
		node func() *testNode
		want []string
		fix  []string
	}{
		{"bridged, all well", inside3, nil, nil},
		{"routed, all well", routed3, nil, nil},
		{"no default route, and asked from beyond", func() *testNode {
			n := inside3()
			n.inner(0, "172.20.1.5/24")
			n.peer("172.20.1.5", "172.20.3.9", none, syn)
			return n
		}, []string{"PodDefaultRoute proven 172.20.1.5"}, []string{in(0) + "ip route add default via 172.20.1.1 dev eth0"}},
		{"no default route, and nobody asks", func() *testNode {
			n := inside3()
			n.inner(0, "172.20.1.5/24")
			return n
		}, []string{"PodDefaultRoute possible 172.20.1.5"}, nil},
		{"no default route, and the pod sends by a table that only its rules know", func() *testNode {
			n := inside3()
			n.inner(0, "172.20.1.5/24")
			n.answered("172.20.1.5", "172.20.3.9")
			return n
		}, nil, nil},
		{"the default route is by another interface", func() *testNode {
			n := inside3()
			n.inner(0, "172.20.1.5/24").Elsewhere = []netip.Prefix{prefix("0.0.0.0/0")}
			return n
		}, nil, nil},
		{"the default route is by another interface, and nothing comes back", func() *testNode {
			n := inside3()
			n.inner(0, "172.20.1.5/24").Elsewhere = []netip.Prefix{prefix("0.0.0.0/0")}
			n.peer("172.20.1.5", "172.20.3.9", none, syn)
			return n
		}, []string{"PodDefaultRoute likely 172.20.1.5"}, []string{in(0) + "ip route del default", in(0) + "ip route add default via 172.20.1.1 dev eth0",
			"# remove the gateway from the configuration of the additional network, or default-route from the pod's annotation"}},
		{"two halves in place of a default route", func() *testNode {
			n := inside3()
			n.inner(0, "172.20.1.5/24", "0.0.0.0/1 via 172.20.1.1", "128.0.0.0/1 via 172.20.1.1")
			return n
		}, nil, nil},
		{"an isolated network: no pod has a default route", func() *testNode {
			n := inside3()
			for i, a := range []string{"172.20.1.5/24", "172.20.1.6/24", "172.20.1.7/24"} {
				n.inner(i, a)
			}
			n.peer("172.20.1.5", "172.20.3.9", none, syn)
			return n
		}, nil, nil},
		{"a second network's interface has none", func() *testNode {
			n := inside3()
			n.pod("192.168.5.9", "0a:58:00:00:00:09", 3)
			n.inner(3, "192.168.5.9/24").Interface = "net1"
			return n
		}, nil, nil},
		{"a young pod", func() *testNode {
			n := inside3()
			n.inner(0, "172.20.1.5/24").Since = end.Add(-time.Second)
			return n
		}, nil, nil},
		{"no pod to compare with, and nothing returns", func() *testNode {
			n := inside3()
			n.Pods = n.Pods[:1]
			n.inner(0, "172.20.1.5/24")
			n.peer("172.20.1.5", "172.20.3.9", none, syn)
			return n
		}, []string{"PodDefaultRoute likely 172.20.1.5"}, []string{in(0) + "ip route add default via 172.20.1.1 dev eth0"}},
		{"no pod to compare with, and nothing seen", func() *testNode {
			n := inside3()
			n.Pods = n.Pods[:1]
			n.inner(0, "172.20.1.5/24")
			return n
		}, nil, nil},
		{"routed, with no route at all", func() *testNode {
			n := routed3()
			n.inner(0, "10.50.0.20/32")
			n.toPod(0, "10.50.0.20", 9)
			return n
		}, []string{"PodDefaultRoute proven 10.50.0.20"}, []string{
			in(0) + "ip route add 169.254.1.1 dev eth0 scope link", in(0) + "ip route add default via 169.254.1.1 dev eth0"}},
		{"IPv6 alone has no default route anywhere", func() *testNode {
			n := inside3()
			for i := range n.Pods {
				n.Pods[i].Addresses = append(n.Pods[i].Addresses, prefix(fmt.Sprintf("fd00:5::%d/64", i+2)))
			}
			return n
		}, nil, nil},
		{"IPv6 has no default route in one pod", func() *testNode {
			n := inside3()
			for i := range n.Pods {
				n.Pods[i].Addresses = append(n.Pods[i].Addresses, prefix(fmt.Sprintf("fd00:5::%d/64", i+2)))
				if i > 0 {
					n.Pods[i].Routes = append(n.Pods[i].Routes, model.Route{Dst: prefix("::/0"), Gateway: addr("fe80::1"), Type: "unicast"})
				}
			}
			return n
		}, []string{"PodDefaultRoute possible fd00:5::2"}, nil},

		{"no address, which the node routes", func() *testNode {
			n := routed3()
			n.inner(0, "").Given = []netip.Addr{addr("10.50.0.20")}
			n.toPod(0, "10.50.0.20", 9)
			return n
		}, []string{"PodAddress proven 10.50.0.20"}, []string{in(0) + "ip addr add 10.50.0.20/32 dev eth0",
			in(0) + "ip route add 169.254.1.1 dev eth0 scope link", in(0) + "ip route add default via 169.254.1.1 dev eth0"}},
		{"no address, and nobody asks", func() *testNode {
			n := routed3()
			n.inner(0, "").Given = []netip.Addr{addr("10.50.0.20")}
			return n
		}, []string{"PodAddress possible 10.50.0.20"}, nil},
		{"the address is elsewhere in the pod, which answers for it", func() *testNode {
			n := routed3()
			n.inner(0, "").Given = []netip.Addr{addr("10.50.0.20")}
			n.asks(0, "10.50.0.20", model.Egress, false, 4)
			n.asks(0, "10.50.0.20", model.Ingress, true, 4)
			return n
		}, nil, nil},
		{"no address, and one is looked for in vain", func() *testNode {
			n := inside3()
			n.inner(0, "")
			n.asks(0, "172.20.1.5", model.Egress, false, 9)
			n.drop("NEIGH_FAILED", "neigh_invalidate", "172.20.1.6", "172.20.1.5", 9)
			return n
		}, []string{"PodAddress likely 172.20.1.5"}, []string{in(0) + "ip addr add 172.20.1.5/24 dev eth0", in(0) + "ip route add default via 172.20.1.1 dev eth0"}},
		{"two without address, of which nothing tells whose is whose", func() *testNode {
			n := inside3()
			n.inner(0, "")
			n.inner(1, "")
			n.asks(0, "172.20.1.5", model.Egress, false, 9)
			n.asks(0, "172.20.1.6", model.Egress, false, 9)
			return n
		}, []string{"PodAddress possible", "PodAddress possible"}, nil},
		{"the address has moved to another pod", func() *testNode {
			n := routed3()
			n.inner(0, "").Given = []netip.Addr{addr("10.50.0.21")}
			return n
		}, []string{"PodAddress possible"}, nil},
		{"the pod to be like has its default route", func() *testNode {
			n := inside3()
			n.inner(1, "172.20.1.6/24")
			n.peer("172.20.1.6", "172.20.3.9", none, syn)
			n.inner(0, "").Given = []netip.Addr{addr("172.20.1.5")}
			return n
		}, []string{"PodDefaultRoute proven 172.20.1.6", "PodAddress possible 172.20.1.5"}, []string{in(0) + "ip addr add 172.20.1.5/24 dev eth0", in(0) + "ip route add default via 172.20.1.1 dev eth0"}},
		{"a second interface without address", func() *testNode {
			n := inside3()
			n.pod("192.0.2.1", "0a:58:00:00:00:09", 0)
			p := n.inner(3, "")
			p.Netns, p.Interface = 100, "net1"
			return n
		}, nil, nil},
		{"addresses are kept from all", func() *testNode {
			n := inside3()
			for i := range n.Pods {
				n.inner(i, "")
			}
			return n
		}, nil, nil},

		{"too short a prefix", func() *testNode {
			n := inside3()
			n.inner(0, "172.20.1.5/16", "default via 172.20.1.1")
			n.asks(0, "172.20.3.9", model.Ingress, false, 5)
			n.drop("NEIGH_FAILED", "neigh_invalidate", "172.20.1.5", "172.20.3.9", 9)
			return n
		}, []string{"PodPrefix proven 172.20.1.5 172.20.3.9"}, []string{in(0) + "ip addr add 172.20.1.5/24 dev eth0", in(0) + "ip addr del 172.20.1.5/16 dev eth0"}},
		{"too short a prefix, and somebody answers for all", func() *testNode {
			n := inside3()
			n.inner(0, "172.20.1.5/16", "default via 172.20.1.1")
			n.asks(0, "172.20.3.9", model.Ingress, false, 5)
			n.asks(0, "172.20.3.9", model.Egress, true, 5)
			return n
		}, nil, nil},
		{"too short a prefix without a route to it", func() *testNode {
			n := inside3()
			n.inner(0, "172.20.1.5/16", "noprefix", "172.20.1.0/24", "default via 172.20.1.1")
			return n
		}, nil, nil},
		{"too long a prefix, which takes the gateway away", func() *testNode {
			n := inside3()
			n.inner(0, "172.20.1.5/32")
			n.peer("172.20.1.5", "172.20.3.9", none, syn)
			return n
		}, []string{"PodPrefix possible 172.20.1.5"}, []string{in(0) + "ip addr add 172.20.1.5/24 dev eth0", in(0) + "ip addr del 172.20.1.5/32 dev eth0",
			in(0) + "ip route add default via 172.20.1.1 dev eth0"}},
		{"a long prefix and a route to the whole network", func() *testNode {
			n := inside3()
			n.inner(0, "172.20.1.5/32", "172.20.1.0/24", "default via 172.20.1.1")
			return n
		}, nil, nil},
		{"too long a prefix, where all ask the gateway for their neighbours", func() *testNode {
			n := inside3()
			for i, a := range []string{"172.20.1.5/32", "172.20.1.6/24", "172.20.1.7/24"} {
				n.inner(i, a, "noprefix", "172.20.1.1", "172.20.1.0/24 via 172.20.1.1", "default via 172.20.1.1")
			}
			return n
		}, nil, nil},
		{"one against one, and the bridge decides", func() *testNode {
			n := inside3()
			n.Pods = n.Pods[:2]
			n.inner(0, "172.20.1.5/16", "default via 172.20.1.1")
			return n
		}, []string{"PodPrefix possible 172.20.1.5"}, nil},
		{"one against one, without a bridge's address", func() *testNode {
			n := inside3()
			n.Pods = n.Pods[:2]
			n.Links[1].Addresses = nil
			n.inner(0, "172.20.1.5/16", "default via 172.20.1.1")
			return n
		}, []string{"BridgeAddress possible 172.20.1.5 172.20.1.6"}, nil},

		{"two of three wrong, and the bridge decides", func() *testNode {
			n := inside3()
			n.inner(0, "172.20.1.5/16", "default via 172.20.1.1")
			n.inner(1, "172.20.1.6/16", "default via 172.20.1.1")
			return n
		}, []string{"PodPrefix possible 172.20.1.5", "PodPrefix possible 172.20.1.6"}, nil},

		{"one MAC on one bridge", func() *testNode {
			n := inside3()
			n.Pods[1].MAC = n.Pods[0].MAC
			n.Traffic.MACs = append(n.Traffic.MACs, model.MACPair{Addr: addr("172.20.1.5"), IfIndex: n.Pods[1].LinkIndex,
				Direction: model.Egress, Side: model.AsDestination, Dst: n.Pods[0].MAC, Packets: 9})
			n.drop("IP_INADDRERRORS", "ip_error", "172.20.1.7", "172.20.1.5", 9).Netns = n.Pods[1].Netns
			return n
		}, []string{"DuplicateMAC proven 172.20.1.5 172.20.1.6"}, []string{in(1) + "sysctl -w net.ipv4.conf.eth0.arp_notify=1",
			in(1) + "ip link set dev eth0 address 0a:58:00:00:00:06"}},
		{"one MAC on one bridge, and nothing seen", func() *testNode {
			n := inside3()
			n.Pods[1].MAC = n.Pods[0].MAC
			return n
		}, []string{"DuplicateMAC likely 172.20.1.5 172.20.1.6"}, nil},
		{"one MAC, in two VLANs", func() *testNode {
			n := inside3()
			n.Pods[1].MAC = n.Pods[0].MAC
			for i := range 2 {
				n.FDB = append(n.FDB, model.FDBEntry{MAC: n.Pods[0].MAC, IfIndex: n.Pods[i].LinkIndex, Bridge: 3, VLAN: 10 + i})
			}
			return n
		}, nil, nil},
		{"one MAC behind links of their own", func() *testNode {
			n := routed3()
			n.Pods[1].MAC = n.Pods[0].MAC
			return n
		}, nil, nil},
		{"one MAC, and a pinned entry has the other's own", func() *testNode {
			n := inside3()
			n.Pods[0].MAC = n.Pods[1].MAC
			n.Neighbors = append(n.Neighbors, model.Neighbor{Addr: addr("172.20.1.5"), MAC: mac("0a:58:00:00:00:77"), IfIndex: 3, State: "PERMANENT"})
			return n
		}, []string{"DuplicateMAC likely 172.20.1.5 172.20.1.6"}, []string{in(0) + "sysctl -w net.ipv4.conf.eth0.arp_notify=1",
			in(0) + "ip link set dev eth0 address 0a:58:00:00:00:77"}},
	}
	for _, tt := range tests {
		t.Run(tt.name, func(t *testing.T) {
			n := tt.node()
			var got []string
			list := agreed(t, n)
			for _, f := range list {
				got = append(got, brief(f))
			}
			if strings.Join(got, "\n") != strings.Join(tt.want, "\n") {
				t.Errorf("got %q, want %q", got, tt.want)
			}
			if last := len(list) - 1; tt.fix != nil && last >= 0 && strings.Join(list[last].Fix, "\n") != strings.Join(tt.fix, "\n") {
				t.Errorf("fix %q, want %q", list[last].Fix, tt.fix)
			}
		})
	}
}

// TestDuplicateDetected: an IPv6 address that the kernel does not use is no stale
// neighbour.
func TestDuplicateDetected(t *testing.T) {
	for _, failed := range []bool{true, false} {
		n := only6()
		p := &n.Pods[0]
		pod := node.FirstIn(p, true).Addr()
		n.neighbor(pod.String(), "00:00:00:00:00:00", n.link(p.LinkIndex).Master, "FAILED")
		if failed {
			p.Duplicates = []netip.Addr{pod}
			n.drop("NEIGH_FAILED", "neigh_invalidate", "fd00:99::1", pod.String(), 5)
			n.drop("NOT_SPECIFIED", "icmpv6_rcv", "fd00:99::1", "ff02::1:ff00:2", 5).Netns = p.Netns
		}
		found := agreed(t, n)
		if failed != (len(found) == 1 && found[0].Code == "PodAddress" && found[0].Severity == model.Critical) || !failed && len(found) > 0 {
			t.Errorf("failed %v: %+v", failed, found)
		}
	}
}
