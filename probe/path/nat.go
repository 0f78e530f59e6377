package path

import (
	"iter"
	"math"
	"net/netip"
	"slices"
	"strings"

	"github.com/lasthop/lasthop/probe/model"
)

// SourceNAT is what the chains of POSTROUTING do with a packet's source.
type SourceNAT struct {
	// Translated says that Rule writes another source address.
	Translated bool
	// Rule is the rule that translates, or else the exclusion: the rule that ended the search before Missed
	// could translate. Nil when no rule of POSTROUTING translates such a packet.
	Rule, Missed *model.PacketRule
	// Unsure are rules that may end the search or translate.
	Unsure []*model.PacketRule
	// CutOff: there are more rules than a walk follows, and others may decide.
	CutOff bool
}

// Untranslated is what the chains did with a packet that is known to have left untranslated: what was taken not to match,
// and ends the search, did.
func (n SourceNAT) Untranslated() SourceNAT {
	i := slices.IndexFunc(n.Unsure, func(r *model.PacketRule) bool { return r.Target == "ACCEPT" || r.Target == "RETURN" })
	if n.Translated && i >= 0 {
		n.Translated, n.Rule, n.Missed = false, n.Unsure[i], n.Rule
	}
	return n
}

// natWalk is a walk through nat tables. The kernel asks these for the first packet of a
// flow alone, so rules count only flows that began in the window.
func (t *Tables) natWalk(p Packet) *tableWalk {
	w := t.walk(p)
	w.counted = w.counted && p.New
	return w
}

