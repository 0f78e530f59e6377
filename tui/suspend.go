package tui

import (
	"context"
	"io"

	tea "charm.land/bubbletea/v2"
)

// Shell takes over when the process stops.
type Shell interface {
	// Asked waits until somebody wants the process to stop; it is false when
	// ctx has ended before.
	Asked(ctx context.Context) bool
	// Stop stops the process, and returns when it goes on.
	Stop() error
}

// stopMsg says that somebody wants the process to stop.
type stopMsg struct{}

// suspend gives the terminal back, stops the process, and goes on with the
// screen when the shell lets it.
func suspend(s Shell) tea.Cmd {
	return tea.Exec(stopped{s}, func(error) tea.Msg { return tea.ClearScreen() })
}

// stopped is what runs while the terminal is the shell's.
type stopped struct{ Shell }

func (s stopped) Run() error        { return s.Stop() }
func (stopped) SetStdin(io.Reader)  {}
func (stopped) SetStdout(io.Writer) {}
func (stopped) SetStderr(io.Writer) {}
