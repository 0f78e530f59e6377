package traffic

import (
	"encoding/binary"
	"net/netip"
	"testing"

	"github.com/google/gopacket/layers"

	"github.com/lasthop/lasthop/probe/model"
)

// scan has pod ask n addresses all over.
func (b bench) scan(n int) {
	b.t.Helper()
	p := tcpPacket(b.t, pod, other, layers.TCP{SYN: true})
	for i := range uint32(n) {
		binary.BigEndian.PutUint32(p[14+16:], 0xc0000000+i*2654435761>>2)
		if _, _, err := b.program(model.Egress).Test(p); err != nil {
			b.t.Fatal(err)
		}
	}
}

// peersOf are the peers of an address: single ones, ranges, and all others.
func peersOf(tr model.Traffic, a netip.Addr) (single, ranges, others []model.Peer) {
	for _, p := range tr.Peers {
		switch {
		case p.Local != a:
		case p.Remote.IsValid():
			single = append(single, p)
		case p.Range.Bits() > 0:
			ranges = append(ranges, p)
		default:
			others = append(others, p)
		}
	}
	return single, ranges, others
}

// TestScanBesidePeers has one pod scan until its quota is used up: its other peers
// are counted by ranges, then together, and another pod's one by one.
func TestScanBesidePeers(t *testing.T) {
	const sent = 40000
	b := newBench(t, Link{Uplink: true})
	b.scan(sent)
	const peers = 100
	for i := range byte(peers) {
		b.run(model.Egress, udpPacket(t, pod2, netip.AddrFrom4([4]byte{203, 0, 113, i})))
	}
	tr := b.traffic()
	if single, ranges, others := peersOf(tr, pod2); len(single) != peers || len(ranges)+len(others) > 0 {
		t.Errorf("%d peers beside the scan, %d ranges, %d others; want %d and none", len(single), len(ranges), len(others), peers)
	}
	single, ranges, others := peersOf(tr, pod)
	if len(single) == 0 || len(ranges) == 0 || len(others) != 1 {
		t.Fatalf("%d peers that were scanned, %d ranges, %d others", len(single), len(ranges), len(others))
	}
	if o := others[0]; o.Range != netip.MustParsePrefix("0.0.0.0/0") || o.Link != "lo" {
		t.Errorf("others: %+v", o)
	}
	var counted, requests uint64
	for _, list := range [][]model.Peer{single, ranges, others} {
		for _, p := range list {
			counted, requests = counted+p.Out.Packets, requests+p.Out.Requests
		}
	}
	if counted != sent || requests != sent {
		t.Errorf("%d counted, %d of them requests; want %d", counted, requests, sent)
	}
	for _, p := range ranges {
		if p.Range.Bits() != 24 || p.Range != p.Range.Masked() {
			t.Errorf("range %s", p.Range)
		}
	}
	if len(lostOf(tr)) > 0 {
		t.Errorf("lost %q", tr.Lost.Detail)
	}
}

// TestManyClients has a service answer many clients in a few networks. Each client's
// packets, and its replies, are in its own entry or in that of its range.
func TestManyClients(t *testing.T) {
	const networks, clients = 400, 250
	b := newBench(t, Link{Uplink: true})
	ask, reply := tcpPacket(t, other, pod, layers.TCP{SYN: true}), tcpPacket(t, pod, other, layers.TCP{SYN: true, ACK: true})
	for i := range networks * clients {
		a := [4]byte{198, byte(i / clients >> 8), byte(i / clients), byte(i % clients)}
		copy(ask[14+12:], a[:])
		copy(reply[14+16:], a[:])
		if _, _, err := b.program(model.Ingress).Test(ask); err != nil {
			t.Fatal(err)
		}
		if _, _, err := b.program(model.Egress).Test(reply); err != nil {
			t.Fatal(err)
		}
	}
	tr := b.traffic()
	var in, out uint64
	single, ranges, others := peersOf(tr, pod)
	for _, list := range [][]model.Peer{single, ranges, others} {
		for _, p := range list {
			in, out = in+p.In.Requests, out+p.Out.Replies
		}
	}
	if in != networks*clients || out != in || len(ranges) < networks/2 {
		t.Errorf("%d requests and %d replies in %d peers, %d ranges and %d others; want %d", in, out, len(single), len(ranges), len(others), networks*clients)
	}
}

// TestRangesIPv6 folds far ends of IPv6 to the /64.
func TestRangesIPv6(t *testing.T) {
	b := newBench(t, Link{Uplink: true})
	p := udpPacket(t, pod6, other6)
	for i := range uint32(maxPeers) {
		binary.BigEndian.PutUint32(p[14+24+12:], i)
		if _, _, err := b.program(model.Egress).Test(p); err != nil {
			t.Fatal(err)
		}
	}
	_, ranges, others := peersOf(b.traffic(), pod6)
	if len(ranges) != 1 || ranges[0].Range != netip.MustParsePrefix("2001:db8::/64") || len(others) > 0 {
		t.Errorf("ranges %+v, others %+v", ranges, others)
	}
}

// TestMakeRoomForPeers has peers that are idle leave room, again and again, and their
// quota with it. One that goes on keeps its counts.
func TestMakeRoomForPeers(t *testing.T) {
	// Each CPU has a quota of its own.
	onEachCPU(t, func(int) { makeRoomForPeers(t) })
}

func makeRoomForPeers(t *testing.T) {
	b := newBench(t, Link{Uplink: true})
	at := func(seconds int) model.Traffic {
		if err := b.Poll(epoch(seconds)); err != nil {
			t.Fatal(err)
		}
		return b.Traffic()
	}
	b.run(model.Egress, udpPacket(t, pod, remote))
	for round := range 3 {
		b.scan(maxPeers)
		at(round*100 + 1)
		// This one has moved since it was last read.
		b.run(model.Egress, udpPacket(t, pod, remote))
		if err := b.MakeRoom(epoch(round*100+50), false); err != nil {
			t.Fatal(err)
		}
		single, ranges, _ := peersOf(at(round*100+60), pod)
		if len(single) != 1 || len(ranges) > 0 || single[0].Remote != remote || single[0].Out.Packets != uint64(round)+2 {
			t.Fatalf("round %d: %d peers and %d ranges are left, want one: %+v", round, len(single), len(ranges), single)
		}
	}
	for i := range byte(100) {
		b.run(model.Egress, udpPacket(t, pod, netip.AddrFrom4([4]byte{203, 0, 113, i})))
	}
	if single, _, _ := peersOf(at(1000), pod); len(single) != 101 {
		t.Errorf("%d peers after room was made, want 101", len(single))
	}
}
