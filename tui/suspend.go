package tui

import (
	"context"
	"io"
	"os"
	"os/signal"

	tea "charm.land/bubbletea/v2"
	"golang.org/x/sys/unix"
)

// stopMsg says that somebody asked the process to stop, as a shell does.
type stopMsg struct{}

// awaitStop gives a command that waits until the process is asked to stop. The
// signal is caught, so that the terminal is restored first; release gives it
// back.
func awaitStop(ctx context.Context) (stop tea.Cmd, release func()) {
	asked := make(chan os.Signal, 1)
	signal.Notify(asked, unix.SIGTSTP)
	return func() tea.Msg {
		select {
		case <-asked:
			return stopMsg{}
		case <-ctx.Done():
			return nil
		}
	}, func() { signal.Stop(asked) }
}

// suspend restores the terminal, stops the process and all of its group, and
// goes on with the screen when a shell lets it.
func suspend() tea.Cmd {
	return tea.Exec(stopped{}, func(error) tea.Msg { return tea.ClearScreen() })
}

// stopped is what runs while the terminal is somebody else's.
type stopped struct{}

// Run stops the process. A caught SIGTSTP does not get its default action back
// in Go, so it is SIGSTOP that does it.
func (stopped) Run() error {
	goesOn := make(chan os.Signal, 1)
	signal.Notify(goesOn, unix.SIGCONT)
	defer signal.Stop(goesOn)
	if err := unix.Kill(0, unix.SIGSTOP); err != nil {
		return err
	}
	<-goesOn
	return nil
}

func (stopped) SetStdin(io.Reader)  {}
func (stopped) SetStdout(io.Writer) {}
func (stopped) SetStderr(io.Writer) {}
