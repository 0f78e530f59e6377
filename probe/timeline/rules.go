package timeline

import (
	"hash/maphash"
	"slices"

	"github.com/lasthop/lasthop/probe/model"
)

// ruleCounts are the counters of rules and chains. Identical rules have one key
// and keep their order.
type ruleCounts struct{ frames, packets, chains list[ruleCount] }

// ruleCount is a rule's counter and its nft handle, 0 for rules of other
// backends.
type ruleCount struct{ packets, handle uint64 }

func newRuleCounts(s *model.Snapshot) ruleCounts {
	return ruleCounts{
		frames:  newList(s.FrameRules, frameMark),
		packets: newList(s.PacketRules, packetMark),
		chains:  newList(s.Chains, chainMark),
	}
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

func packetMark(r *model.PacketRule) (uint64, ruleCount) {
	return maphash.Comparable(seed, ruleKey{r.Backend, r.NFProto, r.Family, r.Table, r.Chain, r.Text}), ruleCount{r.Counter.Packets, r.Handle}
}

func chainMark(c *model.Chain) (uint64, ruleCount) {
	return maphash.Comparable(seed, ruleKey{backend: c.Backend, table: c.Family + " " + c.Table, chain: c.Name}), ruleCount{packets: c.Counter.Packets}
}

// compareRules sets Delta and Standing of a snapshot's rules and chains, in copies
// of its lists.
func (m *mark) compareRules(s *model.Snapshot) {
	s.FrameRules, s.PacketRules, s.Chains = slices.Clone(s.FrameRules), slices.Clone(s.PacketRules), slices.Clone(s.Chains)
	used := map[uint64]int{}
	frames, packets := m.unread(model.SourceEbtables), m.unread(model.SourceNAT)
	for r := range model.Each(s.FrameRules) {
		k, now := frameMark(r)
		r.Standing = counted(m.rules.frames, k, now, &r.Counter, used, frames)
	}
	for r := range model.Each(s.PacketRules) {
		k, now := packetMark(r)
		r.Standing = counted(m.rules.packets, k, now, &r.Counter, used, packets)
	}
	for x := range model.Each(s.Chains) {
		k, now := chainMark(x)
		unread := packets
		if x.Family == "bridge" {
			unread = frames
		}
		counted(m.rules.chains, k, now, &x.Counter, used, unread)
	}
}

// counted sets the Delta of the next rule with a key, and reports whether the mark
// has that rule. A rule with another handle or a lower counter was rewritten:
// programs that maintain rules replace whole chains, which resets counters. It
// counted all of its packets since. If the mark's rules were not read whole, a
// rule that is not among them may have counted before.
func counted(l list[ruleCount], k uint64, now ruleCount, c *model.Counter, used map[uint64]int, unread bool) (standing bool) {
	i, ok := l.find(k)
	if i += used[k]; !ok || i >= len(l) || l[i].key != k {
		if unread {
			c.Delta, c.Restarted = 0, true
			return false
		}
		c.Delta = now.packets
		return false
	}
	used[k]++
	before := l[i].value
	if now.packets < before.packets || now.handle != before.handle {
		c.Delta, c.Restarted = now.packets, true
		return true
	}
	c.Delta = now.packets - before.packets
	return true
}
