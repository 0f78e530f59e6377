// Package tui is the live screen: it shows the readings of a node as they come, and handles keys.
//
// Its caller supplies everything: the source of readings, the function that traces a path, the place for a
// report. It reads no clock, file or environment. A terminal that is slow or accepts nothing delays only the
// drawing, never the source of the readings.
package tui

import (
	"context"
	"errors"
	"fmt"
	"io"
	"net/netip"
	"time"

	tea "charm.land/bubbletea/v2"
	"github.com/charmbracelet/colorprofile"
	"github.com/charmbracelet/x/term"

	"github.com/lasthop/lasthop/probe/model"
	"github.com/lasthop/lasthop/probe/report"
	"github.com/lasthop/lasthop/tui/view"
)

// Source gives readings. None of its methods blocks.
type Source interface {
	// Readings gives the newest reading and skips those that were not received in time. It is closed after the last.
	Readings() <-chan model.Reading
	// SetWindow requests readings over that window; 0 is all since the start.
	SetWindow(time.Duration)
	// Rescan reads the node's state again, now.
	Rescan()
	// Reset restarts all counts at zero.
	Reset()
}

// Player is a Source that replays a recording.
type Player interface {
	Source
	// Step goes n readings forward, or back if n is negative.
	Step(n int)
	// Seek goes that far forward, or back.
	Seek(time.Duration)
	// Span is when the recording begins and ends.
	Span() (first, last time.Time)
	// Speed is a multiple of the original speed; 0 pauses.
	Speed(float64)
}

// Options are what the caller supplies.
type Options struct {
	Source Source
	// Window is the window of the first readings; 0 is all. The screen offers it besides 10s, 1m, 5m and all.
	Window time.Duration
	// Intro is a sentence for the time before the first reading.
	Intro string
	// Trace follows a pod's packets to another address. It is pure.
	Trace func(r model.Reading, findings []model.Finding, pod, to netip.Addr) model.Path
	// Reach sums up who reaches whom. It is pure, and may be nil.
	Reach func(model.Reading) model.Matrix
	// Describe says what a dropped packet is. It is pure.
	Describe func(model.Sample) string
	// Export writes the report of a reading, and returns its path. It may be nil.
	Export func(model.Reading) (path string, err error)
	// Idle is how long the screen stays without a key or a resize; 0 is forever.
	Idle time.Duration
	// Job says that a shell takes over when ctrl+z stops the process.
	Job bool

	// Color is auto, always or never; a non-empty NO_COLOR in Env means never.
	Color string
	// Env is the environment as from os.Environ: TERM, NO_COLOR, and the locale,
	// which decides whether the terminal shows UTF-8.
	Env []string

	Input  io.Reader
	Output io.Writer
}

// Outcome is how the screen was left.
type Outcome struct {
	// Reading is what was shown last; its Snapshot is nil if nothing was.
	Reading model.Reading
	// Print says that the user wants a summary.
	Print bool
	// Idle says that no key came for Options.Idle.
	Idle bool
}

// fps bounds the frames per second. All of them end up in the logs of a container.
const fps = 4

var errIdle = errors.New("no key was pressed")

// Run shows the screen until the user leaves it or ctx ends, and restores the
// terminal. If ctx ended it, the error is that of ctx.
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
	watch := func() {}
	if o.Idle > 0 {
		timer := time.AfterFunc(o.Idle, func() { cancel(errIdle) })
		defer timer.Stop()
		watch = func() { timer.Reset(o.Idle) }
	}
	_, profile, _ := o.theme()
	program := tea.NewProgram(s,
		tea.WithContext(ctx), tea.WithInput(o.Input), tea.WithOutput(o.Output), tea.WithEnvironment(o.Env),
		tea.WithFPS(fps), tea.WithColorProfile(profile), tea.WithoutSignalHandler(), tea.WithFilter(filter(watch)),
	)
	ended, err := await(ctx, o.Input, func() error {
		_, err := program.Run()
		if s.started {
			// The cursor is on the last line of the gate.
			io.WriteString(o.Output, "\r\n") //nolint:errcheck // the terminal may be gone
		}
		return err
	})
	var outcome Outcome
	if ended && !s.Data.Reading.At.IsZero() {
		outcome.Reading = s.Data.Reading
	}
	outcome.Print = ended && s.printing
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

// grace is how long a terminal that accepts nothing may delay the end.
const grace = 500 * time.Millisecond

// await waits for the program, but no longer than grace once ctx has ended: then it is left behind, in a write that its
// terminal does not accept, and the terminal gets the settings back that it had.
func await(ctx context.Context, input io.Reader, program func() error) (ended bool, err error) {
	restore := func() {}
	if f, ok := input.(term.File); ok {
		if state, err := term.GetState(f.Fd()); err == nil {
			restore = func() { term.Restore(f.Fd(), state) } //nolint:errcheck // there is nothing else to try
		}
	}
	ran := make(chan error, 1)
	go func() { ran <- program() }()
	select {
	case err = <-ran:
		return true, err
	case <-ctx.Done():
	}
	select {
	case err = <-ran:
		return true, err
	case <-time.After(grace):
		restore()
		return false, nil
	}
}

// filter sees every message before Update. A terminal that reports no size, such
// as one that has no client yet, is assumed to be the smallest.
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

// mono reports whether colours are off. Any non-empty NO_COLOR turns them off.
func (o Options) mono() bool {
	return report.Getenv(o.Env, "NO_COLOR") != "" || o.Color == "never" || o.Color != "always" && report.Getenv(o.Env, "TERM") == "dumb"
}

// theme returns the arguments of view.NewTheme.
func (o Options) theme() (name string, profile colorprofile.Profile, ascii bool) {
	themes := view.Themes()
	name, profile = themes[0], max(colorprofile.Env(o.Env), colorprofile.ANSI)
	if o.mono() {
		name, profile = themes[len(themes)-1], colorprofile.ASCII
	}
	return name, profile, !report.UTF8(o.Env)
}
