package model_test

import (
	"net/netip"
	"testing"

	"github.com/lasthop/lasthop/probe/model"
)

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
