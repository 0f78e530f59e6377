package main

import (
	"cmp"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"os"
	"path/filepath"
	"slices"
	"time"

	"github.com/lasthop/lasthop/cmd/flags"
	"github.com/lasthop/lasthop/probe/model"
	"github.com/lasthop/lasthop/probe/record"
	"github.com/lasthop/lasthop/probe/report"
	"github.com/lasthop/lasthop/probe/ring"
)

// The past is read from the agent's files, not asked of the agent. The agent writes each reading at once, so a protocol
// could add nothing, and files can be read without it: when it was killed, and while it is busy.

// past is the window of the agent's ring that --last or --at asks for.
type past struct {
	last flags.Window
	at   flags.Time
	dir  string

	model.Window
	found *ring.Past
	// run is the part of the window that is judged.
	run ring.Run
}

// atFor is how much time --at means without --for.
const atFor = 5 * time.Minute

func (p *past) asked() bool { return p.last > 0 || !p.at.IsZero() }

// openPast checks the flags. It opens what the agent has of the window that they ask for, if
// they do, and makes it the recording that the command is about.
func (a *app) openPast(o *observing) error {
	if err := o.validate(); err != nil {
		return err
	}
	p := &o.past
	switch {
	case !p.asked() && p.dir != "":
		return usagef("--dir needs --last or --at")
	case !p.asked():
		return nil
	case p.last > 0 && !p.at.IsZero():
		return usagef("--last and --at exclude each other")
	case len(o.replay) > 0:
		return usagef("--last and --at need this node's agent, not a recording")
	}
	for _, name := range slices.Concat(slices.DeleteFunc(slices.Clone(onNode), func(s string) bool { return s == "host-root" }), []string{"active", "pairs"}) {
		if f := o.given.Lookup(name); f != nil && f.Changed {
			return usagef("--%s does not apply to a past observation (--last, --at)", name)
		}
	}
	now := time.Now()
	if p.last > 0 {
		if o.given.Changed("for") {
			return usagef("--for needs --at; --last ends now")
		}
		p.Window = model.Window{Start: now.Add(-time.Duration(p.last)), End: now}
	} else {
		p.Start = p.at.Before(now)
		p.End = model.Either(o.given.Changed("for"), p.Start.Add(time.Duration(o.window)), p.Start.Add(atFor))
	}
	if err := a.findPast(o); err != nil {
		return err
	}
	a.past = p
	o.replay = []string{"of the agent"}
	return nil
}

// close closes the agent's files.
func (p *past) close() error {
	if p == nil {
		return nil
	}
	return p.found.Close()
}

func (a *app) copyPast(to io.Writer) error {
	_, err := io.Copy(to, io.NewSectionReader(a.past.run, 0, a.past.run.Size))
	return ignoreClosedPipe(err)
}

// findPast reads the ring, and chooses the longest of its runs.
func (a *app) findPast(o *observing) (err error) {
	p := &o.past
	dir := p.dir
	if dir == "" {
		dir = agentDir
		if root := hostRoot(o.hostRoot); !hasFiles(dir) {
			dir = filepath.Join(root, agentDir)
		}
	}
	p.found, err = ring.Read(dir, p.Window)
	running, unsure := ring.Running(dir)
	switch {
	case errors.Is(err, fs.ErrNotExist), err == nil && len(p.found.Runs) == 0 && !running && unsure == nil:
		return &statusError{exitCannot, fmt.Sprintf("no agent runs on this node, and %s has no recording of that time (--dir)\n"+
			"start `lasthop agent` beforehand, or install it on all nodes with charts/lasthop; without an agent, use lasthop check", report.Clean(dir))}
	case err != nil:
		return fmt.Errorf("read the agent's ring: %w", err)
	case len(p.found.Runs) == 0:
		return &statusError{exitCannot, fmt.Sprintf("the agent has no recording of %s", span(p.Start, p.End)) + "; its --keep and --space limit how much it keeps"}
	}
	p.run = slices.MaxFunc(p.found.Runs, func(a, b ring.Run) int { return cmp.Compare(a.End.Sub(a.Start), b.End.Sub(b.Start)) })
	if !running && unsure == nil {
		a.say("warning: the agent is not running; these are its last recordings")
	}
	for _, run := range p.found.Runs {
		if !run.Start.Equal(p.run.Start) {
			a.say("the agent restarted in that time: counts are for %s; for %s there are only findings", span(p.run.Start, p.run.End), span(run.Start, run.End))
		}
	}
	return nil
}

func hasFiles(name string) bool {
	entries, err := os.ReadDir(name)
	return err == nil && len(entries) > 0
}

func span(start, end time.Time) string {
	return start.Format("15:04:05") + " to " + end.Format("15:04:05 MST")
}

// tracked are the findings that the agent had in the window, as it had judged them. Of one
// that was open when an earlier run ended it is not known how long it stayed.
func (p *past) tracked() (out []model.Tracked, err error) {
	for _, run := range p.found.Runs {
		f, err := record.Open(run, run.Size)
		if err != nil {
			return nil, err
		}
		had, err := f.Findings(f.Len() - 1)
		f.Close()
		if err != nil {
			return nil, err
		}
		for _, x := range had {
			x.Closed = x.Closed || run.End.Before(p.found.Runs[len(p.found.Runs)-1].Start)
			if !x.Closed || x.Last.After(p.Start) {
				out = append(out, x)
			}
		}
	}
	return out, nil
}
