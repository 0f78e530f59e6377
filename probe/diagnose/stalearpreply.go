package diagnose

import (
	"net/netip"
	"slices"

	"github.com/lasthop/lasthop/probe/model"
)

func findStaleARPReply(v *view) {
	for _, s := range v.staleRules(model.TargetARPReply) {
		v.report(misanswered(v.index, &s))
	}
}

func misanswered(v *index, s *stale) finding {
	wrong := binding{s.addr, s.rule.MAC}
	f := finding{facts: s.facts(v), claims: sentToWrongMAC(wrong), effects: []any{wrong}}
	f.Pods, f.LastHopAlive = []netip.Addr{s.addr}, model.Place{Direction: model.Ingress}
	var most, replies, answered uint64
	for _, m := range v.macPairs[s.addr] {
		if m.Dst == s.rule.MAC && m.Side == model.AsDestination && m.Direction == model.Ingress {
			if f.Packets += m.Packets; m.Packets > most {
				most, f.LastHopAlive = m.Packets, v.place(m.Link, model.Ingress)
			}
		}
	}
	for a := range model.Each(v.Traffic.ARP) {
		if a.Reply && a.Addr == s.addr && a.MAC == s.rule.MAC && a.Direction == model.Egress {
			if replies += a.Packets; a.Packets > answered {
				// The answer leaves by the port that the question came in by.
				answered, f.LastHopAlive = a.Packets, v.place(a.Link, model.Ingress)
			}
		}
	}
	f.facts["replies"], f.facts["sent"] = replies, f.Packets
	if len(v.Owners[s.addr]) == 0 && len(v.behind(s.addr)) > 0 {
		f.Pods = v.bindingsTo(wrong)
		f.cutOff = v.silentBy(s.rule.MAC, f.Pods)
		if len(s.owners) == 0 {
			x := v.sumPeers(v.inVain(setOf(f.Pods)))
			f.Packets = max(f.Packets, x.packets)
			f.facts["lost"], f.facts["remotes"] = x.packets, sorted(x.peers)
		}
	} else if p := v.arped(s.addr); p != nil && len(s.owners) == 0 {
		// The node's own request is none that the rule answers.
		f.facts["probe"] = []model.Evidence{v.arpEvidence(p)}
	}
	return f
}

// silentBy are the peers that do not reply to these pods alone, whose packets leave the node in
// frames for a wrong MAC, also with the node's address.
func (v *index) silentBy(wrong model.MAC, pods []netip.Addr) []netip.Addr {
	these, others := map[netip.Addr]bool{}, map[netip.Addr]bool{}
	for p := range model.Each(v.peers) {
		if !v.unanswered(p) {
			continue
		}
		set, behind := others, sorted(v.senders(p))
		other := func(a netip.Addr) bool { return !slices.Contains(pods, a) }
		if len(behind) > 0 && !slices.ContainsFunc(behind, other) && v.leftWith(p, wrong) {
			set = these
		}
		set[p.Remote] = true
	}
	return slices.DeleteFunc(sorted(these), func(a netip.Addr) bool { return others[a] })
}

// believing are the pods that have the entry for their gateway.
func (v *index) bindingsTo(e binding) []netip.Addr {
	var out []netip.Addr
	for _, p := range v.behind(e.addr) {
		if slices.ContainsFunc(p.Gateways, func(g model.Neighbor) bool { return g.Addr == e.addr && g.MAC == e.mac }) {
			out = append(out, sameFamily(podAddrs(p), e.addr)...)
		}
	}
	return out
}
