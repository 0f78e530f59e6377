package join

import (
	"cmp"
	"fmt"
	"net/netip"
	"slices"

	"github.com/lasthop/lasthop/probe/model"
	"github.com/lasthop/lasthop/probe/words"
)

// grouped are the findings, those together that several nodes tell of one cause.
func grouped(list []nodeFinding) [][]nodeFinding {
	var groups [][]nodeFinding
	of := map[model.Key][]int{}
	for t := range model.Each(list) {
		k := t.Key()
		at := model.First(of[k], func(i *int) bool {
			return slices.ContainsFunc(groups[*i], func(o nodeFinding) bool { return oneCause(&o, t) })
		})
		if at == nil {
			of[k], groups = append(of[k], len(groups)), append(groups, nil)
			at = &of[k][len(of[k])-1]
		}
		groups[*at] = append(groups[*at], *t)
	}
	return groups
}

// ranges are those of the routes of the finding's fix.
func (t *nodeFinding) ranges() []netip.Prefix {
	return model.Filter(model.Map(t.Rows, func(r model.Row) netip.Prefix { return r.Range }), netip.Prefix.IsValid)
}

// ownRoute reports whether the routes of the fix lead to a node's own pods, and the peers are the others' ranges.
func (t *nodeFinding) ownRoute() bool {
	rows := t.ranges()
	return len(rows) > 0 && !model.Meet(t.Peers, rows)
}

// oneCause reports whether two findings with one key have one cause: the same object on several nodes or, where none is
// known, the same peers are not reached beyond them. Of what is only not heard of, the same routes are missing, or the
// same addresses that were not recorded reply to nobody.
func oneCause(a, b *nodeFinding) bool {
	if !a.Is(model.Unheard) {
		return a.Cause != "" || a.Same(&b.Finding) ||
			slices.Contains(a.EndsAt, model.HopBeyond) && model.Meet(a.Peers, b.Peers)
	}
	rows, others := a.ranges(), b.ranges()
	return within(rows, others) || within(others, rows) || len(a.Nodes) == 1 && len(b.Nodes) == 1 &&
		(slices.Equal(a.Peers, b.Peers) || !a.Is(model.Astray) && model.Meet(a.Peers, b.Peers))
}

func within(some, others []netip.Prefix) bool {
	return len(some) > 0 && !slices.ContainsFunc(some, func(p netip.Prefix) bool { return !slices.Contains(others, p) })
}

// mergeOne is the worst and surest of the findings with what the others add.
func mergeOne(list []nodeFinding) nodeFinding {
	rank := map[bool]int{true: 1}
	slices.SortStableFunc(list, func(a, b nodeFinding) int {
		return cmp.Or(b.Severity.Rank()-a.Severity.Rank(), b.Confidence.Rank()-a.Confidence.Rank(),
			rank[a.ownRoute()]-rank[b.ownRoute()])
	})
	f := list[0]
	if len(list) == 1 {
		return f
	}
	f.Nodes, f.at, f.Evidence = slices.Clip(f.Nodes), slices.Clip(f.at), slices.Clip(f.Evidence)
	f.Pods, f.Peers = slices.Clip(f.Pods), slices.Clone(f.Peers)
	for _, o := range list[1:] {
		f.Nodes, f.at, f.Evidence = model.With(f.Nodes, o.Nodes...), model.With(f.at, o.at...),
			model.With(f.Evidence, o.Evidence...)
		f.Pods = append(f.Pods, o.Pods...)
		if o.ownRoute() == list[0].ownRoute() {
			f.Peers = append(f.Peers, o.Peers...)
		}
		f.Packets += o.Packets
		for _, steps := range stepsOf {
			list := steps(&f.Finding)
			both := model.Filter(*list, func(line string) bool { return slices.Contains(*steps(&o.Finding), line) })
			if f.Is(model.Unheard) && len(both) > 0 && o.Confidence == f.Confidence {
				// What only one of the nodes has in doubt is not what both miss.
				*list = both
			}
		}
	}
	f.Pods = model.Unique(f.Pods)
	slices.SortFunc(f.Peers, netip.Prefix.Compare)
	f.Peers = slices.Compact(f.Peers)
	if f.Silent() {
		f.Title = words.Title(string(f.Code), words.Facts{"remotes": model.Map(f.Peers, netip.Prefix.Addr)})
	}
	if len(f.at) > 2 {
		f.Title = fmt.Sprintf("on %d nodes: %s", len(f.at), f.Title)
	}
	return f
}
