package diagnose

import (
	"fmt"
	"net/netip"
	"os/exec"
	"reflect"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/lasthop/lasthop/probe/fault/bridge"
	"github.com/lasthop/lasthop/probe/model"
	"github.com/lasthop/lasthop/probe/words"
)

// Diagnose is what is found in a snapshot.
func Diagnose(s *model.Snapshot) []model.Finding { return Judge(s).Findings }

// The fixtures below are terse on purpose: a node, what was done to it, and
// the findings that must come of it, as "Code confidence pods peers".

var (
	start = time.Date(2026, 1, 2, 3, 4, 5, 0, time.UTC)
	end   = start.Add(10 * time.Second)
)

func addr(s string) netip.Addr     { return netip.MustParseAddr(s) }
func prefix(s string) netip.Prefix { return netip.MustParsePrefix(s) }

func mac(s string) model.MAC {
	m, err := model.ParseMAC(s)
	if err != nil {
		panic(err)
	}
	return m
}

const (
	fabricMAC = "12:34:56:78:9a:bc"
	nicMAC    = "00:0d:3a:00:00:01"
	deadMAC   = "a2:96:88:20:cb:c6"
)

// node is a snapshot under construction.
// The protocols and the port of names, as packets and rules have them.
const (
	icmp4, tcp, udp, icmp6 = 1, 6, 17, 58
	dnsPort                = 53
)

// The index of lo in every network namespace.
const loopback = 1

// What kube-proxy writes on its rules for what it does not serve (pkg/proxy).
const (
	noEndpoints      = " has no endpoints"
	noLocalEndpoints = " has no local endpoints"
	noSuchService    = "Drop traffic to unallocated ClusterIPs"
	noSuchPort       = "Reject traffic to invalid ports of ClusterIPs"
)

type testNode struct{ model.Snapshot }

func newNode(nic, nodeAddr, subnet, gateway string) *testNode {
	n := &testNode{}
	n.Node = model.Node{Name: "worker", Uplinks: []string{nic}}
	n.Window = model.Window{Start: start, End: end}
	for _, s := range []string{
		model.SourceLinks, model.SourceRoutes, model.SourceNeighbors, model.SourceEbtables, model.SourceNAT,
		model.SourceConntrack, model.SourcePods, model.SourceTC, model.SourceDrops,
	} {
		n.Sources = append(n.Sources, model.Source{Name: s, Status: model.OK})
	}
	n.Links = []model.Link{{Index: 2, Name: nic, MAC: mac(nicMAC), Up: true, Carrier: true, Role: model.RoleUplink}}
	n.Routes = []model.Route{
		{Table: 254, Dst: netip.PrefixFrom(addr(gateway), 0).Masked(), Gateway: addr(gateway), IfIndex: 2, Type: "unicast"},
		{Table: 254, Dst: prefix(subnet), IfIndex: 2, Type: "unicast"},
	}
	n.Neighbors = []model.Neighbor{{Addr: addr(gateway), MAC: mac(fabricMAC), IfIndex: 2}}
	n.Links[0].Addresses = []netip.Prefix{netip.PrefixFrom(addr(nodeAddr), prefix(subnet).Bits())}
	return n
}

// kubenet is a node whose pods hang on a bridge with a range of their own.
func kubenet() *testNode {
	n := newNode("ens5", "10.50.0.4", "10.50.0.0/16", "10.50.0.1")
	n.Links = append(n.Links, model.Link{Index: 3, Name: "br-pods", Kind: "bridge", MAC: mac("0a:00:00:00:00:03"),
		Up: true, Carrier: true, Role: model.RoleBridge, Addresses: []netip.Prefix{prefix("172.20.1.1/24")}})
	n.Routes = append(n.Routes, model.Route{Table: 254, Dst: prefix("172.20.1.0/24"), IfIndex: 3, Type: "unicast"})
	n.Chains = []model.Chain{{Backend: model.NFT, Family: "ip", Table: "nat", Name: "POSTROUTING", Hook: "POSTROUTING", Priority: 100}}
	n.natRules(
		model.PacketRule{Chain: "POSTROUTING", DstLocal: -1, Target: "IP-MASQ-AGENT"},
		model.PacketRule{Chain: "IP-MASQ-AGENT", Dst: model.AddrMatch{Prefix: prefix("172.16.0.0/12")}, Target: "RETURN", Text: "-d 172.16.0.0/12 -j RETURN"},
		model.PacketRule{Chain: "IP-MASQ-AGENT", Dst: model.AddrMatch{Prefix: prefix("10.50.0.0/16")}, Target: "RETURN", Text: "-d 10.50.0.0/16 -j RETURN"},
		model.PacketRule{Chain: "IP-MASQ-AGENT", Target: "MASQUERADE", Text: "-j MASQUERADE"},
	)
	n.pod("172.20.1.5", "0a:58:00:00:00:05", 3)
	n.pod("172.20.1.6", "0a:58:00:00:00:06", 3)
	return n
}

// bridged is a node whose NIC is a port of the bridge that its pods hang on,
// with the rules that azure-vnet writes.
func bridged() *testNode {
	n := newNode("nic0", "10.60.0.4", "10.60.0.0/16", "10.60.0.1")
	n.Links[0].Master = 3
	n.Links = append(n.Links, model.Link{Index: 3, Name: "azure0", Kind: "bridge", MAC: mac(nicMAC), Up: true, Carrier: true, Role: model.RoleBridge, Addresses: n.Links[0].Addresses})
	n.Links[0].Addresses = nil
	for i := range n.Routes {
		n.Routes[i].IfIndex = 3
	}
	n.pod("10.60.0.20", "0a:58:00:00:00:20", 3)
	n.pod("10.60.0.21", "0a:58:00:00:00:21", 3)
	n.arpreply("10.60.0.4", nicMAC)
	for _, p := range n.Pods {
		n.arpreply(p.Addresses[0].Addr().String(), p.MAC.String())
		n.dnat(p.Addresses[0].Addr().String(), p.MAC.String())
	}
	return n
}

// misledFrom is a node whose bridge answers its pods for their gateway with a MAC, to
// which both send.
func misledFrom(hw string) *testNode {
	n := bridged().with(model.SourceBridge)
	n.neighbor("10.60.0.1", fabricMAC, 3, "REACHABLE")
	n.arpreply("10.60.0.1", hw)
	for i := range n.Pods {
		p := &n.Pods[i]
		n.gateway(p, "10.60.0.1", hw, "REACHABLE")
		n.Traffic.MACs = append(n.Traffic.MACs, model.MACPair{Addr: p.Addresses[0].Addr(), IfIndex: p.LinkIndex, Link: p.Link,
			Direction: model.Ingress, Side: model.AsSource, Src: p.MAC, Dst: mac(hw), Packets: 7})
	}
	return n
}

