package diagnose

import (
	"net/netip"
	"slices"
	"strings"
	"testing"

	"github.com/lasthop/lasthop/probe/model"
)

// dual is a node of two IP versions with pods on a bridge, behind a router
// with a link-local address.
func dual() *testNode {
	n := kubenet()
	n.Links[0].Addresses = append(n.Links[0].Addresses, prefix("fd50::4/128"))
	n.Links[1].Addresses = append(n.Links[1].Addresses, prefix("fd20:0:0:1::1/64"))
	n.Neighbors = append(n.Neighbors, model.Neighbor{Addr: addr("fe80::9"), MAC: mac(fabricMAC), IfIndex: 2})
	for _, r := range []model.Route{
		{Dst: prefix("::/0"), Gateway: addr("fe80::9"), IfIndex: 2},
		{Dst: prefix("fd50::/64"), IfIndex: 2},
		{Dst: prefix("fd20:0:0:1::/64"), IfIndex: 3},
	} {
		n.route(r)
	}
	for i, a := range []string{"fd20:0:0:1::5/64", "fd20:0:0:1::6/64"} {
		n.Pods[i].Addresses = append(n.Pods[i].Addresses, prefix(a))
		n.Pods[i].Gateways = []model.Neighbor{{Addr: addr("172.20.1.1")}, {Addr: addr("fd20:0:0:1::1")}}
	}
	n.Chains = append(n.Chains, model.Chain{Backend: model.NFT, Family: "ip6", Table: "nat", Name: "POSTROUTING", Hook: "POSTROUTING", Priority: 100})
	for _, r := range []model.PacketRule{
		{Chain: "POSTROUTING", DstLocal: -1, Target: "IP-MASQ-AGENT"},
		{Chain: "IP-MASQ-AGENT", Dst: model.AddrMatch{Prefix: prefix("fd20::/56")}, Target: "RETURN", Text: "-d fd20::/56 -j RETURN"},
		{Chain: "IP-MASQ-AGENT", Target: "MASQUERADE", Text: "-j MASQUERADE"},
	} {
		r.Backend, r.Family, r.Table = model.NFT, "ip6", "nat"
		n.PacketRules = append(n.PacketRules, r)
	}
	n.sysctl("net.ipv6.conf.all.forwarding", "1")
	return n.live()
}

// only6 is a node that knows no IPv4, with a routed pod whose gateway is on
// another link, and a route that discards what is for no pod of its range.
func only6() *testNode {
	n := newNode("nic0", "fd50::4", "fd50::/64", "fd50::1")
	n.pod("fd20:0:0:1::5", "0a:58:00:00:00:05", 0)
	n.Pods[0].Gateways = []model.Neighbor{{Addr: addr("fd20:0:0:1::ff"), State: "FAILED"}}
	n.route(model.Route{Dst: prefix("fd20:0:0:1::5/128"), IfIndex: n.Pods[0].LinkIndex})
	n.route(model.Route{Dst: prefix("fd20:0:0:1::/64"), Type: "blackhole"})
	return n.live()
}

