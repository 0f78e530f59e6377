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

// onNode are the flags that say how a node is observed. A recording has been.
var onNode = []string{"netns", "host-root", "engine", "uplink", "pod-cidr", "nodes", "routes"}

func (o *observing) registerReplay(f *pflag.FlagSet) {
	o.given = f
	f.StringVar(&o.replay, "replay", "", "judge the recording `FILE` instead of the node: the last --for of it, or all if that is not given")
}

func (o *observing) validateReplay() error {
	if o.replay == "" {
		return nil
	}
	for _, name := range onNode {
		if f := o.given.Lookup(name); f != nil && f.Changed {
			return usagef("--%s is about a node, and --replay about what was recorded of one", name)
		}
	}
	return nil
}

func (a *app) replayCommand() *cobra.Command {
	o := &observing{}
	cmd := &cobra.Command{
		Use:   "replay FILE [POD…]",
		Short: "Judge a recording, on any machine, without rights",
		Long: "Show on the live screen what `lasthop record` wrote. Where standard input or\n" +
			"output is no terminal, or with PODs or flags that are about a report, judge it:\n" +
			"all of it, or the last --for, anew, by this lasthop.\n\n" +
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
	all := pflag.NewFlagSet("", pflag.ContinueOnError)
	o.register(all)
	o.given = cmd.Flags()
	for _, name := range []string{"for", "namespace", "all-namespaces", "only", "skip", "fail-on", "strict", "output", "color"} {
		cmd.Flags().AddFlag(all.Lookup(name))
	}
	cmd.Flags().Lookup("for").DefValue = "all of it"
	o.registerScreen(cmd.Flags())
	registerPcap(cmd.Flags(), &o.pcap)
	return cmd
}

// openRecording opens a recording, and warns if it is damaged. Whatever is wrong
// with it is the user's to mend.
func (a *app) openRecording(name string) (f *record.File, closeFile func(), err error) {
	// Without O_NONBLOCK, opening a named pipe would wait for its writer.
	file, err := os.OpenFile(name, os.O_RDONLY|unix.O_NONBLOCK, 0)
	if err != nil {
		return nil, nil, &usageError{fmt.Errorf("open recording: %w", err)}
	}
	defer func() {
		if err != nil {
			file.Close()
		}
	}()
	info, err := file.Stat()
	if err != nil {
		return nil, nil, &usageError{fmt.Errorf("open recording: %w", err)}
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

// asUsage names the file of an error that is the file's.
func asUsage(name string, err error) error {
	var format *record.FormatError
	if errors.As(err, &format) {
		return usagef("recording %s: %w", name, err)
	}
	return fmt.Errorf("recording %s: %w", name, err)
}

// recorded is the window that was asked for of a recording. All samples of that
// window go to a file, if there is one: the snapshot has the latest of each kind.
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
	if err := a.tellClosed(f, o, s); err != nil {
		return nil, asUsage(o.replay, err)
	}
	if samples != nil {
		if err := f.Samples(last, samples.write); err != nil {
			return nil, asUsage(o.replay, err)
		}
	}
	return s, nil
}

// tellClosed warns of findings that were there while the window was recorded and
// had closed by its end, as which it is judged.
func (a *app) tellClosed(f *record.File, o *observing, s *model.Snapshot) error {
	last, err := f.Reading(f.Len() - 1)
	if err != nil {
		return err
	}
	type one struct {
		code  model.Code
		title string
	}
	told := map[one]bool{}
	for _, t := range last.Findings {
		if !t.Closed {
			told[one{t.Code, t.Title}] = true
		}
	}
	// The latest to close come first, and stand for those before.
	for _, t := range last.Findings {
		if told[one{t.Code, t.Title}] {
			continue
		}
		told[one{t.Code, t.Title}] = true
		if o.judges(t.Code) && t.Severity.Rank() >= model.Warning.Rank() && t.Last.After(s.Window.Start) {
			a.say("warning: until %s, and no more at the end of the recording: %s: %s", t.Last.UTC().Format(time.RFC3339), t.Code, report.Clean(t.Title))
		}
	}
	return nil
}
