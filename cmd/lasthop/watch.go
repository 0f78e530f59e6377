package main

import (
	"context"
	"errors"
	"io"
	"maps"
	"net/netip"
	"slices"
	"time"

	"github.com/spf13/cobra"
	"golang.org/x/sys/unix"

	"github.com/lasthop/lasthop/cmd/flags"
	"github.com/lasthop/lasthop/probe/fault/bridge"
	"github.com/lasthop/lasthop/probe/model"
	"github.com/lasthop/lasthop/probe/redact"
	"github.com/lasthop/lasthop/probe/report"
	"github.com/lasthop/lasthop/probe/session"
	"github.com/lasthop/lasthop/probe/timeline"
)

func (a *app) watchCommand() *cobra.Command {
	o := &observing{}
	cmd := &cobra.Command{
		Use:  "watch [POD…]",
		RunE: func(cmd *cobra.Command, args []string) error { return a.watchNode(cmd.Context(), o, args) },
	}
	more := []string{"for", "namespace", "all-namespaces", "selector", "only", "skip", "redact", "debug", "pcap"}
	o.Pick(cmd.Flags(), append(onNode, more...)...)
	cmd.Flags().Lookup("for").Usage = "the window that findings are based on"
	return cmd
}

func (a *app) watchNode(ctx context.Context, o *observing, pods []string) error {
	if err := o.validate(); err != nil {
		return err
	}
	samples, err := a.createPcap(o)
	if err != nil {
		return err
	}
	w := &watcher{observing: o, hide: o.redactor(), names: pods, printed: map[int]model.Tracked{}, rewritten: map[model.MACRewrite]time.Time{}}
	// No other window is ever asked for.
	how := func(options *session.Options) { options.Keep = max(time.Minute, 2*options.For) }
	return a.streamNode(ctx, o, how, func(s *session.Stream, _ string) (err error) {
		defer func() { err = errors.Join(err, samples.close()) }()
		for reading := range s.Readings() {
			e, err := w.events(reading)
			if err != nil {
				return err
			}
			if err := samples.write(reading.Point.Snapshot.Traffic.Samples); err != nil {
				return err
			}
			err = e.Write(flags.Document(a.stdout))
			if abandoned(a.stdout) || samples.abandoned() {
				return nil
			}
			if err != nil {
				return ignoreClosedPipe(err)
			}
		}
		return ctx.Err()
	})
}

// abandoned reports whether the reader of a pipe or socket, or a terminal, has gone
// away. Nothing need be written to notice.
func abandoned(w io.Writer) bool {
	fd, ok := flags.Descriptor(w)
	if !ok {
		return false
	}
	fds := []unix.PollFd{{Fd: int32(fd)}}
	n, err := unix.Poll(fds, 0)
	return err == nil && n > 0 && fds[0].Revents&(unix.POLLERR|unix.POLLHUP) != 0
}

// watcher turns readings into events.
type watcher struct {
	*observing
	hide  *redact.Redactor
	names []string
	focus []netip.Addr
	// last is the previous reading, printed the findings as last printed.
	last    *model.Snapshot
	printed map[int]model.Tracked
	// rewritten is when each rewrite was last printed.
	rewritten map[model.MACRewrite]time.Time
	// changed is when the last change was that was printed.
	changed time.Time
}

func (w *watcher) events(r model.Reading) (report.Events, error) {
	focus, err := w.choosePods(r.Point.Snapshot, w.names)
	r = w.hide.Reading(r)
	now := r.Point.Snapshot
	switch {
	case err == nil:
		w.focus = w.hide.Addrs(focus)
	case w.last == nil:
		return report.Events{}, err
	}
	e, before := report.Events{At: r.At, WithLost: w.last == nil, Findings: w.changes(r.Findings)}, w.last
	if before == nil {
		beginning := *now
		beginning.Window.End, beginning.Traffic = now.Window.Start, model.Traffic{}
		before = &beginning
	}
	counts := timeline.Between(model.Point{Snapshot: packetsOf(before)}, model.Point{Snapshot: packetsOf(now)})
	if w.last != nil { // the first line is a Lost
		e.Changes = w.made(now.Changes)
	}
	e.Rewrites = w.rewrites(r.At, bridge.MACRewrites(counts))
	if w.focus != nil {
		counts.Traffic.Drops = slices.DeleteFunc(counts.Traffic.Drops, func(d model.Drop) bool {
			return !slices.Contains(w.focus, d.Src) && !slices.Contains(w.focus, d.Dst)
		})
	}
	e.Counts, w.last = counts, packetsOf(now)
	return e, nil
}

// made are the changes of the node's state since they were last printed.
func (w *watcher) made(list []model.Change) []model.Change {
	since := w.changed
	if n := len(list); n > 0 {
		w.changed = list[n-1].At
	}
	return model.Filter(list, func(c model.Change) bool {
		about := func(a netip.Addr) bool { return c.Dst.Contains(a) || c.From.Contains(a) }
		return c.At.After(since) && (w.focus == nil || slices.ContainsFunc(w.focus, about))
	})
}

// packetsOf is a snapshot without the rules and flows of its state, which are no events and may be very many.
func packetsOf(s *model.Snapshot) *model.Snapshot {
	out := *s
	out.FrameRules, out.PacketRules, out.Chains, out.Sets, out.Flows = nil, nil, nil, nil, nil
	return &out
}

// changes are those of the findings since they were last printed.
func (w *watcher) changes(list []model.Tracked) []report.FindingChange {
	var out []report.FindingChange
	for _, f := range list {
		before, printed := w.printed[f.ID]
		change := report.Opened
		switch {
		case !w.Wants(&f.Finding, w.focus):
			continue
		case f.Closed && !printed, printed && !f.Closed && sameState(&before.Finding, &f.Finding):
			continue
		case f.Closed:
			change = report.Closed
			delete(w.printed, f.ID)
		case printed:
			change = report.Changed
		}
		if !f.Closed {
			w.printed[f.ID] = f
		}
		out = append(out, report.FindingChange{Change: change, Finding: f})
	}
	return out
}

// sameState reports whether two states of a finding differ only in counts, evidence and words.
func sameState(a, b *model.Finding) bool {
	return a.Key() == b.Key() && a.Severity == b.Severity && a.Confidence == b.Confidence &&
		a.LastHopAlive == b.LastHopAlive && slices.Equal(a.Pods, b.Pods) && slices.Equal(a.Peers, b.Peers)
}

// rewrites are those that were not printed within the window.
func (w *watcher) rewrites(now time.Time, list []model.MACRewrite) []model.MACRewrite {
	var out []model.MACRewrite
	maps.DeleteFunc(w.rewritten, func(_ model.MACRewrite, at time.Time) bool { return now.Sub(at) >= time.Duration(w.Window) })
	for _, x := range list {
		k := x
		k.Packets = 0
		if _, printed := w.rewritten[k]; printed || w.focus != nil && !slices.Contains(w.focus, x.Addr) {
			continue
		}
		w.rewritten[k], out = now, append(out, x)
	}
	return out
}
