package traffic

import (
	"fmt"

	"github.com/cilium/ebpf"

	"github.com/lasthop/lasthop/bpf"
)

// links is the table of links, which the programs look up by index. Hop counters
// and peers refer to a link by its slot; slot 0 is unused.
type links struct {
	bss     *mapped
	off     int            // of links in .bss
	entries [linkTable]int // the index of the link in each entry, 0 if free
	slots   *pool[int]     // by index
	names   map[int]string
	pairs   bool
	// keepsOuter says that packets that come out of ipip and sit tunnels begin with outer
	// headers at the ingress hook. Since Linux 5.14 these drivers reset the MAC header.
	keepsOuter bool
}

func newLinks(spec *ebpf.CollectionSpec, bss *mapped, cfg Config) *links {
	return &links{
		bss:   bss,
		off:   int(spec.Variables[bpf.TCVarLinks].Offset),
		slots: newPool[int](1, uint16(cfg.MaxLinks+1)),
		names: map[int]string{},
		pairs: cfg.Pairs,

		keepsOuter: before(5, 14),
	}
}

// entry returns the table entry of a link, or a free one for it; -1 if the table is full near it.
func (l *links) entry(index int) int {
	free := -1
	for i := range linkTries {
		p := (index + i) % linkTable
		if l.entries[p] == index {
			return p
		}
		if l.entries[p] == 0 && free < 0 {
			free = p
		}
	}
	return free
}

func (l *links) set(k Link, forget func(uint16)) error {
	p := l.entry(k.Index)
	if p < 0 {
		return fmt.Errorf("count on link %s: %w near index %d", k.Name, errFull, k.Index)
	}
	slot, err := l.slots.take(k.Index, forget)
	if err != nil {
		return fmt.Errorf("count on link %s: %w", k.Name, err)
	}
	l.slots.enter(slot)
	l.names[k.Index], l.entries[p] = k.Name, k.Index
	var flags bpf.TCLinkFlags
	if k.Uplink {
		flags |= bpf.TCLinkFlagsLINK_UPLINK
	}
	if l.pairs {
		flags |= bpf.TCLinkFlagsLINK_PAIRS
	}
	if l.keepsOuter && k.IPTunnel {
		flags |= bpf.TCLinkFlagsLINK_OUTER
	}
	return l.write(p, bpf.TCLink{Ifindex: uint32(k.Index), Slot: slot, Flags: uint8(flags), NoEthernet: k.NoEthernet})
}

// remove removes a link that no program runs on any more. Its name and counts stay.
func (l *links) remove(index int) error {
	slot, ok := l.slots.of[index]
	if !ok || !l.slots.live(slot) {
		return nil
	}
	l.slots.leave(slot)
	p := l.entry(index)
	l.entries[p] = 0
	return l.write(p, bpf.TCLink{})
}

// write writes an entry, whose 8 bytes are one store: programs never see half of it.
func (l *links) write(entry int, k bpf.TCLink) error {
	return l.bss.storeWords(l.off+entry*linkSize, k)
}
