// Package tui is the live screen: it shows readings of a node as they come,
// and takes keys.
//
// It is handed everything: where readings come from, how a path is traced,
// where a report is written. It reads no clock, no file and no environment of
// its own. A terminal that is slow, or that takes nothing any more, delays the
// drawing alone; whoever makes the readings never waits for it.
package tui

import (
	"context"
	"errors"
	"fmt"
	"io"
	"net/netip"
	"strings"
	"time"

	tea "charm.land/bubbletea/v2"
	"github.com/charmbracelet/colorprofile"

	"github.com/lasthop/lasthop/probe/model"
	"github.com/lasthop/lasthop/tui/view"
)

// Source gives readings. None of its methods blocks.
type Source interface {
	// Readings gives the newest reading; those that nobody took in time are
	// left out. It is closed when there will be no more.
	Readings() <-chan model.Reading
	// SetWindow asks for readings over that time; 0 is all since the start.
	SetWindow(time.Duration)
	// Rescan reads the node's state again, now.
	Rescan()
	// Reset begins to count from zero.
	Reset()
}

// Player is a Source that replays what was recorded.
type Player interface {
	Source
	// Step goes n readings on, or back where n is below zero.
	Step(n int)
	// Seek goes that far on from where it stands, or back.
	Seek(time.Duration)
	// Speed is how many times faster than it was recorded; 0 pauses.
	Speed(float64)
}

// Options are what the screen needs from outside.
type Options struct {
	Source Source
	// Window is the time that the source's readings begin with; 0 is all. The
	// screen offers it beside 10s, 1m, 5m and all.
	Window time.Duration
	// Intro says in a sentence what is known before the first reading.
	Intro string
	// Trace follows a pod's packets to another address. It is pure.
	Trace func(s *model.Snapshot, findings []model.Finding, pod, to netip.Addr) model.Path
	// Describe says in words what is in a dropped packet. It is pure.
	Describe func(model.Sample) string
	// Export writes the report of a reading and says where. Nil: not offered.
	Export func(model.Reading) (path string, err error)
	// Idle is after how long without a key or a resize the screen ends by
	// itself; 0 is never.
	Idle time.Duration
	// Shell takes over when ctrl+z, or somebody else, stops the process. Nil:
	// there is none, and it is not stopped.
	Shell Shell

	// Theme is one of view.Themes; empty is the default.
	Theme string
	// Color is auto, always or never; NO_COLOR in Env, if it is not empty,
	// means never.
	Color string
	// Env is the environment, as os.Environ gives it: TERM, NO_COLOR, and the
	// locale that tells whether the terminal shows UTF-8.
	Env []string

	Input  io.Reader
	Output io.Writer
}

// Outcome is how the screen was left.
type Outcome struct {
	// Reading is what was shown last; its Snapshot is nil when nothing was.
	Reading model.Reading
	// Print says that a summary was asked for.
	Print bool
	// Idle says that nobody was there for Options.Idle.
	Idle bool
}

// fps bounds the frames that are drawn in a second. All of them land in the
// logs of a container.
const fps = 4

// errIdle ends a screen that nobody looks at.
var errIdle = errors.New("nobody was there")

// Run shows the screen until it is left, or ctx ends, and restores the
// terminal. The error is ctx's when that ended it.
func Run(ctx context.Context, o Options) (Outcome, error) {
	ctx, cancel := context.WithCancelCause(ctx)
	defer cancel(nil)
	s := newScreen(o, func() tea.Msg {
		select {
		case r, ok := <-o.Source.Readings():
			if !ok {
				return endedMsg{}
			}
			return readingMsg{r}
		case <-ctx.Done():
			return nil
		}
	})
	if o.Shell != nil {
		s.stop = func() tea.Msg {
			if !o.Shell.Asked(ctx) {
				return nil
			}
			return stopMsg{}
		}
	}
	out := newOutput(ctx, o.Output)
	defer out.stop()
	watch := func() {}
	if o.Idle > 0 {
		timer := time.AfterFunc(o.Idle, func() { cancel(errIdle) })
		defer timer.Stop()
		watch = func() { timer.Reset(o.Idle) }
	}
	profile := colorprofile.ANSI
	if o.mono() {
		profile = colorprofile.ASCII
	}
	_, err := tea.NewProgram(s,
		tea.WithContext(ctx), tea.WithInput(o.Input), tea.WithOutput(out.asOutput()), tea.WithEnvironment(o.Env),
		tea.WithFPS(fps), tea.WithColorProfile(profile), tea.WithoutSignalHandler(), tea.WithFilter(filter(watch)),
	).Run()
	if s.started {
		// Where the screen was left, the last line of the gate is.
		io.WriteString(out, "\r\n") //nolint:errcheck // the terminal may be gone
	}
	outcome := Outcome{Reading: s.data.Reading, Print: s.printing}
	if outcome.Reading.At.IsZero() {
		outcome.Reading = model.Reading{}
	}
	switch {
	case errors.Is(context.Cause(ctx), errIdle):
		outcome.Idle = true
		return outcome, nil
	case ctx.Err() != nil:
		return outcome, context.Cause(ctx)
	case err != nil:
		return outcome, fmt.Errorf("show the screen: %w", err)
	}
	return outcome, nil
}

// filter sees every message before anything is done about it. A terminal that
// tells no size, as one that nobody has attached to yet, is supposed to be as
// small as any.
func filter(active func()) func(tea.Model, tea.Msg) tea.Msg {
	return func(m tea.Model, msg tea.Msg) tea.Msg {
		switch x := msg.(type) {
		case tea.KeyPressMsg, tea.PasteMsg:
			active()
		case tea.WindowSizeMsg:
			active()
			if x.Width <= 0 || x.Height <= 0 {
				if s, ok := m.(*screen); ok {
					s.unsized = true
				}
				return tea.WindowSizeMsg{Width: 80, Height: 24}
			}
		}
		return msg
	}
}

func (o Options) getenv(name string) string {
	value := ""
	for _, e := range o.Env {
		if v, ok := strings.CutPrefix(e, name+"="); ok {
			value = v
		}
	}
	return value
}

// mono reports whether colours are off. NO_COLOR counts whatever it says.
func (o Options) mono() bool {
	return o.getenv("NO_COLOR") != "" || o.Color == "never" || o.Color != "always" && o.getenv("TERM") == "dumb"
}

// theme is what view.NewTheme takes. The first of the locale's variables that
// is set decides whether the terminal shows UTF-8, as for any program.
func (o Options) theme() (name string, ascii bool) {
	name = o.Theme
	if o.mono() {
		themes := view.Themes()
		name = themes[len(themes)-1]
	}
	for _, v := range []string{"LC_ALL", "LC_CTYPE", "LANG"} {
		if locale := strings.ToLower(o.getenv(v)); locale != "" {
			return name, !strings.Contains(locale, "utf-8") && !strings.Contains(locale, "utf8")
		}
	}
	return name, true
}
