package traffic

import (
	"context"
	"net/netip"
	"sync"
	"sync/atomic"
	"testing"

	"github.com/cilium/ebpf"

	"github.com/lasthop/lasthop/probe/model"
)

// Each of some threads sends bursts of packets.
const threads, burst = 3, 50

// TestReuseUnderTraffic gives the slot of an address to others again and again while
// its packets come in on every CPU. None of them is counted for another, and what it
// counted before does not come back.
func TestReuseUnderTraffic(t *testing.T) {
	const rounds = 40
	b := bench{open(t, Config{NS: newNS(t), MaxAddrs: 1, MaxLinks: 1, maxHops: 4}), t}
	if err := b.setLink(Link{Index: loopback, Name: "lo", Uplink: true}); err != nil {
		t.Fatal(err)
	}
	var sent atomic.Uint64
	busy := b.sendAll(t, &sent)
	// It ends in the same 16 bits: both are in one chain.
	quiet := netip.AddrFrom4([4]byte{10, 9, 2, 5})
	set := func(local ...Local) {
		t.Helper()
		if err := b.SetLocal(local); err != nil {
			t.Fatal(err)
		}
	}
	for round := range rounds {
		before := sent.Load()
		set(Local{Addr: busy})
		var tr model.Traffic
		for tr = b.traffic(); len(tr.Hops) == 0 || len(tr.Peers) == 0; tr = b.traffic() {
		}
		most := sent.Load() - before + threads*burst // those that were on their way
		for _, h := range tr.Hops {
			if h.Addr != busy || h.Packets > most {
				t.Fatalf("round %d: %d packets of %s, want at most %d", round, h.Packets, h.Addr, most)
			}
		}
		for _, p := range tr.Peers {
			if p.Local != busy || p.In.Packets > most {
				t.Fatalf("round %d: peer %+v, want at most %d packets", round, p, most)
			}
		}
		set()
		b.traffic()
		set(Local{Addr: quiet})
		if tr := b.traffic(); len(tr.Hops)+len(tr.Peers)+len(tr.MACs) > 0 {
			t.Fatalf("round %d: counted for an address without packets: %+v %+v", round, tr.Hops, tr.Peers)
		}
		set()
		b.traffic()
	}
	// Drops elsewhere on the machine may be lost meanwhile.
	if tr := b.traffic(); tr.Lost.Counters > 0 || tr.Lost.MACs > 0 {
		t.Errorf("lost %q", tr.Lost.Detail)
	}
}

// sendAll runs the ingress program on packets of pod until the test ends, by several
// threads at once. It adds to sent before they are.
func (b bench) sendAll(t *testing.T, sent *atomic.Uint64) netip.Addr {
	t.Helper()
	ctx, stop := context.WithCancel(t.Context())
	var running sync.WaitGroup
	errs := make(chan error, threads)
	p, packet := b.program(model.Ingress), udpPacket(t, other, pod)
	for range threads {
		running.Go(func() {
			for ctx.Err() == nil {
				sent.Add(burst)
				if _, err := p.Run(&ebpf.RunOptions{Data: packet, Repeat: burst}); err != nil {
					errs <- err
					return
				}
			}
		})
	}
	t.Cleanup(func() {
		stop()
		running.Wait()
		close(errs)
		for err := range errs {
			t.Error(err)
		}
	})
	return pod
}
