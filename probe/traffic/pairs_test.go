package traffic

import (
	"encoding/binary"
	"net/netip"
	"slices"
	"testing"

	"github.com/lasthop/lasthop/probe/model"
)

// pairsBench has packets of the first pod of the bench counted by pair.
func pairsBench(t *testing.T) bench {
	t.Helper()
	b := bench{open(t, Config{NS: newNS(t), MaxAddrs: 64, MaxLinks: 8, Pairs: true, Debug: true}), t}
	if err := b.setLink(Link{Index: loopback, Name: "lo"}); err != nil {
		t.Fatal(err)
	}
	if err := b.SetLocal([]Local{{Addr: pod}, {Addr: pod2}, {Addr: pod6, Pairs: true}}); err != nil {
		t.Fatal(err)
	}
	// Counting by pair can be turned on for an address that is counted already.
	if err := b.SetLocal([]Local{{Addr: pod, Pairs: true}, {Addr: pod2}, {Addr: pod6, Pairs: true}}); err != nil {
		t.Fatal(err)
	}
	return b
}

func TestPairs(t *testing.T) {
	b := pairsBench(t)
	for range 3 {
		b.run(model.Ingress, udpPacket(t, pod, other))
	}
	b.run(model.Egress, udpPacket(t, other, pod))
	b.run(model.Ingress, udpPacket(t, pod, pod2))
	b.run(model.Egress, udpPacket(t, pod2, pod))
	b.run(model.Ingress, udpPacket(t, pod6, other6))
	b.run(model.Ingress, udpPacket(t, pod2, other))
	b.run(model.Ingress, udpPacket(t, other, remote))
	row := func(src, dst netip.Addr, d model.Direction, n uint64) model.PairCount {
		return model.PairCount{Src: src, Dst: dst, IfIndex: loopback, Link: "lo", Direction: d, Packets: n}
	}
	want := []model.PairCount{
		row(pod, other, model.Ingress, 3), row(pod, pod2, model.Ingress, 1), row(other, pod, model.Egress, 1),
		row(pod2, pod, model.Egress, 1), row(pod6, other6, model.Ingress, 1),
	}
	got := b.traffic().Pairs
	for _, p := range want {
		if !slices.Contains(got, p) {
			t.Errorf("not counted: %+v", p)
		}
	}
	if len(got) != len(want) {
		t.Errorf("%d pairs, want %d: %+v", len(got), len(want), got)
	}
}

// TestPairsOverflow fills the table of pairs: the rest is reported as lost.
func TestPairsOverflow(t *testing.T) {
	b := pairsBench(t)
	p := udpPacket(t, pod, other)
	const more = 100
	for i := range uint32(maxPairs + more) {
		binary.BigEndian.PutUint32(p[14+16:], i)
		b.run(model.Ingress, p)
	}
	if tr := b.traffic(); len(tr.Pairs) != maxPairs || tr.Lost.Counters != more {
		t.Errorf("%d pairs, %d lost; want %d, %d", len(tr.Pairs), tr.Lost.Counters, maxPairs, more)
	}
}
