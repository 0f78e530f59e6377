package diagnose

import (
	"cmp"
	"slices"

	"github.com/lasthop/lasthop/probe/model"
	"github.com/lasthop/lasthop/probe/path"
)

func findConntrackRace(v *view) {
	failed := v.Conntrack.InsertFailed
	if failed < minDrops {
		return
	}
	l, drops := v.refusedEntries(failed)
	if l.packets < minDrops {
		// Two flows that got one port are refused likewise.
		if !v.inserts && failed-min(l.packets, failed) >= minDrops {
			v.racedUnseen(failed)
		}
		return
	}
	dns := false
	var rivals []*candidateRule
	for _, d := range drops {
		dns = dns || d.packet.DstPort == dnsPort
		for _, c := range d.candidates {
			if !c.Counted && c.fit == path.Maybe {
				rivals = model.With(rivals, c.candidateRule)
			}
		}
	}
	services, backends := destinations(model.Chosen(v.Flows, func(f *model.Flow) bool {
		return l.pods[f.Original.Src] && l.peers[f.Reply.Src] && f.Original.Dst != f.Reply.Src
	})), sorted(l.peers)
	f := finding{lost: &l, facts: facts{
		"failed": failed, "rivals": rivals, "services": services, "backends": backends, "dns": dns,
	}}
	f.Peers, f.LastHopAlive = model.Hosts(append(services, backends...)), v.entering(l.pods)
	v.report(f)
}

// refusedEntries are the drops that the failed insertions explain, no more packets than these. A drop that a
// rule counted is the rule's, and so is one that surely matched a rule without a counter.
func (v *view) refusedEntries(failed uint64) (l lost, out []*dropped) {
	rules := newDropRules(v.State, nil)
	var list []*dropped
	for d := range model.Each(v.Traffic.Drops) {
		if !d.Is(model.EntryRefused) || !v.ofPod(d) || v.inPod(d).IsValid() || v.explained(d) {
			continue
		}
		x := v.dropIn(rules, d)
		byRule := slices.ContainsFunc(x.candidates, func(c candidate) bool {
			return c.Counted && c.left >= d.Packets || !c.Counted && c.fit == path.Yes
		})
		if x.whole && !byRule {
			list = append(list, x)
		}
	}
	// Datagrams race, connections hardly ever.
	rank := map[bool]int{true: 1}
	slices.SortStableFunc(list, func(a, b *dropped) int {
		return cmp.Or(rank[a.Proto != udp]-rank[b.Proto != udp], cmp.Compare(b.Packets, a.Packets))
	})
	left := failed
	for _, d := range list {
		// The two counts are not read at the same moment.
		if d.Packets <= left+left/10 {
			left -= min(d.Packets, left)
			l.addFor(v.sender(d.Drop), d.Drop)
			out = append(out, d)
		}
	}
	return l, out
}

// racedUnseen reports that no drop of a pod was seen. Where drops were not watched, pods whose requests to name
// servers were translated may have lost some. Otherwise only pods whose requests were masqueraded may have,
// since then the dropped packet has the node's address.
func (v *view) racedUnseen(failed uint64) {
	var l lost
	for f := range model.Each(v.Flows) {
		translated := f.Original.Src != f.Reply.Dst || f.Original.Dst != f.Reply.Src && !v.Has(model.SourceDrops)
		if f.Proto == udp && f.Original.DstPort == dnsPort && !f.Start.IsZero() && translated &&
			len(v.Owners[f.Original.Src]) > 0 {
			l.with(f.Original.Src, f.Original.Dst)
		}
	}
	if len(l.pods) == 0 {
		return
	}
	watched := v.Has(model.SourceDrops)
	f := finding{lost: &l, facts: facts{"failed": failed, "unseen": true, "watched": watched, "dns": true}}
	f.Confidence, f.LastHopAlive.Direction = model.Possible, model.Ingress
	v.report(f)
}
