package traffic

import (
	"encoding/binary"
	"errors"
	"fmt"
	"maps"
	"net/netip"
	"time"
	"unsafe"

	"github.com/cilium/ebpf"

	"github.com/lasthop/lasthop/bpf"
	"github.com/lasthop/lasthop/probe/model"
)

// counters mirror what the tc programs count. Each poll reads them from the
// kernel and notes when a poll first and last saw them change.
type counters struct {
	coll        *ebpf.Collection
	hopCounters *ebpf.Memory // by CPU, then number
	peerTable   *ebpf.Memory // by CPU, then entry
	hopKeys     *ebpf.Memory // by number of a hop counter
	freeHops    *ebpf.Memory // a ring of numbers of hop counters
	lostPeers   *ebpf.Memory // by slot of a local address
	// addrs hold the numbers of the hop counters in their rows.
	addrs *addrTable
	cpus  int
	// hopStride and peerStride are bytes per CPU.
	hopStride, peerStride int

	hops      []hop // by number of the hop counter
	peers     map[peerKey]*peer
	neighbors table[bpf.TCNeighKey]
	pairs     table[bpf.TCPairKey]
	// maxHops is how many hop counters there are, the unused number 0
	// included, freed how many were written to freeHops, left how many can
	// still be allocated.
	maxHops int
	freed   uint32
	left    int
	lost    [bpf.TCLostLOST_MAX]uint64
	missed  uint64 // see readMissed
	// peersLost are packets that no peer counted, by slot of the local
	// address, peersForgot those of slots that were reused since.
	peersLost   []uint64
	peersForgot uint64
}

// hop is a hop counter, summed over CPUs.
type hop struct {
	key         bpf.TCHopKey
	n           bpf.TCHopCounter // except Macs
	macs        map[macs]uint64
	first, last time.Time
}

type macs struct{ src, dst model.MAC }

type peerKey struct {
	local, link uint16
	remote      netip.Addr
}

type peerCounts [bpf.TCDirectionDIRECTIONS]bpf.TCPeerCount

type peer struct {
	count    peerCounts
	firstOut time.Time
	last     [bpf.TCDirectionDIRECTIONS]time.Time
}

func newCounters(coll *ebpf.Collection, addrs *addrTable) (*counters, error) {
	c := &counters{
		coll:      coll,
		addrs:     addrs,
		peers:     map[peerKey]*peer{},
		neighbors: newTable[bpf.TCNeighKey](coll.Maps[bpf.TCMapNeighbors]),
		pairs:     newTable[bpf.TCPairKey](coll.Maps[bpf.TCMapPairs]),
	}
	for name, m := range map[string]**ebpf.Memory{
		bpf.TCMapHopCounters: &c.hopCounters, bpf.TCMapPeers: &c.peerTable, bpf.TCMapHopKeys: &c.hopKeys, bpf.TCMapFreeHops: &c.freeHops,
		bpf.TCMapPeersLost: &c.lostPeers,
	} {
		var err error
		if *m, err = coll.Maps[name].Memory(); err != nil {
			return nil, fmt.Errorf("map counters: %w", err)
		}
	}
	c.cpus = int(coll.Maps[bpf.TCMapHopCounters].MaxEntries())
	c.hopStride = int(coll.Maps[bpf.TCMapHopCounters].ValueSize())
	c.peerStride = int(coll.Maps[bpf.TCMapPeers].ValueSize())
	c.maxHops = c.hopStride / hopSize
	c.peersLost = make([]uint64, coll.Maps[bpf.TCMapPeersLost].MaxEntries())
	return c, nil
}

func (c *counters) poll(now time.Time) error {
	return errors.Join(
		c.pollHops(now),
		c.pollPeers(now),
		c.neighbors.poll(now),
		c.pairs.poll(now),
		readLost(c.coll.Maps[bpf.TCMapLosses], &c.lost),
		readMissed(c.coll, &c.missed),
	)
}

