package diagnose

import (
	"net/netip"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/lasthop/lasthop/probe/model"
)

// routed is a node that has a route and a link for each pod.
func routed() *testNode {
	n := newNode("ens5", "10.50.0.4", "10.50.0.0/16", "10.50.0.1")
	n.pod("10.50.0.20", "0a:58:00:00:00:20", 0)
	n.pod("10.50.0.21", "0a:58:00:00:00:21", 0)
	for i := range n.Pods {
		n.Routes = append(n.Routes, model.Route{Table: 254, Dst: n.Pods[i].Addresses[0], IfIndex: n.Pods[i].LinkIndex, Type: "unicast"})
		n.Pods[i].Gateways = []model.Neighbor{{Addr: addr("169.254.1.1")}}
	}
	return n.live()
}

// live brings all links and pods up, since before the window.
func (n *testNode) live() *testNode {
	for i := range n.Links {
		n.Links[i].Up, n.Links[i].Carrier = true, true
	}
	for i := range n.Pods {
		n.Pods[i].Up, n.Pods[i].Since = true, start
		if n.Pods[i].Routes == nil {
			n.Pods[i].Routes = []model.Route{{Table: 254, Dst: prefix("0.0.0.0/0"), Type: "unicast"}}
		}
	}
	return n
}

func (n *testNode) sysctl(name, value string) {
	n.Sysctls = append(n.Sysctls, model.Sysctl{Name: name, Value: value})
}

// dropOn is a drop on a link of the node.
func (n *testNode) dropOn(link string, reason model.Reason, location, src, dst string, packets uint64) *model.Drop {
	d := n.drop(reason, location, src, dst, packets)
	d.Link = link
	for _, l := range n.Links {
		if l.Name == link {
			d.IfIndex = l.Index
		}
	}
	return d
}

func (n *testNode) unroute(dst string) {
	n.Routes = slices.DeleteFunc(n.Routes, func(r model.Route) bool { return r.Dst == prefix(dst) })
}

func (n *testNode) route(r model.Route) {
	if r.Table == 0 {
		r.Table = 254
	}
	if r.Type == "" {
		r.Type = "unicast"
	}
	n.Routes = append(n.Routes, r)
}

// passes are packets of an address at a link, with so many different TTLs.
func (n *testNode) passes(a string, ifindex int, d model.Direction, s model.Side, packets uint64, ttls int) {
	n.Traffic.Hops = append(n.Traffic.Hops, model.HopCount{Addr: addr(a), IfIndex: ifindex, Direction: d, Side: s, Packets: packets,
		TTLs: 1<<ttls - 1})
}

// plain is a node of the CNI bridge plugin with a route to another's pods.
func plain() *testNode {
	n := kubenet()
	n.Node.Plugin = "bridge"
	n.route(model.Route{Dst: prefix("0.0.0.0/0"), Gateway: addr("10.50.0.1"), IfIndex: 2})
	n.route(model.Route{Dst: prefix("172.20.2.0/24"), Gateway: addr("10.50.0.5"), IfIndex: 2})
	return n
}

// clusterNode adds another node and its pods' range.
func (n *testNode) clusterNode(a, cidr string) {
	n.Cluster.Nodes = append(n.Cluster.Nodes, model.ClusterNode{Name: "node-" + a, Addresses: []netip.Addr{addr(a)},
		PodCIDRs: []netip.Prefix{prefix(cidr)}})
}

// fixture is a node, and what is found on it.
type fixture struct {
	name string
	node func() *testNode
	want []string
}

func check(t *testing.T, list []fixture) {
	for _, tt := range list {
		t.Run(tt.name, func(t *testing.T) { verdicts(t, tt.node(), tt.want) })
	}
}

