package traffic

import (
	"net/netip"
	"testing"
	"time"

	"github.com/lasthop/lasthop/bpf"
)

// TestRetiredDrops takes a kind of drops out while a program still counts one: it is
// counted, the number is used again from zero, and nothing stays behind.
func TestRetiredDrops(t *testing.T) {
	ends := newRouter(t)
	e := ends.watched(t, Config{})
	dst := netip.MustParseAddr("203.0.113.9")
	counts := e.drops.counts
	sum := func() (n uint64) {
		for _, d := range poll(t, e).Drops {
			n += d.Packets
		}
		return n
	}
	evict := func() {
		t.Helper()
		all := func(bpf.DropDropKey, time.Time) bool { return true }
		if err := counts.evict(all, e.drops.giveBack); err != nil {
			t.Fatal(err)
		}
	}
	ends.lose(t, dst, 3)
	dropped(t, e, 3)
	evict()
	if len(counts.retired) != 1 || counts.retired[0].count != 3 {
		t.Fatalf("retired %+v, want one of 3", counts.retired)
	}
	at := counts.at(0, counts.retired[0].number)
	counts.counts.store64(at, counts.counts.load64(at)+1)
	if n := sum(); n != 1 {
		t.Errorf("%d drops, want the late one", n)
	}
	evict()
	if n := sum(); n != 0 {
		t.Errorf("%d drops, want none", n)
	}
	ends.lose(t, dst, 4)
	if n := sum(); n != 4 {
		t.Errorf("%d drops, want 4", n)
	}
}
