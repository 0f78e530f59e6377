package session

import (
	"cmp"
	"context"
	"errors"
	"sync"
	"time"

	"golang.org/x/sys/unix"

	"github.com/lasthop/lasthop/probe/model"
	"github.com/lasthop/lasthop/probe/timeline"
)

// Stream is an observation that runs until it is closed and publishes a reading
// about once a second.
type Stream struct {
	cancel   context.CancelFunc
	readings chan model.Reading
	asked    chan struct{}
	done     chan struct{}
	err      error // valid once done is closed

	mu   sync.Mutex
	asks requests
}

// requests are what the caller asked for since the last take.
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

// Open starts an observation and returns once packets are counted on every link.
// Options.For is the window of the readings, 0 for all since the start. Errors
// are those of Observe. The stream ends with ctx; Close waits for that.
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
	s := &Stream{cancel: cancel, readings: make(chan model.Reading, 1), asked: make(chan struct{}, 1), done: make(chan struct{})}
	w.countPairs(true)
	r := &running{watch: w, stream: s, timeline: timeline.New(o.Diagnose, o.For), read: time.Now(), pause: lookAgain}
	// The first reading has state but no counts.
	s.publish(r.timeline.Add(w.first))
	go func() {
		defer close(s.done)
		defer close(s.readings)
		defer w.collector.Close()
		s.err = errors.Join(r.run(ctx, changes), w.detach())
	}()
	return s, nil
}

// Readings delivers the latest reading. It is closed when the stream ends. Close
// then returns the error, if any.
func (s *Stream) Readings() <-chan model.Reading { return s.readings }

// SetWindow sets the window of the readings, 0 for all since the start or the
// last Reset. A reading over that window follows at once.
func (s *Stream) SetWindow(d time.Duration) { s.ask(func(a *requests) { a.window = &d }) }

// Rescan reads the state again now.
func (s *Stream) Rescan() { s.ask(func(a *requests) { a.rescan = true }) }

// Reset restarts the window "all" from now.
func (s *Stream) Reset() { s.ask(func(a *requests) { a.reset = true }) }

func (s *Stream) ask(what func(*requests)) {
	s.mu.Lock()
	what(&s.asks)
	s.mu.Unlock()
	select {
	case s.asked <- struct{}{}:
	default:
	}
}

func (s *Stream) take() requests {
	s.mu.Lock()
	defer s.mu.Unlock()
	a := s.asks
	s.asks = requests{}
	return a
}

// Close ends the observation and waits until everything is detached. It returns
// the error that ended the observation, if any.
func (s *Stream) Close() error {
	s.cancel()
	<-s.done
	return s.err
}

// publish replaces a reading that was not received yet.
func (s *Stream) publish(r model.Reading) {
	select {
	case <-s.readings:
	default:
	}
	s.readings <- r
}

// running is the goroutine of a stream.
type running struct {
	*watch
	stream   *Stream
	timeline *timeline.Timeline
	// read is when the state was last read, due when it is read next, looked when
	// links and pods were last read.
	read, due, looked time.Time
	pace              pace
	// spent is the CPU time used since the state was last read, that included.
	spent time.Duration
	// cleared is when counts of pods that are gone were freed last.
	cleared time.Time
	// looking says that look is due after a change, pause how long it waits after the
	// one before.
	looking bool
	pause   time.Duration
}

func (r *running) run(ctx context.Context, changes <-chan struct{}) error {
	ticker := time.NewTicker(pollEvery)
	defer ticker.Stop()
	again := time.NewTimer(pollEvery)
	defer again.Stop()
	for {
		var do func(context.Context) error
		select {
		case <-ctx.Done():
			return nil
		case _, open := <-changes:
			if !open {
				changes = nil
				continue
			}
			if !r.looking {
				r.looking = true
				again.Reset(max(0, r.pause-time.Since(r.looked)))
			}
			continue
		case <-again.C:
			do = r.look
		case <-ticker.C:
			do = r.tick
		case <-r.stream.asked:
			do = r.answer
		}
		err := r.measured(ctx, do)
		if ctx.Err() != nil {
			return nil
		}
		if err != nil {
			return err
		}
	}
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
	r.looking = false
	before := processorTime()
	defer func() {
		r.looked = time.Now()
		r.pause = min(max(lookAgain, lookShare*(processorTime()-before)), pollEvery)
	}()
	return r.refresh(ctx, time.Now())
}

// tick reads the counters, and the state if that is due.
func (r *running) tick(ctx context.Context) error {
	now := time.Now()
	if !now.Before(r.due) {
		return r.whole(ctx, now)
	}
	if err := r.count(now); err != nil {
		return err
	}
	r.stream.publish(r.timeline.Add(model.Point{Snapshot: r.total(now, r.traffic())}))
	return nil
}

// whole reads counters, state, and counters again.
func (r *running) whole(ctx context.Context, now time.Time) error {
	p, err := r.point(ctx, now)
	if err != nil {
		return err
	}
	if err := r.apply(now, r.state.Links, r.state.Pods); err != nil {
		return err
	}
	keep := cmp.Or(r.options.Keep, timeline.Long)
	r.roster.forget(now.Add(-keep))
	p.Ready = time.Now()
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
	r.read, r.looked = p.Ready, p.Ready
	if r.options.Whole != nil {
		r.options.Whole()
	}
	r.stream.publish(reading)
	return nil
}

// processorTime is the CPU time that this process has used.
func processorTime() time.Duration {
	var u unix.Rusage
	// It fails for a bad argument alone.
	_ = unix.Getrusage(unix.RUSAGE_SELF, &u)
	return time.Duration(u.Utime.Nano() + u.Stime.Nano())
}

// answer does what the caller asked for.
func (r *running) answer(ctx context.Context) error {
	a := r.stream.take()
	if a.window != nil {
		r.timeline.SetWindow(*a.window)
		if reading, ok := r.timeline.Again(); ok {
			r.stream.publish(reading)
		}
	}
	if a.rescan || a.reset {
		if err := r.whole(ctx, time.Now()); err != nil {
			return err
		}
	}
	if a.reset {
		r.timeline.Reset()
	}
	return nil
}
