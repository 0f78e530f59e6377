package diagnose

import (
	"fmt"
	"maps"
	"net/netip"
	"slices"

	"github.com/lasthop/lasthop/probe/model"
	"github.com/lasthop/lasthop/probe/words"
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
	for _, s := range v.staleRules(model.TargetARPReply, func(r *model.FrameRule) model.AddrMatch { return r.ARPDst }) {
		out = append(out, misanswered(v, &s))
	}
	return out
}

func misanswered(v *view, s *stale) finding {
	f := model.Finding{
		Confidence: model.Proven,
		Pods:       []netip.Addr{s.addr},
		Title:      "stale ARP answer for " + s.addr.String(),
		Evidence:   []model.Evidence{ruleEvidence(s.rule), v.ownerEvidence(s)},
		Fix:        []string{words.UndoFrameRule(s.rule)},
	}
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
	if replies > 0 {
		observe(&f, model.SourceTC,
			"%s egress: %s that %s is at %s", f.LastHopAlive.Link, words.Plural(replies, "ARP reply", "ARP replies"), s.addr, s.rule.MAC)
	}
	if f.Packets > 0 {
		observe(&f, model.SourceTC, "%s for %s came from pods with the destination MAC %s", words.Count(f.Packets, "packet"), s.addr, s.rule.MAC)
	}
	if replies == 0 && f.Packets == 0 && s.rule.Counter.Delta == 0 {
		f.Unseen = append(f.Unseen, "an ARP request for the address: nobody asked in the window")
	}
	gateway := len(v.pods[s.addr]) == 0 && len(v.behind(s.addr)) > 0
	switch {
	case len(s.owners) == 0 && gateway:
		f.Confidence = model.Likely
		f.Unseen = append(f.Unseen, "which MAC the gateway "+s.addr.String()+" has")
		f.Alternatives = append(f.Alternatives, "the MAC is the gateway's, and it or all that is behind it is down")
		pods := map[netip.Addr]bool{}
		for _, a := range v.believing(belief{s.addr, s.rule.MAC}) {
			pods[a] = true
		}
		x := v.sumPeers(v.inVain(pods))
		f.Packets = max(f.Packets, x.packets)
		observeSome(&f, x.packets, model.SourceTC, "%s of pods that believe it went to %s; no reply",
			words.Count(x.packets, "packet"), words.Addrs(sorted(x.remotes)))
	case len(s.owners) == 0:
		f.Confidence = model.Likely
		f.Unseen = append(f.Unseen, "who holds "+s.addr.String()+" now: nobody on this node")
		f.Alternatives = append(f.Alternatives, "the pod was deleted and its peers still ask for it")
		if p := v.arped(s.addr); p != nil {
			// The node's own request is none that the rule answers.
			f.Evidence = append(f.Evidence, v.arpEvidence(p))
		}
	}
	f.Why = fmt.Sprintf("An ebtables rule answers ARP for %s with %s%s; %s has it. "+
		"Who asks sends there, and the packets never reach the pod.",
		s.addr, s.rule.MAC, v.ownersInstead(s), v.owner(s.rule.MAC))
	wrong := belief{s.addr, s.rule.MAC}
	found := finding{Finding: f, claims: misled(s.addr, s.rule.MAC), effects: []any{wrong}}
	if gateway {
		found.Pods = v.believing(wrong)
		found.cutOff = v.silentBy(s.rule.MAC, found.Pods)
		found.Why = fmt.Sprintf("An ebtables rule answers ARP for the gateway %s with %s%s; %s has it. "+
			"Pods that ask send what leaves their subnet there, and it never reaches the gateway.",
			s.addr, s.rule.MAC, v.ownersInstead(s), v.owner(s.rule.MAC))
	}
	return found
}

// silentBy are the peers that do not reply to these pods alone, whose packets leave the node in
// frames for a wrong MAC, also with the node's address.
func (v *view) silentBy(wrong model.MAC, pods []netip.Addr) []netip.Addr {
	only := map[netip.Addr]bool{}
	for p := range model.Each(v.peers) {
		if !v.unanswered(p) {
			continue
		}
		behind := v.podsBehind([]*model.Peer{p})
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
