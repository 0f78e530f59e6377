package traffic

import (
	"encoding/binary"
	"fmt"

	"github.com/cilium/ebpf"

	"github.com/lasthop/lasthop/bpf"
)

// links is the table of links, which the kernel looks up by index. Each has a
// slot, the number that legs and peers know it by; slot 0 is none.
type links struct {
	bss    *ebpf.Memory
	off    int64          // of links in .bss
	places [linkTable]int // the index of the link in each place, 0 for none
	slots  *pool[int]     // by index
	names  map[int]string
	// closely: pairs of addresses that are looked at closely are counted.
	closely bool
}

func newLinks(spec *ebpf.CollectionSpec, bss *ebpf.Memory, cfg Config) *links {
	return &links{
		bss:   bss,
		off:   int64(spec.Variables[bpf.TCVarLinks].Offset),
		slots: newPool[int](1, uint16(cfg.MaxLinks+1)),
		names: map[int]string{},

		closely: cfg.Closely,
	}
}

// place returns where a link is, or may be put; -1 when there is no room.
func (l *links) place(index int) int {
	free := -1
	for i := range linkTries {
		p := (index + i) % linkTable
		if l.places[p] == index {
			return p
		}
		if l.places[p] == 0 && free < 0 {
			free = p
		}
	}
	return free
}

// set puts a link in, or changes its flags and name.
func (l *links) set(k Link, forget func(uint16) error) error {
	p := l.place(k.Index)
	if p < 0 {
		return fmt.Errorf("count on link %s: %w near index %d", k.Name, errFull, k.Index)
	}
	slot, err := l.slots.take(k.Index, forget)
	if err != nil {
		return fmt.Errorf("count on link %s: %w", k.Name, err)
	}
	l.slots.enter(slot)
	l.names[k.Index] = k.Name
	l.places[p] = k.Index
	return l.write(p, bpf.TCLink{
		Ifindex: uint32(k.Index),
		Slot:    slot,
		Pairs:   l.pairs(k),
		Bare:    k.NoEthernet,
	})
}

// remove takes a link out that no program runs for any more. Its name and its
// counts stay.
func (l *links) remove(index int) error {
	slot, ok := l.slots.of[index]
	if !ok || !l.slots.live(slot) {
		return nil
	}
	l.slots.leave(slot)
	p := l.place(index)
	l.places[p] = 0
	return l.write(p, bpf.TCLink{})
}

// write fills a place with one store, so that no program sees half of it.
func (l *links) write(place int, k bpf.TCLink) error {
	b := make([]byte, 0, linkSize)
	b = binary.NativeEndian.AppendUint32(b, k.Ifindex)
	b = binary.NativeEndian.AppendUint16(b, k.Slot)
	b = append(b, k.Pairs, flag(k.Bare))
	if _, err := l.bss.WriteAt(b, l.off+int64(place*linkSize)); err != nil {
		return fmt.Errorf("write link: %w", err)
	}
	return nil
}

// pairs are those that are counted on the link.
func (l *links) pairs(k Link) uint8 {
	return flag(k.Uplink)*uint8(bpf.TCPairScopePAIRS_BEYOND) | flag(l.closely)*uint8(bpf.TCPairScopePAIRS_CLOSE)
}

func flag(b bool) byte {
	if b {
		return 1
	}
	return 0
}
