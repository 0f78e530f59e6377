package traffic

import (
	"cmp"
	"encoding/binary"
	"errors"
	"fmt"
	"maps"
	"net/netip"
	"slices"
	"time"

	"github.com/cilium/ebpf"

	"github.com/lasthop/lasthop/bpf"
)

// subjects is the table of what is counted: local addresses and remote ranges,
// each in a slot. Slot 0 is nobody.
//
// The kernel reads it while it changes: a slot is filled before it is chained.
type subjects struct {
	rows     *ebpf.Memory
	rowSize  int64
	bss      *ebpf.Memory
	slotsOff int64 // of slots and remote_bits in .bss
	bitsOff  int64
	prefixes *ebpf.Map

	addrs *pool[netip.Addr]
	kinds map[uint16]bpf.TCSubjectKind
	// close are the addresses that are looked at closely.
	close  map[netip.Addr]bool
	ranges *pool[netip.Prefix]
	// chains are the slots that the kernel finds by an address's low bits.
	chains map[uint16][]uint16
}

func newSubjects(coll *ebpf.Collection, spec *ebpf.CollectionSpec, bss *ebpf.Memory, cfg Config) (*subjects, error) {
	rows, err := coll.Maps[bpf.TCMapSubjects].Memory()
	if err != nil {
		return nil, fmt.Errorf("map subjects: %w", err)
	}
	first := uint16(cfg.MaxAddrs + 1)
	return &subjects{
		rows:     rows,
		rowSize:  int64(rowSize(cfg)),
		bss:      bss,
		slotsOff: int64(spec.Variables[bpf.TCVarSlots].Offset),
		bitsOff:  int64(spec.Variables[bpf.TCVarRemoteBits].Offset),
		prefixes: coll.Maps[bpf.TCMapPrefixes],
		addrs:    newPool[netip.Addr](1, first),
		kinds:    map[uint16]bpf.TCSubjectKind{},
		ranges:   newPool[netip.Prefix](first, first+maxPrefixes),
		chains:   map[uint16][]uint16{},
	}, nil
}

func (s *subjects) polled(now time.Time) {
	s.addrs.polled(now)
	s.ranges.polled(now)
}

// release gives the slots free of who left before then.
func (s *subjects) release(before time.Time) map[uint16]bool {
	gone := s.addrs.release(before)
	maps.Copy(gone, s.ranges.release(before))
	return gone
}

// of is whose a slot is: an address or a range.
func (s *subjects) of(slot uint16) (a netip.Addr, p netip.Prefix, ok bool) {
	if a, ok = s.addrs.key(slot); ok {
		return a, p, true
	}
	p, ok = s.ranges.key(slot)
	return a, p, ok
}

func (s *subjects) setLocal(local []Local, forget func(uint16) error) error {
	want := make(map[netip.Addr]bpf.TCSubjectKind, len(local))
	before := s.close
	s.close = map[netip.Addr]bool{}
	for _, l := range local {
		if l.Close {
			s.close[canon(l.Addr)] = true
		}
		a := canon(l.Addr)
		if !a.IsValid() || a.IsUnspecified() {
			return fmt.Errorf("count address %q: not an address", l.Addr)
		}
		// Where a pod shares the node's address, the node it is.
		if l.Node {
			want[a] = bpf.TCSubjectKindKIND_NODE
		} else if _, ok := want[a]; !ok {
			want[a] = bpf.TCSubjectKindKIND_POD
		}
	}
	var errs []error
	for a, slot := range s.addrs.of {
		if _, ok := want[a]; !ok && s.addrs.live(slot) {
			errs = append(errs, s.unchain(a, slot))
		}
	}
	// Pods come first: where there is no room for all, it is the node's many
	// addresses (of services, on some) that go uncounted.
	order := slices.SortedFunc(maps.Keys(want), func(a, b netip.Addr) int {
		return cmp.Or(cmp.Compare(want[a], want[b]), a.Compare(b))
	})
	for _, a := range order {
		slot, err := s.addrs.take(a, forget)
		if err == nil {
			err = s.chain(a, slot, want[a], before[a] != s.close[a])
		}
		if err != nil {
			errs = append(errs, fmt.Errorf("count address %s: %w", a, err))
		}
	}
	return errors.Join(errs...)
}

// low is what an address is first looked up by, as the kernel has it: its last
// two bytes, in the machine's order.
func low(a netip.Addr) uint16 {
	b := a.As16()
	return binary.NativeEndian.Uint16(b[14:])
}

// chain makes a slot found by its address. What is written of one that is found
// already is written again if its kind is another, or changed says so.
func (s *subjects) chain(a netip.Addr, slot uint16, kind bpf.TCSubjectKind, changed bool) error {
	h := low(a)
	c := s.chains[h]
	if s.addrs.live(slot) {
		if s.kinds[slot] == kind && !changed {
			return nil
		}
		s.kinds[slot] = kind
		return s.write(slot, a, s.after(c, slot), kind)
	}
	if len(c) >= chainMax {
		return fmt.Errorf("%w: %d others end in the same 16 bits", errFull, len(c))
	}
	c = slices.Insert(c, 0, slot)
	s.chains[h], s.kinds[slot] = c, kind
	s.addrs.enter(slot)
	return errors.Join(s.write(slot, a, s.after(c, slot), kind), s.setHead(h, slot))
}

