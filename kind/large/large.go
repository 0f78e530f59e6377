// Package large makes readings of the nodes of a large cluster, each with a hundred pods that
// talk to those of others, for tests and benchmarks of what judges many nodes.
package large

import (
	"fmt"
	"net/netip"
	"time"

	"github.com/lasthop/lasthop/probe/model"
)

// Name is the name of a node.
func Name(node int) string { return fmt.Sprintf("aks-nodepool1-%08d-vmss", node) }

// Large is a node with 100 pods, each of which asks pods of other nodes and is asked.
type Large struct {
	// State is what the node has, at any time.
	State model.Snapshot
	start time.Time
	// asks says of each peer whether it is asked, or asks; lost whether nothing comes from it.
	asks, lost []bool
	// cut: nothing comes to its pods.
	cut bool
}

const (
	pods  = 100
	peers = 10
)

// Pod is the address of a pod of a node.
func Pod(node, pod int) netip.Addr {
	return netip.AddrFrom4([4]byte{10, 100 + byte(node>>8), byte(node), byte(10 + pod)})
}

// Addr is the address of a node.
func Addr(node int) netip.Addr {
	return netip.AddrFrom4([4]byte{10, 1, byte(node >> 8), byte(node)})
}

// New is one of some nodes, of which some are cut off.
func New(node, nodes int, cut func(node int) bool) *Large {
	// No two begin at the same moment.
	l := &Large{start: time.Unix(1800000000, 0).Add(time.Duration(node*37%1000) * time.Millisecond), cut: cut(node)}
	s := &l.State
	own := netip.PrefixFrom(Pod(node, -10), 24)
	mac := func(kind, n int) model.MAC {
		return model.MAC{2, byte(kind), byte(node >> 8), byte(node), byte(n >> 8), byte(n)}
	}
	s.Node = model.Node{Name: Name(node), Kernel: "6.8.0-1021-azure", Plugin: "kubenet", Engine: "tc", Attach: "tcx", Uplinks: []string{"eth0"}, Netns: 4026531840}
	for _, name := range []string{
		model.SourceLinks, model.SourceRoutes, model.SourceNeighbors, model.SourceBridge, model.SourceSysctl, model.SourceEbtables, model.SourceNAT,
		model.SourceConntrack, model.SourcePods, model.SourceTC, model.SourceDrops,
	} {
		s.Sources = append(s.Sources, model.Source{Name: name, Status: model.OK, Detail: "all of it"})
	}
	gateway := netip.MustParseAddr("10.1.255.1")
	s.Links = []model.Link{
		{Index: 2, Name: "eth0", MAC: mac(0, 0), Up: true, Carrier: true, Role: model.RoleUplink, MTU: 1500,
			Addresses: []netip.Prefix{netip.PrefixFrom(Addr(node), 16)}},
		{Index: 3, Name: "cbr0", Kind: "bridge", MAC: mac(1, 0), Up: true, Carrier: true, Role: model.RoleBridge, MTU: 1500,
			Addresses: []netip.Prefix{netip.PrefixFrom(Pod(node, -9), 24)}},
	}
	s.Routes = []model.Route{
		{Table: 254, Dst: netip.MustParsePrefix("0.0.0.0/0"), Gateway: gateway, IfIndex: 2, Link: "eth0", Type: "unicast"},
		{Table: 254, Dst: netip.MustParsePrefix("10.1.0.0/16"), IfIndex: 2, Link: "eth0", Type: "unicast"},
		{Table: 254, Dst: own, IfIndex: 3, Link: "cbr0", Type: "unicast"},
	}
	s.Chains = []model.Chain{{Backend: model.NFT, Family: "ip", Table: "nat", Name: "POSTROUTING", Hook: "POSTROUTING", Priority: 100, Policy: "ACCEPT"}}
	s.PacketRules = []model.PacketRule{{Backend: model.NFT, Family: "ip", Table: "nat", Chain: "POSTROUTING", Number: 1, Handle: 5, Target: "MASQUERADE",
		Dst: model.AddrMatch{Prefix: netip.MustParsePrefix("10.0.0.0/8"), Not: true}, Text: "! -d 10.0.0.0/8 -j MASQUERADE"}}
	s.Neighbors = []model.Neighbor{{Addr: gateway, MAC: mac(2, 0), IfIndex: 2, Link: "eth0", State: "REACHABLE"}}
	talk := func(local, remote netip.Addr, asks, lost bool) {
		s.Traffic.Peers = append(s.Traffic.Peers, model.Peer{Local: local, Remote: remote, IfIndex: 2, Link: "eth0", FirstOut: l.start.Add(time.Second)})
		l.asks, l.lost = append(l.asks, asks), append(l.lost, lost)
	}
	talk(Addr(node), Addr((node+1)%nodes), true, false)
	talk(Addr(node), Addr((node-1+nodes)%nodes), false, false)
	port := uint16(20000)
	flow := func(src, dst netip.Addr, replied bool) {
		port++
		s.Flows = append(s.Flows, model.Flow{Proto: 6, Original: model.Tuple{Src: src, Dst: dst, SrcPort: port, DstPort: 8080},
			Reply: model.Tuple{Src: dst, Dst: src, SrcPort: 8080, DstPort: port}, Replied: replied, Timeout: time.Hour, Start: l.start.Add(4 * time.Second)})
	}
	for p := range pods {
		a, index := Pod(node, p), 10+p
		link := fmt.Sprintf("veth%08x", node<<8+p)
		s.Links = append(s.Links, model.Link{Index: index, Name: link, Kind: "veth", Master: 3, Up: true, Carrier: true, Role: model.RolePodLink, MTU: 1500, MAC: mac(3, p)})
		s.Pods = append(s.Pods, model.Pod{
			Namespace: fmt.Sprintf("team-%d", p%31), Name: fmt.Sprintf("app-%d-%d", node, p), MAC: mac(4, p), Interface: "eth0", Up: true,
			Addresses: []netip.Prefix{netip.PrefixFrom(a, 24)}, Link: link, LinkIndex: index, LinkMAC: mac(3, p), Netns: 4026540000 + uint32(p),
			Routes: []model.Route{{Dst: netip.MustParsePrefix("0.0.0.0/0"), Gateway: Pod(node, -9), Type: "unicast", Link: "eth0"}},
		})
		s.Neighbors = append(s.Neighbors, model.Neighbor{Addr: a, MAC: mac(4, p), IfIndex: 3, Link: "cbr0", State: "REACHABLE"})
		s.FDB = append(s.FDB, model.FDBEntry{MAC: mac(4, p), IfIndex: index, Bridge: 3})
		for _, name := range []string{"forwarding", "rp_filter", "proxy_arp", "accept_local", "route_localnet", "send_redirects"} {
			s.Sysctls = append(s.Sysctls, model.Sysctl{Name: "net.ipv4.conf." + link + "." + name, Value: "1"})
		}
		for i := range 12 {
			s.PacketRules = append(s.PacketRules, model.PacketRule{
				Backend: model.NFT, Family: "ip", Table: "nat", Chain: fmt.Sprintf("KUBE-SVC-%016X", p), Number: i + 1, Handle: uint64(12*p+i) + 7,
				Text: fmt.Sprintf("-m comment --comment \"team-%d/service-%d\" -m statistic --mode random --probability 0.333 -j KUBE-SEP-%016X", i%31, p, i), Target: fmt.Sprintf("KUBE-SEP-%016X", i),
			})
		}
		for _, at := range []int{2, index} {
			for _, d := range []model.Direction{model.Ingress, model.Egress} {
				side := model.AsSource
				if (d == model.Egress) == (at != 2) {
					side = model.AsDestination
				}
				s.Traffic.Hops = append(s.Traffic.Hops, model.HopCount{Addr: a, IfIndex: at, Link: s.Links[max(0, at-8)*min(1, at-2)].Name, Direction: d, Side: side, First: l.start})
				from, to := mac(4, p), mac(1, 0)
				if at == 2 {
					from, to = mac(0, 0), mac(2, 0)
				}
				if side == model.AsDestination {
					from, to = to, from
				}
				s.Traffic.MACs = append(s.Traffic.MACs, model.MACPair{Addr: a, IfIndex: at, Direction: d, Side: side, Src: from, Dst: to})
			}
		}
		for k := range peers {
			far, near := (node+1+k)%nodes, (node-1-k+nodes)%nodes
			asked, asker := Pod(far, (p+k)%pods), Pod(near, (p-k+pods)%pods)
			lost := cut(node) || cut(far)
			talk(a, asked, true, lost)
			flow(a, asked, !lost)
			if !cut(node) {
				talk(a, asker, false, false)
				flow(asker, a, true)
			}
		}
	}
	return l
}

