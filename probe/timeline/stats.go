package timeline

import (
	"slices"

	"github.com/lasthop/lasthop/probe/model"
)

// totals are what the kernel, drivers and programs had counted beside packets at hops and rules.
type totals struct {
	// backlogs are those of the pods' listeners, by network namespace; nil of one that was not read.
	backlogs map[uint32]*model.Backlog
	queues   []model.Queue
	devices  []model.Device
	softnet  []model.Softnet
	tables   []model.NeighborTable
	cilium   []model.CiliumCount
}

func totalsOf(s *model.Snapshot) totals {
	backlogs := model.Table(s.Pods, func(p *model.Pod) (uint32, *model.Backlog) { return p.Netns, p.Backlog })
	return totals{backlogs, s.Queues, s.Devices, s.Softnet, s.NeighborTables, s.Cilium.Counts}
}

// compare sets the differences to the mark, in copies. What the mark does not have may have counted for long: what was added is
// unknown, and zero. But a queue that it does not have, or a reason of Cilium's, is newer than the mark if they were read then.
func (m *mark) compare(s *model.Snapshot) {
	s.Pods = slices.Clone(s.Pods)
	for p := range model.Each(s.Pods) {
		if p.Backlog == nil {
			continue
		}
		now := *p.Backlog
		if before := m.backlogs[p.Netns]; before != nil {
			now.Delta = minus(now.Overflows, before.Overflows)
		} else if p.Since.After(m.at) {
			now.Delta = now.Overflows
		}
		p.Backlog = &now
	}
	// One that is replaced has other totals, and mostly another handle.
	s.Queues = added(s.Queues, m.queues, !m.unread(model.SourceQueues), func(a, b *model.Queue) bool {
		return a.IfIndex == b.IfIndex && a.Kind == b.Kind && a.Handle == b.Handle
	}, func(q, was *model.Queue) {
		q.SentDelta, q.DropsDelta = minus(q.Sent, was.Sent), minus(q.Drops, was.Drops)
	})
	s.Cilium.Counts = added(s.Cilium.Counts, m.cilium, !m.unread(model.SourceCilium), func(a, b *model.CiliumCount) bool {
		return a.Reason == b.Reason && a.Direction == b.Direction
	}, func(c, was *model.CiliumCount) { c.Delta = minus(c.Packets, was.Packets) })
	s.Devices = added(s.Devices, m.devices, false, func(a, b *model.Device) bool {
		return a.IfIndex == b.IfIndex && a.Driver == b.Driver
	}, func(d, was *model.Device) {
		d.ReceivedDelta, d.SentDelta, d.VFDelta = minus(d.Received, was.Received), minus(d.Sent, was.Sent), minus(d.VF, was.VF)
		d.Losses = added(d.Losses, was.Losses, false, func(a, b *model.DeviceLoss) bool { return a.Name == b.Name },
			func(l, was *model.DeviceLoss) { l.Delta = minus(l.Total, was.Total) })
	})
	s.Softnet = added(s.Softnet, m.softnet, false, func(a, b *model.Softnet) bool { return a.CPU == b.CPU }, func(c, was *model.Softnet) {
		c.ProcessedDelta, c.DroppedDelta = minus(c.Processed, was.Processed), minus(c.Dropped, was.Dropped)
		c.SqueezedDelta = minus(c.Squeezed, was.Squeezed)
	})
	s.NeighborTables = added(s.NeighborTables, m.tables, false, func(a, b *model.NeighborTable) bool { return a.Name == b.Name },
		func(t, was *model.NeighborTable) { t.FullsDelta = minus(t.Fulls, was.Fulls) })
}

// added is a copy of a list in which since has set what was added since it was as before. fresh says that what was not there
// before counted all of its own since.
func added[T any](now, before []T, fresh bool, same func(a, b *T) bool, since func(now, was *T)) []T {
	out := slices.Clone(now)
	for x := range model.Each(out) {
		if was := model.First(before, func(b *T) bool { return same(x, b) }); was != nil {
			since(x, was)
		} else if fresh {
			since(x, new(T))
		}
	}
	return out
}
