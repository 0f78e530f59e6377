// Package session observes a node: it reads the node's state, counts packets
// while links and pods come and go, and joins both into immutable snapshots.
package session

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"maps"
	"math"
	"net/netip"
	"os/exec"
	"slices"
	"strings"
	"time"

	"github.com/lasthop/lasthop/probe/active"
	"github.com/lasthop/lasthop/probe/collect"
	"github.com/lasthop/lasthop/probe/diagnose"
	"github.com/lasthop/lasthop/probe/model"
	"github.com/lasthop/lasthop/probe/timeline"
	"github.com/lasthop/lasthop/probe/traffic"
)

// Engines are the ways to watch packets. EngineAuto is EngineTC where the kernel and
// the rights allow it, else EngineState.
const (
	EngineAuto  = "auto"
	EngineTC    = "tc"
	EngineState = "state"
)

// Options say which node to observe, how and for how long.
type Options struct {
	collect.Options
	NodeName string
	// InPod is that of model.Node.
	InPod bool
	// Engine is one of the Engine constants; empty is EngineAuto.
	Engine string
	// Attach, Janitor and KeepLeftovers are those of traffic.Config.
	Attach        string
	Janitor       func() *exec.Cmd
	KeepLeftovers bool

	// Diagnose judges the readings of a Stream.
	Diagnose timeline.Diagnose
	// For is the time of Observe, or the window of a Stream's readings.
	For time.Duration
	// Keep is how long a Stream keeps counts of pods that are gone. 0 is for as long
	// as there is room, and timeline.Long at least.
	Keep time.Duration
	// Rarely has a Stream take less of the CPU, and so read more seldom, while nothing is lost and nothing changes.
	Rarely bool
	// Active allows a few probes after the window.
	Active bool
	// CountPairs, if set, is called with the node's state before the window. It returns the addresses whose
	// packets are counted by address pair on every link. If it fails, so do Observe and Open, with its error.
	CountPairs func(*model.Snapshot) ([]netip.Addr, error)
	// First, if set, is called likewise: Observe attaches to the links of the pods with these addresses before the window.
	First func(*model.Snapshot) ([]netip.Addr, error)
	// Debug adds the verifier's log to errors.
	Debug bool
	// Unwatched, if set, is called with the reason where EngineAuto becomes EngineState.
	Unwatched func(error)
	// Used, if set, reads the CPU time that was used, by which a Stream keeps to its share; unset it is the process's.
	Used func() time.Duration
	// Whole, if set, is called by a Stream each time that it has read and judged the state.
	Whole func()
	// Seen, if set, is called with the snapshot of Observe while everything is detached,
	// which takes seconds for hundreds of links. Observe waits for both.
	Seen func(*model.Snapshot)
	// Progress, if set, is called when every link is attached and then about once a second.
	Progress func(window model.Window, now time.Time)
}

// refreshEvery is how many polls pass before links and pods are read again
// although no link changed: the node gets no event for a new address in a pod.
const refreshEvery = 5

// Observe watches the node for o.For and returns the snapshot. If ctx ends first,
// it detaches everything and returns ctx's error. If the kernel or missing
// privileges prevent what Options ask for, the error is a *model.UnsupportedError.
func Observe(ctx context.Context, o Options) (*model.Snapshot, error) {
	w, err := newWatch(o)
	if err != nil {
		return nil, err
	}
	defer w.collector.Close()
	return w.run(ctx)
}

type watch struct {
	options Options
	// began is when the observation did.
	began     time.Time
	collector *collect.Collector
	// last: no other state will be read.
	last bool
	// engine is nil if packets are not counted, unwatched says why.
	engine    *traffic.Engine
	unwatched string
	// authors is nil where changes are not followed.
	authors *authors
	// made has a value when programs made changes since it was received from.
	made   chan struct{}
	roster roster
	held   map[netip.Prefix]time.Time // since when the node has each of its addresses
	// state is the latest state, first what was known when counting began.
	state      *model.Snapshot
	first      model.Point
	pairAddrs  []netip.Addr
	firstAddrs []netip.Addr
	// most is how long links are attached to at once that may wait, 0 for as long as it takes.
	most          time.Duration
	countingPairs bool
	// links are the latest.
	links []model.Link
	// flows is when each flow was first listed, 0 for those that were there at the start: see flowsAt.
	flows map[uint64]int64
	// listing is the earliest time at which they are listed alone again.
	listing time.Time
	// ends are one of the state's flows for each set of addresses.
	ends   []model.Flow
	window model.Window
	// ranges are the other nodes' pod ranges as last looked for, ranged when.
	ranges []netip.Prefix
	ranged time.Time
	// gaps says what cannot all be counted, by kind.
	gaps  map[string]string
	edges model.Edges
	// refreshes is how often links and pods were read, refreshed when they were last, pause
	// the least time between two reads.
	refreshes int
	refreshed time.Time
	pause     time.Duration
}