// unknownGateway is such a node that has never asked for the gateway itself. The pods did
// before the window, and ask others by it.
func unknownGateway(in model.PeerCount) *testNode {
	n := misledFrom(deadMAC)
	n.Neighbors = nil
	for i := range n.Pods {
		a := n.Pods[i].Addresses[0].Addr().String()
		n.peer(a, "203.0.113.9", syn, in)
		n.Traffic.MACs[len(n.Traffic.MACs)-1].Dst = mac(deadMAC)
	}
	return n
}

func (n *testNode) pod(a, hw string, master int) {
	index := 10 + len(n.Pods)
	link := fmt.Sprintf("tap%d", index)
	n.Links = append(n.Links, model.Link{Index: index, Name: link, Kind: "veth", Master: master,
		MAC: model.MAC{0xfe, 0, 0, 0, 0, byte(index)}, Up: true, Carrier: true, Role: model.RolePodLink})
	p := addr(a)
	n.Pods = append(n.Pods, model.Pod{Addresses: []netip.Prefix{model.Host(p)}, MAC: mac(hw), Up: true, Link: link, LinkIndex: index})
}

func (n *testNode) natRules(rules ...model.PacketRule) {
	for _, r := range rules {
		r.Backend, r.Family, r.Table = model.NFT, "ip", "nat"
		n.PacketRules = append(n.PacketRules, r)
	}
}

func (n *testNode) frameRule(r model.FrameRule) *model.FrameRule {
	r.Backend, r.Table, r.Chain = model.NFT, "nat", "PREROUTING"
	r.Number = len(n.FrameRules) + 1
	n.FrameRules = append(n.FrameRules, r)
	return &n.FrameRules[len(n.FrameRules)-1]
}

func (n *testNode) arpreply(a, hw string) *model.FrameRule {
	return n.frameRule(model.FrameRule{EtherType: 0x0806, ARPOp: 1, ARPDst: model.AddrMatch{Prefix: model.Host(addr(a))},
		Target: model.TargetARPReply, MAC: mac(hw), Verdict: model.TargetDrop,
		Text: "-p ARP --arp-op Request --arp-ip-dst " + a + " -j arpreply --arpreply-mac " + hw})
}

func (n *testNode) dnat(a, hw string) *model.FrameRule {
	return n.frameRule(model.FrameRule{In: model.IfMatch{Name: "nic0"}, EtherType: 0x0800, IPDst: model.AddrMatch{Prefix: model.Host(addr(a))},
		Target: model.TargetDNAT, MAC: mac(hw), Verdict: model.TargetAccept,
		Text: "-p IPv4 -i nic0 --ip-dst " + a + " -j dnat --to-dst " + hw + " --dnat-target ACCEPT"})
}

// peer adds packets between a local address and a remote one.
func (n *testNode) peer(local, remote string, out, in model.PeerCount) {
	n.Traffic.Peers = append(n.Traffic.Peers, model.Peer{Local: addr(local), Remote: addr(remote), IfIndex: 2, Link: n.Links[0].Name,
		Out: out, In: in, FirstOut: start.Add(time.Second)})
	n.Traffic.MACs = append(n.Traffic.MACs, model.MACPair{Addr: addr(local), IfIndex: 2, Link: n.Links[0].Name,
		Direction: model.Egress, Side: model.AsSource, Src: mac(nicMAC), Dst: mac(fabricMAC), Packets: out.Packets})
}

// Kinds of exchange at the uplink.
var (
	none     = model.PeerCount{}
	syn      = model.PeerCount{Packets: 5, Requests: 5}
	synAck   = model.PeerCount{Packets: 5, Replies: 5}
	datagram = model.PeerCount{Packets: 5, Other: 5}
)

func (n *testNode) silent(local, remote string)   { n.peer(local, remote, syn, none) }
func (n *testNode) answered(local, remote string) { n.peer(local, remote, syn, synAck) }

// flow adds a UDP flow that a pod began in the window.
func (n *testNode) flow(local, remote string, replied bool) {
	n.Flows = append(n.Flows, model.Flow{Proto: 17, Start: start, Replied: replied,
		Original: model.Tuple{Src: addr(local), Dst: addr(remote), DstPort: 53},
		Reply:    model.Tuple{Src: addr(remote), Dst: addr(local), SrcPort: 53}})
}

// datagrams adds UDP flows to a port, each from another socket, and their packets.
func (n *testNode) datagrams(local, remote string, port uint16, count int, replied bool) {
	in := none
	if replied {
		in = datagram
	}
	n.peer(local, remote, model.PeerCount{Packets: uint64(count), Other: uint64(count)}, in)
	for i := range count {
		n.Flows = append(n.Flows, model.Flow{Proto: 17, Start: start, Replied: replied,
			Original: model.Tuple{Src: addr(local), Dst: addr(remote), SrcPort: uint16(40000 + i), DstPort: port},
			Reply:    model.Tuple{Src: addr(remote), Dst: addr(local), SrcPort: port, DstPort: uint16(40000 + i)}})
	}
}

// pinged adds echo requests of a pod that nobody replies to.
func (n *testNode) pinged(local, remote string) {
	n.silent(local, remote)
	n.Flows = append(n.Flows, model.Flow{Proto: 1, Start: start,
		Original: model.Tuple{Src: addr(local), Dst: addr(remote)}, Reply: model.Tuple{Src: addr(remote), Dst: addr(local)}})
}

// halfOpen adds TCP connections that a peer began and does not go on with.
func (n *testNode) halfOpen(remote, local string, count int) {
	for range count {
		n.Flows = append(n.Flows, model.Flow{Proto: 6, Start: start, Replied: true, State: "SYN_RECV",
			Original: model.Tuple{Src: addr(remote), Dst: addr(local)}, Reply: model.Tuple{Src: addr(local), Dst: addr(remote)}})
	}
}

func (n *testNode) drop(reason model.Reason, location, src, dst string, packets uint64) *model.Drop {
	n.Traffic.Drops = append(n.Traffic.Drops, model.Drop{Reason: reason, Location: location, Src: addr(src), Dst: addr(dst), Packets: packets})
	return &n.Traffic.Drops[len(n.Traffic.Drops)-1]
}

func (n *testNode) lose(source string, status model.Status) {
	for i := range n.Sources {
		if n.Sources[i].Name == source {
			n.Sources[i].Status = status
		}
	}
}

// brief writes a finding as the fixtures do.
func brief(f model.Finding) string {
	parts := []string{string(f.Code), string(f.Confidence)}
	for _, p := range f.Pods {
		parts = append(parts, p.String())
	}
	for _, p := range f.Peers {
		parts = append(parts, strings.TrimSuffix(p.String(), "/32"))
	}
	return strings.Join(parts, " ")
}

