package diagnose

import (
	"net/netip"
	"slices"

	"github.com/lasthop/lasthop/probe/loss"
	"github.com/lasthop/lasthop/probe/model"
)

// UnexplainedDrop is the code of this finding.
const UnexplainedDrop model.Code = "UnexplainedDrop"

var unexplainedDrop = kind{
	code:     UnexplainedDrop,
	severity: model.Info,
	find:     findUnexplainedDrop,
}

// dropKind is what one cause's drops have in common. It may drop on many links:
// FORWARD drops packets with the link that each came in by.
type dropKind struct {
	reason   model.Reason
	location string
}

func findUnexplainedDrop(v *view) []finding {
	left := chosen(v.Traffic.Drops, func(d *model.Drop) bool {
		// Before Linux 5.17 a segment without a socket may be the last of a connection.
		// NoListener tells of requests.
		old := d.Reason == "" && d.NoSocket()
		return !old && v.ofPod(d) && v.drops.Class(d) == loss.Lost && !v.explained(d)
	})
	groups := map[dropKind]*lost{}
	for _, d := range append(left, v.foldedDrops()...) {
		k := dropKind{d.Reason, d.Location}
		if d.NeighborFailed() {
			// One of the packets that wait is freed as failed, the others are purged.
			k.reason = "NEIGH_FAILED"
		}
		entry(groups, k).add(v, d)
	}
	var out []finding
	for k, l := range groups {
		if l.packets >= minDrops {
			out = append(out, v.unexplained(k, l))
		}
	}
	return out
}

func (v *view) unexplained(k dropKind, l *lost) finding {
	first := mostDropped(l.drops)[0]
	w := wordsOf(first)
	ends := v.nothingPasses(l)
	from, to := first.Src, first.Dst
	if v.pods[from] == nil {
		from, to = to, from
	}
	// What nothing explains stays unexplained.
	f := finding{lost: l, claims: func(*model.Drop) bool { return false }, facts: facts{
		"reason": k.reason, "location": k.location, "means": w.key, "from": from, "to": to, "silent": []netip.Addr{ends.local, ends.remote},
	}}
	if w.broken && l.lasting() || ends.local.IsValid() {
		f.Severity = model.Warning
	}
	// A packet dropped on the way out had been routed to the link; any other came
	// in by it.
	f.LastHopAlive = v.place(first.Link, model.Ingress)
	if sending(first) {
		f.LastHopAlive.Direction = model.Egress
	}
	return f
}

// sending reports whether the packet was to leave by its device: it waited for
// the next hop's MAC, or was handed to the device.
func sending(d *model.Drop) bool {
	out := []string{"ip_output", "ip_finish_output", "ip_finish_output2", "ip6_output", "ip6_finish_output", "ip6_finish_output2"}
	return d.NeighborFailed() || d.Transmitting() || slices.Contains(out, d.Location)
}
