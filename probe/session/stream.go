package session

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"slices"
	"time"

	"golang.org/x/sys/unix"

	"github.com/lasthop/lasthop/probe/model"
	"github.com/lasthop/lasthop/probe/timeline"
)

// Stream is an observation that runs until it is closed and publishes a reading about once a second.
type Stream struct {
	cancel context.CancelFunc
	feed   *timeline.Feed[requests]
	done   chan struct{}
	err    error // valid once done is closed
}

type requests struct {
	window        *time.Duration
	rescan, reset bool
}

// How often links and pods are read after a change: no more often than each lookAgain,
// and in a stream so seldom that it takes 1/lookShare of one CPU, but with each poll.
const (
	lookAgain = 250 * time.Millisecond
	lookShare = 50
)

// Open starts an observation and returns once packets are counted on every link. Options.For is the window of the
// readings, 0 for all since the start. Errors are those of Observe. The stream ends with ctx; Close waits for that.
func Open(ctx context.Context, o Options) (*Stream, error) {
	w, err := newWatch(o)
	if err != nil {
		return nil, err
	}
	ctx, cancel := context.WithCancel(ctx)
	changes, err := w.start(ctx, ctx)
	if err != nil {
		cancel()
		err = errors.Join(err, w.detach())
		w.collector.Close()
		return nil, err
	}
	s := &Stream{cancel: cancel, feed: timeline.NewFeed[requests](), done: make(chan struct{})}
	w.countPairs(true)
	r := &running{watch: w, feed: s.feed, timeline: timeline.New(o.Diagnose, o.For), read: time.Now(), pace: pace{rarely: o.Rarely}}
	// The first reading has state but no counts.
	s.feed.Publish(r.timeline.Add(w.first))
	go func() {
		defer close(s.done)
		defer close(s.feed.Readings)
		defer w.collector.Close()
		s.err = errors.Join(r.run(ctx, changes), w.detach())
	}()
	return s, nil
}

// Readings delivers the latest reading. It is closed when the stream ends. Close then returns the error, if any.
func (s *Stream) Readings() <-chan model.Reading { return s.feed.Readings }

// SetWindow sets the window of the readings, 0 for all since the start or the
// last Reset. A reading over that window follows at once.
func (s *Stream) SetWindow(d time.Duration) { s.feed.Ask(func(a *requests) { a.window = &d }) }

// Rescan reads the state again now.
func (s *Stream) Rescan() { s.feed.Ask(func(a *requests) { a.rescan = true }) }

// Reset restarts the window "all" from now.
func (s *Stream) Reset() { s.feed.Ask(func(a *requests) { a.reset = true }) }

// Close ends the observation and waits until everything is detached. It returns
// the error that ended the observation, if any.
func (s *Stream) Close() error {
	s.cancel()
	<-s.done
	return s.err
}

// running is the goroutine of a stream.
type running struct {
	*watch
	feed     *timeline.Feed[requests]
	timeline *timeline.Timeline
	// read is when the state was last read, due when it is read next.
	read, due time.Time
	pace      pace
	// spent is the CPU time used since the state was last read, that included.
	spent time.Duration
	// polled is when the counters were read alone.
	polled time.Time
	// cleared is when counts of pods that are gone were freed last.
	cleared time.Time
}

func (r *running) run(ctx context.Context, changes <-chan struct{}) error {
	do := []func(context.Context) error{tick: r.tick, changed: r.look, asked: r.answer}
	err := r.loop(ctx, changes, pollEvery, nil, r.feed.Asked, func(e event) error { return r.measured(ctx, do[e]) })
	if ctx.Err() != nil {
		return nil
	}
	return err
}

// measured does something, and puts the next read of the state off by what that took.
func (r *running) measured(ctx context.Context, do func(context.Context) error) error {
	before, read := processorTime(), r.read
	if err := do(ctx); err != nil {
		return err
	}
	r.spent += processorTime() - before
	if r.read.Equal(read) {
		return nil
	}
	pause := r.pace.next(r.read.Sub(read), r.spent, r.timeline.Unsettled())
	r.spent = 0
	// A tick may come a little early.
	r.due = r.read.Add(pause - pollEvery/2)
	return nil
}

// look watches links and pods that were added.
func (r *running) look(ctx context.Context) error {
	before := processorTime()
	defer func() {
		r.refreshed = time.Now()
		r.pause = min(max(lookAgain, lookShare*(processorTime()-before)), pollEvery)
	}()
	return r.refresh(ctx, r.now())
}

// tick reads the counters, and the state if that is due.
func (r *running) tick(ctx context.Context) error {
	now := r.now()
	if !now.Before(r.due) {
		return r.whole(ctx, now)
	}
	if r.pace.rarely && !r.timeline.Unsettled() && now.Sub(r.polled) < rarePoll {
		return nil
	}
	r.polled = now
	if err := r.count(now); err != nil {
		return err
	}
	add := model.Either(r.pace.rarely, r.timeline.Note, r.timeline.Add)
	reading := add(model.Point{Snapshot: r.total(now, r.traffic())})
	r.feed.Publish(reading)
	if r.pace.rarely && begins(reading.Drops) {
		// Why shows only with the state.
		r.due = now
	}
	return nil
}

// begins reports whether something was lost, and nothing before.
func begins(rates []float64) bool {
	n := len(rates) - 1
	return n > 0 && rates[n] > 0 && !slices.ContainsFunc(rates[:n], func(r float64) bool { return r > 0 })
}

// whole reads counters, state, and counters again.
func (r *running) whole(ctx context.Context, now time.Time) error {
	if by := r.set(); r.options.Rarely && by != 0 {
		return fmt.Errorf("the machine's clock was set by %v", by)
	}
	if err := r.poll(now); err != nil {
		return err
	}
	p, err := r.watch.whole(ctx, now, r.traffic())
	if err != nil {
		return err
	}
	links := r.state.Links
	if !r.state.Has(model.SourceLinks) {
		links = r.links // What was not read is not gone.
	}
	if err := r.apply(now, links, r.roster.alive()); err != nil {
		return err
	}
	keep := cmp.Or(r.options.Keep, timeline.Long)
	r.roster.forget(now.Add(-keep))
	p.Ready = r.now()
	if err := r.count(p.Ready); err != nil {
		return err
	}
	p.After = timeline.Moved(&p.Snapshot.Traffic, new(r.traffic()))
	if r.engine != nil {
		all := r.options.Keep > 0 && now.Sub(r.cleared) >= keep
		if all {
			r.cleared = now
		}
		if err := errors.Join(r.engine.ForgetTTLs(), r.engine.MakeRoom(now.Add(-keep), all)); err != nil {
			return err
		}
	}
	reading := r.timeline.Add(p)
	r.read, r.refreshed = p.Ready, p.Ready
	if r.options.Whole != nil {
		r.options.Whole()
	}
	r.feed.Publish(reading)
	return nil
}

func processorTime() time.Duration {
	var u unix.Rusage
	// It fails for a bad argument alone.
	_ = unix.Getrusage(unix.RUSAGE_SELF, &u)
	return time.Duration(u.Utime.Nano() + u.Stime.Nano())
}

func (r *running) answer(ctx context.Context) error {
	a := r.feed.Take()
	if a.window != nil {
		r.timeline.SetWindow(*a.window)
		if reading, ok := r.timeline.Again(); ok {
			r.feed.Publish(reading)
		}
	}
	if a.rescan || a.reset {
		if err := r.whole(ctx, r.now()); err != nil {
			return err
		}
	}
	if a.reset {
		r.timeline.Reset()
	}
	return nil
}
