package main

import (
	"errors"
	"fmt"
	"os"
	"time"

	"github.com/spf13/cobra"
	"github.com/spf13/pflag"
	"golang.org/x/sys/unix"

	"github.com/lasthop/lasthop/probe/model"
	"github.com/lasthop/lasthop/probe/record"
	"github.com/lasthop/lasthop/probe/report"
)

// onNode are the flags about how a node is observed. They do not apply to a
// recording.
var onNode = []string{"netns", "host-root", "engine", "uplink", "pod-cidr", "nodes", "routes"}

func (o *observing) registerReplay(f *pflag.FlagSet) {
	o.given = f
	f.StringVar(&o.replay, "replay", "", "judge the recording `FILE` instead of the node: the last --for of it, or all by default")
}

func (o *observing) validateReplay() error {
	if o.replay == "" {
		return nil
	}
	for _, name := range onNode {
		if f := o.given.Lookup(name); f != nil && f.Changed {
			return usagef("--%s is about a node, and --replay about a recording", name)
		}
	}
	return nil
}

func (a *app) replayCommand() *cobra.Command {
	o := &observing{}
	cmd := &cobra.Command{
		Use:   "replay FILE [POD…]",
		Short: "Show or judge a recording, on any machine, without rights",
		Long: "Show on the live screen what `lasthop record` wrote. If standard input or output\n" +
			"is not a terminal, or with PODs or flags about a report, judge it again: all of\n" +
			"it, or the last --for.\n\n" +
			"Exit status: that of check.",
		Args: cobra.MinimumNArgs(1),
		RunE: func(cmd *cobra.Command, args []string) error {
			if f := cmd.Flags(); a.onScreen() && len(args) == 1 && !wantsReport(f) && !f.Changed("for") {
				return a.player(cmd.Context(), o, args[0])
			}
			o.replay = args[0]
			return a.check(cmd.Context(), o, args[1:])
		},
	}
	o.pick(cmd.Flags(), "for", "namespace", "all-namespaces", "only", "skip", "fail-on", "strict", "output", "color")
	cmd.Flags().Lookup("for").DefValue = "all of it"
	o.registerScreen(cmd.Flags())
	registerPcap(cmd.Flags(), &o.pcap)
	return cmd
}

// openRecording opens a recording, and warns if it is damaged. Its errors are
// usage errors.
func (a *app) openRecording(name string) (f *record.File, closeFile func(), err error) {
	// Without O_NONBLOCK, opening a named pipe would wait for a writer.
	file, err := os.OpenFile(name, os.O_RDONLY|unix.O_NONBLOCK, 0)
	if err != nil {
		return nil, nil, usagef("open recording: %w", err)
	}
	defer func() {
		if err != nil {
			file.Close()
		}
	}()
	info, err := file.Stat()
	if err != nil {
		return nil, nil, usagef("open recording: %w", err)
	}
	if !info.Mode().IsRegular() {
		return nil, nil, usagef("recording %s: want a file", name)
	}
	if f, err = record.Open(file, info.Size()); err != nil {
		return nil, nil, asUsage(name, err)
	}
	if f.Damage != nil {
		a.say("warning: %s", report.Clean(fmt.Sprintf("recording %s: %v; the %d readings before that are good", name, f.Damage, f.Len())))
	}
	return f, func() {
		f.Close()
		file.Close()
	}, nil
}

// asUsage names the recording in an error. One of its format is a usage error.
func asUsage(name string, err error) error {
	var format *record.FormatError
	if errors.As(err, &format) {
		return usagef("recording %s: %w", name, err)
	}
	return fmt.Errorf("recording %s: %w", name, err)
}

// recorded is the snapshot of the requested window of a recording. All samples of
// that window go to the file, if there is one; the snapshot has only the latest of
// each kind.
func (a *app) recorded(o *observing, samples *pcapFile) (*model.Snapshot, error) {
	f, closeFile, err := a.openRecording(o.replay)
	if err != nil {
		return nil, err
	}
	defer closeFile()
	var last time.Duration
	if o.given.Changed("for") {
		last = time.Duration(o.window)
	}
	s, err := f.Window(last)
	if err != nil {
		return nil, asUsage(o.replay, err)
	}
	if err := a.warnClosed(f, o, s); err != nil {
		return nil, asUsage(o.replay, err)
	}
	if samples != nil {
		if err := f.Samples(last, samples.write); err != nil {
			return nil, asUsage(o.replay, err)
		}
	}
	return s, nil
}

// warnClosed warns of findings that were open in the window but had closed by its
// end, since the recording is judged as of then.
func (a *app) warnClosed(f *record.File, o *observing, s *model.Snapshot) error {
	last, err := f.Reading(f.Len() - 1)
	if err != nil {
		return err
	}
	type one struct {
		code  model.Code
		title string
	}
	seen := map[one]bool{}
	for _, t := range last.Findings {
		if !t.Closed {
			seen[one{t.Code, t.Title}] = true
		}
	}
	// The latest to close come first; earlier ones of the same title are skipped.
	for _, t := range last.Findings {
		if seen[one{t.Code, t.Title}] {
			continue
		}
		seen[one{t.Code, t.Title}] = true
		if o.judges(t.Code) && t.Severity.Rank() >= model.Warning.Rank() && t.Last.After(s.Window.Start) {
			a.say("warning: open until %s, closed at the end of the recording: %s: %s", t.Last.UTC().Format(time.RFC3339), t.Code, report.Clean(t.Title))
		}
	}
	return nil
}
