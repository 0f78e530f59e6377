package main

import (
	"errors"
	"fmt"
	"io/fs"
	"time"

	"github.com/spf13/cobra"

	"github.com/lasthop/lasthop/cmd/flags"
	"github.com/lasthop/lasthop/probe/model"
	"github.com/lasthop/lasthop/probe/report"
	"github.com/lasthop/lasthop/probe/ring"
)

// The statuses of node-problem-detector's custom plugins.
const (
	npdOK      = 0
	npdProblem = 1
	npdUnknown = 2
)

func (a *app) npdCommand() *cobra.Command {
	dir := flags.AgentDir
	cmd := &cobra.Command{
		Use:  "npd",
		Args: cobra.NoArgs,
		RunE: func(*cobra.Command, []string) error {
			line, status := npd(dir, time.Now())
			_, err := fmt.Fprintln(a.stdout, report.Clean(line))
			if err := ignoreClosedPipe(err); err != nil || status == npdOK {
				return err
			}
			return &statusError{code: status}
		},
	}
	cmd.Flags().StringVar(&dir, "dir", dir, "the agent's `DIR`")
	return cmd
}

// npd is what is wrong by the latest reading in the agent's directory.
func npd(dir string, now time.Time) (line string, status int) {
	r, err := ring.Latest(dir)
	running, unsure := ring.Running(dir)
	switch {
	case errors.Is(err, fs.ErrNotExist) || err == nil && !running && unsure == nil:
		return "no lasthop agent runs on this node", npdUnknown
	case err != nil:
		return err.Error(), npdUnknown
	case now.Sub(r.At) > stale:
		return fmt.Sprintf("the latest reading of the lasthop agent is %v old", now.Sub(r.At).Round(time.Second)), npdUnknown
	}
	bad := model.Filter(openOf(r), func(f model.Tracked) bool { return f.Severity.Rank() >= model.Warning.Rank() })
	switch n := len(bad); {
	case n > 1:
		return fmt.Sprintf("%s: %s; and %d more", bad[0].Code, bad[0].Title, n-1), npdProblem
	case n == 1:
		return fmt.Sprintf("%s: %s", bad[0].Code, bad[0].Title), npdProblem
	case r.Point.Snapshot.Status(model.SourceTC) == model.Missing:
		return "packets are not watched", npdUnknown
	}
	return "no finding is open", npdOK
}
