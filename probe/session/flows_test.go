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
	second := func(n int64) int64 { return n * int64(time.Second) }
	known := flowsAt(listed(model.OK, 1, 2), 0, nil)
	known = flowsAt(listed(model.Partial, 1), second(1), known)
	last := listed(model.OK, 1, 2, 3)
	known = flowsAt(last, second(2), known)
	for i, want := range []time.Time{{}, {}, time.Unix(2, 0)} {
		if got := last.Flows[i].Start; !got.Equal(want) {
			t.Errorf("flow %d began at %v, want %v", i+1, got, want)
		}
	}
	if known = flowsAt(listed(model.OK), second(3), known); len(known) != 0 {
		t.Errorf("%d flows that are gone are remembered", len(known))
	}
}

// TestEndsOf wants each set of addresses once, however many flows there are between them.
func TestEndsOf(t *testing.T) {
	var flows []model.Flow
	for port := range uint16(300) {
		for _, to := range []string{"10.77.2.1", "10.77.2.2", "10.77.2.3"} {
			original := model.Tuple{Src: netip.MustParseAddr("10.77.1.9"), SrcPort: port, Dst: netip.MustParseAddr(to), DstPort: 53}
			flows = append(flows, model.Flow{Proto: 17, Original: original, Reply: model.Tuple{Src: original.Dst, SrcPort: 53, Dst: original.Src, DstPort: port}})
		}
	}
	if got := endsOf(flows); len(got) != 3 {
		t.Errorf("%d flows stand for those with 3 addresses", len(got))
	}
}
