package tui

import (
	"net/netip"
	"slices"
	"strings"
	"testing"
	"time"

	tea "charm.land/bubbletea/v2"
	"github.com/charmbracelet/x/ansi"

	"github.com/lasthop/lasthop/probe/model"
)

// at is a reading of so many seconds after noon, with as many pods.
func at(seconds, pods int) model.Reading {
	r := kubenetNode(pods)
	r.At = noon.Add(time.Duration(seconds) * time.Second)
	r.Snapshot.Window.End = r.At
	return r
}

// TestStepsBack goes back over what was kept, and to the present again.
func TestStepsBack(t *testing.T) {
	s := opened(t, Options{Env: utf8Env}, 120, 40, at(0, 3))
	for i := 1; i <= 20; i++ {
		send(s, readingMsg{at(i, 3+i)})
	}
	shows(t, s, "LIVE", "2 Pods 23")
	press(t, s, "[")
	shows(t, s, "PAST 12:04:26", "2 Pods 22", "space now")
	press(t, s, "[ [ [ [ [ [")
	shows(t, s, "PAST 12:04:20", "2 Pods 16")
	// What comes meanwhile is kept, and not shown.
	send(s, readingMsg{at(21, 40)})
	shows(t, s, "PAST 12:04:20", "2 Pods 16")
	press(t, s, "]")
	shows(t, s, "PAST 12:04:21")
	press(t, s, strings.Repeat("[ ", 30))
	shows(t, s, "PAST 12:04:07", "2 Pods 3 ")
	press(t, s, "space")
	shows(t, s, "LIVE", "2 Pods 40")
	press(t, s, "[ ]")
	shows(t, s, "LIVE", "2 Pods 40")
	press(t, s, "p")
	shows(t, s, "FROZEN")
	press(t, s, "[ p")
	shows(t, s, "LIVE")
}

// TestChanges goes to when pods came, and to the present again.
func TestChanges(t *testing.T) {
	s := opened(t, Options{Env: utf8Env}, 120, 40, at(0, 3))
	for i := 1; i <= 20; i++ {
		r := at(i, 3+i/8)
		r.Findings = nil
		send(s, readingMsg{r})
	}
	press(t, s, "<")
	shows(t, s, "PAST 12:04:23", "2 Pods 5")
	press(t, s, "<")
	shows(t, s, "PAST 12:04:15", "2 Pods 4")
	press(t, s, "<")
	shows(t, s, "PAST 12:04:15", "no earlier change")
	press(t, s, ">")
	shows(t, s, "PAST 12:04:23")
	press(t, s, ">")
	shows(t, s, "LIVE")
}

// TestOneScale: what looks higher in a list is more.
func TestOneScale(t *testing.T) {
	r := kubenetNode(2)
	r.Findings, r.Lost = nil, map[netip.Addr][]float64{podAddr(0): {10, 10}, podAddr(1): {1000, 1000}}
	s := opened(t, Options{Env: utf8Env}, 120, 40, r)
	press(t, s, "2")
	shows(t, s, "▁▁", "▇▇")
}

// TestReplaySteps asks the player for other times, and pauses it.
func TestReplaySteps(t *testing.T) {
	source := newCanned()
	s := opened(t, Options{Env: utf8Env, Source: tape{source}}, 120, 40, kubenetNode(3))
	send(s, readingMsg{at(1, 4)})
	var got []string
	for _, key := range []string{"[", "]", "space"} {
		run(t, s, press(t, s, key))
		for len(source.asked) > 0 {
			got = append(got, <-source.asked)
		}
	}
	if want := []string{"speed 0", "step -1", "step 1", "seek 2m0s"}; !slices.Equal(got, want) {
		t.Errorf("asked for %v, want %v", got, want)
	}
	shows(t, s, "PAUSED", "12:03:07", "12:05:07")
}

