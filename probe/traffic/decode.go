package traffic

import (
	"encoding/binary"
	"fmt"
	"net/netip"
	"unsafe"

	"github.com/cilium/ebpf"

	"github.com/lasthop/lasthop/bpf"
	"github.com/lasthop/lasthop/probe/model"
)

// The shape of what the programs share, as shared.h has it.
const (
	subjectSize = uint32(unsafe.Sizeof(bpf.TCSubject{}))
	legSize     = int(unsafe.Sizeof(bpf.TCLeg{}))
	ownerSize   = int(unsafe.Sizeof(bpf.TCOwner{}))
	peerSize    = int(unsafe.Sizeof(bpf.TCPeer{}))
	linkSize    = int(unsafe.Sizeof(bpf.TCLink{}))
	cellSize    = uint32(unsafe.Sizeof(uint16(0)))
	spareSize   = uint32(unsafe.Sizeof(uint32(0)))
	eventSize   = int(unsafe.Sizeof(bpf.DropDropEvent{}))

	linkLegs  = uint32(bpf.TCSideLINK_LEGS)
	sides     = uint32(bpf.TCSideSIDES)
	linkTable = int(bpf.TCLimitLINK_TABLE)
	linkTries = int(bpf.TCLimitLINK_TRIES)
	chainMax  = int(bpf.TCLimitCHAIN_MAX)
	peerWays  = uint32(bpf.TCLimitPEER_WAYS)
)

// shared are the types that lie in memory as C wrote them. None holds a
// pointer or a value that not every bit pattern is good for.
type shared interface {
	bpf.TCLeg | bpf.TCOwner | bpf.TCPeer | bpf.DropDropEvent
}

// view takes b as values of T, as many as are whole.
func view[T shared](b []byte) []T {
	var t T
	n := len(b) / int(unsafe.Sizeof(t))
	if n == 0 {
		return nil
	}
	return unsafe.Slice((*T)(unsafe.Pointer(unsafe.SliceData(b))), n)
}

// read copies n bytes of shared memory. Counters go on moving while it does;
// each word is whole.
func read(m *ebpf.Memory, off, n int) ([]byte, error) {
	b := make([]byte, n)
	if _, err := m.ReadAt(b, int64(off)); err != nil {
		return nil, fmt.Errorf("read BPF map: %w", err)
	}
	return b, nil
}

func addrFrom(a bpf.TCAddr) netip.Addr {
	var b [16]byte
	binary.NativeEndian.PutUint64(b[:8], a.Hi)
	binary.NativeEndian.PutUint64(b[8:], a.Lo)
	return netip.AddrFrom16(b).Unmap()
}

// canon is the form that addresses are kept and compared in.
func canon(a netip.Addr) netip.Addr { return a.Unmap().WithZone("") }

func direction(d uint8) model.Direction {
	if bpf.TCDirection(d) == bpf.TCDirectionINGRESS {
		return model.Ingress
	}
	return model.Egress
}

func side(s uint8) model.Side {
	if bpf.TCSide(s) == bpf.TCSideSOURCE {
		return model.AsSource
	}
	return model.AsDestination
}
