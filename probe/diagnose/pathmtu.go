package diagnose

import (
	"net/netip"
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

// tooBig is the reason where the next link's MTU is smaller than the packet.
const tooBig model.Reason = "PKT_TOO_BIG"

// learnt is how long after the first error a sender must have learnt the size.
const learnt = time.Second

func findPathMTU(v *view) []finding {
	groups := map[int]*lost{}
	for _, l := range lostBy(v, func(d *model.Drop) (_ pair, pod netip.Addr) {
		if d.Reason == tooBig {
			pod = v.pod(d)
		}
		return pair{d.Src, d.Dst}, pod
	}) {
		for _, d := range l.drops {
			if l.span() >= learnt {
				entry(groups, nextLink(v, d)).add(v, d)
			}
		}
	}
	out := v.unlikeEnds()
	for next, l := range groups {
		out = append(out, narrow(v, next, l))
	}
	return out
}

// nextLink is the index of the link by which a dropped packet would have left,
// 0 where that is not known.
func nextLink(v *view, d *model.Drop) int {
	if to := v.routing().Lookup(v.arrived(d)); len(to.Hops) > 0 && to.Type == "unicast" {
		return to.Hops[0].IfIndex
	}
	return 0
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
	f.claims = func(d *model.Drop) bool { return d.Reason == tooBig && nextLink(v, d) == next || v.errorDropped(d, l) }
	return f
}
