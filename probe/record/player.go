package record

import (
	"slices"
	"sync"
	"time"

	"github.com/lasthop/lasthop/probe/model"
	"github.com/lasthop/lasthop/probe/timeline"
)

// Player plays a recording as the observation was, for whoever shows one. It
// stops at the end, and can be sent back from there.
type Player struct {
	file     *File
	diagnose timeline.Diagnose
	readings chan model.Reading
	asked    chan struct{}
	stop     chan struct{}
	done     chan struct{}
	closing  sync.Once
	err      error // once done is closed

	mu   sync.Mutex
	asks []func(*playing)
}

// playing is the goroutine of a player.
type playing struct {
	*Player
	// at is the number of the reading that is shown, since when by the clock;
	// fed is the latest that the timeline has, -1 when it has to be made anew.
	at, fed int
	since   time.Time
	shown   model.Reading
	// zero is the reading from which "all" counts.
	zero     int
	speed    float64
	window   time.Duration
	timeline *timeline.Timeline
}

// Play begins to play at a speed: 1 as it was, 2 twice as fast, 0 not at all.
// Over the window of the recording findings are those that were recorded; over
// others they are judged anew. The player owns the file until Close.
func Play(f *File, diagnose timeline.Diagnose, speed float64) *Player {
	p := &Player{
		file: f, diagnose: diagnose, readings: make(chan model.Reading, 1),
		asked: make(chan struct{}, 1), stop: make(chan struct{}), done: make(chan struct{}),
	}
	r := &playing{Player: p, fed: -1, speed: max(speed, 0), window: f.Head.Window}
	go func() {
		defer close(p.done)
		defer close(p.readings)
		p.err = r.run()
	}()
	return p
}

// Readings gives the newest reading. It is closed when the player is, or when a
// reading cannot be read.
func (p *Player) Readings() <-chan model.Reading { return p.readings }

// SetWindow chooses the window of the readings; 0 is all since the beginning,
// or since the last Reset.
func (p *Player) SetWindow(d time.Duration) {
	p.ask(func(r *playing) { r.window, r.fed = max(d, 0), -1 })
}

// Rescan shows the reading again: there is nothing else to read.
func (p *Player) Rescan() { p.ask(func(*playing) {}) }

// Reset lets "all" begin with the reading that is shown.
func (p *Player) Reset() { p.ask(func(r *playing) { r.zero, r.fed = r.at, -1 }) }

// Step goes n readings on, or back where n is below zero.
func (p *Player) Step(n int) { p.ask(func(r *playing) { r.to(r.at + n) }) }

// Seek goes that far on from where it stands, or back, to the nearest reading.
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

// Speed is how fast it plays: 1 as it was, 0 not at all.
func (p *Player) Speed(f float64) { p.ask(func(r *playing) { r.speed = max(f, 0) }) }

func (p *Player) ask(what func(*playing)) {
	p.mu.Lock()
	p.asks = append(p.asks, what)
	p.mu.Unlock()
	select {
	case p.asked <- struct{}{}:
	default:
	}
}

// Close ends the player and its file, and returns what ended it if that was an
// error.
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
		case <-r.asked:
			r.mu.Lock()
			asks := r.asks
			r.asks = nil
			r.mu.Unlock()
			for _, what := range asks {
				what(r)
			}
		}
	}
}

// to goes to a reading, or as near to it as there are any.
func (r *playing) to(n int) {
	r.at, r.since = min(max(n, 0), r.file.Len()-1), time.Now()
}

// show publishes the reading in the place of one that nobody has taken.
func (r *playing) show() error {
	if r.fed < 0 || r.at != r.fed {
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
	select {
	case <-r.readings:
	default:
	}
	r.readings <- r.shown
	return nil
}

// remember makes a timeline that knows what went before the reading, as far as
// its windows need it.
func (r *playing) remember() error {
	diagnose := r.diagnose
	if r.window == r.file.Head.Window {
		// They are in the recording.
		diagnose = func(*model.Snapshot) []model.Finding { return nil }
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
		if n == r.zero && n > 0 {
			r.timeline.Reset()
		}
	}
	return nil
}

// needed are the readings before the one that is shown from which windows may
// have to be cut: the older they are, the fewer.
func (r *playing) needed() []int {
	now := r.file.At(r.at)
	var out []int
	var last time.Time
	for n := range r.at {
		at := r.file.At(n)
		age := now.Sub(at)
		apart := time.Duration(0)
		switch {
		case age > timeline.Middle+timeline.Short:
			apart = timeline.Middle
		case age > 2*timeline.Short:
			apart = timeline.Short
		}
		switch {
		case n == 0 || n == r.zero:
		case n < r.zero, !r.file.Whole(n), age > timeline.Long+2*timeline.Middle, at.Sub(last) < apart:
			continue
		}
		out, last = append(out, n), at
	}
	return out
}
