// Package session observes a node: it reads the node's state, counts packets
// while links and pods come and go, and joins both into immutable snapshots.
package session

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"net/netip"
	"slices"
	"time"

	"github.com/lasthop/lasthop/probe/collect"
	"github.com/lasthop/lasthop/probe/model"
	"github.com/lasthop/lasthop/probe/netns"
	"github.com/lasthop/lasthop/probe/timeline"
	"github.com/lasthop/lasthop/probe/traffic"
)

// Engines are the ways to watch packets.
const (
	EngineAuto  = "auto"
	EngineTC    = "tc"
	EngineState = "state"
)

// Options say which node to observe, how and for how long.
type Options struct {
	// NS is the node's network namespace. The caller closes it.
	NS       *netns.NS
	NodeName string
	HostRoot string
	// Engine is one of the Engine constants; empty is EngineAuto.
	Engine    string
	For       time.Duration
	Uplinks   []string
	PodCIDRs  []netip.Prefix
	NodesFile string
	// RoutesFiles hold output of `az network … -o json`.
	RoutesFiles []string
	// Active allows a few probes after the window.
	Active bool
	// CountPairs, if set, is called with the node's state before the window. It
	// returns the addresses whose packets are counted by address pair on every
	// link. If it fails, Observe returns its error.
	CountPairs func(*model.Snapshot) ([]netip.Addr, error)
	// Debug adds the verifier's log to errors.
	Debug bool
	// Progress, if set, is called when every link is attached and then about
	// once a second.
	Progress func(window model.Window, now time.Time)
}

// pollEvery is the interval between polls of the counters, and so the precision
// of first and last times.
const pollEvery = time.Second

// refreshEvery is how many polls pass before links and pods are read again
// although no link changed: the node gets no event for a new address in a pod.
const refreshEvery = 5

// Observe watches the node for o.For and returns the snapshot. If ctx ends first,
// it detaches everything and returns ctx's error. If the kernel or missing
// privileges prevent it, the error is a *model.UnsupportedError.
func Observe(ctx context.Context, o Options) (*model.Snapshot, error) {
	w, err := newWatch(o)
	if err != nil {
		return nil, err
	}
	defer w.collector.Close()
	return w.run(ctx)
}

// watch is one observation.
type watch struct {
	options   Options
	collector *collect.Collector
	// engine is nil if packets are not counted.
	engine *traffic.Engine
	roster roster
	// state is the latest state, first what was known when counting began.
	state *model.Snapshot
	first model.Point
	// pairAddrs are the addresses that Options.CountPairs returned.
	pairAddrs     []netip.Addr
	countingPairs bool
	// links are the latest.
	links []model.Link
	// flows is when each flow was first listed, zero for those that were there
	// at the start.
	flows  map[uint64]time.Time
	window model.Window
	ranges []netip.Prefix
	// gaps says what cannot all be counted, by kind.
	gaps  map[string]string
	edges model.Edges
	// refreshes is how often links and pods were read.
	refreshes int
}

func newWatch(o Options) (*watch, error) {
	c, err := collect.Open(collect.Options{
		NS: o.NS, HostRoot: o.HostRoot, Uplinks: o.Uplinks, PodCIDRs: o.PodCIDRs, NodesFile: o.NodesFile,
		RoutesFiles: o.RoutesFiles,
	})
	if err != nil {
		return nil, err
	}
	return &watch{options: o, collector: c, gaps: map[string]string{}}, nil
}

func (w *watch) run(ctx context.Context) (s *model.Snapshot, err error) {
	follow, cancel := context.WithCancel(ctx)
	defer cancel()
	changes, err := w.start(ctx, follow)
	defer func() { err = errors.Join(err, w.detach()) }()
	if err != nil {
		return nil, err
	}
	if err := w.begin(); err != nil {
		return nil, cmp.Or(ctx.Err(), err)
	}
	if w.engine != nil && len(w.pairAddrs) > 0 {
		w.countPairs(true)
	}
	now := time.Now()
	w.window.End = now.Add(w.options.For)
	w.progress(now)
	if err := w.loop(ctx, changes); err != nil {
		return nil, cmp.Or(ctx.Err(), err)
	}
	if s, err = w.finish(ctx); err != nil || !w.options.Active {
		return s, err
	}
	return s, w.probe(ctx, s)
}

// begin reads the counters twice in a row, once everything is attached. See
// model.Edges.
func (w *watch) begin() error {
	if w.engine == nil {
		return nil
	}
	for _, to := range []*model.Traffic{&w.edges.Start, &w.edges.StartAgain} {
		if err := w.poll(time.Now()); err != nil {
			return err
		}
		*to = counted(w.engine.Traffic())
	}
	return nil
}

// counted returns the parts of t that model.Edges holds.
func counted(t model.Traffic) model.Traffic {
	return model.Traffic{Hops: t.Hops, MACs: t.MACs, Peers: t.Peers, Drops: t.Drops}
}

// start reads the state, attaches to every link, and follows changes until
// follow ends. The caller must call detach, also after an error.
func (w *watch) start(ctx, follow context.Context) (changes <-chan struct{}, err error) {
	if changes, err = w.collector.Follow(follow); err != nil {
		return nil, err
	}
	if w.state, err = w.collector.State(ctx); err != nil {
		return nil, err
	}
	w.flows = flowsAt(w.state, time.Time{}, nil)
	if w.options.CountPairs != nil {
		if w.pairAddrs, err = w.options.CountPairs(w.state); err != nil {
			return nil, err
		}
	}
	if w.options.Engine != EngineState {
		if w.engine, err = traffic.Open(traffic.Config{NS: w.options.NS, Debug: w.options.Debug, Pairs: len(w.pairAddrs) > 0}); err != nil {
			return nil, err
		}
		// Attaching to many links takes seconds. Close makes it return early.
		defer context.AfterFunc(ctx, func() { _ = w.engine.Close() })()
	}
	// Counting starts with the first link, Options.For once all are attached.
	w.window.Start = time.Now()
	if err := w.apply(w.window.Start, w.state.Links, w.state.Pods); err != nil {
		return nil, cmp.Or(ctx.Err(), err)
	}
	w.first = model.Point{Snapshot: w.total(w.window.Start, model.Traffic{}), Whole: true, Ready: w.window.Start}
	return changes, nil
}

