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
	"github.com/lasthop/lasthop/probe/model"
)

// addrTable is the table of counted addresses: local addresses and remote ranges, each in a slot. Slot 0 is unused.
//
// Programs read it while it changes. So a slot's row is complete before the slot is linked into its chain.
type addrTable struct {
	rows, bss *mapped
	slotsOff  int // of slots and remote_bits in .bss
	bitsOff   int
	prefixes  *ebpf.Map

	addrs  *pool[netip.Addr]
	ranges *pool[netip.Prefix]
	// written are the rows as last written, by slot. heads are the first
	// slots of the chains, by the low bits of their addresses.
	written map[uint16]bpf.TCCountedAddr
	heads   map[uint16]uint16
}

func newAddrTable(coll *ebpf.Collection, spec *ebpf.CollectionSpec, mem memory, cfg Config) *addrTable {
	first := uint16(cfg.MaxAddrs + 1)
	return &addrTable{
		rows:     mem[bpf.TCMapCountedAddrs],
		bss:      mem[".bss"],
		slotsOff: int(spec.Variables[bpf.TCVarSlots].Offset),
		bitsOff:  int(spec.Variables[bpf.TCVarRemoteBits].Offset),
		prefixes: coll.Maps[bpf.TCMapPrefixes],
		addrs:    newPool[netip.Addr](1, first),
		ranges:   newPool[netip.Prefix](first, first+maxPrefixes),
		written:  map[uint16]bpf.TCCountedAddr{},
		heads:    map[uint16]uint16{},
	}
}

// release frees the slots of addresses and ranges removed before then, and returns them.
func (t *addrTable) release(before time.Time) map[uint16]bool {
	slots := t.addrs.release(before)
	maps.Copy(slots, t.ranges.release(before))
	return slots
}

func (t *addrTable) of(slot uint16) (a netip.Addr, p netip.Prefix, ok bool) {
	if a, ok = t.addrs.key(slot); ok {
		return a, p, true
	}
	p, ok = t.ranges.key(slot)
	return a, p, ok
}

func (t *addrTable) setLocal(local []Local, forget func(uint16)) error {
	want := make(map[netip.Addr]bpf.TCCountedAddr, len(local))
	for _, l := range local {
		a := l.Addr.Unmap().WithZone("")
		if !a.IsValid() || a.IsUnspecified() {
			return fmt.Errorf("count address %q: not an address", l.Addr)
		}
		kind := model.Either(l.Node, bpf.TCAddrKindKIND_NODE, bpf.TCAddrKindKIND_POD)
		// An address that a pod shares with the node is the node's.
		row := want[a]
		row.Addr, row.Kind, row.Pairs = addrTo(a), max(row.Kind, kind), max(row.Pairs, uint16(flag(l.Pairs)))
		want[a] = row
	}
	var errs []error
	for a, slot := range t.addrs.of {
		if _, ok := want[a]; !ok && t.addrs.live(slot) {
			errs = append(errs, t.unchain(slot))
		}
	}
	// Pods come first. If there is no room for all, addresses of the node
	// (on some nodes those of every service) are not counted.
	order := slices.SortedFunc(maps.Keys(want), func(a, b netip.Addr) int {
		return cmp.Or(cmp.Compare(want[a].Kind, want[b].Kind), a.Compare(b))
	})
	for _, a := range order {
		slot, err := t.addrs.take(a, forget)
		if err == nil {
			err = t.chain(slot, want[a])
		}
		if err != nil {
			errs = append(errs, fmt.Errorf("count address %s: %w", a, err))
		}
	}
	return errors.Join(errs...)
}

// low is the key of a row's chain: the last two bytes of its address, in the byte order of the programs.
func low(row bpf.TCCountedAddr) uint16 { return uint16(row.Addr.Lo >> 48) }

