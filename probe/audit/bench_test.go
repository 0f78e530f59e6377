package audit_test

import (
	"encoding/binary"
	"fmt"
	"net/netip"
	"runtime"
	"runtime/debug"
	"runtime/metrics"
	"syscall"
	"testing"
	"time"

	"github.com/lasthop/lasthop/probe/audit"
	"github.com/lasthop/lasthop/probe/growth"
	"github.com/lasthop/lasthop/probe/model"
)

func nth(first string, n int) netip.Addr {
	b := netip.MustParseAddr(first).As4()
	binary.BigEndian.PutUint32(b[:], binary.BigEndian.Uint32(b[:])+uint32(n))
	return netip.AddrFrom4(b)
}

// largeNodes is how many other nodes the cluster has.
const largeNodes = 20

// large is a kubenet node with 250 pods and 50,000 rules of kube-proxy's, scaled.
func large(scale int) *model.Snapshot {
	pods, services := 250*scale, 16_600*scale
	n := kubenet()
	for i := range pods {
		// Without its namespace's number a pod is not compared with the others, which the judge does and the audit does not.
		addPod(n, nth("10.244.0.2", i)).Netns = 0
	}
	for i := range largeNodes {
		n.Cluster.Nodes = append(n.Cluster.Nodes, model.ClusterNode{Name: fmt.Sprint("other-", i),
			Addresses: []netip.Addr{nth("10.240.1.0", i)}, PodCIDRs: []netip.Prefix{netip.PrefixFrom(nth("10.200.0.0", i<<8), 24)}})
	}
	for i := range services {
		service, backend := fmt.Sprintf("KUBE-SVC-%d", i), fmt.Sprintf("KUBE-SEP-%d", i)
		name := "shop/service" + fmt.Sprint(i) + ":http"
		if i == 0 {
			name = "default/kubernetes:https"
		}
		natRule(n, model.PacketRule{Chain: "KUBE-SERVICES", Dst: model.AddrMatch{Prefix: model.Host(nth("10.0.0.1", i))}, Proto: 6,
			DstPorts: []model.PortRange{{First: 443, Last: 443}}, Comment: name + " cluster IP", Target: service})
		natRule(n, model.PacketRule{Chain: service, Comment: name, Target: backend})
		natRule(n, model.PacketRule{Chain: backend, Proto: 6, Comment: name, Target: "DNAT",
			To: netip.AddrPortFrom(nth("10.200.0.2", i%largeNodes<<8), 8443)})
	}
	return n
}

// BenchmarkRun audits a large node, with garbage collected as often as the command has it. cpu-ms is what the cheapest run
// takes of the CPUs, peak-MiB is by how much the heap is larger at most while it does.
func BenchmarkRun(b *testing.B) {
	defer debug.SetGCPercent(debug.SetGCPercent(40))
	for _, scale := range []int{1, 2, 4} {
		b.Run(fmt.Sprintf("%dx", scale), func(b *testing.B) {
			n := large(scale)
			pairs, best := 0, time.Duration(1<<62)
			for b.Loop() {
				began := cpuTime(b)
				pairs = audit.Run(n, nil).Audit.Pairs
				best = min(best, cpuTime(b)-began)
			}
			b.ReportMetric(best.Seconds()*1000, "cpu-ms")
			b.ReportMetric(peak(func() { audit.Run(n, nil) })/(1<<20), "peak-MiB")
			b.ReportMetric(float64(pairs), "pairs")
			b.ReportMetric(float64(len(n.PacketRules)), "rules")
		})
	}
}

// cpuTime is what this process has taken of the CPUs, in all of its threads.
func cpuTime(b *testing.B) time.Duration {
	var u syscall.Rusage
	if err := syscall.Getrusage(syscall.RUSAGE_SELF, &u); err != nil {
		b.Fatal(err)
	}
	return time.Duration(u.Utime.Nano() + u.Stime.Nano())
}

// peak is the largest heap while something is done, less that before, in bytes.
func peak(do func()) float64 {
	heap := func() uint64 {
		m := []metrics.Sample{{Name: "/memory/classes/heap/objects:bytes"}}
		metrics.Read(m)
		return m[0].Value.Uint64()
	}
	runtime.GC()
	before, most := heap(), uint64(0)
	done := make(chan struct{})
	go func() {
		defer close(done)
		do()
	}()
	for {
		select {
		case <-done:
			return float64(most - before)
		default:
			most = max(most, heap(), before)
			runtime.Gosched()
		}
	}
}

func TestGrowth(t *testing.T) {
	growth.Test(t, func(scale int) func() {
		n := large(scale)
		want := 250 * scale * (1 + 4 + 1 + largeNodes + 1)
		return func() {
			if r := audit.Run(n, nil); len(r.Findings) > 0 || r.Audit.Pairs != want || len(r.Audit.Unsure) > 0 {
				t.Errorf("%d findings, %d pairs and %d unknown at size %d, want %d pairs", len(r.Findings), r.Audit.Pairs,
					len(r.Audit.Unsure), scale, want)
			}
		}
	})
}