func TestDiagnose(t *testing.T) {
	tests := []struct {
		name string
		node func() *testNode
		want []string
	}{
		{"kubenet, everything answers", func() *testNode {
			n := kubenet()
			n.answered("172.20.1.5", "172.20.2.9")
			n.answered("10.50.0.4", "203.0.113.9")
			n.peer("172.20.1.6", "172.20.3.9", datagram, datagram)
			n.flow("172.20.1.6", "172.20.3.9", true)
			return n
		}, nil},
		{"azure-bridge, its own rules", bridged, nil},
		{"one of three podCIDRs is silent", func() *testNode {
			n := kubenet()
			n.answered("172.20.1.5", "172.20.2.9")
			n.silent("172.20.1.5", "172.20.3.9")
			n.silent("172.20.1.6", "172.20.3.10")
			return n
		}, []string{"MissingUDR likely 172.20.1.5 172.20.1.6 172.20.3.0/24"}},
		{"one address is not a range, though another range answers", func() *testNode {
			n := kubenet()
			n.answered("172.20.1.5", "172.20.2.9")
			n.silent("172.20.1.5", "172.20.3.9")
			n.silent("172.20.1.6", "172.20.3.9")
			return n
		}, []string{"NoReply likely 172.20.1.5 172.20.1.6 172.20.3.9"}},
		{"the only one that is asked of all ranges", func() *testNode {
			n := kubenet()
			n.answered("10.50.0.4", "10.50.0.5")
			n.silent("172.20.1.5", "172.20.2.9")
			return n
		}, []string{"NoReply likely 172.20.1.5 172.20.2.9"}},
		{"two of one range, and no range answers", func() *testNode {
			n := kubenet()
			n.answered("10.50.0.4", "203.0.113.9")
			n.silent("172.20.1.5", "172.20.2.9")
			n.silent("172.20.1.5", "172.20.2.10")
			return n
		}, []string{"MissingUDR likely 172.20.1.5 172.20.2.0/24"}},
		{"two ranges with one silent address each, a third answers", func() *testNode {
			n := kubenet()
			n.answered("172.20.1.5", "172.20.2.9")
			n.silent("172.20.1.5", "172.20.3.9")
			n.silent("172.20.1.6", "172.20.4.9")
			return n
		}, []string{"NoReply likely 172.20.1.5 172.20.1.6 172.20.3.9 172.20.4.9"}},
		{"two addresses are silent, and nothing else answers", func() *testNode {
			n := kubenet()
			n.silent("172.20.1.5", "172.20.2.9")
			n.silent("172.20.1.5", "172.20.3.9")
			return n
		}, []string{"NoReply possible 172.20.1.5 172.20.2.9 172.20.3.9"}},
		{"all podCIDRs are silent, a node answers", func() *testNode {
			n := kubenet()
			n.answered("10.50.0.4", "10.50.0.5")
			n.silent("172.20.1.5", "172.20.2.9")
			n.silent("172.20.1.6", "172.20.3.9")
			return n
		}, []string{"MissingUDR likely 172.20.1.5 172.20.1.6 172.20.2.0/24 172.20.3.0/24"}},
		{"silent, and nothing at all answers", func() *testNode {
			n := kubenet()
			n.silent("172.20.1.5", "172.20.2.9")
			return n
		}, []string{"NoReply possible 172.20.1.5 172.20.2.9"}},
		{"a podCIDR that answers once is not blamed", func() *testNode {
			n := kubenet()
			n.silent("172.20.1.5", "172.20.2.9")
			n.answered("172.20.1.6", "172.20.2.10")
			return n
		}, []string{"NoReply likely 172.20.1.5 172.20.2.9"}},
		{"the peers ask, our answers die", func() *testNode {
			n := kubenet()
			n.answered("172.20.1.5", "172.20.2.9")
			n.peer("172.20.1.5", "172.20.3.9", synAck, syn)
			n.halfOpen("172.20.3.9", "172.20.1.5", 3)
			return n
		}, []string{"NoReply likely 172.20.1.5 172.20.3.9"}},
		{"peers ping, or are refused: nobody acknowledges that", func() *testNode {
			n := kubenet()
			n.peer("172.20.1.5", "172.20.3.9", synAck, syn)
			return n
		}, nil},
		{"who only sends datagrams wants no answer", func() *testNode {
			n := kubenet()
			n.peer("172.20.1.5", "172.20.3.9", datagram, none)
			n.flow("172.20.1.5", "172.20.3.9", false)
			n.Flows[0].Original.DstPort = 8125
			return n
		}, nil},
		{"so does who sends each from a new socket", func() *testNode {
			n := kubenet()
			n.answered("172.20.1.5", "10.50.0.5")
			n.datagrams("172.20.1.5", "172.20.3.9", 8125, 80, false)
			n.datagrams("172.20.1.6", "172.20.3.10", 514, 80, false)
			n.datagrams("172.20.1.6", "203.0.113.9", 6831, 80, false)
			return n
		}, nil},
		{"datagrams to a port that another target replies from", func() *testNode {
			n := kubenet()
			n.datagrams("172.20.1.6", "172.20.2.9", 4433, 1, true)
			n.datagrams("172.20.1.5", "172.20.3.9", 4433, 3, false)
			return n
		}, []string{"NoReply likely 172.20.1.5 172.20.3.9"}},
		{"TCP that goes on, with what acknowledges it elsewhere", func() *testNode {
			n := kubenet()
			n.answered("172.20.1.5", "10.50.0.5")
			n.peer("172.20.1.5", "172.20.3.9", synAck, none)
			n.peer("172.20.1.6", "172.20.3.10", synAck, none)
			return n
		}, nil},
		{"datagrams come back and connection tracking has forgotten them", func() *testNode {
			n := kubenet()
			n.peer("172.20.1.5", "172.20.3.9", datagram, datagram)
			return n
		}, nil},
		{"datagrams of flows that the others began are no answer", func() *testNode {
			n := kubenet()
			n.answered("172.20.1.5", "172.20.2.9")
			n.silent("172.20.1.5", "172.20.3.9")
			n.silent("172.20.1.5", "172.20.3.10")
			n.peer("172.20.1.6", "172.20.3.9", none, datagram)
			n.flow("172.20.3.9", "172.20.1.6", true)
			return n
		}, []string{"MissingUDR likely 172.20.1.5 172.20.3.0/24"}},
		{"datagrams come, what asks is not answered, and nothing is tracked", func() *testNode {
			n := kubenet()
			n.answered("172.20.1.6", "172.20.2.9")
			n.peer("172.20.1.5", "172.20.3.9", syn, datagram)
			return n
		}, []string{"NoReply likely 172.20.1.5 172.20.3.9"}},
		{"answers return by the other uplink", func() *testNode {
			n := kubenet()
			n.PacketRules = n.PacketRules[:3]
			n.Links = append(n.Links, model.Link{Index: 4, Name: "ens6", MAC: mac("00:0d:3a:00:00:02"), Up: true, Carrier: true, Role: model.RoleUplink})
			n.silent("172.20.1.5", "203.0.113.9")
			n.peer("172.20.1.5", "203.0.113.9", none, synAck)
			n.Traffic.Peers[1].IfIndex = 4
			return n
		}, nil},
		{"answers return by a link that is not watched", func() *testNode {
			n := kubenet()
			n.answered("172.20.1.5", "10.50.0.5")
			for _, a := range []string{"172.20.3.9", "172.20.3.10"} {
				n.silent("172.20.1.5", a)
				n.Flows = append(n.Flows, model.Flow{Proto: 6, Start: start, Replied: true, State: "ESTABLISHED",
					Original: model.Tuple{Src: addr("172.20.1.5"), Dst: addr(a)}, Reply: model.Tuple{Src: addr(a), Dst: addr("172.20.1.5")}})
			}
			return n
		}, nil},
		{"the far end's connections become established, by a link that is not watched", func() *testNode {
			n := kubenet()
			n.answered("172.20.1.5", "10.50.0.5")
			n.peer("172.20.1.5", "172.20.3.9", syn, none)
			n.Flows = append(n.Flows, model.Flow{Proto: 6, Start: start, Replied: true, Assured: true,
				Original: model.Tuple{Src: addr("172.20.3.9"), Dst: addr("172.20.1.5")}, Reply: model.Tuple{Src: addr("172.20.1.5"), Dst: addr("172.20.3.9")}})
			return n
		}, nil},
		{"replies of long ago are none of this window", func() *testNode {
			n := kubenet()
			n.answered("172.20.1.5", "10.50.0.5")
			n.silent("172.20.1.5", "172.20.3.9")
			n.Flows = append(n.Flows, model.Flow{Proto: 6, Replied: true, Assured: true,
				Original: model.Tuple{Src: addr("172.20.1.5"), Dst: addr("172.20.3.9")}, Reply: model.Tuple{Src: addr("172.20.3.9"), Dst: addr("172.20.1.5")}})
			return n
		}, []string{"NoReply likely 172.20.1.5 172.20.3.9"}},
		{"pairs were not all counted, and no flow is seen without a reply", func() *testNode {
			n := kubenet()
			n.silent("172.20.1.5", "172.20.3.9")
			n.Traffic.Lost.Counters = 7
			return n
		}, nil},
		{"others kept replies from being counted, and no flow is seen without one", func() *testNode {
			n := kubenet()
			n.answered("172.20.1.5", "172.20.2.9")
			n.silent("172.20.1.5", "172.20.3.9")
			n.Traffic.Lost.Gaps = 1
			return n
		}, nil},
		{"peers of another pod were not all counted, nor were drops", func() *testNode {
			n := kubenet()
			n.answered("172.20.1.5", "172.20.2.9")
			n.silent("172.20.1.5", "172.20.3.9")
			n.Traffic.Lost = model.Lost{Counters: 9, Others: 2, Addrs: []model.AddrLoss{{Addr: addr("172.20.1.6"), Peers: 7}}}
			return n
		}, []string{"NoReply likely 172.20.1.5 172.20.3.9"}},
		{"a reply may be among those of a range", func() *testNode {
			n := kubenet()
			n.answered("172.20.1.5", "172.20.2.9")
			n.silent("172.20.1.5", "172.20.3.9")
			n.Traffic.Peers = append(n.Traffic.Peers, model.Peer{Local: addr("172.20.1.5"), Range: prefix("172.20.3.0/24"), IfIndex: 2, Out: syn, In: synAck})
			return n
		}, nil},
		{"another pod's ranges, and one without a reply, do not hide a silent peer", func() *testNode {
			n := kubenet()
			n.answered("172.20.1.5", "172.20.2.9")
			n.silent("172.20.1.5", "172.20.3.9")
			n.Traffic.Peers = append(n.Traffic.Peers,
				model.Peer{Local: addr("172.20.1.6"), Range: prefix("0.0.0.0/0"), IfIndex: 2, Out: syn, In: synAck},
				model.Peer{Local: addr("172.20.1.5"), Range: prefix("172.20.3.0/24"), IfIndex: 2, Out: syn})
			return n
		}, []string{"NoReply likely 172.20.1.5 172.20.3.9"}},
		{"UDP that comes from there is no answer to ours", func() *testNode {
			n := kubenet()
			n.answered("172.20.1.5", "172.20.2.9")
			n.peer("172.20.1.5", "172.20.3.9", datagram, datagram)
			for range 3 {
				n.flow("172.20.1.5", "172.20.3.9", false)
			}
			n.flow("172.20.3.9", "172.20.1.5", false)
			return n
		}, []string{"NoReply likely 172.20.1.5 172.20.3.9"}},
		{"replies that come in and that connection tracking does not see: it tracks one way alone, or they are dropped before", func() *testNode {
			n := kubenet()
			n.answered("172.20.1.5", "172.20.2.9")
			n.peer("172.20.1.5", "172.20.3.9", datagram, datagram)
			for range 3 {
				n.flow("172.20.1.5", "172.20.3.9", false)
			}
			return n
		}, nil},
		{"ICMP errors about one address: the other node has no such pod", func() *testNode {
			n := kubenet()
			n.answered("172.20.1.5", "10.50.0.5")
			n.peer("172.20.1.5", "172.20.3.9", syn, model.PeerCount{Packets: 1, ICMPErrors: 1})
			return n
		}, []string{"NoReply likely 172.20.1.5 172.20.3.9"}},
		{"ICMP errors about each address: a router's", func() *testNode {
			n := kubenet()
			n.answered("172.20.1.5", "172.20.2.9")
			n.peer("172.20.1.5", "172.20.3.9", syn, model.PeerCount{Packets: 1, ICMPErrors: 1})
			n.peer("172.20.1.6", "172.20.3.10", syn, model.PeerCount{Packets: 1, ICMPErrors: 1})
			return n
		}, []string{"MissingUDR likely 172.20.1.5 172.20.1.6 172.20.3.0/24"}},
		{"an ICMP error about a datagram is an answer", func() *testNode {
			n := kubenet()
			n.peer("172.20.1.5", "172.20.3.9", datagram, model.PeerCount{Packets: 1, ICMPErrors: 1})
			n.flow("172.20.1.5", "172.20.3.9", false)
			return n
		}, nil},
		{"packets of the last moment are not judged", func() *testNode {
			n := kubenet()
			n.silent("172.20.1.5", "172.20.3.9")
			n.Traffic.Peers[0].FirstOut = end.Add(-749 * time.Millisecond)
			return n
		}, nil},
		{"packets that a reply had time for are", func() *testNode {
			n := kubenet()
			n.silent("172.20.1.5", "172.20.3.9")
			n.Traffic.Peers[0].FirstOut = end.Add(-750 * time.Millisecond)
			return n
		}, []string{"NoReply possible 172.20.1.5 172.20.3.9"}},
		{"the node routes that range itself", func() *testNode {
			n := kubenet()
			n.Routes = append(n.Routes, model.Route{Table: 254, Dst: prefix("172.20.3.0/24"), Gateway: addr("10.50.0.9"), IfIndex: 2, Type: "unicast"})
			n.silent("172.20.1.5", "172.20.3.9")
			return n
		}, []string{"NoReply possible 172.20.1.5 172.20.3.9"}},
		{"frames that left for a wrong MAC are not the fabric's fault", func() *testNode {
			n := kubenet()
			n.silent("172.20.1.5", "172.20.3.9")
			n.Traffic.MACs[0].Dst = mac(deadMAC)
			return n
		}, []string{"NoReply likely 172.20.1.5 172.20.3.9"}},
		{"ranges of another size from the nodes file", func() *testNode {
			n := kubenet()
			n.Cluster.Nodes = []model.ClusterNode{
				{Name: "a", Addresses: []netip.Addr{addr("10.50.0.4")}, PodCIDRs: []netip.Prefix{prefix("172.20.1.0/24")}},
				{Name: "b", Addresses: []netip.Addr{addr("10.50.0.5")}, PodCIDRs: []netip.Prefix{prefix("192.168.64.0/20")}},
				{Name: "c", Addresses: []netip.Addr{addr("10.50.0.6")}, PodCIDRs: []netip.Prefix{prefix("192.168.80.0/20")}},
			}
			n.silent("172.20.1.5", "192.168.70.9")
			n.silent("172.20.1.5", "192.168.71.9")
			n.answered("172.20.1.5", "192.168.81.9")
			return n
		}, []string{"MissingUDR likely 172.20.1.5 192.168.64.0/20"}},
		{"ranges far apart, in what the agent keeps from translation", func() *testNode {
			n := kubenet()
			n.silent("172.20.1.5", "172.29.3.9")
			n.silent("172.20.1.5", "172.29.3.10")
			n.answered("172.20.1.5", "172.25.7.9")
			return n
		}, []string{"MissingUDR likely 172.20.1.5 172.29.3.0/24"}},
		{"ranges that the agent keeps from translation one by one", func() *testNode {
			n := kubenet()
			n.Cluster.PodCIDRs = []netip.Prefix{prefix("172.20.1.0/24")}
			n.PacketRules = n.PacketRules[:1]
			for _, p := range []string{"172.20.1.0/24", "100.70.3.0/24", "100.70.4.0/24"} {
				n.natRules(model.PacketRule{Chain: "IP-MASQ-AGENT", Dst: model.AddrMatch{Prefix: prefix(p)}, Target: "RETURN", Text: "-d " + p + " -j RETURN"})
			}
			n.natRules(model.PacketRule{Chain: "IP-MASQ-AGENT", Target: "MASQUERADE", Text: "-j MASQUERADE"})
			n.answered("172.20.1.5", "100.70.4.9")
			n.silent("172.20.1.5", "100.70.3.9")
			return n
		}, []string{"NoReply likely 172.20.1.5 100.70.3.9"}},
		{"a gateway that gives no echo reply, and forwards", func() *testNode {
			n := kubenet()
			n.answered("172.20.1.5", "172.20.2.9")
			n.pinged("172.20.1.5", "10.50.0.1")
			return n
		}, nil},
		{"a gateway that gives no echo reply, and beyond which nobody replies", func() *testNode {
			n := kubenet()
			n.pinged("172.20.1.5", "10.50.0.1")
			return n
		}, []string{"NoReply possible 172.20.1.5 10.50.0.1"}},
		{"a gateway that is asked for more than echo replies", func() *testNode {
			n := kubenet()
			n.answered("172.20.1.5", "172.20.2.9")
			n.pinged("172.20.1.5", "10.50.0.1")
			n.flow("172.20.1.5", "10.50.0.1", false)
			return n
		}, []string{"NoReply likely 172.20.1.5 10.50.0.1"}},
		{"a peer that gives no echo reply, and is no gateway", func() *testNode {
			n := kubenet()
			n.answered("172.20.1.5", "172.20.2.9")
			n.pinged("172.20.1.5", "10.50.0.9")
			return n
		}, []string{"NoReply likely 172.20.1.5 10.50.0.9"}},
		{"no masquerade at all", func() *testNode {
			n := kubenet()
			n.PacketRules = n.PacketRules[:3]
			n.answered("172.20.1.5", "172.20.2.9")
			n.silent("172.20.1.5", "203.0.113.9")
			return n
		}, []string{"MissingMasquerade likely 172.20.1.5 203.0.113.9"}},
		{"an exclusion that is too wide", func() *testNode {
			n := kubenet()
			n.PacketRules = slices.Insert(n.PacketRules, 1, model.PacketRule{Backend: model.NFT, Family: "ip", Table: "nat",
				Chain: "IP-MASQ-AGENT", Dst: model.AddrMatch{Prefix: prefix("0.0.0.0/0")}, Target: "RETURN", Text: "-j RETURN"})
			n.silent("172.20.1.6", "198.51.100.7")
			return n
		}, []string{"MissingMasquerade likely 172.20.1.6 198.51.100.7"}},
		{"outside answers without masquerade", func() *testNode {
			n := kubenet()
			n.PacketRules = n.PacketRules[:3]
			n.answered("172.20.1.5", "203.0.113.9")
			n.silent("172.20.1.5", "203.0.113.10")
			return n
		}, []string{"NoReply likely 172.20.1.5 203.0.113.10"}},
		{"nat rules unread", func() *testNode {
			n := kubenet()
			n.lose(model.SourceNAT, model.Missing)
			n.PacketRules = nil
			n.silent("172.20.1.5", "203.0.113.9")
			n.silent("172.20.1.5", "198.51.100.7")
			return n
		}, []string{"MissingMasquerade likely 172.20.1.5 198.51.100.7 203.0.113.9"}},
		{"nat rules unread, and one target alone is silent", func() *testNode {
			n := kubenet()
			n.lose(model.SourceNAT, model.Missing)
			n.PacketRules = nil
			n.answered("10.50.0.4", "10.50.0.5")
			n.silent("172.20.1.5", "203.0.113.9")
			return n
		}, []string{"NoReply likely 172.20.1.5 203.0.113.9"}},
		{"a pod of the node's subnet needs no masquerade", func() *testNode {
			n := bridged()
			n.silent("10.60.0.20", "203.0.113.9")
			return n
		}, []string{"NoReply possible 10.60.0.20 203.0.113.9"}},
		{"missing route and missing masquerade at once", func() *testNode {
			n := kubenet()
			n.PacketRules = n.PacketRules[:3]
			n.answered("172.20.1.5", "172.20.2.9")
			n.silent("172.20.1.5", "172.20.3.9")
			n.silent("172.20.1.5", "172.20.3.10")
			n.silent("172.20.1.5", "203.0.113.9")
			return n
		}, []string{"MissingUDR likely 172.20.1.5 172.20.3.0/24", "MissingMasquerade likely 172.20.1.5 203.0.113.9"}},
		{"a dnat rule with a dead MAC", func() *testNode {
			n := bridged()
			n.FrameRules[2] = *n.dnat("10.60.0.20", deadMAC)
			n.FrameRules = n.FrameRules[:len(n.FrameRules)-1]
			return n
		}, []string{"StaleMACRewrite proven 10.60.0.20"}},
		{"a dead rule behind the right one is never reached", func() *testNode {
			n := bridged()
			n.dnat("10.60.0.20", deadMAC)
			n.arpreply("10.60.0.21", deadMAC)
			return n
		}, nil},
		{"the MAC of another pod is as wrong", func() *testNode {
			n := bridged()
			n.FrameRules = nil
			n.dnat("10.60.0.20", "0a:58:00:00:00:21")
			return n
		}, []string{"StaleMACRewrite proven 10.60.0.20"}},
		{"the bridge's own MAC leads to the node, which routes", func() *testNode {
			n := bridged()
			n.FrameRules = nil
			n.dnat("10.60.0.20", nicMAC)
			return n
		}, nil},
		{"tunnel mode answers with the gateway's MAC", func() *testNode {
			n := bridged()
			n.FrameRules = nil
			n.arpreply("10.60.0.20", fabricMAC)
			return n
		}, nil},
		{"tunnel mode, the gateway's MAC not known", func() *testNode {
			n := bridged()
			n.FrameRules, n.Neighbors = nil, nil
			n.frameRule(model.FrameRule{Table: "nat", Chain: "PREROUTING", Target: model.TargetDNAT, MAC: mac(fabricMAC), In: model.IfMatch{Name: "p+"}})
			n.arpreply("10.60.0.20", fabricMAC)
			return n
		}, nil},
		{"an arpreply rule with a dead MAC", func() *testNode {
			n := bridged()
			n.FrameRules = nil
			n.arpreply("10.60.0.21", deadMAC)
			return n
		}, []string{"StaleARPReply proven 10.60.0.21"}},
		{"a rule answers for the gateway, and is the cause of what the pods believe", func() *testNode {
			return misledFrom(deadMAC)
		}, []string{"StaleARPReply proven 10.60.0.20 10.60.0.21"}},
		{"a rule answers for the gateway with its MAC", func() *testNode {
			return misledFrom(fabricMAC)
		}, nil},
		{"a rule answers for a gateway of which nothing is known", func() *testNode {
			return unknownGateway(none)
		}, []string{"StaleARPReply likely 10.60.0.20 10.60.0.21"}},
		{"a rule answers for a gateway of which nothing is known, and replies come", func() *testNode {
			return unknownGateway(synAck)
		}, nil},
		{"a pod believes another MAC than the rule for its gateway says", func() *testNode {
			n := misledFrom(deadMAC)
			n.gateway(&n.Pods[1], "10.60.0.1", "02:00:00:00:00:99", "REACHABLE")
			return n
		}, []string{"StaleARPReply proven 10.60.0.20", "WrongGatewayMAC possible 10.60.0.21"}},
		{"rules for an address that nobody has, unused", func() *testNode {
			n := bridged()
			n.arpreply("10.60.0.99", deadMAC)
			n.dnat("10.60.0.99", deadMAC)
			return n
		}, nil},
		{"a rule for an address that nobody has answers", func() *testNode {
			n := bridged()
			n.arpreply("10.60.0.99", deadMAC).Counter.Delta = 4
			return n
		}, []string{"StaleARPReply likely 10.60.0.99"}},
		{"a pod that just went away still has its rule", func() *testNode {
			n := bridged()
			n.arpreply("10.60.0.99", deadMAC).Counter.Delta = 4
			n.PastPods = []model.Pod{{Addresses: []netip.Prefix{prefix("10.60.0.99/32")}}}
			return n
		}, nil},
		{"the node's neighbour entry gives frames their MAC", func() *testNode {
			n := bridged()
			n.neighbor("10.60.0.20", deadMAC, 3, "PERMANENT")
			n.Traffic.MACs = []model.MACPair{
				{Addr: addr("10.60.0.20"), IfIndex: 2, Link: "nic0", Direction: model.Ingress, Side: model.AsDestination, Src: mac(fabricMAC), Dst: mac(nicMAC), Packets: 7},
				{Addr: addr("10.60.0.20"), IfIndex: 2, Link: "nic0", Direction: model.Egress, Side: model.AsDestination, Src: mac(nicMAC), Dst: mac(deadMAC), Packets: 7},
			}
			return n
		}, []string{"StaleNeighbor proven 10.60.0.20"}},
		{"frames were rewritten and the rules are unread", func() *testNode {
			n := bridged()
			n.FrameRules = nil
			n.lose(model.SourceEbtables, model.Missing)
			n.Traffic.MACs = []model.MACPair{
				{Addr: addr("10.60.0.20"), IfIndex: 2, Link: "nic0", Direction: model.Ingress, Side: model.AsDestination, Src: mac(fabricMAC), Dst: mac(nicMAC), Packets: 7},
				{Addr: addr("10.60.0.20"), IfIndex: 2, Link: "nic0", Direction: model.Egress, Side: model.AsDestination, Src: mac(nicMAC), Dst: mac(deadMAC), Packets: 7},
			}
			return n
		}, []string{"StaleMACRewrite likely 10.60.0.20"}},
		{"drops without a cause", func() *testNode {
			n := kubenet()
			n.drop("IP_CSUM", "ip_rcv_core", "203.0.113.9", "172.20.1.5", 9)
			n.drop("IP_CSUM", "ip_rcv_core", "203.0.113.9", "172.20.1.6", 2)
			return n
		}, []string{"UnexplainedDrop proven 172.20.1.5 172.20.1.6 203.0.113.9"}},
		{"drops of several far ends without a cause", func() *testNode {
			n := kubenet()
			for _, far := range []string{"198.51.100.0/24", "0.0.0.0/0"} {
				n.Traffic.Drops = append(n.Traffic.Drops, model.Drop{Reason: "IP_CSUM", Location: "ip_rcv_core", Range: prefix(far), Dst: addr("172.20.1.5"), Packets: 9})
			}
			return n
		}, []string{"UnexplainedDrop proven 172.20.1.5 198.51.100.0/24"}},
		{"transports free packets as they go; bridges flood", func() *testNode {
			n := kubenet()
			n.drop("TCP_OLD_DATA", "tcp_rcv_established", "172.20.1.6", "172.20.1.5", 90)
			n.drop("OTHERHOST", "ip_rcv_core", "172.20.1.6", "172.20.1.5", 90).DstMAC = n.Pods[0].MAC
			n.drop("QUEUE_PURGE", "sk_stream_kill_queues", "172.20.1.6", "172.20.1.5", 90)
			n.drop("NOT_SPECIFIED", "sk_stream_kill_queues", "172.20.1.6", "172.20.1.5", 90)
			n.drop("", "tcp_rcv_established", "172.20.1.6", "172.20.1.5", 90)
			n.drop("IP_RPFILTER", "ip_rcv_finish_core", "203.0.113.9", "172.20.1.5", 1)
			return n
		}, nil},
		{"frames for a pod that went away are flooded", func() *testNode {
			n := kubenet()
			n.PastPods = []model.Pod{{Addresses: []netip.Prefix{prefix("172.20.1.99/32")}, MAC: mac(deadMAC)}}
			n.drop("OTHERHOST", "ip_rcv_core", "172.20.1.5", "172.20.1.99", 20).DstMAC = mac(deadMAC)
			return n
		}, nil},
		{"a stale rule accounts for the drops elsewhere", func() *testNode {
			n := bridged()
			n.FrameRules = nil
			n.dnat("10.60.0.20", deadMAC)
			n.drop("OTHERHOST", "ip_rcv_core", "203.0.113.9", "10.60.0.20", 70).DstMAC = mac(deadMAC)
			return n
		}, []string{"StaleMACRewrite proven 10.60.0.20"}},
		{"kubelet's deduplication drops by design", func() *testNode {
			n := kubenet()
			r := n.frameRule(model.FrameRule{EtherType: 0x0800, Out: model.IfMatch{Name: "tap+"}, IPSrc: model.AddrMatch{Prefix: prefix("172.20.1.0/24")},
				SrcMAC: model.MACMatch{Addr: mac("0a:00:00:00:00:03"), Mask: model.Broadcast, Set: true}, Target: model.TargetDrop})
			r.Counter.Delta = 12
			n.drop("NETFILTER_DROP", "nft_do_chain", "172.20.1.5", "172.20.1.6", 12).Link = "tap11"
			return n
		}, nil},
	}
	for _, tt := range tests {
		t.Run(tt.name, func(t *testing.T) { verdicts(t, tt.node(), tt.want) })
	}
}