// Reading is what was counted by a second. Each third has state. Nothing comes to the pods
// of nodes that are cut off, neither requests nor replies.
func (l *Large) Reading(second int) model.Reading {
	s, n := l.State, uint64(second)
	s.Window = model.Window{Start: l.start, End: l.start.Add(time.Duration(second) * time.Second)}
	t := model.Traffic{Peers: append([]model.Peer(nil), s.Traffic.Peers...), Hops: append([]model.HopCount(nil), s.Traffic.Hops...), MACs: append([]model.MACPair(nil), s.Traffic.MACs...)}
	requests, replies := model.NewPeerCount(8*n, 4*n, 0, 0), model.NewPeerCount(8*n, 0, 8*n, 0)
	for i := range t.Peers {
		p := &t.Peers[i]
		p.LastOut = s.Window.End
		switch {
		case !l.asks[i]:
			p.Out, p.In, p.LastIn = replies, requests, s.Window.End
		case l.lost[i]:
			p.Out = model.NewPeerCount(4*n, 4*n, 0, 0)
		default:
			p.Out, p.In, p.LastIn = requests, replies, s.Window.End
		}
	}
	for h := range model.Each(t.Hops) {
		if l.cut && h.Side == model.AsDestination {
			continue
		}
		h.Packets, h.Bytes, h.SYN, h.Last = 160*n, 16000*n, 40*n, s.Window.End
	}
	for m := range model.Each(t.MACs) {
		if l.cut && m.Side == model.AsDestination {
			continue
		}
		m.Packets = 160 * n
	}
	s.Traffic = t
	return model.Reading{At: s.Window.End, Point: model.Point{Snapshot: &s, Whole: second%3 == 0, Ready: s.Window.End.Add(time.Millisecond)}}
}
