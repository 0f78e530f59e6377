package traffic

import (
	"context"
	"net/netip"
	"sync"
	"sync/atomic"
	"testing"
	"unsafe"

	"github.com/cilium/ebpf"

	"github.com/lasthop/lasthop/bpf"
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
	busy, _ := b.sendAll(t, &sent)
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

// TestFreedUnderTraffic frees entries of peers that hold counts again and again, while packets on every CPU wait for
// just these. Each packet is counted once: no program sees an entry free before its counts are cleared, and none has
// its counts cleared after it took an entry.
func TestFreedUnderTraffic(t *testing.T) {
	const rounds, stale = 40, 1 << 40
	b := newBench(t, Link{Uplink: true})
	p := b.counters.peers
	// One entry of each set is left.
	for cpu := range p.cpus {
		for i := range p.entries() {
			if i%int(bpf.TCLimitPEER_WAYS) > 0 {
				p.m.store32(cpu*p.m.stride+i*p.size+p.word, retired)
			}
		}
	}
	var sent atomic.Uint64
	_, stop := b.sendAll(t, &sent)
	var counted uint64
	retire := func() {
		p.retire(func(peerKey) bool { return true })
		if err := quiesce(); err != nil {
			t.Fatal(err)
		}
		for k, r := range p.retiring {
			for _, at := range r.at {
				counts := at.off + int(unsafe.Offsetof(bpf.TCPeer{}.Count))
				counted += p.m.load64(counts)
				p.m.store64(counts, stale)
				p.free(at, k)
			}
		}
		clear(p.retiring)
		clear(p.base)
	}
	for range rounds {
		for len(p.sums()) == 0 {
		}
		retire()
	}
	stop()
	retire()
	others := map[peerKey]peerCounts{}
	p.addOthers(others)
	for _, n := range others {
		counted += n[bpf.TCDirectionINGRESS].Packets
	}
	// A burst that a signal interrupts is sent again, so that the hop knows how many there were.
	tr := b.traffic()
	if len(tr.Hops) != 1 || tr.Hops[0].Packets != counted {
		t.Errorf("%d packets counted by peer, %+v", counted, tr.Hops)
	}
}

// sendAll runs the ingress program on packets of pod until stop is called or the test ends, by several threads at
// once. It adds to sent before they are.
func (b bench) sendAll(t *testing.T, sent *atomic.Uint64) (busy netip.Addr, stop func()) {
	t.Helper()
	ctx, cancel := context.WithCancel(t.Context())
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
	stop = sync.OnceFunc(func() {
		cancel()
		running.Wait()
		close(errs)
		for err := range errs {
			t.Error(err)
		}
	})
	t.Cleanup(stop)
	return pod, stop
}
