package timeline

import (
	"net/netip"
	"time"

	"github.com/lasthop/lasthop/probe/model"
)

// points is how many rates a series holds at most.
const points = 60

// series are the rates of pods' addresses at each hop.
type series struct {
	at   time.Time
	hops map[hopKey]*history
	// drops are those of pods that are losses: lost is how many there were,
	// counted what each kind of drop had counted.
	drops   history
	lost    uint64
	counted map[uint64]uint64
}

type history struct {
	packets uint64
	rates   []float64
}

// add notes the rate since the point before, where there was one.
func (x *history) add(packets uint64, seconds float64) {
	if seconds > 0 {
		x.rates = append(x.rates, float64(minus(packets, x.packets))/seconds)
		x.rates = x.rates[max(0, len(x.rates)-points):]
	}
	x.packets = packets
}

// addDrops adds up how many packets of pods were dropped since the point before.
// The sum of all counts would not tell: those of pods that are gone, and of kinds
// that were forgotten, are no longer in it.
func (s *series) addDrops(now *model.Snapshot, pods map[netip.Addr]bool) {
	next := make(map[uint64]uint64, len(now.Traffic.Drops))
	classes := model.NewDropClassifier(now)
	for i := range now.Traffic.Drops {
		d := &now.Traffic.Drops[i]
		id := dropID(*d)
		next[id] = d.Packets
		if (pods[d.Src] || pods[d.Dst]) && classes.Lost(d) {
			s.lost += minus(d.Packets, s.counted[id])
		}
	}
	s.counted = next
}

// add notes the rates since the point before.
func (s *series) add(now *model.Snapshot) {
	seconds := 0.0
	if !s.at.IsZero() {
		seconds = now.Window.End.Sub(s.at).Seconds()
	}
	s.at = now.Window.End
	pods := map[netip.Addr]bool{}
	for i := range now.Pods {
		for _, a := range now.Pods[i].Addresses {
			pods[a.Addr()] = true
		}
	}
	s.addDrops(now, pods)
	s.drops.add(s.lost, seconds)
	next := make(map[hopKey]*history, len(s.hops))
	for i := range now.Traffic.Hops {
		h := &now.Traffic.Hops[i]
		if !pods[h.Addr] {
			continue
		}
		k := hopKey{h.Addr, h.Prefix, h.IfIndex, h.Direction, h.Side}
		x := s.hops[k]
		if x == nil {
			x = &history{}
		}
		x.add(h.Packets, seconds)
		next[k] = x
	}
	s.hops = next
}

// list gives copies, in the order of the hops.
func (s *series) list(hops []model.HopCount) []model.Series {
	total := 0
	for _, x := range s.hops {
		total += len(x.rates)
	}
	out, all := make([]model.Series, 0, len(s.hops)), make([]float64, 0, total)
	for i := range hops {
		h := &hops[i]
		x := s.hops[hopKey{h.Addr, h.Prefix, h.IfIndex, h.Direction, h.Side}]
		if x == nil || len(x.rates) == 0 {
			continue
		}
		all = append(all, x.rates...)
		out = append(out, model.Series{Addr: h.Addr, IfIndex: h.IfIndex, Link: h.Link, Direction: h.Direction, Side: h.Side,
			Rates: all[len(all)-len(x.rates) : len(all) : len(all)]})
	}
	return out
}
