package main

import (
	"cmp"
	"errors"
	"fmt"
	"maps"
	"net/netip"
	"slices"
	"strings"
	"sync"
	"time"

	"github.com/lasthop/lasthop/cmd/flags"
	"github.com/lasthop/lasthop/cmd/joint"
	"github.com/lasthop/lasthop/probe/join"
	"github.com/lasthop/lasthop/probe/model"
	"github.com/lasthop/lasthop/probe/path"
	"github.com/lasthop/lasthop/probe/record"
	"github.com/lasthop/lasthop/probe/report"
	"github.com/lasthop/lasthop/probe/words"
)

// checkTogether judges several nodes' recordings of one time.
func (a *app) checkTogether(o *observing, pods []string) error {
	if err := a.openBeside(&o.beside); err != nil {
		return err
	}
	t := newTogether(a, o, pods, o.last())
	snapshots := map[string]*model.Snapshot{}
	if o.draws() && len(o.replay) <= joint.MostDrawn {
		t.look = func(recording string, _, shown *model.Snapshot) { snapshots[recording] = shown }
	}
	r, err := t.judge()
	if err != nil {
		return err
	}
	r.Paths = joint.Paths(r.Nodes, snapshots, r.Findings)
	if err := a.tell(o, r, o.Judgement()); err != nil {
		return err
	}
	if o.Judgement().Fails(r.Findings) {
		return &statusError{code: exitFindings}
	}
	if n := r.Incomplete(); o.Strict && n != nil {
		return &statusError{exitIncomplete, report.Clean("incomplete (--strict): " + n.Name + ": " + n.Reason)}
	}
	return nil
}

// together are recordings that are judged together, with what is asked of them.
type together struct {
	*app
	o    *observing
	pods []string
	// last is how much of each recording's end is judged, 0 for all of it.
	last time.Duration

	// mu guards the rest: recordings are read at the same time.
	mu    sync.Mutex
	names map[netip.Addr]string
	focus []netip.Addr
	// unknown are the errors of nodes that have none of the pods, others those of recordings that cannot be read.
	unknown []error
	broken  []error
	good    int
	// told are the findings that the nodes had while they were recorded, by recording.
	told map[string][]model.Tracked
	// look is given each recording as it is, and as it is shown, one at a time; it may be nil.
	look func(recording string, recorded, shown *model.Snapshot)
}

func newTogether(a *app, o *observing, pods []string, last time.Duration) *together {
	return &together{app: a, o: o, pods: pods, last: last, names: map[netip.Addr]string{}, told: map[string][]model.Tracked{}}
}

// togetherLimit keeps the process below 1 GiB for 200 recordings of nodes with 100 pods.
const togetherLimit = 768 << 20

// judge judges the recordings. It is an error if none can be read, or if no node has the pods.
func (t *together) judge() (report.Joint, error) {
	o := t.o
	var sources []join.Source
	var spans []joint.Span
	for i, file := range o.replay {
		name := file
		if o.redactor() != nil {
			// A file is often named after its node.
			name = fmt.Sprintf("recording %d", i+1)
		}
		src, span, closeFile := t.source(file, name)
		defer closeFile()
		sources, spans = append(sources, src), append(spans, span)
	}
	boundGarbage(togetherLimit)
	result := join.Judge(sources)
	findings := joint.Told(sources, spans, result, t.told)
	switch {
	case t.good == 0:
		return report.Joint{}, errors.Join(t.broken...)
	case len(t.unknown) == t.good:
		return report.Joint{}, usagef("on no recorded node: %w", t.unknown[0])
	}
	return report.Joint{
		Nodes: result.Nodes, Names: t.names, Focus: t.focus, Limits: o.Limits(), Findings: o.Choose(findings, t.focus),
	}, nil
}

// source is a recording, called by a name, with what reads a part of it, nil if it cannot be read. Its
// snapshot is made anew each time, so that not all are held in memory at once.
func (t *together) source(file, name string) (src join.Source, span joint.Span, closeFile func()) {
	src = join.Source{Name: name}
	broken := func(err error) (*model.Snapshot, error) {
		t.mu.Lock()
		defer t.mu.Unlock()
		t.broken = append(t.broken, asUsage(file, err))
		return nil, err
	}
	f, closeFile, err := openRecorded(file)
	if err != nil {
		src.Read = func() (*model.Snapshot, error) { return broken(err) }
		return src, nil, closeFile
	}
	if f.Damage != nil {
		src.Cut = "its recording is truncated"
	}
	hide := t.o.redactor()
	first := true
	src.Read = func() (*model.Snapshot, error) {
		defer f.Forget()
		s, err := f.Window(t.last)
		if err != nil {
			return broken(err)
		}
		seen := hide.Snapshot(&s)
		if first {
			t.learn(name, &s, seen)
			err = t.learnTold(name, f, s.Window.Start)
		}
		first = false
		return seen, err
	}
	span = func(w model.Window) (*model.Snapshot, error) {
		defer f.Forget()
		s, err := f.Span(w)
		return hide.Snapshot(&s), err
	}
	src.Within = func(within, around model.Window) (inner, outer *model.Snapshot, err error) {
		defer f.Forget()
		inner, outer, err = f.Within(within, around)
		return hide.Snapshot(inner), hide.Snapshot(outer), err
	}
	return src, span, closeFile
}