// used is how many hop counters were ever allocated, the unused number 0
// included.
func (c *counters) used() (int, error) {
	var a bpf.TCAllocator
	if err := c.coll.Maps[bpf.TCMapAllocator].Lookup(uint32(0), &a); err != nil {
		return 0, fmt.Errorf("read counters: %w", err)
	}
	used := int(a.Used) + 1
	c.left = c.maxHops - used + int(c.freed-a.Taken)
	return used, nil
}

// crowded reports whether few hop counters are left, or little room for peers
// on one CPU.
func (c *counters) crowded() bool {
	return c.left < c.maxHops/4 || nearlyFull(len(c.peers), c.peerStride/peerSize)
}

func (c *counters) pollHops(now time.Time) error {
	used, err := c.used()
	if err != nil {
		return err
	}
	keys, err := read[bpf.TCHopKey](c.hopKeys, 0, used*hopKeySize)
	if err != nil {
		return err
	}
	sums := make([]hop, used)
	for cpu := range c.cpus {
		list, err := read[bpf.TCHopCounter](c.hopCounters, cpu*c.hopStride, used*hopSize)
		if err != nil {
			return err
		}
		for i := range list {
			sums[i].add(&list[i])
		}
	}
	for i := range sums {
		h := &sums[i]
		h.key = keys[i]
		var before hop
		if i < len(c.hops) {
			before = c.hops[i]
		}
		h.first, h.last = before.first, before.last
		if h.n.Packets != before.n.Packets {
			h.last = now
			if h.first.IsZero() {
				h.first = now
			}
		}
	}
	c.hops = sums
	return nil
}

// add adds the counts of one CPU.
func (h *hop) add(c *bpf.TCHopCounter) {
	s := &h.n
	s.Packets += c.Packets
	s.Bytes += c.Bytes
	s.Ttls |= c.Ttls
	s.Syn += c.Syn
	s.Synack += c.Synack
	s.Rst += c.Rst
	s.IcmpErrors += c.IcmpErrors
	s.FromInside += c.FromInside
	s.FromUplink += c.FromUplink
	s.MacsLost += c.MacsLost
	for m := range model.Each(c.Macs[:]) {
		if m.Packets == 0 {
			break
		}
		if h.macs == nil {
			h.macs = map[macs]uint64{}
		}
		h.macs[macs{src: m.Src, dst: m.Dst}] += m.Packets
	}
}

func (c *counters) pollPeers(now time.Time) error {
	sums := make(map[peerKey]peerCounts, len(c.peers))
	for cpu := range c.cpus {
		list, err := read[bpf.TCPeer](c.peerTable, cpu*c.peerStride, c.peerStride)
		if err != nil {
			return err
		}
		for i := range list {
			if p := &list[i]; p.Local != 0 {
				key := peerKey{local: p.Local, link: p.Link, remote: addrFrom(p.Remote)}
				sums[key] = sums[key].plus(p)
			}
		}
	}
	lost, err := read[uint64](c.lostPeers, 0, len(c.peersLost)*lossSize)
	if err != nil {
		return err
	}
	c.peersLost = lost
	for key, count := range sums {
		p := c.peers[key]
		if p == nil {
			p = &peer{}
			c.peers[key] = p
		}
		for d := range count {
			if count[d] != p.count[d] {
				p.last[d] = now
			}
		}
		p.count = count
		if p.firstOut.IsZero() && count[bpf.TCDirectionEGRESS].Packets > 0 {
			p.firstOut = now
		}
	}
	return nil
}

// plus adds the counts of one CPU.
func (c peerCounts) plus(p *bpf.TCPeer) peerCounts {
	for d := range c {
		s, n := &c[d], &p.Count[d]
		s.Packets += n.Packets
		s.Requests += n.Requests
		s.Replies += n.Replies
		s.IcmpErrors += n.IcmpErrors
	}
	return c
}

func readLost(m *ebpf.Map, lost *[bpf.TCLostLOST_MAX]uint64) error {
	for i := range lost {
		var perCPU []uint64
		if err := m.Lookup(uint32(i), &perCPU); err != nil {
			return fmt.Errorf("read losses: %w", err)
		}
		lost[i] = sum(perCPU)
	}
	return nil
}