func TestNodeRoutes(t *testing.T) {
	check(t, []fixture{
		{"answers come by the route, and by the default one", func() *testNode {
			n := plain()
			n.answered("172.20.1.5", "172.20.2.9")
			n.answered("172.20.1.5", "172.20.3.9")
			return n
		}, nil},
		{"a range without a route is silent", func() *testNode {
			n := plain()
			n.clusterNode("10.50.0.6", "172.20.3.0/24")
			n.answered("172.20.1.5", "172.20.2.9")
			n.silent("172.20.1.5", "172.20.3.9")
			return n
		}, []string{"MissingNodeRoute proven 172.20.1.5 172.20.3.0/24"}},
		{"a route to all pods leads to the default gateway", func() *testNode {
			n := plain()
			n.route(model.Route{Dst: prefix("172.20.0.0/16"), Gateway: addr("10.50.0.1"), IfIndex: 2, Protocol: "static"})
			n.clusterNode("10.50.0.6", "172.20.3.0/24")
			n.answered("172.20.1.5", "172.20.2.9")
			n.silent("172.20.1.5", "172.20.3.9")
			return n
		}, []string{"MissingNodeRoute likely 172.20.1.5 172.20.3.0/24"}},
		{"and there are pods behind it that answer", func() *testNode {
			n := plain()
			n.route(model.Route{Dst: prefix("172.20.0.0/16"), Gateway: addr("10.50.0.1"), IfIndex: 2, Protocol: "static"})
			n.answered("172.20.1.5", "172.20.2.9")
			n.answered("172.20.1.5", "172.20.4.9")
			n.silent("172.20.1.5", "172.20.3.9")
			return n
		}, []string{"NoReply likely 172.20.1.5 172.20.3.9"}},
		{"whose range it is was not told", func() *testNode {
			n := plain()
			n.answered("172.20.1.5", "172.20.2.9")
			n.silent("172.20.1.5", "172.20.3.9")
			return n
		}, []string{"MissingNodeRoute likely 172.20.1.5 172.20.3.0/24"}},
		{"no node has the range", func() *testNode {
			n := plain()
			n.clusterNode("10.50.0.5", "172.20.2.0/24")
			n.answered("172.20.1.5", "172.20.2.9")
			n.silent("172.20.1.5", "172.20.3.9")
			return n
		}, []string{"MissingNodeRoute possible 172.20.1.5 172.20.3.0/24"}},
		{"the gateway leads to other nodes' pods, one node is down", func() *testNode {
			n := plain()
			n.clusterNode("10.50.0.6", "172.20.3.0/24")
			n.answered("172.20.1.5", "172.20.2.9")
			n.answered("172.20.1.5", "172.20.4.9")
			n.silent("172.20.1.5", "172.20.3.9")
			n.silent("172.20.1.5", "172.20.3.10")
			return n
		}, []string{"MissingUDR likely 172.20.1.5 172.20.3.0/24"}},
		{"the node stands behind the gateway", func() *testNode {
			n := plain()
			n.clusterNode("10.99.0.6", "172.20.3.0/24")
			n.answered("172.20.1.5", "172.20.2.9")
			n.silent("172.20.1.5", "172.20.3.9")
			n.silent("172.20.1.5", "172.20.3.10")
			return n
		}, []string{"MissingUDR likely 172.20.1.5 172.20.3.0/24"}},
		{"a gateway's errors are no pods' answers", func() *testNode {
			n := plain()
			n.clusterNode("10.50.0.6", "172.20.3.0/24")
			n.peer("172.20.1.5", "172.20.4.9", syn, model.PeerCount{Packets: 5, ICMPErrors: 5})
			n.silent("172.20.1.5", "172.20.3.9")
			return n
		}, []string{
			"MissingNodeRoute proven 172.20.1.5 172.20.3.0/24",
			"MissingNodeRoute possible 172.20.1.5 172.20.4.0/24",
		}},
		{"no other node has a route either", func() *testNode {
			n := plain()
			n.unroute("172.20.2.0/24")
			n.answered("10.50.0.4", "10.50.0.5")
			n.silent("172.20.1.5", "172.20.3.9")
			n.silent("172.20.1.5", "172.20.3.10")
			return n
		}, []string{"MissingNodeRoute likely 172.20.1.5 172.20.3.0/24"}},
		{"nor has any, and one address alone is silent", func() *testNode {
			n := plain()
			n.unroute("172.20.2.0/24")
			n.answered("10.50.0.4", "10.50.0.5")
			n.silent("172.20.1.5", "172.20.3.9")
			return n
		}, []string{"NoReply likely 172.20.1.5 172.20.3.9"}},
		{"replies to connections that stay half open", func() *testNode {
			n := plain()
			n.peer("172.20.1.5", "172.20.3.9", model.PeerCount{Packets: 4, Replies: 4}, model.PeerCount{Packets: 4, Requests: 4})
			n.halfOpen("172.20.3.9", "172.20.1.5", 1)
			return n
		}, []string{"MissingNodeRoute likely 172.20.1.5 172.20.3.0/24"}},
		{"connections that were half open when they were counted", func() *testNode {
			n := plain()
			n.peer("172.20.1.5", "172.20.3.9", model.PeerCount{Packets: 8, Replies: 8}, model.PeerCount{Packets: 12, Requests: 4, Replies: 8})
			n.halfOpen("172.20.3.9", "172.20.1.5", 1)
			return n
		}, nil},
		{"echo replies for which there is no route", func() *testNode {
			n := plain()
			n.clusterNode("10.50.0.6", "172.20.3.0/24")
			n.peer("172.20.1.5", "172.20.3.9", model.PeerCount{Packets: 5, Replies: 5}, model.PeerCount{Packets: 5, Requests: 5})
			return n
		}, []string{"MissingNodeRoute likely 172.20.1.5 172.20.3.0/24"}},
		{"echo replies to pods that the gateway may know", func() *testNode {
			n := plain()
			n.peer("172.20.1.5", "172.20.3.9", model.PeerCount{Packets: 5, Replies: 5}, model.PeerCount{Packets: 5, Requests: 5})
			return n
		}, nil},
		{"the plugin gives pods the node's address", func() *testNode {
			n := plain()
			n.clusterNode("10.50.0.6", "172.20.3.0/24")
			n.silent("10.50.0.4", "172.20.3.9")
			n.Flows = append(n.Flows, model.Flow{Proto: 6, Start: start,
				Original: model.Tuple{Src: addr("172.20.1.5"), Dst: addr("172.20.3.9")},
				Reply:    model.Tuple{Src: addr("172.20.3.9"), Dst: addr("10.50.0.4")}})
			return n
		}, []string{"MissingNodeRoute proven 172.20.1.5 172.20.3.0/24"}},
		{"the route is there: the other side is silent", func() *testNode {
			n := plain()
			n.answered("172.20.1.5", "203.0.113.9")
			n.silent("172.20.1.5", "172.20.2.9")
			return n
		}, []string{"NoReply likely 172.20.1.5 172.20.2.9"}},
		{"nor is there a default route: the kernel drops", func() *testNode {
			n := plain()
			n.unroute("0.0.0.0/0")
			n.clusterNode("10.50.0.6", "172.20.3.0/24")
			n.answered("172.20.1.5", "172.20.2.9")
			n.dropOn("br-pods", "IP_INNOROUTES", "ip_error", "172.20.1.5", "172.20.3.9", 9)
			n.dropOn("br-pods", "IP_INNOROUTES", "ip_error", "172.20.1.5", "203.0.113.9", 9)
			return n
		}, []string{"MissingDefaultRoute proven 172.20.1.5 203.0.113.9", "MissingNodeRoute proven 172.20.1.5 172.20.3.0/24"}},
		{"no route is left, and nothing tells that other nodes' pods had one", func() *testNode {
			n := plain()
			n.unroute("0.0.0.0/0")
			n.unroute("172.20.2.0/24")
			n.dropOn("br-pods", "IP_INNOROUTES", "ip_error", "172.20.1.5", "172.20.3.9", 9)
			n.dropOn("br-pods", "IP_INNOROUTES", "ip_error", "172.20.1.5", "203.0.113.9", 9)
			return n
		}, []string{"MissingDefaultRoute proven 172.20.1.5 172.20.3.9 203.0.113.9"}},
		{"addresses are alone on the link, and the next hops have routes of their own", func() *testNode {
			n := plain()
			n.Node.Plugin = "calico"
			n.unroute("10.50.0.0/16")
			n.route(model.Route{Dst: prefix("10.50.0.5/32"), IfIndex: 2})
			n.answered("172.20.1.5", "172.20.2.9")
			n.silent("172.20.1.5", "172.20.3.9")
			return n
		}, []string{"MissingNodeRoute likely 172.20.1.5 172.20.3.0/24"}},
		{"the route is there, by the other node's own MAC: the other side is silent", func() *testNode {
			n := plain()
			n.Neighbors = append(n.Neighbors, model.Neighbor{Addr: addr("10.50.0.5"), MAC: mac("0a:00:00:00:00:05"), IfIndex: 2})
			n.answered("10.50.0.4", "203.0.113.9")
			n.silent("172.20.1.5", "172.20.2.9")
			n.Traffic.MACs[1].Dst = mac("0a:00:00:00:00:05")
			return n
		}, []string{"NoReply likely 172.20.1.5 172.20.2.9"}},
		{"what left was for a MAC of nobody that routes", func() *testNode {
			n := plain()
			n.Neighbors = append(n.Neighbors, model.Neighbor{Addr: addr("10.50.0.5"), MAC: mac("0a:00:00:00:00:05"), IfIndex: 2})
			n.answered("10.50.0.4", "203.0.113.9")
			n.silent("172.20.1.5", "172.20.2.9")
			n.Traffic.MACs[1].Dst = mac("0a:00:00:00:00:66")
			return n
		}, []string{"NoReply likely 172.20.1.5 172.20.2.9"}},
		{"a cloud's route table was given: it is the cloud that routes", func() *testNode {
			n := plain()
			n.answered("172.20.1.5", "172.20.2.9")
			n.silent("172.20.1.5", "172.20.3.9")
			n.silent("172.20.1.5", "172.20.3.10")
			n.Cluster.Azure.Tables = []model.RouteTable{{File: "f"}}
			return n
		}, []string{"MissingUDR likely 172.20.1.5 172.20.3.0/24"}},
	})
}

// TestRouteKeepers are routes that a daemon keeps: the fix is a command of it.
func TestRouteKeepers(t *testing.T) {
	missing := func(n *testNode) {
		n.clusterNode("10.50.0.6", "172.20.3.0/24")
		n.answered("172.20.1.5", "172.20.2.9")
		n.silent("172.20.1.5", "172.20.3.9")
	}
	wrong := func(n *testNode) {
		n.clusterNode("10.50.0.6", "172.20.2.0/24")
		n.answered("172.20.1.5", "203.0.113.9")
		n.silent("172.20.1.5", "172.20.2.9")
	}
	discards := func(n *testNode) {
		r := &n.Routes[len(n.Routes)-1]
		r.Type, r.Gateway, r.IfIndex, r.Nexthop = "blackhole", netip.Addr{}, 0, 7
		n.dropOn("br-pods", "NOT_SPECIFIED", "ip_error", "172.20.1.5", "172.20.2.9", 9)
	}
	for _, tt := range []struct {
		protocol string
		fault    func(n *testNode)
		code     model.Code
		fix      string
	}{
		{"bird", missing, "MissingNodeRoute", "birdc show route for 172.20.3.0/24 all # "},
		{"static", missing, "MissingNodeRoute", "ip route replace 172.20.3.0/24 via 10.50.0.6 dev ens5"},
		{"bgp", wrong, "WrongNodeRoute", "vtysh -c 'show ip route 172.20.2.0/24' # FRR keeps these routes"},
		{"boot", wrong, "WrongNodeRoute", "ip route replace 172.20.2.0/24 via 10.50.0.6 dev ens5"},
		{"bird", discards, "BlackholeRoute", "birdc show route for 172.20.2.0/24 all # "},
		{"static", discards, "BlackholeRoute", "ip route del 172.20.2.0/24 nhid 7"},
	} {
		n := plain()
		n.Routes[len(n.Routes)-1].Protocol = tt.protocol
		tt.fault(n)
		found := agreed(t, n)
		if len(found) != 1 || found[0].Code != tt.code || !strings.HasPrefix(found[0].Fix[0], tt.fix) {
			t.Errorf("proto %s: %+v, want %s, fix %s", tt.protocol, found, tt.code, tt.fix)
		}
	}
}

