package timeline

import (
	"slices"

	"github.com/lasthop/lasthop/probe/model"
)

// queueKey identifies a queue across readings. One that is replaced has other totals, and mostly another handle.
type queueKey struct {
	ifindex      int
	kind, handle string
}

func queuesOf(s *model.Snapshot) map[queueKey]model.Queue {
	return model.Table(s.Queues, func(q *model.Queue) (queueKey, model.Queue) {
		return queueKey{q.IfIndex, q.Kind, q.Handle}, *q
	})
}

// compareQueues sets the differences of the queues, in copies. What a queue that the
// mark does not have counted before is unknown if the queues were not read then.
func (m *mark) compareQueues(s *model.Snapshot) {
	s.Queues = slices.Clone(s.Queues)
	for q := range model.Each(s.Queues) {
		if before, read := m.queues[queueKey{q.IfIndex, q.Kind, q.Handle}]; read || !m.unread(model.SourceQueues) {
			q.SentDelta, q.DropsDelta = minus(q.Sent, before.Sent), minus(q.Drops, before.Drops)
		}
	}
}

func ciliumOf(s *model.Snapshot) map[model.CiliumCount]uint64 {
	return model.Table(s.Cilium.Counts, func(c *model.CiliumCount) (model.CiliumCount, uint64) {
		return model.CiliumCount{Reason: c.Reason, Direction: c.Direction}, c.Packets
	})
}

// compareCilium sets the differences of what Cilium's programs counted, in copies.
func (m *mark) compareCilium(s *model.Snapshot) {
	s.Cilium.Counts = slices.Clone(s.Cilium.Counts)
	for c := range model.Each(s.Cilium.Counts) {
		before, read := m.cilium[model.CiliumCount{Reason: c.Reason, Direction: c.Direction}]
		if read || !m.unread(model.SourceCilium) {
			c.Delta = minus(c.Packets, before)
		}
	}
}
