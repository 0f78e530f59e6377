package traffic

import (
	"errors"
	"fmt"
	"testing"
	"time"

	"github.com/cilium/ebpf"
	"github.com/google/gopacket/layers"
	"github.com/vishvananda/netlink"

	"github.com/lasthop/lasthop/bpf"
	"github.com/lasthop/lasthop/probe/model"
)

// BenchmarkAttach250 attaches to, and detaches from, the links of 250 pods.
func BenchmarkAttach250(b *testing.B) {
	const pods = 250
	for _, mode := range modes(b) {
		b.Run(mode, func(b *testing.B) {
			ns := newNS(b)
			var links []Link
			inside(b, ns, func() error {
				for i := range pods {
					name := fmt.Sprintf("pod%d", i)
					err := netlink.LinkAdd(&netlink.Veth{LinkAttrs: netlink.LinkAttrs{Name: name}, PeerName: "in-" + name})
					if err != nil {
						return err
					}
					l, err := netlink.LinkByName(name)
					if err != nil {
						return err
					}
					if err := netlink.LinkSetUp(l); err != nil {
						return err
					}
					links = append(links, Link{Index: l.Attrs().Index, Name: name})
				}
				return nil
			})
			for b.Loop() {
				eng, err := Open(Config{NS: ns, Attach: mode})
				if err != nil {
					b.Fatal(err)
				}
				start := time.Now()
				err = eng.Attach(links, time.Time{})
				b.ReportMetric(float64(time.Since(start).Milliseconds()), "ms/attach")
				start = time.Now()
				err = errors.Join(err, eng.Poll(start))
				b.ReportMetric(float64(time.Since(start).Milliseconds()), "ms/look")
				start = time.Now()
				err = errors.Join(err, eng.Close())
				b.ReportMetric(float64(time.Since(start).Milliseconds()), "ms/detach")
				if err != nil {
					b.Fatal(err)
				}
			}
			b.ReportMetric(0, "ns/op")
		})
	}
}

// BenchmarkStub compares with the empty program what clsact runs: the stub of a
// killed lasthop, the stub that calls the empty program, and the one that calls the
// program that counts.
func BenchmarkStub(b *testing.B) {
	eng := newBench(b, Link{})
	none, _ := baselines(b)
	packet := tcpPacket(b, other, pod, layers.TCP{ACK: true})
	stub := func(calls *ebpf.Program) *ebpf.Program {
		b.Helper()
		spec, err := bpf.Load("stub")
		if err != nil {
			b.Fatal(err)
		}
		coll, err := ebpf.NewCollection(spec)
		if err != nil {
			b.Fatal(err)
		}
		b.Cleanup(coll.Close)
		if calls != nil {
			if err := coll.Maps[bpf.StubMapLasthopEntries].Put(uint32(0), calls); err != nil {
				b.Fatal(err)
			}
		}
		return coll.Programs[bpf.StubProgLasthopStubIn]
	}
	programs := []struct {
		name string
		p    *ebpf.Program
	}{
		{"x-inert", stub(nil)}, {"x-call-empty", stub(none)}, {"x-call", stub(eng.program(model.Ingress))}, {"x-direct", eng.program(model.Ingress)},
	}
	for b.Loop() {
		ratios := make([][]float64, len(programs))
		for range rounds {
			base := runTime(b, none, packet)
			for i, p := range programs {
				ratios[i] = append(ratios[i], runTime(b, p.p, packet)/base)
			}
		}
		for i, p := range programs {
			b.ReportMetric(median(ratios[i]), p.name)
		}
	}
	b.ReportMetric(0, "ns/op")
}
