package timeline

import (
	"net/netip"
	"slices"
	"time"

	"github.com/lasthop/lasthop/probe/loss"
	"github.com/lasthop/lasthop/probe/model"
)

const points = 60

// series are the rates at which pods' packets are lost.
type series struct {
	at time.Time
	// drops are the drops of pods' packets that are losses. lost is their total, counted the latest count of each drop.
	drops history
	lost  uint64
	// pods are the same of each pod address that lost any.
	pods    map[netip.Addr]*history
	counted map[uint64]uint64
}

type history struct {
	packets uint64
	// lost is what packets will be with what is being added.
	lost  uint64
	rates []float64
}

// add appends the rate since the point before, if there was one.
func (x *history) add(packets uint64, seconds float64) {
	if seconds > 0 {
		x.rates = append(x.rates, float64(minus(packets, x.packets))/seconds)
		x.rates = x.rates[max(0, len(x.rates)-points):]
	}
	x.packets = packets
}

// addDrops adds the drops since the point before. Summing the counts would not
// do: counts of pods that are gone and counters that were freed are missing.
func (s *series) addDrops(now *model.Snapshot, pods map[netip.Addr]bool) {
	next := make(map[uint64]uint64, len(now.Traffic.Drops))
	classes := loss.NewClassifier(now)
	for d := range model.Each(now.Traffic.Drops) {
		id := dropID(d)
		next[id] = d.Packets
		n := minus(d.Packets, s.counted[id])
		if n == 0 || !pods[d.Src] && !pods[d.Dst] || !classes.Lost(d) {
			continue
		}
		s.lost += n
		for _, a := range slices.Compact([]netip.Addr{d.Src, d.Dst}) {
			if pods[a] {
				model.GetOrInsert(s.pods, a).lost += n
			}
		}
	}
	s.counted = next
}

// add appends the rates since the point before.
func (s *series) add(now *model.Snapshot) {
	seconds := model.Either(!s.at.IsZero(), now.Window.End.Sub(s.at).Seconds(), 0.0)
	s.at = now.Window.End
	pods := now.PodAddrs()
	if s.pods == nil {
		s.pods = map[netip.Addr]*history{}
	}
	s.addDrops(now, pods)
	s.drops.add(s.lost, seconds)
	for a, x := range s.pods {
		x.add(x.lost, seconds)
		if !pods[a] {
			delete(s.pods, a)
		}
	}
}
