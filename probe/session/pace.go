package session

import "time"

// How often a stream reads the state. That takes CPU time that grows with pods, rules and
// connections: about 150 ms for 250 pods.
const (
	// stateShare limits what a stream does to this fraction of one CPU: 1/36. What is done between two reads of
	// the state delays the next. With the garbage that is collected meanwhile, the Go runtime and whoever
	// receives the readings that is about 1/25.
	stateShare = 36
	// inAdvance is how much of its time the state may be read ahead of that share, to observe a change: three
	// reads at least: that of the start, and two of a change, since a finding opens with the second that shows it.
	inAdvance    = 20 * time.Second
	readsAdvance = 3
	// stateLatest is how old the state may become, whatever it takes.
	stateLatest = 10 * time.Second

	// The same for a stream that is to take little: a fourth of the share, and while nothing
	// changes no more often than each rareEarliest.
	rareShare    = 4 * stateShare
	rareEarliest = 10 * time.Second
	rareLatest   = time.Minute
	// rarePoll is how often counters are read meanwhile; a tick may come a little early.
	rarePoll = 2*pollEvery - pollEvery/2
)

type pace struct {
	rarely bool
	// advance is what was read ahead of the share, up to inAdvance or readsAdvance.
	advance time.Duration
	// begun is set by the first read, whose window is too short to show much.
	begun bool
}

// next is the time from one read of the state to the next. spent is the CPU time used since the read before,
// passed the time. While a change is being observed the state is read as fast as it may be read in advance, and
// afterwards more slowly until that is made up for.
func (p *pace) next(passed, spent time.Duration, changing bool) time.Duration {
	share, earliest, latest := stateShare*spent, pollEvery, stateLatest
	if p.rarely {
		share, latest = rareShare*spent, rareLatest
		if !changing {
			earliest = rareEarliest
		}
	}
	if !p.begun && p.rarely {
		latest = rareEarliest
	}
	p.begun = true
	most := max(inAdvance, readsAdvance*share)
	p.advance = min(max(p.advance+share-passed, 0), most)
	pause := share
	switch {
	case changing:
		pause -= most - p.advance
	case p.advance > 0:
		pause += share / 4
	}
	return min(max(pause, earliest), latest)
}
