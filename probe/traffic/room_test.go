package traffic

import (
	"encoding/binary"
	"net/netip"
	"testing"
	"time"

	"github.com/google/gopacket/layers"

	"github.com/lasthop/lasthop/probe/model"
)

// TestMakeRoomForPods has many more pods come and go than there are hop counters for.
func TestMakeRoomForPods(t *testing.T) {
	b := bench{open(t, Config{NS: newNS(t), MaxAddrs: 300, MaxLinks: 8, maxHops: 64}), t}
	if err := b.setLink(Link{Index: loopback, Name: "lo"}); err != nil {
		t.Fatal(err)
	}
	for i := range 250 {
		a := netip.AddrFrom4([4]byte{10, 30, 1, byte(i)})
		if err := b.SetLocal([]Local{{Addr: a}, {Addr: pod}}); err != nil {
			t.Fatal(err)
		}
		b.run(model.Ingress, udpPacket(t, a, other))
		b.run(model.Egress, udpPacket(t, pod, a))
		if err := b.Poll(epoch(i)); err != nil {
			t.Fatal(err)
		}
		tr := b.Traffic()
		for _, h := range []model.HopCount{
			hopOf(tr, a.String(), model.Ingress, model.AsSource), hopOf(tr, a.String(), model.Egress, model.AsDestination),
		} {
			if h.Packets != 1 || !h.First.Equal(epoch(i)) || h.Link != "lo" {
				t.Fatalf("pod %d: %+v", i, h)
			}
		}
		if h := hopOf(tr, pod.String(), model.Egress, model.AsSource); h.Packets != uint64(i)+1 || !h.First.Equal(epoch(0)) {
			t.Fatalf("the pod that stays, after %d others: %+v", i, h)
		}
		if i == 9 && len(tr.Hops) != 21 {
			t.Errorf("%d hops while there was room, want all 21", len(tr.Hops))
		}
		if tr.Lost.Counters != 0 {
			t.Fatalf("pod %d: lost %q", i, tr.Lost.Detail)
		}
		if err := b.MakeRoom(epoch(i - 5)); err != nil {
			t.Fatal(err)
		}
	}
	// One that comes back begins anew.
	a := netip.AddrFrom4([4]byte{10, 30, 1, 0})
	if err := b.SetLocal([]Local{{Addr: a}}); err != nil {
		t.Fatal(err)
	}
	b.run(model.Ingress, udpPacket(t, a, other))
	if h := hopOf(b.traffic(), a.String(), model.Ingress, model.AsSource); h.Packets != 1 {
		t.Errorf("the first pod again: %+v", h)
	}
}

func TestMakeRoomForNeighbors(t *testing.T) {
	b := newBench(t, Link{})
	ask := func(i uint32) {
		p := arp(t, layers.ARPRequest, node, pod, macA)
		binary.BigEndian.PutUint32(p[14+24:], i)
		b.run(model.Ingress, p)
	}
	at := func(seconds int) model.Traffic {
		if err := b.Poll(epoch(seconds)); err != nil {
			t.Fatal(err)
		}
		return b.Traffic()
	}
	const some = maxNeighbors / 2
	for i := range uint32(some) {
		ask(i)
	}
	at(1)
	if err := b.MakeRoom(epoch(10)); err != nil {
		t.Fatal(err)
	}
	if n := len(at(2).ARP); n != some {
		t.Fatalf("%d kinds of ARP, want %d: there was room", n, some)
	}
	for i := range uint32(maxNeighbors - some) {
		ask(some + i)
	}
	at(20)
	// This one has moved since it was last read.
	ask(0)
	if err := b.MakeRoom(epoch(10)); err != nil {
		t.Fatal(err)
	}
	ask(0)
	ask(maxNeighbors)
	tr := at(21)
	if want := maxNeighbors - some + 2; len(tr.ARP) != want || tr.Lost.Counters != 0 {
		t.Errorf("%d kinds of ARP, want %d; lost %q", len(tr.ARP), want, tr.Lost.Detail)
	}
	if first := tr.ARP[0]; first.Addr != netip.IPv4Unspecified() || first.Packets != 3 {
		t.Errorf("the one that goes on: %+v, want 3 packets", first)
	}
}

func TestMakeRoomForDrops(t *testing.T) {
	ends := newRouter(t)
	e := ends.watched(t, Config{})
	if err := e.Attach([]Link{ends.nodeLink}); err != nil {
		t.Fatal(err)
	}
	dst := func(i int) netip.Addr { return netip.AddrFrom4([4]byte{203, 0, byte(i >> 8), byte(i)}) }
	const many = maxDrops - 10
	for i := range many {
		ends.lose(t, dst(i), 1)
	}
	if tr := dropped(t, e, many); len(tr.Drops) != many || len(tr.Samples) == 0 {
		t.Fatalf("%d kinds, %d samples; want %d kinds", len(tr.Drops), len(tr.Samples), many)
	}
	if err := e.MakeRoom(time.Now().Add(time.Hour)); err != nil {
		t.Fatal(err)
	}
	ends.lose(t, dst(7), 2)
	tr := dropped(t, e, 2)
	if len(tr.Drops) != 1 || tr.Drops[0].Packets != 2 || tr.Drops[0].Dst != dst(7) || tr.Lost.Counters != 0 {
		t.Errorf("drops %+v, lost %q; want the 2 since", tr.Drops, tr.Lost.Detail)
	}
}
