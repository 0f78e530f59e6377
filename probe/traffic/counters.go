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

// counters are what the tc programs count: read from the kernel at each poll,
// kept here with when each was first and last seen to move.
type counters struct {
	coll   *ebpf.Collection
	legs   *ebpf.Memory // by CPU, then leg
	peers  *ebpf.Memory // by CPU, then place
	owners *ebpf.Memory // by leg
	spare  *ebpf.Memory // a ring of legs
	// subjects have the legs' numbers in their rows.
	subjects *subjects
	cpus     int
	// legStride and peerStride are how much of the memory is one CPU's.
	legStride, peerStride int

	hops      []hop // by leg
	pairs     map[pairKey]*pair
	neighbors map[bpf.TCNeighKey]*tally
	closely   map[bpf.TCPairKey]*tally
	// places is how many legs there are, leg 0 included, freed how many were
	// given to spare, left how many may still be given out.
	places int
	freed  uint32
	left   int
	lost   [bpf.TCLostLOST_MAX]uint64
}

// hop is a leg, over all CPUs.
type hop struct {
	owner       bpf.TCOwner
	leg         bpf.TCLeg // but for Macs
	macs        map[macs]uint64
	first, last time.Time
}

type macs struct{ src, dst model.MAC }

type pairKey struct {
	subject, link uint16
	remote        netip.Addr
}

type pair struct {
	count    [bpf.TCDirectionDIRECTIONS]bpf.TCPeerCount
	firstOut time.Time
	last     [bpf.TCDirectionDIRECTIONS]time.Time
}

// tally is the count of one entry of a table that has room for so many.
type tally struct {
	packets uint64
	// base is what was counted before the kernel's own entry began anew.
	base        uint64
	first, last time.Time
}

// is notes what the kernel's entry counts.
func (t *tally) is(n uint64, now time.Time) {
	if n += t.base; n != t.packets {
		t.packets, t.last = n, now
	}
}

func newCounters(coll *ebpf.Collection, s *subjects) (*counters, error) {
	c := &counters{
		coll:      coll,
		subjects:  s,
		pairs:     map[pairKey]*pair{},
		neighbors: map[bpf.TCNeighKey]*tally{},
		closely:   map[bpf.TCPairKey]*tally{},
	}
	var err error
	var errs []error
	for name, m := range map[string]**ebpf.Memory{
		bpf.TCMapLegs: &c.legs, bpf.TCMapPeers: &c.peers, bpf.TCMapOwners: &c.owners, bpf.TCMapSpare: &c.spare,
	} {
		*m, err = coll.Maps[name].Memory()
		errs = append(errs, err)
	}
	if err := errors.Join(errs...); err != nil {
		return nil, fmt.Errorf("map counters: %w", err)
	}
	c.cpus = int(coll.Maps[bpf.TCMapLegs].MaxEntries())
	c.legStride = int(coll.Maps[bpf.TCMapLegs].ValueSize())
	c.peerStride = int(coll.Maps[bpf.TCMapPeers].ValueSize())
	c.places = c.legStride / legSize
	return c, nil
}

func (c *counters) poll(now time.Time) error {
	return errors.Join(
		c.pollLegs(now),
		c.pollPeers(now),
		pollTable(c.coll.Maps[bpf.TCMapNeighbors], c.neighbors, now),
		pollTable(c.coll.Maps[bpf.TCMapPairs], c.closely, now),
		readLost(c.coll.Maps[bpf.TCMapLosses], &c.lost),
	)
}

// used is how many legs were ever given out, leg 0 included.
func (c *counters) used() (int, error) {
	var a bpf.TCAllocator
	if err := c.coll.Maps[bpf.TCMapAllocator].Lookup(uint32(0), &a); err != nil {
		return 0, fmt.Errorf("read counters: %w", err)
	}
	used := int(a.Used) + 1
	c.left = c.places - used + int(c.freed-a.Taken)
	return used, nil
}

