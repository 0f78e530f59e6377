package traffic

import (
	"errors"
	"math"
	"net/netip"
	"slices"
	"testing"
	"time"

	"github.com/cilium/ebpf"
	"github.com/google/gopacket/layers"

	"github.com/lasthop/lasthop/probe/model"
)

// Each benchmark prints ratios or totals of its own; ns/op says nothing here.

// rounds are how often the programs that are compared take turns, and runs how
// often each then runs: for less than a time slice, so that most turns are not
// interrupted on a machine that does other things too.
const (
	rounds = 301
	runs   = 10_000
)

func median(v []float64) float64 {
	slices.Sort(v)
	return v[len(v)/2]
}

// baselines are the program that costs what the hook does, and the one that counts by
// flow in an LRU hash table.
func baselines(b *testing.B) (empty, reference *ebpf.Program) {
	b.Helper()
	spec, err := loadEmpty()
	if err != nil {
		b.Fatal(err)
	}
	coll, err := ebpf.NewCollection(spec)
	if err != nil {
		b.Fatal(err)
	}
	b.Cleanup(coll.Close)
	return coll.Programs[emptyProgLasthopEmpty], coll.Programs[emptyProgLasthopReference]
}

// runTime is the time of one run of the program on a packet, in nanoseconds.
func runTime(b *testing.B, p *ebpf.Program, packet []byte) float64 {
	b.Helper()
	start := time.Now()
	if _, err := p.Run(&ebpf.RunOptions{Data: packet, Repeat: runs}); err != nil {
		b.Fatal(err)
	}
	return float64(time.Since(start).Nanoseconds()) / runs
}

// packetCost runs the ingress program and the baselines on a packet by turns, and
// reports the median of its ratio to the empty one; and what it adds to the empty
// one, by medians, as a share of what the reference adds, with the turns' quartiles.
func packetCost(b *testing.B, eng bench, packet []byte) {
	b.Helper()
	none, reference := baselines(b)
	ours := eng.program(model.Ingress)
	time1 := func(p *ebpf.Program) float64 { return runTime(b, p, packet) }
	for b.Loop() {
		var ratio, share, cost, base, look []float64
		for range rounds {
			e, o, r := time1(none), time1(ours), time1(reference)
			ratio, cost, base = append(ratio, o/e), append(cost, o), append(base, e)
			share, look = append(share, (o-e)/(r-e)), append(look, r)
		}
		b.ReportMetric(median(ratio), "x-empty")
		slices.Sort(share)
		b.ReportMetric((median(cost)-median(base))/(median(look)-median(base)), "x-reference")
		b.ReportMetric(share[len(share)/4], "x-reference-q1")
		b.ReportMetric(share[len(share)*3/4], "x-reference-q3")
		b.ReportMetric(median(cost), "ns/packet")
		b.ReportMetric(median(base), "ns/empty")
	}
	b.ReportMetric(0, "ns/op")
}

func BenchmarkPacket(b *testing.B) {
	tcp := layers.TCP{ACK: true}
	for _, bb := range []struct {
		name   string
		link   Link
		packet []byte
	}{
		{"NoHit", Link{}, tcpPacket(b, other, netip.MustParseAddr("172.20.0.10"), tcp)},
		{"OneHit", Link{}, tcpPacket(b, other, pod, tcp)},
		{"TwoHits", Link{}, tcpPacket(b, pod2, pod, tcp)},
		{"CIDR", Link{}, tcpPacket(b, remote, pod, tcp)},
		{"Uplink", Link{Uplink: true}, tcpPacket(b, other, pod, tcp)},
		{"UplinkNoHit", Link{Uplink: true}, tcpPacket(b, other, netip.MustParseAddr("172.20.0.10"), tcp)},
		{"IPv6", Link{}, tcpPacket(b, other6, pod6, tcp)},
		{"IPv6NoHit", Link{}, tcpPacket(b, other6, netip.MustParseAddr("2001:db8::8"), tcp)},
		{"VLAN", Link{}, tagged(tcpPacket(b, pod2, pod, tcp), 0x8100)},
		{"ARP", Link{}, arp(b, layers.ARPRequest, node, pod, macA)},
		{"UDP", Link{}, udpPacket(b, pod2, pod)},
	} {
		b.Run(bb.name, func(b *testing.B) {
			eng := newBench(b, bb.link)
			ranges := []netip.Prefix{netip.MustParsePrefix("10.9.3.0/24"), netip.MustParsePrefix("10.9.4.0/24")}
			if err := eng.SetPrefixes(ranges); err != nil {
				b.Fatal(err)
			}
			packetCost(b, eng, bb.packet)
		})
	}
}

