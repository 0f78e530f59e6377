package main

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"net/netip"
	"os"
	"strings"
	"time"

	"github.com/spf13/cobra"
	"kernel.org/pub/linux/libs/security/libcap/cap"

	"github.com/lasthop/lasthop/cmd/flags"
	"github.com/lasthop/lasthop/cmd/joint"
	"github.com/lasthop/lasthop/probe/collect"
	"github.com/lasthop/lasthop/probe/collect/azure"
	"github.com/lasthop/lasthop/probe/model"
	"github.com/lasthop/lasthop/probe/netns"
	"github.com/lasthop/lasthop/probe/report"
	"github.com/lasthop/lasthop/probe/session"
	"github.com/lasthop/lasthop/probe/traffic"
)

func (a *app) checkCommand() *cobra.Command {
	o := &observing{}
	cmd := &cobra.Command{
		Use:  "check [POD…]",
		RunE: func(cmd *cobra.Command, args []string) error { return a.check(cmd.Context(), o, args) },
	}
	o.Register(cmd.Flags(), "idle-exit")
	o.complete(cmd)
	return cmd
}

func (a *app) check(ctx context.Context, o *observing, pods []string) error {
	if err := a.openPast(o); err != nil {
		return err
	}
	if len(o.Replay) > 1 {
		return a.checkTogether(o, pods)
	}
	out, err := a.createPcap(o)
	if err != nil {
		return err
	}
	if err := a.openBeside(o); err != nil {
		return err
	}
	var past []model.Tracked
	o.tables = true
	o.first = func(s *model.Snapshot) ([]netip.Addr, error) { return o.choosePods(s, pods) }
	return a.snapshot(ctx, o, nil, out, &past, func(s *model.Snapshot) error {
		r, err := o.judge(s, pods, past)
		if err != nil {
			return err
		}
		// The report is printed even if the samples cannot be kept.
		unkept := errors.Join(out.write(s.Traffic.Samples), out.close())
		if err := errors.Join(a.tell(o, r, o.Judgement()), unkept); err != nil {
			return err
		}
		return o.verdict(r)
	})
}

// print writes a report to the standard output. A closed pipe is no error.
func (a *app) print(o *observing, r report.Document) error {
	return ignoreClosedPipe(flags.Print(a.stdout, r, report.Format(o.Output.Value), o.Color.Value))
}

// snapshot observes the node, or reads the snapshot from a recording, along with its samples and, unless past is nil,
// what would have been told during it. countPairs is session.Options.CountPairs; a recording has no counts of pairs.
// tell is called with the snapshot before the programs are detached, so that the verdict does not wait for that.
func (a *app) snapshot(
	ctx context.Context, o *observing, countPairs func(*model.Snapshot) ([]netip.Addr, error), samples *pcapFile,
	past *[]model.Tracked, tell func(*model.Snapshot) error,
) error {
	if len(o.Replay) > 0 {
		s, err := a.recorded(o, samples, past)
		if err == nil {
			err = tell(&s)
		}
		return err
	}
	ns, name, err := o.openNode(ctx)
	if err != nil {
		return err
	}
	defer ns.Close()
	options := o.session(ns, name)
	options.CountPairs = countPairs
	var told error
	options.Seen = func(s *model.Snapshot) {
		p := progress{a}
		p.clear()
		told = tell(s)
		p.show("leaving the links")
	}
	_, err = a.observe(ctx, options)
	return cmp.Or(err, told)
}

func (o *observing) session(ns *netns.NS, name string) session.Options {
	hint := model.Either(o.Given != nil && o.Given.Lookup("nodes") != nil, "use --nodes FILE", "")
	var cloud *azure.Client
	if o.Azure {
		cloud = &azure.Client{}
	}
	return session.Options{
		Options: collect.Options{
			NS: ns, HostRoot: hostRoot(o.HostRoot), Uplinks: o.Uplinks, PodCIDRs: o.PodCIDRs, NodesFile: o.Nodes, NodesHint: hint,
			PodsFile: o.Pods, RoutesFiles: o.Routes, Azure: cloud, Stdin: os.Stdin,
		},
		NodeName: name, InPod: inForeignRoot(), Engine: o.watchedBy(), Attach: o.Attach.Value, Janitor: newJanitor, First: o.first,
		Diagnose: o.diagnose(), For: time.Duration(o.Window), Active: o.Active, Debug: o.Debug,
	}
}

// watchedBy is the engine. Without NET_ADMIN not even the node's rules can be read:
// who did not ask for a verdict without packets gets none then.
func (o *observing) watchedBy() string {
	return model.Either(o.Engine.Value == session.EngineAuto && !traffic.Holds(cap.NET_ADMIN), session.EngineTC, o.Engine.Value)
}

// judge draws the findings that the user wants, with those that came and went.
func (o *observing) judge(s *model.Snapshot, pods []string, past []model.Tracked) (report.Report, error) {
	focus, err := o.choosePods(s, pods)
	if err != nil {
		return report.Report{}, err
	}
	hide := o.redactor()
	s, focus = hide.Snapshot(s), hide.Addrs(focus)
	return joint.Node(s, past, &o.Verdict, focus, o.Draws(o.Output.Value), o.tables), nil
}

// verdict is a report's exit status. A finding outweighs a gap: it holds whatever else could not be seen.
func (o *observing) verdict(r report.Report) error {
	if o.Judgement().Fails(r.Findings) {
		return &statusError{code: exitFindings}
	}
	if !o.Strict {
		return nil
	}
	gaps := model.Map(report.Gaps(r.Snapshot), report.SourceText)
	if len(gaps) == 0 {
		return nil
	}
	return &statusError{exitIncomplete, report.Clean("incomplete (--strict): " + strings.Join(gaps, "; "))}
}

// observe takes a snapshot, and shows its progress on a terminal.
func (a *app) observe(ctx context.Context, o session.Options) (*model.Snapshot, error) {
	p := progress{a}
	defer p.clear()
	o.Progress = func(w model.Window, now time.Time) {
		p.show("watching: %v of %v", now.Sub(w.Start).Round(time.Second), report.Duration(w.Duration()))
	}
	o.Unwatched = a.unwatched
	s, err := session.Observe(ctx, o)
	return s, cannotObserve(err)
}

// unwatched says that packets are not watched, and what would help.
func (a *app) unwatched(err error) {
	a.say("cannot watch packets, judging only the node's state: %s", report.Clean(err.Error()))
	if advice := lacking(); advice != "" {
		a.say("%s", advice)
	}
}

// progress is a line on the terminal that is overwritten.
type progress struct{ *app }

const clearLine = "\r\x1b[K"

// show writes the line. It does not wait for the reader, since it is called between two readings of the counters.
func (p progress) show(format string, args ...any) {
	if flags.Terminal(p.stderr) && p.reader.here() {
		fmt.Fprintf(p.stderr, clearLine+format, args...)
	}
}

func (p progress) clear() {
	if flags.Terminal(p.stderr) {
		fmt.Fprint(p.stderr, clearLine)
	}
}
