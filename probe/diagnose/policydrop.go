package diagnose

import (
	"cmp"
	"iter"
	"maps"
	"net/netip"
	"slices"

	"github.com/lasthop/lasthop/probe/loss"
	"github.com/lasthop/lasthop/probe/model"
	"github.com/lasthop/lasthop/probe/path"
	"github.com/lasthop/lasthop/probe/words"
)

// PolicyDrop is the code of this finding.
const PolicyDrop model.Code = "PolicyDrop"

var policyDrop = kind{
	code:     PolicyDrop,
	severity: model.Warning,
	find:     findPolicyDrop,
	ends:     []model.HopKind{model.HopPolicy, model.HopPod},
}

// netfilterDrop is a drop whose rule is looked for.
type netfilterDrop struct {
	*model.Drop
	found
}

// attribution is a rule with the drops that are put down to it.
type attribution struct {
	*candidateRule
	parts []part
}

// part is what one rule dropped of a drop's packets.
type part struct {
	drop    *model.Drop
	packets uint64
	// others are further rules that may have dropped them as well.
	others []*candidateRule
	// covered: the rule counted as many. sure: if not, no other may have dropped
	// them. whole is as in found.
	covered, sure, whole bool
}

func findPolicyDrop(v *view) []finding {
	drops, unread, inPods := v.netfilterDrops()
	// oneCause are rules whose drops have one cause, which has a name; others have their own.
	type oneCause struct {
		name string
		only *attribution
	}
	var byCause groups[oneCause, []droppedBy]
	for _, a := range attribute(drops) {
		d := v.droppedBy(a)
		if d.packets < minDrops {
			continue
		}
		var k oneCause
		if k.name, _ = a.serviceWithout(); a.dropsUnknownLink() {
			k.name = words.Calico
		}
		if k.name == "" {
			k.only = a
		}
		list := byCause.of(k)
		*list = append(*list, d)
	}
	var out []finding
	for k, list := range byCause.all() {
		out = append(out, v.policyDropped(*list, k.name == words.Calico))
	}
	if unread.packets >= minDrops {
		f := finding{page: "PolicyDrop-unread", lost: unread, facts: facts{"read": v.Has(model.SourceNAT)}}
		f.Confidence, f.LastHopAlive = model.Likely, v.cameBy(mostDropped(unread.drops)[0])
		out = append(out, f)
	}
	for _, pod := range sorted(inPods) {
		if l := inPods[pod]; l.packets >= minDrops {
			f := finding{page: "PolicyDrop-pod", lost: l, facts: facts{"pod": v.pods[pod][0], "read": v.pods[pod][0].Inside != nil}}
			f.Confidence, f.LastHopAlive = model.Likely, v.place(v.pods[pod][0].Link, model.Egress)
			out = append(out, f)
		}
	}
	return out
}

// netfilterDrops lists the drops of netfilter on the node with the rules that
// or in pods that may have dropped them; those that only rules of the node which were not
// read can have dropped; and those in pods of which no rule that was read can have.
func (v *view) netfilterDrops() (drops []netfilterDrop, unread *lost, inPods map[netip.Addr]*lost) {
	rules := newDropRules(v.Snapshot, nil)
	unread, inPods = &lost{}, map[netip.Addr]*lost{}
	inside := map[uint32]*dropRules{}
	for d := range model.Each(v.Traffic.Drops) {
		if !d.Netfilter() || v.pod(d) == (netip.Addr{}) || v.explained(d) || v.drops.Class(d) != loss.Lost {
			continue
		}
		if pod := v.inPod(d); pod.IsValid() {
			n := netfilterDrop{d, v.dropInside(d, pod, inside)}
			if len(n.candidates) == 0 {
				entry(inPods, pod).addFor(pod, d)
			} else {
				drops = append(drops, n)
			}
			continue
		}
		n := netfilterDrop{d, rules.candidates(v.dropIn(d))}
		if len(n.candidates) == 0 && !(n.whole && v.Has(model.SourceNAT)) {
			unread.add(v, d)
			continue
		}
		drops = append(drops, n)
	}
	return drops, unread, inPods
}

