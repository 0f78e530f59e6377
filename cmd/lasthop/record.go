package main

import (
	"context"
	"errors"
	"fmt"
	"os"
	"runtime/debug"
	"slices"
	"time"

	"github.com/spf13/cobra"
	"github.com/spf13/pflag"

	"github.com/lasthop/lasthop/probe/model"
	"github.com/lasthop/lasthop/probe/record"
	"github.com/lasthop/lasthop/probe/session"
	"github.com/lasthop/lasthop/probe/timeline"
)

// observes gives a command the flags about how a node is observed, and some more.
func (o *observing) observes(f *pflag.FlagSet, more ...string) {
	o.pick(f, slices.Concat(onNode, more, []string{"debug"})...)
	registerPcap(f, &o.pcap)
}

func (a *app) recordCommand() *cobra.Command {
	o := &observing{}
	cmd := &cobra.Command{
		Use:   "record FILE",
		Short: "Record an observation in a file, for `lasthop replay`",
		Long: "Observe the node for --for, or until interrupted, and write what check would see\n" +
			"to the new FILE: state, counts, samples of dropped packets, and findings.\n\n" +
			"Exit status: 0 recorded; 2 usage; 3 cannot observe; 130 interrupted, after\n" +
			"cleaning up.",
		Args: cobra.ExactArgs(1),
		RunE: func(cmd *cobra.Command, args []string) error {
			return a.record(cmd.Context(), o, args[0])
		},
	}
	o.observes(cmd.Flags(), "for")
	f := cmd.Flags().Lookup("for")
	f.Usage, f.DefValue = "how long to record", "until interrupted"
	return cmd
}

func (a *app) record(ctx context.Context, o *observing, name string) (err error) {
	if err := o.validate(); err != nil {
		return err
	}
	file, err := create("recording", name)
	if err != nil {
		return err
	}
	samples, err := createPcap(o.pcap)
	if err != nil {
		return errors.Join(err, discard(file))
	}
	stream, node, closeStream, err := a.stream(ctx, o, timeline.Short)
	if err != nil {
		return errors.Join(err, samples.discard(), discard(file))
	}
	defer func() { err = errors.Join(err, closeStream()) }()
	defer func() { err = errors.Join(err, samples.close(), file.Close()) }()
	w, err := record.NewWriter(file, record.Head{Writer: version(), Node: node, Window: timeline.Short})
	if err != nil {
		return errors.Join(err, os.Remove(name))
	}
	r := &recorder{app: a, file: file, writer: w, samples: samples}
	if o.given.Changed("for") {
		r.until = time.Now().Add(time.Duration(o.window))
	}
	if err := r.run(stream); err != nil && r.readings == 0 {
		return errors.Join(err, os.Remove(name))
	} else if err != nil {
		return fmt.Errorf("%w\n%s has the %d readings before that", err, name, r.readings)
	}
	if err := errors.Join(w.Close(), file.Sync()); err != nil {
		return fmt.Errorf("close recording %s: %w", name, err)
	}
	a.say("recorded %d readings, %d KiB: lasthop replay %s", r.readings, (w.Size()+1023)/1024, name)
	return ctx.Err()
}

// recorder is a recording in progress.
type recorder struct {
	*app
	file     *os.File
	writer   *record.Writer
	samples  *pcapFile
	until    time.Time
	readings int
}

// run writes readings until the time is up or the stream ends.
func (r *recorder) run(s *session.Stream) error {
	const clear = "\r\x1b[K"
	shown := terminal(r.stderr)
	var began time.Time
	for reading := range s.Readings() {
		if began.IsZero() {
			began = reading.At
		}
		if err := errors.Join(r.writer.Write(reading), r.samples.write(reading.Point.Snapshot.Traffic.Samples)); err != nil {
			return err
		}
		r.readings++
		if shown {
			fmt.Fprintf(r.stderr, "%srecording: %v, %d KiB, %d findings open", clear, reading.At.Sub(began).Round(time.Second), r.writer.Size()/1024, open(reading))
		}
		if !r.until.IsZero() && !reading.At.Before(r.until) && reading.Point.Whole {
			break
		}
	}
	if shown {
		fmt.Fprint(r.stderr, clear)
	}
	return nil
}

func open(r model.Reading) int {
	n := 0
	for _, f := range r.Findings {
		if !f.Closed {
			n++
		}
	}
	return n
}

// stream begins to observe the node. closeStream waits until everything is
// detached.
func (a *app) stream(ctx context.Context, o *observing, window time.Duration) (s *session.Stream, node string, closeStream func() error, err error) {
	ns, name, err := openNode(o.netns)
	if err != nil {
		return nil, "", nil, err
	}
	options := o.session(ns, name)
	options.For = window
	if s, err = streamOf(ctx, options); err != nil {
		ns.Close()
		return nil, "", nil, err
	}
	return s, name, func() error {
		defer ns.Close()
		return s.Close()
	}, nil
}

// heapLimit keeps the process, including its BPF maps and programs, below 80 MiB
// on a node with 250 pods: near the limit, garbage is collected more often.
const heapLimit = 44 << 20

// streamOf begins a continuous observation.
func streamOf(ctx context.Context, o session.Options) (*session.Stream, error) {
	// Each reading leaves much garbage, and a long run should use little memory.
	debug.SetGCPercent(50)
	if os.Getenv("GOMEMLIMIT") == "" {
		debug.SetMemoryLimit(heapLimit)
	}
	s, err := session.Open(ctx, o)
	return s, cannotObserve(err)
}
