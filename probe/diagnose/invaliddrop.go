package diagnose

import (
	"net/netip"
	"slices"
	"strings"

	"github.com/lasthop/lasthop/probe/model"
)

// InvalidDrop is the code of this finding.
const InvalidDrop model.Code = "InvalidDrop"

var invalidDrop = kind{
	code:     InvalidDrop,
	severity: model.Warning,
	find:     findInvalidDrop,
	ends:     []model.HopKind{model.HopPolicy},
}

// Why connection tracking calls packets invalid, as the page names it: they are replies of
// requests that were not tracked; follow a reply that was not; or are outside the window that
// it expects. Packets that came after their connection was closed are no fault.
const (
	flowClosed       = ""
	requestUntracked = "requestUntracked"
	replyUntracked   = "replyUntracked"
	outOfWindow      = "outOfWindow"
)

func findInvalidDrop(v *view) []finding {
	if !v.Has(model.SourceConntrack) || !slices.ContainsFunc(v.PacketRules, func(r model.PacketRule) bool {
		return dropsInvalid(&r) && r.Counter.Delta >= minDrops
	}) {
		return nil
	}
	drops, _, _ := v.netfilterDrops()
	var out []finding
	for _, a := range attribute(drops) {
		if a.Pod != nil || !dropsInvalid(a.Rule) {
			continue
		}
		bad := &attribution{candidateRule: a.candidateRule}
		reasons := map[string]*model.Drop{}
		for _, p := range a.parts {
			if why := v.invalidReason(p.Drop); why != flowClosed {
				bad.parts = append(bad.parts, p)
				if reasons[why] == nil || reasons[why].Packets < p.Packets {
					reasons[why] = p.Drop
				}
			}
		}
		if len(bad.parts) > 0 {
			out = append(out, v.invalid(bad, reasons))
		}
	}
	return out
}

// invalidReason says why connection tracking calls the packets of a drop invalid.
func (v *view) invalidReason(d *model.Drop) string {
	if d.Packets < minDrops || !d.Last.IsZero() && d.Last.Sub(d.First) < 2*settled {
		return flowClosed
	}
	samples := v.drops.Samples.All(d)
	begun, replied := v.began(d.Dst, d.Src)
	if slices.ContainsFunc(samples, isReply) && !begun {
		return requestUntracked
	}
	if slices.ContainsFunc(samples, closes) && !slices.ContainsFunc(samples, goesOn) {
		return flowClosed
	}
	onward, answered := v.began(d.Src, d.Dst)
	if onward && !answered {
		return replyUntracked
	}
	if (replied || answered) && (v.mostOf(d) || v.mostlyHalfOpen(d)) {
		return outOfWindow
	}
	return flowClosed
}

// mostlyHalfOpen reports whether most connections of the window between the ends of
// a drop began, and were never acknowledged: what is dropped is what they need.
func (v *view) mostlyHalfOpen(d *model.Drop) bool {
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
func (v *view) began(from, to netip.Addr) (any, replied bool) {
	for f := range model.Each(v.Flows) {
		if (f.Original.Src == from || f.Reply.Dst == from) && (f.Reply.Src == to || f.Original.Dst == to) {
			any, replied = true, replied || f.Replied
		}
	}
	return any, replied
}

// mostOf reports whether the rule dropped at least half of what a pod sends, or of
// what arrives for it, as counted where it enters the node.
func (v *view) mostOf(d *model.Drop) bool {
	pod, side := v.sender(d), model.AsSource
	if pod != d.Src {
		side = model.AsDestination
	}
	var dropped, total uint64
	for x := range model.Each(v.Traffic.Drops) {
		if x.Netfilter() && (side == model.AsSource && x.Src == pod || side == model.AsDestination && x.Dst == pod && len(v.pods[x.Src]) == 0) {
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

// tcpFlags are a segment's FIN, SYN, RST and ACK.
func tcpFlags(s *model.Sample) (flags byte, ok bool) {
	const at = 13
	t := s.Transport()
	if s.Proto() != tcp || len(t) <= at {
		return 0, false
	}
	return t[at] & 0x17, true
}

// isReply reports whether the packet is the first reply of a flow: a SYN-ACK, or an
// echo reply.
func isReply(s *model.Sample) bool {
	if flags, ok := tcpFlags(s); ok {
		return flags == 0x12
	}
	t := s.Transport()
	return len(t) > 0 && (s.Proto() == icmp4 && t[0] == 0 || s.Proto() == icmp6 && t[0] == 129)
}

// goesOn reports whether the segment is one within a connection, closes whether it ends one.
func goesOn(s *model.Sample) bool {
	flags, ok := tcpFlags(s)
	return ok && flags&0x07 == 0
}

func closes(s *model.Sample) bool {
	flags, _ := tcpFlags(s)
	return flags&0x05 != 0
}

// invalid is the finding on what one rule dropped. Of each reason there is the drop
// with the most packets.
func (v *view) invalid(a *attribution, reasons map[string]*model.Drop) finding {
	a.sum(func(d *model.Drop) []netip.Addr { return []netip.Addr{v.sender(d)} })
	most := mostDropped(a.drops)[0]
	// These rules exclude the other direction from connection tracking.
	excluded := chosen(v.PacketRules, func(r *model.PacketRule) bool {
		return untracks(r) && slices.ContainsFunc(a.drops, func(d *model.Drop) bool {
			return r.Src.Matches(d.Dst) && r.Dst.Matches(d.Src) && (r.Proto == 0 || (r.Proto == d.Proto) != r.ProtoNot)
		})
	})
	f := finding{lost: &a.lost, claims: filteredDrops(a.drops), facts: facts{
		"rule": a.candidateRule, "seen": a.shown(), "excluded": excluded, "most": most,
	}}
	for why, d := range reasons {
		f.facts[why] = d
	}
	f.LastHopAlive = v.cameBy(most)
	return f
}

// untracks reports whether a rule excluded packets from connection tracking in the window.
func untracks(r *model.PacketRule) bool {
	return isNotrack(r) && r.Counter.Delta > 0
}

func isNotrack(r *model.PacketRule) bool {
	return r.Target == "NOTRACK" || r.Target == "CT" && strings.Contains(r.Text, "--notrack")
}
