package diagnose

import (
	"encoding/binary"
	"fmt"
	"net/netip"
	"syscall"
	"testing"
	"time"

	"github.com/lasthop/lasthop/probe/model"
)

// A node of size one; the benchmark doubles it twice.
const (
	largePods   = 250
	largeFrames = 10_000
	largeFlows  = 50_000
	largeRoutes = 5_000
)

// nth is the nth address from the first.
func nth(first string, n int) netip.Addr {
	b := addr(first).As4()
	binary.BigEndian.PutUint32(b[:], binary.BigEndian.Uint32(b[:])+uint32(n))
	return netip.AddrFrom4(b)
}

func nthMAC(first byte, n int) model.MAC {
	m := model.MAC{first}
	binary.BigEndian.PutUint32(m[2:], uint32(n))
	return m
}

// large is a node of azure-vnet in bridge mode with everything that a busy one
// has, scaled. Pods talk to ten peers each. Where broken, one pod in ten is
// behind a rule of a pod that was there before, rules drop, and peers are
// silent.
func large(scale int, broken bool) *testNode {
	n := newNode("nic0", "10.60.0.4", "10.60.0.0/14", "10.60.0.1")
	n.Links[0].Master = 3
	n.Links = append(n.Links, model.Link{Index: 3, Name: "azure0", Kind: "bridge", MAC: mac(nicMAC), Up: true, Carrier: true,
		Role: model.RoleBridge, Addresses: n.Links[0].Addresses})
	n.Links[0].Addresses = nil
	for i := range n.Routes {
		n.Routes[i].IfIndex = 3
	}
	n.Rules = []model.RoutingRule{{Family: 4, Table: 255, Action: "lookup"}, {Family: 4, Priority: 32766, Table: 254, Action: "lookup"}}
	pods := scale * largePods
	for i := range pods {
		a, m := nth("10.60.1.0", i), nthMAC(0x0a, i)
		n.pod(a.String(), m.String(), 3)
		n.Links[len(n.Links)-1].Name = fmt.Sprintf("azv%d", i)
		p := &n.Pods[i]
		p.Link = n.Links[len(n.Links)-1].Name
		p.Gateways = []model.Neighbor{{Addr: addr("10.60.0.1"), MAC: mac(fabricMAC), State: "REACHABLE"}}
		n.neighbor(a.String(), m.String(), 3, "PERMANENT")
		n.FDB = append(n.FDB, model.FDBEntry{MAC: m, IfIndex: p.LinkIndex, Bridge: 3})
		n.busy(p, a, m, broken && i%10 == 0)
	}
	n.manyRules(scale, broken)
	for i := range scale * largeFlows {
		n.Flows = append(n.Flows, largeFlow(i, pods, broken && i%20 == 0))
	}
	for i := range scale * largeRoutes {
		n.Routes = append(n.Routes, model.Route{Table: 254, Dst: netip.PrefixFrom(nth("172.16.0.0", i*4), 30), Gateway: addr("10.60.0.1"), IfIndex: 3, Type: "unicast"})
	}
	return n
}

// busy counts what one pod sends and receives.
func (n *testNode) busy(p *model.Pod, a netip.Addr, m model.MAC, broken bool) {
	for _, h := range []struct {
		link int
		dir  model.Direction
		side model.Side
	}{
		{p.LinkIndex, model.Ingress, model.AsSource}, {2, model.Egress, model.AsSource},
		{2, model.Ingress, model.AsDestination}, {p.LinkIndex, model.Egress, model.AsDestination},
	} {
		n.passes(a.String(), h.link, h.dir, h.side, 100, 63)
		src, dst := mac(nicMAC), mac(fabricMAC)
		if h.side == model.AsDestination {
			src, dst = mac(fabricMAC), m
		}
		n.Traffic.MACs = append(n.Traffic.MACs, model.MACPair{Addr: a, IfIndex: h.link, Direction: h.dir, Side: h.side, Src: src, Dst: dst, Packets: 100})
	}
	n.arp(a.String(), 2, model.Ingress, false, fabricMAC, 2)
	n.arp(a.String(), 2, model.Egress, true, m.String(), 2)
	for i := range 10 {
		remote := nth("10.62.0.0", (int(a.As4()[3])*7+i*31)%4096).String()
		if broken && i == 0 {
			n.silent(a.String(), remote)
		} else {
			n.answered(a.String(), remote)
		}
	}
	if broken {
		d := n.refuse("nft_do_chain", nth("10.62.0.0", p.LinkIndex).String(), a.String(), 9)
		n.sampled(d, head(6, 8080, 2))
		n.drop("OTHERHOST", "ip_rcv_core", nth("10.62.0.0", p.LinkIndex).String(), a.String(), 9).DstMAC = mac(deadMAC)
	}
}

