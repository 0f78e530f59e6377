package session

import (
	"net/netip"
	"testing"
	"time"

	"github.com/lasthop/lasthop/probe/model"
)

func rule(text string, packets uint64) model.FrameRule {
	return model.FrameRule{Backend: model.NFT, Table: "nat", Chain: "PREROUTING", Text: text, Counter: model.Counter{Packets: packets}}
}

// written gives a rule the number that nft gave it.
func written(r model.FrameRule, handle uint64) model.FrameRule {
	r.Handle = handle
	return r
}

func TestCompareRules(t *testing.T) {
	first := &model.Snapshot{FrameRules: []model.FrameRule{
		rule("moved", 5), rule("same", 1), rule("same", 7), rule("zeroed", 90), rule("gone", 3), written(rule("anew", 4), 11), written(rule("kept", 4), 12),
	}}
	last := &model.Snapshot{FrameRules: []model.FrameRule{
		rule("new", 4), rule("same", 3), rule("same", 7), rule("zeroed", 2), rule("moved", 9), written(rule("anew", 9), 21), written(rule("kept", 9), 12),
	}}
	compareRules(first, last)
	want := []struct {
		delta               uint64
		standing, restarted bool
	}{{4, false, false}, {2, true, false}, {0, true, false}, {2, true, true}, {4, true, false}, {9, true, true}, {5, true, false}}
	for i, w := range want {
		r := last.FrameRules[i]
		if r.Counter.Delta != w.delta || r.Standing != w.standing || r.Counter.Restarted != w.restarted {
			t.Errorf("%s: delta %d, standing %v, restarted %v; want %+v", r.Text, r.Counter.Delta, r.Standing, r.Counter.Restarted, w)
		}
	}
}

func TestRoster(t *testing.T) {
	pod := func(netns uint32, link int, addr string) model.Pod {
		return model.Pod{Netns: netns, LinkIndex: link, Addresses: []netip.Prefix{netip.MustParsePrefix(addr)}}
	}
	t0 := time.Date(2026, 1, 2, 3, 4, 5, 0, time.UTC)
	t1 := t0.Add(time.Second)
	var r roster
	r.see(t0, []model.Pod{pod(1, 7, "10.9.0.5/32"), pod(2, 8, "10.9.0.6/32")})
	// One is deleted and another is given its address.
	r.see(t1, []model.Pod{pod(2, 8, "10.9.0.6/32"), pod(3, 9, "10.9.0.5/32")})

	alive, gone := r.alive(), r.gone()
	if len(alive) != 2 || alive[0].Netns != 2 || alive[1].Netns != 3 {
		t.Errorf("alive %+v", alive)
	}
	if len(gone) != 1 || gone[0].Netns != 1 || !gone[0].Until.Equal(t0) {
		t.Errorf("gone %+v", gone)
	}
	if !alive[0].Since.Equal(t0) || !alive[1].Since.Equal(t1) {
		t.Errorf("since %v and %v", alive[0].Since, alive[1].Since)
	}
}