// unsettled is how long after the beginning of a recording a finding may open that is older.
const unsettled = 3 * time.Second

// learnTold takes the findings that a node had after a time, while it was recorded.
func (t *together) learnTold(name string, f *record.File, since time.Time) error {
	var told []model.Tracked
	if r, err := f.Reading(f.Len() - 1); err != nil {
		return err
	} else if told = r.Findings; t.o.redact {
		// Theirs have the real names.
		if _, told, err = f.Told(r.At.Sub(since), t.o.diagnose()); err != nil {
			return err
		}
	}
	t.mu.Lock()
	defer t.mu.Unlock()
	for _, x := range told {
		if x.First.Before(since.Add(unsettled)) {
			x.First = time.Time{}
		}
		if x.Last.After(since) {
			t.told[name] = append(t.told[name], x)
		}
	}
	return nil
}

// learn takes the names and the addresses of the asked pods from a node. What is
// shown of it has other names where they are replaced.
func (t *together) learn(recording string, s, shown *model.Snapshot) {
	t.mu.Lock()
	defer t.mu.Unlock()
	t.good++
	if t.look != nil {
		t.look(recording, s, shown)
	}
	flags.Call(t.names, shown)
	focus, err := t.o.choosePods(s, t.pods)
	if err != nil {
		t.unknown = append(t.unknown, err)
		return
	}
	t.focus = append(t.focus, t.o.redactor().Addrs(focus)...)
}

// explainTogether follows a pod's packets to a pod of another recorded node and back.
func (a *app) explainTogether(o *observing, pod string, to target) (report.Path, error) {
	if !to.addr.IsValid() && to.pod == "" {
		return report.Path{}, usagef("explain with several recordings needs --to, a pod on another of the nodes")
	}
	t := newTogether(a, o, nil, o.last())
	var sources []join.Source
	ends := [2]*end{{pod: pod}, {pod: cmp.Or(to.pod, to.addr.String())}}
	t.look = func(recording string, s, shown *model.Snapshot) {
		for _, e := range ends {
			e.look(recording, o.namespace, s, shown)
		}
	}
	for _, name := range o.replay {
		src, _, closeFile := t.source(name, name)
		defer closeFile()
		sources = append(sources, src)
	}
	boundGarbage(togetherLimit)
	all := join.Judge(sources)
	if t.good == 0 {
		return report.Path{}, errors.Join(t.broken...)
	}
	for _, e := range ends {
		if err := e.found(); err != nil {
			return report.Path{}, err
		}
	}
	if ends[0].Name == ends[1].Name {
		return report.Path{}, usagef("both pods are on one node: %s", words.Shell("lasthop explain %s --to %s --replay %s", pod, ends[1].pod, ends[0].Name))
	}
	e := path.Ends{Port: to.port, Proto: to.proto}
	for _, from := range ends[0].addrs {
		for _, dst := range ends[1].addrs {
			if from.Is4() == dst.Is4() && !e.To.IsValid() && (!to.addr.IsValid() || dst == to.addr) {
				e.Pod, e.To = from, dst
			}
		}
	}
	if !e.To.IsValid() {
		return report.Path{}, usagef("the pods have no addresses of the same family")
	}
	hide := o.redactor()
	e.Pod, e.To = hide.Addr(e.Pod), hide.Addr(e.To)
	return o.Between(all, ends[0].End, ends[1].End, e), nil
}

// end is one end of a path between recorded nodes: the pod by its name, and the node that has it.
type end struct {
	pod string
	join.End
	addrs []netip.Addr
	// nodes are the names of all nodes that have it, missing are the errors of the others, by recording.
	nodes   []string
	missing map[string]error
}

// look takes a node that has the pod.
func (e *end) look(recording, namespace string, s, shown *model.Snapshot) {
	addrs, err := choosePods(s, []string{e.pod}, selection{namespace: namespace})
	if err != nil {
		if e.missing == nil {
			e.missing = map[string]error{}
		}
		e.missing[recording] = err
		return
	}
	again := slices.Contains(e.nodes, shown.Node.Name)
	if again && e.Snapshot.Window.End.After(shown.Window.End) {
		return // the later recording of a node counts
	}
	e.End, e.addrs = join.End{Name: recording, Snapshot: shown}, addrs
	if !again {
		e.nodes = append(e.nodes, shown.Node.Name)
	}
}

// found is an error unless one node has the pod.
func (e *end) found() error {
	switch len(e.nodes) {
	case 0:
		return usagef("on no recorded node: %w", e.missing[slices.Min(slices.Collect(maps.Keys(e.missing)))])
	case 1:
		return nil
	}
	slices.Sort(e.nodes)
	return usagef("%q is on several nodes: %s", e.pod, strings.Join(e.nodes, " and "))
}