// verdicts holds the findings of a node against those wanted, as brief writes
// them; each must be complete, and the same when judged again.
func verdicts(t *testing.T, n *testNode, want []string) {
	t.Helper()
	tableOf, _, _ = strings.Cut(t.Name(), "/")
	found := agreed(t, n)
	var got []string
	for _, f := range found {
		got = append(got, brief(f))
		complete(t, f)
	}
	if !slices.Equal(got, want) {
		t.Errorf("findings\n got %q\nwant %q", got, want)
	}
	if again := Diagnose(&n.Snapshot); !reflect.DeepEqual(found, again) {
		t.Error("the same snapshot gave other findings")
	}
	quoted(t, &n.Snapshot)
	if len(want) > 0 {
		code, _, _ := strings.Cut(want[0], " ")
		if _, old := wasFollowed.LoadOrStore(code, true); !old {
			followed(t, n)
		}
	}
}

// wasFollowed are the codes of which a fixture was: following takes a hundred times as long as judging.
var wasFollowed sync.Map

// complete checks that a finding has all that a reader needs.
func complete(t *testing.T, f model.Finding) {
	t.Helper()
	if f.Title == "" || f.Why == "" || f.Verify == "" || len(f.Evidence) == 0 || len(f.Fix)+len(f.Next) == 0 || f.Severity.Rank() < 0 {
		t.Errorf("%s lacks a part: %+v", f.Code, f)
	}
	if f.Confidence != model.Proven && len(f.Unseen)+len(f.Alternatives) == 0 {
		t.Errorf("%s is not sure and says neither what was not seen nor what else it may be", f.Code)
	}
}

