package join

import (
	"maps"
	"net/netip"
	"slices"

	"github.com/lasthop/lasthop/probe/diagnose"
	faults "github.com/lasthop/lasthop/probe/fault"
	"github.com/lasthop/lasthop/probe/model"
	"github.com/lasthop/lasthop/probe/words"
)

// oneRange makes causes of the ranges that several nodes have, and of the addresses that pods of several have, where packets
// for these ranges, or from there, get no reply: a route leads to one of the nodes. What a node has for itself alone, as for
// containers, nobody else asks.
func (j *joint) oneRange() {
	by := map[netip.Prefix][]*node{}
	for _, n := range j.in {
		for _, r := range model.With(slices.Clone(n.Own), n.Ranges...) {
			if first := by[r]; len(first) == 0 || model.Meet(first[0].Networks, n.Networks) {
				by[r] = model.With(first, n)
			}
		}
	}
	maps.DeleteFunc(by, func(_ netip.Prefix, nodes []*node) bool { return len(nodes) < 2 })
	shared := slices.Collect(maps.Keys(by))
	for a, only := range j.at {
		if only != nil || model.InAny(shared, a) {
			continue
		}
		has := model.Filter(j.in, func(n *node) bool { return n.Pods[a] && !n.Fresh[a] })
		if len(has) > 1 &&
			slices.ContainsFunc(has, func(n *node) bool { return model.InAny(slices.Concat(n.Own, n.Ranges, n.Networks), a) }) {
			by[model.Host(a)] = has
		}
	}
	for r, nodes := range by {
		c := cause{node: nodes[0], rows: []netip.Prefix{r}, twins: nodes}
		if c.asked = j.askedInVain(c.accounts); len(c.asked) > 0 {
			j.cause(r, c)
		}
	}
	slices.SortFunc(j.causes, func(a, b *cause) int { return netip.Prefix.Compare(a.rows[0], b.rows[0]) })
}

// sharedRange is the finding on several nodes that have one range for their pods.
func (c *cause) sharedRange() model.Finding {
	r, nodes := c.rows[0], sortedNodes(slices.Values(c.twins))
	f := faults.Fault{Page: "DuplicatePodIP-range", Finding: model.Finding{Code: "DuplicatePodIP", Peers: []netip.Prefix{r}, Pods: c.pods(),
		Nodes: model.Map(nodes, (*node).String),
		Cause: r.String(), EndsAt: []model.HopKind{model.HopBeyond}}}
	f.Facts = words.Facts{"nodes": nodes, "range": r, "alone": r.IsSingleIP(), "asked": c.observeAsked(&f.Finding)}
	for _, packets := range c.asked {
		f.Packets += packets
	}
	return diagnose.Joined(f)
}