func TestIPv6(t *testing.T) {
	const pod, other, far = "fd20:0:0:1::5", "fd20:0:0:1::6", "fd20:0:0:2::9"
	check(t, []fixture{
		{"both versions answer", func() *testNode {
			n := dual()
			n.answered("172.20.1.5", "172.20.2.9")
			n.answered(pod, far)
			return n
		}, nil},
		{"a pod's interface is down and has lost its IPv6 address", func() *testNode {
			n := dual()
			p := &n.Pods[0]
			p.Up, p.Addresses = false, p.Addresses[:1]
			n.Links[2].Carrier = false
			n.route(model.Route{Dst: prefix(pod + "/128"), IfIndex: p.LinkIndex})
			n.drop("NOT_SPECIFIED", "neigh_invalidate", "fd20:0:0:1::6", pod, 9)
			return n
		}, []string{"PodLinkDown proven 172.20.1.5 " + pod}},
		{"as a port of a bridge it leaves no route", func() *testNode {
			n := dual()
			n.Pods[0].Up, n.Pods[0].Addresses = false, n.Pods[0].Addresses[:1]
			n.Links[2].Carrier = false
			n.drop("NOT_SPECIFIED", "neigh_invalidate", "fd20:0:0:1::6", pod, 9)
			return n
		}, []string{"PodLinkDown proven 172.20.1.5"}},
		{"that was its only one", func() *testNode {
			n := only6()
			n.Pods[0].Up, n.Pods[0].Addresses = false, nil
			n.Links[1].Carrier = false
			n.Links[1].Addresses = []netip.Prefix{prefix("fd20:0:0:1::ff/128")}
			n.route(model.Route{Dst: prefix("fd20:0:0:1::ff/128"), IfIndex: n.Pods[0].LinkIndex})
			return n
		}, []string{"PodLinkDown proven " + pod}},
		{"only the IPv6 row is missing", func() *testNode {
			n := dual()
			n.answered("172.20.1.5", "172.20.2.9")
			n.silent(pod, far)
			n.silent(pod, far+"9")
			return n
		}, []string{"MissingUDR likely " + pod + " fd20:0:0:2::/64"}},
		{"no masquerade for IPv6", func() *testNode {
			n := dual()
			n.PacketRules = n.PacketRules[:len(n.PacketRules)-1]
			n.answered(pod, far)
			n.silent(pod, "2001:db8::9")
			return n
		}, []string{"MissingMasquerade likely " + pod + " 2001:db8::9/128"}},
		{"a stale neighbour, and the pod hears no answer for its gateway", func() *testNode {
			n := dual()
			n.Neighbors = append(n.Neighbors, model.Neighbor{Addr: addr(pod), MAC: mac(deadMAC), IfIndex: 3, State: "PERMANENT"})
			n.drop("NOT_SPECIFIED", "neigh_invalidate", pod, far, 9)
			return n
		}, []string{"StaleNeighbor proven " + pod}},
		{"a wrong MAC for the gateway, and the pod's answers to the node go there too", func() *testNode {
			n := only6().with(model.SourceBridge)
			p := &n.Pods[0]
			n.gateway(p, "fe80::1", deadMAC, "PERMANENT")
			n.neighbor(pod, "", p.LinkIndex, "FAILED")
			n.dropOn(p.Link, "OTHERHOST", "ip6_rcv_core", pod, far, 9).DstMAC = mac(deadMAC)
			n.drop("NEIGH_FAILED", "ndisc_error_report", far, pod, 9)
			return n
		}, []string{"WrongGatewayMAC proven " + pod}},
		{"the right neighbour", func() *testNode {
			n := dual()
			n.Neighbors = append(n.Neighbors, model.Neighbor{Addr: addr(pod), MAC: n.Pods[0].MAC, IfIndex: 3, State: "PERMANENT"})
			return n
		}, nil},
		{"the node does not forward IPv6", func() *testNode {
			n := dual()
			n.Sysctls = nil
			n.sysctl("net.ipv6.conf.all.forwarding", "0")
			n.dropOn("br-pods", "IP_INADDRERRORS", "ip6_forward", pod, far, 9)
			return n
		}, []string{"ForwardingDisabled proven " + pod + " " + far + "/128"}},
		{"nor does it answer for a router by proxy", func() *testNode {
			n := only6()
			n.sysctl("net.ipv6.conf.all.forwarding", "0")
			n.drop("NOT_SPECIFIED", "neigh_invalidate", pod, far, 9)
			n.arp("fd20:0:0:1::ff", n.Pods[0].LinkIndex, model.Ingress, false, deadMAC, 9)
			return n
		}, []string{"ForwardingDisabled proven " + pod + " " + far + "/128"}},
		{"the same drop while it forwards is another's", func() *testNode {
			n := dual()
			n.dropOn("br-pods", "IP_INADDRERRORS", "ip6_forward", pod, far, 9)
			return n
		}, []string{"UnexplainedDrop proven " + pod + " " + far + "/128"}},
		{"a prohibit route for another node's pods", func() *testNode {
			n := dual()
			n.route(model.Route{Dst: prefix("fd20:0:0:2::/64"), Type: "prohibit"})
			n.dropOn("br-pods", "IP_INNOROUTES", "ip6_pkt_prohibit", pod, far, 9)
			return n
		}, []string{"BlackholeRoute proven " + pod + " " + far + "/128"}},
		{"a blackhole for another node's pods", func() *testNode {
			n := dual()
			n.route(model.Route{Dst: prefix("fd20:0:0:2::/64"), Type: "blackhole"})
			n.dropOn("br-pods", "NOT_SPECIFIED", "dst_discard_out", pod, far, 9)
			return n
		}, []string{"BlackholeRoute proven " + pod + " " + far + "/128"}},
		{"a pod's route is gone, and its block's discards", func() *testNode {
			n := only6()
			n.unroute("fd20:0:0:1::5/128")
			n.dropOn("nic0", "NOT_SPECIFIED", "dst_discard_out", far, pod, 9)
			return n
		}, []string{"MissingPodRoute proven " + pod}},
		{"solicitations that a bridge floods", func() *testNode {
			n := dual()
			n.drop("NOT_SPECIFIED", "ip6_mc_input", pod, "ff02::1:ff00:1", 90)
			n.drop("IPV6_NDISC_NS_OTHERHOST", "icmpv6_rcv", pod, "ff02::1:ff00:6", 90)
			n.drop("NOT_SPECIFIED", "icmpv6_rcv", pod, "fe80::1", 9)
			return n
		}, nil},
		{"a rule drops what is for a pod, neighbour discovery too", func() *testNode {
			n := dual()
			n.Chains = append(n.Chains, model.Chain{Backend: model.NFT, Family: "ip6", Table: "filter", Name: "FORWARD", Hook: "FORWARD", Policy: "ACCEPT"})
			n.PacketRules = append(n.PacketRules, model.PacketRule{Backend: model.NFT, Family: "ip6", Table: "filter", Chain: "FORWARD", Number: 1,
				Dst: model.AddrMatch{Prefix: model.Host(addr(pod))}, Target: "DROP", Text: "-d " + pod + "/128 -j DROP", Counter: model.Counter{Packets: 18, Delta: 18}})
			n.dropOn("tap10", "NETFILTER_DROP", "nft_do_chain", far, pod, 9).Proto = 6
			n.dropOn("tap10", "NETFILTER_DROP", "nft_do_chain", other, pod, 9).Proto = 58
			n.drop("NOT_SPECIFIED", "neigh_invalidate", pod, other, 9)
			return n
		}, []string{"PolicyDrop proven " + pod + " " + other + "/128 " + far + "/128"}},
	})
}

