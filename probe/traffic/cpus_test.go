package traffic

import (
	"runtime"
	"testing"

	"golang.org/x/sys/unix"

	"github.com/lasthop/lasthop/bpf"
	"github.com/lasthop/lasthop/probe/model"
)

func TestParseCPUs(t *testing.T) {
	for list, want := range map[string]int{
		"0\n": 1, "0-1\n": 2, "0-127\n": 128, "0,2-3\n": 4, "0-3,6\n": 7, "0-3,8-11,64\n": 65,
		"": 0, "\n": 0, "0-": 0, "0,": 0, "many\n": 0, "-1-x": 0, "99999999999999999999": 0,
	} {
		got, err := parseCPUs(list)
		if got != want || (err == nil) != (want > 0) {
			t.Errorf("%q: %d CPUs, %v; want %d", list, got, err, want)
		}
	}
}

// TestBudget adds up what the tables of the tc programs take by the number of CPUs.
// The kernel's own overhead, and the tables that it keeps for each possible CPU
// itself, come on top: BenchmarkMaps has these too.
func TestBudget(t *testing.T) {
	const mib = 1 << 20
	for cpus, want := range map[int]struct{ each, all int }{
		// Bytes of tables by CPU, and of all tables. An Azure D2s_v3 has 2 CPUs.
		1:   {4 * mib, 8 * mib},
		2:   {8 * mib, 12 * mib},
		16:  {62 * mib, 66 * mib},
		64:  {85 * mib, 88 * mib},
		128: {92 * mib, 96 * mib},
	} {
		spec, err := tcSpec(Config{MaxAddrs: defaultAddrs, MaxLinks: defaultLinks, cpus: cpus})
		if err != nil {
			t.Fatal(err)
		}
		each, all := 0, 0
		for name, m := range spec.Maps {
			n := int(m.ValueSize) * int(m.MaxEntries)
			switch name {
			case bpf.TCMapHopCounters, bpf.TCMapMoreMacs, bpf.TCMapPeers, bpf.TCMapPeerShares:
				each += n
			}
			all += n
			if m.MaxEntries == 0 || m.ValueSize == 0 {
				t.Errorf("%d CPUs: %s has no room", cpus, name)
			}
		}
		if each > want.each || all > want.all {
			t.Errorf("%d CPUs: %.1f MiB by CPU, %.1f MiB in all; want at most %+v", cpus, float64(each)/mib, float64(all)/mib, want)
		}
	}
}

// TestHotPluggedCPU has packets on CPUs that the tables have no row for: they are
// lost, and counted so.
func TestHotPluggedCPU(t *testing.T) {
	b := bench{open(t, Config{NS: newNS(t), MaxAddrs: 8, MaxLinks: 8, cpus: 1}), t}
	if err := b.setLink(Link{Index: loopback, Name: "lo", Uplink: true}); err != nil {
		t.Fatal(err)
	}
	if err := b.SetLocal([]Local{{Addr: pod}}); err != nil {
		t.Fatal(err)
	}
	const sent = 10
	var rows, others uint64
	onEachCPU(t, func(cpu int) {
		for range sent {
			b.run(model.Ingress, udpPacket(t, other, pod))
		}
		if cpu == 0 {
			rows += sent
		} else {
			others += sent
		}
	})
	tr := b.traffic()
	if h := hopOf(tr, pod.String(), model.Ingress, model.AsDestination); h.Packets != rows {
		t.Errorf("%d packets counted, want those of the first CPU, %d", h.Packets, rows)
	}
	if p := peerOf(tr, pod, other); p.In.Packets != rows {
		t.Errorf("%d packets of the peer, want %d", p.In.Packets, rows)
	}
	for _, why := range []bpf.TCLost{bpf.TCLostLOST_HOP, bpf.TCLostLOST_PEER} {
		if n := b.counters.lost[why]; n != others {
			t.Errorf("%d packets lost for reason %d, want those of the other CPUs, %d", n, why, others)
		}
	}
}

// onEachCPU runs f on each CPU that the test may use.
func onEachCPU(t *testing.T, f func(cpu int)) {
	t.Helper()
	runtime.LockOSThread()
	defer runtime.UnlockOSThread()
	var before unix.CPUSet
	if err := unix.SchedGetaffinity(0, &before); err != nil {
		t.Fatal(err)
	}
	defer func() {
		if err := unix.SchedSetaffinity(0, &before); err != nil {
			t.Error(err)
		}
	}()
	for cpu := range len(before) * 64 {
		if !before.IsSet(cpu) {
			continue
		}
		var one unix.CPUSet
		one.Set(cpu)
		if err := unix.SchedSetaffinity(0, &one); err != nil {
			t.Fatal(err)
		}
		f(cpu)
	}
}
