package timeline

import (
	"net/netip"
	"testing"
	"time"

	"github.com/lasthop/lasthop/probe/model"
)

// TestStateOnce wants what was compared once with the beginning of a window not to be
// compared again as long as neither changes, and anew when one does.
func TestStateOnce(t *testing.T) {
	flow := model.Flow{Proto: 6, Original: model.Tuple{Src: netip.MustParseAddr("10.77.1.9")}, Start: at(1)}
	read := func(end float64, packets uint64) model.Snapshot {
		return model.Snapshot{
			Window: model.Window{Start: at(0), End: at(end)},
			Flows:  []model.Flow{flow}, FrameRules: []model.FrameRule{rule("one", packets)},
		}
	}
	tl := New(func(*model.Snapshot) (none model.Verdict) { return none }, 5*time.Second)
	add := func(s model.Snapshot, whole bool) *model.Snapshot {
		return tl.Add(model.Point{Snapshot: &s, Whole: whole}).Snapshot
	}
	for _, end := range []float64{2, 4} {
		add(read(end, uint64(end)), true)
	}
	state := read(6, 6)
	before := add(state, true)
	for _, end := range []float64{6.2, 6.4} {
		state.Window.End = at(end)
		now := add(state, false)
		if &now.FrameRules[0] != &before.FrameRules[0] || !now.Window.End.Equal(at(end)) {
			t.Errorf("%v s: the rules were compared again, or the window ends at %v", end, now.Window.End)
		}
	}
	state.Window.End = at(8)
	if later := add(state, false); &later.FrameRules[0] == &before.FrameRules[0] || later.FrameRules[0].Counter.Delta != 4 {
		t.Errorf("another beginning: the rule counted %d", later.FrameRules[0].Counter.Delta)
	}
	if later := add(read(8.2, 9), true); later.FrameRules[0].Counter.Delta != 7 || !later.Flows[0].Start.IsZero() {
		t.Errorf("another state: the rule counted %d, the flow began at %v", later.FrameRules[0].Counter.Delta, later.Flows[0].Start)
	}
}

// TestRulesKept wants packet rules of which none counted not to be copied, and any that
// counted, came or were rewritten to be told as if they were compared alone.
func TestRulesKept(t *testing.T) {
	rules := func(counts ...uint64) (out []model.PacketRule) {
		for i, n := range counts {
			// The last two are alike.
			text := []string{"a", "b", "c", "c"}[i]
			out = append(out, model.PacketRule{Family: "ip", Table: "nat", Chain: "X", Text: text, Handle: uint64(i + 1), Counter: model.Counter{Packets: n}})
		}
		return out
	}
	tl := New(func(*model.Snapshot) (none model.Verdict) { return none }, 4*time.Second)
	add := func(end float64, rules []model.PacketRule) []model.PacketRule {
		return tl.Add(model.Point{Whole: true, Snapshot: &model.Snapshot{Window: model.Window{Start: at(0), End: at(end)}, PacketRules: rules}}).Snapshot.PacketRules
	}
	same := rules(1, 2, 3, 4)
	add(4, same)
	before := add(8, same)
	if now := add(12, same); &now[0] != &same[0] || &now[0] != &before[0] || now[3].Counter != same[3].Counter {
		t.Errorf("a copy, or %+v", now)
	}
	inserted := append([]model.PacketRule{{Family: "ip", Table: "nat", Chain: "X", Text: "new", Handle: 9, Counter: model.Counter{Packets: 7}}}, rules(1, 2, 4, 9)...)
	rewritten := rules(1, 2, 4, 1)
	for _, tt := range []struct {
		rules     []model.PacketRule
		deltas    []uint64
		added     []bool
		restarted bool
	}{
		{rules(1, 2, 4, 9), []uint64{0, 0, 1, 5}, []bool{false, false, false, false}, false},
		{rules(1, 2, 4, 9), []uint64{0, 0, 0, 0}, []bool{false, false, false, false}, false},
		{inserted, []uint64{7, 0, 0, 0, 0}, []bool{true, false, false, false, false}, false},
		{inserted[1:], []uint64{0, 0, 0, 0}, []bool{false, false, false, false}, false},
		{rewritten, []uint64{0, 0, 0, 1}, []bool{false, false, false, false}, true},
	} {
		now := add(tl.last.Snapshot.Window.End.Sub(start).Seconds()+4, tt.rules)
		for i, r := range now {
			c := r.Counter
			if c.Delta != tt.deltas[i] || c.Added != tt.added[i] || c.Restarted != (tt.restarted && i == 3) {
				t.Errorf("rule %d of %v: %+v", i, tt.deltas, c)
			}
		}
		if alone := newSetup(&model.Snapshot{PacketRules: tt.rules}, new(keeper)); !alone.same(newSetup(&model.Snapshot{PacketRules: tt.rules}, &tl.keys)) {
			t.Error("another configuration with what is kept than without")
		}
	}
}

// TestVerdict wants a reading to have the verdict of the latest one that was judged, and on which
// snapshot it is.
func TestVerdict(t *testing.T) {
	tl := New(func(s *model.Snapshot) model.Verdict { return model.Verdict{On: s} }, 0)
	var judged *model.Snapshot
	for i, whole := range []bool{true, true, false, true, false} {
		r := tl.Add(model.Point{Snapshot: &model.Snapshot{Window: model.Window{Start: at(0), End: at(float64(1 + 2*i))}}, Whole: whole})
		if whole && i > 0 {
			judged = r.Snapshot
		}
		if r.Verdict.On != judged {
			t.Errorf("reading %d: the verdict is on %p, not %p", i, r.Verdict.On, judged)
		}
	}
}
