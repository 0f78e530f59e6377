package joint

import (
	"net/netip"
	"time"

	"github.com/lasthop/lasthop/cmd/flags"
	"github.com/lasthop/lasthop/probe/audit"
	"github.com/lasthop/lasthop/probe/diagnose"
	"github.com/lasthop/lasthop/probe/fault/bridge"
	"github.com/lasthop/lasthop/probe/ledger"
	"github.com/lasthop/lasthop/probe/model"
	"github.com/lasthop/lasthop/probe/node"
	"github.com/lasthop/lasthop/probe/path"
	"github.com/lasthop/lasthop/probe/reach"
	"github.com/lasthop/lasthop/probe/record"
	"github.com/lasthop/lasthop/probe/redact"
	"github.com/lasthop/lasthop/probe/report"
	"github.com/lasthop/lasthop/probe/timeline"
)

// Node is what one node's snapshot shows to a user who asked about some addresses, with what came and went before its
// end. draws: a document will draw paths. tables: pods without packets are judged too, by the tables.
func Node(s *model.Snapshot, past []model.Tracked, v *flags.Verdict, focus []netip.Addr, draws, tables bool) report.Report {
	index := node.New(s)
	judged := diagnose.Indexed(index)
	found := WithPast(judged, past)
	if tables {
		found = append(found, audit.Beside(index, found, focus)...)
		diagnose.Sort(found)
	}
	r := report.Report{
		Snapshot: s, Rewrites: bridge.MACRewrites(s), Focus: focus, Limits: v.Limits(),
		Causes: judged.Causes, Silences: judged.Silences, Ledger: ledger.Balance(s, judged.Causes),
		Matrix:   reach.Matrix(judged),
		Findings: v.Choose(found, focus),
	}
	for i := 0; draws && i < min(len(r.Findings), mostPaths); i++ {
		var p *model.Path
		if f := r.Findings[i]; len(f.Pods) > 0 {
			ends, _ := ChoosePeer(s, f.Pods, []model.Finding{f})
			traced := path.Trace(s, r.Findings, ends)
			p = &traced
		}
		r.Paths = append(r.Paths, p)
	}
	return r
}

// WithPast are the findings of a verdict, and what came and went.
func WithPast(v model.Verdict, past []model.Tracked) []model.Finding {
	out := diagnose.Relate(timeline.Told(v.Findings, past))
	diagnose.Sort(out)
	return out
}

// Diagnose judges what is shown: with other names and addresses, unless hide is nil.
func Diagnose(hide *redact.Redactor) func(*model.Snapshot) model.Verdict {
	return func(s *model.Snapshot) model.Verdict { return diagnose.Judge(hide.Snapshot(s)) }
}

// Recorded is the last part of a recording, 0 for all of it, and what a continuous observation of it would have
// told. The snapshot has the real names and addresses.
func Recorded(f *record.File, last time.Duration, hide *redact.Redactor) (
	s model.Snapshot, past []model.Tracked, err error,
) {
	s, past, err = f.Told(last, Diagnose(hide))
	if err != nil || hide != nil {
		return s, past, err
	}
	// Of what began before its recording, or was open at its end, a node knew more than that shows.
	known, err := f.Findings(f.Len() - 1)
	return s, append(past, model.Filter(known, func(x model.Tracked) bool {
		again := model.First(past, func(y *model.Tracked) bool { return x.Same(&y.Finding) }) != nil
		return x.Closed && x.First.Before(f.At(0)) && x.Last.After(s.Window.Start) || !x.Closed && !again
	})...), err
}

// unsettled is how long after the beginning of a recording a finding may open that is older.
const unsettled = 3 * time.Second

// Had are the findings that a node had while it was recorded, with the time at which those opened that were not
// there when the window began.
func Had(f *record.File, since time.Time, hide *redact.Redactor) ([]model.Tracked, error) {
	r, err := f.Reading(f.Len() - 1)
	told := r.Findings
	if err == nil && hide != nil {
		// Theirs have the real names.
		_, told, err = f.Told(r.At.Sub(since), Diagnose(hide))
	}
	for x := range model.Each(told) {
		if x.First.Before(since.Add(unsettled)) {
			x.First = time.Time{}
		}
	}
	return told, err
}
