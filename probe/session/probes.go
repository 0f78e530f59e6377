package session

import (
	"context"
	"fmt"
	"strings"

	"github.com/lasthop/lasthop/probe/active"
	"github.com/lasthop/lasthop/probe/diagnose"
	"github.com/lasthop/lasthop/probe/model"
)

// probe sends the probes that Diagnose wants answered and adds the results to the snapshot. Counters and state
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
