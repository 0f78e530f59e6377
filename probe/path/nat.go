package path

import (
	"slices"

	"github.com/lasthop/lasthop/probe/model"
)

// SourceNAT is what the chains of POSTROUTING do with a packet's source.
type SourceNAT struct {
	// Translated says that Rule writes another source address.
	Translated bool
	// Rule is the rule that translates, or else the exclusion: the rule that
	// ended the search before Missed could translate. Nil when no rule of
	// POSTROUTING translates such a packet.
	Rule, Missed *model.PacketRule
	// Unsure are rules that may end the search or translate.
	Unsure []*model.PacketRule
	// CutOff: there are more rules than a walk follows, and others may decide.
	CutOff bool
}

// natWalk is a walk through nat tables. The kernel asks these for the first packet of a
// flow alone, so that what rules counted tells of flows that began in the window only.
func (t *Tables) natWalk(p Packet) *tableWalk {
	w := t.walk(p)
	w.counted = w.counted && p.New
	return w
}

// Source walks the chains of POSTROUTING as the kernel does for the first packet
// of a flow without a mark. A rule that may match is taken not to, and is listed in
// Unsure where it would decide.
func (t *Tables) Source(p Packet) SourceNAT {
	var out SourceNAT
	w := t.natWalk(p)
	// behind finds the rule that would translate, were the search to go on.
	behind := Walk[*model.PacketRule, struct{}]{Chains: t.chains, First: w.First}
	var missed *model.PacketRule
	search := func(k ChainKey, i int) {
		missed, behind.depth = nil, w.depth
		behind.rules(k, i+1)
	}
	behind.Meet = func(k ChainKey, _ int, r *model.PacketRule) Action {
		switch {
		case w.packet.Fits(r) != Yes:
			return Next
		case r.Target == "MASQUERADE" || r.Target == "SNAT":
			missed = r
			return End
		}
		return behind.Chain(k.To(r.Target))
	}
	w.meet(func(k ChainKey, i int, r *model.PacketRule) Action {
		ends := r.Target == "ACCEPT" || r.Target == "RETURN"
		writes := r.Target == "MASQUERADE" || r.Target == "SNAT"
		met := w.meets(r)
		switch {
		case met == No:
			return Next
		case met == Maybe && (ends || writes):
			if search(k, i); r.Target != "RETURN" || missed != nil {
				out.Unsure = append(out.Unsure, r)
			}
			return Next
		case met == Maybe:
			before := w.State
			w.follow(k, r, met)
			w.State = before
			return Next
		case writes:
			out.Translated, out.Rule, out.Missed = true, r, nil
			return End
		case ends:
			if search(k, i); missed != nil {
				out.Rule, out.Missed = r, missed
			}
			if r.Target == "ACCEPT" {
				return End
			}
		}
		return w.follow(k, r, Yes)
	})
	for _, c := range t.hook("POSTROUTING", &p) {
		if c.Priority >= snatFirst && c.Priority <= snatLast && w.Base(c) == End {
			break
		}
	}
	out.CutOff = w.CutOff || behind.CutOff
	return out
}

// targets are the rules that may translate a packet's destination.
type targets struct {
	rules []*model.PacketRule
	// mapped: a map that was not read may lead to more.
	mapped bool
	// whole: one of them surely translates. sure: there is no other.
	whole, sure bool
	// service: a rule that is one of them, or leads to one, names the
	// destination alone: it is the address of a service.
	service bool
	// named are rules that name the destination alone and lead to another chain.
	named []*model.PacketRule
	// cutOff: there are more rules than a walk follows.
	cutOff bool
}

// none reports whether surely no rule translates it.
func (t *targets) none() bool { return len(t.rules) == 0 && !t.mapped && !t.cutOff }

// destination finds the rules of a hook that may translate the destination.
func (t *Tables) destination(p Packet, hook string) targets {
	var out targets
	w := t.natWalk(p)
	w.meet(func(k ChainKey, _ int, r *model.PacketRule) Action {
		met := w.meets(r)
		if met == No {
			return Next
		}
		before := w.State.service
		service := before || r.Dst.Addr() == p.Dst && p.Dst.IsValid()
		switch {
		case byMap(r):
			out.mapped = true
			return Next
		case r.Target == "DNAT" || r.Target == "REDIRECT":
			out.service = out.service || service
			if !slices.Contains(out.rules, r) {
				out.rules = append(out.rules, r)
			}
			out.whole = out.whole || met == Yes
			out.sure = met == Yes && len(out.rules) == 1
			fallthrough
		case r.Target == "ACCEPT":
			if met == Yes {
				return End
			}
			return Next
		case service && !before && r.Target != "RETURN":
			out.named = append(out.named, r)
		}
		w.State.service = service
		action := w.follow(k, r, met)
		w.State.service = before
		return action
	})
	for _, c := range t.hook(hook, &p) {
		w.State = tableState{fit: Yes}
		if translates(c) && w.Base(c) == End {
			break
		}
	}
	out.cutOff = w.CutOff
	return out
}
