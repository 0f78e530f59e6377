package timeline

import (
	"hash/maphash"
	"slices"

	"github.com/lasthop/lasthop/probe/model"
)

// ruleCounts are what rules and chains had counted. Those that are the same to
// the letter stand behind one another.
type ruleCounts struct{ frames, packets, chains list[uint64] }

func newRuleCounts(s *model.Snapshot) ruleCounts {
	return ruleCounts{
		frames:  newList(s.FrameRules, frameMark),
		packets: newList(s.PacketRules, packetMark),
		chains:  newList(s.Chains, chainMark),
	}
}

// ruleKey is what a rule is known by from one reading to the next. Its number
// changes when others come and go.
type ruleKey struct {
	backend            model.Backend
	family             int
	table, chain, text string
}

func frameMark(r *model.FrameRule) (uint64, uint64) {
	return maphash.Comparable(seed, ruleKey{backend: r.Backend, table: r.Table, chain: r.Chain, text: r.Text}), r.Counter.Packets
}

func packetMark(r *model.PacketRule) (uint64, uint64) {
	return maphash.Comparable(seed, ruleKey{r.Backend, r.Family, r.Table, r.Chain, r.Text}), r.Counter.Packets
}

func chainMark(c *model.Chain) (uint64, uint64) {
	return maphash.Comparable(seed, ruleKey{backend: c.Backend, table: c.Family + " " + c.Table, chain: c.Name}), c.Counter.Packets
}

// compare fills in what the rules of a snapshot counted since, and which of
// them stood then. The snapshot gets lists of its own.
func (c ruleCounts) compare(s *model.Snapshot) {
	s.FrameRules, s.PacketRules, s.Chains = slices.Clone(s.FrameRules), slices.Clone(s.PacketRules), slices.Clone(s.Chains)
	used := map[uint64]int{}
	for i := range s.FrameRules {
		r := &s.FrameRules[i]
		k, n := frameMark(r)
		r.Counter.Delta, r.Standing = counted(c.frames, k, n, used)
	}
	for i := range s.PacketRules {
		r := &s.PacketRules[i]
		k, n := packetMark(r)
		r.Counter.Delta, r.Standing = counted(c.packets, k, n, used)
	}
	for i := range s.Chains {
		x := &s.Chains[i]
		k, n := chainMark(x)
		x.Counter.Delta, _ = counted(c.chains, k, n, used)
	}
}

// counted is what was counted since by the next one with the key, and whether
// there was one. A counter that fell was zeroed, or replaced with its rule:
// what it shows now is what it counted since.
func counted(l list[uint64], k, now uint64, used map[uint64]int) (packets uint64, standing bool) {
	i, ok := l.find(k)
	if i += used[k]; !ok || i >= len(l) || l[i].key != k {
		return now, false
	}
	used[k]++
	return minus(now, l[i].value), true
}
