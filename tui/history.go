package tui

import (
	"slices"
	"time"

	tea "charm.land/bubbletea/v2"

	"github.com/lasthop/lasthop/probe/model"
	"github.com/lasthop/lasthop/tui/view"
)

const (
	// kept is how far back a live screen can be stepped.
	kept = 5 * time.Minute
	// weight bounds what is kept for that, in entries of about 128 bytes.
	weight = 64_000
	// moments bounds the strip.
	moments = 3600
)

// history is what was shown before, the oldest first.
type history struct {
	readings []model.Reading
	moments  []view.Moment
	// at is the reading that is shown instead of the latest; -1 is none.
	at int
}

// add keeps a reading. Those of several nodes are of one time.
func (h *history) add(r model.Reading, recorded bool) {
	if r.Snapshot == nil || len(r.Nodes) > 0 {
		return
	}
	m := view.NewMoment(r)
	i, known := slices.BinarySearchFunc(h.moments, m.At, func(m view.Moment, at time.Time) int { return m.At.Compare(at) })
	if known {
		h.moments[i] = m
	} else {
		h.moments = slices.Insert(h.moments, i, m)
		h.moments = h.moments[max(0, len(h.moments)-moments):]
	}
	if recorded {
		// The player has them all.
		return
	}
	r.Point, r.Since = model.Point{}, model.Verdict{}
	h.readings = append(h.readings, r)
	for h.heavy() && len(h.readings) > 2 {
		h.drop()
	}
}

func (h *history) heavy() bool {
	n := 0
	for i, r := range h.readings {
		n += 64 + countsOf(r.Snapshot)
		if on := r.Verdict.On; on != r.Snapshot && (i == 0 || h.readings[i-1].Verdict.On != on) {
			n += countsOf(on)
		}
	}
	return n > weight || h.readings[len(h.readings)-1].At.Sub(h.readings[0].At) > kept
}

func countsOf(s *model.Snapshot) int {
	if s == nil {
		return 0
	}
	x := &s.Traffic
	return len(x.Hops) + len(x.Peers) + len(x.Drops) + len(x.MACs) + len(x.Pairs) + len(x.Samples) + len(x.ARP)
}

// drop forgets what is too old, or else the reading that leaves the smallest gap for its age.
func (h *history) drop() {
	last := len(h.readings) - 1
	now, least := h.readings[last].At, 0
	if now.Sub(h.readings[0].At) <= kept {
		best := 0.0
		for i := 1; i < last; i++ {
			gap := h.readings[i+1].At.Sub(h.readings[i-1].At).Seconds() / (1 + now.Sub(h.readings[i].At).Seconds())
			if least == 0 || gap < best {
				least, best = i, gap
			}
		}
	}
	h.readings = slices.Delete(h.readings, least, least+1)
	if h.at >= least && h.at > 0 {
		h.at--
	}
}

// track is the time axis of what is shown.
func (s *screen) track() *view.Track {
	h := &s.history
	if len(h.moments) == 0 {
		return nil
	}
	t := &view.Track{Moments: h.moments, To: h.moments[len(h.moments)-1].At, Findings: s.latest.Findings}
	span := kept
	for f := range model.Each(t.Findings) {
		if !f.Closed && !f.First.IsZero() {
			span = max(span, min(t.To.Sub(f.First), moments*time.Second))
		}
	}
	t.From = t.To.Add(-span)
	if s.player != nil {
		t.From, t.To = s.player.Span()
		t.Recorded, t.At = true, s.Data.Reading.At
	} else if h.at >= 0 {
		t.At = s.Data.Reading.At
	}
	return t
}

// step shows the next reading, or with -1 the one before.
func step(by int) func(*screen) tea.Cmd {
	return func(s *screen) tea.Cmd {
		if s.player != nil {
			return s.paused(func() { s.player.Step(by) })
		}
		s.showAt(model.Either(s.history.at < 0, len(s.history.readings)-1, s.history.at) + by)
		return nil
	}
}

// nextChange shows the reading of the next change, or with -1 of the one before.
func nextChange(by int) func(*screen) tea.Cmd {
	return func(s *screen) tea.Cmd {
		var to time.Time
		for _, at := range s.track().Changes() {
			if s.player == nil {
				// Not every reading is kept.
				if at.Before(s.history.readings[0].At) {
					continue
				}
				at = s.history.readings[min(s.history.index(at), len(s.history.readings)-1)].At
			}
			if at.Compare(s.Data.Reading.At) == by && (by < 0 || to.IsZero()) {
				to = at
			}
		}
		switch {
		case !to.IsZero():
			return s.showTime(to)
		case by > 0:
			return s.now()
		}
		s.Status = "no earlier change"
		return nil
	}
}

func (s *screen) seek(by time.Duration) tea.Cmd { return s.paused(func() { s.player.Seek(by) }) }

func (s *screen) paused(move func()) tea.Cmd {
	playing := !s.frozen
	s.frozen = true
	return call(func() {
		if playing {
			s.player.Speed(0)
		}
		move()
	})
}

// showAt shows the reading at an index of the history; the latest is the present.
func (s *screen) showAt(at int) {
	h := &s.history
	switch last := len(h.readings) - 1; {
	case last < 0:
	case at >= last:
		s.present()
	default:
		s.frozen, h.at = true, max(at, 0)
		s.use(h.readings[h.at])
	}
}

// present shows the latest reading, and those that come.
func (s *screen) present() {
	s.frozen, s.history.at = false, -1
	if !s.latest.At.IsZero() {
		s.use(s.latest)
	}
}

// now returns to the present, which of a recording is its end.
func (s *screen) now() tea.Cmd {
	if s.player == nil {
		s.present()
		return nil
	}
	first, last := s.player.Span()
	return s.seek(last.Sub(first))
}

func (s *screen) showTime(at time.Time) tea.Cmd {
	if s.player != nil {
		return s.seek(at.Sub(s.Data.Reading.At))
	}
	s.showAt(s.history.index(at))
	return nil
}

// index is that of the first reading at a time or later.
func (h *history) index(at time.Time) int {
	i, _ := slices.BinarySearchFunc(h.readings, at, func(r model.Reading, at time.Time) int { return r.At.Compare(at) })
	return i
}