func newWatch(o Options) (*watch, error) {
	if o.Used == nil {
		o.Used = processorTime
	}
	c, err := collect.Open(o.Options)
	if err != nil {
		return nil, err
	}
	return &watch{options: o, collector: c, gaps: map[string]string{}, pause: lookAgain, began: time.Now()}, nil
}

func (w *watch) run(ctx context.Context) (s *model.Snapshot, err error) {
	follow, cancel := context.WithCancel(ctx)
	defer cancel()
	w.most = firstLinks
	changes, err := w.start(ctx, follow)
	w.most = moreLinks
	defer func() { err = errors.Join(err, w.detach()) }()
	if err != nil {
		return nil, err
	}
	if err := w.begin(); err != nil {
		return nil, cmp.Or(ctx.Err(), err)
	}
	w.countPairs(true)
	now := w.now()
	w.window.End = now.Add(w.options.For)
	w.progress(now)
	if err := w.untilEnd(ctx, changes); err != nil {
		return nil, cmp.Or(ctx.Err(), err)
	}
	if s, err = w.finish(ctx); err == nil && w.options.Active {
		err = w.probe(ctx, s)
	}
	if err == nil && w.options.Seen != nil {
		detached := make(chan error, 1)
		go func() { detached <- w.detach() }()
		w.options.Seen(s)
		err = <-detached
	}
	return s, err
}

// now is the time by the clock as it was when the observation began: setting that clock changes no window.
func (w *watch) now() time.Time { return w.began.Add(time.Since(w.began)) }

// set is by how much the clock was set meanwhile.
func (w *watch) set() time.Duration {
	return time.Now().Round(0).Sub(w.now().Round(0)).Round(time.Second)
}

// begin reads the counters twice in a row, once everything is attached. See model.Edges.
func (w *watch) begin() error {
	for _, to := range []*model.Traffic{&w.edges.Start, &w.edges.StartAgain} {
		if err := w.poll(w.now()); err != nil {
			return err
		}
		*to = counted(w.traffic())
	}
	return nil
}

func counted(t model.Traffic) model.Traffic {
	return model.Traffic{Hops: t.Hops, MACs: t.MACs, Peers: t.Peers, Drops: t.Drops}
}

// firstLinks is how long links are attached to before the window of Observe begins, for some fifty on an idle machine;
// moreLinks how long others are, whose pods are counted from then on, until the counters are read.
const firstLinks, moreLinks = time.Second, 200 * time.Millisecond

// start reads the state, attaches to links, and follows changes until follow ends. The caller must call detach, also after
// an error.
func (w *watch) start(ctx, follow context.Context) (changes <-chan struct{}, err error) {
	if changes, err = w.collector.Follow(follow); err != nil {
		return nil, err
	}
	if w.state, err = w.collector.State(ctx, collect.Losses{}); err != nil {
		return nil, err
	}
	w.flows, w.ends = flowsAt(w.state, 0, nil), endsOf(w.state.Flows)
	if w.options.CountPairs != nil {
		if w.pairAddrs, err = w.options.CountPairs(w.state); err != nil {
			return nil, err
		}
	}
	if w.options.First != nil {
		if w.firstAddrs, err = w.options.First(w.state); err != nil {
			return nil, err
		}
	}
	if err := w.openEngine(); err != nil {
		return nil, err
	}
	if w.engine != nil {
		// Attaching to many links takes seconds. Close makes it return early.
		defer context.AfterFunc(ctx, func() { _ = w.engine.Close() })()
	}
	w.roster.see(w.now(), w.state.Pods)
	if err := w.attach(w.state.Links); err != nil {
		return nil, cmp.Or(ctx.Err(), err)
	}
	w.window.Start = w.now()
	w.first = model.Point{Snapshot: w.total(w.window.Start, model.Traffic{}), Whole: true, Ready: w.window.Start}
	return changes, nil
}

// openEngine loads the programs that count packets, if that is wanted.
func (w *watch) openEngine() (err error) {
	o := w.options
	if o.Engine == EngineState {
		w.unwatched = "packets are not watched (--engine state)"
		return nil
	}
	w.engine, err = traffic.Open(traffic.Config{
		NS: o.NS, Debug: o.Debug, Pairs: len(w.pairAddrs) > 0, MaxLinks: traffic.Room(len(w.state.Links)),
		Attach: o.Attach, Janitor: o.Janitor, KeepLeftovers: o.KeepLeftovers,
	})
	var unsupported *model.UnsupportedError
	chosen := o.Engine == EngineTC || o.Attach != "" && o.Attach != traffic.AttachAuto
	if chosen || !errors.As(err, &unsupported) {
		return err
	}
	w.unwatched = "cannot watch packets: " + err.Error()
	if o.Unwatched != nil {
		o.Unwatched(err)
	}
	return nil
}

