package diagnose

import (
	"maps"
	"net/netip"
	"slices"

	"github.com/lasthop/lasthop/probe/model"
)

// StaleARPReply is the code of this finding.
const StaleARPReply model.Code = "StaleARPReply"

var staleARPReply = kind{
	code:     StaleARPReply,
	severity: model.Critical,
	find:     findStaleARPReply,
	ends:     []model.HopKind{model.HopBridge},
}

func findStaleARPReply(v *view) []finding {
	var out []finding
	for _, s := range v.staleRules(model.TargetARPReply) {
		out = append(out, misanswered(v, &s))
	}
	return out
}

func misanswered(v *view, s *stale) finding {
	wrong := belief{s.addr, s.rule.MAC}
	f := finding{facts: s.facts(v), claims: misled(s.addr, s.rule.MAC), effects: []any{wrong}}
	f.Pods = []netip.Addr{s.addr}
	f.Packets, f.LastHopAlive = sentTo(v, s.addr, s.rule.MAC)
	var replies, asker uint64
	for a := range model.Each(v.Traffic.ARP) {
		if !a.Reply || a.Addr != s.addr || a.MAC != s.rule.MAC || a.Direction != model.Egress {
			continue
		}
		replies += a.Packets
		if a.Packets > asker {
			// The answer leaves by the port that the question came in by.
			asker = a.Packets
			f.LastHopAlive = v.place(a.Link, model.Ingress)
		}
	}
	f.facts["replies"], f.facts["sent"] = replies, f.Packets
	if len(v.pods[s.addr]) == 0 && len(v.behind(s.addr)) > 0 {
		f.Pods = v.believing(wrong)
		f.cutOff = v.silentBy(s.rule.MAC, f.Pods)
		if len(s.owners) == 0 {
			x := v.sumPeers(v.inVain(setOf(f.Pods)))
			f.Packets = max(f.Packets, x.packets)
			f.facts["lost"], f.facts["remotes"] = x.packets, sorted(x.remotes)
		}
	} else if p := v.arped(s.addr); p != nil && len(s.owners) == 0 {
		// The node's own request is none that the rule answers.
		f.facts["probe"] = []model.Evidence{v.arpEvidence(p)}
	}
	return f
}

// silentBy are the peers that do not reply to these pods alone, whose packets leave the node in
// frames for a wrong MAC, also with the node's address.
func (v *view) silentBy(wrong model.MAC, pods []netip.Addr) []netip.Addr {
	only := map[netip.Addr]bool{}
	for p := range model.Each(v.peers) {
		if !v.unanswered(p) {
			continue
		}
		behind := sorted(v.senders(p))
		others := slices.ContainsFunc(behind, func(a netip.Addr) bool { return !slices.Contains(pods, a) })
		mine := len(behind) > 0 && !others && v.leftWith(p, wrong)
		if was, seen := only[p.Remote]; mine || seen {
			only[p.Remote] = mine && (was || !seen)
		}
	}
	maps.DeleteFunc(only, func(_ netip.Addr, mine bool) bool { return !mine })
	return sorted(only)
}

// believing are the pods that have the entry for their gateway or, if none has, those
// that would ask for it.
func (v *view) believing(e belief) []netip.Addr {
	var have, would []netip.Addr
	for _, p := range v.behind(e.addr) {
		own := sameFamily(podAddrs(p), e.addr)
		would = append(would, own...)
		if slices.ContainsFunc(p.Gateways, func(g model.Neighbor) bool { return g.Addr == e.addr && g.MAC == e.mac }) {
			have = append(have, own...)
		}
	}
	if len(have) > 0 {
		return have
	}
	return would
}

// sentTo is how many packets for the address came in from pods with the MAC,
// and the link that most of them came by.
func sentTo(v *view, addr netip.Addr, mac model.MAC) (uint64, model.Place) {
	var sum, most uint64
	at := model.Place{Direction: model.Ingress}
	for _, p := range v.macPairs[addr] {
		if p.Dst != mac || p.Side != model.AsDestination || p.Direction != model.Ingress {
			continue
		}
		sum += p.Packets
		if p.Packets > most {
			most, at = p.Packets, v.place(p.Link, model.Ingress)
		}
	}
	return sum, at
}
