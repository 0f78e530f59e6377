package join

import (
	"cmp"
	"fmt"
	"net/netip"
	"slices"
	"strings"

	faults "github.com/lasthop/lasthop/probe/fault"
	"github.com/lasthop/lasthop/probe/model"
	"github.com/lasthop/lasthop/probe/words"
)

// merged makes one finding of those that several nodes tell of one cause.
func merged(list []nodeFinding) []nodeFinding {
	var groups [][]candidate
	of := map[string][]int{}
	for _, t := range list {
		c := newCandidate(t)
		k := kindOf(&c.Finding)
		at := slices.IndexFunc(of[k], func(i int) bool {
			return slices.ContainsFunc(groups[i], func(o candidate) bool { return oneCause(&o, &c) })
		})
		if at < 0 {
			at, of[k], groups = len(of[k]), append(of[k], len(groups)), append(groups, nil)
		}
		groups[of[k][at]] = append(groups[of[k][at]], c)
	}
	return model.Map(groups, mergeOne)
}

// candidate is a finding with what tells whether another has the same cause.
type candidate struct {
	nodeFinding
	// rows are the ranges of the routes of its fix. ownRoute is set where they lead to a
	// node's own pods and the peers are the others' ranges.
	rows     []netip.Prefix
	ownRoute bool
	// unrecorded are the peers, where all that is known is that one node gets no reply from beyond its uplink.
	unrecorded []netip.Prefix
}

func newCandidate(t nodeFinding) candidate {
	c := candidate{nodeFinding: t}
	for _, r := range t.Rows {
		if r.Range.IsValid() {
			c.rows = append(c.rows, r.Range)
		}
	}
	c.ownRoute = len(c.rows) > 0 && !slices.ContainsFunc(t.Peers,
		func(p netip.Prefix) bool { return slices.Contains(c.rows, p) })
	if t.Code == faults.NoReply && t.Cause == "" && len(t.Nodes) == 1 && len(t.Fix) > 0 && len(t.EndsAt) == 1 &&
		t.EndsAt[0] == model.HopBeyond {
		c.unrecorded = t.Peers
	}
	return c
}

// kindOf is the same for all findings that may be about one cause.
func kindOf(f *model.Finding) string {
	k := string(f.Code) + " " + f.Cause
	if len(f.Fix) == 0 {
		return k + " " + f.Title
	}
	if !slices.Contains([]model.Code{faults.MissingUDR, faults.WrongUDR, faults.NoReply}, f.Code) {
		k += " " + strings.Join(f.Fix, "\n")
	}
	return k
}

// oneCause reports whether two findings of one kind are about one cause: the same mends
// both, or the same routes are missing.
func oneCause(a, b *candidate) bool {
	switch {
	case len(a.Fix)+len(b.Fix) == 0 || slices.Equal(a.Fix, b.Fix):
		return true
	case a.Code == faults.MissingUDR || a.Code == faults.WrongUDR:
		alone := len(a.Nodes) == 1 && len(b.Nodes) == 1
		return within(a.rows, b.rows) || within(b.rows, a.rows) || alone && slices.Equal(a.Peers, b.Peers)
	}
	// What does not reply to several is the same, and was not recorded.
	return slices.ContainsFunc(a.unrecorded, func(p netip.Prefix) bool { return slices.Contains(b.unrecorded, p) })
}

func within(some, others []netip.Prefix) bool {
	return len(some) > 0 && !slices.ContainsFunc(some, func(p netip.Prefix) bool { return !slices.Contains(others, p) })
}

// mergeOne is the worst and surest of the findings with what the others add.
func mergeOne(list []candidate) nodeFinding {
	rank := map[bool]int{true: 1}
	slices.SortStableFunc(list, func(a, b candidate) int {
		return cmp.Or(b.Severity.Rank()-a.Severity.Rank(), b.Confidence.Rank()-a.Confidence.Rank(),
			rank[a.ownRoute]-rank[b.ownRoute])
	})
	f := list[0].nodeFinding
	if len(list) == 1 {
		return f
	}
	f.Nodes, f.at, f.Evidence = slices.Clip(f.Nodes), slices.Clip(f.at), slices.Clip(f.Evidence)
	f.Pods, f.Peers = slices.Clip(f.Pods), slices.Clone(f.Peers)
	for _, o := range list[1:] {
		f.Nodes, f.at, f.Evidence = model.With(f.Nodes, o.Nodes...), model.With(f.at, o.at...),
			model.With(f.Evidence, o.Evidence...)
		f.Pods = append(f.Pods, o.Pods...)
		if o.ownRoute == list[0].ownRoute {
			f.Peers = append(f.Peers, o.Peers...)
		}
		f.Packets += o.Packets
		if both := model.Filter(f.Fix, func(line string) bool { return slices.Contains(o.Fix, line) }); len(both) > 0 &&
			o.Confidence == f.Confidence {
			// What only one of the nodes has in doubt is not what both miss.
			f.Fix = both
		}
	}
	f.Pods = model.Unique(f.Pods)
	slices.SortFunc(f.Peers, netip.Prefix.Compare)
	f.Peers = slices.Compact(f.Peers)
	if f.Code == faults.NoReply && f.Cause == "" {
		f.Title = words.Title(string(faults.NoReply), words.Facts{"remotes": model.Map(f.Peers, netip.Prefix.Addr)})
	}
	if len(f.at) > 2 {
		f.Title = fmt.Sprintf("on %d nodes: %s", len(f.at), f.Title)
	}
	return f
}
