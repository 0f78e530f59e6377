package diagnose

import (
	"net/netip"
	"slices"

	"github.com/lasthop/lasthop/probe/model"
	"github.com/lasthop/lasthop/probe/path"
)

// Why connection tracking calls packets invalid, as the page names it: they are replies of
// requests that were not tracked; follow a reply that was not; or are outside the window that
// it expects. Packets that came after their connection was closed are no fault.
const (
	flowClosed       = ""
	requestUntracked = "requestUntracked"
	replyUntracked   = "replyUntracked"
	outOfWindow      = "outOfWindow"
)

func findInvalidDrop(v *view) {
	if !v.Has(model.SourceConntrack) || !slices.ContainsFunc(v.PacketRules, func(r model.PacketRule) bool {
		return dropsInvalid(&r) && !r.Counter.Unused(r.Native)
	}) {
		return
	}
	drops, _, _, _ := v.netfilterDrops()
	// What one rule excludes from connection tracking, others drop at several places.
	var found groups[*model.PacketRule, invalidDrops]
	for _, a := range attribute(drops) {
		if a.Pod != nil || !dropsInvalid(a.Rule) {
			continue
		}
		of := map[*model.PacketRule]*attribution{}
		for _, p := range a.parts {
			why, excluded := v.invalidReason(p.Drop)
			if why == flowClosed {
				continue
			}
			k := a.Rule
			if len(excluded) > 0 {
				k = excluded[0]
			}
			part := model.GetOrInsert(of, k)
			part.candidateRule, part.parts = a.candidateRule, append(part.parts, p)
			group := found.of(k)
			if group.reasons == nil {
				group.reasons = map[string]*model.Drop{}
			}
			group.excluded = model.With(group.excluded, excluded...)
			if m := group.reasons[why]; m == nil || m.Packets < p.Drop.Packets {
				group.reasons[why] = p.Drop
			}
		}
		for k, part := range of {
			found.of(k).rules = append(found.of(k).rules, part)
		}
	}
	for _, group := range found.all() {
		v.report(v.invalid(group))
	}
}

// invalidDrops are what rules dropped as invalid for one reason: these rules exclude the other direction from
// connection tracking, or one rule dropped all.
type invalidDrops struct {
	rules    []*attribution
	excluded []*model.PacketRule
	// reasons are the drops with the most packets of each.
	reasons map[string]*model.Drop
}

// invalidReason says why connection tracking calls the packets of a drop invalid, and which rules exclude the other
// direction.
func (v *index) invalidReason(d *model.Drop) (why string, excluded []*model.PacketRule) {
	if d.Packets < minDrops || !d.Last.IsZero() && !model.Lasted(d.First, d.Last) {
		return flowClosed, nil
	}
	x := path.Packet{Src: d.Dst, Dst: d.Src, Proto: d.Proto, Sampled: true}
	x.DstPort, x.SrcPort, _ = v.drops.Samples.Of(d).Ports()
	excluded = v.untrackedBy(x)
	// What is in another zone than the other direction is invalid itself.
	x.Src, x.Dst, x.SrcPort, x.DstPort = x.Dst, x.Src, x.DstPort, x.SrcPort
	for _, r := range v.untrackedBy(x) {
		if !r.IsNotrack() {
			excluded = model.With(excluded, r)
		}
	}
	samples := v.drops.Samples.All(d)
	begun, replied := v.began(d.Dst, d.Src)
	onward, answered := v.began(d.Src, d.Dst)
	switch {
	case slices.ContainsFunc(samples, (*model.Sample).IsReply) && (!begun || len(excluded) > 0):
		return requestUntracked, excluded
	case slices.ContainsFunc(samples, (*model.Sample).Closes) && !slices.ContainsFunc(samples, (*model.Sample).GoesOn):
		return flowClosed, nil
	case onward && !answered:
		return replyUntracked, excluded
	case (replied || answered) && (v.mostOf(d) || v.mostlyHalfOpen(d)):
		return outOfWindow, excluded
	}
	return flowClosed, nil
}

