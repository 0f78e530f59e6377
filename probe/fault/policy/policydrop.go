package policy

import (
	"cmp"
	"iter"
	"net/netip"
	"slices"
	"strings"

	"github.com/lasthop/lasthop/probe/fault"
	"github.com/lasthop/lasthop/probe/loss"
	"github.com/lasthop/lasthop/probe/model"
	"github.com/lasthop/lasthop/probe/node"
	"github.com/lasthop/lasthop/probe/path"
	"github.com/lasthop/lasthop/probe/words"
)

// attribution is a rule with the drops that are put down to it.
type attribution struct {
	*candidateRule
	node.Lost
	parts []part
}

// part is what one rule dropped of a drop's packets.
type part struct {
	*dropped
	packets uint64
	// others are further rules that may have dropped them as well.
	others []*candidateRule
	// covered: the rule counted as many. sure: if not, no other may have dropped them.
	covered, sure bool
}

// Drop reports rules of netfilter that drop pods' packets.
var Drop = fault.Kind{Code: "PolicyDrop", Severity: model.Warning, Find: findDrop, Decides: true,
	Rests: fault.Sources{model.SourceLinks, model.SourceDrops}, Ends: fault.Hops{model.HopPolicy, model.HopPod},
	Objects: append(fault.Objects{"calico", "service", "pod.Link"}, ruleObjects...),
	Else:    fault.Else{"others", "doubts", "PolicyDrop-carrier uncounted", "PolicyDrop-replies doubt"}}

func findDrop(v *fault.Input) {
	drops, unread, unmatched, unknown := netfilterDrops(v)
	// cause is that of the drops of several rules, which has a name, or of one alone.
	type cause struct {
		name string
		only *attribution
	}
	var byCause node.Groups[cause, []*attribution]
	rest := func(d *model.Drop, packets uint64) {
		unmatched.About(v.Pod(d), d)
		unmatched.Drops, unmatched.Packets = append(unmatched.Drops, d), unmatched.Packets+packets
	}
	for _, a := range attribute(drops) {
		a.giveBack(rest)
		if a.sum(func(d *model.Drop) []netip.Addr { return concernedBy(v.Index, a.candidateRule, d) }); a.Lost.Packets < node.MinDrops {
			continue
		}
		k := cause{only: a}
		if by := a.Maker(); a.dropsUnknownLink() || by == "firewalld" {
			// Each zone has a chain of its own.
			k = cause{name: by}
		} else if service, _ := a.serviceWithout(); service != "" {
			k = cause{name: service}
		}
		node.Put(&byCause, k, a)
	}
	for k, list := range byCause.All() {
		v.Report(policyDropped(v.Index, *list, k.name == model.Calico))
	}
	refusedReplies(v)
	refusedCarriers(v)
	for _, l := range []*node.Lost{unread, unmatched} {
		if l == unread && l.Packets >= node.MinDrops || l == unmatched && l.Lasting() && v.Has(model.SourceEbtables) {
			f := fault.Fault{Page: "PolicyDrop-unread", Lost: l,
				Facts: words.Facts{"read": v.Has(model.SourceNAT), "unmatched": l == unmatched}}
			f.Confidence, f.LastHopAlive = model.Likely, cameBy(v.Index, node.MostDropped(l.Drops)[0])
			v.Report(f)
		}
	}
	fault.ReportBy(v, func(d *model.Drop) (pod, _ netip.Addr) {
		if unknown[d] {
			pod = v.InPod(d)
		}
		return pod, pod
	}, func(pod netip.Addr, l *node.Lost) fault.Fault {
		f := fault.Fault{Page: "PolicyDrop-pod", Lost: l,
			Facts: words.Facts{"pod": v.Owners[pod][0], "read": v.Owners[pod][0].Inside != nil}}
		f.Confidence, f.LastHopAlive = model.Likely, v.Place(v.Owners[pod][0].Link, model.Egress)
		return f
	})
}

