package main

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"time"

	"github.com/spf13/cobra"

	"github.com/lasthop/lasthop/kind/lab"
	"github.com/lasthop/lasthop/kind/scenario"
	"github.com/lasthop/lasthop/probe/model"
	"github.com/lasthop/lasthop/probe/netns"
	"github.com/lasthop/lasthop/probe/report"
	"github.com/lasthop/lasthop/probe/traffic"
)

// defaultDemo is the best fault to begin with.
const defaultDemo = "stale-mac-rewrite"

func (a *app) demoCommand() *cobra.Command {
	o, on := &observing{}, &labPlace{}
	cmd := &cobra.Command{
		Use:               "demo [SCENARIO|FILE]",
		Args:              cobra.MaximumNArgs(1),
		ValidArgsFunction: completeScenarios,
		RunE: func(cmd *cobra.Command, args []string) error {
			name := defaultDemo
			if len(args) > 0 {
				name = args[0]
			}
			return a.demo(cmd.Context(), o, name, on, a.onScreen() && !wantsReport(cmd.Flags()) && !cmd.Flags().Changed("for"))
		},
	}
	// The lab decides which node is watched, so the flags about that are missing.
	o.Pick(cmd.Flags(), "attach", "for", "active", "output", "color", "debug", "report", "github", "idle-exit")
	on.register(cmd.Flags())
	return cmd
}

func (a *app) demo(ctx context.Context, o *observing, name string, on *labPlace, screen bool) (err error) {
	defer func() { a.annotateScenario(o, err) }()
	s, err := load(name)
	if err != nil {
		return err
	}
	id := fmt.Sprintf("demo%d", os.Getpid())
	a.say("building the lab %s: %s", id, s.Title)
	l, err := a.makeLab(ctx, name, id, on)
	if err != nil {
		return err
	}
	defer func() {
		a.say("taking the lab down")
		err = errors.Join(err, down(ctx, l))
	}()
	look := func() error { return a.checkLab(ctx, o, l) }
	if screen {
		look = func() error {
			return a.inLab(ctx, o, l, func(ns *netns.NS, node string) error { return a.liveOn(ctx, o, ns, node) })
		}
	}
	if on.kind() && len(s.Faults) > 0 {
		return a.between(ctx, o, l, look)
	}
	return look()
}

// between looks at a lab on kind with its faults, and checks that nothing is wrong
// with it before they are made and once they are undone.
func (a *app) between(ctx context.Context, o *observing, l *lab.Lab, look func() error) error {
	if err := a.checkSound(ctx, o, l, "before the fault"); err != nil {
		return err
	}
	a.say("injecting the fault")
	if err := l.Break(ctx); err != nil {
		return err
	}
	err := look()
	a.say("undoing the fault")
	if undone := l.Mend(ctx); undone != nil {
		return errors.Join(err, undone)
	}
	if err != nil {
		return err
	}
	return a.checkSound(ctx, o, l, "after the fault was undone")
}

// checkSound wants nothing to be found but for information: the kube-proxy of a cluster
// drops what comes late of connections that are no more.
func (a *app) checkSound(ctx context.Context, o *observing, l *lab.Lab, when string) error {
	r, traffic, err := a.reportLab(ctx, o, l)
	if err != nil {
		return err
	}
	wrong := unanswered(traffic, lostByAttaching(&r.Snapshot.Node))
	for _, f := range r.Findings {
		if f.Severity.Rank() > model.Info.Rank() {
			wrong = append(wrong, fmt.Sprintf("finding %s of %v", f.Code, f.Pods))
		}
	}
	if len(wrong) > 0 {
		if err := a.print(o, r); err != nil {
			return err
		}
		return &statusError{1, fmt.Sprintf("%s, unexpected: %s", when, strings.Join(wrong, "; "))}
	}
	a.say("%s: no finding, and every request gets a reply", when)
	return nil
}

