package diagnose

import (
	"cmp"
	"maps"
	"net/netip"
	"slices"
	"strings"
	"time"

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
		if d.NeighborFailed() {
			// One of the packets that wait is freed as failed, the others are purged.
			k.reason = "NEIGH_FAILED"
		}
		model.GetOrInsert(groups, k).add(v, d)
	}
	for k, l := range groups {
		if l.packets >= minDrops {
			v.report(v.unexplained(k, l))
		}
	}
}

func (v *view) unexplained(k dropKind, l *lost) finding {
	first := mostDropped(l.drops)[0]
	w := wordsOf(first)
	var rules []*model.PacketRule
	if v.lowered(first) {
		w = dropWords{key: "lowered", broken: true}
		rules = model.Chosen(v.PacketRules, func(r *model.PacketRule) bool { return r.Target == "TTL" || r.Target == "HL" })
	}
	ends := v.nothingPasses(l)
	from, to := first.Src, first.Dst
	if v.pods[from] == nil {
		from, to = to, from
	}
	f := finding{lost: l, facts: facts{
		"reason": k.reason, "location": k.location, "means": w.key, "from": from, "to": to,
		"silent": []netip.Addr{ends.local, ends.remote}, "rules": rules,
	}}
	if w.broken && l.lasting() || ends.local.IsValid() {
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
func (v *view) lowered(d *model.Drop) bool {
	pod := v.pod(d)
	side := model.Either(pod == d.Src, model.AsSource, model.AsDestination)
	return d.Expired() && slices.ContainsFunc(v.hops[pod], func(h *model.HopCount) bool {
		entry := v.isUplink(h.IfIndex) || side == model.AsSource && v.pods[pod][0].LinkIndex == h.IfIndex
		return entry && h.Direction == model.Ingress && h.Side == side && h.TTLs != 0 && h.TTLs&(1<<1) == 0
	})
}

// sending reports whether the packet was to leave by its device: it waited for
// the next hop's MAC, or was handed to the device.
func sending(d *model.Drop) bool {
	out := []string{"ip_output", "ip_finish_output", "ip_finish_output2", "ip6_output", "ip6_finish_output",
		"ip6_finish_output2"}
	return d.NeighborFailed() || d.Transmitting() || slices.Contains(out, d.Location)
}

// dropWords is what one of the kernel's reasons means.
type dropWords struct {
	// key is what the page of UnexplainedDrop calls it.
	key     string
	matches func(*model.Drop) bool
	// broken is set where no healthy network drops so for long, ordinary where every healthy one may.
	broken, ordinary bool
}

// manyRefused is more packets than bad luck spoils in a window.
const manyRefused = 9

// knownReasons are those that no other finding is about. The first that matches counts.
var knownReasons = []dropWords{
	{key: "checksum", broken: true,
		matches: func(d *model.Drop) bool { return strings.HasSuffix(string(d.Reason), "_CSUM") }},
	{key: "signature", broken: true, matches: (*model.Drop).Distrusted},
	{key: "loopback", broken: true, matches: func(d *model.Drop) bool {
		return d.Dst.IsLoopback() && (d.Reason == "IP_LOCALNET" || d.Unspecified())
	}},
	{key: "queue", ordinary: true, matches: func(d *model.Drop) bool {
		r := string(d.Reason)
		return d.Transmitting() && (strings.HasPrefix(r, "QDISC_") || strings.HasPrefix(r, "FQ_"))
	}},
	{key: "expired", ordinary: true, matches: func(d *model.Drop) bool { return d.Expired() && d.Reason != "" }},
	{key: "fragments", matches: func(d *model.Drop) bool { return strings.HasPrefix(string(d.Reason), "FRAG_") }},
	{key: "protocol", ordinary: true,
		matches: func(d *model.Drop) bool { return d.Reason == "IP_NOPROTO" || d.Reason == "UNHANDLED_PROTO" }},
	{key: "rule", matches: (*model.Drop).Netfilter},
	{key: "vxlan", matches: func(d *model.Drop) bool { return d.Location == "vxlan_xmit" }},
	{key: "neighbour", matches: (*model.Drop).NeighborFailed},
	{key: "disabled", ordinary: true, matches: func(d *model.Drop) bool { return d.Reason == "IPV6DISABLED" }},
}

// wordsOf are the words for a drop, zero where the kernel's reason is all there is.
func wordsOf(d *model.Drop) dropWords {
	return model.Find(knownReasons, func(w dropWords) bool { return w.matches(d) })
}

// refused reports whether a drop is of a kind that no healthy network has for long.
func refused(d *model.Drop) bool { return wordsOf(d).broken }

// lasting reports whether drops went on for a while.
func (l *lost) lasting() bool { return l.packets >= manyRefused && l.span() >= 2*settled }

func (l *lost) span() time.Duration {
	first := slices.MinFunc(l.drops, func(a, b *model.Drop) int { return a.First.Compare(b.First) }).First
	return slices.MaxFunc(l.drops, func(a, b *model.Drop) int { return a.Last.Compare(b.Last) }).Last.Sub(first)
}

// nothingPasses are two ends whose drops go on while no flow shows that packets get from one to the other, those that
// lost most.
// They are not valid where there are none, or where healthy networks drop so: by limits, and what is asked at
// once of IPv6 on a node that leads nowhere by it.
func (v *view) nothingPasses(l *lost) (most pair) {
	if !v.Has(model.SourceConntrack) {
		return most
	}
	byPair := map[pair]*lost{}
	for _, d := range l.drops {
		if wordsOf(d).ordinary || wasFull(d) || d.NoSocket() && !v.Has(model.SourcePods) || !model.Unicast(d.Src) || !model.Unicast(d.Dst) ||
			d.Src.Is6() && d.LookupRefused() && !hasDefault(v, true) {
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
