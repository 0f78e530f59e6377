package timeline

import (
	"cmp"
	"hash/maphash"
	"slices"

	"github.com/lasthop/lasthop/probe/model"
)

// ruleCounts are the counters of rules and chains. Identical rules have one key
// and keep their order.
type ruleCounts struct {
	frames list[ruleCount]
	// chains are those with a policy: it is what a chain counts.
	chains  list[ruleCount]
	packets *packetCounts
}

// ruleCount is a rule's counter and its nft handle, 0 for rules of other
// backends.
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
	// still are the rules as they are in a window in which none counted, once asked for.
	still []model.PacketRule
}

func (k *keeper) of(rules []model.PacketRule) *packetCounts {
	if k.counts != nil && sameList(k.rules, rules) {
		return k.counts
	}
	now := &packetCounts{counts: make([]ruleCount, len(rules))}
	same := k.counts != nil && len(rules) == len(k.rules)
	for i := range rules {
		r := &rules[i]
		now.counts[i] = ruleCount{r.Counter.Packets, r.Handle}
		same = same && keyOfPacket(r) == keyOfPacket(&k.rules[i])
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

// ruleKey identifies a rule across readings. Its position changes when other
// rules are added or deleted.
type ruleKey struct {
	backend            model.Backend
	nfproto            int
	family             string
	table, chain, text string
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

// compareRules sets Delta and Standing of a snapshot's rules and chains, in copies
// of its lists.
func (m *mark) compareRules(s *model.Snapshot, k *keeper) {
	s.FrameRules, s.Chains = slices.Clone(s.FrameRules), slices.Clone(s.Chains)
	used := map[uint64]int{}
	frames, packets := m.unread(model.SourceEbtables), m.unread(model.SourceNAT)
	for r := range model.Each(s.FrameRules) {
		key, now := frameMark(r)
		before, known := next(m.rules.frames, key, used)
		r.Standing = counted(before, known, now, &r.Counter, frames)
	}
	now := k.of(s.PacketRules)
	switch {
	case now != m.rules.packets:
		s.PacketRules = m.comparePackets(s.PacketRules, now, used, packets)
	case k.still == nil:
		k.still = m.comparePackets(s.PacketRules, now, used, packets)
		fallthrough
	default:
		s.PacketRules = k.still
	}
	for x := range model.Each(s.Chains) {
		if x.Policy == "" {
			continue
		}
		key, now := chainMark(x)
		unread := packets
		if x.Family == "bridge" {
			unread = frames
		}
		before, known := next(m.rules.chains, key, used)
		counted(before, known, now, &x.Counter, unread)
	}
}

// comparePackets sets Delta and Standing of packet rules, in a copy.
func (m *mark) comparePackets(
	rules []model.PacketRule, now *packetCounts, used map[uint64]int, unread bool,
) []model.PacketRule {
	rules = slices.Clone(rules)
	then := m.rules.packets
	for i := range rules {
		at, known := i, then != nil && then.packetKeys == now.packetKeys
		if !known && then != nil {
			at, known = next(then.sorted, now.keys[i], used)
		}
		var before ruleCount
		if known {
			before = then.counts[at]
		}
		rules[i].Standing = counted(before, known, now.counts[i], &rules[i].Counter, unread)
	}
	return rules
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

// counted sets the Delta of a rule that had counted before, if it is known, and reports
// whether it is. A rule with another handle or a lower counter was rewritten:
// programs that maintain rules replace whole chains, which resets counters. It
// counted all of its packets since. If the mark's rules were not read whole, a
// rule that is not among them may have counted before.
func counted(before ruleCount, known bool, now ruleCount, c *model.Counter, unread bool) (standing bool) {
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
	return known
}