// refusedReplies reports rules that drop replies before these are translated back to pods: such drops are the node's.
func refusedReplies(v *fault.Input) {
	var byRule node.Groups[*model.PacketRule, []*node.Dying]
	for _, d := range v.Dying() {
		if d.Refused != nil && v.SilencedBy(d.Pod, model.Host(d.Remote), d.Silent[0]) == "" {
			node.Put(&byRule, d.Refused, d)
		}
	}
	for r, list := range byRule.All() {
		c := ruleOf(r)
		f, silent := fault.Fault{Page: "PolicyDrop-replies", Undoes: c.object()}, 0
		for _, d := range *list {
			f.Pods, f.Peers, silent = model.With(f.Pods, d.Pod), model.With(f.Peers, model.Host(d.Remote)), silent+len(d.Silent)
		}
		d := (*list)[0]
		link := v.LinkName(d.Link)
		f.Packets, f.LastHopAlive = r.Counter.Delta, v.Place(link, model.Ingress)
		f.Facts = words.Facts{"rule": c, "silent": silent, "half": d.Half, "link": link, "doubt": d.Doubt, "ranges": rangesOf(v.Index, f.Pods),
			"policies": c.policies(v.Index)}
		f.Packet = v.ReplyOf(d.Silent[0], d.Link)
		f.Flows = func(x *model.Flow) bool {
			by, _ := v.RefusesReply(x, d.Link)
			return by == r
		}
		v.Report(f)
	}
}

// refusedCarriers reports rules that drop the packets in which a tunnel carries those of pods: such drops are the node's.
func refusedCarriers(v *fault.Input) {
	type carried struct {
		node.Lost
		outer path.Packet
		ends  node.AddrSet
	}
	var byRule node.Groups[node.Carrier, carried]
	for p := range model.Each(v.TunnelPairs()) {
		if p.Answered || v.Silenced(p.Pod, model.Host(p.Remote)) {
			continue
		}
		if c, outer := v.RefusedCarrier(p); c != (node.Carrier{}) {
			x := byRule.Of(c)
			x.outer = outer
			x.ends.Add(model.Either(outer.SrcLocal, outer.Dst, outer.Src))
			x.AddPair(p.Peer, node.SetOf([]netip.Addr{p.Pod}), v.Asked(p.Peer))
		}
	}
	for k, x := range byRule.All() {
		var c *candidateRule
		var accept []words.Command
		if k.Rule != nil {
			c = ruleOf(k.Rule)
		} else {
			c = policyOf(v.State, k.Policy)
			if c.Maker() == "" && !x.outer.SrcLocal {
				// What else the policy keeps out stays out.
				accept = model.Map(node.Sorted(x.ends), func(a netip.Addr) words.Command {
					return words.AcceptPackets(k.Policy, model.Host(a), x.outer.Proto, x.outer.DstPort)
				})
			}
		}
		if x.Requests < node.MinAsks || c.Counted && c.Counter.Delta < node.MinAsks {
			continue
		}
		f := fault.Fault{Page: "PolicyDrop-carrier", Lost: &x.Lost, Undoes: c.object(), Packet: x.outer}
		link := v.LinkName(k.Link)
		f.Facts = words.Facts{
			"rule": c, "link": link, "requests": x.Requests, "uncounted": !c.Counted, "accept": accept, "peers": node.Sorted(x.Peers),
			"ends": node.Sorted(x.ends), "ranges": rangesOf(v.Index, node.Sorted(x.Pods)), "leaving": x.outer.SrcLocal,
		}
		f.Confidence, f.LastHopAlive = model.Either(c.Counted, model.Proven, model.Likely), v.Place(link, model.Egress)
		v.Report(f)
	}
}

// netfilterDrops lists the drops of netfilter on the node and in pods with the rules that may
// have dropped them, those that only rules of the node which were not read can have dropped,
// those that none can, and those in pods of which no rule is known that can.
func netfilterDrops(v *fault.Input) (drops []*dropped, unread, unmatched *node.Lost, unknown map[*model.Drop]bool) {
	rules, inside := newDropRules(v.State, nil), map[*model.Pod]*dropRules{}
	unread, unmatched, unknown = &node.Lost{}, &node.Lost{}, map[*model.Drop]bool{}
	for d := range model.Each(v.Traffic.Drops) {
		if !d.Is(model.Netfilter) || !v.OfPod(d) || v.Classifier.Class(d) != loss.Lost || v.Explained(d) {
			continue
		}
		if a := v.InPod(d); a.IsValid() {
			p := model.Find(v.Owners[a], func(p *model.Pod) bool { return p.Netns == d.Netns })
			if x := droppedInside(v.Index, p, inside, d); x != nil {
				drops = append(drops, x)
			} else {
				unknown[d] = true
			}
			continue
		}
		switch x := dropIn(v.Index, rules, d); {
		case len(x.candidates) > 0:
			drops = append(drops, x)
		case x.whole && v.Has(model.SourceNAT):
			unmatched.Add(v.Index, d)
		default:
			unread.Add(v.Index, d)
		}
	}
	return drops, unread, unmatched, unknown
}