// checkLab prints the report on the lab's broken node, and compares the verdict with the one that the scenario expects.
func (a *app) checkLab(ctx context.Context, o *observing, l *lab.Lab) error {
	if err := a.openBeside(o); err != nil {
		return err
	}
	r, traffic, err := a.reportLab(ctx, o, l)
	if err == nil {
		err = a.tellLab(o, l, r, traffic)
	}
	return err
}

// tellLab prints the report, and tells whether its verdict is the one that the scenario expects.
func (a *app) tellLab(o *observing, l *lab.Lab, r report.Report, traffic []lab.FlowStats) error {
	s := l.Scenario()
	wrong := o.mismatches(s, r, traffic)
	j := o.Judgement()
	j.Trial = &report.Trial{Name: s.Name, File: inWorkspace(s.File), Line: s.Expect.Line, Wrong: wrong}
	if err := a.tell(o, r, j); err != nil {
		return err
	}
	if len(wrong) > 0 {
		return &statusError{1, fmt.Sprintf("unexpected verdict for %s: %s", s.Name, strings.Join(wrong, "; "))}
	}
	wanted := strings.Join(model.Map(s.Alone.Findings, scenario.Finding.String), ", ")
	a.say("verdict as expected for %s: %s", s.Name, cmp.Or(wanted, "no finding"))
	return nil
}

// reportLab observes the lab's broken node while its traffic flows, and judges it.
func (a *app) reportLab(ctx context.Context, o *observing, l *lab.Lab) (r report.Report, traffic []lab.FlowStats, err error) {
	err = a.inLab(ctx, o, l, func(ns *netns.NS, node string) error {
		snapshot, err := a.observe(ctx, o.session(ns, node))
		if err == nil {
			r, err = o.judge(snapshot, nil, nil)
			traffic = l.Stats()
		}
		return err
	})
	return r, traffic, err
}

// inLab calls look on the lab's broken node while its traffic runs.
func (a *app) inLab(ctx context.Context, o *observing, l *lab.Lab, look func(ns *netns.NS, node string) error) (err error) {
	remove, err := o.give(l.Scenario())
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, remove()) }()
	o.Active = o.Active || l.Scenario().Active
	node, err := observed(l)
	if err != nil {
		return err
	}
	o.HostRoot = cmp.Or(o.HostRoot, l.HostRoot(node.Name))
	ns, err := netns.Named(node.Netns)
	if err != nil {
		return err
	}
	defer ns.Close()

	a.say("starting its traffic")
	stop, err := startTraffic(ctx, l)
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, stop()) }()

	if s := l.Scenario(); s.Together() {
		a.say("watching only node %s; `lasthop lab up %s` shows how to watch %d nodes at the same time", node.Name, s.Name, len(s.Watch))
	}
	active := model.Either(o.Active, " --active", "")
	a.say("watching node %s: lasthop check --netns %s --host-root %s --for %v%s", node.Name, node.Netns, o.HostRoot, time.Duration(o.Window), active)
	return look(ns, node.Name)
}

// togetherWith are the commands that watch all nodes that the lab's scenario watches at the same time.
func togetherWith(l *lab.Lab) string {
	var record, judge []string
	for _, n := range watched(l) {
		record = append(record, fmt.Sprintf("lasthop record %s.rec --netns %s --host-root %s --for 10s &", n.Name, n.Netns, l.HostRoot(n.Name)))
		judge = append(judge, "--replay "+n.Name+".rec")
	}
	return strings.Join(record, " ") + " wait; lasthop check " + strings.Join(judge, " ")
}

// watched are the nodes that the lab's scenario watches, in its order.
func watched(l *lab.Lab) []lab.Node {
	return model.Flat(l.Scenario().Watch, func(w scenario.Watched) []lab.Node {
		return model.Filter(l.Nodes(), func(n lab.Node) bool { return n.Name == w.Node })
	})
}

