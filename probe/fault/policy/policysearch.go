package policy

import (
	"math"
	"net/netip"
	"slices"
	"strings"

	"github.com/lasthop/lasthop/probe/model"
	"github.com/lasthop/lasthop/probe/node"
	"github.com/lasthop/lasthop/probe/path"
)

// candidate is a rule that may have dropped the packets of one drop.
type candidate struct {
	*candidateRule
	fit path.Fit
}

// dropped is a drop as rules may have seen its packets.
type dropped struct {
	*model.Drop
	packet path.Packet
	frame  path.Frame
	// candidates are the rules that may have dropped them, in the order in which a packet
	// meets these, up to the first that surely did.
	candidates []candidate
	// whole is false where the search was cut off, open where a map may have dropped whose elements are not known.
	whole, open bool
	// begins: the samples are requests of TCP. toNode: the packets were not forwarded. translated: they had another source,
	// or were replies that were still to have the pod's address.
	begins, toNode, translated bool
}

// connectionStates are those that connection tracking may give a packet, the first those that it may give a SYN, and a datagram of UDP.
var connectionStates = []string{"new", "untracked", "related", "established", "invalid"}

const statesOfSYN, statesOfUDP = 3, 4

// findCandidates finds the rules that may have dropped it. Which state of connection tracking the packet had is
// not known, but it is one, for all rules: what may match in none is no candidate where counters do not tell. A SYN is
// never invalid, nor is a datagram of UDP, but for one that is broken.
func (t *dropRules) findCandidates(d *dropped) {
	t.search(d)
	states := connectionStates[:model.Either(d.begins, statesOfSYN, model.Either(d.Proto == model.UDP, statesOfUDP, len(connectionStates)))]
	if len(states) == len(connectionStates) && (len(d.candidates) < 2 || !slices.ContainsFunc(d.candidates, func(c candidate) bool { return !c.Counted })) {
		return
	}
	possible := map[*candidateRule]bool{}
	for _, state := range states {
		in := *d
		in.packet.State = state
		t.search(&in)
		for _, c := range in.candidates {
			possible[c.candidateRule] = true
		}
	}
	d.candidates = slices.DeleteFunc(d.candidates, func(c candidate) bool { return !possible[c.candidateRule] })
}

func (t *dropRules) search(d *dropped) {
	s := search{dropRules: t, dropped: d, at: map[*candidateRule]int{}, opened: map[path.ChainKey]bool{}}
	s.Chains, s.Meet, d.candidates = t.steps, s.meet, nil
	isIPv6 := d.Dst.Is6() && !d.Dst.Is4In6()
	for _, c := range t.bases {
		// What is not for the node does not come to INPUT, and what is not of it not to OUTPUT. A bridge's chains see frames.
		if c.Family == "ip" && isIPv6 || c.Family == "ip6" && !isIPv6 ||
			d.translated && !slices.Contains([]string{"PREROUTING", "POSTROUTING", "EGRESS"}, c.Hook) ||
			c.Family != "bridge" && (c.Hook == "INPUT" && !d.toNode || c.Hook == "FORWARD" && d.toNode || c.Hook == "OUTPUT" && !d.packet.SrcLocal) ||
			!t.atDevice(c, d) || t.inNFT && (c.Backend == model.NFT) != d.Is(model.ByNFT) {
			continue
		}
		if s.enter(path.KeyOf(c), nil, path.Yes) == path.End {
			break
		}
	}
	d.whole, d.open = !s.CutOff, len(s.opened) > 0
}

// atDevice reports whether a chain's hook is of a link that the packet may pass there.
func (t *dropRules) atDevice(c *model.Chain, d *dropped) bool {
	by := model.Either(c.Hook == "EGRESS", d.packet.Out, d.packet.In)
	return c.Devices == "" || slices.ContainsFunc(strings.Split(c.Devices, ","), func(l string) bool { return slices.Contains(by, l) })
}

// search is one search for the rules that may have made a drop. Its state is how surely the
// packet comes to where it is.
type search struct {
	path.Walk[ruleStep, path.Fit]
	*dropRules
	*dropped
	// at is where in candidates each rule is.
	at map[*candidateRule]int
	// names and jumps are the chains and rules that led to where it is.
	names []string
	jumps []*model.PacketRule
	// opened are the tables with a map, met already, whose elements are not known.
	opened map[path.ChainKey]bool
}

func (s *search) meet(k path.ChainKey, _ int, r ruleStep) path.Action {
	if r.frame != nil {
		return s.follow(k.To(r.frame.TargetName), r.candidate, nil, s.frame.Fits(r.frame))
	}
	for _, e := range s.packet.Choices(r.packet) {
		c := r.candidate
		if c == nil && e.Target == "DROP" {
			c = s.chosenBy(e, nil)
		}
		if s.follow(k.To(e.Target), c, e, s.packet.Fits(e)) == path.End {
			return path.End
		}
	}
	return path.Next
}

