// Package route finds faults of the node's routes, routing rules and forwarding.
package route

import (
	"net/netip"

	"github.com/lasthop/lasthop/probe/model"
	"github.com/lasthop/lasthop/probe/node"
	"github.com/lasthop/lasthop/probe/path"
	"github.com/lasthop/lasthop/probe/words"
)

// dropEvidence are the pairs of addresses that lost most.
func dropEvidence(drops []*model.Drop) []model.Evidence {
	return words.Say("drops", words.Facts{"lost": node.MostDropped(drops)})
}

// say is what a page says of a part of a finding.
func say(page string, facts words.Facts) (f model.Finding) {
	words.Put(page, facts, &f)
	return f
}

// unroutable is the address that no route leads to, because of which the kernel
// refused a packet: where it was for or, to the reverse path filter, its source.
func unroutable(v *node.Index, d *model.Drop) (netip.Addr, bool) {
	var a netip.Addr
	var decision path.Decision
	switch {
	case d.Link == "":
		return a, false
	case d.Is(model.NoRoute):
		a, decision = d.Dst, v.Routing().Lookup(v.Arrived(d))
	case d.Is(model.ReverseFiltered) && v.Own[d.Src] == nil:
		a, decision = d.Src, v.ReturnPath(d)
	default:
		return a, false
	}
	return a, decision.Route == nil && !decision.Discards()
}