func TestDefaultRoute(t *testing.T) {
	// without is a kubenet node whose default route is gone.
	without := func() *testNode {
		n := kubenet()
		n.unroute("0.0.0.0/0")
		n.sysctl("net.ipv4.conf.ens5.rp_filter", "1")
		return n
	}
	check(t, []fixture{
		{"what pods send finds no route, what comes for them no way back", func() *testNode {
			n := without()
			n.dropOn("br-pods", "IP_INNOROUTES", "ip_error", "172.20.1.5", "203.0.113.9", 9)
			n.dropOn("br-pods", "IP_INNOROUTES", "ip_error", "172.20.1.5", "172.20.2.9", 9)
			n.dropOn("ens5", "IP_RPFILTER", "ip_rcv_finish_core", "172.20.2.9", "172.20.1.6", 9)
			return n
		}, []string{"MissingDefaultRoute proven 172.20.1.5 172.20.1.6 172.20.2.9 203.0.113.9"}},
		{"only other nodes' pods are missed", func() *testNode {
			n := without()
			n.dropOn("br-pods", "IP_INNOROUTES", "ip_error", "172.20.1.5", "172.20.2.9", 9)
			return n
		}, []string{"MissingDefaultRoute likely 172.20.1.5 172.20.2.9"}},
		{"what is for nobody in the node's own range", func() *testNode {
			n := without()
			n.unroute("172.20.1.0/24")
			n.route(model.Route{Dst: prefix("172.20.1.5/32"), IfIndex: 3})
			n.route(model.Route{Dst: prefix("172.20.1.6/32"), IfIndex: 3})
			n.Cluster.Nodes = []model.ClusterNode{{Name: n.Node.Name, Addresses: []netip.Addr{addr("10.50.0.4")}, PodCIDRs: []netip.Prefix{prefix("172.20.1.0/24")}}}
			n.dropOn("br-pods", "IP_INNOROUTES", "ip_error", "172.20.1.5", "172.20.1.77", 9)
			return n
		}, []string{"UnexplainedDrop proven 172.20.1.5 172.20.1.77"}},
		{"IPv6 alone has none", func() *testNode {
			n := kubenet()
			n.Pods[0].Addresses = append(n.Pods[0].Addresses, prefix("fd00:20:1::5/128"))
			n.route(model.Route{Dst: prefix("fd00:20:1::5/128"), IfIndex: 3})
			n.dropOn("br-pods", "IP_INNOROUTES", "ip6_pkt_discard", "fd00:20:1::5", "2001:db8::9", 9)
			return n
		}, []string{"MissingDefaultRoute likely fd00:20:1::5 2001:db8::9/128"}},
		{"and other nodes' pods are missed too", func() *testNode {
			n := kubenet()
			n.Pods[0].Addresses = append(n.Pods[0].Addresses, prefix("fd00:20:1::5/128"))
			n.route(model.Route{Dst: prefix("fd00:20:1::5/128"), IfIndex: 3})
			n.dropOn("br-pods", "IP_INNOROUTES", "ip6_pkt_discard", "fd00:20:1::5", "fd00:20:2::9", 9)
			return n
		}, []string{"MissingDefaultRoute proven fd00:20:1::5 fd00:20:2::9/128"}},
		{"there is no IPv4 one to go by", func() *testNode {
			n := without()
			n.Pods[0].Addresses = []netip.Prefix{prefix("fd00:20:1::5/128")}
			n.route(model.Route{Dst: prefix("fd00:20:1::5/128"), IfIndex: 3})
			n.dropOn("br-pods", "IP_INNOROUTES", "ip6_pkt_discard", "fd00:20:1::5", "2001:db8::9", 9)
			return n
		}, []string{"MissingDefaultRoute proven fd00:20:1::5 2001:db8::9/128"}},
	})
}

func TestDeadCard(t *testing.T) {
	down := func() *testNode {
		n := kubenet()
		n.Routes = slices.DeleteFunc(n.Routes, func(r model.Route) bool { return r.IfIndex == 2 })
		n.Links[0].Up, n.Links[0].Carrier, n.Links[0].Role, n.Node.Uplinks = false, false, model.RoleOther, nil
		n.dropOn("br-pods", "IP_INNOROUTES", "ip_error", "172.20.1.5", "203.0.113.9", 9)
		return n
	}
	// uplink stays one by its network; other nodes' pods are missed too.
	uplink := func() *testNode {
		n := down()
		n.Node.Plugin = "kindnet"
		n.Links[0].Role, n.Node.Uplinks = model.RoleUplink, []string{"ens5"}
		n.dropOn("br-pods", "IP_INNOROUTES", "ip_error", "172.20.1.5", "172.20.3.9", 9)
		return n
	}
	tunnel := func() *testNode {
		n := plain()
		n.unroute("172.20.2.0/24")
		n.Links = append(n.Links, model.Link{Index: 7, Name: "vx0", Kind: "vxlan", Role: model.RoleTunnel, Addresses: []netip.Prefix{prefix("172.20.1.0/32")}})
		n.silent("172.20.1.5", "172.20.3.9")
		return n
	}
	unplugged := func() *testNode {
		n := silentNextHop()
		n.Links[0].Carrier = false
		return n
	}
	for _, tt := range []struct {
		node     *testNode
		code     model.Code
		why, fix string
	}{
		{down(), "MissingDefaultRoute", "ens5 is down", "ip link set dev ens5 up"},
		{uplink(), "MissingDefaultRoute", "ens5 is down", "ip link set dev ens5 up"},
		{tunnel(), "MissingNodeRoute", "The node's tunnel vx0 is down", "ip link set dev vx0 up"},
		{unplugged(), "UnansweredARP", "nic0 has no carrier", "ip -d link show dev nic0 # check what it is connected to"},
	} {
		found := agreed(t, tt.node)
		if len(found) != 1 || found[0].Code != tt.code || !strings.Contains(found[0].Why, tt.why) || slices.Concat(found[0].Fix, found[0].Next)[0] != tt.fix {
			t.Errorf("found %+v, want %s since %s", found, tt.code, tt.why)
		}
	}
}

