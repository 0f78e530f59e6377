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
	w.made = make(chan struct{}, 1)
	w.authors = &authors{made: w.made}
	w.authors.follow(ctx, w)
	changes, err := w.start(ctx, ctx)
	if err != nil {
		cancel()
		err = errors.Join(err, w.detach(), w.authors.close())
		w.collector.Close()
		return nil, err
	}
	s := &Stream{cancel: cancel, feed: timeline.NewFeed[requests](), done: make(chan struct{})}
	w.countPairs(true)
	r := &running{watch: w, feed: s.feed, timeline: timeline.New(o.Diagnose, o.For), pace: timeline.Pace{Rarely: o.Rarely}}
	r.timeline.Doubting(o.Rarely)
	r.pace.Start(time.Now())
	// The first reading has state but no counts.
	s.feed.Publish(r.timeline.Add(w.first))
	go func() {
		defer close(s.done)
		defer close(s.feed.Readings)
		defer w.collector.Close()
		err := r.run(ctx, changes)
		cancel()
		s.err = errors.Join(err, w.detach(), w.authors.close())
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
	// read is when the state was read by what is being done, zero if it was not.
	read     time.Time
	feed     *timeline.Feed[requests]
	timeline *timeline.Timeline
	pace     timeline.Pace
	// stale: what decides on packets changed since the state was read.
	stale bool
	// cleared is when counts of pods that are gone were freed last.
	cleared time.Time
}

func (r *running) run(ctx context.Context, changes <-chan struct{}) error {
	do := []func(context.Context) error{tick: r.tick, changed: r.look, made: r.follow, asked: r.answer}
	err := r.loop(ctx, changes, timeline.Every, nil, r.feed.Asked, func(e event) error { return r.measured(ctx, do[e]) })
	return model.Either(ctx.Err() != nil, nil, err)
}

// measured does something, which puts the next read of the state off by what it took.
func (r *running) measured(ctx context.Context, do func(context.Context) error) error {
	before := r.options.Used()
	r.read = time.Time{}
	if err := do(ctx); err != nil {
		return err
	}
	r.pace.Spent(r.options.Used() - before)
	if !r.read.IsZero() {
		r.pace.Read(r.read, r.timeline.Unsettled())
	}
	return nil
}

// look watches links and pods that were added.
func (r *running) look(ctx context.Context) error {
	before := r.options.Used()
	defer func() {
		r.refreshed = time.Now()
		r.pause = min(max(lookAgain, lookShare*(r.options.Used()-before)), timeline.Every)
	}()
	links := r.links
	if err := r.refresh(ctx, r.now()); err != nil || !turned(links, r.links) {
		return err
	}
	return r.follow(ctx)
}

// turned reports whether a link that was there before is up or down now, or leads elsewhere.
func turned(before, now []model.Link) bool {
	was := model.Table(before, func(l *model.Link) (int, *model.Link) { return l.Index, l })
	return slices.ContainsFunc(now, func(l model.Link) bool {
		b := was[l.Index]
		return b != nil && (b.Up != l.Up || b.Carrier != l.Carrier || b.Master != l.Master || b.MTU != l.MTU)
	})
}

// follow reads the state once a program changed it, or as soon as it may: what drops packets may be gone before it is due.
func (r *running) follow(ctx context.Context) error {
	r.stale = true
	if now := r.now(); r.pace.May(now) {
		return r.whole(ctx, now)
	}
	return nil
}

// tick reads the counters, and the state if that is due or the counts make it so.
func (r *running) tick(ctx context.Context) error {
	now := r.now()
	state, counters := r.pace.Due(now, r.timeline.Unsettled() || r.timeline.Doubtful())
	switch {
	case state, r.stale && r.pace.May(now):
		return r.whole(ctx, now)
	case !counters:
		return nil
	}
	if err := r.count(now); err != nil {
		return err
	}
	r.listFlows(ctx)
	p := model.Point{Snapshot: r.total(now, r.traffic())}
	r.feed.Publish(model.Either(r.options.Rarely, r.timeline.Note, r.timeline.Add)(p))
	if r.timeline.Doubt() && r.pace.May(now) {
		return r.whole(ctx, r.now())
	}
	return nil
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
	if err := r.attach(links); err != nil {
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
	r.stale, r.read, r.refreshed = false, p.Ready, p.Ready
	if r.options.Whole != nil {
		r.options.Whole()
	}
	r.feed.Publish(reading)
	return nil
}

func processorTime() time.Duration { return used(unix.RUSAGE_SELF) }

// used is the CPU time that the process or the thread has used.
func used(who int) time.Duration {
	var u unix.Rusage
	// It fails for a bad argument alone.
	_ = unix.Getrusage(who, &u)
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
