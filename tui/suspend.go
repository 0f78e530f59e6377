package tui

import (
	"context"
	"io"

	tea "charm.land/bubbletea/v2"
)

// Shell takes over the terminal when the process stops.
type Shell interface {
	// Asked waits for a request to stop the process; it is false if ctx ended before.
	Asked(ctx context.Context) bool
	// Stop stops the process, and returns when it continues.
	Stop() error
}

type stopMsg struct{}

// suspend restores the terminal, stops the process, and shows the screen again when the shell continues it.
func suspend(s Shell) tea.Cmd {
	return tea.Exec(stopped{s}, func(error) tea.Msg { return tea.ClearScreen() })
}

// stopped runs while the shell has the terminal.
type stopped struct{ Shell }

func (s stopped) Run() error        { return s.Stop() }
func (stopped) SetStdin(io.Reader)  {}
func (stopped) SetStdout(io.Writer) {}
func (stopped) SetStderr(io.Writer) {}
