package path

import (
	"cmp"
	"net/netip"
	"slices"
	"strings"

	"github.com/lasthop/lasthop/probe/model"
)

// fit is how surely a packet satisfies a match.
type fit int

const (
	no fit = iota
	maybe
	yes
)

// verdictOf is what a hook's chains do with a packet.
type verdictOf string

// The verdicts. Unknown is where a match that was not read decides.
const (
	accepted verdictOf = "accept"
	dropped  verdictOf = "drop"
	unknown  verdictOf = "unknown"
)

// flowPacket is a packet as the rules of netfilter look at it. Ports are 0 where
// they are not known.
type flowPacket struct {
	src, dst         netip.Addr
	proto            uint8
	srcPort, dstPort uint16
	in, out          string
	// state is what connection tracking calls it: new or established; empty
	// where that is not known.
	state string
}

// ruling is the decision of a hook's chains over a packet.
type ruling struct {
	verdict verdictOf
	// rule decides, or else policy does, the chain whose end was reached.
	rule   *model.PacketRule
	policy *model.Chain
	// unsure are the rules that would decide otherwise and of which it is not
	// known whether they match.
	unsure []*model.PacketRule
	// cutOff: there are more rules than were followed.
	cutOff bool
}

// packetFilter predicts the decisions of the chains that can drop a packet, and
// of those that translate a destination.
type packetFilter struct {
	chains map[chainKey][]*model.PacketRule
	bases  []*model.Chain
	local  map[netip.Addr]bool
	// seen says that packets were counted in the window, so that a rule that
	// stood through it and counted none matches none of them.
	seen bool
}

func newPacketFilter(s *model.Snapshot, local map[netip.Addr]bool) *packetFilter {
	f := &packetFilter{chains: map[chainKey][]*model.PacketRule{}, local: local, seen: len(s.Traffic.Hops) > 0}
	for i := range s.Chains {
		c := &s.Chains[i]
		if c.Hook != "" && c.Family != "bridge" {
			f.bases = append(f.bases, c)
		}
	}
	for i := range s.PacketRules {
		r := &s.PacketRules[i]
		k := chainKey{r.Backend, r.Family, r.Table, r.Chain}
		f.chains[k] = append(f.chains[k], r)
	}
	slices.SortStableFunc(f.bases, func(a, b *model.Chain) int { return cmp.Compare(a.Priority, b.Priority) })
	return f
}

// hook lists the chains of a hook that see packets of a family, in the order in
// which the kernel calls them.
func (f *packetFilter) hook(name string, six bool) []*model.Chain {
	var out []*model.Chain
	for _, c := range f.bases {
		if c.Hook == name && (c.Family == "inet" || (c.Family == "ip6") == six) {
			out = append(out, c)
		}
	}
	return out
}

// isNAT reports whether the chain translates and does not filter.
func isNAT(c *model.Chain) bool {
	return c.Table == "nat" || c.Hook == "PREROUTING" && c.Priority >= dnatFirst && c.Priority <= dnatLast ||
		c.Hook == "POSTROUTING" && c.Priority >= natFirst && c.Priority <= natLast
}

// Destination translation happens around NF_IP_PRI_NAT_DST = -100; mangle is
// at -150.
const (
	dnatFirst = -110
	dnatLast  = -90
)

// judge walks the chains of the hooks with the power to drop.
func (f *packetFilter) judge(p flowPacket, hooks ...string) ruling {
	out := ruling{verdict: accepted}
	for _, h := range hooks {
		for _, c := range f.hook(h, isSix(p.dst)) {
			if isNAT(c) {
				continue
			}
			r := f.run(c, p)
			out.unsure, out.cutOff = append(out.unsure, r.unsure...), out.cutOff || r.cutOff
			switch r.verdict {
			case dropped:
				out.verdict, out.rule, out.policy = dropped, r.rule, r.policy
				return out
			case unknown:
				out.verdict = unknown
			case accepted:
				if r.rule != nil && out.verdict == accepted {
					out.rule = r.rule
				}
			}
		}
	}
	if out.verdict == unknown {
		out.rule = nil
	}
	return out
}

// run walks one base chain.
func (f *packetFilter) run(c *model.Chain, p flowPacket) ruling {
	w := newFilterWalk(f, p)
	end := w.chain(keyOf(c), 0)
	out := ruling{verdict: accepted, rule: end, cutOff: w.cutOff}
	switch {
	case end != nil && drops(end):
		out.verdict = dropped
	case end == nil && c.Policy == "DROP":
		out.verdict, out.policy = dropped, c
	case end == nil:
		out.policy = c
	}
	// Earlier rules that may match and would decide otherwise.
	for _, r := range w.perhaps {
		if drops(r) != (out.verdict == dropped) {
			out.unsure = append(out.unsure, r)
		}
	}
	out.unsure = append(out.unsure, w.either...)
	if len(out.unsure) > 0 || w.cutOff {
		out.verdict, out.rule, out.policy = unknown, nil, nil
	}
	return out
}