// manyRules are ebtables' two for each pod, those of pods that are gone, and
// iptables' of services.
func (n *testNode) manyRules(scale int, broken bool) {
	n.chain(model.NFT, "ip", "filter", "FORWARD", "FORWARD", "ACCEPT", 0)
	for i := range scale * largeFrames / 2 {
		m := nthMAC(0x0a, i)
		if broken && i%10 == 0 {
			m = nthMAC(0x0e, i)
		}
		a := nth("10.60.1.0", i).String()
		n.arpreply(a, m.String())
		if r := n.dnat(a, m.String()); i < scale*largePods {
			r.Counter.Delta = 3
		}
	}
	for i := range scale * largePods {
		pod := nth("10.60.1.0", i)
		n.natRules(model.PacketRule{Chain: "KUBE-SEP", Target: "DNAT", To: netip.AddrPortFrom(pod, 80), Dst: model.AddrMatch{Prefix: model.Host(nth("10.0.0.0", i))}})
		if broken && i%10 == 0 {
			n.filter(model.NFT, "FORWARD", 9, model.PacketRule{Dst: model.AddrMatch{Prefix: model.Host(pod)}, Target: "DROP"})
		}
	}
}

func largeFlow(i, pods int, silent bool) model.Flow {
	pod, remote := nth("10.60.1.0", i%pods), nth("10.62.0.0", i*13%4096)
	service := remote
	if i%3 == 0 {
		service = nth("10.0.0.0", i%500)
	}
	return model.Flow{Proto: 6 + uint8(i%2)*11, Replied: !silent, Start: start.Add(time.Duration(i%9) * time.Second),
		Original: model.Tuple{Src: pod, Dst: service, SrcPort: uint16(i), DstPort: 53},
		Reply:    model.Tuple{Src: remote, Dst: pod, SrcPort: 53, DstPort: uint16(i)}}
}

// cpuTime is what this process has taken of the CPUs, in all of its threads.
func cpuTime(b *testing.B) time.Duration {
	var u syscall.Rusage
	if err := syscall.Getrusage(syscall.RUSAGE_SELF, &u); err != nil {
		b.Fatal(err)
	}
	return time.Duration(u.Utime.Nano() + u.Stime.Nano())
}

// BenchmarkDiagnose judges a large node, and nodes two and four times as large:
// all of its pods, rules, flows, routes and peers at once. cpu-ms is what the
// cheapest run takes of the CPUs, so that other programs disturb it least, and
// times-1x that as a multiple of the first size's: it should grow no faster than
// the size.
func BenchmarkDiagnose(b *testing.B) {
	for _, state := range []struct {
		name   string
		broken bool
	}{{"well", false}, {"broken", true}} {
		var base time.Duration
		for _, scale := range []int{1, 2, 4} {
			b.Run(fmt.Sprintf("%s/%dx", state.name, scale), func(b *testing.B) {
				n := large(scale, state.broken)
				found, best := 0, time.Duration(1<<62)
				for b.Loop() {
					began := cpuTime(b)
					found = len(Diagnose(&n.Snapshot))
					best = min(best, cpuTime(b)-began)
				}
				if (found > 0) != state.broken {
					b.Errorf("%d findings: %s", found, brief(Diagnose(&n.Snapshot)[0]))
				}
				if scale == 1 {
					base = best
				}
				b.ReportMetric(best.Seconds()*1000, "cpu-ms")
				b.ReportMetric(float64(best)/float64(base), "times-1x")
				b.ReportMetric(float64(found), "findings")
			})
		}
	}
}

// inCluster adds other nodes, each with a range.
func (n *testNode) inCluster(nodes int) {
	for i := range nodes {
		n.Cluster.Nodes = append(n.Cluster.Nodes, model.ClusterNode{
			Addresses: []netip.Addr{nth("10.60.8.0", i)}, PodCIDRs: []netip.Prefix{netip.PrefixFrom(nth("10.64.0.0", i<<8), 24)},
		})
	}
}

// BenchmarkRemoteRanges is what a poll of an observation takes on a large node
// of a cluster of a thousand.
func BenchmarkRemoteRanges(b *testing.B) {
	const nodes = 1000
	n := large(1, false)
	n.inCluster(nodes)
	for b.Loop() {
		if got := len(RemoteRanges(&n.Snapshot)); got < nodes {
			b.Fatalf("%d ranges", got)
		}
	}
}
