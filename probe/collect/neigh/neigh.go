// Package neigh reads the neighbour tables, the proxied addresses and the forwarding databases of bridges, by
// dumps of RTM_GETNEIGH. They need no capability. A table that changed during its dump is a gap: the entries that
// were read, with dump.ErrInterrupted.
package neigh

import (
	"cmp"
	"context"
	"encoding/binary"
	"net/netip"
	"strconv"

	"golang.org/x/sys/unix"

	"github.com/lasthop/lasthop/probe/collect/dump"
	"github.com/lasthop/lasthop/probe/model"
)

// Read lists the neighbour entries and the proxied addresses, without link names. It leaves out what needs no
// resolution (NUD_NOARP: multicast, loopback), as `ip neigh` does. With an error, what could be read is returned too.
func Read(ctx context.Context, c *dump.Conn) ([]model.Neighbor, error) {
	out, err := Entries(ctx, c)
	if err != nil {
		return out, err
	}
	proxy := func(e entry) (model.Neighbor, bool) {
		return model.Neighbor{Addr: e.addr, IfIndex: e.index, Proxy: true}, e.addr.IsValid()
	}
	proxies, err := list(ctx, "list proxy neighbours", c, unix.AF_UNSPEC, unix.NTF_PROXY, proxy)
	return append(out, proxies...), err
}

// Entries is Read without the proxied addresses.
func Entries(ctx context.Context, c *dump.Conn) ([]model.Neighbor, error) {
	return list(ctx, "list neighbours", c, unix.AF_UNSPEC, 0, func(e entry) (model.Neighbor, bool) {
		return e.neighbor(), e.addr.IsValid() && e.state != unix.NUD_NOARP && e.flags&unix.NTF_PROXY == 0
	})
}

// Decode decodes an RTM_NEWNEIGH or RTM_DELNEIGH message about an entry of IP.
func Decode(m []byte) (model.Neighbor, error) {
	e, err := decode(m)
	return e.neighbor(), err
}

func (e entry) neighbor() model.Neighbor {
	// `ip neigh` prints the number of a combination that has no name.
	state := cmp.Or(stateNames[e.state], strconv.Itoa(int(e.state)))
	return model.Neighbor{Addr: e.addr, MAC: e.mac, IfIndex: e.index, State: state}
}

// FDB lists the MAC addresses that bridges have learnt or own, and those for which tunnels know an end.
func FDB(ctx context.Context, c *dump.Conn) ([]model.FDBEntry, error) {
	return list(ctx, "list FDB entries", c, unix.AF_BRIDGE, 0, func(e entry) (model.FDBEntry, bool) {
		return model.FDBEntry{
			MAC: e.mac, IfIndex: e.index, Bridge: e.master, VLAN: int(e.vlan),
			Local: e.state&unix.NUD_PERMANENT != 0, Static: e.state&unix.NUD_NOARP != 0,
			End: e.addr,
		}, e.master != 0 || e.addr.IsValid() // Without either it is a filter of the device itself.
	})
}

// list dumps the entries of an address family with the given flags.
func list[T any](
	ctx context.Context, does string, c *dump.Conn, family, flags byte, convert func(entry) (T, bool),
) ([]T, error) {
	request := make([]byte, sizeofNdMsg)
	request[0], request[10] = family, flags
	return dump.List(ctx, does, c, unix.RTM_GETNEIGH, request, unix.RTM_NEWNEIGH, func(m []byte) (T, error) {
		e, err := decode(m)
		x, ok := convert(e)
		return x, cmp.Or(err, model.Either(ok, nil, dump.ErrSkip))
	})
}

// entry is one RTM_NEWNEIGH message. Addr is invalid and mac zero where the message has none.
type entry struct {
	index, master int
	vlan, state   uint16
	flags         byte
	addr          netip.Addr
	mac           model.MAC
}

// sizeofNdMsg is the size of struct ndmsg: family, padding, link index, state, flags, type.
const sizeofNdMsg = 12

func decode(m []byte) (e entry, err error) {
	a := dump.ParseAfter(m, sizeofNdMsg)
	if err := a.Err(); err != nil {
		return e, err
	}
	e.index = int(int32(binary.NativeEndian.Uint32(m[4:])))
	e.state, e.flags = binary.NativeEndian.Uint16(m[8:]), m[10]
	err = a.Decode(binary.NativeEndian, dump.Fields{
		unix.NDA_DST: &e.addr, unix.NDA_LLADDR: &e.mac, unix.NDA_VLAN: &e.vlan, unix.NDA_MASTER: &e.master,
	})
	return e, err
}

var stateNames = map[uint16]string{
	unix.NUD_NONE: "NONE", unix.NUD_INCOMPLETE: "INCOMPLETE", unix.NUD_REACHABLE: "REACHABLE", unix.NUD_STALE: "STALE",
	unix.NUD_DELAY: "DELAY", unix.NUD_PROBE: "PROBE", unix.NUD_FAILED: "FAILED", unix.NUD_PERMANENT: "PERMANENT",
}
