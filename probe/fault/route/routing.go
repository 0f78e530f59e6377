package route

import (
	"net/netip"

	"github.com/lasthop/lasthop/probe/model"
	"github.com/lasthop/lasthop/probe/node"
	"github.com/lasthop/lasthop/probe/path"
)

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
	case d.Is(model.ReverseFiltered) && !v.NodeAddrs[d.Src]:
		a, decision = d.Src, v.ReturnPath(d)
	default:
		return a, false
	}
	return a, decision.Route == nil && !decision.Discards()
}
