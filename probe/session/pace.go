package session

import "time"

// How often a stream reads the state. That takes CPU time that grows with pods, rules and
// connections: about 150 ms for 250 pods.
const (
	// stateShare limits what a stream does to this fraction of one CPU: 1/36. What is
	// done between two reads of the state delays the next. With the garbage that is
	// collected meanwhile, the Go runtime and whoever receives the readings that is
	// about 1/25.
	stateShare = 36
	// inAdvance is how much of its time the state may be read ahead of that share, to
	// observe a change.
	inAdvance = 20 * time.Second
	// stateLatest is how old the state may become, whatever it takes.
	stateLatest = 10 * time.Second
)

type pace struct {
	// advance is what was read ahead of the share, up to inAdvance.
	advance time.Duration
}

// next is the time from one read of the state to the next. spent is the CPU time used
// since the read before, passed the time. While a change is being observed the state is
// read as fast as it may be read in advance, and afterwards more slowly until that is made
// up for.
func (p *pace) next(passed, spent time.Duration, changing bool) time.Duration {
	share := stateShare * spent
	p.advance = min(max(p.advance+share-passed, 0), inAdvance)
	pause := share
	switch {
	case changing:
		pause -= inAdvance - p.advance
	case p.advance > 0:
		pause += share / 4
	}
	return min(max(pause, pollEvery), stateLatest)
}
