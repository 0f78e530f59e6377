// Package diagnose turns a snapshot of a node into findings: which traffic dies where, and why. It is pure: it reads no
// clock, no file and no kernel, and the same snapshot always gives the same findings in the same order.
package diagnose

import (
	"cmp"
	"net/netip"
	"slices"

	"github.com/lasthop/lasthop/probe/fault"
	"github.com/lasthop/lasthop/probe/fault/silence"
	"github.com/lasthop/lasthop/probe/model"
	"github.com/lasthop/lasthop/probe/words"
)

// Kind is a kind of finding. What it means is in probe/catalogue.
type Kind struct {
	Code     model.Code
	Severity model.Severity
	// Verify is the command that shows whether a finding is still there.
	Verify string
}

// kind is how the findings of one code are made.
type kind struct {
	code     model.Code
	severity model.Severity
	find     func(*fault.Input)
	// before are kinds that would claim losses of this one's causes if they were judged first, and why.
	before map[model.Code]string
	// needs are the sources that must have been read whole.
	needs []string
	// rests are those of which an unread part may be the cause instead: without them nothing is proven.
	rests []string
	// ends are the kinds of hop at which the finding's packets end, the likeliest
	// first; nil leaves that to the tables and counts. passes: they do not end.
	ends   []model.HopKind
	passes bool
	// objects name the values that are the object whose state is the cause: of a line all, of several lines the first
	// whose values are there. Findings about other objects are others.
	objects []string
	// traits are what several nodes' comparison asks.
	traits model.Trait
}

// Kinds lists every kind of finding that Diagnose can report, in the order in which they are judged.
func Kinds() []Kind {
	return model.Map(kinds, func(k kind) Kind { return Kind{k.code, k.severity, Verify(k.code)} })
}

// Verify is the command that shows whether a finding is still there.
func Verify(code model.Code) string { return "lasthop check --only " + string(code) }

// Relate returns findings, which a recording may hold, with what the catalogue
// says of each and no recording holds: EndsAt, Passes and Traits.
func Relate(findings []model.Finding) []model.Finding {
	out := slices.Clone(findings)
	for i := range out {
		k := kindOf(out[i].Code)
		out[i].EndsAt, out[i].Passes, out[i].Traits = k.ends, k.passes, k.traits
	}
	return out
}

func kindOf(code model.Code) kind {
	return model.Find(kinds, func(k kind) bool { return k.code == code })
}

// Put words a finding of several nodes with the values of a page, and completes it with what its kind says.
func Put(page string, facts words.Facts, f *model.Finding) {
	k := kindOf(f.Code)
	facts["f"] = f
	words.Put(page, facts, f)
	f.Verify, f.Traits, f.Cause = Verify(f.Code), k.traits, words.Cause(f.Cause, facts, k.objects)
}

// Diagnose judges a snapshot. The findings are sorted: the worst and surest first, then by code and pod.
func Diagnose(s *model.Snapshot) []model.Finding { return Judge(s).Findings }

// Judge is Diagnose that also tells which losses each finding claims.
func Judge(s *model.Snapshot) model.Verdict {
	v := newInput(s)
	found := judge(v)
	for f := range model.Each(found) {
		words.PutRows(f)
	}
	return model.Verdict{On: s, Findings: found, Causes: causes(v), Silences: silence.Unreplied(v)}
}

// Sort puts findings into the order of Diagnose.
func Sort(list []model.Finding) {
	slices.SortStableFunc(list, func(a, b model.Finding) int {
		return cmp.Or(
			model.WorstFirst(&a, &b),
			cmp.Compare(b.Confidence.Rank(), a.Confidence.Rank()),
			cmp.Compare(a.Code, b.Code),
			slices.CompareFunc(a.Pods, b.Pods, netip.Addr.Compare),
			slices.CompareFunc(a.Peers, b.Peers, netip.Prefix.Compare),
			cmp.Compare(a.Title, b.Title),
		)
	})
}