func (w *watch) detach() error {
	if w.engine == nil {
		return nil
	}
	return w.engine.Close()
}

// event is what a watch acts on.
type event int

const (
	tick    event = iota // another timeline.Every has passed
	changed              // links, pods or routes changed
	made                 // a program changed what decides on packets
	asked                // by the caller
)

// loop calls act for events, until end or ctx ends or act fails. Routes may change a thousand times a second:
// whatever changes within a pause is one event. The first comes after look, whatever changed.
func (w *watch) loop(
	ctx context.Context, changes <-chan struct{}, look time.Duration, end <-chan time.Time, asks <-chan struct{},
	act func(event) error,
) error {
	ticker := time.NewTicker(timeline.Every)
	defer ticker.Stop()
	again := time.NewTimer(look)
	defer again.Stop()
	looking := false
	for {
		var err error
		select {
		case <-ctx.Done():
			return ctx.Err()
		case <-end:
			return nil
		case _, open := <-changes:
			if !open {
				changes = nil
			} else if !looking {
				looking = true
				again.Reset(max(0, w.pause-time.Since(w.refreshed)))
			}
		case <-again.C:
			looking = false
			err = act(changed)
		case <-ticker.C:
			err = act(tick)
		case <-w.made:
			err = act(made)
		case <-asks:
			err = act(asked)
		}
		if err != nil {
			return err
		}
	}
}

// untilEnd polls until the window ends and follows links and pods.
func (w *watch) untilEnd(ctx context.Context, changes <-chan struct{}) error {
	end := time.NewTimer(time.Until(w.window.End))
	defer end.Stop()
	// A pod's link appears before the pod has its address, so links and pods are read again at the polls after a change.
	ticks, stale, more := 0, 0, make(chan struct{}, 1)
	goOn := func() {
		if w.engine != nil && len(w.engine.Pending()) > 0 {
			more <- struct{}{}
		}
	}
	goOn()
	return w.loop(ctx, changes, math.MaxInt64, end.C, more, func(e event) error {
		now := w.now()
		if e == asked {
			defer goOn()
			return w.attach(w.links)
		}
		if e == changed {
			stale = refreshEvery
			err := w.refresh(ctx, now)
			w.refreshed = time.Now()
			return err
		}
		ticks++
		if stale > 0 || ticks%refreshEvery == 0 {
			stale = max(stale-1, 0)
			if err := w.refresh(ctx, now); err != nil {
				return err
			}
		}
		if err := w.poll(now); err != nil {
			return err
		}
		w.listFlows(ctx)
		w.progress(now)
		return nil
	})
}

func (w *watch) progress(now time.Time) {
	if w.options.Progress != nil {
		w.options.Progress(w.window, now)
	}
}

// refresh reads links and pods again. If that fails, the next refresh tries again, so only the end of ctx is an error.
func (w *watch) refresh(ctx context.Context, now time.Time) error {
	w.refreshes++
	links, pods, err := w.collector.Quick(ctx)
	if err != nil {
		return ctx.Err()
	}
	w.roster.see(now, pods)
	return w.attach(links)
}

// poll reads the counters, and has ranges counted that these show.
func (w *watch) poll(now time.Time) error {
	err := w.count(now)
	if err == nil && w.engine != nil {
		w.setRanges()
	}
	return err
}

func (w *watch) count(now time.Time) error {
	if w.engine == nil {
		return nil
	}
	if err := w.engine.Poll(now); err != nil {
		return fmt.Errorf("read counters: %w", err)
	}
	return nil
}

// finish reads counters and state for the last time, and the counters once more. See model.Edges.
func (w *watch) finish(ctx context.Context) (*model.Snapshot, error) {
	w.countPairs(false)
	now := w.now()
	if err := w.poll(now); err != nil {
		return nil, err
	}
	packets := w.traffic()
	if err := w.poll(now); err != nil {
		return nil, err
	}
	w.edges.EndAgain, w.edges.Read, w.last = counted(w.traffic()), w.engine != nil, true
	last, err := w.whole(ctx, now, packets)
	if err != nil {
		return nil, err
	}
	s := timeline.Between(w.first, last)
	s.Edges = w.edges
	w.forgetStarts(s)
	return s, nil
}