func TestHairpin(t *testing.T) {
	check(t, []fixture{
		{"a pod drops what a service led back", func() *testNode {
			n := plain()
			n.drop("IP_LOCAL_SOURCE", "ip_rcv_finish_core", "172.20.1.5", "172.20.1.5", 9)
			n.Flows = append(n.Flows, model.Flow{Proto: 6, Start: start,
				Original: model.Tuple{Src: addr("172.20.1.5"), Dst: addr("10.0.0.10")},
				Reply:    model.Tuple{Src: addr("172.20.1.5"), Dst: addr("172.20.1.5")}})
			return n
		}, []string{"HairpinDrop proven 172.20.1.5 10.0.0.10"}},
		{"the source is translated too, and only second copies are dropped", func() *testNode {
			n := plain()
			n.Node.Netns, n.Pods[0].Netns = 1, 77
			n.FrameRules = append(n.FrameRules, model.FrameRule{Backend: model.NFT, Table: "filter", Chain: "KUBE-DEDUP", Target: model.TargetDrop,
				SrcMAC: model.MACMatch{Addr: mac("0a:00:00:00:00:03"), Set: true}, IPSrc: model.AddrMatch{Prefix: model.Host(addr(pod5))}, Counter: model.Counter{Delta: 9}})
			n.dropOn("tap10", "NETFILTER_DROP", "nft_do_chain", pod5, pod5, 9).Netns = 1
			n.Flows = append(n.Flows, model.Flow{Proto: 6, Start: start, Replied: true,
				Original: model.Tuple{Src: addr(pod5), Dst: addr("10.0.0.10")},
				Reply:    model.Tuple{Src: addr(pod5), Dst: addr("172.20.1.1")}})
			// The reply to the last one is on its way.
			n.Flows = append(n.Flows, n.Flows[len(n.Flows)-1])
			n.Flows[len(n.Flows)-1].Replied = false
			return n
		}, nil},
		{"one of two flows that lead back is not translated", func() *testNode {
			n := plain()
			n.drop("IP_LOCAL_SOURCE", "ip_rcv_finish_core", pod5, pod5, 9)
			for _, replied := range []bool{true, false} {
				f := model.Flow{Proto: 6, Start: start, Replied: replied,
					Original: model.Tuple{Src: addr(pod5), Dst: addr("10.0.0.10")}, Reply: model.Tuple{Src: addr(pod5), Dst: addr(pod5)}}
				if replied {
					f.Reply.Dst = addr("172.20.1.1")
				}
				n.Flows = append(n.Flows, f)
			}
			return n
		}, []string{"HairpinDrop proven 172.20.1.5 10.0.0.10"}},
		{"older kernels name no reason", func() *testNode {
			n := plain()
			n.drop("NOT_SPECIFIED", "ip_rcv_finish_core", "172.20.1.5", "172.20.1.5", 9)
			return n
		}, []string{"HairpinDrop likely 172.20.1.5"}},
		{"the first packets of a pod that starts", func() *testNode {
			n := plain()
			n.drop("IP_LOCAL_SOURCE", "ip_rcv_finish_core", "172.20.1.5", "172.20.1.5", 2)
			return n
		}, nil},
		{"a pod asks a closed port of its own", func() *testNode {
			n := plain()
			n.Node.Netns, n.Pods[0].Netns = 1, 77
			d := n.drop("NO_SOCKET", "tcp_v4_rcv", pod5, pod5, 9)
			d.Netns, d.IfIndex = 77, loopback
			return n
		}, []string{"NoListener proven 172.20.1.5 172.20.1.5"}},
		{"a pod's socket cannot keep up with the pod itself", func() *testNode {
			n := plain()
			n.drop("SOCKET_RCVBUFF", "udp_queue_rcv_one_skb", pod5, pod5, 900)
			return n
		}, []string{"ReceiveOverflow proven 172.20.1.5 172.20.1.5"}},
		{"a pod's own rules drop what it sends itself", func() *testNode {
			n := plain()
			n.Node.Netns, n.Pods[0].Netns = 1, 77
			d := n.drop("NETFILTER_DROP", "nft_do_chain", pod5, pod5, 9)
			d.Netns, d.IfIndex = 77, loopback
			return n
		}, []string{"PolicyDrop likely 172.20.1.5 172.20.1.5"}},
		{"the node's rules drop it at the pod's port", func() *testNode {
			n := plain()
			n.Node.Netns, n.Pods[0].Netns = 1, 77
			n.dropOn("tap10", "NETFILTER_DROP", "nft_do_chain", pod5, pod5, 9).Netns = 1
			return n
		}, []string{"HairpinDrop likely 172.20.1.5"}},
		{"from another pod it is no hairpin", func() *testNode {
			n := plain()
			n.drop("IP_LOCAL_SOURCE", "ip_rcv_finish_core", "172.20.1.5", "172.20.1.6", 9)
			return n
		}, []string{"UnexplainedDrop proven 172.20.1.6 172.20.1.5"}},
	})
}

