package main

import (
	"cmp"
	"errors"
	"fmt"
	"io/fs"
	"net/netip"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"text/tabwriter"
	"time"

	"github.com/spf13/cobra"

	"github.com/lasthop/lasthop/cmd/flags"
	"github.com/lasthop/lasthop/probe/model"
	"github.com/lasthop/lasthop/probe/record"
	"github.com/lasthop/lasthop/probe/report"
	"github.com/lasthop/lasthop/probe/ring"
	"github.com/lasthop/lasthop/probe/timeline"
)

// The past is read from the agent's files, not asked of the agent. The agent writes each reading at once, so a protocol
// could add nothing, and files can be read without it: when it was killed, and while it is busy.

// past is the window of the agent's ring that --last or --at asks for.
type past struct {
	model.Window
	found *ring.Past
	// later reaches beyond the window: what was open at its end, or seemed so, may have ended in it.
	later *ring.Past
	// run is the part of the window that is judged.
	run ring.Run
}

// atFor is how much time --at means without --for.
const atFor = 5 * time.Minute

// openPast checks the flags. It opens what the agent has of the window that they ask for, if
// they do, and makes it the recording that the command is about.
func (a *app) openPast(o *observing) error {
	if err := o.validate(); err != nil {
		return err
	}
	p := &o.past
	switch {
	case !o.Past() && o.Dir != "":
		return usagef("--dir needs --last or --at")
	case !o.Past():
		return nil
	case o.Last > 0 && !o.At.IsZero():
		return usagef("--last and --at exclude each other")
	case len(o.Replay) > 0:
		return usagef("--last and --at need this node's agent, not a recording")
	}
	for _, name := range slices.Concat(slices.DeleteFunc(slices.Clone(onNode), func(s string) bool { return s == "host-root" }), []string{"active", "pairs"}) {
		if f := o.Given.Lookup(name); f != nil && f.Changed {
			return usagef("--%s does not apply to a past observation (--last, --at)", name)
		}
	}
	now := time.Now()
	if o.Last > 0 {
		if o.Given.Changed("for") {
			return usagef("--for needs --at; --last ends now")
		}
		p.Window = model.Window{Start: now.Add(-time.Duration(o.Last)), End: now}
	} else {
		p.Start = o.At.Before(now)
		p.End = model.Either(o.Given.Changed("for"), p.Start.Add(time.Duration(o.Window)), p.Start.Add(atFor))
	}
	if err := a.findPast(o); err != nil {
		return err
	}
	a.past, o.Replay = p, []string{"of the agent"}
	return nil
}

// close closes the agent's files.
func (p *past) close() error {
	if p == nil {
		return nil
	}
	return errors.Join(p.found.Close(), p.later.Close())
}

// ringDir is where the agent keeps its recordings.
func ringDir(dir, root string) string {
	if dir != "" {
		return dir
	}
	here, _ := os.ReadDir(flags.AgentDir)
	return model.Either(len(here) > 0, flags.AgentDir, filepath.Join(root, flags.AgentDir))
}

// noAgent says that there is nothing to read.
func noAgent(dir, what string) error {
	return &statusError{exitCannot, fmt.Sprintf("no agent runs on this node, and %s has no recording%s (--dir)\n"+
		"start `lasthop agent` beforehand, or install it on all nodes with charts/lasthop; without an agent, use lasthop check", report.Clean(dir), what)}
}

