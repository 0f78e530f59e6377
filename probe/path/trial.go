package path

import (
	"net/netip"
	"slices"
	"text/template"

	"github.com/lasthop/lasthop/probe/model"
	"github.com/lasthop/lasthop/probe/words"
)

// Trial follows packets through the tables of a node, as they are or after some of a fix.
type Trial struct {
	*tracer
	// peers and macs are what was counted, by the local address.
	peers map[netip.Addr][]model.Peer
	macs  map[netip.Addr][]model.MACPair
}

// NewTrial begins with the tables as they are.
func NewTrial(st *State) *Trial {
	t := &Trial{newTracer(st, Ends{}), map[netip.Addr][]model.Peer{}, map[netip.Addr][]model.MACPair{}}
	for _, p := range st.Traffic.Peers {
		t.peers[p.Local] = append(t.peers[p.Local], p)
	}
	for _, m := range st.Traffic.MACs {
		t.macs[m.Addr] = append(t.macs[m.Addr], m)
	}
	return t
}

// Without is the trial without some rules, routing rules, routes and neighbour entries, also those of pods, with the policy accept for chains,
// and with new values of settings.
func (t *Trial) Without(list []any) *Trial {
	s, gone := *t.Snapshot, model.SetOf(list)
	s.PacketRules, s.FrameRules = without(s.PacketRules, gone), without(s.FrameRules, gone)
	s.Routes, s.Rules = without(s.Routes, gone), without(s.Rules, gone)
	s.Neighbors, s.Pods = without(s.Neighbors, gone), slices.Clone(s.Pods)
	s.Chains, s.Sysctls = slices.Clone(s.Chains), slices.Clone(s.Sysctls)
	for p := range model.Each(s.Pods) {
		p.Gateways = without(p.Gateways, gone)
	}
	s.Sets = slices.Clone(s.Sets)
	for _, x := range list {
		switch x := x.(type) {
		case model.Sysctl:
			s.Sysctls = append(s.Sysctls, x) // The last one counts.
		case *model.PacketRule:
			withoutElement(s.Sets, x)
		}
	}
	for i := range s.Chains {
		if gone[&t.Chains[i]] {
			s.Chains[i].Policy = "ACCEPT"
		}
	}
	// What rules counted says nothing of what they would, had packets come to them.
	s.Traffic.Hops = nil
	return NewTrial(NewState(&s))
}

// withoutElement takes the element that a rule stands for out of its map.
func withoutElement(sets []model.Set, r *model.PacketRule) {
	l := model.First(r.Lookups, func(l *model.Lookup) bool { return l.Element != "" })
	for s := range model.Each(sets) {
		if l != nil && s.Family == r.Family && s.Table == r.Table && s.Name == l.Set {
			s.Elements = model.Filter(s.Elements, func(e model.Element) bool { return e.Key != l.Element })
		}
	}
}

func without[T any](list []T, gone map[any]bool) []T {
	if model.First(list, func(x *T) bool { return gone[x] }) == nil {
		return list
	}
	out := make([]T, 0, len(list)) // Rules are large, and there may be very many.
	for x := range model.Each(list) {
		if !gone[x] {
			out = append(out, *x)
		}
	}
	return out
}

// Fate follows the first packet of a flow: from where it comes in, if it has a link, else from its source. By is the rule,
// chain, route or neighbour entry by which it ends, nil where it does not or that is not known.
func (t *Trial) Fate(p Packet) (died bool, by any) {
	of, st, s := *t.tracer, *t.State, *t.Snapshot
	s.Traffic.Peers, s.Traffic.MACs = slices.Concat(t.peers[p.Src], t.peers[p.Dst]), t.macs[p.Dst]
	st.Snapshot, of.State, of.ends = &s, &st, Ends{Pod: p.Src, To: p.Dst, Port: p.DstPort, Proto: p.Proto}
	j := &journey{tracer: &of, src: p.Src, dst: p.Dst, srcPort: p.SrcPort, dstPort: p.DstPort}
	if l := model.First(t.Links, func(l *model.Link) bool { return slices.Contains(p.In, l.Name) }); l != nil {
		j.atIP(l)
	} else {
		j.from()
	}
	last := model.Find(j.steps, func(s *step) bool { return s.Dead && s.ended })
	if last == nil {
		return false, nil
	}
	return true, last.by
}

// Answer is the rule that answers the ARP requests that another is about, with a MAC that is none of the right ones.
func (t *Trial) Answer(like *model.FrameRule, right []model.MAC) (wrong bool, by any) {
	w := t.Frames().walk(frameFor(like))
	for _, c := range t.Frames().bases {
		if c.Table == like.Table && c.Backend == like.Backend && w.last == nil {
			w.Base(c)
		}
	}
	if w.last == nil || w.last.Target != model.TargetARPReply || slices.Contains(right, w.last.MAC) {
		return false, nil
	}
	return true, w.last
}

// deciding is the rule, route, chain or neighbour entry among the values of a decision.
func deciding(facts words.Facts) any {
	for _, name := range []string{"entry", "rule", "policy"} {
		if there, _ := template.IsTrue(facts[name]); there {
			return facts[name]
		}
	}
	return nil
}
