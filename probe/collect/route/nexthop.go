package route

import (
	"context"
	"encoding/binary"

	"golang.org/x/sys/unix"

	"github.com/lasthop/lasthop/probe/collect/dump"
	"github.com/lasthop/lasthop/probe/model"
)

// nexthop is a nexthop object (ip-nexthop(8), Linux 5.3): one next hop, or a group of others.
type nexthop struct {
	id    uint32
	hop   model.Route
	group []uint32
}

// nexthops lists the objects by their numbers.
func nexthops(ctx context.Context, c dump.Dumper) (map[uint32]nexthop, error) {
	request := make([]byte, nexthopHeaderLen)
	list, err := dump.List(ctx, "list nexthop objects", c, unix.RTM_GETNEXTHOP, request, unix.RTM_NEWNEXTHOP, decodeNexthop)
	return model.Table(list, func(n *nexthop) (uint32, nexthop) { return n.id, *n }), err
}

// nexthopHeaderLen is the size of struct nhmsg, groupMember that of struct nexthop_grp, which begins with the number of
// the object (include/uapi/linux/nexthop.h).
const (
	nexthopHeaderLen = 8
	groupMember      = 8
)

// decodeNexthop decodes an RTM_NEWNEXTHOP message.
func decodeNexthop(m []byte) (n nexthop, err error) {
	err = dump.ParseAfter(m, nexthopHeaderLen).Decode(binary.NativeEndian, dump.Fields{
		unix.NHA_ID: &n.id, unix.NHA_OIF: &n.hop.IfIndex, unix.NHA_GATEWAY: &n.hop.Gateway,
		unix.NHA_GROUP: func(a *dump.Attrs) {
			for b := a.Data; len(b) >= groupMember; b = b[groupMember:] {
				n.group = append(n.group, binary.NativeEndian.Uint32(b))
			}
		},
	})
	return n, err
}

// resolve sets the next hops of the route's object. It reports whether all of them are known.
func resolve(r *model.Route, objects map[uint32]nexthop) bool {
	n, ok := objects[r.Nexthop]
	hops := []model.Route{n.hop}
	if len(n.group) > 0 {
		hops = nil
		for _, id := range n.group {
			member, known := objects[id]
			ok, hops = ok && known, append(hops, member.hop)
		}
	}
	if ok {
		setHops(r, hops)
	}
	return ok
}