func TestRouting(t *testing.T) {
	tests := []struct {
		name string
		node func() *testNode
		want []string
	}{
		{"routed pods, all well", func() *testNode {
			n := routed()
			n.sysctl("net.ipv4.ip_forward", "1")
			n.sysctl("net.ipv4.conf.tap10.forwarding", "1")
			n.answered("10.50.0.20", "203.0.113.9")
			return n
		}, nil},
		{"the node does not forward", func() *testNode {
			n := routed()
			n.sysctl("net.ipv4.ip_forward", "0")
			n.sysctl("net.ipv4.conf.tap10.forwarding", "0")
			n.sysctl("net.ipv4.conf.tap11.forwarding", "0")
			n.sysctl("net.ipv4.conf.ens5.forwarding", "0")
			n.dropOn("tap10", "IP_INADDRERRORS", "ip_error", "10.50.0.20", "203.0.113.9", 7)
			n.dropOn("ens5", "IP_INADDRERRORS", "ip_error", "203.0.113.8", "10.50.0.21", 7)
			return n
		}, []string{"ForwardingDisabled proven 10.50.0.20 10.50.0.21 203.0.113.8 203.0.113.9"}},
		{"a link that does not forward answers for no gateway", func() *testNode {
			n := routed()
			n.sysctl("net.ipv4.conf.tap10.forwarding", "0")
			n.drop("NEIGH_FAILED", "neigh_invalidate", "10.50.0.20", "203.0.113.9", 7)
			return n
		}, []string{"ForwardingDisabled proven 10.50.0.20 203.0.113.9"}},
		{"one link does not, and the kernel tells no reasons", func() *testNode {
			n := routed()
			n.sysctl("net.ipv4.ip_forward", "1")
			n.sysctl("net.ipv4.conf.tap10.forwarding", "0")
			n.dropOn("tap10", "", "ip_error", "10.50.0.20", "203.0.113.9", 7)
			return n
		}, []string{"ForwardingDisabled proven 10.50.0.20 203.0.113.9"}},
		{"it does not, and nobody sends", func() *testNode {
			n := routed()
			n.sysctl("net.ipv4.ip_forward", "0")
			n.sysctl("net.ipv4.conf.tap10.forwarding", "0")
			n.sysctl("net.ipv4.conf.tap11.forwarding", "0")
			return n
		}, []string{"ForwardingDisabled possible 10.50.0.20 10.50.0.21"}},
		{"it does not, and a pod asks for its gateway", func() *testNode {
			n := routed()
			n.sysctl("net.ipv4.ip_forward", "0")
			n.sysctl("net.ipv4.conf.tap10.forwarding", "0")
			n.Pods[0].Gateways[0].State = "INCOMPLETE"
			n.arp("169.254.1.1", n.Pods[0].LinkIndex, model.Ingress, false, "0a:58:00:00:00:20", 5)
			return n
		}, []string{"ForwardingDisabled likely 10.50.0.20"}},
		{"it does not, and of two pods that ask one has given up", func() *testNode {
			n := routed()
			n.sysctl("net.ipv4.conf.tap10.forwarding", "0")
			n.sysctl("net.ipv4.conf.tap11.forwarding", "0")
			for i := range n.Pods {
				n.Pods[i].Gateways[0].State = "INCOMPLETE"
			}
			n.drop("NEIGH_FAILED", "neigh_invalidate", "10.50.0.20", "203.0.113.9", 7)
			return n
		}, []string{"ForwardingDisabled proven 10.50.0.20 10.50.0.21 203.0.113.9"}},
		{"a program forwards instead", func() *testNode {
			n := routed()
			n.sysctl("net.ipv4.conf.tap10.forwarding", "0")
			n.answered("10.50.0.20", "203.0.113.9")
			return n
		}, nil},
		{"pods on a bridge with the network's own gateway need no forwarding", func() *testNode {
			n := bridged().live()
			n.sysctl("net.ipv4.ip_forward", "0")
			n.sysctl("net.ipv4.conf.azure0.forwarding", "0")
			for i := range n.Pods {
				n.Pods[i].Gateways = []model.Neighbor{{Addr: addr("10.60.0.1")}}
			}
			return n
		}, nil},
		{"a pod's route is gone, and what is for it comes and goes", func() *testNode {
			n := routed()
			n.unroute("10.50.0.20/32")
			n.passes("10.50.0.20", 2, model.Ingress, model.AsDestination, 62, 31)
			n.passes("10.50.0.20", 2, model.Egress, model.AsDestination, 62, 31)
			n.dropOn("tap10", "IP_RPFILTER", "ip_rcv_finish_core", "10.50.0.20", "203.0.113.9", 9)
			n.dropOn("ens5", "IP_INHDR", "ip_forward", "203.0.113.9", "10.50.0.20", 4)
			n.dropOn("ens5", "IP_LOCAL_SOURCE", "ip_rcv_finish_core", "10.50.0.4", "10.50.0.20", 6)
			n.drop("NEIGH_FAILED", "neigh_invalidate", "10.50.0.20", "203.0.113.9", 9)
			// As they do that another pod sends there.
			n.passes("10.50.0.21", 2, model.Ingress, model.AsSource, 62, 31)
			n.passes("10.50.0.21", 2, model.Egress, model.AsSource, 62, 31)
			return n
		}, []string{"MissingPodRoute proven 10.50.0.20"}},
		{"a pod's route is gone, and the node's own packets return to it", func() *testNode {
			n := routed()
			n.unroute("10.50.0.20/32")
			n.passes("10.50.0.20", 2, model.Egress, model.AsDestination, 62, 31)
			n.dropOn("ens5", "IP_LOCAL_SOURCE", "ip_rcv_finish_core", "10.50.0.4", "10.50.0.20", 9)
			n.dropOn("ens5", "IP_LOCAL_SOURCE", "ip_rcv_finish_core", "10.50.0.9", "10.50.0.20", 9)
			return n
		}, []string{"MissingPodRoute proven 10.50.0.20", "UnexplainedDrop proven 10.50.0.20 10.50.0.9"}},
		{"a pod's route is gone, and nobody sends", func() *testNode {
			n := routed()
			n.unroute("10.50.0.20/32")
			return n
		}, []string{"MissingPodRoute possible 10.50.0.20"}},
		{"a pod that comes has no route yet; a link that is down took its route along", func() *testNode {
			n := routed()
			n.unroute("10.50.0.20/32")
			n.unroute("10.50.0.21/32")
			n.Pods[0].Since = start.Add(time.Second)
			n.Links[2].Up = false
			return n
		}, []string{"PodLinkDown proven 10.50.0.21"}},
		{"routes were not read whole", func() *testNode {
			n := routed()
			n.unroute("10.50.0.20/32")
			n.lose(model.SourceRoutes, model.Partial)
			return n
		}, nil},
		{"a plugin's router delivers", func() *testNode {
			n := routed()
			n.Links = append(n.Links, model.Link{Index: 30, Name: "router0", Kind: "veth", Role: model.RoleRouter, Up: true})
			n.unroute("10.50.0.20/32")
			n.route(model.Route{Dst: prefix("10.50.0.0/24"), IfIndex: 30})
			return n
		}, nil},
		{"the route leads to another pod's link", func() *testNode {
			n := routed()
			n.unroute("10.50.0.20/32")
			n.route(model.Route{Dst: prefix("10.50.0.20/32"), IfIndex: 11})
			n.dropOn("ens5", "NEIGH_FAILED", "neigh_invalidate", "203.0.113.9", "10.50.0.20", 5)
			return n
		}, []string{"MissingPodRoute proven 10.50.0.20"}},
		{"without its route a pod falls to the block's blackhole", func() *testNode {
			n := routed()
			n.route(model.Route{Dst: prefix("10.50.0.0/26"), Type: "blackhole"})
			n.unroute("10.50.0.20/32")
			n.dropOn("ens5", "NOT_SPECIFIED", "ip_error", "203.0.113.9", "10.50.0.20", 5)
			return n
		}, []string{"MissingPodRoute proven 10.50.0.20"}},
		{"a rule by source leads other pods' packets out", func() *testNode {
			n := routed()
			n.route(model.Route{Table: 100, Dst: prefix("0.0.0.0/0"), Gateway: addr("10.50.0.1"), IfIndex: 2})
			n.Rules = []model.RoutingRule{
				{Family: 4, Table: 255, Action: "lookup"},
				{Family: 4, Priority: 110, From: prefix("10.50.0.21/32"), Table: 100, Action: "lookup"},
				{Family: 4, Priority: 32766, Table: 254, Action: "lookup"},
			}
			n.passes("10.50.0.20", 2, model.Egress, model.AsDestination, 9, 1)
			return n
		}, []string{"MissingPodRoute proven 10.50.0.20"}},
		{"a rule by a mark leads to a table that discards", func() *testNode {
			n := routed()
			n.route(model.Route{Table: 207, Dst: prefix("0.0.0.0/0"), Type: "blackhole"})
			n.Rules = []model.RoutingRule{
				{Family: 4, Table: 255, Action: "lookup"},
				{Family: 4, Priority: 90, Mark: 7, Mask: 0xffffffff, Table: 207, Action: "lookup"},
				{Family: 4, Priority: 32766, Table: 254, Action: "lookup"},
			}
			n.dropOn("ens5", "NOT_SPECIFIED", "ip_error", "203.0.113.9", "10.50.0.20", 9)
			return n
		}, []string{"BlackholeRoute proven 10.50.0.20 203.0.113.9"}},
		{"the bridge's route is gone", func() *testNode {
			n := kubenet().live()
			n.unroute("172.20.1.0/24")
			n.passes("172.20.1.5", 2, model.Ingress, model.AsDestination, 9, 3)
			n.passes("172.20.1.5", 2, model.Egress, model.AsDestination, 9, 3)
			return n
		}, []string{"MissingPodRoute proven 172.20.1.5 172.20.1.6"}},
		{"the network sends a pod's packets back until they end", func() *testNode {
			n := kubenet().live()
			n.passes("172.20.1.5", 2, model.Egress, model.AsSource, 64, 32)
			n.passes("172.20.1.5", 2, model.Ingress, model.AsSource, 62, 31)
			n.peer("172.20.1.5", "10.99.0.7", syn, syn)
			n.dropOn("ens5", "IP_INHDR", "ip_forward", "172.20.1.5", "10.99.0.7", 5)
			return n
		}, []string{"RoutingLoop proven 172.20.1.5 10.99.0.7"}},
		{"a link that is down took its route along", func() *testNode {
			n := routed()
			n.Links[1].Up = false
			n.unroute("10.50.0.20/32")
			n.passes("10.50.0.20", 2, model.Ingress, model.AsDestination, 62, 31)
			n.passes("10.50.0.20", 2, model.Egress, model.AsDestination, 62, 31)
			return n
		}, []string{"PodLinkDown proven 10.50.0.20"}},
		{"and what another pod sends to it loops, while its answers to a third die here", func() *testNode {
			n := routed()
			n.Links[1].Up = false
			n.unroute("10.50.0.20/32")
			n.passes("10.50.0.21", 2, model.Egress, model.AsSource, 64, 32)
			n.passes("10.50.0.21", 2, model.Ingress, model.AsSource, 62, 31)
			n.peer("10.50.0.21", "10.99.0.7", none, syn)
			n.halfOpen("10.99.0.7", "10.50.0.21", 2)
			return n
		}, []string{"PodLinkDown proven 10.50.0.20"}},
		{"the filter ends the loop when they come back", func() *testNode {
			n := kubenet().live()
			n.passes("172.20.1.5", 2, model.Egress, model.AsSource, 9, 1)
			n.ttls("172.20.1.5", 2, model.Ingress, model.AsSource, 9, 62)
			n.peer("172.20.1.5", "10.99.0.7", syn, syn)
			n.dropOn("ens5", "IP_RPFILTER", "ip_rcv_finish_core", "172.20.1.5", "10.99.0.7", 9)
			return n
		}, []string{"RoutingLoop likely 172.20.1.5 10.99.0.7"}},
		{"answers come with many TTLs, a tracer sends with many", func() *testNode {
			n := kubenet().live()
			n.passes("172.20.1.5", 2, model.Egress, model.AsSource, 90, 30)
			n.passes("172.20.1.5", 2, model.Ingress, model.AsDestination, 90, 20)
			return n
		}, nil},
		{"a switch floods: out of the uplink again, with the same TTL", func() *testNode {
			n := bridged().live()
			n.passes("10.60.0.20", 2, model.Ingress, model.AsDestination, 90, 3)
			n.passes("10.60.0.20", 2, model.Egress, model.AsDestination, 4, 1)
			return n
		}, nil},
		{"a blackhole covers another node's pods", func() *testNode {
			n := kubenet().live()
			n.route(model.Route{Dst: prefix("172.20.3.0/24"), Type: "blackhole"})
			n.dropOn("br-pods", "NOT_SPECIFIED", "ip_error", "172.20.1.5", "172.20.3.9", 8)
			n.dropOn("br-pods", "NOT_SPECIFIED", "ip_error", "172.20.1.6", "172.20.3.9", 8)
			return n
		}, []string{"BlackholeRoute proven 172.20.1.5 172.20.1.6 172.20.3.9"}},
		{"packets for a pod that went go out and come back", func() *testNode {
			n := routed().live()
			n.PastPods = []model.Pod{{Addresses: []netip.Prefix{prefix("10.50.0.77/32")}}}
			n.passes("10.50.0.20", 2, model.Egress, model.AsSource, 90, 30)
			n.passes("10.50.0.20", 2, model.Ingress, model.AsSource, 90, 30)
			n.peer("10.50.0.20", "10.50.0.77", model.PeerCount{Packets: 90, Requests: 90}, model.PeerCount{Packets: 90, Requests: 90})
			return n
		}, nil},
		{"they did for a moment: nobody saw that pod", func() *testNode {
			n := routed().live()
			n.passes("10.50.0.20", 2, model.Egress, model.AsSource, 90, 30)
			n.passes("10.50.0.20", 2, model.Ingress, model.AsSource, 90, 30)
			n.peer("10.50.0.20", "10.50.0.77", model.PeerCount{Packets: 90, Requests: 90}, model.PeerCount{Packets: 90, Requests: 90})
			n.Traffic.Peers[0].LastOut = start.Add(2 * time.Second)
			return n
		}, nil},
		{"a rule says that what one pod sends is unreachable", func() *testNode {
			n := routed().live()
			n.Rules = []model.RoutingRule{
				{Family: 4, Priority: 50, From: prefix("10.50.0.21/32"), Action: "unreachable"},
				{Family: 4, Priority: 32766, Table: 254, Action: "lookup"},
			}
			n.dropOn(n.Pods[1].Link, "IP_INNOROUTES", "ip_error", "10.50.0.21", "203.0.113.9", 9)
			return n
		}, []string{"BlackholeRoute proven 10.50.0.21 203.0.113.9"}},
		{"packets for a service's dead backend go out and come back", func() *testNode {
			n := kubenet()
			n.route(model.Route{Dst: prefix("0.0.0.0/0"), Gateway: addr("10.50.0.1"), IfIndex: 2})
			n.unroute("172.20.1.0/24")
			n.route(model.Route{Dst: prefix("172.20.1.5/32"), IfIndex: n.Pods[0].LinkIndex})
			n.route(model.Route{Dst: prefix("172.20.1.6/32"), IfIndex: n.Pods[1].LinkIndex})
			n.translated("172.20.1.5", "10.0.0.10", "172.20.1.77", "172.20.1.5", false)
			n.translated("172.20.1.5", "10.0.0.10", "172.20.1.77", "172.20.1.5", false)
			n.passes("172.20.1.5", 2, model.Egress, model.AsSource, 90, 30)
			n.passes("172.20.1.5", 2, model.Ingress, model.AsSource, 90, 30)
			n.peer("172.20.1.5", "172.20.1.77", model.PeerCount{Packets: 90, Requests: 90}, model.PeerCount{Packets: 90})
			return n
		}, []string{"DeadBackend likely 172.20.1.5 10.0.0.10 172.20.1.77"}},
		{"a rule prohibits what one pod sends: it is that pod's, whoever was to get it", func() *testNode {
			n := routed().live()
			n.Rules = []model.RoutingRule{
				{Family: 4, Priority: 50, From: prefix("10.50.0.21/32"), Action: "prohibit"},
				{Family: 4, Priority: 32766, Table: 254, Action: "lookup"},
			}
			n.dropOn(n.Pods[1].Link, "NOT_SPECIFIED", "ip_error", "10.50.0.21", "10.50.0.20", 9)
			n.dropOn(n.Pods[1].Link, "NOT_SPECIFIED", "ip_error", "10.50.0.21", "203.0.113.9", 9)
			return n
		}, []string{"BlackholeRoute proven 10.50.0.21 10.50.0.20 203.0.113.9"}},
		{"a rule prohibits, and the kernel tells no reasons", func() *testNode {
			n := kubenet().live()
			n.Rules = []model.RoutingRule{
				{Family: 4, Priority: 50, To: prefix("172.20.3.0/24"), Action: "prohibit"},
				{Family: 4, Priority: 32766, Table: 254, Action: "lookup"},
			}
			n.dropOn("br-pods", "", "ip_error", "172.20.1.5", "172.20.3.9", 8)
			return n
		}, []string{"BlackholeRoute proven 172.20.1.5 172.20.3.9"}},
		{"a blackhole in front of a pod's route", func() *testNode {
			n := kubenet().live()
			n.route(model.Route{Dst: prefix("172.20.1.5/32"), Type: "unreachable"})
			n.dropOn("ens5", "NOT_SPECIFIED", "ip_error", "203.0.113.9", "172.20.1.5", 8)
			return n
		}, []string{"BlackholeRoute proven 172.20.1.5 203.0.113.9"}},
		{"the same, and nobody sends", func() *testNode {
			n := routed()
			n.unroute("10.50.0.20/32")
			n.route(model.Route{Dst: prefix("10.50.0.20/32"), Type: "unreachable"})
			return n
		}, []string{"BlackholeRoute possible 10.50.0.20"}},
		{"a block is reserved for pods that are not there", func() *testNode {
			n := kubenet().live()
			n.route(model.Route{Dst: prefix("172.20.1.128/26"), Type: "blackhole"})
			n.dropOn("br-pods", "NOT_SPECIFIED", "ip_error", "172.20.1.5", "172.20.1.130", 8)
			return n
		}, []string{"BlackholeRoute likely 172.20.1.5 172.20.1.130"}},
		{"a blackhole, and who is behind it sends too", func() *testNode {
			n := kubenet().live()
			n.route(model.Route{Dst: prefix("203.0.113.0/25"), Type: "blackhole"})
			n.sysctl("net.ipv4.conf.all.rp_filter", "2")
			n.dropOn("br-pods", "NOT_SPECIFIED", "ip_error", "172.20.1.5", "203.0.113.9", 8)
			n.dropOn("ens5", "IP_RPFILTER", "ip_rcv_finish_core", "203.0.113.9", "172.20.1.5", 8)
			n.dropOn("ens5", "IP_RPFILTER", "ip_rcv_finish_core", "203.0.113.77", "172.20.1.6", 3)
			return n
		}, []string{"BlackholeRoute proven 172.20.1.5 172.20.1.6 203.0.113.9 203.0.113.77"}},
		{"a rule does so, and the kernel tells no reasons", func() *testNode {
			n := kubenet().live()
			n.Rules = []model.RoutingRule{
				{Family: 4, Priority: 50, To: prefix("203.0.113.0/25"), Action: "unreachable"},
				{Family: 4, Priority: 32766, Table: 254, Action: "lookup"},
			}
			n.dropOn("br-pods", "", "ip_error", "172.20.1.5", "203.0.113.9", 8)
			n.dropOn("ens5", "", "ip_rcv_finish_core", "203.0.113.9", "172.20.1.5", 8)
			return n
		}, []string{"BlackholeRoute proven 172.20.1.5 203.0.113.9"}},
		{"a range is banned, and only sends", func() *testNode {
			n := kubenet().live()
			n.route(model.Route{Dst: prefix("203.0.113.0/25"), Type: "blackhole"})
			n.sysctl("net.ipv4.conf.all.rp_filter", "1")
			n.dropOn("ens5", "IP_RPFILTER", "ip_rcv_finish_core", "203.0.113.9", "172.20.1.5", 8)
			return n
		}, []string{"ReversePathFilter proven 172.20.1.5 203.0.113.9"}},
		{"a blackhole for a pod that sends", func() *testNode {
			n := routed()
			n.unroute("10.50.0.20/32")
			n.route(model.Route{Dst: prefix("10.50.0.20/32"), Type: "unreachable"})
			n.sysctl("net.ipv4.conf.all.rp_filter", "1")
			n.dropOn(n.Pods[0].Link, "IP_RPFILTER", "ip_rcv_finish_core", "10.50.0.20", "203.0.113.9", 8)
			return n
		}, []string{"BlackholeRoute proven 10.50.0.20"}},
		{"a blackhole for a pod behind a bridge that sends", func() *testNode {
			n := kubenet().live()
			n.route(model.Route{Dst: prefix("172.20.1.5/32"), Type: "unreachable"})
			n.sysctl("net.ipv4.conf.all.rp_filter", "2")
			n.toPod(0, "172.20.1.5", 3)
			n.dropOn("br-pods", "IP_RPFILTER", "ip_rcv_finish_core", "172.20.1.5", "203.0.113.9", 8)
			return n
		}, []string{"BlackholeRoute proven 172.20.1.5"}},
		{"the return path is another link", func() *testNode {
			n := kubenet().live()
			n.route(model.Route{Dst: prefix("172.20.3.0/24"), IfIndex: 3})
			n.sysctl("net.ipv4.conf.all.rp_filter", "1")
			n.sysctl("net.ipv4.conf.ens5.rp_filter", "0")
			n.dropOn("ens5", "IP_RPFILTER", "ip_rcv_finish_core", "172.20.3.9", "172.20.1.5", 8)
			return n
		}, []string{"ReversePathFilter proven 172.20.1.5 172.20.3.9"}},
		{"the filter dropped, and is off now", func() *testNode {
			n := kubenet().live()
			n.sysctl("net.ipv4.conf.all.rp_filter", "0")
			n.dropOn("ens5", "IP_RPFILTER", "ip_rcv_finish_core", "172.20.3.9", "172.20.1.5", 8)
			return n
		}, []string{"ReversePathFilter likely 172.20.1.5 172.20.3.9"}},
		{"too big again and again", func() *testNode {
			n := kubenet().live()
			n.Links[0].MTU, n.Links[1].MTU = 1280, 1500
			d := n.dropOn("br-pods", "PKT_TOO_BIG", "ip_forward", "172.20.1.5", "203.0.113.9", 8)
			d.First, d.Last = start, start.Add(5*time.Second)
			n.Links[1].Addresses = []netip.Prefix{prefix("172.20.1.1/24")}
			n.drop("NETFILTER_DROP", "nft_do_chain", "172.20.1.1", "172.20.1.5", 8).Proto = 1
			// Another pod learns the size, as it should, between two polls.
			d = n.dropOn("br-pods", "PKT_TOO_BIG", "ip_forward", "172.20.1.6", "203.0.113.9", 8)
			d.First, d.Last = start, start.Add(1001*time.Millisecond)
			return n
		}, []string{"PathMTU proven 172.20.1.5 203.0.113.9"}},
		{"too big for a moment, and a rule drops the errors", func() *testNode {
			n := kubenet().live()
			n.Links[0].MTU, n.Links[1].MTU = 1280, 1500
			d := n.dropOn("br-pods", "PKT_TOO_BIG", "ip_forward", "172.20.1.5", "203.0.113.9", 8)
			d.First, d.Last = start, start.Add(400*time.Millisecond)
			n.Links[1].Addresses = []netip.Prefix{prefix("172.20.1.1/24")}
			n.drop("NETFILTER_DROP", "nft_do_chain", "172.20.1.1", "172.20.1.5", 8).Proto = 1
			return n
		}, []string{"PathMTU proven 172.20.1.5 203.0.113.9"}},
		{"too big for a path beyond", func() *testNode {
			n := kubenet().live()
			d := n.dropOn("br-pods", "PKT_TOO_BIG", "ip_forward", "172.20.1.5", "203.0.113.9", 8)
			d.First, d.Last = start, start.Add(5*time.Second)
			return n
		}, []string{"PathMTU likely 172.20.1.5 203.0.113.9"}},
	}
	for _, tt := range tests {
		t.Run(tt.name, func(t *testing.T) { verdicts(t, tt.node(), tt.want) })
	}
}

