package diagnose

import (
	"cmp"
	"net/netip"
	"slices"

	"github.com/lasthop/lasthop/probe/model"
	"github.com/lasthop/lasthop/probe/path"
)

// ConntrackRace is the code of this finding.
const ConntrackRace model.Code = "ConntrackRace"

var conntrackRace = kind{
	code:     ConntrackRace,
	severity: model.Warning,
	find:     findConntrackRace,
	ends:     []model.HopKind{model.HopConntrack, model.HopPolicy}, // netfilter drops both
}

// refusedLocations are the functions that free a packet whose entry was refused:
// those that run the hooks, and those that continue one that a queue held.
var refusedLocations = []string{"nf_hook_slow", "nfqnl_reinject", "nf_reinject"}

func findConntrackRace(v *view) []finding {
	failed := v.Conntrack.InsertFailed
	if failed < minDrops || !v.Has(model.SourceConntrack) {
		return nil
	}
	l, rivals := v.refusedEntries(failed)
	if l.packets < minDrops {
		// Two flows that got one port are refused likewise.
		if v.inserts || failed-min(l.packets, failed) < minDrops {
			return nil
		}
		return v.racedUnseen(failed)
	}
	services := v.servicesOf(l.pods, l.peers)
	f := finding{lost: l, facts: facts{
		"failed": failed, "rivals": rivals, "services": services, "backends": sorted(l.peers),
		"dns": slices.ContainsFunc(l.drops, func(d *model.Drop) bool { return v.dropIn(d).dstPort == dnsPort }),
	}}
	f.Peers, f.LastHopAlive = hosts(append(services, sorted(l.peers)...)), v.entering(l.pods)
	return []finding{f}
}

// refusedEntries are the drops that the failed insertions explain, no more packets
// than these, and the rules that may have dropped them instead. A drop that a rule
// counted is the rule's, and so is one that surely matched a rule without a counter.
func (v *view) refusedEntries(failed uint64) (*lost, []*candidateRule) {
	rules := newDropRules(v.Snapshot, nil)
	var list []*model.Drop
	rivals := map[*model.Drop][]candidate{}
	for d := range model.Each(v.Traffic.Drops) {
		if !slices.Contains(refusedLocations, d.Location) || d.Location == "nf_hook_slow" && !d.Netfilter() ||
			!v.ofPod(d) || v.inPod(d).IsValid() || v.explained(d) {
			continue
		}
		found := rules.candidates(v.dropIn(d))
		byRule := !found.whole || slices.ContainsFunc(found.candidates, func(c candidate) bool {
			return c.Counted && c.left >= d.Packets || !c.Counted && c.fit == path.Yes
		})
		if !byRule {
			list = append(list, d)
			rivals[d] = found.candidates
		}
	}
	// Datagrams race, connections hardly ever.
	rank := map[bool]int{true: 1}
	slices.SortStableFunc(list, func(a, b *model.Drop) int {
		return cmp.Or(rank[a.Proto != udp]-rank[b.Proto != udp], cmp.Compare(b.Packets, a.Packets))
	})
	var out lost
	var others []*candidateRule
	left := failed
	for _, d := range list {
		// The two counts are not read at the same moment.
		if d.Packets > left+left/10 {
			continue
		}
		left -= min(d.Packets, left)
		out.addFor(v.sender(d), d)
		for _, c := range rivals[d] {
			if !c.Counted && c.fit == path.Maybe && !c.poor && !slices.Contains(others, c.candidateRule) {
				others = append(others, c.candidateRule)
			}
		}
	}
	return &out, others
}

// servicesOf are the addresses that connection tracking translated to one of
// the peers for one of the pods.
func (v *view) servicesOf(pods, peers map[netip.Addr]bool) []netip.Addr {
	found := map[netip.Addr]bool{}
	for f := range model.Each(v.Flows) {
		if pods[f.Original.Src] && peers[f.Reply.Src] && f.Original.Dst != f.Reply.Src {
			found[f.Original.Dst] = true
		}
	}
	return sorted(found)
}

// racedUnseen is the finding where no drop of a pod was seen. Where drops were not
// watched, pods whose requests to name servers were translated may have lost some.
// Otherwise only pods whose requests were masqueraded may have, since then the
// dropped packet has the node's address.
func (v *view) racedUnseen(failed uint64) []finding {
	l := lost{pods: map[netip.Addr]bool{}, peers: map[netip.Addr]bool{}}
	for f := range model.Each(v.Flows) {
		translated := f.Original.Src != f.Reply.Dst || f.Original.Dst != f.Reply.Src && !v.Has(model.SourceDrops)
		if f.Proto == udp && f.Original.DstPort == dnsPort && !f.Start.IsZero() && translated && len(v.pods[f.Original.Src]) > 0 {
			l.pods[f.Original.Src], l.peers[f.Original.Dst] = true, true
		}
	}
	if len(l.pods) == 0 {
		return nil
	}
	f := finding{lost: &l, facts: facts{"failed": failed, "unseen": true, "watched": v.Has(model.SourceDrops), "dns": true}}
	f.Confidence, f.LastHopAlive.Direction = model.Possible, model.Ingress
	return []finding{f}
}