// Source walks the chains of POSTROUTING as the kernel does for the first packet of a flow. A rule that may match is taken not
// to, and is listed in Unsure where it would decide.
func (t *Tables) Source(p Packet) SourceNAT {
	var out SourceNAT
	w := t.natWalk(p)
	// behind finds the rule that would translate, or may, were the search to go on.
	behind := Walk[*model.PacketRule, struct{}]{Chains: t.chains, First: w.First}
	var missed *model.PacketRule
	search := func(k ChainKey, i int) {
		missed, behind.depth = nil, w.depth
		behind.rules(k, i+1)
	}
	behind.Meet = func(k ChainKey, _ int, r *model.PacketRule) Action {
		switch fit := w.packet.Fits(r); {
		case fit == No:
			return Next
		case r.Target == "MASQUERADE" || r.Target == "SNAT":
			missed = r
			return End
		case fit == Maybe:
			return Next
		}
		return behind.Chain(k.To(r.Target))
	}
	w.meet(func(k ChainKey, i int, r *model.PacketRule) Action {
		ends, writes := r.Target == "ACCEPT" || r.Target == "RETURN", r.Target == "MASQUERADE" || r.Target == "SNAT"
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

// Marked are the rules that give a packet, which is known to be translated, the mark because of which it is; by is what then
// translates it.
func (t *Tables) Marked(p Packet) (rules []*model.PacketRule, by *model.PacketRule) {
	p, rules = t.MarkedAt(p, "PREROUTING", "FORWARD", "POSTROUTING")
	nat := t.Source(p)
	if by = nat.Rule; !nat.Translated {
		by = model.Find(nat.Unsure, func(r *model.PacketRule) bool { return r.Target == "MASQUERADE" || r.Target == "SNAT" })
	}
	return model.Filter(rules, func(r *model.PacketRule) bool { return by != nil && r.SetMark.Value&t.translates != 0 }), by
}

// anyMark are all bits of a mark.
const anyMark = math.MaxUint32

// MarkedAt is a packet with the marks that rules of hooks give it, and those of them that change one.
func (t *Tables) MarkedAt(p Packet, hooks ...string) (Packet, []*model.PacketRule) {
	var rules []*model.PacketRule
	w := t.walk(p)
	w.meet(func(k ChainKey, _ int, r *model.PacketRule) Action {
		met := w.meets(r)
		switch {
		case met == No:
			return Next
		case setsMark(r):
			if w.State.write(r.SetMark, met) {
				rules = model.With(rules, r)
			}
			return Next
		case met == Yes && slices.Contains([]string{"ACCEPT", "DNAT", "REDIRECT"}, r.Target):
			return End
		}
		return w.follow(k, r, met)
	})
	for _, h := range hooks {
		for _, c := range t.hook(h, &p) {
			if w.State = w.State.at(); !p.Later || !translates(c) {
				w.Base(c)
			}
		}
	}
	p.Mark, p.Flow = w.State.mark, w.State.flow
	return p, rules
}

// targets are the rules that may translate a packet's destination.
type targets struct {
	rules []*model.PacketRule
	// mapped: a map that was not read may lead to more.
	mapped bool
	// whole: one of them surely translates. sure: there is no other.
	whole, sure bool
	// service: a rule that is one of them, or leads to one, names the destination alone: it is the address of a service.
	service bool
	// named are rules that name the destination alone and lead to another chain.
	named []*model.PacketRule
	// cutOff: there are more rules than a walk follows.
	cutOff bool
}

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
			out.rules, out.whole = model.With(out.rules, r), out.whole || met == Yes
			out.sure = met == Yes && len(out.rules) == 1
			fallthrough
		case r.Target == "ACCEPT":
			return model.Either(met == Yes, End, Next)
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

// serviceBits4 and serviceBits6 are the sizes of block that addresses of services
// are told by: where rules translate some of a block, the others are services' too.
const (
	serviceBits4 = 16
	serviceBits6 = 64
)

// Untranslated is why an address that no rule translates looks like a service's.
type Untranslated struct {
	// Rules name the address, and lead to no rule that translates it.
	Rules []*model.PacketRule
	// Beside translate the address for other protocols or ports.
	Beside []*model.PacketRule
	// Others are addresses beside it, a few, that rules do translate.
	Others []netip.Addr
}

// Is reports whether it looks like one.
func (u Untranslated) Is() bool { return len(u.Rules)+len(u.Beside)+len(u.Others) > 0 }

// Untranslated looks up the address that a packet is sent to. The result is empty where that is translated, or
// not known, and where the node has a route to the address other than the default.
func (t *Tables) Untranslated(p Packet) Untranslated {
	if !p.Dst.IsPrivate() || !t.state.Has(model.SourceNAT) {
		return Untranslated{}
	}
	found := t.destination(p, "PREROUTING")
	d := t.state.Routing().Lookup(Query{Src: p.Src, Dst: p.Dst})
	if !found.none() || d.Type != "unicast" || d.Route == nil || d.Route.Dst.Bits() != 0 {
		return Untranslated{}
	}
	out := Untranslated{Rules: found.named, Others: t.Services(p.Dst)}
	if p.Proto != 0 {
		out.Beside = t.destination(Packet{Src: p.Src, Dst: p.Dst}, "PREROUTING").rules
	}
	return out
}

// Destination are the rules that may translate where a packet of a pod's goes. surely: one of them does.
func (t *Tables) Destination(p Packet) (rules []*model.PacketRule, surely bool) {
	found := t.destination(p, "PREROUTING")
	return found.rules, found.whole && !found.mapped && !found.cutOff
}

// Services are addresses of the range of one, a few, that rules translate to others.
func (t *Tables) Services(of netip.Addr) []netip.Addr {
	const most, tries = 3, 20
	block, _ := of.Prefix(model.Either(isIPv6(of), serviceBits6, serviceBits4))
	all, known := t.services[block]
	asked := map[netip.Addr]bool{}
	for a := range t.translatable() {
		if known || len(asked) == tries || len(all) == most {
			break
		}
		if !block.Contains(a) || asked[a] {
			continue
		}
		asked[a] = true
		if found := t.destination(Packet{Dst: a}, "PREROUTING"); found.service && len(found.rules) > 0 {
			all = append(all, a)
		}
	}
	t.services[block] = all
	return all
}

// Served are connections to services, without a pod, by the pod to whose address all rules for such a service translate; a few.
func (t *Tables) Served() (out []Ends) {
	const most = 16
	here := func(a netip.Addr) bool { return len(t.state.Owners[a]) > 0 }
	if len(t.Translations(here)) == 0 {
		return nil
	}
	asked := map[netip.Addr]bool{}
	for a := range t.translatable() {
		if asked[a] || t.state.Own[a] != nil {
			continue
		}
		asked[a] = true
		found := t.destination(Packet{Dst: a}, "PREROUTING")
		if found.mapped || len(found.rules) == 0 || !sameTarget(found.rules) || !here(found.rules[0].To.Addr()) {
			continue
		}
		e, by := Ends{Pod: found.rules[0].To.Addr(), To: a}, append(found.named, found.rules...)[0]
		if e.Proto = by.Proto; len(by.DstPorts) > 0 {
			e.Port = by.DstPorts[0].First
		}
		if out = append(out, e); len(out) == most {
			break
		}
	}
	return out
}

// translatable are the addresses that rules and elements of maps name, which may translate them.
func (t *Tables) translatable() iter.Seq[netip.Addr] {
	return func(yield func(netip.Addr) bool) {
		for r := range model.Each(t.state.PacketRules) {
			if a := r.Dst.Addr(); (r.Table == "nat" || r.Native) && a.IsValid() && !yield(a) {
				return
			}
		}
		for x := range model.Each(t.state.Snapshot.Sets) {
			for _, e := range x.Elements {
				first, _, _ := strings.Cut(e.Key, keySeparator)
				if a, err := netip.ParseAddr(first); err == nil && e.Value != "" && !yield(a) {
					return
				}
			}
		}
	}
}
