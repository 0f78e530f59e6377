package timeline

import (
	"cmp"
	"hash/maphash"
	"slices"

	"github.com/lasthop/lasthop/probe/model"
)

// ruleCounts are the counters of rules and chains. Identical rules have one key and keep their order.
type ruleCounts struct {
	frames list[ruleCount]
	// chains are those with a policy: it is what a chain counts.
	chains  list[ruleCount]
	packets *packetCounts
}

// ruleCount is a rule's counter and its nft handle, 0 for rules of other backends.
type ruleCount struct{ packets, handle uint64 }

func newRuleCounts(s *model.Snapshot, k *keeper) ruleCounts {
	chains := slices.DeleteFunc(slices.Clone(s.Chains), func(c model.Chain) bool { return c.Policy == "" })
	return ruleCounts{newList(s.FrameRules, frameMark), newList(chains, chainMark), k.of(s.PacketRules)}
}

// packetCounts are the counters of packet rules in their order, with their keys.
type packetCounts struct {
	*packetKeys
	counts []ruleCount
}

// packetKeys are the keys of packet rules in their order.
type packetKeys struct {
	keys []uint64
	// sorted are the places of the keys. sum is one number for all, in any order.
	sorted list[int]
	sum    uint64
}

// keeper keeps what is known of the packet rules that were seen last: there may be very
// many, of which few count and hardly any change.
type keeper struct {
	rules  []model.PacketRule
	counts *packetCounts
}

func (k *keeper) of(rules []model.PacketRule) *packetCounts {
	if k.counts != nil && sameList(k.rules, rules) {
		return k.counts
	}
	now := &packetCounts{counts: make([]ruleCount, len(rules))}
	same := k.counts != nil && len(rules) == len(k.rules)
	for i := range rules {
		r := &rules[i]
		now.counts[i], same = ruleCount{r.Counter.Packets, r.Handle}, same && keyOfPacket(r) == keyOfPacket(&k.rules[i])
	}
	if same {
		now.packetKeys = k.counts.packetKeys
	} else {
		now.packetKeys = newPacketKeys(rules)
	}
	*k = keeper{rules: rules, counts: now}
	return now
}

func newPacketKeys(rules []model.PacketRule) *packetKeys {
	k := &packetKeys{keys: make([]uint64, len(rules)), sorted: make(list[int], len(rules))}
	var hash maphash.Hash
	hash.SetSeed(seed)
	for i := range rules {
		k.keys[i] = maphash.Comparable(seed, keyOfPacket(&rules[i]))
		k.sorted[i] = entry[int]{k.keys[i], i}
	}
	slices.SortStableFunc(k.sorted, func(a, b entry[int]) int { return cmp.Compare(a.key, b.key) })
	for _, e := range k.sorted {
		maphash.WriteComparable(&hash, e.key)
	}
	k.sum = hash.Sum64()
	return k
}

// ruleKey identifies a rule across readings. Its position changes when other rules are added or deleted.
type ruleKey struct {
	backend                    model.Backend
	nfproto                    int
	family, table, chain, text string
}

func frameMark(r *model.FrameRule) (uint64, ruleCount) {
	return maphash.Comparable(seed, ruleKey{backend: r.Backend, table: r.Table, chain: r.Chain, text: r.Text}), ruleCount{r.Counter.Packets, r.Handle}
}

func keyOfPacket(r *model.PacketRule) ruleKey {
	return ruleKey{r.Backend, r.NFProto, r.Family, r.Table, r.Chain, r.Text}
}

func chainMark(c *model.Chain) (uint64, ruleCount) {
	return maphash.Comparable(seed, ruleKey{backend: c.Backend, table: c.Family + " " + c.Table, chain: c.Name}), ruleCount{packets: c.Counter.Packets}
}

// compare sets the counters of a snapshot's rules and chains by those of another reading. now has its packet rules.
func (c *ruleCounts) compare(
	s *model.Snapshot, now *packetCounts, unread func(source string) bool,
	counted func(other ruleCount, known bool, own ruleCount, c model.Counter, unread bool) model.Counter,
) {
	used, frames, packets := map[uint64]int{}, unread(model.SourceEbtables), unread(model.SourceNAT)
	frame := func(i int, r *model.FrameRule) model.Counter {
		key, own := frameMark(r)
		other, known := next(c.frames, key, used)
		return counted(other, known, own, r.Counter, frames)
	}
	s.FrameRules = withCounters(s.FrameRules, func(r *model.FrameRule) *model.Counter { return &r.Counter }, frame)
	then := c.packets
	packet := func(i int, r *model.PacketRule) model.Counter {
		at, known := i, then != nil && then.packetKeys == now.packetKeys
		if !known && then != nil {
			at, known = next(then.sorted, now.keys[i], used)
		}
		var other ruleCount
		if known {
			other = then.counts[at]
		}
		return counted(other, known, now.counts[i], r.Counter, packets)
	}
	if now != then {
		s.PacketRules = withCounters(s.PacketRules, func(r *model.PacketRule) *model.Counter { return &r.Counter }, packet)
	}
	chain := func(i int, x *model.Chain) model.Counter {
		if x.Policy == "" {
			return x.Counter
		}
		key, own := chainMark(x)
		other, known := next(c.chains, key, used)
		return counted(other, known, own, x.Counter, model.Either(x.Family == "bridge", frames, packets))
	}
	s.Chains = withCounters(s.Chains, func(x *model.Chain) *model.Counter { return &x.Counter }, chain)
}

// withCounters returns the list with the counters that now returns: the list itself where they are all the same,
// since there may be very many rules of which few count.
func withCounters[T any](list []T, of func(*T) *model.Counter, now func(int, *T) model.Counter) []T {
	out := list
	for i := range list {
		c := now(i, &list[i])
		if c == *of(&out[i]) {
			continue
		}
		if sameList(out, list) {
			out = slices.Clone(list)
		}
		*of(&out[i]) = c
	}
	return out
}

// next returns the value of the next rule with a key, if there is one.
func next[V comparable](l list[V], k uint64, used map[uint64]int) (v V, ok bool) {
	i, ok := l.find(k)
	if i += used[k]; !ok || i >= len(l) || l[i].key != k {
		return v, false
	}
	used[k]++
	return l[i].value, true
}

// counted returns the counter of a rule with its Delta. A rule with another handle or a lower counter was
// rewritten: programs that maintain rules replace whole chains, which resets counters. It counted all of its
// packets since. If the mark's rules were not read whole, a rule that is not among them may have counted before.
func counted(before ruleCount, known bool, now ruleCount, c model.Counter, unread bool) model.Counter {
	c.Added = !known
	switch {
	case !known && unread:
		c.Delta, c.Restarted = 0, true
	case !known:
		c.Delta = now.packets
	case now.packets < before.packets || now.handle != before.handle:
		c.Delta, c.Restarted = now.packets, true
	default:
		c.Delta = now.packets - before.packets
	}
	return c
}

// countedUntil returns the counter of a rule as of a later reading. Of one that is gone then, was rewritten, or was not
// read whole, it does not tell what it counted.
func countedUntil(later ruleCount, known bool, own ruleCount, c model.Counter, _ bool) model.Counter {
	c.Added, c.Restarted, c.Delta = false, !known || later.packets < own.packets || later.handle != own.handle, 0
	if !c.Restarted {
		c.Packets, c.Delta = later.packets, later.packets-own.packets
	}
	return c
}