// TestDroppedErrors: the rule that drops the errors about too large packets is named where only one may.
func TestDroppedErrors(t *testing.T) {
	nft := model.PacketRule{Proto: 1, Target: "DROP", Text: "-p icmp -m icmp --icmp-type 3/4 -j DROP", Unknown: []string{"icmp-type 3/4"}}
	for _, tt := range []struct {
		name   string
		counts []uint64
		want   string
	}{
		{"one rule", []uint64{8}, "iptables-nft -t filter -D OUTPUT -p icmp -m icmp --icmp-type 3/4 -j DROP # unless this is intended"},
		{"one that counted too few, and one", []uint64{2, 8}, "iptables-nft -t filter -D OUTPUT -p icmp -m icmp --icmp-type 3/4 -j DROP # unless this is intended"},
		{"two that may", []uint64{8, 9}, "nft -a list ruleset"},
		{"no rule that was read", nil, "nft -a list ruleset"},
	} {
		n := kubenet().live()
		n.Links[0].MTU, n.Links[1].MTU = 1280, 1500
		d := n.dropOn("br-pods", "PKT_TOO_BIG", "ip_forward", "172.20.1.5", "203.0.113.9", 8)
		d.First, d.Last = start, start.Add(5*time.Second)
		n.Links[1].Addresses = []netip.Prefix{prefix("172.20.1.1/24")}
		n.drop("NETFILTER_DROP", "nft_do_chain", "172.20.1.1", "172.20.1.5", 8).Proto = 1
		n.chain(model.NFT, "ip", "filter", "OUTPUT", "OUTPUT", "ACCEPT", 0)
		for _, count := range tt.counts {
			n.filter(model.NFT, "OUTPUT", count, nft)
		}
		if found := Diagnose(&n.Snapshot); len(found) != 1 || found[0].Code != "PathMTU" || !strings.HasPrefix(found[0].Fix[0], tt.want) {
			t.Errorf("%s: %+v", tt.name, found)
		}
	}
}