// droppedInside is a drop in a pod's namespace with the rules there that may have made it; nil
// where none is known. rules are those of pods.
func droppedInside(v *node.Index, p *model.Pod, rules map[*model.Pod]*dropRules, d *model.Drop) *dropped {
	if p.Inside == nil {
		return nil
	}
	if in := p.Inside; rules[p] == nil {
		rules[p] = newDropRules(path.NewState(&model.Snapshot{
			PacketRules: in.PacketRules, Chains: in.Chains, Sets: in.Sets, Traffic: model.Traffic{Drops: v.Traffic.Drops},
		}), p)
	}
	if x := dropIn(v, rules[p], d); len(x.candidates) > 0 {
		return x
	}
	return nil
}

// attribute distributes the drops among their candidates, so that none has
// dropped more than it counted. Drops with few candidates go first.
func attribute(drops []*dropped) iter.Seq2[*candidateRule, *attribution] {
	slices.SortStableFunc(drops, func(a, b *dropped) int { return cmp.Compare(len(a.candidates), len(b.candidates)) })
	var found node.Groups[*candidateRule, attribution]
	for _, d := range drops {
		for rest := d.Packets; rest > 0; {
			best := d.best(rest)
			if best == nil {
				break
			}
			p := part{dropped: d, packets: min(rest, best.left), covered: true, sure: d.sure(best)}
			p.others = d.others(best.candidateRule, rest)
			if p.packets == 0 {
				// It has no counter, or that was zeroed in between.
				p.packets, p.covered = rest, false
			}
			best.left -= min(p.packets, best.left)
			rest -= p.packets
			a := found.Of(best.candidateRule)
			a.candidateRule, a.parts = best.candidateRule, append(a.parts, p)
		}
	}
	return found.All()
}

// giveBack gives another what the rule cannot have dropped: it counted notably less. Rules and drops are not read at one
// instant.
func (a *attribution) giveBack(to func(d *model.Drop, packets uint64)) {
	over := model.Sum(a.parts, func(p part) uint64 { return model.Either(p.covered, 0, p.packets) })
	if !a.Counted || over < node.ManyRefused || over*node.DroppedShare < a.Counter.Delta {
		return
	}
	for _, p := range a.parts {
		if !p.covered {
			to(p.Drop, p.packets)
		}
	}
	a.parts = model.Filter(a.parts, func(p part) bool { return p.covered })
}

// best is the candidate for so many packets: one whose counter covers them, the first that the packet meets;
// then one whose counter covers some; then one without a counter, first the one that surely matches; then one whose counter
// is used up.
func (d *dropped) best(packets uint64) *candidate {
	likely := func(c *candidate) bool { return c.fit > path.Unlikely }
	for _, ok := range []func(*candidate) bool{
		func(c *candidate) bool { return likely(c) && c.left == packets },
		func(c *candidate) bool { return likely(c) && c.left > packets },
		func(c *candidate) bool { return c.left > packets },
		func(c *candidate) bool { return c.left > 0 },
		func(c *candidate) bool { return !c.Counted && c.fit == path.Yes },
		func(c *candidate) bool { return !c.Counted && likely(c) },
		func(c *candidate) bool { return !c.Counted },
		func(*candidate) bool { return true },
	} {
		if c := model.First(d.candidates, ok); c != nil {
			return c
		}
	}
	return nil
}

// sure reports whether a rule whose count does not tell dropped the packets: they surely
// meet it and match; or the kernel says that a rule of nft did, and no other can be.
func (d *dropped) sure(c *candidate) bool {
	return c.fit == path.Yes || c.fit == path.Maybe && len(d.candidates) == 1 && d.whole && !d.open && d.Is(model.ByNFT)
}