func observed(l *lab.Lab) (lab.Node, error) {
	if n := model.Find(l.Nodes(), func(n lab.Node) bool { return n.Observed }); n.Observed {
		return n, nil
	}
	return lab.Node{}, errors.New("the scenario observes no node")
}

// churned is how often pods are made anew in a scenario with churn.
const churned = 15

// startTraffic returns once the lab's traffic flows, and pods begin to be made anew where the scenario says so. The
// returned function ends the traffic and returns its error.
func startTraffic(ctx context.Context, l *lab.Lab) (stop func() error, err error) {
	end, err := l.BeginTraffic(ctx)
	if err != nil || len(l.Scenario().Churn) == 0 {
		return end, err
	}
	churn := make(chan error, 1)
	go func() { churn <- l.Churn(ctx, l.Scenario().Churn, churned) }()
	return func() error { return errors.Join(<-churn, end()) }, nil
}

// mismatches says what differs from the verdict that the scenario expects.
func (o *observing) mismatches(s *scenario.Scenario, r report.Report, traffic []lab.FlowStats) []string {
	code := exitClean
	if status, failed := errors.AsType[*statusError](o.verdict(r)); failed {
		code = status.code
	}
	wrong := s.Alone.Mismatches(code, r.Findings)
	wrong = append(wrong, s.Expect.PluginMismatches(r.Snapshot.Node.Plugin, r.Snapshot.Node.PluginBy)...)
	wrong = append(wrong, s.Expect.LayerMismatches(r.Snapshot.Node.Policy, r.Snapshot.Node.Residue, r.Snapshot.Node.PluginBy)...)
	if s.Expect.Healthy() {
		wrong = append(wrong, unanswered(traffic, lostByAttaching(&r.Snapshot.Node))...)
	}
	return wrong
}

// lostByAttaching is how many requests of a flow may fail on a healthy node: the kernel
// drops what leaves by a link at the moment when clsact is made there.
func lostByAttaching(n *model.Node) uint64 {
	return model.Either[uint64](n.Attach == traffic.AttachClsact, 1, 0)
}

// unanswered names the flows of which more requests than may be lost were not answered,
// and the denied ones of which one was.
func unanswered(flows []lab.FlowStats, lost uint64) []string {
	bad := model.Filter(flows, func(f lab.FlowStats) bool {
		return f.Denied && f.Answered > 0 || !f.Denied && (f.Answered == 0 || f.Failed > lost)
	})
	return model.Map(bad, func(f lab.FlowStats) string {
		return fmt.Sprintf("%s got %d replies and failed %d times: %s", f.Flow, f.Answered, f.Failed, f.LastError)
	})
}

// give writes the scenario's files for --nodes, --pods and --routes. The returned function removes them.
func (o *observing) give(s *scenario.Scenario) (remove func() error, err error) {
	if !s.Files.Nodes && !s.Files.Pods && len(s.Files.Routes) == 0 {
		return func() error { return nil }, nil
	}
	dir, err := os.MkdirTemp("", "lasthop-files-")
	if err != nil {
		return nil, fmt.Errorf("create a directory for the scenario's files: %w", err)
	}
	write := func(name string, encode func() ([]byte, error)) string {
		path := filepath.Join(dir, name+".json")
		data, failed := encode()
		err = errors.Join(err, failed, os.WriteFile(path, data, 0o600))
		return path
	}
	if s.Files.Nodes {
		o.Nodes = write("nodes", s.NodesJSON)
	}
	if s.Files.Pods {
		o.Pods = write("pods", s.PodsJSON)
	}
	for _, k := range s.Files.Routes {
		o.Routes = append(o.Routes, write(string(k), func() ([]byte, error) { return s.RoutesJSON(k) }))
	}
	remove = func() error { return os.RemoveAll(dir) }
	if err != nil {
		return nil, errors.Join(err, remove())
	}
	return remove, nil
}
