package path

import (
	"fmt"
	"net/netip"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/lasthop/lasthop/probe/model"
)

func mac(n byte) model.MAC { return model.MAC{2, 0, 0, 0, 0, n} }

var (
	podA   = netip.MustParseAddr("172.30.4.7")
	podB   = netip.MustParseAddr("172.30.4.9")
	nodeIP = netip.MustParseAddr("192.168.7.3")
	router = netip.MustParseAddr("192.168.7.1")
	far    = netip.MustParseAddr("172.30.8.5")
	web    = netip.MustParseAddr("198.51.100.20")
	// gateway is the bridge's address.
	gateway = netip.MustParseAddr("172.30.4.1")
)

func pfx(s string) netip.Prefix { return netip.MustParsePrefix(s) }

func route(dst, link string, ifindex int, via netip.Addr) model.Route {
	return model.Route{Table: tableMain, Dst: pfx(dst), Gateway: via, IfIndex: ifindex, Link: link, Type: "unicast"}
}

// routedNode is a node whose pods each have a route of their own.
func routedNode() *model.Snapshot {
	host := func(i int, name string, m byte) model.Link {
		return model.Link{Index: i, Name: name, Kind: "veth", MAC: mac(m), Up: true, Carrier: true, Role: model.RolePodLink}
	}
	gw := netip.MustParseAddr("169.254.9.9")
	pod := func(a netip.Addr, link string, i int, m, near byte) model.Pod {
		return model.Pod{
			Addresses: []netip.Prefix{netip.PrefixFrom(a, 32)}, MAC: mac(m), Interface: "eth0", Link: link, LinkIndex: i, Up: true, Netns: uint32(i),
			Gateways: []model.Neighbor{{Addr: gw, MAC: mac(near), State: "REACHABLE"}},
			Routes:   []model.Route{route("0.0.0.0/0", "eth0", 2, gw), route("169.254.9.9/32", "eth0", 2, netip.Addr{})},
		}
	}
	s := &model.Snapshot{
		Node: model.Node{Netns: 1, Uplinks: []string{"enp1"}},
		Links: []model.Link{
			{
				Index: 2, Name: "enp1", MAC: mac(1), Up: true, Carrier: true, Role: model.RoleUplink,
				Addresses: []netip.Prefix{netip.PrefixFrom(nodeIP, 24)},
			},
			host(5, "pa", 50), host(6, "pb", 60),
		},
		Pods: []model.Pod{pod(podA, "pa", 5, 51, 50), pod(podB, "pb", 6, 61, 60)},
		Routes: []model.Route{
			route("0.0.0.0/0", "enp1", 2, router), route("192.168.7.0/24", "enp1", 2, netip.Addr{}),
			route("172.30.4.7/32", "pa", 5, netip.Addr{}), route("172.30.4.9/32", "pb", 6, netip.Addr{}),
			{Table: tableLocal, Dst: netip.PrefixFrom(nodeIP, 32), IfIndex: 2, Type: "local"},
		},
		Neighbors: []model.Neighbor{{Addr: router, MAC: mac(9), IfIndex: 2, Link: "enp1", State: "REACHABLE"}},
	}
	for _, name := range []string{
		model.SourceLinks, model.SourceRoutes, model.SourceNeighbors, model.SourceBridge, model.SourceEbtables, model.SourceNAT,
		model.SourceConntrack, model.SourcePods, model.SourceTC, model.SourceDrops, model.SourcePrograms,
	} {
		s.Sources = append(s.Sources, model.Source{Name: name, Status: model.OK})
	}
	return s
}

// bridgedNode has both pods on a bridge with an address.
func bridgedNode() *model.Snapshot {
	s := routedNode()
	s.Links = append(s.Links, model.Link{
		Index: 8, Name: "kbr", Kind: "bridge", MAC: mac(80), Up: true, Carrier: true, Role: model.RoleBridge,
		Addresses: []netip.Prefix{pfx("172.30.4.1/24")},
	})
	gw := gateway
	for i := range s.Pods {
		p := &s.Pods[i]
		p.Addresses = []netip.Prefix{netip.PrefixFrom(p.Addresses[0].Addr(), 24)}
		p.Routes = []model.Route{route("0.0.0.0/0", "eth0", 2, gw), route("172.30.4.0/24", "eth0", 2, netip.Addr{})}
		p.Gateways = []model.Neighbor{{Addr: gw, MAC: mac(80), State: "REACHABLE"}}
		s.Links[1+i].Master = 8
	}
	s.Routes = []model.Route{
		route("0.0.0.0/0", "enp1", 2, router), route("172.30.4.0/24", "kbr", 8, netip.Addr{}),
		{Table: tableLocal, Dst: netip.PrefixFrom(nodeIP, 32), IfIndex: 2, Type: "local"},
		{Table: tableLocal, Dst: netip.PrefixFrom(gw, 32), IfIndex: 8, Type: "local"},
	}
	return s
}

