package diagnose

import (
	"fmt"
	"maps"
	"net/netip"
	"slices"
	"time"

	"github.com/lasthop/lasthop/probe/model"
	"github.com/lasthop/lasthop/probe/words"
)

// PathMTU is the code of this finding.
const PathMTU model.Code = "PathMTU"

var pathMTU = kind{
	code:     PathMTU,
	severity: model.Warning,
	find:     findPathMTU,
	ends:     []model.HopKind{model.HopRoute, model.HopLink, model.HopPod, model.HopBridge},
}

// tooBig reports whether a packet was dropped because the next link's MTU is
// smaller.
func tooBig(d *model.Drop) bool { return d.Reason == "PKT_TOO_BIG" }

// learnt is how long after the first error a sender must have learnt the size.
const learnt = time.Second

// pairDrops sums up what was dropped between two ends.
type pairDrops struct {
	first, last time.Time
	drops       []*model.Drop
	packets     uint64
}

func findPathMTU(v *view) []finding {
	type ends struct{ src, dst netip.Addr }
	pairs := map[ends]*pairDrops{}
	for d := range model.Each(v.Traffic.Drops) {
		if !tooBig(d) || !v.ofPod(d) || v.explained(d) {
			continue
		}
		p := pairs[ends{d.Src, d.Dst}]
		if p == nil {
			p = &pairDrops{first: d.First, last: d.Last}
			pairs[ends{d.Src, d.Dst}] = p
		}
		if d.First.Before(p.first) {
			p.first = d.First
		}
		if d.Last.After(p.last) {
			p.last = d.Last
		}
		p.packets += d.Packets
		p.drops = append(p.drops, d)
	}
	out := v.unlikeEnds()
	groups := map[int]*lost{}
	for _, p := range pairs {
		if p.packets < minDrops || p.last.Sub(p.first) < learnt {
			continue
		}
		for _, d := range p.drops {
			next := nextLink(v, d)
			entry(groups, next).add(v, d)
		}
	}
	for _, next := range slices.Sorted(maps.Keys(groups)) {
		l := groups[next]
		f := narrow(v, next, l)
		unnoticed(v, &f.Finding, l)
		// Those by which other senders learn the size have the same cause.
		f.claims = func(d *model.Drop) bool { return tooBig(d) && nextLink(v, d) == next || v.errorDropped(d, l) }
		out = append(out, f)
	}
	return out
}

// unnoticed adds the errors that a rule of the node drops, where that is why the
// senders do not learn the size.
func unnoticed(v *view, f *model.Finding, l *lost) {
	var errors lost
	for d := range model.Each(v.Traffic.Drops) {
		if v.errorDropped(d, l) {
			errors.add(v, d)
		}
	}
	if errors.packets < minDrops {
		return
	}
	f.Why += " The node's ICMP errors to them are dropped by a rule."
	f.Evidence = append(f.Evidence, errors.evidence()...)
	f.Fix = append(f.Fix, "find the rule that drops ICMP errors (fragmentation needed, packet too big) and delete it: "+
		words.IPTables(f.Pods[0])+"-save | grep -i icmp")
}

// nextLink is the index of the link by which a dropped packet would have left,
// 0 where that is not known.
func nextLink(v *view, d *model.Drop) int {
	way := v.routing().Lookup(v.arrived(d))
	if way.Type != "unicast" || len(way.Hops) == 0 {
		return 0
	}
	return way.Hops[0].IfIndex
}

// narrow is the finding on packets that are too big for a link.
func narrow(v *view, next int, l *lost) finding {
	drops := mostDropped(l.drops)
	f := l.finding()
	f.Confidence = model.Likely
	f.LastHopAlive = v.place(drops[0].Link, model.Ingress)
	f.Title = "packets of pods are too big for the next link"
	f.Why = fmt.Sprintf("The kernel dropped %s that may not be cut and do not fit the next link. They keep coming, so their senders do not learn the size that does.",
		words.Count(l.packets, "packet"))
	f.Evidence = l.evidence()
	f.Fix = []string{words.IPTables(v.pod(drops[0])) + " -t mangle -A FORWARD -p tcp --tcp-flags SYN,RST SYN -j TCPMSS --clamp-mss-to-pmtu"}
	in, out := v.byName[drops[0].Link], v.links[next]
	if out == nil || in == nil || in.MTU == 0 || out.MTU == 0 || out.MTU >= in.MTU {
		f.Unseen = []string{"the smaller MTU: no link of this node has it, so a route or a learnt path does"}
		f.Alternatives = []string{"a router beyond this node told a smaller size"}
		return finding{Finding: f}
	}
	f.Confidence = model.Proven
	f.Title = fmt.Sprintf("packets of pods are too big for %s (MTU %d)", out.Name, out.MTU)
	observe(&f, model.SourceLinks, "they arrive through %s with MTU %d and would leave by %s with MTU %d", in.Name, in.MTU, out.Name, out.MTU)
	f.Fix = append([]string{fmt.Sprintf("ip link set %s mtu %d", words.Quote(out.Name), in.MTU)}, f.Fix...)
	return finding{Finding: f}
}