// others are the candidates besides the best that counted enough to have dropped so many packets: where the
// best counted just these, others that did so too. Besides one without a counter they are those without.
func (d *dropped) others(best *candidateRule, packets uint64) []*candidateRule {
	var out []*candidateRule
	for _, c := range d.candidates {
		enough := c.Counted && (c.left >= packets && best.left != packets || c.left == packets) || !c.Counted && !best.Counted
		if c.candidateRule != best && c.fit > path.Unlikely && enough {
			out = append(out, c.candidateRule)
		}
	}
	return out
}

// sum adds up the parts, with the pods that each drop is about.
func (a *attribution) sum(of func(*model.Drop) []netip.Addr) {
	for _, p := range a.parts {
		for _, pod := range of(p.Drop) {
			a.About(pod, p.Drop)
		}
		a.Lost.Packets += p.packets
		if n := len(a.Drops); n == 0 || a.Drops[n-1] != p.Drop { // the parts of a drop follow each other
			a.Drops = append(a.Drops, p.Drop)
		}
	}
}

// filteredDrops accounts for what was dropped and, where that was a pod's ICMPv6, for what the pod could not send:
// ip6tables drops the replies to its neighbour solicitations too, which a bridge takes through it. ARP is not filtered.
// What advertises a MAC and is dropped leaves those who asked for it without.
func filteredDrops(v *node.Index, drops []*model.Drop) func(*model.Drop) bool {
	unresolved, unknown := map[netip.Addr]bool{}, map[netip.Addr]bool{}
	for _, d := range drops {
		if d.Proto == model.ICMPv6 {
			unresolved[d.Dst] = true
			unresolved[d.Src] = unresolved[d.Src] || model.IsSolicited(d.Dst)
			unknown[d.Src] = unknown[d.Src] || v.Classifier.Samples.Advertised(d)
		}
	}
	these := model.SetOf(drops) // There may be thousands.
	return func(d *model.Drop) bool {
		return these[d] || d.Is(model.NeighborFailed) && (unresolved[d.Src] && d.Link == "" || unknown[d.Dst] ||
			len(unknown) > 0 && d.Dst.Is6() && hopAnswered(v, d))
	}
}

// hopAnswered reports whether the next hop of a packet that waited for its MAC in vain answered.
func hopAnswered(v *node.Index, d *model.Drop) bool {
	hop, ok := node.AwaitedHop(v, d)
	return ok && node.AskedBeyond(v, node.Question{Ifindex: d.IfIndex, Addr: hop}).Replies > 0
}

// doubt is what is not known of a rule and its drops: a key of the page, or a match.
type doubt struct{ Of, Match string }

// doubts are what speaks against the rule's having made its drops, and the rules that may have.
func doubts(v *node.Index, a *attribution) (out []doubt, others []*candidateRule) {
	covered, sure, whole := true, true, true
	for _, p := range a.parts {
		covered, sure, whole = covered && p.covered, sure && (p.covered || p.sure), whole && p.whole
		others = append(others, p.others...)
	}
	if !whole {
		out = append(out, doubt{Of: "last"})
	}
	// What rules in pods counted before the window is not known.
	restarted := a.Counter.Restarted && a.Pod == nil
	if !covered && (a.Counted || restarted || !v.Has(model.SourceNAT, model.SourceEbtables) || !sure) {
		out = append(out, doubt{Of: "counter"})
	}
	if len(out)+len(others) > 0 {
		out = append(out, model.Map(a.unknown, func(m string) doubt { return doubt{Match: m} })...)
	}
	return out, others
}

func (a *attribution) shown() []model.Evidence {
	return words.Say("dropRule", words.Facts{"rule": a.candidateRule, "lost": node.MostDropped(a.Drops)})
}

