package main

import (
	"bytes"
	"errors"
	"fmt"
	"io"
	"os"
	"slices"

	"github.com/spf13/cobra"
	"golang.org/x/sys/unix"

	"github.com/lasthop/lasthop/cmd/flags"
	"github.com/lasthop/lasthop/cmd/joint"
	"github.com/lasthop/lasthop/probe/input"
	"github.com/lasthop/lasthop/probe/model"
	"github.com/lasthop/lasthop/probe/record"
	"github.com/lasthop/lasthop/probe/report"
)

// onNode are the flags about how a node is observed. They do not apply to a recording.
var onNode = []string{"netns", "host-root", "engine", "attach", "uplink", "pod-cidr", "nodes", "pods", "routes", "azure"}

func (o *observing) validateReplay() error {
	if len(o.Replay) == 0 {
		return nil
	}
	if len(o.Replay) > 1 && o.Pcap != "" {
		return usagef("--pcap needs a single recording")
	}
	for i, name := range o.Replay {
		if slices.Contains(o.Replay[:i], name) {
			return usagef("--replay %s is given twice", name)
		}
	}
	for _, name := range onNode {
		if f := o.Given.Lookup(name); f != nil && f.Changed {
			return usagef("--%s is for a node, not for a recording (--replay)", name)
		}
	}
	return nil
}

func (a *app) replayCommand() *cobra.Command {
	o := &observing{}
	cmd := &cobra.Command{
		Use: "replay {FILE… | --last DURATION | --at TIME} [POD…]",
		Args: func(_ *cobra.Command, args []string) error {
			if len(args) == 0 && !o.Past() {
				return usagef("want a FILE, or --last or --at")
			}
			return nil
		},
		RunE: func(cmd *cobra.Command, args []string) error {
			files := 0
			for files < len(args) && !o.Past() && (files == 0 || isFile(args[files])) {
				files++
			}
			o.Replay = args[:files]
			if f := cmd.Flags(); a.onScreen() && files == len(args) && files <= screenMost && !wantsReport(f) && (o.Past() || !f.Changed("for")) {
				if err := a.openPast(o); err != nil {
					return err
				}
				return a.player(cmd.Context(), o)
			}
			return a.check(cmd.Context(), o, args[files:])
		},
	}
	o.Pick(cmd.Flags(), "for", "namespace", "all-namespaces", "selector", "only", "skip", "fail-on", "strict", "output",
		"redact", "color", "report", "github", "idle-exit", "last", "at", "dir", "pcap")
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
	if a.past != nil {
		f, err = record.Open(a.past.run, a.past.run.Size)
		return f, func() {}, err
	}
	f, closeFile, err = openRecorded(name)
	if err == nil && f.Damage != nil {
		a.say("warning: %s", report.Clean(fmt.Sprintf("recording %s: %v; the %d readings before that are valid", name, f.Damage, f.Len())))
	}
	return f, closeFile, asUsage(name, err)
}

// openRecorded opens a recording. closeFile is to be called in any case.
func openRecorded(name string) (f *record.File, closeFile func(), err error) {
	file, err := openInput(name)
	var format *record.FormatError
	if errors.As(err, &format) {
		return nil, func() {}, err
	}
	if err != nil {
		return nil, func() {}, usagef("open recording: %w", err)
	}
	if info, err := file.Stat(); err != nil || !info.Mode().IsRegular() {
		return nil, func() { file.Close() }, errors.Join(usagef("recording %s: want a file", name), err)
	}
	return joint.OpenFile(file)
}

// openInput opens a file. What comes by a pipe, or by the standard input where the name
// is -, is kept in memory, since a recording is read from its end.
func openInput(name string) (*os.File, error) {
	file := os.Stdin // a socket cannot be opened by its names
	if !slices.Contains(stdinNames, name) {
		var err error
		if file, err = input.Open(name, input.Pipe); err != nil {
			return nil, err
		}
	}
	if info, err := file.Stat(); err != nil || info.Mode().IsRegular() || flags.Terminal(file) {
		return file, err
	}
	if file != os.Stdin {
		defer file.Close()
	}
	return keep(file, name)
}

// maxPiped is the most of a pipe that is kept, in bytes.
const maxPiped = 256 << 20

// keep reads a recording to its end, and keeps it in memory. What is none is not read any further.
func keep(file *os.File, name string) (*os.File, error) {
	front := make([]byte, record.FrontSize)
	n, err := io.ReadFull(file, front)
	if err == nil || errors.Is(err, io.EOF) || errors.Is(err, io.ErrUnexpectedEOF) {
		err = record.CheckFront(front[:n])
	}
	if err != nil {
		return nil, err
	}
	number, err := unix.MemfdCreate("recording", unix.MFD_CLOEXEC)
	if err != nil {
		return nil, fmt.Errorf("buffer a pipe: %w", err)
	}
	kept := os.NewFile(uintptr(number), name)
	size, err := io.Copy(kept, io.MultiReader(bytes.NewReader(front), io.LimitReader(file, maxPiped)))
	if err == nil && size > maxPiped {
		err = fmt.Errorf("more than %d MiB from a pipe: write it to a file first", maxPiped>>20)
	}
	if err != nil {
		return nil, errors.Join(err, kept.Close())
	}
	return kept, nil
}

// asUsage names the recording in an error, unless that is a usage error. One of its format becomes a usage error.
func asUsage(name string, err error) error {
	switch {
	case err == nil || wraps[*usageError](err):
		return err
	case wraps[*record.FormatError](err):
		return usagef("recording %s: %w", name, err)
	}
	return fmt.Errorf("recording %s: %w", name, err)
}

// recorded is the snapshot of the requested window of a recording. All samples of
// that window go to the file, if there is one; the snapshot has only the latest of
// each kind. past gets what a continuous observation of it would have told, unless it is nil.
func (a *app) recorded(o *observing, samples *pcapFile, past *[]model.Tracked) (s model.Snapshot, err error) {
	name := o.Replay[0]
	f, closeFile, err := a.openRecording(name)
	defer closeFile()
	if err != nil {
		return s, err
	}
	joint.BoundGarbage(1)
	d := o.Asked()
	if a.past != nil {
		d = f.At(f.Len() - 1).Sub(a.past.Start)
	}
	switch {
	case past == nil:
		s, err = f.Window(d)
	case a.past != nil && !o.Redact:
		if s, err = f.Window(d); err == nil {
			*past, err = a.past.tracked()
		}
	default:
		s, *past, err = joint.Recorded(f, d, o.redactor())
	}
	if err == nil && samples != nil {
		err = f.Samples(d, samples.write)
	}
	return s, asUsage(name, err)
}