// TestHistoryIsBounded holds that what is kept weighs little, reaches back five minutes, and has
// the latest readings.
func TestHistoryIsBounded(t *testing.T) {
	small, large := &history{at: -1}, &history{at: -1}
	big := bigNode(250)
	for i := range 900 {
		r := kubenetNode(3)
		r.At = noon.Add(time.Duration(i) * time.Second)
		small.add(r, false)
		if i%10 == 0 {
			b := big
			b.At = r.At
			large.add(b, false)
		}
	}
	for name, h := range map[string]*history{"small": small, "large": large} {
		last := h.readings[len(h.readings)-1].At
		if span := last.Sub(h.readings[0].At); span > kept || name == "small" && span < kept-time.Second {
			t.Errorf("%s: %v are kept", name, span)
		}
		if h.heavy() && len(h.readings) > 2 {
			t.Errorf("%s: %d readings are too many", name, len(h.readings))
		}
		if !slices.IsSortedFunc(h.readings, func(a, b model.Reading) int { return a.At.Compare(b.At) }) {
			t.Errorf("%s: not in order", name)
		}
	}
	if n := len(small.readings); n < 250 {
		t.Errorf("of a small node %d readings are kept", n)
	}
	t.Logf("%d of a small node, %d of a large one", len(small.readings), len(large.readings))
}

// TestNothingChangesNothingIsDrawn: with a full time axis, frames of a node on which nothing
// happens are the same, so that no byte is written.
func TestNothingChangesNothingIsDrawn(t *testing.T) {
	calm := func(i int) model.Reading {
		r := at(i, 9)
		r.Findings, r.Drops = nil, []float64{0}
		r.Snapshot.Traffic.Drops, r.Snapshot.PastPods = nil, nil
		r.Snapshot.Window.Start = r.At.Add(-time.Minute)
		return r
	}
	for _, tab := range []string{"1", "2", "3", "5"} {
		s := opened(t, Options{Env: utf8Env}, 120, 40, calm(0))
		press(t, s, tab)
		for i := 1; i <= 400; i++ {
			send(s, readingMsg{calm(i)})
		}
		before := frame(s)
		for i := 401; i < 460; i++ {
			send(s, readingMsg{calm(i)})
			if got := frame(s); got != before {
				t.Fatalf("tab %s: second %d draws\n%s\nafter\n%s", tab, i, got, before)
			}
		}
	}
}

// TestBackground takes the theme that suits the terminal, unless one was chosen.
func TestBackground(t *testing.T) {
	white := tea.BackgroundColorMsg{Color: ansi.RGBColor{R: 255, G: 255, B: 255}}
	s := opened(t, Options{Env: utf8Env}, 80, 24, kubenetNode(3))
	send(s, white)
	if s.Theme.Name != "light" {
		t.Errorf("on white the theme is %s", s.Theme.Name)
	}
	s = opened(t, Options{Env: utf8Env}, 80, 24, kubenetNode(3))
	press(t, s, "t t t")
	send(s, white)
	if s.Theme.Name != "dark" {
		t.Errorf("chosen was dark, and the theme is %s", s.Theme.Name)
	}
	s = opened(t, Options{Env: []string{"NO_COLOR=1", "LANG=C.UTF-8"}}, 80, 24, kubenetNode(3))
	send(s, white)
	if got := frame(s); strings.Contains(got, "\x1b[3") || strings.Contains(got, "\x1b[9") {
		t.Errorf("NO_COLOR has colours: %q", got)
	}
}

// TestSelectedKeepsItsColour: the row under the cursor is still red, with as many colours as there
// are.
func TestSelectedKeepsItsColour(t *testing.T) {
	for term, red := range map[string]string{"xterm": "\x1b[7;91;1m", "xterm-256color": ";38;5;", "xterm-direct": "38;2;255;95;109"} {
		s := opened(t, Options{Env: []string{"TERM=" + term, "LANG=C.UTF-8"}}, 80, 24, kubenetNode(3))
		rows := strings.Split(frame(s), "\n")
		line := rows[slices.IndexFunc(rows, func(row string) bool { return strings.HasPrefix(ansi.Strip(row), ">") })]
		if !strings.Contains(line, red) || !strings.Contains(ansi.Strip(line), ">✕ MissingUDR") {
			t.Errorf("%s: the selected row is %q", term, line)
		}
	}
}
