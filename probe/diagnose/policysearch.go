package diagnose

import (
	"net/netip"
	"slices"

	"github.com/lasthop/lasthop/probe/model"
	"github.com/lasthop/lasthop/probe/path"
)

// candidate is a rule that may have dropped the packets of one drop.
type candidate struct {
	*candidateRule
	fit path.Fit
	// poor: the packet that was sampled does not match the rule's ports;
	// others with the same addresses may.
	poor bool
}

// found are the rules that may have dropped the packets of one drop, in the order in
// which a packet meets them, up to the first that surely did.
type found struct {
	candidates []candidate
	// whole is false where the search was cut off, open where a map may have
	// dropped whose elements are not known.
	whole, open bool
}

// connectionStates are those that connection tracking may give a packet.
var connectionStates = []string{"new", "established", "related", "invalid", "untracked"}

// candidates finds the rules that may have dropped it. Which state of connection tracking
// the packet had is not known, but it is one, for all rules: what may match in none is
// no candidate where counters do not tell.
func (t *dropRules) candidates(d *dropped) found {
	out := t.search(d)
	if len(out.candidates) < 2 || !slices.ContainsFunc(out.candidates, func(c candidate) bool { return !c.Counted }) {
		return out
	}
	possible := map[*candidateRule]bool{}
	for _, state := range connectionStates {
		d.packet.State = state
		for _, c := range t.search(d).candidates {
			possible[c.candidateRule] = true
		}
	}
	d.packet.State = ""
	out.candidates = slices.DeleteFunc(out.candidates, func(c candidate) bool { return !possible[c.candidateRule] })
	return out
}

func (t *dropRules) search(d *dropped) found {
	d.packet.Sets = t.sets
	s := search{dropRules: t, drop: d, at: map[*candidateRule]int{}}
	s.Chains, s.Meet = t.steps, s.meet
	for _, c := range t.bases {
		if c.Family == "ip" && d.isIPv6() || c.Family == "ip6" && !d.isIPv6() || d.passes(c) ||
			t.inNFT && (c.Backend == model.NFT) != (d.Location == model.LocationNFT) {
			continue
		}
		if s.enter(path.KeyOf(c), nil, searchState{fit: path.Yes}) == path.End {
			break
		}
	}
	return found{s.list, !s.CutOff, s.open}
}

// search is one search for the rules that may have made a drop.
type search struct {
	path.Walk[ruleStep, searchState]
	*dropRules
	drop *dropped
	list []candidate
	open bool
	// at is where in list each rule is.
	at map[*candidateRule]int
	// names and jumps are the chains and rules that led to where it is.
	names []string
	jumps []*model.PacketRule
}

type searchState struct {
	fit path.Fit
	// poor is as in candidate; mapped: a map led here.
	poor, mapped bool
}

func (s *search) meet(k path.ChainKey, _ int, r ruleStep) path.Action {
	before := s.State
	fit, poor := s.drop.fits(&r)
	fit, poor = min(fit, before.fit), poor || before.poor
	switch {
	case fit == path.No:
	case r.candidate != nil:
		return s.add(r.candidate, fit, poor)
	case r.targets != nil:
		for _, e := range s.drop.packet.Choices(r.packet) {
			step := ruleStep{packet: e}
			fit, poor := s.drop.fits(&step)
			fit, poor = min(fit, before.fit), poor || before.poor
			switch {
			case fit == path.No:
			case e.Target == "DROP":
				if s.add(s.chosenBy(e, nil), fit, poor) == path.End {
					return path.End
				}
			case s.enter(k.To(e.Target), e, searchState{fit, poor, before.mapped}) == path.End:
				return path.End
			}
		}
	case !r.mapped:
		return s.enter(k.To(r.to), r.packet, searchState{fit, poor, before.mapped})
	case !before.mapped:
		s.open = true
		for _, to := range s.mapped[k.To("")] {
			if to != k && s.enter(to, nil, searchState{min(before.fit, path.Maybe), before.poor, true}) == path.End {
				return path.End
			}
		}
	}
	return path.Next
}

// chosenBy is the candidate that an element of a map is, or leads to: one of its own,
// so that it is told what led to it. What a counter has is of all elements together.
func (s *search) chosenBy(element *model.PacketRule, drops *candidateRule) *candidateRule {
	at := chosenBy{element, drops}
	if s.chosen[at] == nil {
		c := &candidateRule{}
		if drops != nil {
			*c = *drops
			c.Path, c.jumps = nil, nil
		} else {
			k := path.ChainKey{Backend: element.Backend, Family: element.Family, Table: element.Table, Chain: element.Chain}
			c = newCandidateRule(k, element.Native, element.Counter, counts(element.Native, element.Counter), element.Unknown)
			c.Rule = element
		}
		s.chosen[at] = c
	}
	return s.chosen[at]
}

