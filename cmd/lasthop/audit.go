package main

import (
	"context"
	"net/netip"
	"time"

	"github.com/spf13/cobra"

	"github.com/lasthop/lasthop/cmd/flags"
	"github.com/lasthop/lasthop/probe/audit"
	"github.com/lasthop/lasthop/probe/model"
	"github.com/lasthop/lasthop/probe/report"
	"github.com/lasthop/lasthop/probe/session"
)

func (a *app) auditCommand() *cobra.Command {
	o := &observing{}
	var diff string
	var policies bool
	cmd := &cobra.Command{
		Use:  "audit [POD…]",
		RunE: func(cmd *cobra.Command, args []string) error { return a.audit(cmd.Context(), o, args, diff, policies) },
	}
	o.Pick(cmd.Flags(), "netns", "host-root", "uplink", "pod-cidr", "nodes", "pods", "routes", "namespace", "all-namespaces", "selector",
		"only", "skip", "fail-on", "strict", "output", "redact", "color", "debug", "report", "github", "replay")
	o.Output.Of = []string{string(report.Text), string(report.JSON)}
	o.Engine.Value, o.Window = session.EngineState, flags.Window(time.Millisecond)
	cmd.Flags().StringVar(&diff, "diff", "", "only what died since this `FILE` was recorded")
	cmd.Flags().BoolVar(&policies, "policies", false, "list all that policies deny, not only the first")
	return cmd
}

func (a *app) audit(ctx context.Context, o *observing, pods []string, diff string, policies bool) error {
	if err := o.validate(); err != nil {
		return err
	}
	if len(o.Replay) > 1 {
		return usagef("audit: want a single recording")
	}
	var before *model.Snapshot
	if diff != "" {
		s, err := a.recorded(&observing{Observing: flags.Observing{Replay: []string{diff}, Given: o.Given}}, nil, nil)
		if err != nil {
			return err
		}
		before = &s
	}
	if err := a.openBeside(o); err != nil {
		return err
	}
	return a.snapshot(ctx, o, nil, nil, nil, func(s *model.Snapshot) error {
		focus, err := o.choosePods(s, pods)
		if err != nil {
			return err
		}
		r := o.audited(s, before, focus)
		r.Policies = policies
		if err := a.tell(o, r, o.Judgement()); err != nil {
			return err
		}
		return o.verdict(r)
	})
}

// audited audits the state of a node, and leaves out what an earlier one had, if there is one.
func (o *observing) audited(s, before *model.Snapshot, focus []netip.Addr) report.Report {
	hide := o.redactor()
	s, focus = hide.Snapshot(s), hide.Addrs(focus)
	collectOften()
	found := audit.Run(s, focus)
	if before != nil {
		found = found.Since(audit.Run(hide.Snapshot(before), nil))
	}
	return report.Report{
		Snapshot: found.On, Audit: found.Audit, Focus: focus, Limits: o.Limits(), Findings: o.Choose(found.Findings, focus),
	}
}
