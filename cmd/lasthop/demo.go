package main

import (
	"context"
	"errors"
	"fmt"
	"os"
	"strings"
	"time"

	"github.com/spf13/cobra"

	"github.com/lasthop/lasthop/kind/lab"
	"github.com/lasthop/lasthop/kind/scenario"
	"github.com/lasthop/lasthop/probe/netns"
	"github.com/lasthop/lasthop/probe/report"
)

// defaultDemo is the best fault to begin with.
const defaultDemo = "stale-mac-rewrite"

func (a *app) demoCommand() *cobra.Command {
	o := &observing{}
	cmd := &cobra.Command{
		Use:   "demo [SCENARIO|FILE]",
		Short: "Break a node in a lab, and show it on the live screen or check it",
		Long: "Build a node in network namespaces, break it as the scenario says, send traffic,\n" +
			"show it on the live screen, and remove everything. If standard input or output\n" +
			"is not a terminal, or with --for, --active or --output, check it instead.\n\n" +
			"Exit status: 0 when the screen was left, or the verdict is the one that the\n" +
			"scenario expects.",
		Args:              cobra.MaximumNArgs(1),
		ValidArgsFunction: completeScenarios,
		RunE: func(cmd *cobra.Command, args []string) error {
			name := defaultDemo
			if len(args) > 0 {
				name = args[0]
			}
			return a.demo(cmd.Context(), o, name, a.onScreen() && !wantsReport(cmd.Flags()) && !cmd.Flags().Changed("for"))
		},
	}
	// The lab decides which node is watched, so the flags about that are missing.
	o.pick(cmd.Flags(), "for", "active", "output", "color", "debug")
	o.registerScreen(cmd.Flags())
	return cmd
}

func (a *app) demo(ctx context.Context, o *observing, name string, screen bool) (err error) {
	s, err := load(name)
	if err != nil {
		return err
	}
	id := fmt.Sprintf("demo%d", os.Getpid())
	a.say("building the lab %s: %s", id, s.Title)
	l, err := lab.Up(ctx, s, lab.Options{ID: id, Log: a.say})
	if err != nil {
		return err
	}
	defer func() {
		a.say("taking the lab down")
		err = errors.Join(err, down(ctx, l))
	}()
	if screen {
		return a.inLab(ctx, o, l, func(ns *netns.NS, node string) error { return a.liveOn(ctx, o, ns, node) })
	}
	return a.checkLab(ctx, o, l)
}

// checkLab prints the report on the lab's broken node, and compares the verdict
// with the one that the scenario expects.
func (a *app) checkLab(ctx context.Context, o *observing, l *lab.Lab) error {
	r, traffic, err := a.reportLab(ctx, o, l, func() error { return nil })
	if err != nil {
		return err
	}
	if err := a.print(o, r); err != nil {
		return err
	}
	return a.compare(o, l.Scenario(), r, traffic)
}

// reportLab observes the lab's broken node and judges it, once the traffic flows
// and started has returned.
func (a *app) reportLab(ctx context.Context, o *observing, l *lab.Lab, started func() error) (r report.Report, traffic []lab.FlowStats, err error) {
	err = a.inLab(ctx, o, l, func(ns *netns.NS, node string) error {
		if err := started(); err != nil {
			return err
		}
		snapshot, err := a.observe(ctx, o.session(ns, node))
		if err != nil {
			return err
		}
		r, err = o.judge(snapshot, nil)
		traffic = l.Stats()
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
	o.active = o.active || l.Scenario().Active
	node, err := observed(l)
	if err != nil {
		return err
	}
	if l.Scenario().Files.Host {
		o.hostRoot = l.HostRoot(node.Name)
	}
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

	flags := ""
	if o.active {
		flags = " --active"
	}
	a.say("watching node %s: lasthop check --netns %s --for %v%s", node.Name, node.Netns, time.Duration(o.window), flags)
	return look(ns, node.Name)
}

func observed(l *lab.Lab) (lab.Node, error) {
	for _, n := range l.Nodes() {
		if n.Observed {
			return n, nil
		}
	}
	return lab.Node{}, errors.New("the scenario observes no node")
}

// startTraffic returns once the lab's traffic flows. The returned function ends
// the traffic and returns its error.
func startTraffic(ctx context.Context, l *lab.Lab) (stop func() error, err error) {
	ctx, cancel := context.WithCancel(ctx)
	ready := make(chan struct{})
	done := make(chan error, 1)
	go func() { done <- l.RunTraffic(ctx, func() { close(ready) }) }()
	stop = func() error {
		cancel()
		if err := <-done; err != nil && !errors.Is(err, context.Canceled) {
			return fmt.Errorf("run traffic: %w", err)
		}
		return nil
	}
	select {
	case <-ready:
		return stop, nil
	case err := <-done:
		cancel()
		if err == nil {
			err = errors.New("it ended immediately")
		}
		return nil, fmt.Errorf("run traffic: %w", err)
	}
}

// compare checks the verdict against the one that the scenario expects.
func (a *app) compare(o *observing, s *scenario.Scenario, r report.Report, traffic []lab.FlowStats) error {
	code := exitClean
	var status *statusError
	if errors.As(o.verdict(r), &status) {
		code = status.code
	}
	wrong := s.Expect.Mismatches(code, r.Findings)
	wrong = append(wrong, s.Expect.PluginMismatches(r.Snapshot.Node.Plugin, r.Snapshot.Node.PluginBy)...)
	wrong = append(wrong, s.Expect.LayerMismatches(r.Snapshot.Node.Policy, r.Snapshot.Node.Residue, r.Snapshot.Node.PluginBy)...)
	if s.Expect.Healthy() {
		wrong = append(wrong, unanswered(traffic)...)
	}
	if len(wrong) > 0 {
		return &statusError{1, fmt.Sprintf("the verdict is not the one that %s expects: %s", s.Name, strings.Join(wrong, "; "))}
	}
	a.say("this is the verdict that %s expects: %s", s.Name, expected(s.Expect))
	return nil
}

// unanswered names the flows of which not every request was answered, and the
// denied ones of which one was.
func unanswered(traffic []lab.FlowStats) []string {
	var out []string
	for _, f := range traffic {
		if f.Denied && f.Answered > 0 || !f.Denied && (f.Answered == 0 || f.Failed > 0) {
			out = append(out, fmt.Sprintf("%s answered %d times and failed %d: %s", f.Flow, f.Answered, f.Failed, f.LastError))
		}
	}
	return out
}

func expected(e scenario.Expect) string {
	if len(e.Findings) == 0 {
		return "no finding"
	}
	var words []string
	for _, f := range e.Findings {
		words = append(words, f.String())
	}
	return strings.Join(words, ", ")
}
