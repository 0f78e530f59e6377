package audit_test

import (
	"fmt"
	"net/netip"

	"github.com/lasthop/lasthop/probe/model"
)

func prefix(s string) netip.Prefix { return netip.MustParsePrefix(s) }
func addr(s string) netip.Addr     { return netip.MustParseAddr(s) }

func mac(n int) model.MAC { return model.MAC{0x0a, 0x58, 0, byte(n >> 16), byte(n >> 8), byte(n)} }

// kubenet is a node without pods: an uplink, a bridge, and the rules that masquerade.
func kubenet() *model.Snapshot {
	n := &model.Snapshot{Node: model.Node{Name: "aks-1", Plugin: "kubenet", Uplinks: []string{"eth0"}, Netns: 1}}
	for _, s := range []string{model.SourceLinks, model.SourceRoutes, model.SourceNeighbors, model.SourceBridge, model.SourceSysctl,
		model.SourceEbtables, model.SourceNAT, model.SourceConntrack, model.SourcePods, model.SourcePrograms, model.SourceNodes} {
		n.Sources = append(n.Sources, model.Source{Name: s, Status: model.OK})
	}
	n.Links = []model.Link{
		{Index: 2, Name: "eth0", MAC: mac(2), Up: true, Carrier: true, Role: model.RoleUplink, Addresses: []netip.Prefix{prefix("10.240.0.4/16")}},
		{Index: 3, Name: "cbr0", Kind: "bridge", MAC: mac(3), Up: true, Carrier: true, Role: model.RoleBridge,
			Addresses: []netip.Prefix{prefix("10.244.0.1/17")}},
	}
	n.Routes = []model.Route{
		{Table: 254, Dst: prefix("0.0.0.0/0"), Gateway: addr("10.240.0.1"), IfIndex: 2, Link: "eth0", Type: "unicast"},
		{Table: 254, Dst: prefix("10.240.0.0/16"), IfIndex: 2, Link: "eth0", Type: "unicast", Protocol: "kernel"},
		{Table: 254, Dst: prefix("10.244.0.0/17"), IfIndex: 3, Link: "cbr0", Type: "unicast", Protocol: "kernel"},
		{Table: 255, Dst: prefix("10.244.0.1/32"), IfIndex: 3, Link: "cbr0", Type: "local", Protocol: "kernel"},
		{Table: 255, Dst: prefix("10.240.0.4/32"), IfIndex: 2, Link: "eth0", Type: "local", Protocol: "kernel"},
	}
	n.Rules = []model.RoutingRule{{Family: 4, Table: 255, Action: "lookup"}, {Family: 4, Priority: 32766, Table: 254, Action: "lookup"}}
	n.Neighbors = []model.Neighbor{{Addr: addr("10.240.0.1"), MAC: mac(1), IfIndex: 2, Link: "eth0", State: "REACHABLE"}}
	n.Sysctls = []model.Sysctl{{Name: "net.ipv4.ip_forward", Value: "1"}, {Name: "net.bridge.bridge-nf-call-iptables", Value: "1"}}
	n.Cluster.PodCIDRs = []netip.Prefix{prefix("10.192.0.0/10")}
	n.Chains = []model.Chain{
		{Backend: model.NFT, Family: "ip", Table: "nat", Name: "PREROUTING", Hook: "PREROUTING", Priority: -100, Policy: "ACCEPT"},
		{Backend: model.NFT, Family: "ip", Table: "nat", Name: "POSTROUTING", Hook: "POSTROUTING", Priority: 100, Policy: "ACCEPT"},
		{Backend: model.NFT, Family: "ip", Table: "filter", Name: "FORWARD", Hook: "FORWARD", Policy: "ACCEPT"},
	}
	natRule(n, model.PacketRule{Chain: "PREROUTING", Target: "KUBE-SERVICES", Text: "-j KUBE-SERVICES"})
	natRule(n, model.PacketRule{Chain: "POSTROUTING", Dst: model.AddrMatch{Prefix: prefix("10.192.0.0/10"), Not: true}, Target: "MASQUERADE",
		Out: model.IfMatch{Name: "eth0"}, Text: "! -d 10.192.0.0/10 -o eth0 -j MASQUERADE"})
	return n
}

func natRule(n *model.Snapshot, r model.PacketRule) {
	r.Backend, r.Family, r.Table, r.Number = model.NFT, "ip", "nat", len(n.PacketRules)+1
	n.PacketRules = append(n.PacketRules, r)
}

// addPod adds a pod on the bridge.
func addPod(n *model.Snapshot, a netip.Addr) *model.Pod {
	index := 10 + len(n.Pods)
	link, hw := fmt.Sprint("veth", index), mac(index)
	n.Links = append(n.Links, model.Link{Index: index, Name: link, Kind: "veth", MAC: mac(1<<20 + index), Master: 3, Up: true, Carrier: true,
		Role: model.RolePodLink, Hairpin: true, Port: &model.BridgePort{State: model.PortForwarding}})
	gateway := model.Neighbor{Addr: addr("10.244.0.1"), MAC: mac(3), State: "REACHABLE"}
	n.Pods = append(n.Pods, model.Pod{
		Namespace: "shop", Name: fmt.Sprint("pod-", len(n.Pods)), Addresses: []netip.Prefix{netip.PrefixFrom(a, 17)}, Link: link, LinkIndex: index,
		Interface: "eth0", MAC: hw, Netns: uint32(1000 + index), Up: true, Gateways: []model.Neighbor{gateway},
		Routes: []model.Route{
			{Table: 254, Dst: prefix("0.0.0.0/0"), Gateway: gateway.Addr, Type: "unicast"},
			{Table: 254, Dst: prefix("10.244.0.0/17"), Type: "unicast"},
		},
	})
	n.Neighbors = append(n.Neighbors, model.Neighbor{Addr: a, MAC: hw, IfIndex: 3, Link: "cbr0", State: "REACHABLE"})
	n.FDB = append(n.FDB, model.FDBEntry{MAC: hw, IfIndex: index, Bridge: 3})
	return &n.Pods[len(n.Pods)-1]
}