// TestNoPodHas has pods ask for addresses that the network sends back to the node.
func TestNoPodHas(t *testing.T) {
	back := func(remote string) *testNode {
		n := newNode("nic0", "10.60.0.4", "10.60.0.0/16", "10.60.0.1")
		n.pod("100.64.3.20", "0a:58:00:00:00:20", 0)
		n.pod("100.64.3.21", "0a:58:00:00:00:21", 0)
		n.live()
		for i := range n.Pods {
			n.route(model.Route{Dst: n.Pods[i].Addresses[0], IfIndex: n.Pods[i].LinkIndex})
		}
		n.passes("100.64.3.20", 2, model.Egress, model.AsSource, 9, 1)
		n.ttls("100.64.3.20", 2, model.Ingress, model.AsSource, 9, 62)
		n.peer("100.64.3.20", remote, syn, syn)
		n.dropOn("nic0", "IP_RPFILTER", "ip_rcv_finish_core", "100.64.3.20", remote, 9)
		return n
	}
	for _, tt := range []struct {
		name string
		node *testNode
		want []string
	}{
		{"an address among those of its pods", back("100.64.3.77"), []string{"warning RoutingLoop packets arrive for 100.64.3.77, which no pod of the node has"}},
		{"one of another range", back("100.64.9.77"), []string{"critical RoutingLoop the next router sends packets back to nic0"}},
	} {
		t.Run(tt.name, func(t *testing.T) {
			if got := judged(tt.node); !slices.Equal(got, tt.want) {
				t.Errorf("got %q, want %q", got, tt.want)
			}
		})
	}
	gone := back("100.64.3.77")
	gone.PastPods = []model.Pod{{Addresses: []netip.Prefix{prefix("100.64.3.77/32")}}}
	if got := judged(gone); len(got) > 0 {
		t.Errorf("a pod that just went is no fault: %q", got)
	}
}

