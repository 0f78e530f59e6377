package traffic

import (
	"errors"
	"fmt"
	"time"
)

// errFull is returned for what found no slot.
var errFull = errors.New("no room")

// pool hands out slots, the small numbers that the kernel knows something by.
// Who leaves keeps its slot, and what was counted under it, until every slot
// was given out; then who is gone for longest makes room.
type pool[K comparable] struct {
	first, end uint16
	of         map[K]uint16
	tenants    []tenant[K] // by slot, from first
	// polls is the time that the pool knows. A program that found a slot
	// before its tenant left is done with it by the next poll.
	polls uint64
	// now is when the last poll was.
	now time.Time
}

type tenant[K comparable] struct {
	key  K
	live bool
	gone uint64
	left time.Time
	// released: the slot is nobody's any more.
	released bool
}

func (p *pool[K]) polled(now time.Time) { p.polls, p.now = p.polls+1, now }

func newPool[K comparable](first, end uint16) *pool[K] {
	return &pool[K]{first: first, end: end, of: map[K]uint16{}}
}

// take returns the slot of k. When it was another's, forget is called for it
// before.
func (p *pool[K]) take(k K, forget func(slot uint16) error) (uint16, error) {
	if slot, ok := p.of[k]; ok {
		return slot, nil
	}
	slot := p.first + uint16(len(p.tenants))
	if slot < p.end {
		p.tenants = append(p.tenants, tenant[K]{})
	} else {
		i := p.longestGone()
		if i < 0 {
			return 0, fmt.Errorf("%w for more than %d", errFull, len(p.tenants))
		}
		slot = p.first + uint16(i)
		if err := forget(slot); err != nil {
			return 0, err
		}
		if !p.tenants[i].released {
			delete(p.of, p.tenants[i].key)
		}
	}
	p.of[k] = slot
	p.tenants[slot-p.first] = tenant[K]{key: k, gone: p.polls}
	return slot, nil
}

func (p *pool[K]) longestGone() int {
	found := -1
	for i, t := range p.tenants {
		if !t.live && t.gone < p.polls && (found < 0 || t.gone < p.tenants[found].gone) {
			found = i
		}
	}
	return found
}

func (p *pool[K]) enter(slot uint16) { p.tenants[slot-p.first].live = true }

func (p *pool[K]) leave(slot uint16) {
	t := &p.tenants[slot-p.first]
	t.live, t.gone, t.left = false, p.polls, p.now
}

// release gives the slots free of who left before then: nobody is known by them,
// and what was counted under them is to be forgotten.
func (p *pool[K]) release(before time.Time) map[uint16]bool {
	out := map[uint16]bool{}
	for i := range p.tenants {
		t := &p.tenants[i]
		if !t.live && !t.released && t.gone < p.polls && t.left.Before(before) {
			delete(p.of, t.key)
			*t = tenant[K]{gone: t.gone, released: true}
			out[p.first+uint16(i)] = true
		}
	}
	return out
}

func (p *pool[K]) live(slot uint16) bool { return p.tenants[slot-p.first].live }

// key is who a slot belongs to; false for one that is nobody's.
func (p *pool[K]) key(slot uint16) (K, bool) {
	if i := int(slot) - int(p.first); i >= 0 && i < len(p.tenants) && !p.tenants[i].released {
		return p.tenants[i].key, true
	}
	var none K
	return none, false
}
