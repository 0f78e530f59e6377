package traffic

import (
	"errors"
	"fmt"
	"time"

	"github.com/cilium/ebpf"

	"github.com/lasthop/lasthop/bpf"
)

// dropCounts mirrors the counts of drops: each key has a number, and each number a count on each CPU. The program
// remembers numbers of recent keys, until the generation changes.
type dropCounts struct {
	table[bpf.DropDropKey]
	counts     *mapped // by CPU, then number
	cpus       int
	free       *ebpf.Map // a queue of numbers
	generation *mapped
	// retired had their keys removed. A program that had found one before may still count, until the next poll.
	retired []retiredDrop
}

// retiredDrop is a number that no key has any more, and its count then.
type retiredDrop struct {
	key           bpf.DropDropKey
	number, count uint64
}

const countSize = 8

func newDropCounts(coll *ebpf.Collection, mem memory) (*dropCounts, error) {
	c := &dropCounts{
		table:      newTable[bpf.DropDropKey](coll.Maps[bpf.DropMapDrops]),
		counts:     mem[bpf.DropMapDropCounts],
		cpus:       int(coll.Maps[bpf.DropMapDropCounts].MaxEntries()),
		free:       coll.Maps[bpf.DropMapFreeDrops],
		generation: mem[".data"],
	}
	c.count = c.sum
	for number := range uint64(c.free.MaxEntries()) {
		if err := c.free.Put(nil, number); err != nil {
			return nil, fmt.Errorf("watch drops: %w", err)
		}
	}
	return c, nil
}

func (c *dropCounts) sum(number uint64) (n uint64) {
	for cpu := range c.cpus {
		n += c.counts.load64(c.at(cpu, number))
	}
	return n
}

func (c *dropCounts) at(cpu int, number uint64) int {
	return cpu*c.counts.stride + int(number)*countSize
}

// forgetRecent has the program look up again what it remembers. A run reads the generation first, but on arm64 it may
// have looked up earlier what was removed meanwhile: so those that may have done so end before the generation changes.
// The variable is the only one of its section; 0 is no generation.
func (c *dropCounts) forgetRecent() {
	_ = quiesce()
	c.generation.store32(0, max(1, c.generation.load32(0)+1))
}

// evict is that of table. Numbers become free at the next poll.
func (c *dropCounts) evict(which func(key bpf.DropDropKey, last time.Time) bool, freed func(bpf.DropDropKey)) error {
	before := len(c.retired)
	err := c.table.evict(which, func(key bpf.DropDropKey, number, count uint64) {
		c.retired = append(c.retired, retiredDrop{key, number, count})
		freed(key)
	})
	if len(c.retired) > before {
		c.forgetRecent()
	}
	return err
}

// release gives retired numbers back to the program. No program may run that did when
// they were retired. What was counted since is kept.
func (c *dropCounts) release(now time.Time) error {
	var errs []error
	for _, r := range c.retired {
		if late := c.sum(r.number) - r.count; late > 0 {
			e := c.entries[r.key]
			if e == nil {
				e = &tally{first: now}
				c.entries[r.key] = e
			}
			e.base, e.packets, e.last = e.base+late, e.packets+late, now
		}
		for cpu := range c.cpus {
			c.counts.store64(c.at(cpu, r.number), 0)
		}
		errs = append(errs, c.free.Put(nil, r.number))
	}
	c.retired = c.retired[:0]
	if err := errors.Join(errs...); err != nil {
		return fmt.Errorf("free counters of drops: %w", err)
	}
	return nil
}