// readMissed reads how often the kernel skipped a program of the collection,
// since it was running on that CPU already: recursion_misses of struct
// bpf_prog_info, since Linux 5.12. A packet for each was not counted.
func readMissed(coll *ebpf.Collection, missed *uint64) error {
	var n uint64
	for name, p := range coll.Programs {
		stats, err := p.Stats()
		if err != nil {
			return fmt.Errorf("read missed runs of %s: %w", name, err)
		}
		n += stats.RecursionMisses
	}
	*missed = n
	return nil
}

func (c *counters) forgetAddr(slot uint16) error {
	return c.forget(func(addr, _ uint16) bool { return addr == slot })
}

func (c *counters) forgetLink(slot uint16) error {
	return c.forget(func(_, link uint16) bool { return link == slot })
}

// forgetTTLs clears the TTLs of every hop counter. A program that adds one at
// the same time may restore the others of its CPU.
func (c *counters) forgetTTLs() error {
	zero := make([]byte, unsafe.Sizeof(bpf.TCHopCounter{}.Ttls))
	for i := range c.hops {
		if c.hops[i].n.Ttls == 0 {
			continue
		}
		for cpu := range c.cpus {
			at := cpu*c.hopStride + i*hopSize + int(unsafe.Offsetof(bpf.TCHopCounter{}.Ttls))
			if _, err := c.hopCounters.WriteAt(zero, int64(at)); err != nil {
				return fmt.Errorf("clear TTLs: %w", err)
			}
		}
		c.hops[i].n.Ttls = 0
	}
	return nil
}

// forget clears the counts of the slots that match, which are about to be
// reused, and frees their hop counters. No program may count for these slots
// meanwhile.
func (c *counters) forget(match func(addr, link uint16) bool) error {
	var errs []error
	for i := range c.hops {
		if k := c.hops[i].key; k.Addr != 0 && match(k.Addr, k.Link) {
			errs = append(errs, c.free(i))
		}
	}
	zero := make([]byte, peerSize)
	for cpu := range c.cpus {
		list, err := read[bpf.TCPeer](c.peerTable, cpu*c.peerStride, c.peerStride)
		errs = append(errs, err)
		for i := range list {
			if p := &list[i]; p.Local != 0 && match(p.Local, p.Link) {
				_, err := c.peerTable.WriteAt(zero, int64(cpu*c.peerStride+i*peerSize))
				errs = append(errs, err)
			}
		}
	}
	for slot, n := range c.peersLost {
		if n > 0 && match(uint16(slot), 0) {
			_, err := c.lostPeers.WriteAt(make([]byte, lossSize), int64(slot*lossSize))
			errs = append(errs, err)
			c.peersForgot += n
			c.peersLost[slot] = 0
		}
	}
	maps.DeleteFunc(c.peers, func(k peerKey, _ *peer) bool { return match(k.local, k.link) })
	if err := errors.Join(errs...); err != nil {
		return fmt.Errorf("clear counters: %w", err)
	}
	return nil
}

// free clears a hop counter and hands its number back to the programs.
func (c *counters) free(number int) error {
	var errs []error
	write := func(m *ebpf.Memory, b []byte, at int64) {
		_, err := m.WriteAt(b, at)
		errs = append(errs, err)
	}
	k := c.hops[number].key
	cell := uint32(k.Link)*linkHops + uint32(k.Direction)*sides + uint32(k.Side)
	write(c.addrs.rows, make([]byte, cellSize), int64(k.Addr)*c.addrs.rowSize+int64(addrSize+cell*cellSize))
	write(c.hopKeys, make([]byte, hopKeySize), int64(number*hopKeySize))
	for cpu := range c.cpus {
		write(c.hopCounters, make([]byte, hopSize), int64(cpu*c.hopStride+number*hopSize))
	}
	c.hops[number] = hop{}
	if err := errors.Join(errs...); err != nil {
		return err
	}
	// The ring has an entry for every hop counter, so the next one is free.
	at := c.freed % uint32(c.maxHops)
	if _, err := c.freeHops.WriteAt(binary.NativeEndian.AppendUint32(nil, uint32(number)), int64(at*freeHopSize)); err != nil {
		return err
	}
	c.freed++
	return nil
}
