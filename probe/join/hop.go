package join

import (
	"net/netip"
	"slices"

	"github.com/lasthop/lasthop/probe/diagnose"
	"github.com/lasthop/lasthop/probe/model"
)

// nextHops finds the address of each node that routes to its pods have for a next hop:
// of several the one in a network of other nodes, and that these talk with.
func (j *joint) nextHops() {
	talked := map[netip.Addr]bool{}
	for _, o := range j.in {
		for p := range model.Each(o.Pairs) {
			if far := j.at[p.Remote]; o.Node[p.Local] && far != nil && far != o {
				talked[p.Remote] = true
			}
		}
	}
	for _, n := range j.in {
		n.hops = map[bool]netip.Addr{}
		for _, is4 := range []bool{true, false} {
			var found []netip.Addr
			for a := range n.Node {
				if a.IsGlobalUnicast() && a.Is4() == is4 && inAny(n.Networks, a) {
					found = append(found, a)
				}
			}
			found = narrowed(found, func(a netip.Addr) bool {
				return slices.ContainsFunc(j.in, func(o *node) bool { return o != n && inAny(o.Networks, a) })
			})
			found = narrowed(found, func(a netip.Addr) bool { return talked[a] })
			if len(found) == 1 {
				n.hops[is4] = found[0]
			}
		}
		n.Rows = model.Map(n.Rows, n.withHop)
	}
}

// withHop is a row to pods of the node with the next hop that it needs, where that is known.
func (n *node) withHop(row model.Row) model.Row {
	if hop := n.hop(row.Range); hop.IsValid() && row.Hop == diagnose.NodeIP {
		row.Hop = hop.String()
	}
	return row
}

// narrowed are those of a list that match, or all if none does.
func narrowed(list []netip.Addr, match func(netip.Addr) bool) []netip.Addr {
	if some := chosen(list, match); len(some) > 0 {
		return some
	}
	return list
}

// hop is the node's address that a route to a range of its pods has for a next hop; not
// valid where that is not known.
func (n *node) hop(row netip.Prefix) netip.Addr { return n.hops[row.Addr().Is4()] }

// anyHop is the node's address, of the family that it has, in words.
func (n *node) anyHop() string {
	for _, is4 := range []bool{true, false} {
		if hop := n.hops[is4]; hop.IsValid() {
			return hop.String()
		}
	}
	return diagnose.NodeIP
}

// hopOr is hop for a finding, which is then likely at most where that is not known.
func (n *node) hopOr(row netip.Prefix, f *found) string {
	if hop := n.hop(row); hop.IsValid() {
		return hop.String()
	}
	f.Confidence = model.Likely
	nodes, _ := f.facts["unknownHops"].([]*node)
	f.facts["unknownHops"] = append(nodes, n)
	return diagnose.NodeIP
}
