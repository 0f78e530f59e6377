package record

import (
	"fmt"
	"math/rand/v2"
	"net/netip"
	"slices"
	"time"

	"github.com/lasthop/lasthop/probe/model"
)

// node makes up the points of a node with many pods, all of which have traffic
// that counts on at every second, with rates that vary.
type node struct {
	r     *rand.Rand
	start time.Time
	s     model.Snapshot
	t     model.Traffic
}

func newNode(pods int) *node {
	n := &node{r: rand.New(rand.NewPCG(3, 1)), start: time.Date(2026, 3, 1, 4, 5, 6, 789, time.UTC)}
	s := &n.s
	s.Node = model.Node{Name: "worker-7", Kernel: "6.8.0-1021-azure", Plugin: "kubenet", Engine: "tc", Attach: "tcx", Uplinks: []string{"eth0"}}
	for _, name := range []string{"links", "routes", "neighbors", "iptables", "conntrack", "pods", "tc", "drops"} {
		s.Sources = append(s.Sources, model.Source{Name: name, Status: model.OK, Detail: "all of it"})
	}
	addr := netip.MustParseAddr("10.61.128.2")
	for i := range pods {
		n.pod(i, addr)
		addr = addr.Next()
	}
	for i := range 12 * pods {
		s.PacketRules = append(s.PacketRules, model.PacketRule{
			Backend: model.NFT, Family: "ip", Table: "nat", Chain: fmt.Sprintf("KUBE-SVC-%016X", n.r.Uint64()), Number: 1,
			Text:   fmt.Sprintf("-m comment --comment \"team-%d/service-%d -> 10.61.128.%d:8080\" -m statistic --mode random --probability 0.333 -j KUBE-SEP-%X", i%31, i/3, i%250, n.r.Uint64()),
			Handle: uint64(i) + 7, Target: fmt.Sprintf("KUBE-SEP-%X", n.r.Uint64()),
		})
	}
	for range 12 * pods {
		s.Flows = append(s.Flows, n.flow())
	}
	return n
}

func (n *node) mac() (m model.MAC) {
	for i := range m {
		m[i] = byte(n.r.Uint32())
	}
	m[0] &^= 1
	return m
}

func (n *node) pod(i int, a netip.Addr) {
	s, link, index := &n.s, fmt.Sprintf("veth%08x", n.r.Uint32()), 10+i
	p := model.Pod{
		Namespace: fmt.Sprintf("team-%d", i%31), Name: fmt.Sprintf("app-%d-%x", i, n.r.Uint64()), MAC: n.mac(), Interface: "eth0",
		Addresses: []netip.Prefix{netip.PrefixFrom(a, 24)}, Link: link, LinkIndex: index, LinkMAC: n.mac(), Netns: 4026530000 + uint32(i),
		NetnsName: fmt.Sprintf("/run/netns/cni-%x", n.r.Uint64()), Up: true, Since: n.start,
		Routes: []model.Route{{Dst: netip.MustParsePrefix("0.0.0.0/0"), Gateway: netip.MustParseAddr("10.61.128.1"), Type: "unicast", Link: "eth0"}},
	}
	s.Pods = append(s.Pods, p)
	s.Links = append(s.Links, model.Link{Index: index, Name: link, Kind: "veth", MAC: p.LinkMAC, MTU: 1500, Up: true, Carrier: true, Role: model.RolePodLink, Master: 3})
	s.Routes = append(s.Routes, model.Route{Table: 254, Dst: netip.PrefixFrom(a, 32), IfIndex: index, Link: link, Type: "unicast", Protocol: "boot"})
	s.Neighbors = append(s.Neighbors, model.Neighbor{Addr: a, MAC: p.MAC, IfIndex: index, Link: link, State: "REACHABLE"})
	s.FDB = append(s.FDB, model.FDBEntry{MAC: p.MAC, IfIndex: index, Bridge: 3})
	for _, name := range []string{"forwarding", "rp_filter", "proxy_arp", "accept_local", "route_localnet", "send_redirects"} {
		s.Sysctls = append(s.Sysctls, model.Sysctl{Name: "net.ipv4.conf." + link + "." + name, Value: "1"})
	}
	for _, at := range []struct {
		link  string
		index int
	}{{link, index}, {"eth0", 2}} {
		for _, d := range []model.Direction{model.Ingress, model.Egress} {
			side := model.AsSource
			if (d == model.Egress) == (at.index != 2) {
				side = model.AsDestination
			}
			n.t.Hops = append(n.t.Hops, model.HopCount{Addr: a, IfIndex: at.index, Link: at.link, Direction: d, Side: side, TTLs: 1 << 63, First: n.start})
			n.t.MACs = append(n.t.MACs, model.MACPair{Addr: a, IfIndex: at.index, Link: at.link, Direction: d, Side: side, Src: p.MAC, Dst: p.LinkMAC})
		}
	}
	for range 5 {
		n.t.Peers = append(n.t.Peers, model.Peer{Local: a, Remote: n.addr(), IfIndex: 2, Link: "eth0", FirstOut: n.start})
	}
	n.t.Pairs = append(n.t.Pairs, model.PairCount{Src: a, Dst: n.t.Peers[len(n.t.Peers)-1].Remote, IfIndex: index, Link: link, Direction: model.Ingress})
	n.t.PairAddrs = append(n.t.PairAddrs, a)
	n.t.Drops = append(n.t.Drops, model.Drop{Src: a, Dst: n.addr(), Proto: 6, Reason: "NETFILTER_DROP", Location: "nft_do_chain", IfIndex: index, Link: link, Netns: 4026531840, First: n.start})
	if i < 60 {
		n.t.Samples = append(n.t.Samples, model.Sample{Time: n.start, Reason: "NETFILTER_DROP", Location: "nft_do_chain", IfIndex: index, Link: link, Src: a, Protocol: 0x800, Length: 1400, Head: make([]byte, 128)})
	}
}

