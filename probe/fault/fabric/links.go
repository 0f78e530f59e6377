package fabric

import (
	"net/netip"

	"github.com/lasthop/lasthop/probe/model"
	"github.com/lasthop/lasthop/probe/node"
)

func podsIn(v *node.Index, ranges []netip.Prefix) []netip.Addr {
	return model.Filter(node.Sorted(v.Owners), func(a netip.Addr) bool { return model.InAny(ranges, a) })
}