// dropInside finds the rules in the namespace of the pod with an address that may have made a
// drop there. known are the rules by namespace.
func (v *view) dropInside(d *model.Drop, a netip.Addr, known map[uint32]*dropRules) found {
	p := first(v.Pods, func(p *model.Pod) bool { return p.Netns == d.Netns && slices.Contains(p.Known(), a) })
	if p == nil || p.Inside == nil {
		return found{}
	}
	if known[p.Netns] == nil {
		in := p.Inside
		known[p.Netns] = newDropRules(&model.Snapshot{
			PacketRules: in.PacketRules, Chains: in.Chains, Sets: in.Sets, Traffic: model.Traffic{Drops: v.Traffic.Drops},
		}, p)
	}
	x, links := v.dropIn(d), []string{p.Interface, "lo"}
	own := func(a netip.Addr) bool { return a.IsLoopback() || slices.Contains(p.Known(), a) }
	x.packet.In, x.packet.Out, x.packet.SrcLocal, x.packet.DstLocal = links, links, own(d.Src), own(d.Dst)
	return known[p.Netns].candidates(x)
}

// attribute distributes the drops among their candidates, so that none has
// dropped more than it counted. Drops with few candidates go first.
func attribute(drops []netfilterDrop) iter.Seq2[*candidateRule, *attribution] {
	slices.SortStableFunc(drops, func(a, b netfilterDrop) int { return cmp.Compare(len(a.candidates), len(b.candidates)) })
	var found groups[*candidateRule, attribution]
	for _, d := range drops {
		for rest := d.Packets; rest > 0; {
			best := d.best(rest)
			if best == nil {
				break
			}
			p := part{drop: d.Drop, packets: min(rest, best.left), covered: true, sure: d.sure(best), whole: d.whole, others: d.others(best, rest)}
			if p.packets == 0 {
				// It has no counter, or that was zeroed in between.
				p.packets, p.covered = rest, false
			}
			best.left -= min(p.packets, best.left)
			rest -= p.packets
			a := found.of(best)
			a.candidateRule, a.parts = best, append(a.parts, p)
		}
	}
	return found.all()
}

// best is the candidate for so many packets: one whose counter covers them, the
// first that the packet meets; then one whose counter covers some; then one
// without a counter; then one whose counter is used up.
func (d *netfilterDrop) best(packets uint64) *candidateRule {
	for _, ok := range []func(*candidate) bool{
		func(c *candidate) bool { return !c.poor && c.left == packets },
		func(c *candidate) bool { return !c.poor && c.left > packets },
		func(c *candidate) bool { return c.left > packets },
		func(c *candidate) bool { return c.left > 0 },
		func(c *candidate) bool { return !c.Counted && !c.poor },
		func(c *candidate) bool { return !c.Counted },
		func(*candidate) bool { return true },
	} {
		for i := range d.candidates {
			if ok(&d.candidates[i]) {
				return d.candidates[i].candidateRule
			}
		}
	}
	return nil
}

// sure reports whether a rule whose count does not tell dropped the packets: they surely
// meet it and match; or the kernel says that a rule of nft did, and no other can be.
func (d *netfilterDrop) sure(best *candidateRule) bool {
	for _, c := range d.candidates {
		if c.candidateRule == best {
			return !c.poor && (c.fit == path.Yes || len(d.candidates) == 1 && d.whole && !d.open && d.Location == model.LocationNFT)
		}
	}
	return false
}

// others are the candidates besides the best that counted enough to have dropped
// so many packets: where the best counted just these, others that did so too. Besides one
// without a counter they are those without.
func (d *netfilterDrop) others(best *candidateRule, packets uint64) []*candidateRule {
	var out []*candidateRule
	for _, c := range d.candidates {
		enough := c.Counted && (c.left >= packets && best.left != packets || c.left == packets) || !c.Counted && !best.Counted
		if c.candidateRule != best && !c.poor && enough {
			out = append(out, c.candidateRule)
		}
	}
	return out
}

// explains accounts for what was dropped and, where that was a pod's ICMPv6, for
// what the pod could not send: ip6tables drops the replies to its neighbour
// solicitations too, which a bridge takes through it. ARP is not filtered.
func (a *attribution) explains() func(*model.Drop) bool {
	drops := make([]*model.Drop, len(a.parts))
	deaf := map[netip.Addr]bool{}
	for i, p := range a.parts {
		drops[i] = p.drop
		if p.drop.Proto == icmp6 {
			deaf[p.drop.Dst] = true
		}
	}
	these := sameDrops(drops)
	return func(d *model.Drop) bool { return these(d) || deaf[d.Src] && d.Link == "" && d.NeighborFailed() }
}

func union[T comparable](a, b []T, compare func(T, T) int) []T {
	out := slices.Concat(a, b)
	slices.SortFunc(out, compare)
	return slices.Compact(out)
}

