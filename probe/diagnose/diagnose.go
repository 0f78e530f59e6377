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
	"github.com/lasthop/lasthop/probe/node"
	"github.com/lasthop/lasthop/probe/words"
)

// Kinds lists every kind of finding that Judge can report, in the order in which they are judged.
func Kinds() []fault.Kind { return kinds }

// Relate returns findings, which a recording may hold, with what the catalogue
// says of each and no recording holds: EndsAt, Passes and Traits.
func Relate(findings []model.Finding) []model.Finding {
	out := slices.Clone(findings)
	for i := range out {
		k := kindOf(out[i].Code)
		out[i].EndsAt, out[i].Passes, out[i].Traits = k.Ends, k.Passes, k.Traits
	}
	return out
}

func kindOf(code model.Code) fault.Kind {
	return model.Find(kinds, func(k fault.Kind) bool { return k.Code == code })
}

// Joined completes a fault that several nodes show together, as judge does one of a node.
func Joined(f fault.Fault) model.Finding {
	k := kindOf(f.Code)
	f.Complete(&k)
	f.Verify, f.Traits, f.Cause = k.Verify(), k.Traits, words.Cause(f.Cause, f.Facts, k.Objects)
	return f.Finding
}

// Judge judges a snapshot. The findings are sorted: the worst and surest first, then by code and pod.
func Judge(s *model.Snapshot) model.Verdict { return Indexed(node.New(s)) }

// Indexed is Judge for a snapshot whose index there is.
func Indexed(index *node.Index) model.Verdict {
	v := inputOf(index)
	found := judge(v)
	for f := range model.Each(found) {
		words.PutRows(f)
	}
	return model.Verdict{On: index.Whole, Findings: found, Causes: causes(v), Silences: silence.Unreplied(v)}
}

// Sort puts findings into the order of Judge.
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