// manyRoutes is a node with a route and two rules for each of some pods, and others.
func manyRoutes(pods, others int) *testNode {
	n := newNode("ens5", "10.50.0.4", "10.50.0.0/16", "10.50.0.1")
	n.Rules = []model.RoutingRule{{Family: 4, Table: 255, Action: "lookup"}}
	for i := range pods {
		a := netip.AddrFrom4([4]byte{10, 50, 8 + byte(i>>8), byte(1 + i)})
		n.pod(a.String(), "0a:58:00:00:00:20", 0)
		p := &n.Pods[i]
		p.Gateways = []model.Neighbor{{Addr: addr("169.254.1.1")}}
		n.route(model.Route{Dst: model.Host(a), IfIndex: p.LinkIndex})
		n.Rules = append(n.Rules,
			model.RoutingRule{Family: 4, Priority: 20, To: model.Host(a), Table: 254, Action: "lookup"},
			model.RoutingRule{Family: 4, Priority: 110, From: model.Host(a), Table: 254, Action: "lookup"})
	}
	n.Rules = append(n.Rules, model.RoutingRule{Family: 4, Priority: 32766, Table: 254, Action: "lookup"})
	for i := range others {
		n.route(model.Route{Dst: netip.PrefixFrom(netip.AddrFrom4([4]byte{172, 16, byte(i >> 6), byte(i << 2)}), 30), IfIndex: 2})
	}
	n.live()
	return n
}

// BenchmarkRouting judges the routes of a large node.
func BenchmarkRouting(b *testing.B) {
	n := manyRoutes(250, 5000)
	for b.Loop() {
		if got := Diagnose(&n.Snapshot); len(got) > 0 {
			b.Fatalf("found %s", brief(got[0]))
		}
	}
}

// TestLeftOverRule: a routing rule that leads a pod's packets astray is deleted where
// nobody needs it, and else a rule in front of it leads them right.
func TestLeftOverRule(t *testing.T) {
	const pod = "10.50.0.20"
	caught := func(r model.RoutingRule, table ...model.Route) *testNode {
		n := routed()
		r.Family, r.Priority, r.Table, r.Action = 4, 50, 210, "lookup"
		n.Rules = []model.RoutingRule{{Family: 4, Table: 255, Action: "lookup"}, r, {Family: 4, Priority: 32766, Table: 254, Action: "lookup"}}
		for _, x := range table {
			x.Table, x.IfIndex = 210, 2
			n.route(x)
		}
		n.passes(pod, 2, model.Egress, model.AsDestination, 9, 1)
		return n
	}
	gateway := model.Route{Dst: prefix("0.0.0.0/0"), Gateway: addr("10.50.0.1")}
	other := model.Route{Dst: prefix("0.0.0.0/0"), Gateway: addr("10.50.0.9")}
	for _, tt := range []struct {
		name string
		node *testNode
		fix  []string
	}{
		{"it is about the pod alone", caught(model.RoutingRule{To: prefix(pod + "/32")}, other), []string{"ip rule del to 10.50.0.20/32 lookup 210 priority 50"}},
		{"it is about all, who go the same way without it", caught(model.RoutingRule{}, gateway), []string{"ip rule del lookup 210 priority 50"}},
		{"others go another way by it", caught(model.RoutingRule{}, other),
			[]string{"ip rule add to 10.50.0.20/32 lookup main priority 49", "ip rule add to 10.50.0.21/32 lookup main priority 49"}},
		{"one route of its table is about the pod", caught(model.RoutingRule{}, other, model.Route{Dst: prefix(pod + "/32"), Gateway: addr("10.50.0.9")},
			model.Route{Dst: prefix("10.50.0.0/16"), Type: "throw"}), []string{"ip route del 10.50.0.20 via 10.50.0.9 dev ens5 table 210"}},
	} {
		found := agreed(t, tt.node)
		if len(found) == 0 || found[0].Code != "MissingPodRoute" || !slices.Equal(found[0].Fix, tt.fix) {
			t.Errorf("%s: %+v, want the fix %q", tt.name, found, tt.fix)
		}
	}
}

// TestWayBack: what may be missing is the return path too.
func TestWayBack(t *testing.T) {
	for want, silence := range map[string]func(*testNode){
		"the gateway has a route to this range, and the return path to this node's pods is missing": func(n *testNode) { n.silent("172.20.1.5", "172.20.3.9") },
		"the destination, or a router on the path, has no route back to this node's pods":           func(n *testNode) { n.silent("172.20.1.5", "10.99.0.7") },
		"the node of these pods has no route back to this node's pods":                              func(n *testNode) { n.silent("172.20.1.5", "172.20.2.10") },
	} {
		n := plain()
		n.answered("172.20.1.5", "172.20.2.9")
		silence(n)
		found := agreed(t, n)
		if len(found) != 1 || !slices.Contains(found[0].Alternatives, want) {
			t.Errorf("%+v lacks %q", found, want)
		}
	}
}

// TestDefaultRouteOfIPv6: beside IPv4's, it may be missed by nobody. The node's address and the targets tell.
func TestDefaultRouteOfIPv6(t *testing.T) {
	for _, tt := range []struct {
		own, far string
		packets  uint64
		want     model.Severity
	}{
		{"fd00:50::4/128", "2001:db8::9", 40, model.Info},
		{"2001:db8:50::4/128", "2001:db8::9", 40, model.Warning},
		{"2001:db8:50::4/128", "2001:db8::9", 4, model.Info},
		{"fd00:50::4/128", "fd00:20:2::9", 40, model.Critical},
	} {
		n := kubenet()
		n.Links[0].Addresses = append(n.Links[0].Addresses, prefix(tt.own))
		n.Pods[0].Addresses = append(n.Pods[0].Addresses, prefix("fd00:20:1::5/128"))
		n.route(model.Route{Dst: prefix("fd00:20:1::5/128"), IfIndex: 3})
		d := n.dropOn("br-pods", "IP_INNOROUTES", "ip6_pkt_discard", "fd00:20:1::5", tt.far, tt.packets)
		d.First, d.Last = start, start.Add(5*time.Second)
		if f := Diagnose(&n.Snapshot); len(f) != 1 || f[0].Code != "MissingDefaultRoute" || f[0].Severity != tt.want {
			t.Errorf("%s to %s: %+v, want %s", tt.own, tt.far, f, tt.want)
		}
	}
}
