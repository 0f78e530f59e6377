package diagnose

import (
	"net/netip"
	"slices"
	"testing"

	"github.com/lasthop/lasthop/probe/model"
)

// ruledTo is a node with routed pods, one of whose packets to an address a rule leads to table 100, if they have a mark, or
// protocol and port, and with a route there.
func ruledTo(route model.Route, rule model.RoutingRule) *testNode {
	n := routed().with(model.SourceRoutes)
	n.route(model.Route{Dst: prefix("0.0.0.0/0"), Gateway: addr("10.50.0.1"), IfIndex: 2})
	route.Table, route.Dst = 100, prefix("0.0.0.0/0")
	n.route(route)
	rule.Family, rule.Priority, rule.Table, rule.Action = 4, 100, 100, "lookup"
	n.Rules = append(builtinRules(), rule)
	return n
}

func builtinRules() []model.RoutingRule {
	return []model.RoutingRule{{Family: 4, Table: 255, Action: "lookup"}, {Family: 4, Priority: 32766, Table: 254, Action: "lookup"}}
}

// marks adds a rule that marks what is for an address, before it is routed.
func (n *testNode) marks(dst string, value uint32) *testNode {
	n.chain(model.NFT, "ip", "mangle", "PREROUTING", "PREROUTING", "ACCEPT", 30)
	n.Chains[len(n.Chains)-1].Priority = -150
	n.filter(model.NFT, "PREROUTING", 30, model.PacketRule{Dst: to(dst), Target: "MARK", SetMark: model.MarkWrite{Value: value, Mask: 0xff},
		Text: "-d " + dst + " -j MARK --set-xmark 0x64/0xff"}).Table = "mangle"
	return n
}

// TestRoutedByMark: what rules look at beside addresses decides where packets go.
func TestRoutedByMark(t *testing.T) {
	const asked, pod = "203.0.113.9", "10.50.0.20"
	byMark := model.RoutingRule{Mark: 0x64, Mask: 0xff}
	killed := func(value uint32) *testNode {
		n := ruledTo(model.Route{Type: "unreachable"}, byMark).marks(asked+"/32", value)
		if value == byMark.Mark {
			n.dropOn("tap10", "NOT_SPECIFIED", "ip_error", pod, asked, 30)
		}
		return n
	}
	prohibited := func(proto uint8) *testNode {
		n := ruledTo(model.Route{Type: "prohibit"}, model.RoutingRule{Proto: 17})
		d := n.dropOn("tap10", "NOT_SPECIFIED", "ip_error", pod, asked, 30)
		d.Proto = proto
		n.sysctl("net.ipv4.conf.ens5.rp_filter", "1")
		d = n.dropOn("ens5", "IP_RPFILTER", "ip_rcv_finish_core", asked, pod, 30)
		d.Proto = proto
		return n
	}
	tunneled := func(value uint32) *testNode {
		n := ruledTo(model.Route{IfIndex: 7}, byMark).with(model.SourceQueues).marks(asked+"/32", value)
		n.Links = append(n.Links, model.Link{Index: 7, Name: "tun0", Kind: "tun", Up: true})
		n.Queues = []model.Queue{{IfIndex: 7, Link: "tun0", Kind: "pfifo_fast"}}
		if value == byMark.Mark {
			n.dropOn("tun0", "QDISC_DROP", "__dev_queue_xmit", pod, asked, 30)
		}
		return n
	}
	suppressed := func(bits int) *testNode {
		n := ruledTo(model.Route{Type: "blackhole"}, model.RoutingRule{Mark: 0x64, Mask: 0xff, Not: true})
		n.Rules = append(n.Rules, model.RoutingRule{Family: 4, Priority: 99, Table: 254, Action: "lookup", MinBits: bits})
		if bits > 0 {
			n.dropOn("tap10", "NOT_SPECIFIED", "ip_error", pod, asked, 30)
		}
		return n
	}
	proxied := func(value uint32) *testNode {
		n := ruledTo(model.Route{Type: "local", IfIndex: 1}, byMark).marks(asked+"/32", value)
		if value == byMark.Mark {
			d := n.dropOn("tap10", "NO_SOCKET", "tcp_v4_rcv", pod, asked, 30)
			d.Proto, d.Netns = tcp, n.Node.Netns
			n.sampled(d, head(tcp, 443, 2))
		}
		return n
	}
	inside := func(r model.RoutingRule) *testNode {
		n := routed().with(model.SourceTC, model.SourcePods)
		r.Family = 4
		n.Pods[0].Rules = []model.RoutingRule{r}
		n.requested("10.50.0.5", pod, tcp, 80, 9, r.Mask != 0)
		n.exchanges(1, "10.50.0.21")
		return n
	}
	situations(t, []situation{
		{"a mark leads to a table that discards", func() *testNode { return killed(0x64) }, []string{"critical BlackholeRoute"},
			"fwmark 0x64/0xff lookup 100 leads them", "rp_filter"},
		{"the rule that sets the mark is named", func() *testNode { return killed(0x64) }, []string{"critical BlackholeRoute"},
			"mangle PREROUTING rule", ""},
		{"another mark does not", func() *testNode { return killed(0x65) }, nil, "", ""},
		{"datagrams alone are led to a table that discards, replies that come among them", func() *testNode { return prohibited(17) },
			[]string{"critical BlackholeRoute"}, "ipproto udp", "rp_filter"},
		{"a mark leads to a tunnel that nothing serves", func() *testNode { return tunneled(0x64) }, []string{"critical QueueDrop"},
			"ip route del default dev tun0 table 100", ""},
		{"a mark of others leads to a tunnel", func() *testNode { return tunneled(0x65) }, nil, "", ""},
		{"all but what the main table knows better is discarded", func() *testNode { return suppressed(1) },
			[]string{"critical BlackholeRoute"}, "blackhole default", ""},
		{"the main table comes first", func() *testNode { return suppressed(0) }, nil, "", ""},
		{"a mark has the node take what is for others, as for a proxy", func() *testNode { return proxied(0x64) },
			[]string{"warning NoListener"}, "ip rule del fwmark 0x64/0xff lookup 100 priority 100", ""},
		{"a mark of others is for the proxy", func() *testNode { return proxied(0x65) }, nil, "", ""},
		{"a rule in a pod discards its replies", func() *testNode {
			return inside(model.RoutingRule{Priority: 30, To: prefix("10.50.0.5/32"), Action: "prohibit"})
		}, []string{"warning BlackholeRoute"}, "ip rule del to 10.50.0.5/32 prohibit priority 30", ""},
		{"a rule in a pod discards what has a mark", func() *testNode {
			return inside(model.RoutingRule{Priority: 5250, Mark: 0x80000, Mask: 0xff0000, Action: "unreachable"})
		}, nil, "", ""},
		{"the next hop of a route was a pod", func() *testNode { return byGonePod(true) }, []string{"critical UnansweredARP"},
			"ip route del 203.0.113.0/24 via 172.20.1.200 dev br-pods", ""},
		{"the next hop of a route is a pod", func() *testNode { return byGonePod(false) }, nil, "", ""},
	})
}

