package main

import (
	"cmp"
	"errors"
	"fmt"
	"maps"
	"net/netip"
	"slices"
	"strings"
	"time"

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
	if err := a.openBeside(o); err != nil {
		return err
	}
	t := newTogether(o, o.Asked())
	if o.Draws(o.Output.Value) && len(o.Replay) <= joint.MostDrawn {
		t.Snapshots = map[string]*model.Snapshot{}
	}
	r, err := t.judge(pods)
	if err != nil {
		return err
	}
	r.Paths = joint.Paths(r.Nodes, t.Snapshots, r.Findings)
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

// together are recordings that are judged together, and what is asked of them.
type together struct {
	*joint.Recordings
	o *observing
}

func newTogether(o *observing, last time.Duration) *together {
	r := joint.New()
	r.Last, r.Hide, r.Apart = last, o.redactor, true
	r.Told = func(f *record.File, since time.Time) ([]model.Tracked, error) {
		return joint.Had(f, since, o.redactor())
	}
	return &together{r, o}
}

// togetherLimit keeps the process below 1 GiB for 200 recordings of nodes with 100 pods.
const togetherLimit = 768 << 20

// judge judges the recordings. It is an error if none can be read, or if no node has the pods.
func (t *together) judge(pods []string) (report.Joint, error) {
	var focus []netip.Addr
	var unknown []error
	t.Look = func(_ string, s, _ *model.Snapshot) {
		chosen, err := t.o.choosePods(s, pods)
		if err != nil {
			unknown = append(unknown, err)
		}
		focus = append(focus, t.o.redactor().Addrs(chosen)...)
	}
	result, closeFiles, err := t.read(func(i int, file string) string {
		// A file is often named after its node.
		return model.Either(t.o.Redact, fmt.Sprintf("recording %d", i+1), file)
	})
	defer closeFiles()
	switch {
	case err != nil:
		return report.Joint{}, err
	case len(unknown) == t.Read:
		return report.Joint{}, usagef("on no recorded node: %w", unknown[0])
	}
	return t.Report(result, &t.o.Verdict, focus), nil
}

// read reads the recordings, which are called by a name, and judges them. It is an error if none can be read.
func (t *together) read(called func(i int, file string) string) (result join.Result, closeFiles func(), err error) {
	var opened []func()
	closeFiles = func() {
		for _, closeFile := range opened {
			closeFile()
		}
	}
	for i, file := range t.o.Replay {
		f, closeFile, err := openRecorded(file)
		opened = append(opened, closeFile)
		cut := model.Either(err == nil && f.Damage != nil, "its recording is truncated", "")
		t.Add(called(i, file), cut, func(use func(*record.File) error) error {
			if err != nil {
				return err
			}
			defer f.Forget()
			return use(f)
		})
	}
	boundGarbage(togetherLimit)
	if result = t.Judge(); t.Read > 0 {
		return result, closeFiles, nil
	}
	for i, file := range t.o.Replay {
		err = errors.Join(err, asUsage(file, t.Unread[called(i, file)]))
	}
	return result, closeFiles, err
}

// explainTogether follows a pod's packets to a pod of another recorded node and back.
func (a *app) explainTogether(o *observing, pod string, to target) (report.Path, error) {
	if !to.addr.IsValid() && to.pod == "" {
		return report.Path{}, usagef("explain with several recordings needs --to, a pod on another of the nodes")
	}
	t := newTogether(o, o.Asked())
	ends := [2]*end{{pod: pod}, {pod: cmp.Or(to.pod, to.addr.String())}}
	t.Look = func(recording string, s, shown *model.Snapshot) {
		for _, e := range ends {
			e.look(recording, o.Namespace, s, shown)
		}
	}
	all, closeFiles, err := t.read(func(_ int, file string) string { return file })
	defer closeFiles()
	if err != nil {
		return report.Path{}, err
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