func keyOf(c *model.Chain) chainKey {
	return chainKey{c.Backend, c.Family, c.Table, c.Name}
}

func drops(r *model.PacketRule) bool { return r.Target == "DROP" || r.Target == "REJECT" }

// filterWalk is one walk through a table's chains.
type filterWalk struct {
	*packetFilter
	packet flowPacket
	// certain is how surely the walk came to where it is.
	certain fit
	// marked: a rule on the way may have changed the packet's mark.
	marked bool
	// perhaps are the deciding rules that may have matched.
	perhaps []*model.PacketRule
	// either are rules that decide one way or the other: by a map that was
	// not read, or by a program that is asked.
	either  []*model.PacketRule
	visited map[visit]bool
	steps   int
	// cutOff: the walk was not made to its end, so that nothing follows from
	// what it found.
	cutOff bool
}

// visit is a chain and what decides over how a packet passes it. Where it has
// passed it so, it passes it so again, and nothing new is found: had the walk
// ended there, it would be over.
type visit struct {
	chain         chainKey
	certain       fit
	marked, named bool
}

func newFilterWalk(f *packetFilter, p flowPacket) filterWalk {
	return filterWalk{packetFilter: f, packet: p, certain: yes, visited: map[visit]bool{}}
}

// again reports whether the chain need not be walked: it was, or the walk is
// cut off as it is too deep.
func (w *filterWalk) again(v visit, depth int) bool {
	w.cutOff = w.cutOff || depth > maxJumps
	if w.cutOff || w.visited[v] {
		return true
	}
	w.visited[v] = true
	return false
}

// step counts a rule, and reports whether the walk goes on.
func (w *filterWalk) step() bool {
	w.steps++
	w.cutOff = w.cutOff || w.steps > maxSteps
	return !w.cutOff
}

// maxSteps bounds the rules that one walk looks at.
const maxSteps = 200_000

// chain returns the rule that surely decides; nil where the end is reached or
// a RETURN is. Rules that may decide are added to perhaps.
func (w *filterWalk) chain(k chainKey, depth int) *model.PacketRule {
	if w.again(visit{chain: k, certain: w.certain, marked: w.marked}, depth) {
		return nil
	}
	for _, r := range w.chains[k] {
		if !w.step() {
			return nil
		}
		m := w.meets(r)
		if m == no {
			continue
		}
		if byMap(r) {
			w.either = append(w.either, r)
			continue
		}
		switch r.Target {
		case "QUEUE":
			w.either = append(w.either, r)
			if m == yes {
				return r
			}
			continue
		case "ACCEPT", "DROP", "REJECT":
			if m == yes {
				return r
			}
			w.perhaps = append(w.perhaps, r)
			continue
		case "RETURN":
			if m == yes {
				return nil
			}
			// What stands behind is met by what did not match.
			w.certain = maybe
			continue
		case "MARK", "CONNMARK":
			w.marked = true
			continue
		}
		if _, ok := w.chains[k.to(r.Target)]; !ok {
			continue
		}
		before := w.certain
		w.certain = m
		end := w.chain(k.to(r.Target), depth+1)
		w.certain = before
		if end != nil || r.Goto && m == yes {
			return end
		}
		if r.Goto {
			w.certain = maybe
		}
	}
	return nil
}

// byMap reports whether a verdict map of nft decides, whose elements the model
// does not hold.
func byMap(r *model.PacketRule) bool {
	return r.Target == "" && slices.ContainsFunc(r.Unknown, func(text string) bool { return strings.Contains(text, " vmap ") })
}

// meets tells how surely the packet comes to a rule and satisfies it. Where it
// may, what counted nothing in a window with traffic is known not to.
func (w *filterWalk) meets(r *model.PacketRule) fit {
	f := min(w.certain, w.fits(r))
	if f == maybe && w.seen && r.Standing && r.Counter.Packets+r.Counter.Delta > 0 && r.Counter.Delta == 0 {
		return no
	}
	return f
}

// fits tells how surely the packet satisfies a rule.
func (w *filterWalk) fits(r *model.PacketRule) fit {
	p := w.packet
	if r.NFProto == 4 && isSix(p.dst) || r.NFProto == 6 && !isSix(p.dst) ||
		!r.Src.Matches(p.src) || !r.Dst.Matches(p.dst) ||
		!wants(r.DstLocal, w.local[p.dst]) || !wants(r.SrcLocal, w.local[p.src]) {
		return no
	}
	f := min(linkFits(r.In, p.in), linkFits(r.Out, p.out), protoFits(r, p.proto),
		portsFit(r.SrcPorts, p.srcPort), portsFit(r.DstPorts, p.dstPort), w.markFits(r))
	for _, text := range r.Unknown {
		f = min(f, stateFits(text, p.state))
	}
	return f
}

