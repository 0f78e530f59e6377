package policy

import (
	"net/netip"
	"slices"

	"github.com/lasthop/lasthop/probe/fault"
	"github.com/lasthop/lasthop/probe/model"
	"github.com/lasthop/lasthop/probe/node"
	"github.com/lasthop/lasthop/probe/path"
	"github.com/lasthop/lasthop/probe/words"
)

// Why connection tracking calls packets invalid, as the page names it: they are replies of
// requests that were not tracked; follow a reply that was not; or are outside the window that
// it expects. Packets that came after their connection was closed are no fault.
const (
	flowClosed       = ""
	requestUntracked = "requestUntracked"
	replyUntracked   = "replyUntracked"
	outOfWindow      = "outOfWindow"
	forgotten        = "forgotten"
)

// InvalidDrop reports rules that drop packets which connection tracking calls invalid.
var InvalidDrop = fault.Kind{Code: "InvalidDrop", Severity: model.Warning, Find: invalidDrop,
	Ends: fault.Hops{model.HopPolicy}, Objects: ruleObjects,
	Else: fault.Else{"!excluded requestUntracked", "!excluded replyUntracked", "!excluded outOfWindow", "forgotten"}}

func invalidDrop(v *fault.Input) {
	if !v.Has(model.SourceConntrack) || !slices.ContainsFunc(v.PacketRules, func(r model.PacketRule) bool {
		return dropsInvalid(&r) && !r.Counter.Unused(r.Native)
	}) {
		return
	}
	drops, _, _, _ := netfilterDrops(v)
	// What one rule excludes from connection tracking, others drop at several places.
	var found node.Groups[*model.PacketRule, invalidDrops]
	var closed []*attribution
	for _, a := range attribute(drops) {
		if a.Pod != nil || !dropsInvalid(a.Rule) {
			continue
		}
		of := map[*model.PacketRule]*attribution{}
		for _, p := range a.parts {
			why, excluded := invalidReason(v.Index, p.Drop)
			if why == flowClosed {
				closed = append(closed, &attribution{candidateRule: a.candidateRule, parts: []part{p}})
				continue
			}
			k := a.Rule
			if len(excluded) > 0 {
				k = excluded[0]
			}
			part := model.GetOrInsert(of, k)
			part.candidateRule, part.parts = a.candidateRule, append(part.parts, p)
			group := found.Of(k)
			if group.reasons == nil {
				group.reasons = map[string]*model.Drop{}
			}
			group.excluded = model.With(group.excluded, excluded...)
			if m := group.reasons[why]; m == nil || m.Packets < p.Drop.Packets {
				group.reasons[why] = p.Drop
			}
		}
		for k, part := range of {
			found.Of(k).rules = append(found.Of(k).rules, part)
		}
	}
	for _, group := range found.All() {
		group.addExcluded(closed)
		v.Report(invalid(v.Index, group))
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

// concerns reports whether rules exclude the packets between two addresses from connection tracking, in one direction.
func (g *invalidDrops) concerns(a, b netip.Addr) bool {
	return slices.ContainsFunc(g.excluded, func(r *model.PacketRule) bool { return r.Concerns(a, b) || r.Concerns(b, a) })
}

// addExcluded adds drops that alone would be late packets of closed connections, where the group's rules exclude these.
func (g *invalidDrops) addExcluded(closed []*attribution) {
	for _, a := range closed {
		if d := a.parts[0].Drop; !g.concerns(d.Src, d.Dst) {
			continue
		}
		if at := slices.IndexFunc(g.rules, func(b *attribution) bool { return b.Rule == a.Rule }); at >= 0 {
			g.rules[at].parts = append(g.rules[at].parts, a.parts...)
		} else {
			g.rules = append(g.rules, a)
		}
	}
}

// invalidReason says why connection tracking calls the packets of a drop invalid, and which rules exclude the other
// direction.
func invalidReason(v *node.Index, d *model.Drop) (why string, excluded []*model.PacketRule) {
	if d.Packets < node.MinDrops || !d.Last.IsZero() && !model.Lasted(d.First, d.Last) {
		return flowClosed, nil
	}
	x := path.Packet{Src: d.Dst, Dst: d.Src, Proto: d.Proto, Sampled: true}
	x.DstPort, x.SrcPort, _ = v.Classifier.Samples.Of(d).Ports()
	excluded = v.UntrackedBy(x)
	// What is in another zone than the other direction is invalid itself.
	x.Src, x.Dst, x.SrcPort, x.DstPort = x.Dst, x.Src, x.DstPort, x.SrcPort
	for _, r := range v.UntrackedBy(x) {
		if !r.IsNotrack() {
			excluded = model.With(excluded, r)
		}
	}
	samples := v.Classifier.Samples.All(d)
	begun, replied := began(v, d.Dst, d.Src)
	onward, answered := began(v, d.Src, d.Dst)
	switch {
	case slices.ContainsFunc(samples, (*model.Sample).IsReply) && (!begun || len(excluded) > 0):
		return requestUntracked, excluded
	case slices.ContainsFunc(samples, (*model.Sample).Closes) && !slices.ContainsFunc(samples, (*model.Sample).GoesOn):
		return flowClosed, nil
	case v.Settings["net.netfilter.nf_conntrack_tcp_loose"] == "0" && slices.ContainsFunc(v.Traffic.Samples, func(s model.Sample) bool {
		return (s.Src == d.Src && s.Dst == d.Dst || s.Src == d.Dst && s.Dst == d.Src) && s.GoesOn() && !tracked(v, &s)
	}):
		return forgotten, nil
	case onward && !answered:
		return replyUntracked, excluded
	case (replied || answered) && (mostOf(v, d) || mostlyHalfOpen(v, d)):
		return outOfWindow, excluded
	}
	return flowClosed, nil
}

// tracked reports whether connection tracking has an entry of a sampled packet's connection. It makes one of packets in the
// midst of a connection, but where tcp_loose is off.
func tracked(v *node.Index, s *model.Sample) bool {
	from, to, _ := s.Ports()
	own := model.Tuple{Src: s.Src, Dst: s.Dst, SrcPort: from, DstPort: to}
	back := model.Tuple{Src: s.Dst, Dst: s.Src, SrcPort: to, DstPort: from}
	return slices.ContainsFunc(v.Flows, func(f model.Flow) bool {
		return f.Proto == model.TCP && (f.Original == own || f.Reply == own || f.Original == back || f.Reply == back)
	})
}

// mostlyHalfOpen reports whether most connections of the window between the ends of
// a drop began, and were never acknowledged: what is dropped is what they need.
func mostlyHalfOpen(v *node.Index, d *model.Drop) bool {
	halfOpen, beyond := 0, 0
	for f := range model.Each(v.Flows) {
		ends := f.Reply.Src == d.Src && f.Reply.Dst == d.Dst || f.Reply.Src == d.Dst && f.Reply.Dst == d.Src
		switch {
		case f.Proto != model.TCP || f.Start.IsZero() || !ends:
		case f.State == "SYN_SENT" || f.State == "SYN_RECV":
			halfOpen++
		default:
			beyond++
		}
	}
	return halfOpen >= node.MinAsks && halfOpen > beyond
}

// began reports whether connection tracking has flows that the one address began
// towards the other, and whether any was replied to. Either may be translated.
func began(v *node.Index, from, to netip.Addr) (any, replied bool) {
	for f := range model.Each(v.Flows) {
		if (f.Original.Src == from || f.Reply.Dst == from) && (f.Reply.Src == to || f.Original.Dst == to) {
			any, replied = true, replied || f.Replied
		}
	}
	return any, replied
}

// mostOf reports whether the rule dropped at least half of what a pod sends, or of
// what arrives for it, as counted where it enters the node.
func mostOf(v *node.Index, d *model.Drop) bool {
	pod := v.Sender(d)
	side := model.Either(pod == d.Src, model.AsSource, model.AsDestination)
	dropped, total := v.LostPackets(func(x *model.Drop) bool {
		return x.Is(model.Netfilter) && (side == model.AsSource && x.Src == pod || side == model.AsDestination && x.Dst == pod &&
			len(v.Owners[x.Src]) == 0)
	}), uint64(0)
	for _, h := range v.HopsOf[pod] {
		if h.Side == side && h.Direction == model.Ingress {
			total = max(total, h.Packets)
		}
	}
	return total > 0 && 2*dropped >= total
}

func invalid(v *node.Index, group *invalidDrops) fault.Fault {
	var all node.Lost
	var seen []model.Evidence
	for _, a := range group.rules {
		a.sum(func(d *model.Drop) []netip.Addr { return []netip.Addr{v.Sender(d)} })
		all.Merge(&a.Lost)
		seen = append(seen, a.shown()...)
	}
	most := node.MostDropped(all.Drops)[0]
	f := fault.Fault{Lost: &all, Claims: filteredDrops(v, all.Drops), Facts: words.Facts{
		"rule": group.rules[0].candidateRule, "seen": seen, "excluded": group.excluded, "most": most,
		"several": len(group.rules) > 1,
	}}
	if len(group.excluded) > 0 {
		// What is not tracked is not translated either.
		f.Silences = func(asker netip.Addr, asked netip.Prefix) bool { return group.concerns(asker, asked.Addr()) }
		these := f.Claims
		f.Claims = func(d *model.Drop) bool {
			return these(d) || d.Is(model.Netfilter) && f.Silences(d.Src, model.Host(d.Dst))
		}
	}
	for why, d := range group.reasons {
		f.Facts[why] = d
	}
	f.LastHopAlive = cameBy(v, most)
	return f
}