// crowded reports whether few legs are left, or few places for pairs on one CPU.
func (c *counters) crowded() bool {
	return c.left < c.places/4 || len(c.pairs) > c.peerStride/peerSize/4*3
}

func (c *counters) pollLegs(now time.Time) error {
	used, err := c.used()
	if err != nil {
		return err
	}
	b, err := read(c.owners, 0, used*ownerSize)
	if err != nil {
		return err
	}
	owners := view[bpf.TCOwner](b)
	next := make([]hop, used)
	for cpu := range c.cpus {
		b, err := read(c.legs, cpu*c.legStride, used*legSize)
		if err != nil {
			return err
		}
		for i, l := range view[bpf.TCLeg](b) {
			next[i].add(&l)
		}
	}
	for i := range next {
		h := &next[i]
		h.owner = owners[i]
		var before hop
		if i < len(c.hops) {
			before = c.hops[i]
		}
		h.first, h.last = before.first, before.last
		if h.leg.Packets != before.leg.Packets {
			h.last = now
			if h.first.IsZero() {
				h.first = now
			}
		}
	}
	c.hops = next
	return nil
}

// add sums one CPU's counts.
func (h *hop) add(l *bpf.TCLeg) {
	s := &h.leg
	s.Packets += l.Packets
	s.Bytes += l.Bytes
	s.Ttls |= l.Ttls
	s.Syn += l.Syn
	s.Synack += l.Synack
	s.Rst += l.Rst
	s.IcmpErrors += l.IcmpErrors
	s.Inner += l.Inner
	s.Outer += l.Outer
	s.MacsLost += l.MacsLost
	for i := range l.Macs {
		m := &l.Macs[i]
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
	next := make(map[pairKey]*pair, len(c.pairs))
	for cpu := range c.cpus {
		b, err := read(c.peers, cpu*c.peerStride, c.peerStride)
		if err != nil {
			return err
		}
		for _, p := range view[bpf.TCPeer](b) {
			if p.Subject == 0 {
				continue
			}
			key := pairKey{subject: p.Subject, link: p.Link, remote: addrFrom(p.Remote)}
			if next[key] == nil {
				next[key] = &pair{}
			}
			next[key].add(&p)
		}
	}
	for key, p := range next {
		var before pair
		if b := c.pairs[key]; b != nil {
			before = *b
		}
		p.firstOut, p.last = before.firstOut, before.last
		for d := range p.count {
			if p.count[d] != before.count[d] {
				p.last[d] = now
			}
		}
		if p.firstOut.IsZero() && p.count[bpf.TCDirectionEGRESS].Packets > 0 {
			p.firstOut = now
		}
	}
	c.pairs = next
	return nil
}

func (p *pair) add(q *bpf.TCPeer) {
	for d := range p.count {
		s, n := &p.count[d], &q.Count[d]
		s.Packets += n.Packets
		s.Asks += n.Asks
		s.Answers += n.Answers
		s.IcmpErrors += n.IcmpErrors
	}
}

// pollTable reads the counts of a table that all CPUs share.
func pollTable[K comparable](m *ebpf.Map, into map[K]*tally, now time.Time) error {
	var key K
	var n uint64
	it := m.Iterate()
	for it.Next(&key, &n) {
		if into[key] == nil {
			into[key] = &tally{first: now}
		}
		into[key].is(n, now)
	}
	// An aborted walk is one that the kernel's own additions kept from its
	// end. Programs delete nothing, so that the next one goes on.
	if err := it.Err(); err != nil && !errors.Is(err, ebpf.ErrIterationAborted) {
		return fmt.Errorf("read counters of %s: %w", m, err)
	}
	return nil
}

// shed takes out of a table what did not move since then, if few of so many
// places are left. take deletes a key from the kernel's table and gives its last
// count.
func shed[K comparable](list map[K]*tally, most int, since time.Time, take func(K) (uint64, error)) error {
	if len(list) <= most/4*3 {
		return nil
	}
	var errs []error
	for key, t := range list {
		if !t.last.Before(since) {
			continue
		}
		n, err := take(key)
		switch {
		case err != nil:
			errs = append(errs, err)
		case t.base+n == t.packets:
			delete(list, key)
		default:
			// It has just moved.
			t.base += n
		}
	}
	if err := errors.Join(errs...); err != nil {
		return fmt.Errorf("make room: %w", err)
	}
	return nil
}

func (c *counters) shedNeighbors(since time.Time) error {
	return shed(c.neighbors, maxNeighbors, since, func(k bpf.TCNeighKey) (n uint64, err error) {
		err = c.coll.Maps[bpf.TCMapNeighbors].LookupAndDelete(k, &n)
		return n, err
	})
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

func (c *counters) forgetSubject(slot uint16) error {
	return c.forget(func(subject, _ uint16) bool { return subject == slot })
}

func (c *counters) forgetLink(slot uint16) error {
	return c.forget(func(_, link uint16) bool { return link == slot })
}

// forgetTTLs clears the TTLs of every leg. A program that adds one at the same
// time may bring the others of its CPU back.
func (c *counters) forgetTTLs() error {
	zero := make([]byte, unsafe.Sizeof(bpf.TCLeg{}.Ttls))
	for i := range c.hops {
		if c.hops[i].leg.Ttls == 0 {
			continue
		}
		for cpu := range c.cpus {
			at := cpu*c.legStride + i*legSize + int(unsafe.Offsetof(bpf.TCLeg{}.Ttls))
			if _, err := c.legs.WriteAt(zero, int64(at)); err != nil {
				return fmt.Errorf("clear TTLs: %w", err)
			}
		}
		c.hops[i].leg.Ttls = 0
	}
	return nil
}

// forget clears what was counted for slots that are to be somebody else's, and
// takes their legs back. No program counts for them at that time.
func (c *counters) forget(whose func(subject, link uint16) bool) error {
	var errs []error
	zeroPeer := make([]byte, peerSize)
	for i := range c.hops {
		if o := c.hops[i].owner; o.Subject != 0 && whose(o.Subject, o.Link) {
			errs = append(errs, c.free(i))
		}
	}
	for cpu := range c.cpus {
		b, err := read(c.peers, cpu*c.peerStride, c.peerStride)
		errs = append(errs, err)
		for i, p := range view[bpf.TCPeer](b) {
			if p.Subject != 0 && whose(p.Subject, p.Link) {
				_, err := c.peers.WriteAt(zeroPeer, int64(cpu*c.peerStride+i*peerSize))
				errs = append(errs, err)
			}
		}
	}
	maps.DeleteFunc(c.pairs, func(k pairKey, _ *pair) bool { return whose(k.subject, k.link) })
	if err := errors.Join(errs...); err != nil {
		return fmt.Errorf("clear counters: %w", err)
	}
	return nil
}

// free makes a leg one that nobody has.
func (c *counters) free(leg int) error {
	var errs []error
	write := func(m *ebpf.Memory, b []byte, at int64) {
		_, err := m.WriteAt(b, at)
		errs = append(errs, err)
	}
	o := c.hops[leg].owner
	cell := uint32(o.Link)*linkLegs + uint32(o.Direction)*sides + uint32(o.Side)
	write(c.subjects.rows, make([]byte, cellSize), int64(o.Subject)*c.subjects.rowSize+int64(subjectSize+cell*cellSize))
	write(c.owners, make([]byte, ownerSize), int64(leg*ownerSize))
	for cpu := range c.cpus {
		write(c.legs, make([]byte, legSize), int64(cpu*c.legStride+leg*legSize))
	}
	c.hops[leg] = hop{}
	if err := errors.Join(errs...); err != nil {
		return err
	}
	// The ring has a place for every leg, so that the next one is free.
	at := c.freed % uint32(c.places)
	if _, err := c.spare.WriteAt(binary.NativeEndian.AppendUint32(nil, uint32(leg)), int64(at*spareSize)); err != nil {
		return err
	}
	c.freed++
	return nil
}
