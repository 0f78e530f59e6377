package traffic

import (
	"errors"
	"fmt"
	"time"
)

var errFull = errors.New("no free slot")

// pool allocates slots, the small numbers by which the programs know a key. A key that leaves keeps its slot, and
// the counts under it, until no unused slot is left. Then the slot of the key that left first is reused.
type pool[K comparable] struct {
	first, end uint16
	of         map[K]uint16
	holders    []holder[K] // by slot, from first
	// polls counts polls. A program that found a slot before its key left
	// has finished by the next poll. leaving says that a key left since.
	polls   uint64
	leaving bool
	now     time.Time // of the last poll
}

type holder[K comparable] struct {
	key      K
	live     bool
	gone     uint64
	left     time.Time
	released bool // the slot belongs to no key
}

func (p *pool[K]) polled(now time.Time) { p.polls, p.now, p.leaving = p.polls+1, now, false }

func newPool[K comparable](first, end uint16) *pool[K] {
	return &pool[K]{first: first, end: end, of: map[K]uint16{}}
}

// take returns the slot of k. It calls forget for a slot that another key had.
func (p *pool[K]) take(k K, forget func(slot uint16)) (uint16, error) {
	if slot, ok := p.of[k]; ok {
		return slot, nil
	}
	slot := p.first + uint16(len(p.holders))
	if slot < p.end {
		p.holders = append(p.holders, holder[K]{})
	} else {
		i := p.longestGone()
		if i < 0 {
			return 0, fmt.Errorf("%w: at most %d", errFull, len(p.holders))
		}
		slot = p.first + uint16(i)
		forget(slot)
		if !p.holders[i].released {
			delete(p.of, p.holders[i].key)
		}
	}
	p.of[k] = slot
	p.holders[slot-p.first] = holder[K]{key: k, gone: p.polls}
	return slot, nil
}

func (p *pool[K]) longestGone() int {
	found := -1
	for i, t := range p.holders {
		if !t.live && t.gone < p.polls && (found < 0 || t.gone < p.holders[found].gone) {
			found = i
		}
	}
	return found
}

func (p *pool[K]) enter(slot uint16) { p.holders[slot-p.first].live = true }

func (p *pool[K]) leave(slot uint16) {
	t := &p.holders[slot-p.first]
	t.live, t.gone, t.left, p.leaving = false, p.polls, p.now, true
}

// gone reports whether the key of a slot left before then, and what the programs did for it has been read.
func (p *pool[K]) gone(slot uint16, before time.Time) bool {
	t := &p.holders[slot-p.first]
	return !t.live && t.gone < p.polls && (t.released || t.left.Before(before))
}

// release frees and returns the slots of keys that left before then. The caller must forget their counts.
func (p *pool[K]) release(before time.Time) map[uint16]bool {
	out := map[uint16]bool{}
	for i := range p.holders {
		if t := &p.holders[i]; !t.released && p.gone(p.first+uint16(i), before) {
			delete(p.of, t.key)
			*t = holder[K]{gone: t.gone, released: true}
			out[p.first+uint16(i)] = true
		}
	}
	return out
}

func (p *pool[K]) live(slot uint16) bool { return p.holders[slot-p.first].live }

// key returns the key of a slot, false if it has none.
func (p *pool[K]) key(slot uint16) (k K, ok bool) {
	if i := int(slot) - int(p.first); i >= 0 && i < len(p.holders) && !p.holders[i].released {
		return p.holders[i].key, true
	}
	return k, false
}
