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

// Sizes of the types and limits in shared.h.
const (
	addrSize    = uint32(unsafe.Sizeof(bpf.TCCountedAddr{}))
	hopSize     = int(unsafe.Sizeof(bpf.TCHopCounter{}))
	hopKeySize  = int(unsafe.Sizeof(bpf.TCHopKey{}))
	peerSize    = int(unsafe.Sizeof(bpf.TCPeer{}))
	lossSize    = int(unsafe.Sizeof(uint64(0)))
	linkSize    = int(unsafe.Sizeof(bpf.TCLink{}))
	cellSize    = uint32(unsafe.Sizeof(uint16(0)))
	freeHopSize = uint32(unsafe.Sizeof(uint32(0)))
	eventSize   = int(unsafe.Sizeof(bpf.DropDropEvent{}))

	linkHops  = uint32(bpf.TCSideLINK_HOPS)
	sides     = uint32(bpf.TCSideSIDES)
	linkTable = int(bpf.TCLimitLINK_TABLE)
	linkTries = int(bpf.TCLimitLINK_TRIES)
	chainMax  = int(bpf.TCLimitCHAIN_MAX)
	peerWays  = uint32(bpf.TCLimitPEER_WAYS)
)

// shared are the types that Go reads from shared memory in place. They hold no
// pointers, and every bit pattern is a valid value.
type shared interface {
	bpf.TCHopCounter | bpf.TCHopKey | bpf.TCPeer | bpf.DropDropEvent | uint64
}

// view returns b as a slice of T, without an incomplete value at the end.
func view[T shared](b []byte) []T {
	var t T
	n := len(b) / int(unsafe.Sizeof(t))
	if n == 0 {
		return nil
	}
	return unsafe.Slice((*T)(unsafe.Pointer(unsafe.SliceData(b))), n)
}

// read copies n bytes of shared memory. Programs may count meanwhile, so only
// each word by itself is consistent.
func read[T shared](m *ebpf.Memory, off, n int) ([]T, error) {
	b := make([]byte, n)
	if _, err := m.ReadAt(b, int64(off)); err != nil {
		return nil, fmt.Errorf("read BPF map: %w", err)
	}
	return view[T](b), nil
}

// write copies a value into shared memory.
func write(m *ebpf.Memory, off int64, value any) error {
	b, err := binary.Append(nil, binary.NativeEndian, value)
	if err == nil {
		_, err = m.WriteAt(b, off)
	}
	if err != nil {
		return fmt.Errorf("write BPF map: %w", err)
	}
	return nil
}

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

// canon is the form in which addresses are stored and compared.
func canon(a netip.Addr) netip.Addr { return a.Unmap().WithZone("") }

// flag is 1 for true.
func flag(b bool) byte {
	if b {
		return 1
	}
	return 0
}

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
