package nat

import (
	"cmp"
	"net/netip"
	"slices"

	"github.com/lasthop/lasthop/probe/fault"
	"github.com/lasthop/lasthop/probe/model"
	"github.com/lasthop/lasthop/probe/node"
	"github.com/lasthop/lasthop/probe/path"
	"github.com/lasthop/lasthop/probe/words"
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

// StaleFlow reports flows that connection tracking translates by rules that are gone.
var StaleFlow = fault.Kind{Code: "StaleFlow", Severity: model.Warning, Find: staleFlow,
	Needs: fault.Sources{model.SourcePods, model.SourceConntrack, model.SourceNAT, model.SourceLinks},
	Ends:  fault.Hops{model.HopConntrack, model.HopBeyond}, Else: fault.Else{"!untranslated"}}

func staleFlow(v *fault.Input) {
	var stale node.Groups[outdatedBy, staleFlows]
	refused := refusedOfOlder(v)
	for f := range model.Each(v.Flows) {
		d := refused[f.Original]
		if d == nil && !isUnanswered(v.Index, f) || len(v.Owners[f.Original.Src]) == 0 ||
			v.SilencedBy(f.Original.Src, model.Host(f.Reply.Src), f) != "" {
			continue
		}
		k, is := outdated(v.Index, f)
		if !is {
			continue
		}
		g := stale.Of(k)
		g.flows = append(g.flows, f)
		if d != nil && !slices.Contains(g.drops, d) {
			g.drops = append(g.drops, d)
		}
	}
	for k, g := range stale.All() {
		v.Report(g.finding(v.Index, k))
	}
}

// refusedOfOlder are the drops of TCP connections that have the entry of an older one, which nobody answered:
// the client took its port again. By tuple, of all such entries between the ends of a drop for its port.
func refusedOfOlder(v *fault.Input) map[model.Tuple]*model.Drop {
	sampled := map[model.Tuple]*model.Drop{}
	for d := range model.Each(v.Traffic.Drops) {
		from, to, ok := v.Classifier.Samples.Of(d).Ports()
		if ok && d.Is(model.Netfilter) && d.Proto == model.TCP && !v.Explained(d) && v.Classifier.Lost(d) {
			sampled[model.Tuple{Src: d.Src, Dst: d.Dst, SrcPort: from, DstPort: to}] = d
		}
	}
	if len(sampled) == 0 {
		return nil
	}
	older := func(f *model.Flow) bool {
		return f.Proto == model.TCP && !f.Replied && f.Start.IsZero() && f.Reply.Src == f.Original.Dst
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
	if packets < node.MinDrops {
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
func isUnanswered(v *node.Index, f *model.Flow) bool {
	if !f.Start.IsZero() {
		return false
	}
	passed, _ := v.Passed(f)
	switch {
	case f.Proto == model.UDP && !passed || f.Proto == model.TCP && !f.Established() || f.Proto != model.UDP && f.Proto != model.TCP:
		return false
	case !f.Replied:
		return true
	}
	if st := v.FlowStates[node.Pair{Local: f.Reply.Dst, Remote: f.Reply.Src}]; st != nil {
		p := st.Peer
		return p.Out.Packets >= node.MinDrops && p.In.Packets == 0 && node.Lasted(p) && v.Traffic.Lost.Of(p.Local).Peers == 0 &&
			!v.FoldedReply(p)
	}
	return v.WithoutReplies()[f.Original.Src] && v.Traffic.Lost.Of(f.Original.Src).Hops == 0
}

// outdated is how a flow is translated, where the rules would surely translate its packets otherwise.
func outdated(v *node.Index, f *model.Flow) (k outdatedBy, is bool) {
	rules, surely := v.Tables().Destination(path.Packet{Src: f.Original.Src, Dst: f.Original.Dst, Proto: f.Proto,
		SrcPort: f.Original.SrcPort, DstPort: f.Original.DstPort})
	if surely {
		leads := slices.ContainsFunc(rules,
			func(r *model.PacketRule) bool { return !r.To.Addr().IsValid() || r.To.Addr() == f.Reply.Src })
		return outdatedBy{f.Reply.Src, rules[0], false}, !leads
	}
	nat := snatRule(v, f)
	switch has := f.Reply.Dst; {
	case nat.CutOff || len(nat.Unsure) > 0 || len(rules) > 0:
	case has == f.Original.Src:
		return outdatedBy{has, nat.Rule, true}, nat.Translated && v.DatagramAsks(f) && node.Outside(v, f.Reply.Src)
	case GivenAway(v, f):
		return outdatedBy{has, nat.Rule, true}, !nat.Translated || !gives(v, nat.Rule, f)
	case masqueraded(v, f):
		// The network may know that address no more; where replies come to it, the destination is down.
		replied := func(p model.Peer) bool { return p.Local == has && v.Answered(&p) }
		return outdatedBy{has, nat.Rule, true}, nat.Translated && !gives(v, nat.Rule, f) && !slices.ContainsFunc(v.Peers, replied)
	}
	return outdatedBy{}, false
}

// gives reports whether a rule may give a flow the source address that it has. Of a link's, MASQUERADE takes the first in
// the next hop's network, else the first (inet_select_addr).
func gives(v *node.Index, r *model.PacketRule, f *model.Flow) bool {
	to, has, out := r.To.Addr(), f.Reply.Dst, v.LinkByName[v.OutLink(f.Original.Src, f.Reply.Src)]
	switch {
	case r.Target != "MASQUERADE":
		return !to.IsValid() || to == has
	case has.Is6() || out == nil || !out.Has(has):
		return v.Own[has] != nil
	}
	hop := f.Reply.Src
	if d := v.Routing().Lookup(v.SentBy(f.Original.Src, hop)); len(d.Hops) > 0 && d.Hops[0].Gateway.IsValid() {
		hop = d.Hops[0].Gateway
	}
	own := func(a netip.Prefix) bool { return a.Addr().Is4() }
	near := func(a netip.Prefix) bool { return a.Contains(hop) }
	return cmp.Or(model.Find(out.Addresses, near), model.Find(out.Addresses, own)).Addr() == has
}

func (g *staleFlows) finding(v *node.Index, k outdatedBy) fault.Fault {
	first, to := g.flows[0], node.Destinations(g.flows)
	own := k.source && k.has == first.Original.Src
	f := fault.Fault{Lost: &node.Lost{Drops: g.drops}, Facts: words.Facts{
		"flows": g.flows, "first": first, "asked": to, "has": k.has, "now": k.now,
		"own": own, "source": k.source, "foreign": k.source && v.Own[k.has] == nil, "untranslated": !k.source && slices.Contains(to, k.has),
	}}
	f.Pods, f.Peers = node.Clients(g.flows), model.Hosts(model.Unique(slices.Concat(to, node.Servers(g.flows))))
	f.LastHopAlive = v.Place(v.Owners[first.Original.Src][0].Link, model.Ingress)
	return f
}
