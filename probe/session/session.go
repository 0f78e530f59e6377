// Package session watches a node for a time: it reads the node's state,
// counts packets while links and pods come and go, and joins both into one
// immutable snapshot.
package session

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"hash/maphash"
	"maps"
	"net/netip"
	"slices"
	"strings"
	"time"

	"github.com/lasthop/lasthop/probe/active"
	"github.com/lasthop/lasthop/probe/collect"
	"github.com/lasthop/lasthop/probe/diagnose"
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

// Options say which node is watched, how and for how long.
type Options struct {
	// NS is the node's network namespace; it stays the caller's.
	NS       *netns.NS
	NodeName string
	HostRoot string
	// Engine is one of the Engine constants; empty is EngineAuto.
	Engine    string
	For       time.Duration
	Uplinks   []string
	PodCIDRs  []netip.Prefix
	NodesFile string
	// RoutesFiles are what `az network … -o json` printed.
	RoutesFiles []string
	// Active allows a handful of probes, sent once the window is over.
	Active bool
	// CountPairs, where set, is told the node's state as it is before the window
	// and says whose packets are to be counted by pair of addresses on every
	// link. An error of it ends the observation.
	CountPairs func(*model.Snapshot) ([]netip.Addr, error)
	// Debug puts the verifier's log into errors.
	Debug bool
	// Progress is told how far the window is: when everything is attached,
	// then about once a second. It may be nil.
	Progress func(window model.Window, now time.Time)
}

// pollEvery is how often counters are read, so that first and last seen are
// known to that precision.
const pollEvery = time.Second

// refreshEvery is how many polls pass between two looks at the pods when no
// link has changed: an address can be given to a pod without the node hearing
// of it.
const refreshEvery = 5

// Observe watches the node for o.For and returns what it saw. When ctx ends
// first, everything is detached and ctx's error returned. A kernel or rights
// that do not allow it give a *model.UnsupportedError.
func Observe(ctx context.Context, o Options) (*model.Snapshot, error) {
	c, err := collect.Open(collect.Options{
		NS: o.NS, HostRoot: o.HostRoot, Uplinks: o.Uplinks, PodCIDRs: o.PodCIDRs, NodesFile: o.NodesFile,
		RoutesFiles: o.RoutesFiles,
	})
	if err != nil {
		return nil, err
	}
	defer c.Close()
	w := &watch{options: o, collector: c, gaps: map[string]string{}}
	return w.run(ctx)
}

