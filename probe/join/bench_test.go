package join

import (
	"fmt"
	"net/netip"
	"runtime"
	"strings"
	"testing"

	"github.com/lasthop/lasthop/probe/growth"
	"github.com/lasthop/lasthop/probe/model"
)

// passing says what gets from one node's pods to another's.
type passing struct{ requests, replies func(from, to int) bool }

// noRows is a network without the routes to the pods of some nodes: nothing for them
// arrives, replies included.
func noRows(cut func(node int) bool) passing {
	arrives := func(_, to int) bool { return !cut(to) }
	return passing{arrives, arrives}
}

// noRequests is a network whose filter lets nobody begin anything with the pods of some
// nodes, and remembers who is replied to.
func noRequests(cut func(node int) bool) passing {
	return passing{func(_, to int) bool { return !cut(to) }, func(int, int) bool { return true }}
}

// large is a cluster of nodes with some pods each, of which each asks pods of several
// other nodes.
func large(nodes, pods int, network passing) *cluster {
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
		for p := range pods {
			m.pod(at(n, p).String())
		}
		c.nodes = append(c.nodes, m)
	}
	const peers = 20
	ask, answer := model.PeerCount{Packets: 40, Requests: 20}, model.PeerCount{Packets: 40, Replies: 20}
	vain := model.PeerCount{Packets: 20, Requests: 20}
	for n, m := range c.nodes {
		next := (n + 1) % nodes
		m.peer(addr(nodeAddr(n+1)), addr(nodeAddr(next+1)), ask, answer)
		c.nodes[next].peer(addr(nodeAddr(next+1)), addr(nodeAddr(n+1)), answer, ask)
		for p := range pods {
			for k := range peers {
				far, pod := (n+1+k)%nodes, (p+k)%pods
				src, dst := at(n, p), at(far, pod)
				switch {
				case !network.requests(n, far):
					m.peer(src, dst, vain, model.PeerCount{})
				case !network.replies(far, n):
					m.peer(src, dst, vain, model.PeerCount{})
					c.nodes[far].peer(dst, src, answer, vain)
				default:
					m.peer(src, dst, ask, answer)
					c.nodes[far].peer(dst, src, answer, ask)
				}
				m.flows(c, src, dst, network.requests(n, far) && network.replies(far, n), nil)
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

func first(node int) bool { return node == 0 }

func every(int) bool { return true }

// clusters are large ones of which something is lost that is one finding.
var clusters = []struct {
	name    string
	network passing
	code    model.Code
	title   string
}{
	{"no row", noRows(first), "MissingUDR", "no route to 10.100.0.0/24, the pods of n1"},
	{"no requests", noRequests(first), "NoReply", "and n1: from"},
	{"no table", noRows(every), "MissingUDR", "the subnet has no route table"},
}

// BenchmarkJudge joins recordings of nodes with 100 pods each. The snapshots are the
// fixture's, all held at once; heap-MB is what the join holds besides.
func BenchmarkJudge(b *testing.B) {
	for _, bench := range clusters {
		for _, nodes := range []int{50, 100, 200} {
			b.Run(fmt.Sprintf("%s/nodes=%d", bench.name, nodes), func(b *testing.B) {
				sources := large(nodes, 100, bench.network).sources()
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

// TestOneNodeOfMany has one node of few and of many cut off, which is one finding.
func TestOneNodeOfMany(t *testing.T) {
	for _, tt := range clusters {
		for nodes, pods := range map[int]int{50: 4, 200: 4, 1000: 2} {
			if testing.Short() && nodes > 50 {
				continue
			}
			t.Run(fmt.Sprintf("%s/nodes=%d", tt.name, nodes), func(t *testing.T) {
				oneOf(t, Judge(large(nodes, pods, tt.network).sources()), tt.code, tt.title)
			})
		}
	}
}

func oneOf(t *testing.T, r Result, code model.Code, title string) {
	t.Helper()
	if len(r.Findings) != 1 || r.Findings[0].Code != code || !strings.Contains(r.Findings[0].Title, title) {
		for _, f := range r.Findings[:min(3, len(r.Findings))] {
			t.Log(f.Code, f.Title)
		}
		t.Errorf("%d findings, not one of %s: %s", len(r.Findings), code, title)
	}
}

func TestGrowth(t *testing.T) {
	for _, tt := range clusters {
		t.Run(tt.name, func(t *testing.T) {
			growth.Test(t, func(scale int) func() {
				sources := large(scale*25, 10, tt.network).sources()
				return func() { oneOf(t, Judge(sources), tt.code, tt.title) }
			})
		})
	}
}

// TestHeld: what is kept of nodes that were read grows as their number does.
func TestHeld(t *testing.T) {
	held := func(scale int) int64 {
		sources := large(20*scale, 20, noRows(first)).sources()
		var before, after runtime.MemStats
		runtime.GC()
		runtime.ReadMemStats(&before)
		var kept Group
		for _, s := range sources {
			kept.Add(s)
		}
		runtime.GC()
		runtime.ReadMemStats(&after)
		runtime.KeepAlive(&kept)
		return int64(after.HeapAlloc) - int64(before.HeapAlloc)
	}
	small, large := held(1), held(4)
	t.Logf("held: %d bytes, %.2f times as many for 4 times the input", small, float64(large)/float64(small))
	if large > 5*small {
		t.Errorf("%d bytes are held, and %d for 4 times the input", small, large)
	}
}
