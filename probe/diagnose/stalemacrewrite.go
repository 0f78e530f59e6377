package diagnose

import (
	"cmp"
	"net/netip"
	"slices"

	"github.com/lasthop/lasthop/probe/model"
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
	for _, s := range v.staleRules(model.TargetDNAT) {
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

// rewrittenByRule is the finding on a rule, with the frames that it spoilt. They were last
// right where they came in before the rewrite, or at the port that the rule names.
func rewrittenByRule(v *view, s *stale, rewrites []model.MACRewrite) finding {
	f := finding{facts: s.facts(v), claims: misled(belief{s.addr, s.rule.MAC})}
	f.Pods, f.Packets = []netip.Addr{s.addr}, s.rule.Counter.Delta
	f.LastHopAlive = v.place(cmp.Or(s.rule.In.Name, v.linkName(v.anUplink())), model.Ingress)
	if seen := mostRewritten(rewrites, s.addr, s.rule.MAC); seen != nil {
		f.facts["rewrite"], f.Packets = seen, max(f.Packets, seen.Packets)
		f.LastHopAlive = v.place(seen.From.Link, seen.From.Direction)
	}
	return f
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
	f := finding{page: "StaleMACRewrite-unseen", claims: misled(belief{r.Addr, r.To.MAC})}
	f.Pods, f.LastHopAlive, f.Packets = []netip.Addr{r.Addr}, v.place(r.From.Link, r.From.Direction), r.Packets
	rules := chosen(v.FrameRules, func(x *model.FrameRule) bool {
		return x.Target == model.TargetDNAT && x.MAC == r.To.MAC
	})
	// Asking for a legacy table that is not there makes the kernel load it: so it is asked
	// for only where it is there, which the command itself finds out where that was not read.
	f.facts = facts{
		"addr": r.Addr, "rewrite": r, "owners": v.podMACs(r.Addr), "holder": v.owner(r.To.MAC), "rules": rules,
		"read": v.Has(model.SourceEbtables),
		"legacy": slices.ContainsFunc(v.Chains, func(c model.Chain) bool {
			return c.Backend == model.Legacy && c.Family == "bridge" && c.Table == "nat"
		}),
	}
	return f
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
