package diagnose

import (
	"fmt"
	"net/netip"
	"slices"

	"github.com/lasthop/lasthop/probe/model"
	"github.com/lasthop/lasthop/probe/words"
)

// StaleMACRewrite is the code of this finding.
const StaleMACRewrite model.Code = "StaleMACRewrite"

var staleMACRewrite = kind{
	code:     StaleMACRewrite,
	severity: model.Critical,
	find:     findStaleMACRewrite,
	ends:     []model.HopKind{model.HopBridge},
}

func findStaleMACRewrite(v *view) []finding {
	rewrites := MACRewrites(v.Snapshot)
	var out []finding
	ruled := map[netip.Addr]bool{}
	for _, s := range v.staleRules(model.TargetDNAT, func(r *model.FrameRule) model.AddrMatch { return r.IPDst }) {
		ruled[s.addr] = true
		out = append(out, rewrittenByRule(v, &s, rewrites))
	}
	for r := range model.Each(rewrites) {
		if !ruled[r.Addr] && toNobody(v, r) {
			ruled[r.Addr] = true
			out = append(out, rewrittenUnseen(v, r))
		}
	}
	return out
}

// rewrittenByRule is the finding on a rule, with the frames that it spoilt.
func rewrittenByRule(v *view, s *stale, rewrites []model.MACRewrite) finding {
	f := model.Finding{
		Confidence: model.Proven,
		Pods:       []netip.Addr{s.addr},
		Title:      "stale MAC for " + s.addr.String(),
		Evidence:   []model.Evidence{ruleEvidence(s.rule), v.ownerEvidence(s)},
		Fix:        []string{words.UndoFrameRule(s.rule)},
		Packets:    s.rule.Counter.Delta,
	}
	seen := mostRewritten(rewrites, s.addr, s.rule.MAC)
	switch {
	case seen != nil:
		f.Packets = max(f.Packets, seen.Packets)
		f.Evidence = append(f.Evidence, rewriteEvidence(seen))
	case s.rule.Counter.Delta == 0:
		f.Unseen = append(f.Unseen, "a frame that the rule rewrote: nothing for the pod came by in the window")
	}
	f.LastHopAlive = arrival(v, s, seen)
	if len(s.owners) == 0 {
		f.Confidence = model.Likely
		f.Unseen = append(f.Unseen, "who holds "+s.addr.String()+" now: nobody on this node")
		f.Alternatives = append(f.Alternatives, "the pod was deleted and its peers still send to it")
	}
	f.Why = fmt.Sprintf("An ebtables rule gives frames for %s the destination MAC %s%s; %s has it. "+
		"They never reach the pod: a bridge floods frames for a MAC that it does not know, and nobody takes them.",
		s.addr, s.rule.MAC, v.ownersInstead(s), v.owner(s.rule.MAC))
	return finding{Finding: f, claims: misled(s.addr, s.rule.MAC)}
}

// toNobody reports whether frames for a running pod got a destination MAC that
// nobody on the node has.
func toNobody(v *view, r *model.MACRewrite) bool {
	if r.Field != model.DestinationMAC || len(v.podMACs(r.Addr)) == 0 || r.To.MAC.IsMulticast() || r.Packets < minDrops || v.Tunnel[r.To.MAC] {
		return false
	}
	if _, known := v.macs[r.To.MAC]; known {
		return false
	}
	// The node's neighbour entry gives its own packets that MAC, and with
	// br_netfilter also what it takes back from a masqueraded flow.
	if slices.ContainsFunc(v.Neighbors, func(n model.Neighbor) bool { return n.Addr == r.Addr && n.MAC == r.To.MAC && !n.Proxy }) {
		return false
	}
	// Where frames come in with that MAC already, a stale answer to ARP is
	// the simpler cause.
	return !slices.ContainsFunc(v.macPairs[r.Addr], func(p *model.MACPair) bool {
		return p.Direction == model.Ingress && p.Side == model.AsDestination && p.Dst == r.To.MAC
	})
}

