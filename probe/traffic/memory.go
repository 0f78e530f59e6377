package traffic

import (
	"encoding/binary"
	"fmt"
	"runtime"
	"sync/atomic"
	"unsafe"

	"github.com/cilium/ebpf"
	"golang.org/x/sys/unix"

	"github.com/lasthop/lasthop/bpf"
)

// mapped is an array map in memory, which running programs read and write meanwhile.
//
// What Go gives them is in place before an atomic store publishes it: the slot of a row, the number of a free hop
// counter, the key of an entry. On arm64 that store has release semantics. The programs need no barrier: they compute
// the address of what they read from what was published, and no CPU reads through an address that it does not have yet;
// or, where the address is known before, they write what they then read (a free entry).
type mapped struct {
	b      []byte
	stride int // bytes per element
}

// memory are the array maps of a collection that may be written in memory, by name.
type memory map[string]*mapped

// mapMemory maps the values of such maps. They stay mapped as long as they are referred to, whether or not the map is open.
func mapMemory(coll *ebpf.Collection) (memory, error) {
	const word = 8 // elements are aligned to it
	all := memory{}
	for name, m := range coll.Maps {
		if m.Flags()&(unix.BPF_F_MMAPABLE|unix.BPF_F_RDONLY_PROG) != unix.BPF_F_MMAPABLE {
			continue
		}
		mem := &mapped{stride: (int(m.ValueSize()) + word - 1) / word * word}
		var err error
		mem.b, err = unix.Mmap(m.FD(), 0, mem.stride*int(m.MaxEntries()), unix.PROT_READ|unix.PROT_WRITE, unix.MAP_SHARED)
		if err != nil {
			return nil, fmt.Errorf("map memory of %s: %w", m, err)
		}
		runtime.AddCleanup(mem, func(b []byte) { _ = unix.Munmap(b) }, mem.b)
		all[name] = mem
	}
	return all, nil
}

// shared are the types that Go reads from memory in place. They hold no pointers,
// and every bit pattern is a valid value.
type shared interface {
	bpf.TCHopCounter | bpf.TCHopKey | bpf.TCMacPair | bpf.TCPeer | bpf.TCPeerShare | bpf.DropQuota | bpf.DropDropEvent | uint64
}

// view returns b as a slice of T, without an incomplete value at the end.
func view[T shared](b []byte) []T {
	return unsafe.Slice((*T)(unsafe.Pointer(unsafe.SliceData(b))), len(b)/int(unsafe.Sizeof(*new(T))))
}

// read copies n bytes. Programs may count meanwhile, so only each word by itself is consistent.
func read[T shared](m *mapped, off, n int) []T {
	b := make([]byte, n)
	copy(b, m.b[off:])
	return view[T](b)
}

func one[T shared](m *mapped, off int) T { return *(*T)(unsafe.Pointer(&m.b[off])) }

// clear sets n bytes to zero. The next store publishes it.
func (m *mapped) clear(off, n int) { clear(m.b[off : off+n]) }

func (m *mapped) load64(off int) uint64 {
	return atomic.LoadUint64((*uint64)(unsafe.Pointer(&m.b[off])))
}

func (m *mapped) store64(off int, v uint64) {
	atomic.StoreUint64((*uint64)(unsafe.Pointer(&m.b[off])), v)
}

// storeWords stores a value word by word. Its size is a multiple of theirs.
func (m *mapped) storeWords(off int, value any) error {
	b, err := binary.Append(nil, binary.NativeEndian, value)
	if err != nil {
		return fmt.Errorf("write BPF map: %w", err)
	}
	for w := range view[uint64](b) {
		m.store64(off+w*8, binary.NativeEndian.Uint64(b[w*8:]))
	}
	return nil
}

func (m *mapped) load32(off int) uint32 {
	return atomic.LoadUint32((*uint32)(unsafe.Pointer(&m.b[off])))
}

func (m *mapped) store32(off int, v uint32) {
	atomic.StoreUint32((*uint32)(unsafe.Pointer(&m.b[off])), v)
}

// store16 stores half of a word of 32 bits, of which programs may write the other half meanwhile.
func (m *mapped) store16(off int, v uint16) {
	const half = 2
	word := (*uint32)(unsafe.Pointer(&m.b[off&^half]))
	shift := 8 * (off & half) // the objects are for little-endian machines
	for {
		old := atomic.LoadUint32(word)
		if atomic.CompareAndSwapUint32(word, old, old&^(0xffff<<shift)|uint32(v)<<shift) {
			return
		}
	}
}
