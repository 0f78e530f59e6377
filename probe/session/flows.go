package session

import (
	"context"
	"hash/maphash"
	"maps"
	"net/netip"
	"runtime"
	"time"

	"golang.org/x/sys/unix"

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

// flowsAt sets the Start of the snapshot's flows and returns it by flow: the time in before of a flow that was
// listed before, else now. Where conntrack was not read whole, it keeps flows that are not listed. Flows are
// keyed by hash, and times are nanoseconds since 1970, or 0, since there may be very many: the garbage collector
// does not look into a map without pointers.
func flowsAt(s *model.Snapshot, now int64, before map[uint64]int64) map[uint64]int64 {
	out := make(map[uint64]int64, len(s.Flows))
	if s.Status(model.SourceConntrack) != model.OK && len(before) < maxUnlisted {
		maps.Copy(out, before)
	}
	for f := range model.Each(s.Flows) {
		k := flowHash(f)
		at, ok := before[k]
		if !ok {
			at = now
		}
		out[k] = at
		if at != 0 {
			f.Start = time.Unix(0, at)
		}
	}
	return out
}

func flowHash(f *model.Flow) uint64 {
	return maphash.Comparable(flowSeed, flowKey{f.Proto, f.Zone, f.Original, f.Reply})
}

// listShare limits what listing flows between two states takes to this fraction of one CPU.
const listShare = 50

// listFlows lists the flows alone: two states may be far apart, and a connection is known to have no reply only if it began
// well before the end. What cannot be listed now is listed later.
func (w *watch) listFlows(ctx context.Context) {
	if now := w.now(); w.options.Rarely || now.Before(w.listing) || len(w.flows) >= maxUnlisted {
		return
	}
	// Of this thread alone: what the process does besides may be anything.
	runtime.LockOSThread()
	defer runtime.UnlockOSThread()
	before := used(unix.RUSAGE_THREAD)
	flows, _ := w.collector.Flows(ctx)
	now := w.now()
	for f := range model.Each(flows) {
		k := flowHash(f)
		if _, known := w.flows[k]; !known {
			w.flows[k] = now.UnixNano()
		}
	}
	w.listing = now.Add(listShare * (used(unix.RUSAGE_THREAD) - before))
}

// forgetStarts clears the times at which flows began whose pods were not counted yet: none of their packets may be known.
func (w *watch) forgetStarts(s *model.Snapshot) {
	late := map[netip.Addr]time.Time{}
	for p := range model.Each(s.Pods) {
		if p.Watched.IsZero() && w.engine != nil {
			p.Watched = s.Window.End
		}
		for _, a := range p.Known() {
			if p.Late(s.Window) {
				late[a] = p.Watched
			}
		}
	}
	s.Flows = model.Map(s.Flows, func(f model.Flow) model.Flow {
		if f.Start.Before(late[f.Original.Src]) || f.Start.Before(late[f.Reply.Src]) {
			f.Start = time.Time{}
		}
		return f
	})
}

// endsOf returns one flow for each set of addresses, of which many flows have few.
func endsOf(flows []model.Flow) []model.Flow {
	type ends struct{ from, to, back, home netip.Addr }
	seen := map[ends]bool{}
	var out []model.Flow
	for f := range model.Each(flows) {
		if k := (ends{f.Original.Src, f.Original.Dst, f.Reply.Src, f.Reply.Dst}); !seen[k] {
			seen[k], out = true, append(out, *f)
		}
	}
	return out
}
