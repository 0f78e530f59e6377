package timeline

import (
	"slices"

	"github.com/lasthop/lasthop/probe/model"
)

// queueKey identifies a queue across readings. One that is replaced has other totals,
// and mostly another handle.
type queueKey struct {
	ifindex      int
	kind, handle string
}

func queuesOf(s *model.Snapshot) map[queueKey]model.Queue {
	out := make(map[queueKey]model.Queue, len(s.Queues))
	for _, q := range s.Queues {
		out[queueKey{q.IfIndex, q.Kind, q.Handle}] = q
	}
	return out
}

// compareQueues sets the differences of the queues, in copies. What a queue that the
// mark does not have counted before is unknown if the queues were not read then.
func (m *mark) compareQueues(s *model.Snapshot) {
	s.Queues = slices.Clone(s.Queues)
	for q := range model.Each(s.Queues) {
		before, read := m.queues[queueKey{q.IfIndex, q.Kind, q.Handle}]
		if read || !m.unread(model.SourceQueues) {
			q.SentDelta, q.DropsDelta = minus(q.Sent, before.Sent), minus(q.Drops, before.Drops)
		}
	}
}
