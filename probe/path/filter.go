package path

import (
	"slices"

	"github.com/lasthop/lasthop/probe/model"
)

// does is what a hook's chains do with a packet or frame.
type does string

const (
	accepts does = "accept"
	drops   does = "drop"
	// unknown: a match that was not decoded decides.
	unknown does = "unknown"
)

// decision is what a hook's chains decide over a packet.
type decision struct {
	does does
	// rule decides, or else policy does: that of the chain whose end the packet reached.
	rule   *model.PacketRule
	policy *model.Chain
	// unsure are the rules that would decide otherwise and may match; or those that would decide the same before rule.
	unsure, or []*model.PacketRule
	// cutOff: there are more rules than a walk follows.
	cutOff bool
}

// translates reports whether the chain translates addresses and does not filter.
func translates(c *model.Chain) bool {
	return c.Table == "nat" || c.Hook == "PREROUTING" && c.Priority >= dnatFirst && c.Priority <= dnatLast ||
		c.Hook == "POSTROUTING" && c.Priority >= snatFirst && c.Priority <= snatLast
}

// Chains translate destinations around NF_IP_PRI_NAT_DST = -100, and sources
// around NF_IP_PRI_NAT_SRC = 100; mangle is at -150 and security at 50.
const (
	dnatFirst = -110
	dnatLast  = -90
	snatFirst = 90
	snatLast  = 110
)

// filter judges a packet by the chains of the hooks that can drop it.
func (t *Tables) filter(p Packet, hooks ...string) decision {
	out, w := decision{does: accepts}, t.walk(p)
	for _, h := range hooks {
		for _, c := range t.hook(h, &p) {
			if translates(c) {
				continue
			}
			d := w.filter(c)
			out.unsure, out.cutOff = append(out.unsure, d.unsure...), out.cutOff || d.cutOff
			switch {
			case d.does == drops:
				out.does, out.rule, out.policy, out.or = drops, d.rule, d.policy, d.or
				return out
			case d.does == unknown:
				out.does = unknown
			case d.rule != nil && out.does == accepts:
				out.rule = d.rule
			}
		}
	}
	if out.does == unknown {
		out.rule = nil
	}
	return out
}

// Refused is the rule, or the chain whose policy, surely drops a packet at one of the hooks; nil where none does, or that is
// not known.
func (t *Tables) Refused(p Packet, hooks ...string) (*model.PacketRule, *model.Chain) {
	if d := t.filter(p, hooks...); d.does == drops {
		return d.rule, d.policy
	}
	return nil, nil
}

// Doubtful is the one rule that may drop a packet at one of the hooks and counted some in the window, where a match that was not
// decoded decides; nil where there is none, or several.
func (t *Tables) Doubtful(p Packet, hooks ...string) *model.PacketRule {
	counted := func(r *model.PacketRule) bool { return isDrop(r) && r.Counter.Delta > 0 }
	if d := t.filter(p, hooks...); d.does == unknown && !d.cutOff {
		if list := model.Chosen(d.unsure, func(r **model.PacketRule) bool { return counted(*r) }); len(list) == 1 {
			return *list[0]
		}
	}
	return nil
}

// filter judges the packet by one base chain.
func (w *tableWalk) filter(c *model.Chain) decision {
	var end *model.PacketRule
	// maybe are the deciding rules that may match; open are those that match and decide one way or the other:
	// by a map that was not read, or by a program that is asked.
	var maybe, open []*model.PacketRule
	w.State, w.CutOff = w.State.at(), false
	w.meet(func(k ChainKey, _ int, r *model.PacketRule) Action {
		met := w.meets(r)
		if met == No {
			return Next
		}
		switch {
		case byMap(r):
			open = append(open, r)
			return Next
		case r.Target == "QUEUE":
			open = append(open, r)
		case setsMark(r):
			w.State.write(r.SetMark, met)
			return Next
		case r.Target != "ACCEPT" && !isDrop(r):
			return w.follow(k, r, met)
		case met == Maybe:
			maybe = append(maybe, r)
		}
		if met == Yes {
			end = r
			return End
		}
		return Next
	})
	w.Base(c)
	out := decision{does: accepts, rule: end, cutOff: w.CutOff}
	if end == nil {
		out.policy = c
	}
	if end != nil && isDrop(end) || end == nil && c.Policy == "DROP" {
		out.does = drops
	}
	other := func(r *model.PacketRule) bool { return isDrop(r) != (out.does == drops) }
	out.unsure, out.or = append(model.Filter(maybe, other), open...), model.With(nil, slices.DeleteFunc(maybe, other)...)
	if len(out.unsure) > 0 || out.cutOff {
		out.does, out.rule, out.policy = unknown, nil, nil
	}
	return out
}

func isDrop(r *model.PacketRule) bool { return r.Target == "DROP" || r.Target == "REJECT" }

// byMap reports whether a verdict map of nft decides whose elements are not known.
func byMap(r *model.PacketRule) bool { return r.Target == "" && r.Map != "" }
