package timeline

import (
	"net/netip"
	"slices"
	"testing"

	"github.com/lasthop/lasthop/probe/model"
)

// TestDropRates: the rate of drops is of what is new. A pod that goes, with the
// drops that it had, and kinds that are forgotten are none.
func TestDropRates(t *testing.T) {
	stays, goes := netip.MustParseAddr("10.77.1.1"), netip.MustParseAddr("10.77.1.2")
	drop := func(a netip.Addr, packets uint64) model.Drop {
		return model.Drop{Src: a, Dst: peer, Reason: "NETFILTER_DROP", Location: "nft_do_chain", Packets: packets}
	}
	tl := New(func(*model.Snapshot) (none model.Verdict) { return none }, 0)
	var got, lost []float64
	for second, p := range []struct {
		pods  []netip.Addr
		drops []model.Drop
	}{
		{[]netip.Addr{stays, goes}, []model.Drop{drop(stays, 50), drop(goes, 1000)}},
		{[]netip.Addr{stays, goes}, []model.Drop{drop(stays, 60), drop(goes, 1000)}},
		{[]netip.Addr{stays}, []model.Drop{drop(stays, 60), drop(goes, 1000)}},
		{[]netip.Addr{stays}, []model.Drop{drop(stays, 65)}},
		{[]netip.Addr{stays}, []model.Drop{drop(stays, 3)}},
	} {
		s := &model.Snapshot{
			Window:  model.Window{Start: start, End: at(float64(second + 1))},
			Sources: []model.Source{{Name: model.SourceDrops, Status: model.OK}},
			Traffic: model.Traffic{Drops: p.drops},
		}
		for _, a := range p.pods {
			s.Pods = append(s.Pods, model.Pod{Addresses: []netip.Prefix{netip.PrefixFrom(a, 24)}})
		}
		r := tl.Add(model.Point{Snapshot: s})
		got = r.Drops
		if n := len(p.pods); n == 1 && len(r.Lost) > 1 {
			t.Errorf("second %d: what is gone still loses: %v", second, r.Lost)
		}
		lost = r.Lost[stays]
	}
	if !slices.Equal(lost, got) {
		t.Errorf("the pod lost %v, of all %v", lost, got)
	}
	if want := []float64{10, 0, 5, 3}; !slices.Equal(got, want) {
		t.Errorf("rates %v, want %v", got, want)
	}
}
