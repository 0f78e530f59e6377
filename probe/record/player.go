package record

import (
	"slices"
	"sync"
	"time"

	"github.com/lasthop/lasthop/probe/model"
	"github.com/lasthop/lasthop/probe/timeline"
)

// Player replays a recording like a live observation. It stops at the end, from where the caller can step back.
type Player struct {
	file       *File
	diagnose   timeline.Diagnose
	feed       *timeline.Feed[[]func(*playing)]
	stop, done chan struct{}
	closing    sync.Once
	err        error // valid once done is closed
}

type playing struct {
	*Player
	// at is the number of the reading that is shown, since the wall clock time at which it was. fed is the last
	// that the timeline was given, -1 if the timeline must be rebuilt.
	at, fed int
	since   time.Time
	shown   model.Reading
	// zero is the reading at which "all" begins.
	zero     int
	speed    float64
	window   time.Duration
	timeline *timeline.Timeline
}

// Play starts a player at a speed: 1 is real time, 0 is paused. Over the window of the recording it publishes the
// recorded findings, over others it diagnoses anew. The player owns the file until Close.
func Play(f *File, diagnose timeline.Diagnose, speed float64) *Player {
	p := &Player{
		file: f, diagnose: diagnose, feed: timeline.NewFeed[[]func(*playing)](),
		stop: make(chan struct{}), done: make(chan struct{}),
	}
	r := &playing{Player: p, fed: -1, speed: max(speed, 0), window: f.Head.Window}
	go func() {
		defer close(p.done)
		defer close(p.feed.Readings)
		p.err = r.run()
	}()
	return p
}

// Readings delivers the latest reading. It is closed by Close, or if a reading cannot be read.
func (p *Player) Readings() <-chan model.Reading { return p.feed.Readings }

// SetWindow sets the window of the readings, 0 for all since the start or the last Reset.
func (p *Player) SetWindow(d time.Duration) {
	p.ask(func(r *playing) { r.window, r.fed = max(d, 0), -1 })
}

// Rescan publishes the reading again.
func (p *Player) Rescan() { p.ask(func(*playing) {}) }

// Reset lets "all" begin at the reading that is shown.
func (p *Player) Reset() { p.ask(func(r *playing) { r.zero, r.fed = r.at, -1 }) }

// Step moves by n readings, back if n is negative.
func (p *Player) Step(n int) { p.ask(func(r *playing) { r.to(r.at + n) }) }

// Seek moves by d, back if d is negative, to the nearest reading.
func (p *Player) Seek(d time.Duration) {
	p.ask(func(r *playing) {
		to := r.file.At(r.at).Add(d)
		n, _ := slices.BinarySearchFunc(r.file.frames, to, func(f frame, t time.Time) int { return f.at.Compare(t) })
		if n > 0 && (n == r.file.Len() || to.Sub(r.file.At(n-1)) < r.file.At(n).Sub(to)) {
			n--
		}
		r.to(n)
	})
}

// Span returns when the recording begins and ends.
func (p *Player) Span() (first, last time.Time) { return p.file.At(0), p.file.At(p.file.Len() - 1) }

// Speed sets the speed: 1 is real time, 0 is paused.
func (p *Player) Speed(f float64) { p.ask(func(r *playing) { r.speed = max(f, 0) }) }

func (p *Player) ask(what func(*playing)) {
	p.feed.Ask(func(asks *[]func(*playing)) { *asks = append(*asks, what) })
}

// Close ends the player and closes its file. It returns the error that ended the player, if any.
func (p *Player) Close() error {
	p.closing.Do(func() { close(p.stop) })
	<-p.done
	p.file.Close()
	return p.err
}

func (r *playing) run() error {
	r.since = time.Now()
	for {
		if err := r.show(); err != nil {
			return err
		}
		var due <-chan time.Time
		if r.at+1 < r.file.Len() && r.speed > 0 {
			gap := r.file.At(r.at + 1).Sub(r.file.At(r.at))
			due = time.After(time.Until(r.since.Add(time.Duration(float64(gap) / r.speed))))
		}
		select {
		case <-r.stop:
			return nil
		case <-due:
			r.to(r.at + 1)
		case <-r.feed.Asked:
			for _, what := range r.feed.Take() {
				what(r)
			}
		}
	}
}

// to moves to reading n, or to the first or last.
func (r *playing) to(n int) { r.at, r.since = min(max(n, 0), r.file.Len()-1), time.Now() }

func (r *playing) show() error {
	if r.at != r.fed {
		if r.fed < 0 || r.at != r.fed+1 {
			if err := r.remember(); err != nil {
				return err
			}
		}
		recorded, err := r.file.Reading(r.at)
		if err != nil {
			return err
		}
		r.shown = r.timeline.Add(recorded.Point)
		r.shown.Replay = true
		if r.window == r.file.Head.Window {
			r.shown.Findings, r.shown.Judged = recorded.Findings, recorded.Judged
		}
		r.fed = r.at
	}
	r.feed.Publish(r.shown)
	return nil
}

// remember rebuilds the timeline with the earlier readings that its windows need.
func (r *playing) remember() error {
	diagnose := r.diagnose
	if r.window == r.file.Head.Window {
		// The recording has the findings.
		diagnose = func(*model.Snapshot) (none model.Verdict) { return none }
	}
	r.timeline = timeline.New(diagnose, r.window)
	r.zero = min(r.zero, r.at)
	for r.zero > 0 && !r.file.Whole(r.zero) {
		r.zero--
	}
	for _, n := range r.needed() {
		recorded, err := r.file.Reading(n)
		if err != nil {
			return err
		}
		r.timeline.Add(recorded.Point)
		if n == r.zero && r.file.later(n) {
			r.timeline.Reset()
		}
	}
	return nil
}

// needed returns the earlier readings at which windows may begin, fewer the older they are.
func (r *playing) needed() []int {
	now := r.file.At(r.at)
	var out []int
	var last time.Time
	for n := range r.at {
		at := r.file.At(n)
		age, apart := now.Sub(at), time.Duration(0)
		switch {
		case age > timeline.Middle+timeline.Short:
			apart = timeline.Middle
		case age > 2*timeline.Short:
			apart = timeline.Short
		}
		switch {
		case n == 0 || n == r.zero:
		case n < r.zero, !r.file.Whole(n) && !r.file.recent(n, r.at), age > timeline.Long+2*timeline.Middle, at.Sub(last) < apart:
			continue
		}
		out, last = append(out, n), at
	}
	if r.at == 0 && r.file.later(0) {
		out = append(out, 0)
	}
	return out
}
