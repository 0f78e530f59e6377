package diagnose

import (
	"time"

	"github.com/lasthop/lasthop/probe/model"
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

func findPathMTU(v *view) []finding {
	pairs := map[pair]*lost{}
	for d := range model.Each(v.Traffic.Drops) {
		if tooBig(d) && v.ofPod(d) && !v.explained(d) {
			entry(pairs, pair{d.Src, d.Dst}).add(v, d)
		}
	}
	groups := map[int]*lost{}
	for _, p := range pairs {
		if p.packets < minDrops || p.span() < learnt {
			continue
		}
		for _, d := range p.drops {
			entry(groups, nextLink(v, d)).add(v, d)
		}
	}
	out := v.unlikeEnds()
	for next, l := range groups {
		out = append(out, narrow(v, next, l))
	}
	return out
}

// span is the time from the first drop to the last.
func (l *lost) span() time.Duration {
	first, last := l.drops[0].First, l.drops[0].Last
	for _, d := range l.drops {
		if d.First.Before(first) {
			first = d.First
		}
		if d.Last.After(last) {
			last = d.Last
		}
	}
	return last.Sub(first)
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

// narrow is the finding on packets that are too big for a link, and on the errors that a rule
// of the node drops, where that is why the senders do not learn the size.
func narrow(v *view, next int, l *lost) finding {
	most := mostDropped(l.drops)[0]
	f := finding{lost: l, facts: facts{"drops": l.evidence(), "pod": v.pod(most)}}
	f.LastHopAlive = v.place(most.Link, model.Ingress)
	in, out := v.byName[most.Link], v.links[next]
	if out != nil && in != nil && in.MTU != 0 && out.MTU != 0 && out.MTU < in.MTU {
		f.facts["in"], f.facts["out"] = in, out
	}
	var errors lost
	for d := range model.Each(v.Traffic.Drops) {
		if v.errorDropped(d, l) {
			errors.add(v, d)
		}
	}
	if errors.packets >= minDrops {
		f.facts["errors"] = errors.evidence()
	}
	// Those by which other senders learn the size have the same cause.
	f.claims = func(d *model.Drop) bool { return tooBig(d) && nextLink(v, d) == next || v.errorDropped(d, l) }
	return f
}
