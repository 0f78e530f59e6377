package traffic

import (
	"encoding/binary"
	"net/netip"
	"unsafe"

	"github.com/lasthop/lasthop/bpf"
	"github.com/lasthop/lasthop/probe/model"
)

// Sizes of the types and limits in shared.h.
const (
	addrSize    = int(unsafe.Sizeof(bpf.TCCountedAddr{}))
	hopSize     = int(unsafe.Sizeof(bpf.TCHopCounter{}))
	hopKeySize  = int(unsafe.Sizeof(bpf.TCHopKey{}))
	macSize     = int(unsafe.Sizeof(bpf.TCMacPair{}))
	peerSize    = int(unsafe.Sizeof(bpf.TCPeer{}))
	quotaSize   = int(unsafe.Sizeof(bpf.DropQuota{}))
	lossSize    = int(unsafe.Sizeof(uint64(0)))
	linkSize    = int(unsafe.Sizeof(bpf.TCLink{}))
	cellSize    = int(unsafe.Sizeof(uint16(0)))
	freeHopSize = int(unsafe.Sizeof(uint32(0)))

	ways      = int(bpf.TCSideWAYS)
	sides     = int(bpf.TCSideSIDES)
	linkTable = int(bpf.TCLimitLINK_TABLE)
	linkTries = int(bpf.TCLimitLINK_TRIES)
	chainMax  = int(bpf.TCLimitCHAIN_MAX)
	macWays   = uint32(bpf.TCLimitMAC_WAYS)
	peerWays  = uint32(bpf.TCLimitPEER_WAYS)
)

func addrFrom(a bpf.TCAddr) netip.Addr {
	var b [16]byte
	binary.NativeEndian.PutUint64(b[:8], a.Hi)
	binary.NativeEndian.PutUint64(b[8:], a.Lo)
	return netip.AddrFrom16(b).Unmap()
}

func addrTo(a netip.Addr) bpf.TCAddr {
	b := a.As16()
	return bpf.TCAddr{Hi: binary.NativeEndian.Uint64(b[:8]), Lo: binary.NativeEndian.Uint64(b[8:])}
}

func flag(b bool) byte { return model.Either[uint8](b, 1, 0) }

func direction(d uint8) model.Direction {
	return model.Either(bpf.TCDirection(d) == bpf.TCDirectionINGRESS, model.Ingress, model.Egress)
}

func side(s uint8) model.Side {
	return model.Either(bpf.TCSide(s) == bpf.TCSideSOURCE, model.AsSource, model.AsDestination)
}