func (w *watch) detach() error {
	if w.engine == nil {
		return nil
	}
	return w.engine.Close()
}

// loop polls until the window ends and follows links and pods.
func (w *watch) loop(ctx context.Context, changes <-chan struct{}) error {
	ticker := time.NewTicker(pollEvery)
	defer ticker.Stop()
	end := time.NewTimer(time.Until(w.window.End))
	defer end.Stop()
	// Routes may change a thousand times a second: whatever changes until
	// lookAgain is over leads to one read.
	again := time.NewTimer(0)
	again.Stop()
	defer again.Stop()
	pending, looked := false, time.Time{}
	// A pod's link appears before the pod has its address, so links and pods
	// are read again at the polls after a change.
	stale := 0
	for tick := 1; ; {
		select {
		case <-ctx.Done():
			return ctx.Err()
		case <-end.C:
			return nil
		case _, open := <-changes:
			if !open {
				changes = nil
				continue
			}
			if !pending {
				pending = true
				again.Reset(max(0, lookAgain-time.Since(looked)))
			}
		case <-again.C:
			pending, stale = false, refreshEvery
			err := w.refresh(ctx, time.Now())
			looked = time.Now()
			if err != nil {
				return err
			}
		case now := <-ticker.C:
			if stale > 0 || tick%refreshEvery == 0 {
				stale = max(stale-1, 0)
				if err := w.refresh(ctx, now); err != nil {
					return err
				}
			}
			if err := w.poll(now); err != nil {
				return err
			}
			w.progress(now)
			tick++
		}
	}
}

func (w *watch) progress(now time.Time) {
	if w.options.Progress != nil {
		w.options.Progress(w.window, now)
	}
}

// refresh reads links and pods again. If that fails, the next refresh tries
// again, so only the end of ctx is an error.
func (w *watch) refresh(ctx context.Context, now time.Time) error {
	w.refreshes++
	links, pods, err := w.collector.Quick(ctx)
	if err != nil {
		return ctx.Err()
	}
	return w.apply(now, links, pods)
}

// poll reads the counters, and has ranges counted that these show.
func (w *watch) poll(now time.Time) error {
	if w.engine == nil {
		return nil
	}
	if err := w.count(now); err != nil {
		return err
	}
	w.setRanges()
	return nil
}

// count reads the counters.
func (w *watch) count(now time.Time) error {
	if w.engine == nil {
		return nil
	}
	if err := w.engine.Poll(now); err != nil {
		return fmt.Errorf("read counters: %w", err)
	}
	return nil
}

// finish reads counters and state for the last time, and the counters once more.
// See model.Edges.
func (w *watch) finish(ctx context.Context) (*model.Snapshot, error) {
	if w.countingPairs {
		w.countPairs(false)
	}
	now := time.Now()
	if err := w.poll(now); err != nil {
		return nil, err
	}
	packets := w.traffic()
	if w.engine != nil {
		if err := w.poll(now); err != nil {
			return nil, err
		}
		w.edges.EndAgain, w.edges.Read = counted(w.engine.Traffic()), true
	}
	last, err := w.whole(ctx, now, packets)
	if err != nil {
		return nil, err
	}
	s := timeline.Between(w.first, last)
	s.Edges = w.edges
	s.Traffic.PairAddrs = w.pairAddrs
	return s, nil
}

// point reads counters and state.
func (w *watch) point(ctx context.Context, now time.Time) (model.Point, error) {
	if err := w.poll(now); err != nil {
		return model.Point{}, err
	}
	return w.whole(ctx, now, w.traffic())
}

// whole reads the state after the counters t. At the start it was read before
// them. So a rule never counts less in the window than the drops it caused.
func (w *watch) whole(ctx context.Context, now time.Time, t model.Traffic) (model.Point, error) {
	state, err := w.collector.State(ctx)
	if err != nil {
		return model.Point{}, err
	}
	w.flows = flowsAt(state, now, w.flows)
	w.state = state
	w.roster.see(now, state.Pods)
	return model.Point{Snapshot: w.total(now, t), Whole: true}, nil
}

// total is the latest state with the counts since the start.
func (w *watch) total(now time.Time, t model.Traffic) *model.Snapshot {
	s := *w.state
	s.Window = model.Window{Start: w.window.Start, End: now}
	s.Pods, s.PastPods = w.roster.alive(), w.roster.gone()
	s.Traffic = t
	s.Node.Engine = EngineState
	if w.options.NodeName != "" {
		s.Node.Name = w.options.NodeName
	}
	if w.engine == nil {
		detail := "packets are not watched (--engine state)"
		s.Sources = append(slices.Clip(s.Sources),
			model.Source{Name: model.SourceTC, Status: model.Missing, Detail: detail},
			model.Source{Name: model.SourceDrops, Status: model.Missing, Detail: detail})
		return &s
	}
	s.Node.Engine, s.Node.Attach = EngineTC, w.engine.AttachMode()
	s.Sources = append(slices.Clip(s.Sources), w.sources()...)
	return &s
}

func (w *watch) traffic() model.Traffic {
	if w.engine == nil {
		return model.Traffic{}
	}
	return w.engine.Traffic()
}
