package main

import (
	"cmp"
	"errors"
	"maps"
	"net/netip"
	"slices"
	"strings"
	"time"

	"github.com/lasthop/lasthop/cmd/flags"
	"github.com/lasthop/lasthop/cmd/joint"
	"github.com/lasthop/lasthop/probe/join"
	"github.com/lasthop/lasthop/probe/model"
	"github.com/lasthop/lasthop/probe/path"
	"github.com/lasthop/lasthop/probe/report"
	"github.com/lasthop/lasthop/probe/words"
)

// checkTogether judges several nodes' recordings of one time.
func (a *app) checkTogether(o *observing, pods []string) error {
	if err := a.openBeside(o); err != nil {
		return err
	}
	r, err := o.judgeTogether(pods)
	if err != nil {
		return err
	}
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

// judgeTogether judges the recordings. It is an error if none can be read, or if no node has the pods.
func (o *observing) judgeTogether(pods []string) (report.Joint, error) {
	var focus []netip.Addr
	var unknown []error
	j := joint.New()
	j.Draw(o.Draws(o.Output.Value), len(o.Replay))
	j.Look = func(_ string, s, _ *model.Snapshot) {
		chosen, err := o.choosePods(s, pods)
		if err != nil {
			unknown = append(unknown, err)
		}
		focus = append(focus, o.redactor().Addrs(chosen)...)
	}
	result, closeFiles, err := o.readTogether(j, o.Asked())
	defer closeFiles()
	switch {
	case err != nil:
		return report.Joint{}, err
	case len(unknown) == j.Read:
		return report.Joint{}, usagef("on no recorded node: %w", unknown[0])
	}
	return j.Report(result, &o.Verdict, focus), nil
}

// readTogether reads the last of each recording, 0 for all of it, and judges them. It is an error if none can be read.
func (o *observing) readTogether(j *joint.Recordings, last time.Duration) (result join.Result, closeFiles func(), err error) {
	j.Last = last
	closeFiles = j.AddFiles(o.Replay, openRecorded, o.redactor)
	joint.BoundGarbage(len(o.Replay))
	if result = j.Judge(); j.Read > 0 {
		return result, closeFiles, nil
	}
	for _, name := range slices.Sorted(maps.Keys(j.Unread)) {
		err = errors.Join(err, asUsage(name, j.Unread[name]))
	}
	return result, closeFiles, err
}

// explainTogether follows a pod's packets to a pod of another recorded node and back.
func (a *app) explainTogether(o *observing, pod string, to flags.Target) (report.Path, error) {
	if !to.Addr.IsValid() && to.Pod == "" {
		return report.Path{}, usagef("explain with several recordings needs --to, a pod on another of the nodes")
	}
	j := joint.New()
	ends := [2]*end{{pod: pod}, {pod: cmp.Or(to.Pod, to.Addr.String())}}
	j.Look = func(recording string, s, shown *model.Snapshot) {
		for _, e := range ends {
			e.look(recording, o.Namespace, s, shown)
		}
	}
	all, closeFiles, err := o.readTogether(j, o.Asked())
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
	e := path.Ends{Port: to.Port, Proto: to.Proto}
	for _, from := range ends[0].addrs {
		for _, dst := range ends[1].addrs {
			if from.Is4() == dst.Is4() && !e.To.IsValid() && (!to.Addr.IsValid() || dst == to.Addr) {
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