// kinds are the hops in a word each, with X behind those that are dead.
func kinds(hops []model.PathHop) string {
	var words []string
	for _, h := range hops {
		w := string(h.Kind)
		if h.Kind == model.HopLink {
			w = h.Link
		}
		if h.Dead {
			w += "X"
		}
		words = append(words, w)
	}
	return strings.Join(words, " ")
}

// byMaps are rules such as kube-proxy's in the mode nftables, with an element in one of
// its maps for a service of one endpoint.
func byMaps(key, in string) func(*model.Snapshot) {
	return func(s *model.Snapshot) {
		rule := func(chain string, r model.PacketRule) {
			r.Backend, r.Family, r.Table, r.Chain, r.Native = model.NFT, "ip", "kube-proxy", chain, true
			r.Number = 1
			s.PacketRules = append(s.PacketRules, r)
		}
		lookup := func(set string) []model.Lookup {
			return []model.Lookup{{Set: set, Key: []string{"ip daddr", "meta l4proto", "th dport"}, Map: true}}
		}
		rule("nat-prerouting", model.PacketRule{Target: "services"})
		rule("services", model.PacketRule{Lookups: lookup("service-ips")})
		rule("service-web", model.PacketRule{Lookups: []model.Lookup{{Set: "__map0", Key: []string{"numgen random mod 1"}, Map: true}}})
		rule("endpoint-web", model.PacketRule{Proto: 6, Target: "DNAT", To: netip.AddrPortFrom(podB, 8080)})
		rule("filter-forward", model.PacketRule{Target: "service-endpoints-check"})
		rule("filter-forward", model.PacketRule{Target: "cluster-ips-check"})
		rule("service-endpoints-check", model.PacketRule{Lookups: lookup("no-endpoint-services")})
		rule("reject-chain", model.PacketRule{Target: "REJECT"})
		rule("cluster-ips-check", model.PacketRule{Target: "REJECT", Lookups: []model.Lookup{{Set: "cluster-ips", Key: []string{"ip daddr"}}}})
		for _, name := range []string{"service-ips", "no-endpoint-services", "cluster-ips", "__map0"} {
			x := model.Set{Family: "ip", Table: "kube-proxy", Name: name, Anonymous: name == "__map0"}
			to := map[string]string{"service-ips": "goto service-web", "no-endpoint-services": "goto reject-chain"}[name]
			switch name {
			case "cluster-ips":
				x.Elements = []model.Element{{Key: "198.51.100.10"}, {Key: "198.51.100.20"}}
			case "__map0":
				x.Elements = []model.Element{{Key: "0", Value: "goto endpoint-web"}}
			default:
				x.Elements = []model.Element{{Key: "198.51.100.99 . udp . 53", Value: to}}
			}
			if name == in {
				x.Elements = append(x.Elements, model.Element{Key: key, Value: to, Comment: "shop/web:http"})
			}
			s.Sets = append(s.Sets, x)
		}
		for name, hook := range map[string]string{"nat-prerouting": "PREROUTING", "filter-forward": "FORWARD"} {
			c := model.Chain{Backend: model.NFT, Family: "ip", Table: "kube-proxy", Name: name, Hook: hook, Policy: "ACCEPT"}
			if hook == "PREROUTING" {
				c.Priority = -100
			}
			s.Chains = append(s.Chains, c)
		}
	}
}

