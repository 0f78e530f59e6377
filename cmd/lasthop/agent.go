package main

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"sync"
	"time"

	"github.com/spf13/cobra"

	"github.com/lasthop/lasthop/cmd/flags"
	"github.com/lasthop/lasthop/probe/model"
	"github.com/lasthop/lasthop/probe/record"
	"github.com/lasthop/lasthop/probe/report"
	"github.com/lasthop/lasthop/probe/ring"
	"github.com/lasthop/lasthop/probe/session"
	"github.com/lasthop/lasthop/probe/timeline"
)

func (a *app) agentCommand() *cobra.Command {
	o, space := &observing{}, flags.Bytes(256<<20)
	var ringOptions ring.Options
	var listen string
	var events bool
	cmd := &cobra.Command{
		Use:  "agent",
		Args: cobra.NoArgs,
		RunE: func(cmd *cobra.Command, _ []string) error {
			ringOptions.Space = int64(space)
			return a.agent(cmd.Context(), o, ringOptions, listen, events)
		},
	}
	f := cmd.Flags()
	f.DurationVar(&ringOptions.Keep, "keep", 30*time.Minute, "how much recorded time to keep")
	f.Var(&space, "space", "how much disk space to use at most")
	f.StringVar(&ringOptions.Dir, "dir", flags.AgentDir, "the `DIR` for recordings")
	f.StringVar(&listen, "listen", ":9464", "the `ADDRESS` for metrics and health checks; empty for none")
	f.Lookup("listen").Annotations = map[string][]string{mayBeEmpty: {}}
	f.BoolVar(&events, "events", false,
		"create a Kubernetes Event for the node $NODE_NAME when a finding opens or closes; needs the rights in its pod")
	// All nodes' agents together would ask more than Azure answers.
	o.Pick(f, append(slices.DeleteFunc(slices.Clone(onNode), func(name string) bool { return name == "azure" }), "debug")...)
	return cmd
}

func (a *app) agent(ctx context.Context, o *observing, to ring.Options, listen string, tell bool) error {
	if err := o.validate(); err != nil {
		return err
	}
	if to.Keep <= 0 {
		return usagef("--keep %v: want a duration above zero", to.Keep)
	}
	to.Head = record.Head{Writer: version(), Window: timeline.Short}
	held, err := ring.Running(to.Dir)
	if held {
		return &statusError{exitCannot, fmt.Sprintf("another agent writes to %s (--dir)", to.Dir)}
	}
	g := &agent{app: a, o: o, to: to, health: health{ring: err}, writes: make(chan model.Reading, 2)}
	if tell {
		if g.events, err = newEvents(); err != nil {
			return err
		}
	}
	stop, err := g.serve(listen)
	if err != nil {
		return err
	}
	var recording sync.WaitGroup
	recording.Go(g.record)
	if g.events != nil {
		defer g.events.begin(ctx, a.say)()
	}
	for said := ""; ctx.Err() == nil && err == nil; {
		seen := g.observe(ctx)
		g.update(func(h *health) { h.observing, h.findings = seen, nil })
		if misused(seen) {
			err = seen
		} else if seen != nil && ctx.Err() == nil {
			if why := report.Clean(seen.Error()); why != said {
				a.say("%s; trying again each %v", why, again)
				said = why
			}
			select {
			case <-ctx.Done():
			case <-time.After(again):
			}
		}
	}
	close(g.writes)
	recording.Wait()
	return errors.Join(err, stop(), ctx.Err())
}

const (
	// again is how long after a failure the agent tries to observe again.
	again = 30 * time.Second
	// restEvery is how long the agent keeps the memory that it does not need, at least.
	restEvery = 10 * time.Second
	// slow is how much older than the latest reading the newest in the ring may be, and stale how old the latest may be,
	// before the agent is not ready.
	slow  = 10 * time.Second
	stale = 90 * time.Second
)

type agent struct {
	*app
	o  *observing
	to ring.Options
	// writes are readings for the ring, which nothing waits for.
	writes chan model.Reading
	// events tells the cluster; it may be nil.
	events *events

	mu sync.Mutex
	health
}