// byGonePod is a node with a route by an address of its pods' range, which a pod has or none.
func byGonePod(gone bool) *testNode {
	n := kubenet().live().with(model.SourceTC, model.SourceDrops, model.SourcePods)
	hop := addr(pod6)
	if gone {
		hop = addr("172.20.1.200")
		n.dropOn("br-pods", "NEIGH_FAILED", "neigh_invalidate", pod5, "203.0.113.9", 30)
		n.arp(hop.String(), n.Pods[0].LinkIndex, model.Egress, false, "0a:00:00:00:00:03", 9)
	}
	n.route(model.Route{Dst: prefix("203.0.113.0/24"), Gateway: hop, IfIndex: 3})
	return n
}

// TestTriedSetting: a setting is the fix only where packets get further by it.
func TestTriedSetting(t *testing.T) {
	for _, forwards := range []string{"1", "0"} {
		n := routed().with(model.SourceRoutes, model.SourceSysctl)
		n.Links = append(n.Links, model.Link{Index: 4, Name: "ens6", MAC: mac("00:0d:3a:00:00:02"), Up: true, Carrier: true, Role: model.RoleUplink,
			Addresses: []netip.Prefix{prefix("10.51.0.4/16")}})
		n.route(model.Route{Dst: prefix("0.0.0.0/0"), Gateway: addr("10.50.0.1"), IfIndex: 2})
		n.sysctl("net.ipv4.conf.ens6.rp_filter", "1")
		n.sysctl("net.ipv4.conf.ens6.forwarding", forwards)
		n.dropOn("ens6", "IP_RPFILTER", "ip_rcv_finish_core", "198.51.100.7", "10.50.0.20", 30)
		f := agreed(t, n)[0]
		if f.Code != "ReversePathFilter" || slices.Contains(f.Fix, "sysctl -w net.ipv4.conf.ens6.rp_filter=2") != (forwards == "1") {
			t.Errorf("forwarding is %s: %s: the fix is %q, next %q", forwards, f.Code, f.Fix, f.Next)
		}
	}
}
