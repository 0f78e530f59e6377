package diagnose

import (
	"cmp"
	"maps"
	"net/netip"
	"slices"

	"github.com/lasthop/lasthop/probe/model"
)

// dropKind is what one cause's drops have in common. It may drop on many links:
// FORWARD drops packets with the link that each came in by.
type dropKind struct {
	reason   model.Reason
	location string
}

func findUnexplainedDrop(v *view) {
	left := model.Chosen(v.Traffic.Drops, func(d *model.Drop) bool {
		return v.causeOf(d).Ordinary == model.ExcusedFew
	})
	groups := map[dropKind]*lost{}
	folded := model.Chosen(v.whole.Traffic.Drops, func(d *model.Drop) bool {
		return d.Range.IsValid() && v.foldedCause(d).Ordinary == model.ExcusedFew
	})
	for _, d := range append(left, folded...) {
		k := dropKind{d.Reason, d.Location}
		if d.Is(model.NeighborFailed) {
			// One of the packets that wait is freed as failed, the others are purged.
			k.reason = "NEIGH_FAILED"
		}
		model.GetOrInsert(groups, k).add(v.index, d)
	}
	for k, l := range groups {
		if l.packets >= minDrops {
			v.report(v.unexplained(k, l))
		}
	}
}

func (v *index) unexplained(k dropKind, l *lost) finding {
	first := mostDropped(l.drops)[0]
	means, broken := first.Means(), refused(first)
	var rules []*model.PacketRule
	switch {
	case v.lowered(first):
		means, broken = "lowered", true
		rules = model.Chosen(v.PacketRules, func(r *model.PacketRule) bool { return r.Target == "TTL" || r.Target == "HL" })
	case atLoopback(first):
		means = "loopback"
	}
	ends := v.nothingPasses(l)
	from, to := first.Src, first.Dst
	if v.Owners[from] == nil {
		from, to = to, from
	}
	f := finding{lost: l, facts: facts{
		"reason": k.reason, "location": k.location, "means": means, "from": from, "to": to,
		"silent": []netip.Addr{ends.local, ends.remote}, "rules": rules,
	}}
	if broken && l.lasting() || ends.local.IsValid() {
		f.Severity = model.Warning
	}
	// A packet dropped on the way out had been routed to the link; any other came in by it.
	f.LastHopAlive = v.place(first.Link, model.Ingress)
	if sending(first) {
		f.LastHopAlive.Direction = model.Egress
	}
	return f
}

// lowered reports whether a TTL ended that no packet of the pod had as it arrived: a rule of this node lowered it.
func (v *index) lowered(d *model.Drop) bool {
	pod := v.pod(d)
	side := model.Either(pod == d.Src, model.AsSource, model.AsDestination)
	return d.Is(model.Expired) && slices.ContainsFunc(v.hops[pod], func(h *model.HopCount) bool {
		entry := v.isUplink(h.IfIndex) || side == model.AsSource && v.Owners[pod][0].LinkIndex == h.IfIndex
		return entry && h.Direction == model.Ingress && h.Side == side && h.TTLs != 0 && h.TTLs&(1<<1) == 0
	})
}

// sending reports whether the packet was to leave by its device: it waited for
// the next hop's MAC, or was handed to the device.
func sending(d *model.Drop) bool {
	return d.Is(model.NeighborFailed | model.Transmitting | model.Leaving)
}

// manyRefused is more packets than bad luck spoils in a window.
const manyRefused = 9

// atLoopback reports whether a packet for a loopback address came by another link.
func atLoopback(d *model.Drop) bool { return d.Dst.IsLoopback() && d.Is(model.NotLocalNet) }

// refused reports whether a drop is of a kind that no healthy network has for long.
func refused(d *model.Drop) bool { return d.Is(model.Broken) || atLoopback(d) }

// lasting reports whether drops went on for a while.
func (l *lost) lasting() bool { return l.packets >= manyRefused && l.lasted() }

func (l *lost) lasted() bool {
	first := slices.MinFunc(l.drops, func(a, b *model.Drop) int { return a.First.Compare(b.First) }).First
	return model.Lasted(first, slices.MaxFunc(l.drops, func(a, b *model.Drop) int { return a.Last.Compare(b.Last) }).Last)
}

// nothingPasses are two ends whose drops go on while no flow shows that packets get from one to the other, those that
// lost most.
// They are not valid where there are none, or where healthy networks drop so: by limits, and what is asked at
// once of IPv6 on a node that leads nowhere by it.
func (v *index) nothingPasses(l *lost) (most pair) {
	if !v.Has(model.SourceConntrack) {
		return most
	}
	byPair := map[pair]*lost{}
	for _, d := range l.drops {
		if d.Is(model.Ordinary|model.NoRoom) || d.Is(model.NoSocket) && !v.Has(model.SourcePods) || !model.Unicast(d.Src) || !model.Unicast(d.Dst) ||
			d.Src.Is6() && d.Is(model.LookupRefused) && !hasDefault(v, true) {
			continue
		}
		model.GetOrInsert(byPair, pair{d.Src, d.Dst}).add(v, d)
	}
	maps.DeleteFunc(byPair, func(_ pair, of *lost) bool { return !of.lasting() })
	for f := range model.Each(v.Flows) {
		if !f.Replied || f.Start.IsZero() || len(byPair) == 0 {
			continue
		}
		// Connection tracking sees a reply before the node may drop it. That one end acknowledges it shows that it passed.
		passes := []model.Tuple{f.Original, {Src: f.Reply.Dst, Dst: f.Reply.Src}}
		if f.Established() {
			passes = append(passes, f.Reply, model.Tuple{Src: f.Original.Dst, Dst: f.Original.Src})
		}
		for _, t := range passes {
			delete(byPair, pair{t.Src, t.Dst})
		}
	}
	var packets uint64
	for k, of := range byPair {
		if of.packets > packets || of.packets == packets &&
			cmp.Or(k.local.Compare(most.local), k.remote.Compare(most.remote)) < 0 {
			most, packets = k, of.packets
		}
	}
	return most
}