func TestTrace(t *testing.T) {
	drop := func(chain string, r model.PacketRule) func(*model.Snapshot) {
		return func(s *model.Snapshot) {
			r.Backend, r.Family, r.Table, r.Chain, r.Number = model.NFT, "ip", "filter", chain, 1
			s.PacketRules = append(s.PacketRules, r)
			s.Chains = append(s.Chains, model.Chain{Backend: model.NFT, Family: "ip", Table: "filter", Name: chain, Hook: chain, Policy: "ACCEPT"})
		}
	}
	bridge := func(hook string, r model.FrameRule) func(*model.Snapshot) {
		return func(s *model.Snapshot) {
			r.Backend, r.Chain, r.Number = model.NFT, hook, 1
			s.FrameRules = append(s.FrameRules, r)
			s.Chains = append(s.Chains, model.Chain{Backend: model.NFT, Family: "bridge", Table: r.Table, Name: hook, Hook: hook, Policy: "ACCEPT"})
		}
	}
	// ipvs holds the service's address on a dummy link; flows are to these
	// backends.
	ipvs := func(backends ...netip.Addr) func(*model.Snapshot) {
		return func(s *model.Snapshot) {
			own := netip.PrefixFrom(web, 32)
			s.Links = append(s.Links, model.Link{Index: 9, Name: "vip", Kind: "dummy", Addresses: []netip.Prefix{own}})
			s.Routes = append(s.Routes, model.Route{Table: tableLocal, Dst: own, IfIndex: 9, Type: "local"})
			for _, b := range backends {
				s.Flows = append(s.Flows, model.Flow{
					Proto: 6, Original: model.Tuple{Src: podA, Dst: web, SrcPort: 4000, DstPort: 80},
					Reply: model.Tuple{Src: b, Dst: podA, SrcPort: 8080, DstPort: 4000},
				})
			}
		}
	}
	to := func(a netip.Addr) model.AddrMatch { return model.AddrMatch{Prefix: netip.PrefixFrom(a, a.BitLen())} }
	tests := []struct {
		name string
		node func() *model.Snapshot
		to   netip.Addr
		with func(*model.Snapshot)
		// out and back are the hops; decision is in one of them.
		out, back, decision string
	}{
		{"routed, off the node", routedNode, far, nil, "pod pa nat policy route neighbor enp1 beyond", "beyond enp1 nat policy route neighbor pa pod", "default via 192.168.7.1 dev enp1"},
		{"routed, another pod", routedNode, podB, nil, "pod pa nat policy route neighbor pb pod", "pod pb nat policy route neighbor pa pod", "delivered to 172.30.4.9"},
		{"routed, the node", routedNode, nodeIP, nil, "pod pa nat route policy local", "local nat policy route neighbor pa pod", "the node's own"},
		{"bridged, off the node", bridgedNode, far, nil, "pod pa bridge nat policy route neighbor enp1 beyond", "beyond enp1 nat policy route neighbor bridge pa pod", "up to the node"},
		{"bridged, another pod", bridgedNode, podB, nil, "pod pa bridge pb pod", "pod pb bridge pa pod", "bridged to pb"},
		{"bridged, where no pod is known", bridgedNode, netip.MustParseAddr("172.30.4.77"), func(s *model.Snapshot) {
			s.FrameRules = []model.FrameRule{{Backend: model.NFT, Table: "filter", Chain: "OUTPUT", Number: 1, Target: model.TargetDrop, IPSrc: model.AddrMatch{Prefix: pfx("172.30.4.0/24")}}}
		}, "pod pa bridge", "beyond", "172.30.4.77 is routed to kbr, but no known pod there has it"},
		{"the pod's link is down", routedNode, far, func(s *model.Snapshot) { s.Links[1].Up = false }, "pod paX", "beyond enp1 nat policy route neighbor paX", "the link is down"},
		{"no route in the pod", routedNode, far, func(s *model.Snapshot) { s.Pods[0].Routes = s.Pods[0].Routes[1:] }, "podX", "beyond enp1 nat policy route neighbor pa pod", "no route to 172.30.8.5 in the pod"},
		{"the pod's routes were not read", routedNode, far, func(s *model.Snapshot) {
			s.Pods[0].Routes = nil
			s.Sources[7].Status = model.Partial
		}, "pod pa nat policy route neighbor enp1 beyond", "beyond enp1 nat policy route neighbor pa pod", "the routes in the pod were not read"},
		{"a wrong MAC for the gateway", routedNode, far, func(s *model.Snapshot) { s.Pods[0].Gateways[0].MAC = mac(99) }, "pod paX", "beyond enp1 nat policy route neighbor pa pod", "frames are for 02:00:00:00:00:63"},
		{"a wrong MAC for the gateway on a bridge", bridgedNode, far, func(s *model.Snapshot) { s.Pods[0].Gateways[0].MAC = mac(99) }, "pod pa bridgeX", "beyond enp1 nat policy route neighbor bridge pa pod", "but the bridge kbr has"},
		{"the MAC of another port for the gateway", bridgedNode, far, func(s *model.Snapshot) { s.Pods[0].Gateways[0].MAC = mac(60) }, "pod pa bridgeX", "beyond enp1 nat policy route neighbor bridge pa pod", "to the node, which drops them"},
		{"that of the pod's own port", bridgedNode, far, func(s *model.Snapshot) { s.Pods[0].Gateways[0].MAC = mac(50) }, "pod pa bridge nat policy route neighbor enp1 beyond", "beyond enp1 nat policy route neighbor bridge pa pod", "up to the node"},
		{"a wrong MAC for the gateway, which is asked itself", bridgedNode, gateway, func(s *model.Snapshot) { s.Pods[0].Gateways[0].MAC = mac(99) }, "pod pa bridgeX", "local nat policy route neighbor bridge pa pod", "but the bridge kbr has"},
		{"a port without carrier", bridgedNode, podB, func(s *model.Snapshot) {
			s.Links[2].Carrier, s.Links[2].Port = false, &model.BridgePort{State: model.PortDisabled}
		}, "pod pa bridge pbX", "pod pbX", "no carrier: the peer interface is down"},
		{"a port that forwards nothing", bridgedNode, podB, func(s *model.Snapshot) {
			s.Links[2].Port = &model.BridgePort{State: model.PortDisabled}
		}, "pod pa bridgeX", "pod pb bridgeX", "in state disabled"},
		{"an entry that makes the pod's MAC the node's", bridgedNode, podB, func(s *model.Snapshot) {
			s.FDB = []model.FDBEntry{{MAC: mac(61), IfIndex: 5, Bridge: 8, Local: true}}
		}, "pod pa bridgeX", "pod pb bridge pa pod", "to the node, which drops them"},
		{"an entry of another VLAN", bridgedNode, podB, func(s *model.Snapshot) {
			s.FDB = []model.FDBEntry{{MAC: mac(61), IfIndex: 5, Bridge: 8, Local: true, VLAN: 7}, {MAC: mac(61), IfIndex: 2, Bridge: 8, Static: true, VLAN: 7}}
		}, "pod pa bridge pb pod", "pod pb bridge pa pod", "bridged to pb"},
		{"no route", routedNode, far, func(s *model.Snapshot) { s.Routes = s.Routes[1:] }, "pod pa nat routeX", "beyond enp1 nat policy route neighbor pa pod", "no route to 172.30.8.5"},
		{"routes not read", routedNode, far, func(s *model.Snapshot) {
			s.Routes = nil
			s.Sources[1].Status = model.Missing
		}, "pod pa nat route", "beyond enp1 nat route", "the routes were not read completely"},
		{"a blackhole", routedNode, far, func(s *model.Snapshot) {
			s.Routes = append(s.Routes, model.Route{Table: tableMain, Dst: pfx("172.30.8.0/24"), Type: "blackhole"})
		}, "pod pa nat routeX", "beyond enp1 nat policy route neighbor pa pod", "discarded: blackhole 172.30.8.0/24"},
		{"forwarding off", routedNode, far, func(s *model.Snapshot) {
			s.Sysctls = []model.Sysctl{{Name: "net.ipv4.conf.pa.forwarding", Value: "0"}}
		}, "pod pa nat routeX", "beyond enp1 nat policy route neighbor pa pod", "not forwarded"},
		{"forwarding off, and a program forwards", routedNode, far, func(s *model.Snapshot) {
			s.Sysctls = []model.Sysctl{{Name: "net.ipv4.conf.pa.forwarding", Value: "0"}}
			s.Traffic.Peers = []model.Peer{{Local: podA, Remote: far, IfIndex: 2, Out: model.PeerCount{Packets: 5}}}
		}, "pod pa nat policy route neighbor enp1 beyond", "beyond enp1 nat policy route neighbor pa pod", "a BPF program forwards them"},
		{"a table of the pod's that only its rules know", routedNode, far, func(s *model.Snapshot) {
			s.Pods[0].Routes = s.Pods[0].Routes[1:]
			s.Traffic.Peers = []model.Peer{{Local: podA, Remote: far, IfIndex: 2, Out: model.PeerCount{Packets: 5}}}
		}, "pod pa nat policy route neighbor enp1 beyond", "beyond enp1 nat policy route neighbor pa pod", "through a table that was not read"},
		{"a route to a bridge without the pod", routedNode, far, func(s *model.Snapshot) {
			s.Links = append(s.Links, model.Link{Index: 8, Name: "kbr", Kind: "bridge", MAC: mac(80), Up: true, Carrier: true, Role: model.RoleBridge})
			s.Routes[2] = route("172.30.4.7/32", "kbr", 8, netip.Addr{})
		}, "pod pa nat policy route neighbor enp1 beyond", "beyond enp1 nat routeX", "leads to kbr, but the pod is behind pa"},
		{"a tunnel's entry", routedNode, far, func(s *model.Snapshot) {
			s.Links = append(s.Links, model.Link{Index: 8, Name: "vx", Kind: "vxlan", MAC: mac(80), Up: true, Carrier: true, Role: model.RoleTunnel})
			s.Routes = append(s.Routes, route("172.30.8.0/24", "vx", 8, netip.Addr{}))
			s.Neighbors = append(s.Neighbors, model.Neighbor{Addr: far, IfIndex: 8, State: "FAILED"})
			s.Traffic.Drops = []model.Drop{{Src: podA, Dst: far, IfIndex: 8, Link: "vx", Reason: "NEIGH_FAILED", Location: "neigh_invalidate", Packets: 5}}
		}, "pod pa nat policy route neighborX", "beyond vx nat policy route neighbor pa pod", "the next hop 172.30.8.5 does not answer"},
		{"the pod's route is gone", routedNode, far, func(s *model.Snapshot) {
			s.Routes = slices.Delete(s.Routes, 2, 3)
		}, "pod pa nat policy route neighbor enp1 beyond", "beyond enp1 nat routeX", "leads to enp1, but the pod is behind pa"},
		{"the reverse path filter", routedNode, far, func(s *model.Snapshot) {
			s.Routes = append(s.Routes, route("172.30.8.0/24", "pb", 6, netip.Addr{}))
			s.Sysctls = []model.Sysctl{{Name: "net.ipv4.conf.all.rp_filter", Value: "1"}}
		}, "pod pa nat policy route neighbor pb podX", "beyond enp1 nat routeX", "reverse path filter of enp1"},
		{"a stale neighbour", bridgedNode, far, func(s *model.Snapshot) {
			s.Neighbors = append(s.Neighbors, model.Neighbor{Addr: podA, MAC: mac(99), IfIndex: 8, State: "PERMANENT"})
		}, "pod pa bridge nat policy route neighbor enp1 beyond", "beyond enp1 nat policy route neighborX", "the pod has 02:00:00:00:00:33"},
		{"a rule drops", routedNode, far, drop("FORWARD", model.PacketRule{Dst: to(far), Target: "DROP", Text: "-j DROP"}), "pod pa nat policyX", "beyond enp1 nat policy route neighbor pa pod", "dropped by filter FORWARD rule 1"},
		{"a rule with an unread match", routedNode, far, drop("FORWARD", model.PacketRule{Dst: to(far), Target: "DROP", Unknown: []string{"-m set"}}), "pod pa nat policy route neighbor enp1 beyond", "beyond enp1 nat policy route neighbor pa pod", "unknown: 1 rule with matches that were not decoded may decide"},
		{"new flows are dropped, answers are not", routedNode, far, drop("FORWARD", model.PacketRule{Target: "DROP", Unknown: []string{"-m conntrack --ctstate NEW"}}), "pod pa nat policyX", "beyond enp1 nat policy route neighbor pa pod", "dropped by filter FORWARD rule 1"},
		{"what may return is not dropped for sure", routedNode, far, func(s *model.Snapshot) {
			drop("FORWARD", model.PacketRule{Target: "DROP"})(s)
			s.PacketRules = slices.Insert(s.PacketRules, 0, model.PacketRule{Backend: model.NFT, Family: "ip", Table: "filter", Chain: "FORWARD", Target: "RETURN", Unknown: []string{"-m set"}})
		}, "pod pa nat policy route neighbor enp1 beyond", "beyond enp1 nat policy route neighbor pa pod", "unknown: 1 rule with matches that were not decoded may decide"},
		{"what counted nothing behind it drops nothing", routedNode, far, func(s *model.Snapshot) {
			s.Traffic.Hops = []model.HopCount{{Addr: podA, Packets: 9}}
			drop("FORWARD", model.PacketRule{Target: "DROP", Counter: model.Counter{Packets: 3}})(s)
			s.PacketRules = slices.Insert(s.PacketRules, 0, model.PacketRule{Backend: model.NFT, Family: "ip", Table: "filter", Chain: "FORWARD", Target: "RETURN",
				Unknown: []string{"-m set"}, Counter: model.Counter{Packets: 9, Delta: 9}})
		}, "pod pa nat policy route neighbor enp1 beyond", "beyond enp1 nat policy route neighbor pa pod", "accept"},
		{"a rule on another port", routedNode, far, drop("FORWARD", model.PacketRule{Proto: 17, Target: "DROP"}), "pod pa nat policy route neighbor enp1 beyond", "beyond enp1 nat policy route neighbor pa pod", "accept"},
		{"a map decides", routedNode, far, drop("FORWARD", model.PacketRule{Map: "verdicts"}), "pod pa nat policy route neighbor enp1 beyond", "beyond enp1 nat policy route neighbor pa pod", "unknown: 1 rule with matches that were not decoded may decide"},
		{"the pod itself", routedNode, podA, nil, "pod", "pod", "the packets stay in the pod"},
		{"the pod's loopback", routedNode, netip.MustParseAddr("127.0.0.53"), func(s *model.Snapshot) {
			s.Links = append(s.Links, model.Link{Index: 1, Name: "lo", Up: true, Addresses: []netip.Prefix{pfx("127.0.0.1/8")}})
		}, "pod", "pod", "127.0.0.53 is the pod's own address: the packets stay in the pod"},
		{"a service with one backend", routedNode, web, func(s *model.Snapshot) {
			nat := func(chain, target string, dst model.AddrMatch) {
				r := model.PacketRule{Backend: model.NFT, Family: "ip", Table: "nat", Chain: chain, Target: target, Dst: dst}
				if target == "DNAT" {
					r.To = netip.AddrPortFrom(podB, 8080)
				}
				s.PacketRules = append(s.PacketRules, r)
			}
			nat("PREROUTING", "SERVICES", model.AddrMatch{})
			nat("SERVICES", "SVC", to(web))
			nat("SVC", "DNAT", model.AddrMatch{})
			s.Chains = append(s.Chains, model.Chain{Backend: model.NFT, Family: "ip", Table: "nat", Name: "PREROUTING", Hook: "PREROUTING", Priority: -100, Policy: "ACCEPT"})
		}, "pod pa nat policy route neighbor pb pod", "pod pb nat policy route neighbor pa pod", "198.51.100.20:80 becomes 172.30.4.9:8080"},
		{"a service by maps", routedNode, web, func(s *model.Snapshot) {
			s.PacketRules = []model.PacketRule{{Backend: model.NFT, Family: "ip", Table: "kube-proxy", Chain: "services", Native: true, Map: "service-ips"}}
			s.Chains = []model.Chain{{Backend: model.NFT, Family: "ip", Table: "kube-proxy", Name: "services", Hook: "PREROUTING", Priority: -100, Policy: "ACCEPT"}}
		}, "pod pa nat policy route neighbor enp1 beyond", "beyond enp1 nat policy route neighbor pa pod", "unknown whether the destination is translated"},
		{"a service of kube-proxy's nftables mode", routedNode, web, byMaps("198.51.100.20 . tcp . 80", "service-ips"),
			"pod pa nat policy route neighbor pb pod", "pod pb nat policy route neighbor pa pod", "198.51.100.20:80 becomes 172.30.4.9:8080"},
		{"another port of it", routedNode, web, byMaps("198.51.100.20 . tcp . 81", "service-ips"),
			"pod pa nat policyX", "beyond enp1 nat policy route neighbor pa pod", "dropped by kube-proxy cluster-ips-check rule 1"},
		{"one without endpoints", routedNode, web, byMaps("198.51.100.20 . tcp . 80", "no-endpoint-services"),
			"pod pa nat policyX", "beyond enp1 nat policy route neighbor pa pod", "dropped by kube-proxy reject-chain rule 1"},
		{"one whose endpoints' map was not read", routedNode, web, func(s *model.Snapshot) {
			byMaps("198.51.100.20 . tcp . 80", "service-ips")(s)
			s.Sets = s.Sets[:3]
		}, "pod pa nat policyX", "beyond enp1 nat policy route neighbor pa pod", "unknown whether the destination is translated: an nft map"},
		{"a service of IPVS", routedNode, web, ipvs(), "pod pa nat route policy local", "local", "198.51.100.20 is on the dummy link vip: either IPVS forwards it to a backend (not read), or it is for the node"},
		{"a service of IPVS with a flow", routedNode, web, ipvs(podB), "pod pa nat policy route neighbor pb pod", "pod pb nat policy route neighbor pa pod", "198.51.100.20:80 becomes 172.30.4.9:8080"},
		{"a server of the node on a dummy link", routedNode, web, ipvs(web), "pod pa nat route policy local", "local nat policy route neighbor pa pod", "198.51.100.20 is the node's own"},
		{"a bridge rule drops", bridgedNode, podB, bridge("FORWARD", model.FrameRule{Table: "filter", IPDst: to(podB), Target: model.TargetDrop}), "pod pa bridgeX", "pod pb bridge pa pod", "dropped by filter FORWARD rule 1 of the bridge"},
		{"a stale answer to ARP", bridgedNode, podB, bridge("PREROUTING", model.FrameRule{
			Table: "nat", EtherType: etherARP, ARPOp: 1, ARPDst: to(podB), Target: model.TargetARPReply, MAC: mac(99), Verdict: model.TargetDrop,
		}), "pod pa bridgeX", "pod pb bridge pa pod", "the pod has 02:00:00:00:00:3d"},
		{"a flow to a service", routedNode, web, func(s *model.Snapshot) {
			s.Flows = []model.Flow{{
				Proto: 6, Start: time.Unix(1700000000, 0), Original: model.Tuple{Src: podA, Dst: web, SrcPort: 4000, DstPort: 80},
				Reply: model.Tuple{Src: podB, Dst: podA, SrcPort: 8080, DstPort: 4000},
			}}
		}, "pod pa nat policy route neighbor pb pod", "pod pb nat policy route neighbor pa pod", "becomes 172.30.4.9:8080"},
		{"a service that has lost its endpoints", routedNode, web, func(s *model.Snapshot) {
			drop("FORWARD", model.PacketRule{Dst: to(web), Proto: 6, Target: "REJECT", Text: "-j REJECT"})(s)
			s.Flows = []model.Flow{{
				Proto: 6, Original: model.Tuple{Src: podA, Dst: web, SrcPort: 4000, DstPort: 80},
				Reply: model.Tuple{Src: podB, Dst: podA, SrcPort: 8080, DstPort: 4000},
			}}
		}, "pod pa nat policyX", "beyond enp1 nat policy route neighbor pa pod", "only connections from before the window still go to 172.30.4.9:8080"},
		{"a backend replies to a node port", routedNode, far, func(s *model.Snapshot) {
			s.Flows = []model.Flow{{
				Proto: 6, Start: time.Unix(1700000000, 0), Original: model.Tuple{Src: far, Dst: nodeIP, SrcPort: 4000, DstPort: 30080},
				Reply: model.Tuple{Src: podA, Dst: far, SrcPort: 8080, DstPort: 80},
			}}
		}, "pod pa nat policy route neighbor enp1 beyond", "beyond enp1 nat policy route neighbor pa pod", "source 172.30.4.7 becomes 192.168.7.3, as 172.30.8.5 requires"},
		{"a flow with the node's address", routedNode, web, func(s *model.Snapshot) {
			s.Flows = []model.Flow{{
				Proto: 6, Original: model.Tuple{Src: podA, Dst: web, SrcPort: 4000, DstPort: 80},
				Reply: model.Tuple{Src: web, Dst: nodeIP, SrcPort: 80, DstPort: 4000},
			}}
		}, "pod pa nat policy route neighbor enp1 beyond", "beyond enp1 nat policy route neighbor pa pod", "leaves as 192.168.7.3"},
	}
	for _, tt := range tests {
		t.Run(tt.name, func(t *testing.T) {
			s := tt.node()
			if tt.with != nil {
				tt.with(s)
			}
			p := Trace(s, nil, Ends{Pod: podA, To: tt.to, Proto: 6, Port: 80})
			if got := kinds(p.Forward); got != tt.out {
				t.Errorf("out  %s\nwant %s", got, tt.out)
			}
			if got := kinds(p.Return); got != tt.back {
				t.Errorf("back %s\nwant %s", got, tt.back)
			}
			if !slices.ContainsFunc(slices.Concat(p.Forward, p.Return), func(h model.PathHop) bool { return strings.Contains(h.Decision, tt.decision) }) {
				t.Errorf("no hop says %q: %+v", tt.decision, p)
			}
		})
	}
}