func (n *node) addr() netip.Addr {
	return netip.AddrFrom4([4]byte{10, 61, byte(n.r.Uint32()), byte(n.r.Uint32())})
}

func (n *node) flow() model.Flow {
	t := model.Tuple{Src: n.addr(), Dst: n.addr(), SrcPort: uint16(n.r.Uint32()), DstPort: 8080}
	return model.Flow{Proto: 6, Original: t, Reply: model.Tuple{Src: t.Dst, Dst: t.Src, SrcPort: t.DstPort, DstPort: t.SrcPort},
		Replied: true, Assured: true, State: "ESTABLISHED", Timeout: 432000 * time.Second}
}

// second lets a second pass and gives its reading.
func (n *node) second(i int) model.Reading {
	now := n.start.Add(time.Duration(i)*time.Second + time.Duration(n.r.IntN(5e6)))
	more := func(most int) uint64 { return uint64(n.r.IntN(most)) }
	// What was given out is not changed any more.
	n.t.Hops, n.t.MACs, n.t.Peers = slices.Clone(n.t.Hops), slices.Clone(n.t.MACs), slices.Clone(n.t.Peers)
	n.t.Drops, n.t.Samples = slices.Clone(n.t.Drops), slices.Clone(n.t.Samples)
	n.t.Pairs = slices.Clone(n.t.Pairs)
	n.s.PacketRules, n.s.Flows = slices.Clone(n.s.PacketRules), slices.Clone(n.s.Flows)
	t := n.t
	for k := range t.Hops {
		h := &t.Hops[k]
		h.Packets += more(300)
		h.Bytes += more(200000)
		h.SYN += more(3)
		h.Last = now
	}
	for k := range t.MACs {
		t.MACs[k].Packets = t.Hops[k].Packets
	}
	for k := range t.Peers {
		p := &t.Peers[k]
		p.Out.Packets += more(60)
		p.Out.Requests += more(3)
		p.In.Packets += more(60)
		p.In.Replies += more(50)
		p.LastOut, p.LastIn = now, now
	}
	for k := range t.Drops {
		t.Drops[k].Packets += more(4)
		t.Drops[k].Last = now
	}
	for k := range t.Pairs {
		t.Pairs[k].Packets = t.Drops[k].Packets
	}
	for range 60 {
		s := &t.Samples[n.r.IntN(len(t.Samples))]
		s.Time, s.Count, s.Head = now, s.Count+1, slices.Clone(s.Head)
		for b := range 40 {
			s.Head[b] = byte(n.r.Uint32())
		}
	}
	whole := i%3 == 0
	if whole {
		for range len(n.s.PacketRules) / 4 {
			r := &n.s.PacketRules[n.r.IntN(len(n.s.PacketRules))]
			r.Counter.Packets += more(100)
			r.Counter.Bytes += more(9000)
		}
		for range len(n.s.Flows) / 20 {
			n.s.Flows[n.r.IntN(len(n.s.Flows))] = n.flow()
		}
		for k := range n.s.Flows {
			n.s.Flows[k].Timeout -= 3 * time.Second
		}
	}
	s := n.s
	s.Window = model.Window{Start: n.start, End: now}
	s.Traffic = t
	return model.Reading{At: now, Point: model.Point{Snapshot: &s, Whole: whole, Ready: now.Add(time.Millisecond)}}
}