// droppedBy is what one rule or policy dropped, and what speaks against its being that.
type droppedBy struct {
	lost
	*attribution
	others []*candidateRule
	doubts []doubt
	claims func(*model.Drop) bool
}

// doubt is what is not known of a rule and its drops: a key of the page, or a match.
type doubt struct{ Of, Match string }

func (v *view) droppedBy(a *attribution) droppedBy {
	out := droppedBy{attribution: a, claims: a.explains(), lost: a.lost(func(d *model.Drop) []netip.Addr { return v.struck(a.candidateRule, d) })}
	covered, sure, whole := true, true, true
	for _, p := range a.parts {
		covered, sure, whole = covered && p.covered, sure && (p.covered || p.sure), whole && p.whole
		for _, o := range p.others {
			if !slices.Contains(out.others, o) {
				out.others = append(out.others, o)
			}
		}
	}
	if !whole {
		out.doubts = append(out.doubts, doubt{Of: "last"})
	}
	// What rules in pods counted before the window is not known.
	restarted := a.Counter.Restarted && a.Pod == nil
	if !covered && (a.Counted || restarted || !v.Has(model.SourceNAT, model.SourceEbtables) || !sure) {
		out.doubts = append(out.doubts, doubt{Of: "counter"})
	}
	if len(out.doubts)+len(out.others) > 0 {
		for _, m := range a.unknown {
			out.doubts = append(out.doubts, doubt{Match: m})
		}
	}
	return out
}

// lost are the drops, with the pods that each is about.
func (a *attribution) lost(of func(*model.Drop) []netip.Addr) (l lost) {
	for _, p := range a.parts {
		for _, pod := range of(p.drop) {
			l.about(pod, p.drop)
		}
		l.packets, l.drops = l.packets+p.packets, append(l.drops, p.drop)
	}
	return l
}

// shown are the rule and the drops.
func (a *attribution) shown(l *lost) []model.Evidence {
	return words.Say("dropRule", facts{"rule": a.candidateRule, "lost": mostDropped(l.drops)})
}

// policyDropped is the finding on what rules of one cause dropped. The first tells what the
// cause is.
func (v *view) policyDropped(list []droppedBy, calico bool) finding {
	first := &list[0]
	all := lost{pods: map[netip.Addr]bool{}, peers: map[netip.Addr]bool{}}
	var seen []model.Evidence
	var others []*candidateRule
	var doubts []doubt
	for d := range model.Each(list) {
		maps.Copy(all.pods, d.pods)
		maps.Copy(all.peers, d.peers)
		all.packets += d.packets
		seen = append(seen, d.shown(&d.lost)...)
		doubts = append(doubts, d.doubts...)
		for _, o := range d.others {
			if !slices.Contains(others, o) {
				others = append(others, o)
			}
		}
	}
	f := finding{lost: &all, facts: facts{
		"rule": first.candidateRule, "pods": sorted(first.pods), "asked": sorted(first.peers), "packets": first.packets,
		"calico": calico, "seen": seen, "others": others, "doubts": slices.Compact(doubts),
	}}
	f.claims = func(d *model.Drop) bool {
		return slices.ContainsFunc(list, func(x droppedBy) bool { return x.claims(d) })
	}
	if first.dropsInvalid() {
		// A few late segments of closed connections are no fault.
		f.Severity = model.Info
	}
	if len(doubts) > 0 {
		f.Confidence = model.Likely
	}
	f.LastHopAlive = v.cameBy(mostDropped(first.drops)[0])
	if first.Pod != nil {
		f.LastHopAlive = v.place(first.Pod.Link, model.Egress)
	}
	first.serviceFacts(f.facts)
	return f
}

// struck are the pods that the rule is about: the receiver, or the sender where
// the rule or a jump to it names the sender; both where neither is named.
func (v *view) struck(c *candidateRule, d *model.Drop) []netip.Addr {
	if c.Pod != nil {
		return []netip.Addr{v.inPod(d)}
	}
	src, dst := len(v.pods[d.Src]) > 0, len(v.pods[d.Dst]) > 0
	if !src || !dst {
		return []netip.Addr{v.pod(d)}
	}
	src, dst = c.names()
	if src == dst {
		src, dst = c.sides()
	}
	switch {
	case src && !dst:
		return []netip.Addr{d.Src}
	case dst && !src:
		return []netip.Addr{d.Dst}
	}
	return []netip.Addr{d.Src, d.Dst}
}