// findPast reads the ring, and chooses the longest of its runs.
func (a *app) findPast(o *observing) (err error) {
	p := &o.past
	dir := ringDir(o.Dir, hostRoot(o.HostRoot))
	p.found, err = ring.Read(dir, p.Window)
	running, unsure := ring.Running(dir)
	var has kept
	if err == nil && len(p.found.Runs) == 0 {
		has, err = readKept(dir)
	}
	switch {
	case errors.Is(err, fs.ErrNotExist), err == nil && len(p.found.Runs)+len(has.spans) == 0 && !running && unsure == nil:
		return noAgent(dir, " of that time")
	case err != nil:
		return fmt.Errorf("read the agent's ring: %w", err)
	case len(p.found.Runs) == 0:
		return &statusError{exitCannot, fmt.Sprintf("the agent has no recording of %s; its --keep and --space limit how much it keeps%s",
			span(p.Start, p.End), has.near(p.Start))}
	}
	if p.later, err = ring.Read(dir, model.Window{Start: p.Start, End: p.End.Add(timeline.Middle)}); err != nil {
		return fmt.Errorf("read the agent's ring: %w", err)
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

func span(start, end time.Time) string {
	return start.Format(time.DateTime) + " to " + end.Format("15:04:05 MST")
}

// tracked are the findings that the agent had in the window, as it had judged them. Of one
// that was open when an earlier run ended it is not known how long it stayed.
func (p *past) tracked() (out []model.Tracked, err error) {
	for _, run := range p.later.Runs {
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
			x.Closed = (x.Closed || run.End.Before(p.later.Runs[len(p.later.Runs)-1].Start)) && !x.Last.After(p.End)
			if x.Mended = x.Mended && x.Closed; !x.First.After(p.End) && (!x.Closed || x.Last.After(p.Start)) {
				out = append(out, x)
			}
		}
	}
	return out, nil
}

// kept is what the agent keeps: the time that it recorded, and the incidents in it, oldest first.
type kept struct {
	spans     []model.Window
	incidents []incident
}

// incident is a finding that the agent had, of an observation that began then. who are its pods, what is its title with
// their names; it is open if it may go on.
type incident struct {
	model.Tracked
	began     time.Time
	who, what string
	open      bool
}

// apart is how far recordings are apart at most that are shown as one.
const apart = 10 * time.Second

func readKept(dir string) (out kept, err error) {
	running, unsure := ring.Running(dir)
	var latest time.Time
	err = ring.Each(dir, func(first time.Time, last model.Reading) {
		if n := len(out.spans) - 1; n >= 0 && first.Sub(out.spans[n].End).Abs() <= apart {
			out.spans[n].End = last.At
		} else {
			out.spans = append(out.spans, model.Window{Start: first, End: last.At})
		}
		s := last.Point.Snapshot
		latest = s.Window.Start
		names := report.Names{}
		names.Add(s)
		for x := range model.Each(last.Findings) {
			if x.Severity.Rank() < model.Warning.Rank() {
				continue
			}
			of := func(known incident) bool { return known.ID == x.ID && known.began.Equal(latest) }
			found := incident{*x, latest, someOf(names, x.Pods), report.Brief(names, x.Title), !x.Closed}
			made := x.Made()
			if len(made) == 0 {
				// It may go on from an agent that saw the change and ended.
				before := func(known incident) bool { return known.open && known.began.Before(latest) && known.Same(&x.Finding) }
				made = new(model.Find(out.incidents, before)).Made()
				found.Evidence = append(made, found.Evidence...)
			}
			for _, e := range made {
				found.what += "; " + e.Text
			}
			switch i := slices.IndexFunc(out.incidents, of); {
			case i < 0:
				out.incidents = append(out.incidents, found)
			case out.incidents[i].open: // of what closed before, the pods may be gone by now
				out.incidents[i] = found
			}
		}
	})
	for x := range model.Each(out.incidents) {
		x.open = x.open && x.began.Equal(latest) && (running || unsure != nil)
	}
	slices.SortStableFunc(out.incidents, func(a, b incident) int { return a.First.Compare(b.First) })
	return out, err
}

// someOf names pods, the first of many.
func someOf(names report.Names, pods []netip.Addr) string {
	list := model.Map(pods, func(a netip.Addr) string { return cmp.Or(names[a].String(), a.String()) })
	return cmp.Or(model.Some(list, 3, "more"), "-")
}

// times are the spans that were recorded.
func (k *kept) times() string {
	return strings.Join(model.Map(k.spans, func(w model.Window) string { return span(w.Start, w.End) }), ", ")
}

// near says what there is instead of a time of which there is nothing.
func (k *kept) near(at time.Time) string {
	if len(k.spans) == 0 {
		return ""
	}
	text := "\nit has " + k.times()
	if len(k.incidents) > 0 {
		x := slices.MinFunc(k.incidents, func(a, b incident) int { return cmp.Compare(a.First.Sub(at).Abs(), b.First.Sub(at).Abs()) })
		text += fmt.Sprintf("\nnearest incident: %s, %s: lasthop check --at %s", x.Code, span(x.First, x.Last), x.First.Format(time.RFC3339))
	}
	return text
}

func (a *app) pastCommand() *cobra.Command {
	o := &observing{}
	cmd := &cobra.Command{
		Use:  "past",
		Args: cobra.NoArgs,
		RunE: func(*cobra.Command, []string) error {
			if err := o.validate(); err != nil {
				return err
			}
			return a.listPast(ringDir(o.Dir, hostRoot(o.HostRoot)))
		},
	}
	o.Pick(cmd.Flags(), "dir", "host-root")
	return cmd
}

// listPast prints the incidents in a directory.
func (a *app) listPast(dir string) error {
	has, err := readKept(dir)
	switch {
	case errors.Is(err, fs.ErrNotExist), err == nil && len(has.spans) == 0:
		return noAgent(dir, "")
	case err != nil:
		return fmt.Errorf("read the agent's ring: %w", err)
	case len(has.incidents) == 0:
		_, err = fmt.Fprintf(a.stdout, "no finding in %s\n", has.times())
		return ignoreClosedPipe(err)
	}
	w := tabwriter.NewWriter(a.stdout, 0, 0, 2, ' ', 0)
	fmt.Fprintln(w, "FROM\tTO\tCODE\tCONFIDENCE\tPODS\tPACKETS\tWHAT")
	for x := range model.Each(has.incidents) {
		to, lost := x.Last.Format(time.RFC3339), "-"
		if n := max(x.Lost, x.Packets); n > 0 {
			lost = strconv.FormatUint(n, 10)
		}
		if x.open {
			to = "-"
		}
		cells := []string{x.First.Format(time.RFC3339), to, string(x.Code), string(x.Confidence), x.who, lost, x.what}
		fmt.Fprintln(w, strings.Join(model.Map(cells, report.Clean), "\t"))
	}
	return ignoreClosedPipe(w.Flush())
}
