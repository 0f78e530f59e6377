package main

import (
	"context"
	"errors"
	"io"
	"net/netip"
	"os"
	"slices"
	"time"

	"github.com/spf13/cobra"
	"golang.org/x/sys/unix"

	"github.com/lasthop/lasthop/probe/diagnose"
	"github.com/lasthop/lasthop/probe/model"
	"github.com/lasthop/lasthop/probe/report"
	"github.com/lasthop/lasthop/probe/timeline"
)

func (a *app) watchCommand() *cobra.Command {
	o := &observing{}
	cmd := &cobra.Command{
		Use:   "watch [POD…]",
		Short: "Findings, drops and rewrites as NDJSON, until interrupted",
		Long: "Observe until interrupted, and print one JSON object a line: a Finding when it\n" +
			"opens, changes and closes; the Drops of each second, without what the kernel\n" +
			"freed harmlessly; a MACRewrite once in a window; and what lasthop itself Lost.\n" +
			"The first line is a Lost, when everything is attached. With PODs, only what\n" +
			"concerns them is told.\n\n" +
			"Exit status: 0 when the reader goes away; 2 usage; 3 cannot observe;\n" +
			"130 interrupted, after cleaning up.",
		RunE: func(cmd *cobra.Command, args []string) error {
			return a.watchNode(cmd.Context(), o, args)
		},
	}
	o.observes(cmd.Flags(), "for", "namespace", "all-namespaces", "only", "skip")
	cmd.Flags().Lookup("for").Usage = "the window over which is judged"
	return cmd
}

func (a *app) watchNode(ctx context.Context, o *observing, pods []string) (err error) {
	if err := o.validate(); err != nil {
		return err
	}
	samples, err := createPcap(o.pcap)
	if err != nil {
		return err
	}
	stream, _, closeStream, err := a.stream(ctx, o, time.Duration(o.window))
	if err != nil {
		return errors.Join(err, samples.discard())
	}
	defer func() { err = errors.Join(err, closeStream(), samples.close()) }()
	w := &watcher{observing: o, pods: pods, told: map[int]model.Tracked{}, rewritten: map[model.MACRewrite]time.Time{}}
	for reading := range stream.Readings() {
		e, err := w.events(reading)
		if err != nil {
			return err
		}
		if err := samples.write(reading.Point.Snapshot.Traffic.Samples); err != nil {
			return err
		}
		if err := e.Write(a.stdout); err != nil {
			return ignoreClosedPipe(err)
		}
		if abandoned(a.stdout) {
			return nil
		}
	}
	return ctx.Err()
}

// abandoned reports whether nobody reads any more what is written to a pipe.
func abandoned(w io.Writer) bool {
	f, ok := w.(*os.File)
	if !ok {
		return false
	}
	fds := []unix.PollFd{{Fd: int32(f.Fd())}}
	n, err := unix.Poll(fds, 0)
	return err == nil && n > 0 && fds[0].Revents&unix.POLLERR != 0
}

// watcher turns readings into what is new in them.
type watcher struct {
	*observing
	pods  []string
	focus []netip.Addr
	// last is the reading before, told the findings as they were told.
	last *model.Snapshot
	told map[int]model.Tracked
	// rewritten is when each rewrite was last told.
	rewritten map[model.MACRewrite]time.Time
}

func (w *watcher) events(r model.Reading) (report.Events, error) {
	now := r.Point.Snapshot
	focus, err := choosePods(now, w.pods, w.namespace)
	switch {
	case err == nil:
		w.focus = focus
	case w.last == nil:
		return report.Events{}, err
	}
	e := report.Events{At: r.At, LostToo: w.last == nil, Findings: w.changes(r.Findings)}
	before := w.last
	if before == nil {
		beginning := *now
		beginning.Window.End = now.Window.Start
		beginning.Traffic = model.Traffic{}
		before = &beginning
	}
	counts := timeline.Between(model.Point{Snapshot: before}, model.Point{Snapshot: now})
	e.Rewrites = w.rewrites(r.At, diagnose.MACRewrites(counts))
	if w.focus != nil {
		counts.Traffic.Drops = slices.DeleteFunc(counts.Traffic.Drops, func(d model.Drop) bool {
			return !slices.Contains(w.focus, d.Src) && !slices.Contains(w.focus, d.Dst)
		})
	}
	e.Counts, w.last = counts, now
	return e, nil
}

// changes are those of the findings since they were last told.
func (w *watcher) changes(list []model.Tracked) []report.FindingChange {
	var out []report.FindingChange
	for _, f := range list {
		before, told := w.told[f.ID]
		change := report.Opened
		switch {
		case !w.judges(f.Code) || !concerns(f.Finding, w.focus):
			continue
		case f.Closed && !told, told && !f.Closed && alike(before.Finding, f.Finding):
			continue
		case f.Closed:
			change = report.Closed
			delete(w.told, f.ID)
		case told:
			change = report.Changed
		}
		if !f.Closed {
			w.told[f.ID] = f
		}
		out = append(out, report.FindingChange{Change: change, Finding: f})
	}
	return out
}

// alike reports whether two states of a finding differ in nothing but counts
// and evidence.
func alike(a, b model.Finding) bool {
	return a.Severity == b.Severity && a.Confidence == b.Confidence && a.Title == b.Title && a.LastHopAlive == b.LastHopAlive &&
		slices.Equal(a.Pods, b.Pods) && slices.Equal(a.Peers, b.Peers) && slices.Equal(a.Fix, b.Fix)
}

// rewrites are those that were not told within the window.
func (w *watcher) rewrites(now time.Time, list []model.MACRewrite) []model.MACRewrite {
	var out []model.MACRewrite
	for k, at := range w.rewritten {
		if now.Sub(at) >= time.Duration(w.window) {
			delete(w.rewritten, k)
		}
	}
	for _, x := range list {
		k := x
		k.Packets = 0
		if _, told := w.rewritten[k]; told || w.focus != nil && !slices.Contains(w.focus, x.Addr) {
			continue
		}
		w.rewritten[k] = now
		out = append(out, x)
	}
	return out
}