func linkFits(m model.IfMatch, link string) fit {
	switch {
	case m.Name == "":
		return yes
	case link == "":
		return maybe
	case m.Matches(link):
		return yes
	}
	return no
}

func protoFits(r *model.PacketRule, proto uint8) fit {
	switch {
	case r.Proto == 0:
		return yes
	case proto == 0:
		return maybe
	case (r.Proto == proto) != r.ProtoNot:
		return yes
	}
	return no
}

func portsFit(ranges []model.PortRange, port uint16) fit {
	switch {
	case ranges == nil:
		return yes
	case port == 0:
		return maybe
	case slices.ContainsFunc(ranges, func(r model.PortRange) bool { return r.First <= port && port <= r.Last }):
		return yes
	}
	return no
}

func (w *filterWalk) markFits(r *model.PacketRule) fit {
	switch {
	case !r.Mark.Set:
		return yes
	case w.marked:
		return maybe
	case r.Mark.Matches(0):
		return yes
	}
	return no
}

// stateFits reads the one kind of further match that can be told: the state of
// connection tracking.
func stateFits(text, state string) fit {
	for _, option := range []string{"--ctstate ", "--state ", "ct state "} {
		before, words, found := strings.Cut(text, option)
		if !found || state == "" {
			continue
		}
		not := strings.HasSuffix(strings.TrimSpace(before), "!")
		if rest, ok := strings.CutPrefix(words, "!= "); ok {
			words, not = rest, true
		}
		if strings.Contains(strings.TrimSpace(words), " ") {
			return maybe
		}
		wanted := slices.Contains(strings.Split(strings.ToLower(strings.TrimSpace(words)), ","), state)
		if wanted != not {
			return yes
		}
		return no
	}
	return maybe
}

// targets are the rules that may translate a packet's destination.
type targets struct {
	rules []*model.PacketRule
	// mapped: a map that was not read may lead to more.
	mapped bool
	// sure: the first surely does.
	sure bool
	// service: rules on the way to them name the destination itself, which is
	// then a service's address and leads nowhere else.
	service bool
	// cutOff: there are more rules than were followed.
	cutOff bool
}

// backends asks a hook's nat chains.
func (f *packetFilter) backends(p flowPacket, hook string) targets {
	var out targets
	for _, c := range f.hook(hook, isSix(p.dst)) {
		if !isNAT(c) {
			continue
		}
		w := natWalk{filterWalk: newFilterWalk(f, p)}
		if w.chain(keyOf(c), 0) {
			w.targets.cutOff = out.cutOff
			return w.targets
		}
		out.cutOff = out.cutOff || w.filterWalk.cutOff
		out.rules, out.service, out.mapped = append(out.rules, w.rules...), out.service || w.service, out.mapped || w.mapped
	}
	return out
}

// natWalk looks for translations.
type natWalk struct {
	filterWalk
	targets
	// named: a rule that led here names the destination.
	named bool
}

// chain reports whether the search surely ends.
func (w *natWalk) chain(k chainKey, depth int) bool {
	if w.again(visit{chain: k, certain: w.certain, named: w.named}, depth) {
		return false
	}
	for _, r := range w.chains[k] {
		if !w.step() {
			return false
		}
		m := w.meets(r)
		if m == no {
			continue
		}
		if byMap(r) {
			w.mapped = true
			continue
		}
		switch r.Target {
		case "DNAT", "REDIRECT":
			w.service = w.service || w.names(r)
			if !slices.Contains(w.rules, r) {
				w.rules = append(w.rules, r)
			}
			if m == yes {
				w.sure = len(w.rules) == 1
				return true
			}
			continue
		case "ACCEPT":
			if m == yes {
				return true
			}
			continue
		case "RETURN":
			if m == yes {
				return false
			}
			w.certain = maybe
			continue
		}
		if _, ok := w.chains[k.to(r.Target)]; !ok {
			continue
		}
		before, named := w.certain, w.named
		w.certain, w.named = m, w.names(r)
		ended := w.chain(k.to(r.Target), depth+1)
		w.certain, w.named = before, named
		if ended || r.Goto && m == yes {
			return ended
		}
		if r.Goto {
			w.certain = maybe
		}
	}
	return false
}

// names reports whether the rule, or one that led to it, is for the packet's
// destination alone.
func (w *natWalk) names(r *model.PacketRule) bool {
	return w.named || !r.Dst.Not && r.Dst.Prefix.IsSingleIP() && r.Dst.Prefix.Addr() == w.packet.dst
}

func isSix(a netip.Addr) bool { return a.Is6() && !a.Is4In6() }
