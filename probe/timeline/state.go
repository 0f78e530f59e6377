package timeline

import (
	"slices"
	"time"

	"github.com/lasthop/lasthop/probe/model"
)

// state is what is compared with a mark: the flows, rules and chains, of which there may be very many.
type state struct {
	flows   []model.Flow
	frames  []model.FrameRule
	packets []model.PacketRule
	chains  []model.Chain
}

func stateOf(s *model.Snapshot) state { return state{s.Flows, s.FrameRules, s.PacketRules, s.Chains} }

// is reports whether both are one reading of the node.
func (a state) is(b state) bool {
	return sameList(a.flows, b.flows) && sameList(a.frames, b.frames) && sameList(a.packets, b.packets) && sameList(a.chains, b.chains)
}

func sameList[T any](a, b []T) bool { return len(a) == len(b) && (len(a) == 0 || &a[0] == &b[0]) }

// lastState is the state of the last cut. Most cuts are of the state and the base of the
// one before. Nobody changes it, since it is a snapshot's.
type lastState struct {
	base     *mark
	from, to state
}

// set replaces the state of a snapshot by the same compared with its window's base. Flows were
// listed next at listed.
func (c *lastState) set(s *model.Snapshot, base *mark, listed time.Time, k *keeper) {
	if from := stateOf(s); base != c.base || !from.is(c.from) {
		base.rules.compare(s, k.of(s.PacketRules), base.unread, counted)
		s.Flows = flowsSince(s.Flows, base.at, listed, base.unread(model.SourceConntrack))
		*c = lastState{base, from, stateOf(s)}
		return
	}
	s.Flows, s.FrameRules, s.PacketRules, s.Chains = c.to.flows, c.to.frames, c.to.packets, c.to.chains
}

// flowsSince returns the flows without the times at which those began that were there at base, or without all times if
// they were unread then. The next list after base is of listed: what had a reply by then may have had it before.
func flowsSince(of []model.Flow, base, listed time.Time, unread bool) []model.Flow {
	old := func(f *model.Flow) bool {
		return !f.Start.IsZero() && (unread || !f.Start.After(base) || f.Replied && !f.Start.After(listed))
	}
	first := slices.IndexFunc(of, func(f model.Flow) bool { return old(&f) })
	if first < 0 {
		return of
	}
	out := slices.Clone(of)
	for i := range out[first:] {
		if f := &out[first+i]; old(f) {
			f.Start = time.Time{}
		}
	}
	return out
}
