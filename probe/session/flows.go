package session

import (
	"hash/maphash"
	"maps"
	"time"

	"github.com/lasthop/lasthop/probe/model"
)

// maxUnlisted bounds the flows that are remembered without being listed, on
// nodes where the list can never be read whole.
const maxUnlisted = 1 << 18

type flowKey struct {
	proto       uint8
	zone        uint16
	orig, reply model.Tuple
}

var flowSeed = maphash.MakeSeed()

// flowsAt sets the Start of the snapshot's flows and returns it by flow: the time
// in before of a flow that was listed before, else now. Where conntrack was not
// read whole, it keeps flows that are not listed. Flows are keyed by hash, since
// there may be very many.
func flowsAt(s *model.Snapshot, now time.Time, before map[uint64]time.Time) map[uint64]time.Time {
	out := make(map[uint64]time.Time, len(s.Flows))
	if s.Status(model.SourceConntrack) != model.OK && len(before) < maxUnlisted {
		maps.Copy(out, before)
	}
	for f := range model.Each(s.Flows) {
		k := maphash.Comparable(flowSeed, flowKey{f.Proto, f.Zone, f.Original, f.Reply})
		at, ok := before[k]
		if !ok {
			at = now
		}
		out[k], f.Start = at, at
	}
	return out
}
