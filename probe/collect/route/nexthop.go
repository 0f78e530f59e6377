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
	hop   model.Route
	group []uint32
}

// nexthops lists the objects by their numbers.
func nexthops(ctx context.Context, c dump.Dumper) (map[uint32]nexthop, error) {
	out := map[uint32]nexthop{}
	_, err := dump.List(ctx, "list nexthop objects", c, unix.RTM_GETNEXTHOP, make([]byte, nexthopHeaderLen), unix.RTM_NEWNEXTHOP,
		func(m []byte) (struct{}, bool, error) {
			id, n, err := decodeNexthop(m)
			out[id] = n
			return struct{}{}, false, err
		})
	return out, err
}

// nexthopHeaderLen is the size of struct nhmsg, groupMember that of struct nexthop_grp, which begins with the number of
// the object (include/uapi/linux/nexthop.h).
const (
	nexthopHeaderLen = 8
	groupMember      = 8
)

// decodeNexthop decodes an RTM_NEWNEXTHOP message.
func decodeNexthop(m []byte) (id uint32, n nexthop, err error) {
	a := dump.ParseAfter(m, nexthopHeaderLen)
	for a.Next() {
		switch a.Type {
		case unix.NHA_ID:
			id = a.Uint32()
		case unix.NHA_GROUP:
			for b := a.Data; len(b) >= groupMember; b = b[groupMember:] {
				n.group = append(n.group, binary.NativeEndian.Uint32(b))
			}
		case unix.NHA_OIF:
			n.hop.IfIndex = int(a.Uint32())
		case unix.NHA_GATEWAY:
			n.hop.Gateway = addr(a.Data)
		}
	}
	return id, n, a.Err()
}

// resolve sets the next hops of the route's object. It reports whether all of them are known.
func resolve(r *model.Route, objects map[uint32]nexthop) bool {
	n, ok := objects[r.Nexthop]
	hops := []model.Route{n.hop}
	if len(n.group) > 0 {
		hops = nil
		for _, id := range n.group {
			member, known := objects[id]
			ok = ok && known
			hops = append(hops, member.hop)
		}
	}
	if ok {
		setHops(r, hops)
	}
	return ok
}
