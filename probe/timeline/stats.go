package timeline

import (
	"slices"

	"github.com/lasthop/lasthop/probe/model"
)

// stats are the counts below IP at a mark.
type stats struct {
	devices []model.Device
	softnet []model.Softnet
	tables  []model.NeighborTable
}

func statsOf(s *model.Snapshot) stats { return stats{s.Devices, s.Softnet, s.NeighborTables} }

// compare sets the differences to the mark, in copies. What the mark does not have may have
// counted for long: what was added is unknown, and zero.
func (m stats) compare(s *model.Snapshot) {
	s.Devices, s.Softnet, s.NeighborTables = slices.Clone(s.Devices), slices.Clone(s.Softnet), slices.Clone(s.NeighborTables)
	for d := range model.Each(s.Devices) {
		d.Losses = slices.Clone(d.Losses)
		was := model.First(m.devices, func(x *model.Device) bool { return x.IfIndex == d.IfIndex && x.Driver == d.Driver })
		if was == nil {
			continue
		}
		d.ReceivedDelta, d.SentDelta, d.VFDelta = minus(d.Received, was.Received), minus(d.Sent, was.Sent), minus(d.VF, was.VF)
		for l := range model.Each(d.Losses) {
			if x := model.First(was.Losses, func(x *model.DeviceLoss) bool { return x.Name == l.Name }); x != nil {
				l.Delta = minus(l.Total, x.Total)
			}
		}
	}
	for c := range model.Each(s.Softnet) {
		if was := model.First(m.softnet, func(x *model.Softnet) bool { return x.CPU == c.CPU }); was != nil {
			c.ProcessedDelta, c.DroppedDelta = minus(c.Processed, was.Processed), minus(c.Dropped, was.Dropped)
			c.SqueezedDelta = minus(c.Squeezed, was.Squeezed)
		}
	}
	for t := range model.Each(s.NeighborTables) {
		if was := model.First(m.tables, func(x *model.NeighborTable) bool { return x.Name == t.Name }); was != nil {
			t.FullsDelta = minus(t.Fulls, was.Fulls)
		}
	}
}
