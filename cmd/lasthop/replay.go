package main

import (
	"errors"
	"fmt"
	"io"
	"os"
	"slices"
	"time"

	"github.com/spf13/cobra"
	"golang.org/x/sys/unix"

	"github.com/lasthop/lasthop/cmd/flags"
	"github.com/lasthop/lasthop/probe/model"
	"github.com/lasthop/lasthop/probe/record"
	"github.com/lasthop/lasthop/probe/report"
)

// onNode are the flags about how a node is observed. They do not apply to a
// recording.
var onNode = []string{"netns", "host-root", "engine", "attach", "uplink", "pod-cidr", "nodes", "pods", "routes"}

func (o *observing) validateReplay() error {
	if len(o.replay) == 0 {
		return nil
	}
	if len(o.replay) > 1 && o.pcap != "" {
		return usagef("--pcap takes the samples of one recording, not of several")
	}
	for i, name := range o.replay {
		if slices.Contains(o.replay[:i], name) {
			return usagef("--replay %s is given twice", name)
		}
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
		Use:   "replay FILE… [POD…]",
		Short: "Show or judge a recording, on any machine, without rights",
		Long: "Show on the live screen what `lasthop record` wrote. If standard input or output\n" +
			"is not a terminal, or with PODs or flags about a report, judge it again: all of\n" +
			"it, or the last --for. A FILE of - is standard input.\n\n" +
			"Several FILEs, of several nodes at one time, are judged together, as by\n" +
			"check --replay FILE --replay FILE; the screen takes up to 50. An argument is one\n" +
			"more FILE if a file of that name exists.\n\n" +
			"Exit status: that of check.",
		Args: func(_ *cobra.Command, args []string) error {
			if len(args) == 0 {
				return usagef("want a FILE")
			}
			return nil
		},
		RunE: func(cmd *cobra.Command, args []string) error {
			files := 1
			for files < len(args) && isFile(args[files]) {
				files++
			}
			o.replay = args[:files]
			if f := cmd.Flags(); a.onScreen() && files == len(args) && files <= screenMost && !wantsReport(f) && !f.Changed("for") {
				return a.player(cmd.Context(), o)
			}
			return a.check(cmd.Context(), o, args[files:])
		},
	}
	o.pick(cmd.Flags(), "for", "namespace", "all-namespaces", "selector", "only", "skip", "fail-on", "strict", "output",
		"redact", "color", "report", "github", "idle-exit", "pcap")
	last := cmd.Flags().Lookup("for")
	last.Usage, last.DefValue = "judge only the last `DURATION` of the recording", "all of it"
	return cmd
}

// isFile reports whether an argument is a file's name, and not a pod's.
func isFile(name string) bool {
	info, err := os.Stat(name)
	return err == nil && !info.IsDir()
}

// openRecording opens a recording, and warns if it is damaged.
func (a *app) openRecording(name string) (f *record.File, closeFile func(), err error) {
	f, closeFile, err = openRecorded(name)
	if err == nil && f.Damage != nil {
		a.say("warning: %s", report.Clean(fmt.Sprintf("recording %s: %v; the %d readings before that are good", name, f.Damage, f.Len())))
	}
	return f, closeFile, asUsage(name, err)
}

// openRecorded opens a recording. closeFile is to be called in any case.
func openRecorded(name string) (f *record.File, closeFile func(), err error) {
	file, err := openInput(name)
	if err != nil {
		return nil, func() {}, usagef("open recording: %w", err)
	}
	info, err := file.Stat()
	switch {
	case err != nil:
		err = usagef("open recording: %w", err)
	case !info.Mode().IsRegular():
		err = usagef("recording %s: want a file", name)
	default:
		f, err = record.Open(file, info.Size())
	}
	return f, func() {
		if f != nil {
			f.Close()
		}
		file.Close()
	}, err
}

// openInput opens a file. What comes by a pipe, or by the standard input where the name
// is -, is kept in memory, since a recording is read from its end.
func openInput(name string) (*os.File, error) {
	if slices.Contains(stdinNames, name) {
		// A socket cannot be opened by those names.
		info, err := os.Stdin.Stat()
		if err != nil || info.Mode().IsRegular() || flags.Terminal(os.Stdin) {
			return os.Stdin, err
		}
		return keep(os.Stdin, name)
	}
	// Without O_NONBLOCK, opening a named pipe would wait for a writer.
	file, err := os.OpenFile(name, os.O_RDONLY|unix.O_NONBLOCK, 0)
	if err != nil || !isPipe(file.Stat()) {
		return file, err
	}
	defer file.Close()
	return keep(file, name)
}

// keep reads a file to its end, and keeps it in memory.
func keep(file *os.File, name string) (*os.File, error) {
	number, err := unix.MemfdCreate("recording", unix.MFD_CLOEXEC)
	if err != nil {
		return nil, fmt.Errorf("keep what a pipe brings: %w", err)
	}
	kept := os.NewFile(uintptr(number), name)
	if _, err := io.Copy(kept, file); err != nil {
		return nil, errors.Join(err, kept.Close())
	}
	return kept, nil
}

// asUsage names the recording in an error, unless that is a usage error. One of its format
// becomes a usage error.
func asUsage(name string, err error) error {
	var usage *usageError
	var format *record.FormatError
	switch {
	case err == nil || errors.As(err, &usage):
		return err
	case errors.As(err, &format):
		return usagef("recording %s: %w", name, err)
	}
	return fmt.Errorf("recording %s: %w", name, err)
}

// recorded is the snapshot of the requested window of a recording. All samples of
// that window go to the file, if there is one; the snapshot has only the latest of
// each kind. past gets what a continuous observation of it would have told, unless it is nil.
func (a *app) recorded(o *observing, samples *pcapFile, past *[]model.Tracked) (s *model.Snapshot, err error) {
	name := o.replay[0]
	f, closeFile, err := a.openRecording(name)
	defer closeFile()
	if err != nil {
		return nil, err
	}
	if past == nil {
		s, err = f.Window(o.last())
	} else {
		s, *past, err = f.Told(o.last(), o.diagnose())
	}
	if err == nil && samples != nil {
		err = f.Samples(o.last(), samples.write)
	}
	return s, asUsage(name, err)
}

// last is how much of a recording's end is judged, 0 for all of it.
func (o *observing) last() time.Duration {
	if !o.given.Changed("for") {
		return 0
	}
	return time.Duration(o.window)
}