// policyDropped is the finding on what rules of one cause dropped. The first tells what the cause is.
func policyDropped(v *node.Index, list []*attribution, calico bool) fault.Fault {
	first := list[0]
	var all node.Lost
	var seen []model.Evidence
	var others []*candidateRule
	var against []doubt
	for _, a := range list {
		a.Common()
		all.Merge(&a.Lost)
		seen = append(seen, a.shown()...)
		unsure, rivals := doubts(v, a)
		against, others = append(against, unsure...), model.With(others, rivals...)
	}
	ranges := rangesOf(v, node.Sorted(all.Pods))
	if strings.Contains(first.Chain, "ISOLATION") && v.Owners[node.Sorted(all.Pods)[0]][0].Engine == first.Maker() {
		ranges = nil // A program keeps its own containers apart: this is no matter of the pods' range.
	}
	f := fault.Fault{Lost: &all, Claims: filteredDrops(v, all.Drops), Facts: words.Facts{
		"rule": first.candidateRule, "pods": node.Sorted(first.Pods), "asked": node.Sorted(first.Peers), "packets": first.Lost.Packets,
		"ranges": ranges, "policies": first.policies(v),
		"calico": calico, "seen": seen, "others": others, "doubts": slices.Compact(against),
	}}
	f.Flows = func(x *model.Flow) bool {
		return slices.ContainsFunc(list, func(a *attribution) bool { return a.concerns(x) })
	}
	limit := limitOf(v, first)
	if f.Facts["limit"] = limit; limit != nil {
		passed := uint64(0)
		for p := range model.Each(v.Peers) {
			if all.Pods[p.Local] && all.Peers[p.Remote] {
				passed += p.Out.Packets + p.In.Packets
			}
		}
		f.InfoUnless(all.Packets*node.DroppedShare >= all.Packets+passed) // Else it works as meant.
	}
	if dropsInvalid(first.Rule) && len(others) == 0 {
		// A few late segments of closed connections are no fault. A guess excuses nothing.
		f.Severity = model.Info
	}
	marks := markers(v, first)
	if f.Facts["marks"] = marks; limit == nil && marks == nil {
		f.Undoes = first.object()
	}
	f.LastHopAlive = cameBy(v, node.MostDropped(first.Drops)[0])
	if first.Pod != nil {
		f.LastHopAlive = v.Place(first.Pod.Link, model.Egress)
	}
	first.serviceFacts(f.Facts)
	return f
}

// markers are rules of other programs that set the mark by which a rule drops: both use the same bit.
func markers(v *node.Index, a *attribution) []*model.PacketRule {
	if a.Rule == nil || a.Rule.Mark.Mask == 0 || a.Pod != nil {
		return nil
	}
	d := a.Drops[0]
	_, by := v.Tables().MarkedAt(path.Packet{Src: d.Src, Dst: d.Dst, Proto: d.Proto, In: linksOf(v, d.Src), Out: linksOf(v, d.Dst)}, "PREROUTING", "FORWARD")
	return model.Filter(by, func(r *model.PacketRule) bool {
		return r.SetMark.Mask&a.Rule.Mark.Mask != 0 && ruleOf(r).Maker() != a.Maker()
	})
}

// limitOf is the rule whose limit decides: the one that drops what exceeds it, or one before it in its chain, which lets what does
// not exceed it pass; nil for none.
func limitOf(v *node.Index, a *attribution) *model.PacketRule {
	if a.Rule != nil && a.Rule.Limits() {
		return a.Rule
	}
	x := path.Packet{Src: a.Drops[0].Src, Dst: a.Drops[0].Dst, Proto: a.Drops[0].Proto, Mark: anyMark, Flow: anyMark}
	return model.Find(v.Limiting(), func(r *model.PacketRule) bool {
		return path.ChainOf(r) == a.ChainKey && (a.Rule == nil || r.Number < a.Rule.Number) && x.Fits(r) > path.No
	})
}

// rangesOf are the node's ranges of pods that have these, and else the pods' own addresses.
func rangesOf(v *node.Index, pods []netip.Addr) (out []netip.Prefix) {
	for _, a := range pods {
		of := model.Find(v.Ranges.Own, func(p netip.Prefix) bool { return p.Contains(a) })
		out = model.With(out, cmp.Or(of, model.Host(a)))
	}
	return out
}

// concernedBy are the pods that the rule is about: the receiver, or the sender where
// the rule or a jump to it names the sender; both where neither is named.
func concernedBy(v *node.Index, c *candidateRule, d *model.Drop) []netip.Addr {
	switch {
	case c.Pod != nil:
		return []netip.Addr{v.InPod(d)}
	case len(v.Owners[d.Src]) == 0 || len(v.Owners[d.Dst]) == 0:
		return []netip.Addr{v.Pod(d)}
	}
	src, dst := c.names()
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
