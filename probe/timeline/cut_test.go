package timeline

import (
	"testing"

	"github.com/lasthop/lasthop/probe/model"
)

func rule(text string, packets uint64) model.FrameRule {
	return model.FrameRule{Backend: model.NFT, Table: "nat", Chain: "PREROUTING", Text: text, Counter: model.Counter{Packets: packets}}
}

func TestCompareRules(t *testing.T) {
	first := &model.Snapshot{FrameRules: []model.FrameRule{
		rule("moved", 5), rule("same", 1), rule("same", 7), rule("zeroed", 90), rule("gone", 3),
	}}
	last := &model.Snapshot{FrameRules: []model.FrameRule{
		rule("new", 4), rule("same", 3), rule("same", 7), rule("zeroed", 2), rule("moved", 9),
	}}
	last = Between(model.Point{Snapshot: first}, model.Point{Snapshot: last})
	want := []struct {
		delta    uint64
		standing bool
	}{{4, false}, {2, true}, {0, true}, {2, true}, {4, true}}
	for i, w := range want {
		r := last.FrameRules[i]
		if r.Counter.Delta != w.delta || r.Standing != w.standing {
			t.Errorf("%s: delta %d, standing %v; want %d, %v", r.Text, r.Counter.Delta, r.Standing, w.delta, w.standing)
		}
	}
}
