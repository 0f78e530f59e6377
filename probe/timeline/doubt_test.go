package timeline

import (
	"net/netip"
	"testing"
	"time"

	"github.com/lasthop/lasthop/probe/model"
)

// TestDoubts: packets that get no reply make a judgement due within seconds, but what was judged without a finding does
// so a few times alone, and what is like it waits longer and longer.
func TestDoubts(t *testing.T) {
	const hour = 3600
	far := func(i int) netip.Addr { return netip.AddrFrom4([4]byte{10, 9, byte(i >> 8), byte(i)}) }
	never := func(_, _ int) int { return 0 }
	each := func(_, second int) int { return second }
	for name, tt := range map[string]struct {
		// out and in are the packets to and from the i-th address by a second.
		out, in func(i, second int) int
		// first is when a judgement is due first, most how often in an hour.
		first, most int
	}{
		"each request has a reply":    {each, each, -1, 0},
		"replies stop":                {each, func(_, s int) int { return min(s, 100) }, 104, 4},
		"two requests":                {func(_, s int) int { return min(s, 2) }, never, -1, 0},
		"statistics that nobody acks": {func(_, s int) int { return s / 10 * 5 }, never, 10, 4},
		"a scan":                      {func(i, s int) int { return min(max(0, s-2*i), 4) }, never, 4, 80},
		"late now and then":           {each, func(_, s int) int { return s - s%60/50*(s%10) }, 54, 100},
	} {
		line := New(func(*model.Snapshot) (none model.Verdict) { return none }, Short).Doubting(true)
		first, due := -1, 0
		for second := 0; second < hour; second += 2 {
			s := &model.Snapshot{Window: model.Window{Start: start, End: at(float64(second))}}
			for i := range min(second/2+1, 1800) {
				p := model.Peer{Local: pod, Remote: far(i), LastOut: s.Window.End, LastIn: s.Window.End}
				p.Out = model.NewPeerCount(uint64(tt.out(i, second)), uint64(tt.out(i, second)), 0, 0)
				p.In = model.NewPeerCount(uint64(tt.in(i, second)), 0, uint64(tt.in(i, second)), 0)
				if s.Traffic.Peers = append(s.Traffic.Peers, p); name != "a scan" {
					break
				}
			}
			line.Note(model.Point{Snapshot: s})
			doubt := line.Doubt()
			if !doubt {
				continue
			}
			if due++; first < 0 {
				first = second
			}
			later := *s
			later.Window.End = s.Window.End.Add(time.Millisecond)
			line.Add(model.Point{Snapshot: &later, Whole: true})
		}
		if first != tt.first || due > tt.most {
			t.Errorf("%s: first due at %d s, want %d; %d times in an hour, want at most %d", name, first, tt.first, due, tt.most)
		}
	}
}

// TestPaceDoubts: doubts that never end take no more than the share.
func TestPaceDoubts(t *testing.T) {
	const cost = 30 * time.Millisecond
	p, used := Pace{Rarely: true}, time.Duration(0)
	p.Start(start)
	for second := range 2 * 3600 {
		now := at(float64(second))
		if state, _ := p.Due(now, false); state || p.May(now) {
			used += cost
			p.Spent(cost)
			p.Read(now, false)
		}
	}
	if share := used.Seconds() / (2 * 3600); share > 1.02/rareShare {
		t.Errorf("it took %.4f of a CPU, want %.4f", share, 1.0/rareShare)
	}
}
