package diagnose

import (
	"net/netip"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/lasthop/lasthop/probe/model"
)

// TestBesideThePlugin has what other programs and people leave on a node: addresses, routes and rules that no
// network plugin makes.
func TestBesideThePlugin(t *testing.T) {
	const pod, far = "172.20.1.5", "172.20.2.9"
	lasting := func(d *model.Drop) { d.First, d.Last = start, start.Add(5*time.Second) }
	extra := func(n *testNode, index int, name string, addresses ...string) *model.Link {
		l := model.Link{Index: index, Name: name, Kind: "veth", Up: true, Carrier: true}
		for _, a := range addresses {
			l.Addresses = append(l.Addresses, prefix(a))
		}
		n.Links = append(n.Links, l)
		return n.link(index)
	}
	target := func(name string, counted uint64) func() *testNode {
		return func() *testNode {
			n := kubenet().live()
			n.chain(model.NFT, "ip", "filter", "FORWARD", "FORWARD", "ACCEPT", 0)
			n.filter(model.NFT, "FORWARD", counted, model.PacketRule{Target: name})
			reason, location := model.Reason("NETFILTER_DROP"), "nft_do_chain"
			if name == "NFQUEUE" {
				reason, location = "NOT_SPECIFIED", "nf_queue"
			}
			lasting(n.dropOn("ens5", reason, location, far, pod, 40))
			return n
		}
	}
	for _, tt := range []struct {
		name string
		node func() *testNode
		want []string
	}{
		{"the node has a pod's address too", func() *testNode {
			n := kubenet().live()
			extra(n, 40, "vip0", pod+"/32")
			lasting(n.dropOn("br-pods", "IP_LOCAL_SOURCE", "ip_rcv_finish_core", pod, far, 40))
			lasting(n.dropOn("ens5", "NO_SOCKET", "tcp_v4_rcv", far, pod, 40))
			return n
		}, []string{"critical DuplicatePodIP the node itself has 172.20.1.5, the address of the pod behind tap10"}},
		{"another address of the pods' range is the node's", func() *testNode {
			n := kubenet().live()
			extra(n, 40, "vip0", "172.20.1.99/32")
			return n
		}, nil},
		{"a link's own hook", func() *testNode {
			n := kubenet().live()
			for _, hook := range []string{"INGRESS", "EGRESS"} {
				n.Chains = append(n.Chains, model.Chain{Backend: model.NFT, Family: "netdev", Table: hook, Name: hook, Hook: hook, Devices: "lo,ens5", Policy: "ACCEPT"})
				n.filter(model.NFT, hook, 0, model.PacketRule{Target: "DROP", Text: "drop", Native: true})
				r := &n.PacketRules[len(n.PacketRules)-1]
				r.Family, r.Table = "netdev", hook
			}
			lasting(n.dropOn("ens5", "NETFILTER_DROP", "nft_do_chain", far, pod, 40))
			return n
		}, []string{"warning PolicyDrop INGRESS INGRESS drops packets of 172.20.1.5"}},
		{"a queue's program does not run", target("NFQUEUE", 50),
			[]string{"warning PolicyDrop filter FORWARD drops packets of 172.20.1.5"}},
		{"a queue whose rule met nothing", target("NFQUEUE", 0),
			[]string{"warning PolicyDrop a firewall rule drops packets of 172.20.1.5"}},
		{"nothing listens where a rule hands packets", target("TPROXY", 50),
			[]string{"warning PolicyDrop filter FORWARD drops packets of 172.20.1.5"}},
		{"a rule that drops is more likely than one that may", func() *testNode {
			n := target("TPROXY", 50)()
			n.filter(model.NFT, "FORWARD", 50, model.PacketRule{Target: "DROP", Text: "-s 172.20.2.9/32 -j DROP",
				Src: model.AddrMatch{Prefix: model.Host(addr(far))}})
			return n
		}, []string{"warning PolicyDrop filter FORWARD drops packets of 172.20.1.5"}},
		{"a pod's own route leads to nobody", func() *testNode {
			n := routed()
			p := &n.Pods[0]
			p.Gateways[0].MAC, p.Gateways[0].State = n.hostMAC(p), "REACHABLE"
			p.Routes = append(p.Routes, model.Route{Dst: prefix("203.0.113.0/24"), Gateway: addr("169.254.7.7"), Type: "unicast"})
			n.drop("NEIGH_FAILED", "neigh_invalidate", "10.50.0.20", "203.0.113.9", 9)
			n.arp("169.254.7.7", p.LinkIndex, model.Ingress, false, "0a:58:00:00:00:20", 5)
			return n
		}, []string{"critical UnansweredARP the gateway of the pod behind tap10 does not answer ARP"}},
		{"masqueraded packets for a host of the node's subnet that is down", func() *testNode {
			n := kubenet().live()
			n.neighbor("10.50.0.77", "", 2, "INCOMPLETE")
			n.arp("10.50.0.77", 2, model.Egress, false, "00:0d:3a:00:00:04", 5)
			for range 4 {
				n.Flows = append(n.Flows, model.Flow{Proto: 6, Start: start,
					Original: model.Tuple{Src: addr(pod), Dst: addr("10.50.0.77"), DstPort: 443},
					Reply:    model.Tuple{Src: addr("10.50.0.77"), Dst: addr("10.50.0.4"), SrcPort: 443}})
			}
			return n
		}, []string{"warning UnansweredARP next hop 10.50.0.77 on ens5 does not answer ARP"}},
		{"one sender of dropped packets, to several pods and others", func() *testNode {
			n := routed()
			n.chain(model.NFT, "ip", "filter", "FORWARD", "FORWARD", "ACCEPT", 0)
			n.filter(model.NFT, "FORWARD", 90, model.PacketRule{Target: "DROP", Text: "-m set --match-set s src -j DROP",
				Unknown: []string{"-m set --match-set s src"}})
			for _, to := range []string{"10.50.0.21", "203.0.113.9"} {
				lasting(n.dropOn(n.Pods[0].Link, "NETFILTER_DROP", "nft_do_chain", "10.50.0.20", to, 40))
			}
			return n
		}, []string{"warning PolicyDrop filter FORWARD drops packets of 10.50.0.20"}},
	} {
		t.Run(tt.name, func(t *testing.T) {
			if got := judged(tt.node()); !slices.Equal(got, tt.want) {
				t.Errorf("got %q, want %q", got, tt.want)
			}
		})
	}
}

