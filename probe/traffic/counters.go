package traffic

import (
	"cmp"
	"errors"
	"fmt"
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
	hopCounters *mapped // by CPU, then number
	hopKeys     *mapped // by number of a pair of hop counters
	freeHops    *mapped // a ring of numbers of pairs of hop counters
	addrLosses  *mapped // by slot, then reason
	// addrs hold the numbers of the pairs of hop counters in their rows.
	addrs *addrTable
	cpus  int

	hops      []hop // by number of the hop counter
	macs      moreMACs
	peers     *peers
	neighbors table[bpf.TCNeighKey]
	pairs     table[bpf.TCPairKey]
	// maxHops is how many pairs of hop counters there are, the unused number 0 included, freed how many were written
	// to freeHops, left how many can still be allocated.
	maxHops int
	freed   uint32
	left    int
	lost    [bpf.TCLostLOST_MAX]uint64
	missed  uint64 // see readMissed
	// lostOf are those packets that are of a known address, by its slot.
	lostOf [][bpf.TCLostLOST_OF_ADDR]uint64
}

// hop is a hop counter, summed over CPUs.
type hop struct {
	key         bpf.TCHopKey
	direction   model.Direction
	side        model.Side
	n           bpf.TCHopCounter // except Macs
	macs        map[macs]uint64
	first, last time.Time
}

func newCounters(coll *ebpf.Collection, mem memory, addrs *addrTable) *counters {
	cpus := int(coll.Maps[bpf.TCMapHopCounters].MaxEntries())
	return &counters{
		coll:        coll,
		hopCounters: mem[bpf.TCMapHopCounters],
		hopKeys:     mem[bpf.TCMapHopKeys],
		freeHops:    mem[bpf.TCMapFreeHops],
		addrLosses:  mem[bpf.TCMapAddrLosses],
		addrs:       addrs,
		cpus:        cpus,
		macs:        newMoreMACs(mem[bpf.TCMapMoreMacs], cpus),
		peers:       newPeers(mem, int(coll.Maps[bpf.TCMapPeerShares].MaxEntries()), cpus),
		neighbors:   newTable[bpf.TCNeighKey](coll.Maps[bpf.TCMapNeighbors]),
		pairs:       newTable[bpf.TCPairKey](coll.Maps[bpf.TCMapPairs]),
		maxHops:     mem[bpf.TCMapHopCounters].stride / hopSize / sides,
		lostOf:      make([][bpf.TCLostLOST_OF_ADDR]uint64, coll.Maps[bpf.TCMapAddrLosses].MaxEntries()),
	}
}

func (c *counters) poll(now time.Time) error {
	c.peers.poll(now)
	c.pollLosses()
	return errors.Join(
		c.pollHops(now),
		c.neighbors.poll(now),
		c.pairs.poll(now),
		readLost(c.coll.Maps[bpf.TCMapLosses], &c.lost),
		readMissed(c.coll, &c.missed),
	)
}

// evictNeighbors forgets ARP and ND messages that were not seen since then: those on
// links and for addresses that are gone and, where there is little room, all of them.
func (c *counters) evictNeighbors(since time.Time, on *links) error {
	crowded := c.neighbors.crowded()
	return c.neighbors.evict(func(k bpf.TCNeighKey, last time.Time) bool {
		link, watched := on.slots.of[int(k.Ifindex)]
		addr, local := c.addrs.addrs.of[addrFrom(k.Addr)]
		return last.Before(since) && (crowded || !watched || on.slots.gone(link, since) || local && c.addrs.addrs.gone(addr, since))
	}, nil)
}

// used is how many pairs of hop counters were ever allocated, the unused number 0 included.
func (c *counters) used() (int, error) {
	var a bpf.TCAllocator
	if err := c.coll.Maps[bpf.TCMapAllocator].Lookup(uint32(0), &a); err != nil {
		return 0, fmt.Errorf("read counters: %w", err)
	}
	used := int(a.Used) + 1
	c.left = c.maxHops - used + int(c.freed-a.Taken)
	return used, nil
}

// crowded reports whether few hop counters are left, or little room for peers on one CPU.
func (c *counters) crowded() bool { return c.left < c.maxHops/4 || c.peers.crowded() }

