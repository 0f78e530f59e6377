package main

import (
	"cmp"
	"context"
	"fmt"
	"net/netip"
	"slices"

	"github.com/spf13/cobra"

	"github.com/lasthop/lasthop/cmd/flags"
	"github.com/lasthop/lasthop/cmd/joint"
	"github.com/lasthop/lasthop/probe/diagnose"
	"github.com/lasthop/lasthop/probe/model"
	"github.com/lasthop/lasthop/probe/path"
	"github.com/lasthop/lasthop/probe/report"
)

func (a *app) explainCommand() *cobra.Command {
	o := &observing{}
	var to string
	cmd := &cobra.Command{
		Use:  "explain POD [--to IP[:PORT][/PROTO]]",
		Args: oneArgument("POD"),
		RunE: func(cmd *cobra.Command, args []string) error { return a.explain(cmd.Context(), o, args[0], to) },
	}
	cmd.Flags().StringVar(&to, "to", "", "the destination, an `IP[:PORT][/PROTO]`, [IPv6]:PORT, or a pod on this node "+
		"(default the peer of the worst finding, or the busiest)")
	o.Register(cmd.Flags(), "idle-exit", "pcap")
	o.complete(cmd)
	return cmd
}

func (a *app) explain(ctx context.Context, o *observing, pod, to string) error {
	target, err := flags.ParseTarget(to)
	if err != nil {
		return &usageError{err}
	}
	if err := a.openPast(o); err != nil {
		return err
	}
	if err := a.openBeside(o); err != nil {
		return err
	}
	return a.explained(ctx, o, pod, target, func(r report.Path, err error) error {
		if err == nil {
			err = a.tell(o, r, o.Judgement())
		}
		if err != nil {
			return err
		}
		return o.pathVerdict(r)
	})
}

func (a *app) explained(ctx context.Context, o *observing, pod string, target flags.Target, tell func(report.Path, error) error) error {
	if len(o.Replay) > 1 {
		return tell(a.explainTogether(o, pod, target))
	}
	var past []model.Tracked
	return a.snapshot(ctx, o, func(s *model.Snapshot) ([]netip.Addr, error) {
		addrs, _, err := o.ends(s, pod, target)
		return addrs, err
	}, nil, &past, func(s *model.Snapshot) error { return tell(o.trace(s, past, pod, target)) })
}

// trace follows the path of a pod's packets in a snapshot, with the findings that came and went.
func (o *observing) trace(s *model.Snapshot, past []model.Tracked, pod string, t flags.Target) (report.Path, error) {
	addrs, ends, err := o.ends(s, pod, t)
	if err != nil {
		return report.Path{}, err
	}
	hide := o.redactor()
	s, addrs = hide.Snapshot(s), hide.Addrs(addrs)
	ends.Pod, ends.To = hide.Addr(ends.Pod), hide.Addr(ends.To)
	findings := o.Choose(joint.WithPast(diagnose.Judge(s), past), addrs)
	r := report.Path{Snapshot: s, Limits: o.Limits()}
	if !ends.To.IsValid() {
		ends, r.Choice = joint.ChoosePeer(s, addrs, findings)
	}
	r.Path = path.Trace(s, findings, ends)
	r.Take(findings)
	return r, nil
}

// pathVerdict is a path's exit status. A hop at which packets end for a finding below
// --fail-on is no failure, as in check.
func (o *observing) pathVerdict(r report.Path) error {
	if r.Fails(o.Judgement().FailOn) {
		return &statusError{code: exitFindings}
	}
	err := o.verdict(report.Report{Snapshot: r.Snapshot, Findings: r.Findings})
	if err == nil && r.Far != nil {
		err = o.verdict(report.Report{Snapshot: r.Far})
	}
	return err
}

// ends are a pod's addresses, and the ends of packets from it. Without a destination To is not valid.
func (o *observing) ends(s *model.Snapshot, name string, t flags.Target) (pod []netip.Addr, e path.Ends, err error) {
	if pod, err = o.choosePods(s, []string{name}); err != nil {
		return nil, e, err
	}
	if len(pod) == 0 {
		return nil, e, usagef("the pod has no address")
	}
	candidates := []netip.Addr{t.Addr}
	if t.Pod != "" {
		if candidates, err = choosePods(s, []string{t.Pod}, selection{namespace: o.Namespace}); err != nil {
			there, several := remotePods(s, t.Pod, o.Namespace)
			if err = cmp.Or(several, err); there == nil {
				if len(s.Cluster.Pods) == 0 {
					err = fmt.Errorf("%w\nthe names of other nodes' pods are unknown here: for one of these use its address, "+
						"or observe with --pods FILE", err)
				}
				return nil, e, fmt.Errorf("--to: %w", err)
			}
			candidates = there
		}
	}
	e = path.Ends{Pod: pod[0], Port: t.Port, Proto: t.Proto}
	if !t.Addr.IsValid() && t.Pod == "" {
		return pod, e, nil
	}
	if slices.ContainsFunc(s.Routes, func(r model.Route) bool { return r.Type == "broadcast" && r.Dst == model.Host(t.Addr) }) {
		return nil, e, usagef("--to %s: want a unicast address, not a broadcast address", t.Addr)
	}
	for _, to := range candidates {
		for _, from := range pod {
			if from.Is4() == to.Is4() {
				e.Pod, e.To = from, to
				return pod, e, nil
			}
		}
	}
	return nil, e, usagef("the pod has no address of the same family as %s", candidates[0])
}
