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
	o.Pick(cmd.Flags(), append(onNode, "for", "last", "at", "dir", "redact", "debug", "pcap")...)
	f := cmd.Flags().Lookup("for")
	f.Usage, f.DefValue = "how long to record", "until interrupted"
	cmd.Flags().StringSliceVar(&pairs, "pairs", nil,
		"also count the packets of this `POD` by pair of addresses at every hop; repeatable")
	return cmd
}

func (a *app) record(ctx context.Context, o *observing, name string, pairs []string) error {
	if err := a.openPast(o); err != nil {
		return err
	}
	if a.past != nil && o.Redact {
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
	r := &recorder{app: a, name: name, file: file, samples: samples, hide: o.redactor()}
	how := func(options *session.Options) {
		options.For = timeline.Short
		if len(pairs) > 0 {
			options.CountPairs = func(s *model.Snapshot) ([]netip.Addr, error) { return choosePods(s, pairs, selection{}) }
		}
	}
	return a.streamNode(ctx, o, how, func(s *session.Stream, node string) error {
		if o.Given.Changed("for") {
			r.until = time.Now().Add(time.Duration(o.Window))
		}
		return errors.Join(r.write(ctx, s, node), samples.close())
	})
}

type recorder struct {
	*app
	name    string
	file    *product
	writer  *record.Writer
	samples *pcapFile
	hide    *redact.Redactor
	until   time.Time
}

func (r *recorder) write(ctx context.Context, s *session.Stream, node string) (err error) {
	r.writer, err = record.NewWriter(r.file, record.Head{Writer: version(), Node: r.hide.Node(node), Window: timeline.Short})
	if err != nil {
		return ignoreClosedPipe(err)
	}
	switch err := r.run(s); {
	case errors.Is(err, unix.EPIPE):
		// The reader of the recording has seen enough.
		return r.file.Close()
	case err != nil && r.writer.Readings == 0:
		return err
	case err != nil:
		return errors.Join(fmt.Errorf("%w\n%s contains the %d readings before that", err, r.name, r.writer.Readings), r.file.Close())
	}
	if err := errors.Join(r.writer.Close(), r.file.flush(), r.file.Close()); err != nil {
		return fmt.Errorf("close recording %s: %w", r.name, err)
	}
	if !r.file.isStdout() {
		r.say("recorded %d readings, %d KiB: lasthop replay %s", r.writer.Readings, (r.writer.Size()+1023)/1024, r.name)
	}
	return ctx.Err()
}

// run writes readings until the time is up or the stream ends.
func (r *recorder) run(s *session.Stream) error {
	p := progress{r.app}
	defer p.clear()
	var began time.Time
	for reading := range s.Readings() {
		began = cmp.Or(began, reading.At)
		samples, written := reading.Point.Snapshot.Traffic.Samples, r.writer.Readings
		err := r.writer.Write(r.hide.Reading(reading))
		// What is not recorded has no samples in a replay either.
		if r.writer.Readings > written {
			err = errors.Join(err, r.samples.write(samples))
		}
		if err != nil {
			return err
		}
		if abandoned(r.file) {
			return unix.EPIPE
		}
		p.show("recording: %v, %d KiB, %d findings open", reading.At.Sub(began).Round(time.Second), r.writer.Size()/1024, len(openOf(reading)))
		if r.samples.abandoned() || !r.until.IsZero() && !reading.At.Before(r.until) && reading.Point.Whole {
			break
		}
	}
	return nil
}

// streamNode observes the node continuously, with options that how changes, until use returns and everything is detached.
func (a *app) streamNode(ctx context.Context, o *observing, how func(*session.Options),
	use func(s *session.Stream, node string) error) error {
	ns, name, err := o.openNode(ctx)
	if err != nil {
		return err
	}
	defer ns.Close()
	options := o.session(ns, name)
	options.NodesHint = "" // who replays a recording can give no files
	how(&options)
	return a.stream(ctx, options, func(s *session.Stream) error { return use(s, name) })
}

// stream observes continuously until use returns.
func (a *app) stream(ctx context.Context, o session.Options, use func(*session.Stream) error) error {
	least, share := uint64(24<<20), uint64(2)
	if o.Rarely {
		least, share = 8<<20, 3 // it is always there
	}
	allowGarbage(0, share)
	o.Whole = func() { allowGarbage(least, share) }
	o.Unwatched = a.unwatched
	s, err := session.Open(ctx, o)
	if err != nil {
		return cannotObserve(err)
	}
	return errors.Join(use(s), s.Close())
}