// whole reads the state after the counters t. At the start it was read before
// them. So a rule never counts less in the window than the drops it caused.
func (w *watch) whole(ctx context.Context, now time.Time, t model.Traffic) (model.Point, error) {
	state, err := w.collector.State(ctx, collect.Losses{Last: w.last, Netns: w.entered(&t), Addrs: unheard(&t)})
	if err != nil {
		return model.Point{}, err
	}
	if by := w.set(); by != 0 {
		// The kernel's flows have the time of the clock.
		for src := range model.Each(state.Sources) {
			if src.Name == model.SourceConntrack && src.Status == model.OK {
				src.Status, src.Detail = model.Partial, fmt.Sprintf("%s; the machine's clock was set by %v", src.Detail, by)
			}
		}
	}
	w.flows, w.ends, w.state = flowsAt(state, now.UnixNano(), w.flows), endsOf(state.Flows), state
	w.hold(now, state.Links)
	w.roster.see(now, append(state.Pods, w.roster.unread(state)...))
	return model.Point{Snapshot: w.total(now, t), Whole: true}, nil
}

// entered are the namespaces of pods whose own rules and listeners are read: at the end of a window without programs, which reads
// state alone, all. Who may not read the node's own may not read theirs.
func (w *watch) entered(t *model.Traffic) []uint32 {
	if w.engine == nil && w.last && w.state.Status(model.SourceNAT) != model.Missing {
		return model.Map(w.state.Pods, func(p model.Pod) uint32 { return p.Netns })
	}
	return lossy(t.Drops, w.state.Node.Netns)
}

// mostLossy bounds the pods whose own rules and listeners are read for their losses.
const mostLossy = 16

// lossy are the namespaces beside the node's in which netfilter dropped most packets, or no socket took most.
func lossy(drops []model.Drop, node uint32) []uint32 {
	lost := map[uint32]uint64{}
	for d := range model.Each(drops) {
		if d.Netns != 0 && d.Netns != node && d.Is(model.Netfilter|model.NoSocket) {
			lost[d.Netns] += d.Packets
		}
	}
	most := slices.SortedFunc(maps.Keys(lost), func(a, b uint32) int { return cmp.Or(cmp.Compare(lost[b], lost[a]), cmp.Compare(a, b)) })
	return most[:min(len(most), mostLossy)]
}

// unheard are the addresses whose packets were dropped, or got no reply from some other.
func unheard(t *model.Traffic) map[netip.Addr]bool {
	out := map[netip.Addr]bool{}
	for d := range model.Each(t.Drops) {
		out[d.Src] = true
	}
	for p := range model.Each(t.Peers) {
		if p.In.Packets == 0 {
			out[p.Local] = true
		}
	}
	return out
}

// total is the latest state with the counts since the start.
func (w *watch) total(now time.Time, t model.Traffic) *model.Snapshot {
	s := *w.state
	s.Window, s.Pods, s.PastPods = model.Window{Start: w.window.Start, End: now}, w.roster.alive(), w.roster.gone()
	s.Traffic = t
	s.Node.Name, s.Node.InPod, s.Node.Engine = cmp.Or(w.options.NodeName, s.Node.Name), w.options.InPod, EngineState
	if w.engine != nil {
		s.Node.Engine, s.Node.Attach = EngineTC, w.engine.AttachMode()
	}
	s.Sources = append(slices.Clip(s.Sources), w.sources()...)
	if w.authors != nil {
		var src model.Source
		s.Changes, src = w.authors.list(w.links)
		s.Sources = append(s.Sources, src)
	}
	return &s
}

func (w *watch) traffic() model.Traffic {
	if w.engine == nil {
		return model.Traffic{}
	}
	t := w.engine.Traffic()
	t.PairAddrs = w.pairAddrs
	return t
}

// probe sends the probes that the judge wants answered and adds the results to the snapshot. Counters and state
// were read before, so they hold none of these packets. A probe that cannot be sent makes the source partial;
// only the end of ctx is an error.
func (w *watch) probe(ctx context.Context, s *model.Snapshot) error {
	plan := diagnose.Probes(s)
	var err error
	s.Probes, err = active.Send(ctx, w.options.NS, plan)
	if ctx.Err() != nil {
		return ctx.Err()
	}
	answered := len(model.Filter(s.Probes, func(p model.Probe) bool { return p.Answered }))
	src := model.Source{Name: model.SourceProbes, Status: model.OK, Detail: fmt.Sprintf("%d sent, %d answered", len(s.Probes), answered)}
	switch {
	case len(plan) == 0:
		src.Detail = "none needed: no suspicion beyond this node"
	case err != nil:
		src.Status = model.Either(len(s.Probes) == 0, model.Missing, model.Partial)
		first, _, _ := strings.Cut(err.Error(), "\n")
		src.Detail = fmt.Sprintf("%d of %d sent, %d answered; %s", len(s.Probes), len(plan), answered, first)
	}
	s.Sources = append(s.Sources, src)
	return nil
}