// TestTraceWithoutPort names the rule that a port would decide for, too.
func TestTraceWithoutPort(t *testing.T) {
	s := routedNode()
	byMaps("198.51.100.20 . tcp . 80", "no-endpoint-services")(s)
	p := Trace(s, nil, Ends{Pod: podA, To: web})
	if got, want := p.Dead().Decision, "dropped by kube-proxy reject-chain rule 1, or by kube-proxy cluster-ips-check rule 1"; got != want {
		t.Errorf("%q, want %q", got, want)
	}
}

// TestTraceIPv6 is a node with IPv6 alone, a blackhole for one range.
func TestTraceIPv6(t *testing.T) {
	a := netip.MustParseAddr
	pod, gw, up := a("fd00:8::7"), a("fe80::1"), a("2001:db8:1::1")
	s := routedNode()
	p := &s.Pods[0]
	p.Addresses = []netip.Prefix{netip.PrefixFrom(pod, 128)}
	p.Routes = []model.Route{route("::/0", "eth0", 2, gw)}
	p.Gateways = []model.Neighbor{{Addr: gw, MAC: mac(50), State: "REACHABLE"}}
	s.Routes = []model.Route{
		route("::/0", "enp1", 2, up), route("fd00:8::7/128", "pa", 5, netip.Addr{}),
		{Table: tableMain, Dst: pfx("fd00:9::/64"), Type: "unreachable"},
	}
	// The reverse path filter is IPv4's.
	s.Sysctls = []model.Sysctl{{Name: "net.ipv4.conf.all.rp_filter", Value: "1"}}
	if got := Trace(s, nil, Ends{Pod: pod, To: a("2001:db8:7::9")}); slices.ContainsFunc(got.Forward, func(h model.PathHop) bool { return strings.Contains(h.Decision, "rp_filter") }) {
		t.Errorf("IPv6 passes IPv4's filter: %+v", got.Forward)
	}
	for to, want := range map[string]string{
		"2001:db8:7::9": "pod pa nat policy route neighbor enp1 beyond",
		"fd00:9::4":     "pod pa nat routeX",
	} {
		got := Trace(s, nil, Ends{Pod: pod, To: a(to)})
		if out, back := kinds(got.Forward), kinds(got.Return); out != want || back != "beyond enp1 nat policy route neighbor pa pod" {
			t.Errorf("to %s: %s\nback %s", to, out, back)
		}
	}
	s.Sysctls = []model.Sysctl{{Name: "net.ipv6.conf.all.forwarding", Value: "0"}}
	if got := Trace(s, nil, Ends{Pod: pod, To: up}); kinds(got.Forward) != "pod pa nat routeX" {
		t.Errorf("without forwarding: %s", kinds(got.Forward))
	}
}

