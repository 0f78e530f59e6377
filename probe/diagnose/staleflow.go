package diagnose

import (
	"net/netip"
	"slices"

	"github.com/lasthop/lasthop/probe/model"
	"github.com/lasthop/lasthop/probe/path"
)

// outdatedBy is an address that flows still have, the rule that gives another now, nil for
// none, and whether it is of their source.
type outdatedBy struct {
	has    netip.Addr
	now    *model.PacketRule
	source bool
}

// staleFlows are flows that have one address, and drops of new connections that got their entries.
type staleFlows struct {
	flows []*model.Flow
	drops []*model.Drop
}

func findStaleFlow(v *view) {
	var stale groups[outdatedBy, staleFlows]
	refused := v.refusedOfOlder()
	for f := range model.Each(v.Flows) {
		d := refused[f.Original]
		if d == nil && !v.isUnanswered(f) || len(v.Owners[f.Original.Src]) == 0 ||
			v.silencedBy(f.Original.Src, model.Host(f.Reply.Src), f) != "" {
			continue
		}
		k, is := v.outdated(f)
		if !is {
			continue
		}
		g := stale.of(k)
		g.flows = append(g.flows, f)
		if d != nil && !slices.Contains(g.drops, d) {
			g.drops = append(g.drops, d)
		}
	}
	for k, g := range stale.all() {
		v.report(g.finding(v.index, k))
	}
}

// refusedOfOlder are the drops of TCP connections that have the entry of an older one, which nobody answered:
// the client took its port again. By tuple, of all such entries between the ends of a drop for its port.
func (v *view) refusedOfOlder() map[model.Tuple]*model.Drop {
	sampled := map[model.Tuple]*model.Drop{}
	for d := range model.Each(v.Traffic.Drops) {
		from, to, ok := v.drops.Samples.Of(d).Ports()
		if ok && d.Is(model.Netfilter) && d.Proto == tcp && !v.explained(d) && v.drops.Lost(d) {
			sampled[model.Tuple{Src: d.Src, Dst: d.Dst, SrcPort: from, DstPort: to}] = d
		}
	}
	if len(sampled) == 0 {
		return nil
	}
	older := func(f *model.Flow) bool {
		return f.Proto == tcp && !f.Replied && f.Start.IsZero() && f.Reply.Src == f.Original.Dst
	}
	asked := func(t model.Tuple) model.Tuple {
		t.SrcPort = 0
		return t
	}
	drops, packets := map[model.Tuple]*model.Drop{}, uint64(0)
	for f := range model.Each(v.Flows) {
		if d := sampled[f.Original]; d != nil && older(f) {
			drops[asked(f.Original)], packets = d, packets+d.Packets
		}
	}
	if packets < minDrops {
		return nil
	}
	out := map[model.Tuple]*model.Drop{}
	for f := range model.Each(v.Flows) {
		if d := drops[asked(f.Original)]; d != nil && older(f) {
			out[f.Original] = d
		}
	}
	return out
}

// goesUnheard reports whether packets of a flow from before the window passed in it, and none came back.
func (v *index) isUnanswered(f *model.Flow) bool {
	if !f.Start.IsZero() {
		return false
	}
	passed, _ := v.passed(f)
	switch {
	case f.Proto == udp && !passed || f.Proto == tcp && !f.Established() || f.Proto != udp && f.Proto != tcp:
		return false
	case !f.Replied:
		return true
	}
	if st := v.flows[pair{f.Reply.Dst, f.Reply.Src}]; st != nil {
		p := st.peer
		return p.Out.Packets >= minDrops && p.In.Packets == 0 && lasted(p) && v.Traffic.Lost.Of(p.Local).Peers == 0 &&
			!v.foldedReply(p)
	}
	return v.withoutReplies()[f.Original.Src] && v.Traffic.Lost.Of(f.Original.Src).Hops == 0
}

// findUnhearing are the pods that send, and nothing at all comes to them.
func (v *index) findWithoutReplies() map[netip.Addr]bool {
	out := map[netip.Addr]bool{}
	for h := range model.Each(v.Traffic.Hops) {
		if pods := v.Owners[h.Addr]; len(pods) != 1 || pods[0].LinkIndex != h.IfIndex {
			continue
		}
		switch _, known := out[h.Addr]; {
		case h.Side == model.AsDestination && h.Direction == model.Egress && h.Packets > 0:
			out[h.Addr] = false
		case h.Side == model.AsSource && h.Direction == model.Ingress && h.Packets >= minDrops && !known:
			out[h.Addr] = true
		}
	}
	return out
}

// outdated is how a flow is translated, where the rules would surely translate its packets otherwise.
func (v *index) outdated(f *model.Flow) (k outdatedBy, is bool) {
	rules, surely := v.Tables().Destination(path.Packet{Src: f.Original.Src, Dst: f.Original.Dst, Proto: f.Proto,
		SrcPort: f.Original.SrcPort, DstPort: f.Original.DstPort})
	if surely {
		leads := slices.ContainsFunc(rules,
			func(r *model.PacketRule) bool { return !r.To.Addr().IsValid() || r.To.Addr() == f.Reply.Src })
		return outdatedBy{f.Reply.Src, rules[0], false}, !leads
	}
	nat := v.snatRule(f)
	switch has := f.Reply.Dst; {
	case nat.CutOff || len(nat.Unsure) > 0 || len(rules) > 0:
	case has == f.Original.Src:
		return outdatedBy{has, nat.Rule, true}, nat.Translated && v.datagramAsks(f) && outside(v, f.Reply.Src)
	case v.givenAway(f):
		return outdatedBy{has, nat.Rule, true}, !nat.Translated || nat.Rule.Target == "MASQUERADE" ||
			nat.Rule.To.Addr().IsValid() && nat.Rule.To.Addr() != has
	}
	return outdatedBy{}, false
}

func (g *staleFlows) finding(v *index, k outdatedBy) finding {
	first, to := g.flows[0], destinations(g.flows)
	own := k.source && k.has == first.Original.Src
	f := finding{lost: &lost{drops: g.drops}, facts: facts{
		"flows": g.flows, "first": first, "asked": to, "has": k.has, "now": k.now,
		"own": own, "foreign": k.source && !own, "untranslated": !k.source && slices.Contains(to, k.has),
	}}
	if k.source {
		f.Confidence = model.Likely
	}
	f.Pods, f.Peers = clients(g.flows), model.Hosts(model.Unique(slices.Concat(to, servers(g.flows))))
	f.LastHopAlive = v.place(v.Owners[first.Original.Src][0].Link, model.Ingress)
	return f
}
