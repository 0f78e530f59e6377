package session

import (
	"net/netip"
	"testing"
	"time"

	"github.com/lasthop/lasthop/probe/model"
)

// TestFlowsAt wants a flow that a partial listing left out to be no new one.
func TestFlowsAt(t *testing.T) {
	listed := func(status model.Status, ports ...uint16) *model.Snapshot {
		s := &model.Snapshot{Sources: []model.Source{{Name: model.SourceConntrack, Status: status}}}
		for _, p := range ports {
			s.Flows = append(s.Flows, model.Flow{Proto: 6, Original: model.Tuple{Src: netip.MustParseAddr("10.77.1.9"), SrcPort: p}})
		}
		return s
	}
	second := func(n int64) time.Time { return time.Unix(n, 0) }
	known := flowsAt(listed(model.OK, 1, 2), time.Time{}, nil)
	known = flowsAt(listed(model.Partial, 1), second(1), known)
	last := listed(model.OK, 1, 2, 3)
	known = flowsAt(last, second(2), known)
	for i, want := range []time.Time{{}, {}, second(2)} {
		if got := last.Flows[i].Start; !got.Equal(want) {
			t.Errorf("flow %d began at %v, want %v", i+1, got, want)
		}
	}
	if known = flowsAt(listed(model.OK), second(3), known); len(known) != 0 {
		t.Errorf("%d flows that are gone are remembered", len(known))
	}
}
