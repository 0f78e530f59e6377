package main

import (
	"context"
	"errors"
	"fmt"
	"io"
	"net/netip"
	"os"
	"path/filepath"
	"slices"
	"time"

	"github.com/spf13/pflag"
	"golang.org/x/sys/unix"

	"github.com/lasthop/lasthop/cmd/flags"
	"github.com/lasthop/lasthop/probe/diagnose"
	"github.com/lasthop/lasthop/probe/model"
	"github.com/lasthop/lasthop/probe/netns"
	"github.com/lasthop/lasthop/probe/path"
	"github.com/lasthop/lasthop/probe/pcap"
	"github.com/lasthop/lasthop/probe/reach"
	"github.com/lasthop/lasthop/probe/record"
	"github.com/lasthop/lasthop/probe/report"
	"github.com/lasthop/lasthop/probe/session"
	"github.com/lasthop/lasthop/tui"
)

// onScreen reports whether both input and output are a terminal.
func (a *app) onScreen() bool {
	return flags.Terminal(a.stdin) && flags.Terminal(a.stdout) && os.Getenv("TERM") != "dumb"
}

// wantsReport reports whether flags were given that only a report uses.
func wantsReport(f *pflag.FlagSet) bool {
	return slices.ContainsFunc([]string{"output", "fail-on", "strict", "active", "replay", "pcap", "report", "github", "redact"}, f.Changed)
}

// live shows the node on the screen.
func (a *app) live(ctx context.Context, o *observing) error {
	if err := a.openPast(o); err != nil {
		return err
	}
	if a.past != nil {
		return a.player(ctx, o)
	}
	ns, node, err := o.openNode(ctx)
	if err != nil {
		return err
	}
	defer ns.Close()
	return a.liveOn(ctx, o, ns, node)
}

// liveOn shows the node in a namespace, which the caller closes.
func (a *app) liveOn(ctx context.Context, o *observing, ns *netns.NS, node string) error {
	return a.stream(ctx, o.session(ns, node), func(s *session.Stream) error {
		return a.screen(ctx, o, s, "Watching packets of pods on "+report.Clean(node)+".", o.ofNode())
	})
}

// player shows recordings on the screen.
func (a *app) player(ctx context.Context, o *observing) error {
	if len(o.Replay) > 1 {
		return a.showTogether(ctx, o)
	}
	name := o.Replay[0]
	f, closeFile, err := a.openRecording(name)
	defer closeFile()
	if err != nil {
		return err
	}
	p := record.Play(f, diagnose.Judge, 1)
	err = a.screen(ctx, o, p, "Playing the recording "+report.Clean(name)+".", o.ofNode())
	return errors.Join(err, asUsage(name, p.Close()))
}

// showing is what the screen does with readings.
type showing struct {
	// window is that of the first readings.
	window time.Duration
	trace  func(r model.Reading, findings []model.Finding, pod, to netip.Addr) model.Path
	report func(model.Reading) (report.Document, error)
	reach  func(model.Reading) model.Matrix
}

func (o *observing) ofNode() showing {
	return showing{
		window: time.Duration(o.Window),
		trace: func(r model.Reading, findings []model.Finding, pod, to netip.Addr) model.Path {
			return path.Trace(r.Snapshot, diagnose.Relate(findings), path.Ends{Pod: pod, To: to})
		},
		report: func(r model.Reading) (report.Document, error) {
			return o.judge(r.Snapshot, nil, model.Filter(r.Findings, func(x model.Tracked) bool {
				return !o.Redact && (!x.Closed || x.Last.After(r.Snapshot.Window.Start))
			}))
		},
		reach: func(r model.Reading) model.Matrix {
			v := r.Verdict
			switch {
			case v.On != nil:
			case r.Replay:
				// A recording has the findings, and not what else was judged.
				v = diagnose.Judge(r.Snapshot)
			default:
				v.On = r.Snapshot
			}
			return reach.Matrix(v)
		},
	}
}

// screen shows readings until the user leaves it.
func (a *app) screen(ctx context.Context, o *observing, from tui.Source, intro string, how showing) error {
	options := tui.Options{
		Source: from, Window: how.window, Intro: intro, Trace: how.trace, Reach: how.reach,
		Describe: pcap.Describe, Export: how.export,
		Idle: o.Idle, Job: resumable(),
		Color: o.Color.Value, Env: os.Environ(), Input: a.stdin, Output: a.output(),
	}
	out, err := tui.Run(ctx, options)
	if err != nil {
		return err
	}
	if out.Idle {
		a.say("the screen closed after %v without a key (--idle-exit)", o.Idle)
	}
	if !out.Print || out.Reading.Snapshot == nil {
		return nil
	}
	r, err := how.report(out.Reading)
	if err != nil {
		return err
	}
	return a.print(o, r)
}

// output is the standard output for those who need not wait for its reader: the
// screen itself begins anew when someone attaches.
func (a *app) output() io.Writer {
	out := flags.Document(a.stdout)
	if f, ok := out.(*lateFile); ok {
		return f.file
	}
	return out
}

// export writes the report of a reading to a new page, in the current
// directory or, if that is not writable, in the one for temporary files.
func (how showing) export(reading model.Reading) (string, error) {
	r, err := how.report(reading)
	if err != nil {
		return "", err
	}
	name := "lasthop-" + reading.At.UTC().Format("20060102-150405.000") + ".html"
	f, err := create("export", name)
	if err != nil {
		var here error
		if f, here = create("export", filepath.Join(os.TempDir(), name)); here != nil {
			return "", err
		}
	}
	if err := report.Write(f, r, report.HTML, report.Style{}); err != nil {
		return "", errors.Join(fmt.Errorf("export: %w", err), discard(f))
	}
	if err := f.Close(); err != nil {
		return "", fmt.Errorf("export: %w", err)
	}
	return f.Name(), nil
}

// resumable reports whether a shell takes over when this process stops: the
// parent is in the same session, and gave it a process group of its own. Elsewhere,
// above all in a container, the process would stop for good.
func resumable() bool {
	parent := os.Getppid()
	mine, err := unix.Getsid(0)
	theirs, err2 := unix.Getsid(parent)
	group, err3 := unix.Getpgid(parent)
	return errors.Join(err, err2, err3) == nil && os.Getpid() != 1 && mine == theirs && group != unix.Getpgrp()
}