// chain writes the row of a slot, if it changed, and links the slot into its chain.
func (t *addrTable) chain(slot uint16, row bpf.TCCountedAddr) error {
	head := t.heads[low(row)]
	if t.addrs.live(slot) {
		row.Next = t.written[slot].Next
		if row == t.written[slot] {
			return nil
		}
		return t.write(slot, row)
	}
	n := 0
	for s := head; s != 0; s = t.written[s].Next {
		n++
	}
	if n >= chainMax {
		return fmt.Errorf("%w: %d other addresses end in the same 16 bits", errFull, n)
	}
	t.addrs.enter(slot)
	row.Next = head
	err := t.write(slot, row)
	if err == nil {
		t.setHead(low(row), slot)
	}
	return err
}

// unchain unlinks a slot. Its row stays for programs that have already found the slot.
func (t *addrTable) unchain(slot uint16) error {
	t.addrs.leave(slot)
	row := t.written[slot]
	if t.heads[low(row)] == slot {
		t.setHead(low(row), row.Next)
		return nil
	}
	for s := t.heads[low(row)]; s != 0; s = t.written[s].Next {
		if before := t.written[s]; before.Next == slot {
			before.Next = row.Next
			return t.write(s, before)
		}
	}
	return nil
}

func (t *addrTable) write(slot uint16, row bpf.TCCountedAddr) error {
	t.written[slot] = row
	return t.rows.storeWords(int(slot)*t.rows.stride, row)
}

func (t *addrTable) setHead(low, slot uint16) {
	t.heads[low] = slot
	t.bss.store16(t.slotsOff+int(low)*2, slot)
}

func (t *addrTable) setPrefixes(prefixes []netip.Prefix, forget func(uint16)) error {
	want := make(map[netip.Prefix]bool, len(prefixes))
	for _, p := range prefixes {
		if !p.IsValid() || p.Addr().Is4In6() {
			return fmt.Errorf("count range %q: not a prefix", p)
		}
		want[p.Masked()] = true
	}
	var errs []error
	for p, slot := range t.ranges.of {
		if t.ranges.live(slot) && !want[p] {
			t.ranges.leave(slot)
			errs = append(errs, t.prefixes.Delete(prefixKey(p)))
		}
	}
	var bits remoteBits
	// In the order given, as far as there is room.
	for _, p := range prefixes {
		p = p.Masked()
		if !want[p] {
			continue
		}
		want[p] = false
		slot, err := t.ranges.take(p, forget)
		if err == nil && !t.ranges.live(slot) {
			err = t.prefixes.Put(prefixKey(p), uint32(slot))
		}
		if err != nil {
			errs = append(errs, fmt.Errorf("count range %s: %w", p, err))
			continue
		}
		t.ranges.enter(slot)
		bits.add(p)
	}
	return errors.Join(append(errs, t.bss.storeWords(t.bitsOff, &bits))...)
}

func prefixKey(p netip.Prefix) bpf.TCPrefixKey {
	return bpf.TCPrefixKey{Length: uint32(p.Bits() + 128 - p.Addr().BitLen()), Addr: p.Addr().As16()}
}

// remoteBits is the bitmap remote_bits: a bit for each first 16 bits of an
// address in a remote range, for IPv6 the first 32 bits folded.
type remoteBits [1 << 16 / 64]uint64

func (r *remoteBits) add(p netip.Prefix) {
	a := p.Addr().AsSlice()
	first := binary.NativeEndian.Uint16(a)
	if p.Addr().Is6() {
		if p.Bits() < 32 {
			// Too many bits to set one by one. No pod range is that wide.
			for i := range r {
				r[i] = ^uint64(0)
			}
			return
		}
		r.set(first ^ binary.NativeEndian.Uint16(a[2:]))
		return
	}
	for i := range 1 << max(0, 16-p.Bits()) {
		b := binary.BigEndian.AppendUint16(nil, binary.BigEndian.Uint16(a)+uint16(i))
		r.set(binary.NativeEndian.Uint16(b))
	}
}

func (r *remoteBits) set(i uint16) { r[i/64] |= 1 << (i % 64) }
