package join

import (
	"fmt"
	"net/netip"
	"runtime"
	"testing"

	"github.com/lasthop/lasthop/probe/model"
)

// large is a cluster of nodes with 100 pods each, of which each asks pods of several
// other nodes, and of which the network lacks the routes to those that are cut.
func large(nodes int, cut func(node int) bool) *cluster {
	c := &cluster{now: 1000}
	at := func(node, pod int) netip.Addr {
		return netip.AddrFrom4([4]byte{10, 100 + byte(node>>8), byte(node), byte(10 + pod)})
	}
	for n := range nodes {
		m := newMachine(n + 1)
		own := netip.PrefixFrom(at(n, -10), 24)
		m.Links, m.Pods = m.Links[:2], nil
		m.Links[1].Addresses = []netip.Prefix{netip.PrefixFrom(at(n, -9), 24)}
		m.Routes[2].Dst = own
		for p := range 100 {
			m.pod(at(n, p).String())
		}
		c.nodes = append(c.nodes, m)
	}
	const peers = 20
	counts := model.PeerCount{Packets: 40, Requests: 20, Replies: 20}
	for n, m := range c.nodes {
		next := (n + 1) % nodes
		m.peer(addr(nodeAddr(n+1)), addr(nodeAddr(next+1)), counts, counts)
		c.nodes[next].peer(addr(nodeAddr(next+1)), addr(nodeAddr(n+1)), counts, counts)
		for p := range 100 {
			for k := range peers {
				far, pod := (n+1+k)%nodes, (p+k)%100
				out, in := counts, counts
				if cut(far) {
					out, in = model.PeerCount{Packets: 20, Requests: 20}, model.PeerCount{}
				}
				m.peer(at(n, p), at(far, pod), out, in)
				if !cut(far) {
					c.nodes[far].peer(at(far, pod), at(n, p), counts, counts)
				}
				m.flows(c, at(n, p), at(far, pod), !cut(far), nil)
			}
			for _, l := range []int{2, 10 + p} {
				for _, d := range []model.Direction{model.Ingress, model.Egress} {
					side := model.AsSource
					if (d == model.Egress) == (l != 2) {
						side = model.AsDestination
					}
					m.Traffic.Hops = append(m.Traffic.Hops, model.HopCount{Addr: at(n, p), IfIndex: l, Direction: d, Side: side, Packets: 900, Bytes: 90000})
				}
			}
		}
	}
	return c
}

// BenchmarkJudge joins recordings of nodes with 100 pods each, of which one or all are cut
// off. The snapshots are the fixture's, all held at once; heap-MB is what the join holds
// besides.
func BenchmarkJudge(b *testing.B) {
	for _, bench := range []struct {
		name string
		cut  func(node int) bool
	}{{"", func(node int) bool { return node == 0 }}, {"cut=all/", func(int) bool { return true }}} {
		for _, nodes := range []int{50, 100, 200} {
			b.Run(fmt.Sprintf("%snodes=%d", bench.name, nodes), func(b *testing.B) {
				sources := large(nodes, bench.cut).sources()
				var before, after runtime.MemStats
				runtime.GC()
				runtime.ReadMemStats(&before)
				var r Result
				for b.Loop() {
					r = Judge(sources)
				}
				runtime.ReadMemStats(&after)
				b.ReportMetric(float64(after.HeapSys-min(after.HeapSys, before.HeapAlloc))/(1<<20), "heap-MB")
				if len(r.Findings) != 1 {
					b.Fatalf("%d findings", len(r.Findings))
				}
			})
		}
	}
}