// watch is one observation.
type watch struct {
	options   Options
	collector *collect.Collector
	// engine is nil when packets are not watched.
	engine *traffic.Engine
	roster roster
	// state is the latest reading of it, first what was known when counting
	// began.
	state *model.Snapshot
	first model.Point
	// close are the addresses that Options.Closely chose.
	close []netip.Addr
	// closely is set while these are looked at closely, links are those
	// that were seen last.
	closely bool
	links   []model.Link
	// flows are when each was first listed, zero for those of the beginning.
	flows  map[uint64]time.Time
	window model.Window
	ranges []netip.Prefix
	// gaps are what the engine had no room for, in words, by kind.
	gaps map[string]string
	// edges are the readings about the window's edges.
	edges model.Edges
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
	if w.engine != nil && len(w.close) > 0 {
		w.lookClosely(true)
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
	return s, w.ask(ctx, s)
}

// ask sends the probes whose answers the snapshot wants. Nothing is counted or
// read any more, so none of their packets is in it. What may not be sent is a
// gap of the source, and ends nothing.
func (w *watch) ask(ctx context.Context, s *model.Snapshot) error {
	plan := diagnose.Probes(s)
	var err error
	s.Probes, err = active.Send(ctx, w.options.NS, plan)
	if ctx.Err() != nil {
		return ctx.Err()
	}
	answered := 0
	for i := range s.Probes {
		if s.Probes[i].Answered {
			answered++
		}
	}
	src := model.Source{Name: model.SourceProbes, Status: model.OK, Detail: fmt.Sprintf("%d sent, %d answered", len(s.Probes), answered)}
	switch {
	case len(plan) == 0:
		src.Detail = "nothing to ask: no route or address beyond this node is in question"
	case err != nil:
		src.Status = model.Partial
		if len(s.Probes) == 0 {
			src.Status = model.Missing
		}
		first, _, _ := strings.Cut(err.Error(), "\n")
		src.Detail = fmt.Sprintf("%d of %d sent, %d answered; %s", len(s.Probes), len(plan), answered, first)
	}
	s.Sources = append(s.Sources, src)
	return nil
}

// begin reads twice what was counted while programs were being attached. A
// reading takes time, and packets pass meanwhile: what two readings in a row
// have both is certain.
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

// counted leaves out of a reading what is not compared with others.
func counted(t model.Traffic) model.Traffic {
	return model.Traffic{Hops: t.Hops, MACs: t.MACs, Peers: t.Peers, Drops: t.Drops}
}

// start reads the state, attaches to every link, and follows changes until
// follow ends. What it attached is detached by detach, also after an error.
func (w *watch) start(ctx, follow context.Context) (changes <-chan struct{}, err error) {
	if changes, err = w.collector.Follow(follow); err != nil {
		return nil, err
	}
	if w.state, err = w.collector.State(ctx); err != nil {
		return nil, err
	}
	w.flows = flowsAt(w.state, time.Time{}, nil)
	if w.options.CountPairs != nil {
		if w.close, err = w.options.CountPairs(w.state); err != nil {
			return nil, err
		}
	}
	if w.options.Engine != EngineState {
		if w.engine, err = traffic.Open(traffic.Config{NS: w.options.NS, Debug: w.options.Debug, Pairs: len(w.close) > 0}); err != nil {
			return nil, err
		}
		// Attaching to many links takes seconds; closing ends it.
		defer context.AfterFunc(ctx, func() { _ = w.engine.Close() })()
	}
	// Counting begins with the first link, the time asked for when all are
	// attached.
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

// loop polls until the window ends, and follows links and pods.
func (w *watch) loop(ctx context.Context, changes <-chan struct{}) error {
	ticker := time.NewTicker(pollEvery)
	defer ticker.Stop()
	end := time.NewTimer(time.Until(w.window.End))
	defer end.Stop()
	// A pod's link appears before the pod has its address, so a change is
	// looked at again at the polls that follow.
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
			stale = refreshEvery
			if err := w.refresh(ctx, time.Now()); err != nil {
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

// refresh looks at links and pods again. What cannot be read now is read at
// the next look, so only a context that ended is an error.
func (w *watch) refresh(ctx context.Context, now time.Time) error {
	links, pods, err := w.collector.Quick(ctx)
	if err != nil {
		return ctx.Err()
	}
	return w.apply(now, links, pods)
}

// apply makes the engine watch these links and pods.
func (w *watch) apply(now time.Time, links []model.Link, pods []model.Pod) error {
	w.roster.see(now, pods)
	if w.engine == nil {
		return nil
	}
	w.links = links
	w.note("addresses", w.engine.SetLocal(w.locals(links)))
	w.note("namespaces", w.engine.SetNamespaces(w.namespaces()))
	// A link that refuses the programs is told by the source; only if none
	// takes them is there nothing to watch.
	if err := w.engine.Attach(watched(links)); err != nil && !w.watching() {
		return fmt.Errorf("watch links: %w", err)
	}
	w.setRanges()
	return nil
}

// lookClosely begins or ends the counting of pairs: on all links at once, so
// that the counts of two hops are of the same packets. Only those that are
// between two hops at that instant count at one of them.
func (w *watch) lookClosely(on bool) {
	w.closely = on
	w.note("addresses", w.engine.SetLocal(w.locals(w.links)))
}

// locals are the addresses to count; while it is looked closely, the chosen
// ones and the node's own closely: a pod's packets may go by the node's address.
func (w *watch) locals(links []model.Link) []traffic.Local {
	out := locals(links, w.roster.alive())
	for i := range out {
		out[i].Pairs = w.closely && (out[i].Node || slices.Contains(w.close, out[i].Addr))
	}
	return out
}

// watching reports whether packets are counted on any link.
func (w *watch) watching() bool {
	return slices.ContainsFunc(w.engine.Sources(), func(s model.Source) bool {
		return s.Name == model.SourceTC && s.Status != model.Missing
	})
}

func (w *watch) poll(now time.Time) error {
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

// setRanges has the other nodes' pod ranges counted, as far as they are known.
func (w *watch) setRanges() {
	if w.engine == nil {
		return
	}
	s := *w.state
	s.Pods = w.roster.alive()
	s.Traffic = w.engine.Traffic()
	ranges := diagnose.RemoteRanges(&s)
	if slices.Equal(ranges, w.ranges) {
		return
	}
	w.ranges = ranges
	w.note("other nodes' pod ranges", w.engine.SetPrefixes(ranges))
}

// note keeps what could not be counted of the things of one name: a gap of the
// source, since all others are.
func (w *watch) note(what string, err error) {
	delete(w.gaps, what)
	if err != nil {
		first, _, more := strings.Cut(err.Error(), "\n")
		if more {
			first += ", and others"
		}
		w.gaps[what] = fmt.Sprintf("not all %s are counted: %s", what, first)
	}
}

// finish takes the last reading, and one more of the counters right after it.
func (w *watch) finish(ctx context.Context) (*model.Snapshot, error) {
	if w.closely {
		w.lookClosely(false)
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
	s.Traffic.PairAddrs = w.close
	return s, nil
}

// point reads counters and state.
func (w *watch) point(ctx context.Context, now time.Time) (model.Point, error) {
	if err := w.poll(now); err != nil {
		return model.Point{}, err
	}
	return w.whole(ctx, now, w.traffic())
}

// whole reads the state to what was counted. The rules are read after the
// packets, as they were read before them at the start, so that a rule's count
// is never less than the drops that it caused.
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

// total is the latest state with all that was counted since the beginning.
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

// flowsAt are when the flows were first listed; those that have been listed
// before keep their time, and are remembered where not all could be listed. It
// sets their Start. Flows are known by hashes, since there may be very many.
func flowsAt(s *model.Snapshot, now time.Time, before map[uint64]time.Time) map[uint64]time.Time {
	out := make(map[uint64]time.Time, len(s.Flows))
	if s.Status(model.SourceConntrack) != model.OK && len(before) < maxUnlisted {
		maps.Copy(out, before)
	}
	for i := range s.Flows {
		f := &s.Flows[i]
		k := maphash.Comparable(flowSeed, flowKey{f.Proto, f.Zone, f.Original, f.Reply})
		at, ok := before[k]
		if !ok {
			at = now
		}
		out[k], f.Start = at, at
	}
	return out
}

// maxUnlisted bounds how many flows are remembered that were not listed, where
// listing them whole never succeeds.
const maxUnlisted = 1 << 18

type flowKey struct {
	proto       uint8
	zone        uint16
	orig, reply model.Tuple
}

var flowSeed = maphash.MakeSeed()

// sources are the engine's, with what could not be counted.
func (w *watch) sources() []model.Source {
	list := w.engine.Sources()
	for i := range list {
		if list[i].Name != model.SourceTC || len(w.gaps) == 0 {
			continue
		}
		list[i].Status = model.Partial
		for _, what := range slices.Sorted(maps.Keys(w.gaps)) {
			list[i].Detail += "; " + w.gaps[what]
		}
	}
	return list
}

// namespaces are those whose drops are the node's picture: its own and its
// pods', also of pods that are gone.
func (w *watch) namespaces() []uint32 {
	out := []uint32{w.options.NS.Inode()}
	for _, p := range w.roster.all() {
		if p.Netns != 0 {
			out = append(out, p.Netns)
		}
	}
	return out
}

// watched are the links to attach to: all but the loopback, which no pod's
// packet passes on its way.
func watched(links []model.Link) []traffic.Link {
	var out []traffic.Link
	for _, l := range links {
		if l.Name == "lo" {
			continue
		}
		out = append(out, traffic.Link{Index: l.Index, Name: l.Name, Uplink: l.Role == model.RoleUplink, NoEthernet: l.MAC.IsZero()})
	}
	return out
}

// locals are the addresses to count: of pods, and of the node itself.
func locals(links []model.Link, pods []model.Pod) []traffic.Local {
	var out []traffic.Local
	seen := map[netip.Addr]bool{}
	add := func(a netip.Addr, node bool) {
		if !seen[a] && a.IsGlobalUnicast() {
			seen[a] = true
			out = append(out, traffic.Local{Addr: a, Node: node})
		}
	}
	for i := range pods {
		for _, a := range pods[i].Addresses {
			add(a.Addr(), false)
		}
	}
	for i := range links {
		// Where kube-proxy uses IPVS, a dummy link holds the address of every
		// service; no packet leaves with one.
		service := links[i].Kind == "dummy" || links[i].Name == "lo"
		for _, a := range links[i].Addresses {
			if !service || !a.IsSingleIP() {
				add(a.Addr(), true)
			}
		}
	}
	return out
}