func (c *counters) pollHops(now time.Time) error {
	used, err := c.used()
	if err != nil {
		return err
	}
	c.hops = append(c.hops, make([]hop, max(0, used*sides-len(c.hops)))...)
	more := len(c.macs.pairs) > 0
	for i := range c.hops {
		h := &c.hops[i]
		before := h.n.Packets
		h.n = bpf.TCHopCounter{}
		clear(h.macs)
		for cpu := range c.cpus {
			n := one[bpf.TCHopCounter](c.hopCounters, cpu*c.hopCounters.stride+i*hopSize)
			h.add(&n)
			more = more || n.Macs[bpf.TCLimitHOP_MACS-1].Packets > 0
		}
		h.key = one[bpf.TCHopKey](c.hopKeys, i/sides*hopKeySize)
		h.side, h.direction = side(uint8(i%sides)), direction(uint8(i%sides)^h.key.Way)
		if h.n.Packets != before {
			h.first, h.last = cmp.Or(h.first, now), now
		}
	}
	if more {
		c.pollMACs(now)
	}
	return nil
}

// pollMACs adds the pairs that the hop counters had no room for.
func (c *counters) pollMACs(now time.Time) {
	c.macs.poll(now)
	for k, n := range c.macs.pairs {
		// A counter that is newer than this poll is not among the hops.
		if int(k.hop) < len(c.hops) {
			c.hops[k.hop].addMACs(k.macs, n.packets)
		}
	}
}

func (h *hop) addMACs(m macs, n uint64) {
	if h.macs == nil {
		h.macs = map[macs]uint64{}
	}
	h.macs[m] += n
}

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
		h.addMACs(macs{src: m.Src, dst: m.Dst}, m.Packets)
	}
}

func (c *counters) pollLosses() {
	const row = int(bpf.TCLostLOST_OF_ADDR)
	words := read[uint64](c.addrLosses, 0, len(c.lostOf)*row*lossSize)
	for slot := range c.lostOf {
		copy(c.lostOf[slot][:], words[slot*row:])
	}
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

// readMissed reads how often the kernel skipped a program of the collection, since it was running on that CPU
// already: recursion_misses of struct bpf_prog_info, since Linux 5.12. A packet for each was not counted.
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

func (c *counters) forgetAddr(slot uint16) {
	c.forget(func(addr, _ uint16) bool { return addr == slot })
}

func (c *counters) forgetLink(slot uint16) {
	c.forget(func(_, link uint16) bool { return link == slot })
}

// forgetTTLs clears the TTLs of every hop counter. A program that adds one at
// the same time may restore the others of its CPU.
func (c *counters) forgetTTLs() {
	for i := range c.hops {
		if c.hops[i].n.Ttls == 0 {
			continue
		}
		for cpu := range c.cpus {
			c.hopCounters.store64(cpu*c.hopCounters.stride+i*hopSize+int(unsafe.Offsetof(bpf.TCHopCounter{}.Ttls)), 0)
		}
		c.hops[i].n.Ttls = 0
	}
}

// forget clears the counts of the slots that match, which are about to be reused, and frees their hop counters.
// No program may count for these slots meanwhile.
func (c *counters) forget(match func(addr, link uint16) bool) {
	freed := map[uint32]bool{}
	for i := range c.hops {
		if k := c.hops[i].key; k.Addr != 0 && match(k.Addr, k.Link) {
			freed[uint32(i/sides)] = true
		}
	}
	// Before their numbers are given to others.
	c.macs.forget(func(k macKey) bool { return freed[k.hop/uint32(sides)] })
	for number := range freed {
		c.free(int(number))
	}
	c.peers.forget(match)
	for slot := range c.lostOf {
		if match(uint16(slot), 0) {
			c.addrLosses.clear(slot*c.addrLosses.stride, c.addrLosses.stride)
			clear(c.lostOf[slot][:])
		}
	}
}

// free clears a pair of hop counters and hands its number back to the programs.
func (c *counters) free(number int) {
	k := c.hops[number*sides].key
	rows, cell := c.addrs.rows, int(k.Link)*ways+int(k.Way)
	rows.store16(int(k.Addr)*rows.stride+addrSize+cell*cellSize, 0)
	c.hopKeys.store64(number*hopKeySize, 0)
	for cpu := range c.cpus {
		c.hopCounters.clear(cpu*c.hopCounters.stride+number*sides*hopSize, sides*hopSize)
	}
	clear(c.hops[number*sides : (number+1)*sides])
	// The ring has an entry for every pair, so the next one is free.
	c.freeHops.store32(int(c.freed)%c.maxHops*freeHopSize, uint32(number))
	c.freed++
}

func sum(perCPU []uint64) (n uint64) {
	for _, c := range perCPU {
		n += c
	}
	return n
}
