package join

import (
	"fmt"
	"net/netip"
	"slices"
	"strings"

	"github.com/lasthop/lasthop/probe/diagnose"
	"github.com/lasthop/lasthop/probe/model"
	"github.com/lasthop/lasthop/probe/words"
)

// merged makes one finding of those that several nodes tell of one cause.
func merged(list []told) []told {
	var groups [][]candidate
	of := map[string][]int{}
	silent := map[netip.Prefix]int{}
	for _, t := range list {
		f := newCandidate(t)
		k := kindOf(&f.Finding)
		at := slices.IndexFunc(of[k], func(g int) bool {
			return slices.ContainsFunc(groups[g], func(o candidate) bool { return oneCause(&o, &f) })
		})
		g := len(groups)
		if at >= 0 {
			g = of[k][at]
		}
		for _, p := range f.unrecorded {
			// What does not reply to several is the same, and was not recorded.
			if other, found := silent[p]; found {
				g = min(g, other)
			}
		}
		if g == len(groups) {
			of[k], groups = append(of[k], g), append(groups, nil)
		}
		groups[g] = append(groups[g], f)
		for _, p := range f.unrecorded {
			if other, found := silent[p]; !found || g < other {
				silent[p] = g
			}
		}
	}
	var out []told
	for _, g := range groups {
		out = append(out, mergeOne(g))
	}
	return out
}

// candidate is a finding with what tells whether another has the same cause.
type candidate struct {
	told
	// rows are the ranges of the routes of its fix. ownRoute is set where they lead to a
	// node's own pods and the peers are the others' ranges.
	rows     []netip.Prefix
	ownRoute bool
	// unrecorded are the peers, where all that is known is that one node gets no reply from
	// beyond its uplink.
	unrecorded []netip.Prefix
}

func newCandidate(t told) candidate {
	c := candidate{told: t}
	for _, r := range t.Rows {
		if r.Range.IsValid() {
			c.rows = append(c.rows, r.Range)
		}
	}
	c.ownRoute = len(c.rows) > 0 && !slices.ContainsFunc(t.Peers, func(p netip.Prefix) bool { return slices.Contains(c.rows, p) })
	if t.Code == diagnose.NoReply && t.Cause == "" && len(t.Nodes) == 1 && len(t.Fix) > 0 && len(t.EndsAt) == 1 && t.EndsAt[0] == model.HopBeyond {
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
	if !slices.Contains([]model.Code{diagnose.MissingUDR, diagnose.WrongUDR, diagnose.NoReply}, f.Code) {
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
	case a.Code == diagnose.MissingUDR || a.Code == diagnose.WrongUDR:
		alone := len(a.Nodes) == 1 && len(b.Nodes) == 1
		return within(a.rows, b.rows) || within(b.rows, a.rows) || alone && slices.Equal(a.Peers, b.Peers)
	}
	return false
}

// within reports whether all of some prefixes are among others.
func within(some, others []netip.Prefix) bool {
	return len(some) > 0 && !slices.ContainsFunc(some, func(p netip.Prefix) bool { return !slices.Contains(others, p) })
}

// mergeOne is the worst and surest of the findings with what the others add.
func mergeOne(list []candidate) told {
	slices.SortStableFunc(list, func(a, b candidate) int {
		if c := b.Severity.Rank() - a.Severity.Rank(); c != 0 {
			return c
		}
		if c := b.Confidence.Rank() - a.Confidence.Rank(); c != 0 {
			return c
		}
		switch {
		case a.ownRoute == b.ownRoute:
			return 0
		case a.ownRoute:
			return 1
		}
		return -1
	})
	f := list[0].told
	if len(list) == 1 {
		return f
	}
	f.Nodes, f.Pods, f.Peers, f.Evidence = slices.Clone(f.Nodes), slices.Clone(f.Pods), slices.Clone(f.Peers), slices.Clone(f.Evidence)
	f.at = slices.Clone(f.at)
	peers := map[netip.Prefix]bool{}
	for _, p := range f.Peers {
		peers[p] = true
	}
	for _, o := range list[1:] {
		for _, n := range o.Nodes {
			addNode(&f.Finding, n)
		}
		for _, n := range o.at {
			if !slices.Contains(f.at, n) {
				f.at = append(f.at, n)
			}
		}
		f.Pods = append(f.Pods, o.Pods...)
		for _, p := range o.Peers {
			if !peers[p] && o.ownRoute == list[0].ownRoute {
				peers[p], f.Peers = true, append(f.Peers, p)
			}
		}
		for _, e := range o.Evidence {
			if !slices.Contains(f.Evidence, e) {
				f.Evidence = append(f.Evidence, e)
			}
		}
		f.Packets += o.Packets
		if both := slices.DeleteFunc(slices.Clone(f.Fix), func(line string) bool { return !slices.Contains(o.Fix, line) }); len(both) > 0 && o.Confidence == f.Confidence {
			// What only one of the nodes has in doubt is not what both miss.
			f.Fix = both
		}
	}
	f.Pods = unique(f.Pods)
	slices.SortFunc(f.Peers, comparePrefix)
	if f.Code == diagnose.NoReply && f.Cause == "" {
		f.Title = words.Title(string(diagnose.NoReply), words.Facts{"remotes": prefixAddrs(f.Peers)})
	}
	if len(f.at) > 2 {
		f.Title = fmt.Sprintf("on %d nodes: %s", len(f.at), f.Title)
	}
	return f
}

// prefixAddrs are the addresses of prefixes that hold one each.
func prefixAddrs(list []netip.Prefix) []netip.Addr {
	var out []netip.Addr
	for _, p := range list {
		out = append(out, p.Addr())
	}
	return out
}