// BenchmarkDrop loses packets for good with and without the program on the
// tracepoint, by turns, and reports what a loss costs more. The program is a
// small part of a loss, so that the quickest bursts are compared: what else
// the machine does only adds to the others.
func BenchmarkDrop(b *testing.B) {
	const (
		burst = 200
		turns = 1000
	)
	ends := newRouter(b)
	eng := ends.watched(b, Config{})
	if eng.drops == nil {
		b.Fatal(eng.dropsErr)
	}
	dst := netip.MustParseAddr("203.0.113.9")
	round := func() float64 {
		start := time.Now()
		ends.lose(b, dst, burst)
		return float64(time.Since(start).Nanoseconds()) / burst
	}
	for b.Loop() {
		with, without := math.Inf(1), math.Inf(1)
		for range turns {
			round() // and everything is warm
			with = min(with, round())
			if err := eng.drops.link.Close(); err != nil {
				b.Fatal(err)
			}
			round()
			without = min(without, round())
			if err := eng.drops.attach(); err != nil {
				b.Fatal(err)
			}
		}
		b.ReportMetric(with-without, "ns/drop")
		b.ReportMetric(without, "ns/without")
	}
	b.ReportMetric(0, "ns/op")
	tr := dropped(b, eng, burst)
	if len(tr.Drops) != 1 {
		b.Fatalf("drops %+v, want one kind", tr.Drops)
	}
}

// BenchmarkMaps sums up what all maps take for 250 pods and 40 links, and with
// the default sizes.
func BenchmarkMaps(b *testing.B) {
	ns := newNS(b)
	for _, bb := range []struct {
		name string
		cfg  Config
	}{
		{"250pods", Config{NS: ns, MaxAddrs: 300, MaxLinks: 63}},
		{"Default", Config{NS: ns}},
	} {
		b.Run(bb.name, func(b *testing.B) {
			for b.Loop() {
				eng, err := Open(bb.cfg)
				if err != nil {
					b.Fatal(err)
				}
				maps, err := eng.mapSizes()
				if err := errors.Join(err, eng.Close()); err != nil {
					b.Fatal(err)
				}
				bytes := uint64(0)
				for _, m := range maps {
					bytes += m.Bytes
				}
				b.ReportMetric(float64(bytes)/(1<<20), "MiB")
			}
			b.ReportMetric(0, "ns/op")
		})
	}
}

// BenchmarkPoll reads a node with 250 pods that talk to ten others each.
func BenchmarkPoll(b *testing.B) {
	var local []Local
	for i := range 250 {
		local = append(local, Local{Addr: netip.AddrFrom4([4]byte{10, 1, 1, byte(i)})})
	}
	eng := open(b, Config{NS: newNS(b)})
	if err := errors.Join(eng.setLink(Link{Index: loopback, Name: "lo", Uplink: true}), eng.SetLocal(local)); err != nil {
		b.Fatal(err)
	}
	run := bench{eng, b}
	for i, l := range local {
		for k := range 10 {
			run.run(model.Egress, udpPacket(b, l.Addr, netip.AddrFrom4([4]byte{198, 51, byte(i), byte(k)})))
		}
	}
	for b.Loop() {
		if err := eng.Poll(time.Now()); err != nil {
			b.Fatal(err)
		}
		eng.Traffic()
	}
}
