package traffic

import (
	"maps"
	"net/netip"
	"slices"
	"time"
	"unsafe"

	"github.com/lasthop/lasthop/bpf"
)

// peers mirror the table of peers, and each local address's share of it.
type peers struct {
	*cpuTable[bpf.TCPeer, peerKey, peerCounts]
	shares *mapped // by CPU, then slot of the local address
	slots  int     // of local addresses
	// most is how many entries of a kind a local address may have on one CPU, full says that one has as many.
	most [bpf.TCFarFAR_OTHERS]uint32
	full bool

	list map[peerKey]*peer
	// othersLinks are the links of the peers that have no entry, by slot.
	othersLinks map[uint16]uint16
}

// peerKey is a local address by its slot, a link by its, and an address or, with
// fewer bits, a range. All others than those with an entry have no bits.
type peerKey struct {
	local, link uint16
	remote      netip.Addr
	bits        uint8 // of 128
}

// far says which entries of its quota a peer counts among.
func (k peerKey) far() bpf.TCFar {
	switch k.bits {
	case addrBits:
		return bpf.TCFarFAR_ADDRESS
	case 0:
		return bpf.TCFarFAR_OTHERS
	}
	return bpf.TCFarFAR_RANGE
}

type peerCounts [bpf.TCDirectionDIRECTIONS]bpf.TCPeerCount

func (c peerCounts) plus(n peerCounts) peerCounts {
	for d := range c {
		s, n := &c[d], &n[d]
		s.Packets += n.Packets
		s.Requests += n.Requests
		s.Replies += n.Replies
		s.IcmpErrors += n.IcmpErrors
		s.Fragments += n.Fragments
	}
	return c
}

type peer struct {
	count    peerCounts
	firstOut time.Time
	last     [bpf.TCDirectionDIRECTIONS]time.Time
}

func newPeers(mem memory, shares, cpus int) *peers {
	table := mem[bpf.TCMapPeers]
	p := &peers{shares: mem[bpf.TCMapPeerShares], slots: shares / cpus, list: map[peerKey]*peer{}, othersLinks: map[uint16]uint16{}}
	p.most = peerQuota(uint32(table.stride / peerSize))
	p.cpuTable = newCPUTable(table, cpus, peerSize, int(unsafe.Offsetof(bpf.TCPeer{}.Local)),
		func(e *bpf.TCPeer) (peerKey, bool) {
			return peerKey{local: e.Local, link: e.Link, remote: addrFrom(e.Remote), bits: e.Bits}, e.Local != 0 && e.Local != uint16(retired&0xffff)
		},
		func(e *bpf.TCPeer) peerCounts { return e.Count })
	p.freed = p.giveBack
	return p
}

// peerQuota is how many addresses and ranges a local address may have on each CPU, of a number of entries.
func peerQuota(entries uint32) [bpf.TCFarFAR_OTHERS]uint32 {
	return [...]uint32{bpf.TCFarFAR_ADDRESS: max(entries/8, 1), bpf.TCFarFAR_RANGE: max(entries/32, 1)}
}

// share is the offset of a local address's share on a CPU.
func (p *peers) share(cpu int, slot uint16) int { return (cpu*p.slots + int(slot)) * p.shares.stride }

// giveBack tells the programs that an address may have one more entry.
func (p *peers) giveBack(cpu int, k peerKey) {
	off := p.share(cpu, k.local)
	freed := one[bpf.TCPeerShare](p.shares, off).Quota.Freed[k.far()]
	p.shares.store32(off+int(unsafe.Offsetof(bpf.TCQuota{}.Freed))+int(k.far())*4, freed+1)
}

func (p *peers) poll(now time.Time) {
	sums := p.sums()
	p.addOthers(sums)
	for k, n := range sums {
		if p.list[k] == nil {
			p.list[k] = &peer{}
		}
		p.list[k].update(n, now)
	}
	if len(p.list) == len(sums) {
		return
	}
	maps.DeleteFunc(p.list, func(k peerKey, _ *peer) bool {
		_, counted := sums[k]
		return !counted
	})
}

func (p *peer) update(n peerCounts, now time.Time) {
	for d := range n {
		if n[d] != p.count[d] {
			p.last[d] = now
		}
	}
	p.count = n
	if p.firstOut.IsZero() && n[bpf.TCDirectionEGRESS].Packets > 0 {
		p.firstOut = now
	}
}

// addOthers adds what was counted with no peer's entry.
func (p *peers) addOthers(sums map[peerKey]peerCounts) {
	p.full = false
	for i := range p.cpus * p.slots {
		s := one[bpf.TCPeerShare](p.shares, i*p.shares.stride)
		for far, most := range p.most {
			p.full = p.full || s.Quota.Taken[far]-s.Quota.Freed[far] >= most
		}
		if s.Others == (peerCounts{}) {
			continue
		}
		slot := uint16(i % p.slots)
		if _, known := p.othersLinks[slot]; !known {
			p.othersLinks[slot] = uint16(s.OthersLink)
		}
		k := peerKey{local: slot, link: p.othersLinks[slot]}
		sums[k] = sums[k].plus(s.Others)
	}
}

// evict makes room: it retires the entries that were not seen since then.
func (p *peers) evict(since time.Time) {
	if !p.crowded() && !p.full {
		return
	}
	sums := p.sums()
	p.retire(func(k peerKey) bool {
		e := p.list[k]
		if e == nil || e.count != sums[k] {
			return false // it has moved since the last poll
		}
		return !slices.ContainsFunc(e.last[:], func(last time.Time) bool { return !last.Before(since) })
	})
}

// forget clears the counts of slots that are about to be reused, in which no program may count meanwhile.
func (p *peers) forget(match func(addr, link uint16) bool) {
	p.cpuTable.forget(func(k peerKey) bool { return match(k.local, k.link) })
	for slot, link := range p.othersLinks {
		if !match(slot, link) {
			continue
		}
		delete(p.othersLinks, slot)
		for cpu := range p.cpus {
			p.shares.clear(p.share(cpu, slot)+int(unsafe.Offsetof(bpf.TCPeerShare{}.Others)), int(unsafe.Sizeof(peerCounts{})))
		}
	}
	maps.DeleteFunc(p.list, func(k peerKey, _ *peer) bool { return match(k.local, k.link) })
}

// addrBits is the length of an address as the programs keep it.
const addrBits = 128

// prefixOf is a range or, with all bits, an address, as the programs keep them.
// Without any it is the family of the other end.
func prefixOf(a netip.Addr, bits uint8, other netip.Addr) netip.Prefix {
	if bits == 0 {
		a = netip.IPv6Unspecified()
		if other.Is4() {
			a = netip.IPv4Unspecified()
		}
		return netip.PrefixFrom(a, 0)
	}
	return netip.PrefixFrom(a, int(bits)-addrBits+a.BitLen())
}
