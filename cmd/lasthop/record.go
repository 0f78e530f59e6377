package main

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"io"
	"net/netip"
	"time"

	"github.com/spf13/cobra"
	"golang.org/x/sys/unix"

	"github.com/lasthop/lasthop/probe/model"
	"github.com/lasthop/lasthop/probe/record"
	"github.com/lasthop/lasthop/probe/redact"
	"github.com/lasthop/lasthop/probe/session"
	"github.com/lasthop/lasthop/probe/timeline"
)

func (a *app) recordCommand() *cobra.Command {
	o := &observing{}
	var pairs []string
	cmd := &cobra.Command{
		Use:  "record FILE",
		Args: oneArgument("FILE"),
		RunE: func(cmd *cobra.Command, args []string) error { return a.record(cmd.Context(), o, args[0], pairs) },
	}
	o.pick(cmd.Flags(), append(onNode, "for", "last", "at", "dir", "redact", "debug", "pcap")...)
	f := cmd.Flags().Lookup("for")
	f.Usage, f.DefValue = "how long to record", "until interrupted"
	cmd.Flags().StringSliceVar(&pairs, "pairs", nil,
		"also count the packets of this `POD` by pair of addresses at every hop; repeatable")
	return cmd
}

func (a *app) record(ctx context.Context, o *observing, name string, pairs []string) (err error) {
	if err := a.openPast(o); err != nil {
		return err
	}
	if a.past != nil && o.redact {
		return usagef("--redact: what the agent recorded has its findings in words; lasthop replay --redact replaces names in the report")
	}
	file, err := a.produce("recording", name)
	if err != nil {
		return err
	}
	if a.past != nil {
		_, err := io.Copy(file, io.NewSectionReader(a.past.run, 0, a.past.run.Size))
		return errors.Join(ignoreClosedPipe(err), file.flush(), file.Close())
	}
	samples, err := a.createPcap(o)
	if err != nil {
		return err
	}
	stream, node, closeStream, err := a.stream(ctx, o, timeline.Short, 0, pairs...)
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, samples.close(), closeStream()) }()
	hide := o.redactor()
	w, err := record.NewWriter(file, record.Head{Writer: version(), Node: hide.Node(node), Window: timeline.Short})
	if err != nil {
		return ignoreClosedPipe(err)
	}
	r := &recorder{app: a, file: file, writer: w, samples: samples, hide: hide}
	if o.given.Changed("for") {
		r.until = time.Now().Add(time.Duration(o.window))
	}
	switch err := r.run(stream); {
	case errors.Is(err, unix.EPIPE):
		// The reader of the recording has seen enough.
		return file.Close()
	case err != nil && r.readings == 0:
		return err
	case err != nil:
		return errors.Join(fmt.Errorf("%w\n%s contains the %d readings before that", err, name, r.readings), file.Close())
	}
	if err := errors.Join(w.Close(), file.flush(), file.Close()); err != nil {
		return fmt.Errorf("close recording %s: %w", name, err)
	}
	if !file.isStdout() {
		a.say("recorded %d readings, %d KiB: lasthop replay %s", r.readings, (w.Size()+1023)/1024, name)
	}
	return ctx.Err()
}

type recorder struct {
	*app
	file     *product
	writer   *record.Writer
	samples  *pcapFile
	hide     *redact.Redactor
	until    time.Time
	readings int
}

// run writes readings until the time is up or the stream ends.
func (r *recorder) run(s *session.Stream) error {
	p := progress{r.app}
	defer p.clear()
	var began time.Time
	for reading := range s.Readings() {
		began = cmp.Or(began, reading.At)
		samples := reading.Point.Snapshot.Traffic.Samples
		if err := errors.Join(r.writer.Write(r.hide.Reading(reading)), r.samples.write(samples)); err != nil {
			return err
		}
		if abandoned(r.file) {
			return unix.EPIPE
		}
		r.readings++
		p.show("recording: %v, %d KiB, %d findings open", reading.At.Sub(began).Round(time.Second), r.writer.Size()/1024, len(openOf(reading)))
		if r.samples.abandoned() || !r.until.IsZero() && !reading.At.Before(r.until) && reading.Point.Whole {
			break
		}
	}
	return nil
}

// stream begins to observe the node; keep is session.Options.Keep. closeStream waits until everything is detached.
// pairs names the pods whose packets are counted by pair of addresses.
func (a *app) stream(ctx context.Context, o *observing, window, keep time.Duration, pairs ...string) (s *session.Stream, node string, closeStream func() error, err error) {
	ns, name, err := o.openNode(ctx)
	if err != nil {
		return nil, "", nil, err
	}
	options := o.session(ns, name)
	options.For, options.Keep = window, keep
	options.NodesHint = "" // who replays a recording can give no files
	if len(pairs) > 0 {
		options.CountPairs = func(s *model.Snapshot) ([]netip.Addr, error) { return choosePods(s, pairs, selection{}) }
	}
	if s, err = a.streamOf(ctx, options); err != nil {
		ns.Close()
		return nil, "", nil, err
	}
	return s, name, func() error {
		defer ns.Close()
		return s.Close()
	}, nil
}

// streamOf begins a continuous observation.
func (a *app) streamOf(ctx context.Context, o session.Options) (*session.Stream, error) {
	least, share := uint64(24<<20), uint64(2)
	if o.Rarely {
		least, share = 8<<20, 3 // it is always there
	}
	allowGarbage(0, share)
	o.Whole = func() { allowGarbage(least, share) }
	o.Unwatched = a.unwatched
	s, err := session.Open(ctx, o)
	return s, cannotObserve(err)
}