// TestServedCounts: what a backend replies has the service's address beyond the
// translation. It is counted where that is the node's, and not known where it is not;
// it is never 0.
func TestServedCounts(t *testing.T) {
	vip := netip.MustParseAddr("10.96.0.10")
	for name, tt := range map[string]struct {
		asked netip.Addr
		out   string
	}{"the node's address": {nodeIP, "20"}, "a service's": {vip, "-"}} {
		t.Run(name, func(t *testing.T) {
			s := routedNode()
			s.Flows = []model.Flow{{
				Proto: 6, Start: time.Unix(1700000000, 0), Original: model.Tuple{Src: far, Dst: tt.asked, SrcPort: 4000, DstPort: 80},
				Reply: model.Tuple{Src: podA, Dst: far, SrcPort: 8080, DstPort: 4000},
			}}
			s.Traffic.PairAddrs = []netip.Addr{podA, nodeIP}
			pair := func(link int, d model.Direction, src, dst netip.Addr) {
				s.Traffic.Pairs = append(s.Traffic.Pairs, model.PairCount{Src: src, Dst: dst, IfIndex: link, Direction: d, Packets: 20})
			}
			pair(5, model.Ingress, podA, far)
			pair(5, model.Egress, far, podA)
			if tt.asked == nodeIP {
				pair(2, model.Egress, nodeIP, far)
				pair(2, model.Ingress, far, nodeIP)
			}
			p := Trace(s, nil, Ends{Pod: podA, To: far})
			for which, hops := range map[string][]model.PathHop{"forward": p.Forward, "return": p.Return} {
				i := slices.IndexFunc(hops, func(h model.PathHop) bool { return h.Link == "enp1" && h.Kind == model.HopLink })
				if i < 0 {
					t.Fatalf("%s: no uplink in %s", which, kinds(hops))
				}
				end := hops[i].Out
				if which == "return" {
					end = hops[i].In
				}
				if got := countWord(end); got != tt.out {
					t.Errorf("%s: %s packets at the uplink, want %s", which, got, tt.out)
				}
			}
		})
	}
}

func countWord(c model.Count) string {
	if !c.Known {
		return "-"
	}
	return fmt.Sprint(c.N)
}