// enter walks a chain that the packet comes to in a state, by a rule; nil for a
// map and a hook.
func (s *search) enter(k path.ChainKey, by *model.PacketRule, state searchState) path.Action {
	before, names, jumps := s.State, len(s.names), len(s.jumps)
	s.names, s.State = append(s.names, k.Chain), state
	if by != nil {
		s.jumps = append(s.jumps, by)
	}
	action := s.Chain(k)
	if p := s.policies[k]; p != nil && action == path.Next {
		// What the chain's other rules accept does not come to its end.
		s.add(p, min(state.fit, path.Maybe), state.poor)
	}
	s.names, s.jumps, s.State = s.names[:names], s.jumps[:jumps], before
	return action
}

// add notes a rule, or that the packet comes to it more surely another way, and ends the
// search where it surely does.
func (s *search) add(c *candidateRule, fit path.Fit, poor bool) path.Action {
	for _, by := range slices.Backward(s.jumps) {
		if !c.Counted && slices.ContainsFunc(by.Lookups, func(l model.Lookup) bool { return l.Element != "" }) {
			c = s.chosenBy(by, c)
			break
		}
	}
	if c.Path == nil {
		c.Path, c.jumps = slices.Clone(s.names), slices.Clone(s.jumps)
	}
	if i, known := s.at[c]; known {
		s.list[i].fit, s.list[i].poor = max(s.list[i].fit, fit), s.list[i].poor && poor
	} else {
		s.at[c] = len(s.list)
		s.list = append(s.list, candidate{c, fit, poor})
	}
	if fit == path.Yes {
		return path.End
	}
	return path.Next
}

// dropped is a drop as rules may have seen its packets.
type dropped struct {
	*model.Drop
	packet path.Packet
	frame  path.Frame
	// srcPort and dstPort are those of the sample, 0 where there is none.
	srcPort, dstPort uint16
}

func (d *dropped) isIPv6() bool { return d.Dst.Is6() && !d.Dst.Is4In6() }

// passes reports whether the packet does not meet a chain: what is not for the node does
// not come to INPUT, and what is not of it not to OUTPUT. A bridge's chains see frames.
func (d *dropped) passes(c *model.Chain) bool {
	return c.Family != "bridge" && (c.Hook == "INPUT" && !d.packet.DstLocal || c.Hook == "OUTPUT" && !d.packet.SrcLocal)
}

// fits compares a rule with a drop. The packets' marks, states and sets are not
// known, and the sample is one of several, perhaps to other ports.
func (d *dropped) fits(s *ruleStep) (fit path.Fit, poor bool) {
	if s.frame != nil {
		return d.frame.Fits(s.frame), false
	}
	r := s.packet
	poor = r.SrcPorts != nil && d.srcPort != 0 && !path.InRanges(r.SrcPorts, d.srcPort) ||
		r.DstPorts != nil && d.dstPort != 0 && !path.InRanges(r.DstPorts, d.dstPort)
	return d.packet.Fits(r), poor
}

// dropIn fills in what is known of a drop's packets.
func (v *view) dropIn(d *model.Drop) *dropped {
	in, out := v.linksOf(d.Src), v.linksOf(d.Dst)
	if d.Link != "" {
		// Which of the two the packet's device is depends on the hook.
		for _, name := range v.withMaster(d.Link) {
			if !slices.Contains(in, name) {
				in = append(in, name)
			}
			if !slices.Contains(out, name) {
				out = append(out, name)
			}
		}
	}
	x := &dropped{
		Drop: d,
		packet: path.Packet{
			Src: d.Src, Dst: d.Dst, Proto: d.Proto, In: in, Out: out, Marked: true, SrcLocal: v.nodeAddrs[d.Src], DstLocal: v.nodeAddrs[d.Dst],
		},
		frame: path.Frame{Src: d.Src, Dst: d.Dst, DstMAC: d.DstMAC, In: in, Out: out, LogicalIn: in, LogicalOut: out},
	}
	if s := v.drops.Samples.Of(d); s != nil {
		x.frame.SrcMAC = s.SrcMAC
		x.srcPort, x.dstPort, _ = s.Ports()
	}
	return x
}

// linksOf are the links by which the node has an address, and what they are
// ports of: a pod's own, or the uplinks.
func (v *view) linksOf(a netip.Addr) []string {
	var out []string
	if v.nodeAddrs[a] {
		return nil
	}
	if pods := v.pods[a]; len(pods) > 0 {
		for _, p := range pods {
			out = append(out, v.withMaster(p.Link)...)
		}
		return out
	}
	for _, l := range v.uplinks {
		out = append(out, v.withMaster(l.Name)...)
	}
	return out
}

// withMaster is a link and the bridge that it is a port of.
func (v *view) withMaster(link string) []string {
	out := []string{link}
	if l := v.byName[link]; l != nil {
		if m := v.links[l.Master]; m != nil {
			out = append(out, m.Name)
		}
	}
	return out
}
