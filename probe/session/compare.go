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
		r.Counter.Delta, r.Standing = frames.delta(k, now)
	}
	packets := index(first.PacketRules, packetKey)
	for i := range last.PacketRules {
		r := &last.PacketRules[i]
		k, now := packetKey(r)
		r.Counter.Delta, r.Standing = packets.delta(k, now)
	}
	chains := index(first.Chains, chainKeyOf)
	for i := range last.Chains {
		c := &last.Chains[i]
		k, now := chainKeyOf(c)
		c.Counter.Delta, _ = chains.delta(k, now)
	}
}

// ruleKey is what a rule is known by from one reading to the next. Its number
// changes when others come and go.
type ruleKey struct {
	backend            model.Backend
	family             int
	table, chain, text string
}

func frameKey(r *model.FrameRule) (ruleKey, model.Counter) {
	return ruleKey{backend: r.Backend, table: r.Table, chain: r.Chain, text: r.Text}, r.Counter
}

func packetKey(r *model.PacketRule) (ruleKey, model.Counter) {
	return ruleKey{r.Backend, r.Family, r.Table, r.Chain, r.Text}, r.Counter
}

func chainKeyOf(c *model.Chain) (ruleKey, model.Counter) {
	return ruleKey{backend: c.Backend, table: c.Family + " " + c.Table, chain: c.Name}, c.Counter
}

// counters are a first reading; rules that are the same to the letter stand
// behind one another.
type counters map[ruleKey][]model.Counter

func index[T any](list []T, key func(*T) (ruleKey, model.Counter)) counters {
	out := make(counters, len(list))
	for i := range list {
		k, c := key(&list[i])
		out[k] = append(out[k], c)
	}
	return out
}

// delta is what a rule counted since the first reading, and whether it was in
// that. A counter that fell was zeroed, or replaced with its rule: what it
// shows now is what it counted since.
func (first counters) delta(k ruleKey, now model.Counter) (packets uint64, standing bool) {
	list := first[k]
	if len(list) == 0 {
		return now.Packets, false
	}
	first[k] = list[1:]
	if now.Packets < list[0].Packets {
		return now.Packets, true
	}
	return now.Packets - list[0].Packets, true
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