// TestIPv6Fixes: no command that is printed for an IPv6 address is IPv4's.
func TestIPv6Fixes(t *testing.T) {
	n := dual()
	n.PacketRules = n.PacketRules[:len(n.PacketRules)-3]
	n.answered("172.20.1.5", "172.20.2.9")
	n.silent("fd20:0:0:1::5", "2001:db8::9")
	n.Neighbors = append(n.Neighbors, model.Neighbor{Addr: addr("fd20:0:0:1::6"), MAC: mac(deadMAC), IfIndex: 3, State: "PERMANENT"})
	n.route(model.Route{Dst: prefix("fd20:0:0:2::/64"), Type: "blackhole"})
	n.dropOn("br-pods", "NOT_SPECIFIED", "dst_discard_out", "fd20:0:0:1::5", "fd20:0:0:2::9", 9)
	want := map[model.Code]string{"MissingMasquerade": "ip6tables ", "StaleNeighbor": "ip -6 neigh ", "BlackholeRoute": "ip -6 route "}
	for _, f := range Diagnose(&n.Snapshot) {
		if tool := want[f.Code]; !slices.ContainsFunc(f.Fix, func(s string) bool { return strings.HasPrefix(s, tool) }) {
			t.Errorf("%s: %q, want %q", f.Code, f.Fix, tool)
		}
		delete(want, f.Code)
	}
	if len(want) > 0 {
		t.Errorf("not found: %v", want)
	}
}

// TestSilentRouter6: who asks for an IPv6 router solicits neighbours.
func TestSilentRouter6(t *testing.T) {
	n := dual()
	d := n.drop("NEIGH_FAILED", "neigh_invalidate", "fd20:0:0:1::5", "2001:db8:77::1", 9)
	d.Link, d.IfIndex = "ens5", 2
	n.arp("fe80::9", 2, model.Egress, false, nicMAC, 5)
	found := agreed(t, n)
	if len(found) != 1 || found[0].Code != "UnansweredARP" {
		t.Fatalf("want UnansweredARP alone: %+v", found)
	}
	for _, e := range found[0].Evidence {
		if strings.Contains(e.Text, "ARP") {
			t.Errorf("IPv6 knows no ARP: %s", e.Text)
		}
	}
	if !slices.ContainsFunc(found[0].Evidence, func(e model.Evidence) bool { return strings.Contains(e.Text, "5 neighbour solicitations for fe80::9") }) {
		t.Errorf("no evidence of the solicitations: %+v", found[0].Evidence)
	}
}

// TestUnexplainedPlace: what was dropped on its way out of a link was alive as
// it came to leave by it, and not as it came in there.
func TestUnexplainedPlace(t *testing.T) {
	for _, tt := range []struct {
		reason   model.Reason
		location string
		want     model.Direction
	}{
		{"NEIGH_FAILED", "neigh_invalidate", model.Egress},
		{"QDISC_DROP", "__dev_queue_xmit", model.Egress},
		{"", "ip_finish_output2", model.Egress},
		{"IP_INHDR", "ip_rcv_core", model.Ingress},
	} {
		n := plain()
		d := n.drop(tt.reason, tt.location, pod5, "203.0.113.9", 9)
		d.Link, d.IfIndex = n.Links[0].Name, n.Links[0].Index
		found := agreed(t, n)
		want := model.Place{Link: n.Links[0].Name, Role: model.RoleUplink, Direction: tt.want}
		if len(found) != 1 || found[0].Code != "UnexplainedDrop" || found[0].LastHopAlive != want {
			t.Errorf("%s at %s: want UnexplainedDrop behind %+v: %+v", tt.reason, tt.location, want, found)
		}
	}
}