// health is what the agent knows of itself and of the node.
type health struct {
	// observing is why nothing is observed, nil while it is.
	observing error
	// at is when the latest reading came, unwatched why packets are not counted, findings those that are open.
	at        time.Time
	unwatched string
	findings  []model.Tracked
	sources   []model.Source
	// ring is why the latest reading was not recorded, recorded when the newest came that can be read back, and missed
	// how many were not recorded.
	ring     error
	recorded time.Time
	missed   uint64
	// size and span are the ring's bytes and recorded time.
	size int64
	span time.Duration
	sums
}

// update changes what is known.
func (g *agent) update(how func(*health)) {
	g.mu.Lock()
	defer g.mu.Unlock()
	how(&g.health)
}

// observe observes the node until ctx ends or that fails.
func (g *agent) observe(ctx context.Context) error {
	how := func(options *session.Options) {
		options.For, options.Keep, options.Rarely, options.Used = timeline.Short, timeline.Long, true, g.used
	}
	return g.streamNode(ctx, g.o, how, func(s *session.Stream, node string) error {
		g.say("observing %s", report.Clean(node))
		for r := range s.Readings() {
			g.take(r)
		}
		return nil
	})
}

// take learns from a reading, and has it written.
func (g *agent) take(r model.Reading) {
	open := openOf(r)
	g.update(func(h *health) {
		h.at, h.observing = time.Now(), nil
		h.count(r)
		h.sources, h.findings = r.Point.Snapshot.Sources, open
		h.unwatched = model.Find(h.sources, func(s model.Source) bool {
			return s.Name == model.SourceTC && s.Status == model.Missing
		}).Detail
	})
	if g.events != nil && r.Point.Whole {
		g.events.tell(open, r.At)
	}
	select {
	case g.writes <- r:
	default:
		g.update(func(h *health) { h.missed++ })
	}
}

func openOf(r model.Reading) []model.Tracked {
	return model.Filter(r.Findings, func(f model.Tracked) bool { return !f.Closed })
}

// record writes readings to the ring until there are no more.
func (g *agent) record() {
	to, rested := ring.New(g.to), time.Time{}
	for r := range g.writes {
		g.write(to, r)
		if r.Point.Whole && time.Since(rested) >= restEvery {
			rest()
			rested = time.Now()
		}
	}
	if err := to.Close(); err != nil {
		g.say("%s", report.Clean(err.Error()))
	}
}

func (g *agent) write(to *ring.Ring, r model.Reading) {
	begun := time.Now()
	err := to.Write(r)
	size, span := to.Size()
	var before error
	g.update(func(h *health) {
		if err == nil {
			h.recorded = begun
		} else {
			h.missed++
		}
		before, h.ring, h.size, h.span = h.ring, err, size, span
	})
	switch {
	case before == nil && err != nil:
		g.say("%s", report.Clean(err.Error()))
	case before != nil && err == nil:
		g.say("the ring is written again")
	}
}

// stuck reports whether the observation neither goes on nor fails.
func (h *health) stuck(now time.Time) bool {
	return h.observing == nil && !h.at.IsZero() && now.Sub(h.at) > 4*stale
}

// unready is why a verdict of the latest minutes cannot be had, empty if it can.
func (h *health) unready(now time.Time) string {
	switch {
	case h.observing != nil:
		return h.observing.Error()
	case h.at.IsZero():
		return "the node is not observed yet"
	case now.Sub(h.at) > stale:
		return fmt.Sprintf("no reading for %v", now.Sub(h.at).Round(time.Second))
	case h.unwatched != "":
		return h.unwatched
	}
	return h.unrecorded()
}

// unrecorded is why the latest readings cannot be read from the ring, empty if they can.
func (h *health) unrecorded() string {
	behind := h.at.Sub(h.recorded)
	switch {
	case h.ring != nil:
		return h.ring.Error()
	case !h.at.IsZero() && h.recorded.IsZero():
		return "no reading is recorded yet"
	case behind > slow:
		return fmt.Sprintf("the disk is slow: the newest reading in the ring is %v older than the latest", behind.Round(time.Second))
	}
	return ""
}