func TestFixesNameTheRule(t *testing.T) {
	n := bridged()
	n.FrameRules = nil
	n.dnat("10.60.0.20", deadMAC).Backend = model.Legacy
	got := Diagnose(&n.Snapshot)[0].Fix[0]
	want := "ebtables-legacy -t nat -D PREROUTING -p IPv4 -i nic0 --ip-dst 10.60.0.20 -j dnat --to-dst " + deadMAC + " --dnat-target ACCEPT"
	if got != want {
		t.Errorf("fix\n got %s\nwant %s", got, want)
	}

	n.FrameRules[0].Native, n.FrameRules[0].Handle = true, 7
	if got, want := Diagnose(&n.Snapshot)[0].Fix[0], "nft delete rule bridge nat PREROUTING handle 7"; got != want {
		t.Errorf("fix\n got %s\nwant %s", got, want)
	}

	k := kubenet()
	k.PacketRules = k.PacketRules[:3]
	k.silent("172.20.1.5", "203.0.113.9")
	if got, want := Diagnose(&k.Snapshot)[0].Fix[0], "iptables-nft -t nat -A IP-MASQ-AGENT -j MASQUERADE"; got != want {
		t.Errorf("fix\n got %s\nwant %s", got, want)
	}
}

// TestFindFrameRule: a rule that was not seen is looked for in legacy tables only where
// they are loaded, since looking loads them.
func TestFindFrameRule(t *testing.T) {
	for _, tt := range []struct {
		name string
		make func(n *testNode)
		want string
	}{
		{"no legacy table", func(*testNode) {}, "nft -a list ruleset bridge"},
		{"a legacy table", func(n *testNode) {
			n.Chains = append(n.Chains, model.Chain{Backend: model.Legacy, Family: "bridge", Table: "nat", Name: "PREROUTING"})
		}, "nft -a list ruleset bridge; ebtables-legacy -t nat -L --Lc"},
		{"another legacy table", func(n *testNode) {
			n.Chains = append(n.Chains, model.Chain{Backend: model.Legacy, Family: "bridge", Table: "filter", Name: "FORWARD"})
		}, "nft -a list ruleset bridge"},
		{"tables that were not read", func(n *testNode) { n.lose(model.SourceEbtables, model.Missing) },
			"nft -a list ruleset bridge; grep -q ^ebtable_nat /proc/modules && ebtables-legacy -t nat -L --Lc"},
	} {
		t.Run(tt.name, func(t *testing.T) {
			n := bridged()
			n.FrameRules = nil
			n.Traffic.MACs = []model.MACPair{
				{Addr: addr("10.60.0.20"), IfIndex: 2, Link: "nic0", Direction: model.Ingress, Side: model.AsDestination, Src: mac(fabricMAC), Dst: mac(nicMAC), Packets: 7},
				{Addr: addr("10.60.0.20"), IfIndex: 2, Link: "nic0", Direction: model.Egress, Side: model.AsDestination, Src: mac(nicMAC), Dst: mac(deadMAC), Packets: 7},
			}
			tt.make(n)
			found := Diagnose(&n.Snapshot)
			want := []string{tt.want + " # find the rule with " + deadMAC + ", and delete it"}
			if len(found) != 1 || !slices.Equal(found[0].Fix, want) {
				t.Errorf("got %+v, want the fix %q", found, want)
			}
		})
	}
}

