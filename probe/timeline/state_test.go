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
	tl := New(func(*model.Snapshot) []model.Finding { return nil }, 5*time.Second)
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
