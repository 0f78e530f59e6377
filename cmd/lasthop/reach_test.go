package main

import (
	"slices"
	"testing"

	"github.com/lasthop/lasthop/probe/model"
	"github.com/lasthop/lasthop/probe/report"
)

// checkReach wants the map of who reaches whom to agree with the findings: where nothing is wrong
// nothing is dead or lossy in it, and the row of a pod that a critical finding is about is.
func checkReach(t *testing.T, scenario string, r *report.Report) {
	t.Helper()
	faulty := func(x model.Reach) bool { return x.Rank() >= model.ReachLossy.Rank() }
	wrong := slices.ContainsFunc(r.Findings, func(f model.Finding) bool { return f.Severity != model.Info })
	for _, row := range r.Matrix.Rows {
		critical := model.First(r.Findings, func(f *model.Finding) bool {
			return f.Severity == model.Critical && slices.Contains(f.Pods, row.Pod)
		})
		if critical != nil && !faulty(row.Reach) || !wrong && faulty(row.Reach) {
			t.Errorf("the row of %s is %q; findings: %+v", row.Pod, row.Reach, critical)
		}
		for i, c := range row.Cells {
			if c != nil && faulty(c.Reach) && !wrong {
				t.Errorf("%s to %+v is %q: %+v", row.Pod, r.Matrix.Columns[i], c.Reach, c.Pairs)
			}
		}
		// A pod that nobody reaches is a dead row.
		if sick := critical != nil && critical.Code == "PodLinkDown"; scenario == "pod-interface-down" && row.Reach.Dead() != sick {
			t.Errorf("the row of %s is %q", row.Pod, row.Reach)
		}
	}
	// Nodes that no pod reaches are dead columns.
	if scenario == "missing-udr" {
		dead := 0
		for i, c := range r.Matrix.Columns {
			if column(r.Matrix, i).Dead() {
				dead++
			}
			if column(r.Matrix, i).Dead() != (c.Kind == model.ToNode) {
				t.Errorf("the column of %+v is %q", c, column(r.Matrix, i))
			}
		}
		if dead != 2 {
			t.Errorf("%d dead columns of %+v", dead, r.Matrix.Columns)
		}
	}
}

// column is the reach of all pods together to a destination.
func column(m model.Matrix, i int) model.Reach {
	out := model.ReachNone
	for _, r := range m.Rows {
		if r.Cells[i] != nil {
			out = out.Join(r.Cells[i].Reach)
		}
	}
	return out
}
