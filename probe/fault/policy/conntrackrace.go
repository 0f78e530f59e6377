package policy

import (
	"cmp"
	"slices"

	"github.com/lasthop/lasthop/probe/fault"
	"github.com/lasthop/lasthop/probe/model"
	"github.com/lasthop/lasthop/probe/node"
	"github.com/lasthop/lasthop/probe/path"
	"github.com/lasthop/lasthop/probe/words"
)

// ConntrackRace reports packets that were dropped as two of one flow were tracked at the same time.
var ConntrackRace = fault.Kind{Code: "ConntrackRace", Severity: model.Warning, Find: conntrackRace,
	Needs: fault.Sources{model.SourceConntrack, model.SourceNAT},
	Ends:  fault.Hops{model.HopConntrack, model.HopPolicy}, Else: fault.Else{"unseen", "rivals", "taken"}}

func conntrackRace(v *fault.Input) {
	failed := v.Conntrack.InsertFailed
	if failed < node.MinDrops {
		return
	}
	l, drops := refusedEntries(v, failed)
	if l.Packets < node.MinDrops {
		// Two flows that got one port are refused likewise.
		if !v.Inserts && failed-min(l.Packets, failed) >= node.MinDrops {
			racedUnseen(v, failed)
		}
		return
	}
	dns, taken := false, false
	var rivals []*candidateRule
	for _, d := range drops {
		dns = dns || d.packet.DstPort == node.DNSPort
		// Which flows hold ports is known of known pods.
		taken = taken || d.translated && !v.Has(model.SourceLinks, model.SourcePods)
		for _, c := range d.candidates {
			if !c.Counted && c.fit == path.Maybe {
				rivals = model.With(rivals, c.candidateRule)
			}
		}
	}
	services, backends := node.Destinations(model.Chosen(v.Flows, func(f *model.Flow) bool {
		return l.Pods[f.Original.Src] && l.Peers[f.Reply.Src] && f.Original.Dst != f.Reply.Src
	})), node.Sorted(l.Peers)
	f := fault.Fault{Lost: &l, Facts: words.Facts{
		"failed": failed, "rivals": rivals, "services": services, "backends": backends, "dns": dns, "taken": taken,
	}}
	f.Peers, f.LastHopAlive = model.Hosts(append(services, backends...)), v.Entering(l.Pods)
	v.Report(f)
}

// refusedEntries are the drops that the failed insertions explain, no more packets than these. A drop that a
// rule counted is the rule's, and so is one that surely matched a rule without a counter.
func refusedEntries(v *fault.Input, failed uint64) (l node.Lost, out []*dropped) {
	rules := newDropRules(v.State, nil)
	var list []*dropped
	for d := range model.Each(v.Traffic.Drops) {
		if !d.Is(model.EntryRefused) || !v.OfPod(d) || v.InPod(d).IsValid() || v.Explained(d) {
			continue
		}
		x := dropIn(v.Index, rules, d)
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
		return cmp.Or(rank[a.Proto != model.UDP]-rank[b.Proto != model.UDP], cmp.Compare(b.Packets, a.Packets))
	})
	left := failed
	for _, d := range list {
		// The two counts are not read at the same moment.
		if d.Packets <= left+left/10 {
			left -= min(d.Packets, left)
			l.AddFor(v.Sender(d.Drop), d.Drop)
			out = append(out, d)
		}
	}
	return l, out
}

// racedUnseen reports that no drop of a pod was seen. Where drops were not watched, pods whose requests to name
// servers were translated may have lost some. Otherwise only pods whose requests were masqueraded may have,
// since then the dropped packet has the node's address.
func racedUnseen(v *fault.Input, failed uint64) {
	var l node.Lost
	for f := range model.Each(v.Flows) {
		translated := f.Original.Src != f.Reply.Dst || f.Original.Dst != f.Reply.Src && !v.Has(model.SourceDrops)
		if f.Proto == model.UDP && f.Original.DstPort == node.DNSPort && !f.Start.IsZero() && translated &&
			len(v.Owners[f.Original.Src]) > 0 {
			l.With(f.Original.Src, f.Original.Dst)
		}
	}
	if len(l.Pods) == 0 {
		return
	}
	watched := v.Has(model.SourceDrops)
	f := fault.Fault{Lost: &l, Facts: words.Facts{"failed": failed, "unseen": true, "watched": watched, "dns": true}}
	f.Confidence, f.LastHopAlive.Direction = model.Possible, model.Ingress
	v.Report(f)
}
