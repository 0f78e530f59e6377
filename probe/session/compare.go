package session

import (
	"github.com/lasthop/lasthop/probe/model"
)

// compareRules fills in what the rules counted in the window, and which of
// them stood from its beginning.
func compareRules(first, last *model.Snapshot) {
	frames := index(first.FrameRules, frameKey)
	for i := range last.FrameRules {
		r := &last.FrameRules[i]
		k, now := frameKey(r)
		r.Standing = frames.delta(k, now, &r.Counter)
	}
	packets := index(first.PacketRules, packetKey)
	for i := range last.PacketRules {
		r := &last.PacketRules[i]
		k, now := packetKey(r)
		r.Standing = packets.delta(k, now, &r.Counter)
	}
	chains := index(first.Chains, chainKeyOf)
	for i := range last.Chains {
		c := &last.Chains[i]
		k, now := chainKeyOf(c)
		chains.delta(k, now, &c.Counter)
	}
}

// ruleKey is what a rule is known by from one reading to the next. Its number
// changes when others come and go.
type ruleKey struct {
	backend            model.Backend
	family             int
	table, chain, text string
}

func frameKey(r *model.FrameRule) (ruleKey, reading) {
	return ruleKey{backend: r.Backend, table: r.Table, chain: r.Chain, text: r.Text}, reading{r.Counter.Packets, r.Handle}
}

func packetKey(r *model.PacketRule) (ruleKey, reading) {
	return ruleKey{r.Backend, r.Family, r.Table, r.Chain, r.Text}, reading{r.Counter.Packets, r.Handle}
}

func chainKeyOf(c *model.Chain) (ruleKey, reading) {
	return ruleKey{backend: c.Backend, table: c.Family + " " + c.Table, chain: c.Name}, reading{packets: c.Counter.Packets}
}

// reading is a rule's count, and the number that nft gave it when it was
// written, 0 where nft does not hold it.
type reading struct{ packets, handle uint64 }

// counters are a first reading; rules that are the same to the letter stand
// behind one another.
type counters map[ruleKey][]reading

func index[T any](list []T, key func(*T) (ruleKey, reading)) counters {
	out := make(counters, len(list))
	for i := range list {
		k, r := key(&list[i])
		out[k] = append(out[k], r)
	}
	return out
}

// delta fills in what a rule counted since the first reading, and reports
// whether it was in that. One that was written anew, by its number or because
// its counter fell, shows what it counted since: a program that keeps rules
// writes all of its chain at once, and the counters begin again.
func (first counters) delta(k ruleKey, now reading, c *model.Counter) (standing bool) {
	list := first[k]
	if len(list) == 0 {
		c.Delta = now.packets
		return false
	}
	was := list[0]
	first[k] = list[1:]
	if now.packets < was.packets || now.handle != was.handle {
		c.Delta, c.Restarted = now.packets, true
		return true
	}
	c.Delta = now.packets - was.packets
	return true
}

type flowKey struct {
	proto       uint8
	zone        uint16
	orig, reply model.Tuple
}

func keyOf(f *model.Flow) flowKey { return flowKey{f.Proto, f.Zone, f.Original, f.Reply} }

func flowKeys(flows []model.Flow) map[flowKey]bool {
	out := make(map[flowKey]bool, len(flows))
	for i := range flows {
		out[keyOf(&flows[i])] = true
	}
	return out
}

// since turns the statistics into what was added in the window. The table's
// size and limit are as of its end.
func since(first, last model.Conntrack) model.Conntrack {
	sub := func(a, b uint64) uint64 { return a - min(a, b) }
	last.InsertFailed = sub(last.InsertFailed, first.InsertFailed)
	last.Drop = sub(last.Drop, first.Drop)
	last.EarlyDrop = sub(last.EarlyDrop, first.EarlyDrop)
	last.Invalid = sub(last.Invalid, first.Invalid)
	last.SearchRestart = sub(last.SearchRestart, first.SearchRestart)
	last.Found = sub(last.Found, first.Found)
	last.Insert = sub(last.Insert, first.Insert)
	last.ErrorPacket = sub(last.ErrorPacket, first.ErrorPacket)
	return last
}
