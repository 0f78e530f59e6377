package session

import (
	"context"
	"errors"
	"fmt"
	"sync"
	"time"

	"golang.org/x/sys/unix"

	"github.com/lasthop/lasthop/probe/diagnose"
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

// How often the state is read again. Reading takes CPU time that grows with pods
// and connections, about 150 ms for 250 pods.
const (
	// stateShare limits reading to this fraction of one CPU: 1/20.
	stateShare = 20
	// hurry multiplies the share while a change is being observed.
	hurry = 4
	// stateLatest is how old the state may become.
	stateLatest = 10 * time.Second
	// lookAgain is the least interval between two reads of links and pods
	// after changes.
	lookAgain = 250 * time.Millisecond
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
	r := &running{watch: w, stream: s, timeline: timeline.New(diagnose.Diagnose, o.For)}
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
	// due is when the state is read next, looked when links and pods were last
	// read.
	due, looked time.Time
	// looking says that look is due after a change.
	looking bool
}

func (r *running) run(ctx context.Context, changes <-chan struct{}) error {
	ticker := time.NewTicker(pollEvery)
	defer ticker.Stop()
	again := time.NewTimer(pollEvery)
	defer again.Stop()
	for {
		var err error
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
				again.Reset(max(0, lookAgain-time.Since(r.looked)))
			}
		case <-again.C:
			err = r.look(ctx)
		case <-ticker.C:
			err = r.tick(ctx)
		case <-r.stream.asked:
			err = r.answer(ctx)
		}
		if ctx.Err() != nil {
			return nil
		}
		if err != nil {
			return err
		}
	}
}

// look watches links and pods that were added.
func (r *running) look(ctx context.Context) error {
	r.looking = false
	defer func() { r.looked = time.Now() }()
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
	before, err := processorTime()
	if err != nil {
		return err
	}
	p, err := r.point(ctx, now)
	if err != nil {
		return err
	}
	after, err := processorTime()
	if err != nil {
		return err
	}
	if err := r.apply(now, r.state.Links, r.state.Pods); err != nil {
		return err
	}
	r.roster.forget(now.Add(-timeline.Long))
	p.Ready = time.Now()
	if err := r.count(p.Ready); err != nil {
		return err
	}
	p.After = timeline.Moved(&p.Snapshot.Traffic, new(r.traffic()))
	if r.engine != nil {
		if err := errors.Join(r.engine.ForgetTTLs(), r.engine.MakeRoom(now.Add(-timeline.Long))); err != nil {
			return err
		}
	}
	reading := r.timeline.Add(p)
	pause := stateShare * (after - before)
	if r.timeline.Unsettled() {
		pause /= hurry
	}
	// A tick may come a little early.
	r.due = p.Ready.Add(min(max(pause, pollEvery), stateLatest) - pollEvery/2)
	r.looked = p.Ready
	r.stream.publish(reading)
	return nil
}

// processorTime is the CPU time that this process has used.
func processorTime() (time.Duration, error) {
	var u unix.Rusage
	if err := unix.Getrusage(unix.RUSAGE_SELF, &u); err != nil {
		return 0, fmt.Errorf("read own processor time: %w", err)
	}
	return time.Duration(u.Utime.Nano() + u.Stime.Nano()), nil
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