// mostlyHalfOpen reports whether most connections of the window between the ends of
// a drop began, and were never acknowledged: what is dropped is what they need.
func (v *index) mostlyHalfOpen(d *model.Drop) bool {
	halfOpen, beyond := 0, 0
	for f := range model.Each(v.Flows) {
		ends := f.Reply.Src == d.Src && f.Reply.Dst == d.Dst || f.Reply.Src == d.Dst && f.Reply.Dst == d.Src
		switch {
		case f.Proto != tcp || f.Start.IsZero() || !ends:
		case f.State == "SYN_SENT" || f.State == "SYN_RECV":
			halfOpen++
		default:
			beyond++
		}
	}
	return halfOpen >= minAsks && halfOpen > beyond
}

// began reports whether connection tracking has flows that the one address began
// towards the other, and whether any was replied to. Either may be translated.
func (v *index) began(from, to netip.Addr) (any, replied bool) {
	for f := range model.Each(v.Flows) {
		if (f.Original.Src == from || f.Reply.Dst == from) && (f.Reply.Src == to || f.Original.Dst == to) {
			any, replied = true, replied || f.Replied
		}
	}
	return any, replied
}

// mostOf reports whether the rule dropped at least half of what a pod sends, or of
// what arrives for it, as counted where it enters the node.
func (v *index) mostOf(d *model.Drop) bool {
	pod := v.sender(d)
	side := model.Either(pod == d.Src, model.AsSource, model.AsDestination)
	var dropped, total uint64
	for x := range model.Each(v.Traffic.Drops) {
		if x.Is(model.Netfilter) && (side == model.AsSource && x.Src == pod || side == model.AsDestination && x.Dst == pod &&
			len(v.Owners[x.Src]) == 0) {
			dropped += x.Packets
		}
	}
	for _, h := range v.hops[pod] {
		if h.Side == side && h.Direction == model.Ingress {
			total = max(total, h.Packets)
		}
	}
	return total > 0 && 2*dropped >= total
}

func (v *index) invalid(group *invalidDrops) finding {
	var all lost
	var seen []model.Evidence
	for _, a := range group.rules {
		a.sum(func(d *model.Drop) []netip.Addr { return []netip.Addr{v.sender(d)} })
		all.merge(&a.lost)
		seen = append(seen, a.shown()...)
	}
	most := mostDropped(all.drops)[0]
	f := finding{lost: &all, claims: filteredDrops(all.drops), facts: facts{
		"rule": group.rules[0].candidateRule, "seen": seen, "excluded": group.excluded, "most": most,
		"several": len(group.rules) > 1,
	}}
	if len(group.excluded) > 0 {
		// What is not tracked is not translated either.
		f.silences = func(asker netip.Addr, asked netip.Prefix) bool {
			return slices.ContainsFunc(group.excluded, func(r *model.PacketRule) bool {
				return r.Concerns(asker, asked.Addr()) || r.Concerns(asked.Addr(), asker)
			})
		}
		these := f.claims
		f.claims = func(d *model.Drop) bool {
			return these(d) || d.Is(model.Netfilter) && f.silences(d.Src, model.Host(d.Dst))
		}
	}
	for why, d := range group.reasons {
		f.facts[why] = d
	}
	f.LastHopAlive = v.cameBy(most)
	return f
}

// untrackedBy are the rules that exclude a packet from connection tracking, or have another zone for it.
func (v *index) untrackedBy(x path.Packet) []*model.PacketRule {
	return model.Filter(v.untracking(), func(r *model.PacketRule) bool {
		return (r.Family == "inet" || (r.Family == "ip6") == x.Dst.Is6()) && x.Fits(r) >= path.Maybe
	})
}

// oneSided are those that do so with a flow's packets, in either direction.
func (v *index) oneSided(f *model.Flow) (rules []*model.PacketRule) {
	for _, t := range []model.Tuple{f.Original, f.Reply} {
		x := path.Packet{Src: t.Src, Dst: t.Dst, Proto: f.Proto, SrcPort: t.SrcPort, DstPort: t.DstPort}
		rules = model.With(rules, v.untrackedBy(x)...)
	}
	return rules
}
