package model_test

import (
	"net/netip"
	"testing"
	"time"

	"github.com/lasthop/lasthop/probe/model"
)

// TestClock has both sides of each limit: polls are a second apart, and their times vary a little.
func TestClock(t *testing.T) {
	start := time.Date(2026, 1, 2, 3, 4, 5, 0, time.UTC)
	w := model.Window{Start: start, End: start.Add(30 * time.Second)}
	for before, want := range map[time.Duration]bool{0: false, 749 * time.Millisecond: false, 750 * time.Millisecond: true, time.Second: true} {
		if got := w.Settled(w.End.Add(-before)); got != want {
			t.Errorf("asked %v before the end: settled %v", before, got)
		}
	}
	for span, want := range map[time.Duration]bool{0: false, time.Second: false, 1499 * time.Millisecond: false, 1500 * time.Millisecond: true, 2 * time.Second: true} {
		if got := model.Lasted(start, start.Add(span)); got != want {
			t.Errorf("%v: lasted %v", span, got)
		}
	}
}

func TestLostOf(t *testing.T) {
	a, b, c := netip.MustParseAddr("10.1.0.1"), netip.MustParseAddr("10.1.0.2"), netip.MustParseAddr("10.1.0.3")
	l := model.Lost{Counters: 40, MACs: 9, Unparsed: 1, Others: 4, Addrs: []model.AddrLoss{
		{Addr: a, Hops: 10, Peers: 9, MACs: 5}, {Addr: b, Pairs: 8, Drops: 7},
	}}
	for _, want := range []model.AddrLoss{
		// 2 of the 40, and the one that was not parsed, may be of any.
		{Addr: a, Hops: 13, Peers: 12, Pairs: 3, Drops: 3, MACs: 9},
		{Addr: b, Hops: 3, Peers: 3, Pairs: 11, Drops: 10, MACs: 4},
		{Addr: c, Hops: 3, Peers: 3, Pairs: 3, Drops: 3, MACs: 4},
	} {
		if got := l.Of(want.Addr); got != want {
			t.Errorf("got  %+v\nwant %+v", got, want)
		}
	}
}

func TestDropBetween(t *testing.T) {
	pod, far := netip.MustParseAddr("10.1.0.1"), netip.MustParseAddr("203.0.113.9")
	for _, tt := range []struct {
		d    model.Drop
		want bool
	}{
		{model.Drop{Src: pod, Dst: far}, true},
		{model.Drop{Src: far, Dst: pod}, false},
		{model.Drop{Src: pod, Range: netip.MustParsePrefix("203.0.113.0/24")}, true},
		{model.Drop{Src: pod, Range: netip.MustParsePrefix("203.0.112.0/24")}, false},
		{model.Drop{Src: pod, Range: netip.MustParsePrefix("0.0.0.0/0")}, true},
		{model.Drop{Dst: pod, Range: netip.MustParsePrefix("0.0.0.0/0")}, false},
		{model.Drop{}, false},
	} {
		if got := tt.d.Between(pod, far); got != tt.want {
			t.Errorf("%+v: %v, want %v", tt.d, got, tt.want)
		}
	}
}