// rewrittenUnseen is the finding where the frames were seen to change and no
// rule about the address is known.
func rewrittenUnseen(v *view, r *model.MACRewrite) finding {
	f := model.Finding{
		Confidence:   model.Likely,
		Pods:         []netip.Addr{r.Addr},
		LastHopAlive: v.place(r.From.Link, r.From.Direction),
		Title:        "stale MAC for " + r.Addr.String(),
		Why: fmt.Sprintf("Frames for %s come out of the bridge with the destination MAC %s%s; %s has it. "+
			"Only bridge netfilter (ebtables, nft) or a tc program can do that.",
			r.Addr, r.To.MAC, v.ownersInstead(&stale{addr: r.Addr, owners: v.podMACs(r.Addr)}), v.owner(r.To.MAC)),
		Evidence:     []model.Evidence{rewriteEvidence(r)},
		Alternatives: []string{"a tc program that rewrites the MAC"},
		Packets:      r.Packets,
	}
	for x := range model.Each(v.FrameRules) {
		if x.Target == model.TargetDNAT && x.MAC == r.To.MAC {
			f.Evidence = append(f.Evidence, ruleEvidence(x))
			f.Fix = append(f.Fix, words.UndoFrameRule(x))
		}
	}
	if len(f.Fix) == 0 {
		f.Unseen = []string{"the rule that does it"}
		if !v.Has(model.SourceEbtables) {
			f.Unseen = []string{"the ebtables rules: that source could not be read whole"}
		}
		f.Fix = []string{fmt.Sprintf("find the rule with %s and delete it: %s", r.To.MAC, v.listFrameRules())}
	}
	return finding{Finding: f, claims: misled(r.Addr, r.To.MAC)}
}

// listFrameRules is the command that shows bridge rules of both variants. Asking for
// a legacy table that is not there makes the kernel load it: so it is asked for only
// where it is there, which the command itself finds out where that was not read.
func (v *view) listFrameRules() string {
	const nft, legacy = "nft -a list ruleset bridge", "ebtables-legacy -t nat -L --Lc"
	switch {
	case slices.ContainsFunc(v.Chains, func(c model.Chain) bool {
		return c.Backend == model.Legacy && c.Family == "bridge" && c.Table == "nat"
	}):
		return nft + "; " + legacy
	case !v.Has(model.SourceEbtables):
		return nft + "; grep -q ^ebtable_nat /proc/modules && " + legacy
	}
	return nft
}

// mostRewritten is the rewrite of an address to a MAC that most frames showed. A flood shows
// about the same frames on many ports: of these the first by name.
func mostRewritten(list []model.MACRewrite, addr netip.Addr, to model.MAC) *model.MACRewrite {
	var most *model.MACRewrite
	for r := range model.Each(list) {
		if r.Addr != addr || r.Field != model.DestinationMAC || r.To.MAC != to {
			continue
		}
		// The list begins with the most.
		if most == nil || 2*r.Packets > most.Packets && r.To.Link < most.To.Link {
			most = r
		}
	}
	return most
}

func rewriteEvidence(r *model.MACRewrite) model.Evidence {
	return seen(model.SourceTC,
		"%s %s destination MAC %s, then %s %s destination MAC %s: %s for %s", r.From.Link, r.From.Direction, r.From.MAC, r.To.Link, r.To.Direction, r.To.MAC, words.Count(r.Packets, "frame"), r.Addr)
}

// arrival is where frames for the address were last right: where they came in
// before the rewrite, or the port that the rule names, or the uplink.
func arrival(v *view, s *stale, seen *model.MACRewrite) model.Place {
	if seen != nil {
		return v.place(seen.From.Link, seen.From.Direction)
	}
	for l := range model.Each(v.Links) {
		if s.rule.In.Name != "" && s.rule.In.Matches(l.Name) || s.rule.In.Name == "" && l.Role == model.RoleUplink {
			return v.place(l.Name, model.Ingress)
		}
	}
	return model.Place{Direction: model.Ingress}
}
