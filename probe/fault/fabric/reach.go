package fabric

import (
	"net/netip"
	"slices"

	"github.com/lasthop/lasthop/probe/node"
)

// ownerSilent reports whether the range's node is known and did not answer an echo.
func ownerSilent(v *node.Index, r *node.RemoteRange) bool {
	return !node.OwnerAnswers(v, r) && slices.ContainsFunc(v.OwnerAddrs(r),
		func(a netip.Addr) bool { return v.Echoed(a) != nil })
}