// follow does what a rule does that drops or leads to a chain. by is the rule, or the element of
// a map that stands for it; nil for a bridge's.
func (s *search) follow(to path.ChainKey, c *candidateRule, by *model.PacketRule, fit path.Fit) path.Action {
	switch fit = min(fit, s.State); {
	case fit == path.No:
	case c != nil:
		return s.add(c, fit)
	case by == nil || by.Map == "":
		return s.enter(to, by, fit)
	case !s.opened[to.To("")]:
		s.opened[to.To("")] = true
		for _, to := range s.loose[to.To("")] {
			if s.enter(to, nil, min(fit, path.Maybe)) == path.End {
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
		c := newCandidateRule(path.ChainOf(element), element.Native, element.Counter, element.Unknown)
		c.Rule, c.Pod = element, s.pod
		if drops != nil {
			*c = *drops
			c.Path, c.jumps = nil, nil
		}
		s.chosen[at] = c
	}
	return s.chosen[at]
}

// enter walks a chain that the packet comes to so surely, by a rule; nil for a map that is not
// known, a bridge's rule and a hook.
func (s *search) enter(k path.ChainKey, by *model.PacketRule, fit path.Fit) path.Action {
	before, names, jumps := s.State, len(s.names), len(s.jumps)
	s.names, s.State = append(s.names, k.Chain), fit
	if by != nil {
		s.jumps = append(s.jumps, by)
	}
	action := s.Chain(k)
	if p := s.policies[k]; p != nil && action == path.Next {
		// What the chain's other rules accept does not come to its end.
		s.add(p, min(fit, path.Maybe))
	}
	s.names, s.jumps, s.State = s.names[:names], s.jumps[:jumps], before
	return action
}

// add notes a rule, or that the packet comes to it more surely another way, and ends the search where it surely does.
func (s *search) add(c *candidateRule, fit path.Fit) path.Action {
	if strings.HasSuffix(c.Target(), "QUEUE") != s.Is(model.FromQueue) {
		return path.Next
	} else if mayDrop(c.Rule) {
		fit = min(fit, path.Unlikely)
	}
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
		s.candidates[i].fit = max(s.candidates[i].fit, fit)
	} else {
		s.at[c] = len(s.candidates)
		s.candidates = append(s.candidates, candidate{c, fit})
	}
	return model.Either(fit == path.Yes, path.End, path.Next)
}

// anyMark is one of which nothing is known.
var anyMark = path.Mark{Loose: math.MaxUint32}

// dropIn is what is known of a drop's packets, and the rules that may have dropped them. The packets' marks,
// states and sets are not known, and a sample is one of several, perhaps to other ports.
func dropIn(v *node.Index, rules *dropRules, d *model.Drop) *dropped {
	in, out, own := linksOf(v, d.Src), linksOf(v, d.Dst), func(a netip.Addr) bool { return v.Own[a] != nil }
	if p := rules.pod; p != nil {
		in = []string{p.Interface, "lo"}
		out, own = in, func(a netip.Addr) bool { return a.IsLoopback() || slices.Contains(p.Known(), a) }
	} else if d.Link != "" {
		// Which of the two the packet's device is depends on the hook.
		by := withMaster(v, d.Link)
		in, out = model.With(in, by...), model.With(out, by...)
	}
	x := &dropped{
		Drop: d,
		packet: path.Packet{
			Src: d.Src, Dst: d.Dst, Proto: d.Proto, Sampled: true, In: in, Out: out, Mark: anyMark, Flow: anyMark,
			SrcLocal: own(d.Src), DstLocal: own(d.Dst), Sets: rules.sets,
		},
		frame: path.Frame{Src: d.Src, Dst: d.Dst, DstMAC: d.DstMAC, In: in, Out: out, LogicalIn: in, LogicalOut: out},
	}
	if s := v.Classifier.Samples.Of(d); s != nil {
		x.frame.SrcMAC = s.SrcMAC
		x.packet.SrcPort, x.packet.DstPort, _ = s.Ports()
		if src, dst := s.Ends(); src.IsValid() && (src != d.Src || dst != d.Dst) {
			x.translated, x.packet.Src, x.packet.Dst, x.packet.SrcLocal, x.packet.DstLocal = true, src, dst, own(src), own(dst)
		}
		x.begins = !slices.ContainsFunc(v.Classifier.Samples.All(d), func(s *model.Sample) bool { return s.Proto() != model.TCP || s.Late() })
	}
	// What is for a group is forwarded by a bridge alone, which has it leave by a port.
	l := v.ByIndex[d.IfIndex]
	x.toNode = x.packet.DstLocal && !x.translated || v.Classifier.ToGroup(d.Dst) && (l == nil || l.Master == 0)
	rules.findCandidates(x)
	return x
}

// linksOf are the links by which the node has an address, and what they are ports of: a pod's own, or the uplinks and that
// of the route.
func linksOf(v *node.Index, a netip.Addr) (out []string) {
	if v.Own[a] != nil {
		return nil
	}
	if out = model.Flat(v.Owners[a], func(p *model.Pod) []string { return withMaster(v, p.Link) }); len(out) > 0 {
		return out
	}
	out = model.Flat(v.UplinkList, func(l *model.Link) []string { return withMaster(v, l.Name) })
	if r := v.Lookup(a); r != nil && v.ByIndex[r.IfIndex] != nil {
		out = model.With(out, withMaster(v, v.LinkName(r.IfIndex))...)
	}
	return out
}

// withMaster is a link and the bridge that it is a port of.
func withMaster(v *node.Index, link string) []string {
	out := []string{link}
	if l := v.LinkByName[link]; l != nil && v.ByIndex[l.Master] != nil {
		out = append(out, v.ByIndex[l.Master].Name)
	}
	return out
}