// TestDeleteUntyped: a rule that no tool takes by its text is deleted by its place,
// with the rule beside it.
func TestDeleteUntyped(t *testing.T) {
	undecoded := "-d 10.1.0.5/32 -m nfacct [options not decoded] -j DROP"
	for _, tt := range []struct {
		got  words.Command
		want string
	}{
		{words.UndoPacketRule(&model.PacketRule{Backend: model.NFT, Family: "ip", Table: "filter", Chain: "FORWARD", Number: 3, Handle: 12, Text: undecoded}),
			"nft delete rule ip filter FORWARD handle 12 # " + undecoded},
		{words.UndoPacketRule(&model.PacketRule{Backend: model.Legacy, Family: "ip6", Table: "filter", Chain: "FORWARD", Number: 3, Text: undecoded}),
			"ip6tables-legacy -t filter -D FORWARD 3 # " + undecoded},
		{words.UndoPacketRule(&model.PacketRule{Backend: model.Legacy, Family: "ip", Table: "filter", Chain: "FORWARD", Number: 9, Text: "-m comment --comment \x1b[31m -j DROP"}),
			"iptables-legacy -t filter -D FORWARD 9"},
		{words.UndoFrameRule(&model.FrameRule{Backend: model.NFT, Table: "filter", Chain: "FORWARD", Number: 2, Handle: 7, Text: "-p IPv4 among [options not decoded] -j DROP"}),
			"nft delete rule bridge filter FORWARD handle 7 # -p IPv4 among [options not decoded] -j DROP"},
	} {
		if string(tt.got) != tt.want {
			t.Errorf("got %s\nwant %s", tt.got, tt.want)
		}
	}
}

