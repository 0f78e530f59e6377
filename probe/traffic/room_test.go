package traffic

import (
	"encoding/binary"
	"net/netip"
	"testing"
	"time"

	"github.com/google/gopacket/layers"

	"github.com/lasthop/lasthop/bpf"
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
		if err := b.MakeRoom(epoch(i-5), false); err != nil {
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

// TestMakeRoomForAll frees what pods that are gone have left although there is room.
func TestMakeRoomForAll(t *testing.T) {
	b := newBench(t, Link{})
	b.run(model.Ingress, udpPacket(t, pod, other))
	b.run(model.Ingress, udpPacket(t, pod2, other))
	for i, local := range [][]Local{{{Addr: pod}, {Addr: pod2}}, {{Addr: pod}}, {{Addr: pod}}} {
		if err := b.SetLocal(local); err != nil {
			t.Fatal(err)
		}
		if err := b.Poll(epoch(i)); err != nil {
			t.Fatal(err)
		}
	}
	for _, tt := range []struct {
		all  bool
		hops int
	}{{false, 2}, {true, 1}} {
		if err := b.MakeRoom(epoch(5), tt.all); err != nil {
			t.Fatal(err)
		}
		if tr := b.Traffic(); len(tr.Hops) != tt.hops || hopOf(tr, pod.String(), model.Ingress, model.AsSource).Packets != 1 {
			t.Errorf("all %v: %d hops, want %d with that of the pod that stays", tt.all, len(tr.Hops), tt.hops)
		}
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
	if err := b.MakeRoom(epoch(10), false); err != nil {
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
	if err := b.MakeRoom(epoch(10), false); err != nil {
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
	if err := e.Attach([]Link{ends.nodeLink}, time.Time{}); err != nil {
		t.Fatal(err)
	}
	dst := func(i int) netip.Addr { return netip.AddrFrom4([4]byte{203, 0, byte(i >> 8), byte(i)}) }
	many := int(dropQuota[bpf.TCFarFAR_ADDRESS])
	for i := range many {
		ends.lose(t, dst(i), 1)
	}
	if tr := dropped(t, e, uint64(many)); len(tr.Drops) != many || len(tr.Samples) == 0 {
		t.Fatalf("%d kinds, %d samples; want %d kinds", len(tr.Drops), len(tr.Samples), many)
	}
	if err := e.MakeRoom(time.Now().Add(time.Hour), false); err != nil {
		t.Fatal(err)
	}
	ends.lose(t, dst(7), 2)
	tr := dropped(t, e, 2)
	if len(tr.Drops) != 1 || tr.Drops[0].Packets != 2 || tr.Drops[0].Dst != dst(7) || tr.Lost.Counters != 0 {
		t.Errorf("drops %+v, lost %q; want the 2 since", tr.Drops, tr.Lost.Detail)
	}
}

// TestForgetGonePods forgets the drops and the ARP of a pod that is gone although there
// is room, and keeps those of one that stays as long as it does.
func TestForgetGonePods(t *testing.T) {
	ends, conn := newPair(t)
	e := ends.watched(t, Config{})
	local := []Local{{Addr: secondPod}, {Addr: nodeIP, Node: true}}
	if err := e.SetLocal(append(local, Local{Addr: podIP})); err != nil {
		t.Fatal(err)
	}
	for i := range byte(3) {
		ends.lose(t, netip.AddrFrom4([4]byte{203, 0, 113, i}), 1)
		loseFrom(t, conn, netip.AddrFrom4([4]byte{198, 51, 100, i}))
	}
	dropped(t, e, 6)
	b := bench{e, t}
	if err := e.setLink(Link{Index: loopback, Name: "lo"}); err != nil {
		t.Fatal(err)
	}
	for _, a := range []netip.Addr{podIP, secondPod} {
		b.run(model.Ingress, arp(t, layers.ARPRequest, nodeIP, a, macA))
	}
	if tr := poll(t, e); len(tr.ARP) != 2 {
		t.Fatalf("ARP %+v, want 2", tr.ARP)
	}
	if err := e.SetLocal(local); err != nil {
		t.Fatal(err)
	}
	poll(t, e)
	if err := e.MakeRoom(time.Now().Add(time.Hour), false); err != nil {
		t.Fatal(err)
	}
	tr := poll(t, e)
	if len(tr.Drops) != 3 || tr.Drops[0].Src != secondPod || tr.Drops[2].Src != secondPod {
		t.Errorf("drops %+v, want the 3 of the pod that stays", tr.Drops)
	}
	if len(tr.ARP) != 1 || tr.ARP[0].Addr != secondPod {
		t.Errorf("ARP %+v, want that of the pod that stays", tr.ARP)
	}
}

// TestQuotaOfReusedSlot gives the slot of a pod that used up its quota of drops to
// another: nothing is left of the former's drops, and the other's are counted one by one.
func TestQuotaOfReusedSlot(t *testing.T) {
	ends, conn := newPair(t)
	e := ends.watched(t, Config{MaxAddrs: 2})
	set := func(pods ...Local) {
		t.Helper()
		if err := e.SetLocal(append(pods, Local{Addr: nodeIP, Node: true})); err != nil {
			t.Fatal(err)
		}
		poll(t, e)
	}
	set(Local{Addr: podIP})
	const scanned, few = maxDrops, 20
	for i := range scanned {
		ends.lose(t, netip.AddrFrom4([4]byte{198, 18, byte(i >> 8), byte(i)}), 1)
	}
	dropped(t, e, scanned)
	set()
	set(Local{Addr: secondPod})
	for i := range byte(few) {
		loseFrom(t, conn, netip.AddrFrom4([4]byte{203, 0, 113, i}))
	}
	tr := dropped(t, e, few)
	if len(tr.Drops) != few || tr.Lost.Counters != 0 {
		t.Errorf("%d kinds, want %d; lost %q", len(tr.Drops), few, tr.Lost.Detail)
	}
	for _, d := range tr.Drops {
		if d.Src != secondPod || !d.Dst.IsValid() || d.Packets != 1 {
			t.Errorf("drop %+v", d)
		}
	}
}
