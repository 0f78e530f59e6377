package timeline

import (
	"time"

	"github.com/lasthop/lasthop/probe/model"
)

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
	rarePoll = 2*Every - Every/2
)

// Every is the interval between polls of the counters, and so the precision of first and last times.
const Every = time.Second

// Pace decides when a stream polls the counters, and when it reads the state: so seldom that it takes a share of the
// CPU at most, and so often as what changes or is lost wants it.
type Pace struct {
	// Rarely is for a stream that is to take little.
	Rarely bool
	// due is when the state is read next, may be when it may be read if something is wrong, polled when the
	// counters were read alone.
	due, may, polled time.Time
	// read is when the state was last read, spent the CPU time used since, that included.
	read  time.Time
	spent time.Duration
	// advance is what was read ahead of the share, up to inAdvance or readsAdvance.
	advance time.Duration
	// begun is set by the first read, whose window is too short to show much.
	begun bool
}

// Start takes the state for read.
func (p *Pace) Start(at time.Time) { p.read = at }

// Due reports whether the state is to be read, or else the counters.
func (p *Pace) Due(now time.Time, changing bool) (state, counters bool) {
	if !now.Before(p.due) {
		return true, false
	}
	if p.Rarely && !changing && now.Sub(p.polled) < rarePoll {
		return false, false
	}
	p.polled = now
	return false, true
}

// May reports whether the state may be read for a doubt or a change.
func (p *Pace) May(now time.Time) bool { return !now.Before(p.may) }

// Spent adds CPU time.
func (p *Pace) Spent(d time.Duration) { p.spent += d }

// Read learns that the state was read.
func (p *Pace) Read(at time.Time, changing bool) {
	pause, least := p.next(at.Sub(p.read), p.spent, changing)
	// A tick may come a little early.
	p.read, p.spent, p.due, p.may = at, 0, at.Add(pause-Every/2), at.Add(least-Every/10)
}

// next is the time from one read of the state to the next, and to one for a change. spent is the CPU time used since
// the read before, passed the time. While a change is being observed the state is read as fast as it may be read in
// advance, and afterwards more slowly until that is made up for.
func (p *Pace) next(passed, spent time.Duration, changing bool) (pause, least time.Duration) {
	share, earliest, latest := stateShare*spent, Every, stateLatest
	if p.Rarely {
		share, latest = rareShare*spent, rareLatest
		if !changing {
			earliest = rareEarliest
		}
	}
	if !p.begun && p.Rarely {
		latest = rareEarliest
	}
	p.begun = true
	most := max(inAdvance, readsAdvance*share)
	p.advance = min(max(p.advance+share-passed, 0), most)
	fast := share - (most - p.advance)
	switch {
	case changing:
		pause = fast
	default:
		pause = share + model.Either(p.Rarely, min(p.advance, share), min(p.advance, share/4))
	}
	return min(max(pause, earliest), latest), min(max(fast, Every), latest)
}