// unchain takes a slot out. Its own entry stays as it is, for programs that
// have just come by.
func (s *subjects) unchain(a netip.Addr, slot uint16) error {
	h := low(a)
	c := s.chains[h]
	i, next := slices.Index(c, slot), s.after(c, slot)
	s.chains[h] = slices.Delete(c, i, i+1)
	s.addrs.leave(slot)
	if i == 0 {
		return s.setHead(h, next)
	}
	before := c[i-1]
	key, _ := s.addrs.key(before)
	return s.write(before, key, next, s.kinds[before])
}

// after is the slot that follows in a chain, 0 for none.
func (s *subjects) after(chain []uint16, slot uint16) uint16 {
	if i := slices.Index(chain, slot) + 1; i < len(chain) {
		return chain[i]
	}
	return 0
}

// write fills the head of a slot's row.
func (s *subjects) write(slot uint16, a netip.Addr, next uint16, kind bpf.TCSubjectKind) error {
	b := make([]byte, 0, subjectSize)
	a16 := a.As16()
	b = append(b, a16[:]...)
	b = binary.NativeEndian.AppendUint16(b, next)
	b = binary.NativeEndian.AppendUint16(b, uint16(flag(s.close[a])))
	b = binary.NativeEndian.AppendUint32(b, uint32(kind))
	if _, err := s.rows.WriteAt(b, int64(slot)*s.rowSize); err != nil {
		return fmt.Errorf("write subject: %w", err)
	}
	return nil
}

func (s *subjects) setHead(h, slot uint16) error {
	b := binary.NativeEndian.AppendUint16(nil, slot)
	if _, err := s.bss.WriteAt(b, s.slotsOff+int64(h)*2); err != nil {
		return fmt.Errorf("write subject: %w", err)
	}
	return nil
}

func (s *subjects) setPrefixes(prefixes []netip.Prefix, forget func(uint16) error) error {
	want := make(map[netip.Prefix]bool, len(prefixes))
	for _, p := range prefixes {
		if !p.IsValid() || p.Addr().Is4In6() {
			return fmt.Errorf("count range %q: not a prefix", p)
		}
		want[p.Masked()] = true
	}
	var errs []error
	for p, slot := range s.ranges.of {
		if s.ranges.live(slot) && !want[p] {
			s.ranges.leave(slot)
			errs = append(errs, s.prefixes.Delete(prefixKey(p)))
		}
	}
	var bits remoteBits
	// The first come first, as far as there is room.
	for _, p := range prefixes {
		p = p.Masked()
		if !want[p] {
			continue
		}
		want[p] = false
		slot, err := s.ranges.take(p, forget)
		if err == nil && !s.ranges.live(slot) {
			err = s.prefixes.Put(prefixKey(p), uint32(slot))
		}
		if err != nil {
			errs = append(errs, fmt.Errorf("count range %s: %w", p, err))
			continue
		}
		s.ranges.enter(slot)
		bits.add(p)
	}
	if _, err := s.bss.WriteAt(bits.bytes(), s.bitsOff); err != nil {
		errs = append(errs, fmt.Errorf("write ranges: %w", err))
	}
	return errors.Join(errs...)
}

func prefixKey(p netip.Prefix) bpf.TCPrefixKey {
	return bpf.TCPrefixKey{
		Length: uint32(p.Bits() + 128 - p.Addr().BitLen()),
		Addr:   p.Addr().As16(),
	}
}

// remoteBits has a bit for each value that first_bits() has for an address of
// a remote range: the first two bytes of IPv4, the first four folded of IPv6.
type remoteBits [1 << 16 / 64]uint64

func (r *remoteBits) add(p netip.Prefix) {
	a := p.Addr().AsSlice()
	first := binary.NativeEndian.Uint16(a)
	if p.Addr().Is6() {
		if p.Bits() < 32 {
			// Too many to set one by one; no pod range is that wide.
			for i := range r {
				r[i] = ^uint64(0)
			}
			return
		}
		r.set(first ^ binary.NativeEndian.Uint16(a[2:]))
		return
	}
	n := 1
	if p.Bits() < 16 {
		n = 1 << (16 - p.Bits())
	}
	from := binary.BigEndian.Uint16(a)
	for i := range n {
		var b [2]byte
		binary.BigEndian.PutUint16(b[:], from+uint16(i))
		r.set(binary.NativeEndian.Uint16(b[:]))
	}
}

func (r *remoteBits) set(i uint16) { r[i/64] |= 1 << (i % 64) }

func (r *remoteBits) bytes() []byte {
	b := make([]byte, 0, len(r)*8)
	for _, w := range r {
		b = binary.NativeEndian.AppendUint64(b, w)
	}
	return b
}