// TestShellRule runs what is printed through a real shell, which must see the
// words that the rule holds.
func TestShellRule(t *testing.T) {
	tests := []struct {
		text string
		want []string
	}{
		{"-d 10.0.0.0/8 -j RETURN", []string{"-d", "10.0.0.0/8", "-j", "RETURN"}},
		{`-m comment --comment "ip-masq-agent: it's \"local\"" -j RETURN`, []string{"-m", "comment", "--comment", `ip-masq-agent: it's "local"`, "-j", "RETURN"}},
		{`-m comment --comment "$(exit 3);` + "`id`" + `|&<>*" -j DROP`, []string{"-m", "comment", "--comment", "$(exit 3);`id`|&<>*", "-j", "DROP"}},
		{"-i x;touch$IFS/z -j DROP", []string{"-i", "x;touch$IFS/z", "-j", "DROP"}},
		{"! -i lxc+ -j DROP", []string{"!", "-i", "lxc+", "-j", "DROP"}},
		{"-d fd00::1/128 -j DNAT --to-destination [fd00:1::5]:8080", []string{"-d", "fd00::1/128", "-j", "DNAT", "--to-destination", "[fd00:1::5]:8080"}},
		{`-m comment --comment "[options not decoded]" -j DROP`, []string{"-m", "comment", "--comment", "[options not decoded]", "-j", "DROP"}},
	}
	for _, tt := range tests {
		typed, _ := words.ShellRule(tt.text)
		out, err := exec.Command("sh", "-c", `for w in `+string(typed)+`; do printf '%s\n' "$w"; done`).CombinedOutput()
		if err != nil {
			t.Fatalf("%s: %v: %s", tt.text, err, out)
		}
		if got := strings.Split(strings.TrimSuffix(string(out), "\n"), "\n"); !slices.Equal(got, tt.want) {
			t.Errorf("%s: the shell reads %q, want %q", tt.text, got, tt.want)
		}
	}
}

