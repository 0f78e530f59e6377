package traffic

import (
	"strings"
	"testing"
	"time"

	"github.com/cilium/ebpf/link"
	"github.com/vishvananda/netlink"

	"github.com/lasthop/lasthop/probe/model"
)

// TestGaps lets somebody else remove our programs, or put theirs before them. It
// is noticed, told and mended, though not twice a minute.
func TestGaps(t *testing.T) {
	removeQdisc := func(t *testing.T, ends *twoEnds, _ *Engine) {
		inside(t, ends.node, func() error { return netlink.QdiscDel(qdiscOf(ends.nodeLink.Index)) })
	}
	for name, tt := range map[string]struct {
		mode string
		do   func(*testing.T, *twoEnds, *Engine)
		want string
	}{
		"qdisc removed": {AttachClsact, removeQdisc, "removed lasthop's"},
		"filter removed": {AttachClsact, func(t *testing.T, ends *twoEnds, _ *Engine) {
			h, _ := filtersOn(t, ends.node, ends.nodeLink.Index)
			m := h[1][0].message(ends.nodeLink.Index, hooks[1], -1)
			inside(t, ends.node, func() error { return netlink.FilterDel(m) })
		}, "removed lasthop's"},
		"filter before": {AttachClsact, func(t *testing.T, ends *twoEnds, _ *Engine) {
			clean(t, ends)
			p, _ := counting(t, verdicts[1])
			foreignFilter(t, ends.node, ends.nodeLink, 1, p)
		}, "tc program foreign (pref 1) runs before"},
		"tcx program before": {AttachTCX, func(t *testing.T, ends *twoEnds, _ *Engine) {
			p, _ := counting(t, verdicts[1])
			foreignTCX(t, ends, p, link.Head())
		}, "tcx program foreign runs before"},
		"tcx programs detached": {AttachTCX, func(t *testing.T, ends *twoEnds, e *Engine) {
			by, ok := e.by.(*tcx)
			if !ok {
				t.Fatalf("attached by %s", e.AttachMode())
			}
			if err := by.on[ends.nodeLink.Index].links[0].Detach(); err != nil {
				t.Fatal(err)
			}
		}, "removed lasthop's"},
	} {
		if tt.mode == AttachTCX && len(modes(t)) < 2 {
			t.Logf("%s: this kernel has no tcx", name)
			continue
		}
		t.Run(name, func(t *testing.T) {
			ends := newTwoEnds(t)
			e := ends.watched(t, Config{Attach: tt.mode})
			if err := e.Attach([]Link{ends.nodeLink}, time.Time{}); err != nil {
				t.Fatal(err)
			}
			poll := func(second int) model.Source {
				t.Helper()
				if err := e.Poll(epoch(second)); err != nil {
					t.Fatal(err)
				}
				return sourceStatus(e, model.SourceTC)
			}
			if s := poll(100); s.Status != model.OK {
				t.Fatalf("before: %+v", s)
			}
			tt.do(t, ends, e)
			if s := poll(101); s.Status != model.Partial || !strings.Contains(s.Detail, tt.want) || !strings.Contains(s.Detail, ends.nodeLink.Name) {
				t.Errorf("after: %+v, want %q", s, tt.want)
			}
			if n := e.Traffic().Lost.Gaps; n != 1 {
				t.Errorf("%d gaps, want 1", n)
			}
			countsAll(t, ends, e, 5)
			if poll(102); e.Traffic().Lost.Gaps != 1 {
				t.Error("a gap that was mended goes on")
			}

			tt.do(t, ends, e)
			for second, mended := range map[int]bool{103: false, 160: false} {
				poll(second)
				if open := e.on[ends.nodeLink.Index].gap != nil; open == mended {
					t.Errorf("second %d: mended %v, want %v", second, !open, mended)
				}
			}
			if s := poll(161); s.Status != model.Partial {
				t.Errorf("after the second time: %+v", s)
			}
			countsAll(t, ends, e, 5)
			if err := e.MakeRoom(epoch(200), false); err != nil {
				t.Fatal(err)
			}
			if s := poll(300); s.Status != model.OK {
				t.Errorf("long after: %+v", s)
			}
		})
	}
}

// clean removes the filters that a test made.
func clean(t *testing.T, ends *twoEnds) {
	t.Helper()
	h, _ := filtersOn(t, ends.node, ends.nodeLink.Index)
	for _, f := range h[0] {
		if f.number() == 0 {
			m := f.message(ends.nodeLink.Index, hooks[0], -1)
			inside(t, ends.node, func() error { return netlink.FilterDel(m) })
		}
	}
}

// countsAll sends packets, and sees that each is counted.
func countsAll(t *testing.T, ends *twoEnds, e *Engine, n uint64) {
	t.Helper()
	of := func() uint64 {
		e.mu.Lock()
		defer e.mu.Unlock()
		if err := e.counters.poll(epoch(0)); err != nil {
			t.Fatal(err)
		}
		hops, _ := e.hops()
		return hopOf(model.Traffic{Hops: hops}, podIP.String(), model.Ingress, model.AsSource).Packets
	}
	before := of()
	ends.exchange(t, int(n))
	if got := of() - before; got != n {
		t.Errorf("%d packets counted, want %d", got, n)
	}
}