// TestLooseFilter has a link without an address of IPv4, on which the kernel's loose mode filters as the strict one, and a rule
// that leads replies to a pod elsewhere: no setting of the filter brings them back.
func TestLooseFilter(t *testing.T) {
	n := routed()
	n.Links = append(n.Links, model.Link{Index: 40, Name: "wg0", Kind: "wireguard", Up: true, Carrier: true,
		Addresses: []netip.Prefix{prefix("10.130.0.9/24")}})
	n.route(model.Route{Table: 77, Dst: prefix("0.0.0.0/0"), Gateway: addr("10.130.0.1"), IfIndex: 40})
	n.Rules = []model.RoutingRule{
		{Family: 4, Table: 255, Action: "lookup"},
		{Family: 4, Priority: 90, From: prefix("10.50.0.20/32"), Table: 77, Action: "lookup"},
		{Family: 4, Priority: 32766, Table: 254, Action: "lookup"},
	}
	n.dropOn("tap11", "IP_RPFILTER", "ip_rcv_finish_core", "10.50.0.21", "10.50.0.20", 20)
	n.Sysctls = append(n.Sysctls, model.Sysctl{Name: "net.ipv4.conf.tap11.rp_filter", Value: "2"})
	got := Diagnose(&n.Snapshot)
	if len(got) != 1 || got[0].Code != "ReversePathFilter" || got[0].Confidence != model.Proven ||
		!strings.Contains(strings.Join(got[0].Fix, " "), "ip rule add to 10.50.0.21/32 lookup main priority 89") || strings.Contains(got[0].Why, "another interface") {
		t.Errorf("got %v", got)
	}
}

// TestDeadReturnRoute has a default route that wins by its metric and whose next hop does not answer: what comes
// in by the other one is refused, since the way back would lead there.
func TestDeadReturnRoute(t *testing.T) {
	n := routed()
	n.Links = append(n.Links, model.Link{Index: 40, Name: "eth9", MAC: mac("00:0d:3a:00:00:09"), Up: true, Carrier: true,
		Role: model.RoleUplink, Addresses: []netip.Prefix{prefix("10.130.0.9/24")}})
	for i := range n.Routes {
		if n.Routes[i].Dst.Bits() == 0 {
			n.Routes[i].Priority = 200
		}
	}
	n.route(model.Route{Dst: prefix("0.0.0.0/0"), Gateway: addr("10.130.0.1"), IfIndex: 40, Priority: 100})
	n.neighbor("10.50.0.1", "12:34:56:78:9a:bc", 2, "REACHABLE")
	n.neighbor("10.130.0.1", "", 40, "FAILED")
	n.arp("10.130.0.1", 40, model.Egress, false, "00:0d:3a:00:00:09", 5)
	n.dropOn("eth9", "NEIGH_FAILED", "neigh_invalidate", "10.50.0.20", "203.0.113.9", 20)
	n.dropOn("ens5", "IP_RPFILTER", "ip_rcv_finish_core", "203.0.113.9", "10.50.0.20", 20)
	n.Sysctls = append(n.Sysctls, model.Sysctl{Name: "net.ipv4.conf.ens5.rp_filter", Value: "1"})
	got := Diagnose(&n.Snapshot)
	if len(got) != 1 || got[0].Code != "UnansweredARP" ||
		got[0].Fix[0] != "ip route del default via 10.130.0.1 dev eth9 metric 100 # default via 10.50.0.1 dev ens5 metric 200 stays; unless the next hop should answer" {
		t.Errorf("got %v", got)
	}
}