func TestMACRewrites(t *testing.T) {
	n := bridged()
	seen := func(ifindex int, d model.Direction, dst string, packets uint64) {
		n.Traffic.MACs = append(n.Traffic.MACs, model.MACPair{Addr: addr("10.60.0.20"), IfIndex: ifindex, Link: fmt.Sprint("if", ifindex),
			Direction: d, Side: model.AsDestination, Dst: mac(dst), Packets: packets})
	}
	seen(2, model.Ingress, nicMAC, 40)
	seen(2, model.Egress, deadMAC, 50)
	seen(11, model.Ingress, deadMAC, 10) // another pod sends to the dead MAC by itself
	seen(3, model.Ingress, nicMAC, 5)    // given to the node …
	seen(3, model.Egress, "0a:58:00:00:00:20", 5)
	seen(10, model.Egress, "0a:58:00:00:00:20", 5) // … which routed it: no rewrite
	got := bridge.MACRewrites(&n.Snapshot)
	want := []model.MACRewrite{{
		Addr: addr("10.60.0.20"), Field: model.DestinationMAC, Packets: 40,
		From: model.MACPlace{MAC: mac(nicMAC), Link: "if2", Direction: model.Ingress},
		To:   model.MACPlace{MAC: mac(deadMAC), Link: "if2", Direction: model.Egress},
	}}
	// The other pod's frames, which already carried the dead MAC, may not
	// make a rewrite of their own.
	if !reflect.DeepEqual(got, want) {
		t.Errorf("rewrites\n got %+v\nwant %+v", got, want)
	}
}

// The node's own frames go to a MAC of their own, and are flooded to the port
// whose pod sends to the right one: two senders, no rewrite.
func TestMACRewritesOfOneSender(t *testing.T) {
	n := bridged()
	seen := func(d model.Direction, src, dst string) {
		n.Traffic.MACs = append(n.Traffic.MACs, model.MACPair{Addr: addr("10.60.0.20"), IfIndex: 11, Link: "if11",
			Direction: d, Side: model.AsDestination, Src: mac(src), Dst: mac(dst), Packets: 28})
	}
	seen(model.Ingress, "0a:58:00:00:00:21", "0a:58:00:00:00:20")
	seen(model.Egress, "0a:00:00:00:00:03", deadMAC)
	if got := bridge.MACRewrites(&n.Snapshot); len(got) > 0 {
		t.Errorf("rewrites of frames of two senders: %+v", got)
	}
	n.Traffic.MACs[0].Src = n.Traffic.MACs[1].Src
	n.Traffic.Lost.MACs = 20
	if got := bridge.MACRewrites(&n.Snapshot); len(got) != 1 || got[0].Packets != 8 {
		t.Errorf("of 28 frames 20 may be others whose MACs were not kept: %+v", got)
	}
}

func TestEmptySnapshot(t *testing.T) {
	if got := Diagnose(&model.Snapshot{}); len(got) > 0 {
		t.Errorf("nothing is known, yet found %v", got)
	}
}

// TestFoldedCauses has the drops of several far ends explained by what explains those
// that were counted one by one.
func TestFoldedCauses(t *testing.T) {
	n := kubenet()
	n.unroute("0.0.0.0/0")
	d := n.dropOn("br-pods", "IP_INNOROUTES", "ip_error", "172.20.1.5", "203.0.113.9", 9)
	like := *d
	like.Dst, like.Range = netip.Addr{}, prefix("198.51.100.0/24")
	unlike := like
	unlike.Src = addr("172.20.1.6")
	n.Traffic.Drops = append([]model.Drop{like, unlike}, n.Traffic.Drops...)
	v := Judge(&n.Snapshot)
	causes, found := v.Causes, v.Findings
	if len(causes) != 3 || causes[2].Code == "" || causes[0] != causes[2] || causes[1].Code != "" && causes[1].Code != "UnexplainedDrop" {
		t.Errorf("causes %+v of findings %+v", causes, found)
	}
}

// steps are the commands that fix a finding, and those that only show more.
func steps(f model.Finding) []string { return slices.Concat(f.Fix, f.Next) }
