package diagnose

import (
	"cmp"
	"maps"
	"slices"
	"strings"
	"time"

	"github.com/lasthop/lasthop/probe/model"
)

// dropWords is what one of the kernel's reasons means.
type dropWords struct {
	// key is what the page of UnexplainedDrop calls it.
	key     string
	matches func(*model.Drop) bool
	// broken is set where no healthy network drops so for long, ordinary where every
	// healthy one may.
	broken, ordinary bool
}

// manyRefused is more packets than bad luck spoils in a window.
const manyRefused = 9

// knownReasons are those that no other finding is about. The first that matches counts.
var knownReasons = []dropWords{
	{key: "checksum", broken: true, matches: func(d *model.Drop) bool { return strings.HasSuffix(string(d.Reason), "_CSUM") }},
	{key: "signature", broken: true, matches: (*model.Drop).Distrusted},
	{key: "loopback", broken: true, matches: func(d *model.Drop) bool {
		return d.Dst.IsLoopback() && (d.Reason == "IP_LOCALNET" || d.Unspecified())
	}},
	{key: "queue", ordinary: true, matches: func(d *model.Drop) bool {
		return d.Transmitting() && (strings.HasPrefix(string(d.Reason), "QDISC_") || strings.HasPrefix(string(d.Reason), "FQ_"))
	}},
	{key: "expired", ordinary: true, matches: func(d *model.Drop) bool { return d.Expired() && d.Reason != "" }},
	{key: "fragments", matches: func(d *model.Drop) bool { return strings.HasPrefix(string(d.Reason), "FRAG_") }},
	{key: "protocol", ordinary: true, matches: func(d *model.Drop) bool { return d.Reason == "IP_NOPROTO" || d.Reason == "UNHANDLED_PROTO" }},
	{key: "rule", matches: (*model.Drop).Netfilter},
	{key: "vxlan", matches: func(d *model.Drop) bool { return d.Location == "vxlan_xmit" }},
	{key: "neighbour", matches: (*model.Drop).NeighborFailed},
	{key: "disabled", ordinary: true, matches: func(d *model.Drop) bool { return d.Reason == "IPV6DISABLED" }},
}

// wordsOf are the words for a drop, zero where the kernel's reason is all there is.
func wordsOf(d *model.Drop) dropWords {
	for _, w := range knownReasons {
		if w.matches(d) {
			return w
		}
	}
	return dropWords{}
}

// refused reports whether a drop is of a kind that no healthy network has for long.
func refused(d *model.Drop) bool { return wordsOf(d).broken }

// lasting reports whether drops went on for a while.
func (l *lost) lasting() bool { return l.packets >= manyRefused && l.span() >= 2*settled }

// span is the time from the first drop to the last.
func (l *lost) span() time.Duration {
	first := slices.MinFunc(l.drops, func(a, b *model.Drop) int { return a.First.Compare(b.First) }).First
	return slices.MaxFunc(l.drops, func(a, b *model.Drop) int { return a.Last.Compare(b.Last) }).Last.Sub(first)
}

// nothingPasses are two ends whose drops go on while no flow between them was replied
// to, those that lost most. They are not valid where there are none, or where healthy
// networks drop so: by limits, and what is asked at once of IPv6 on a node that leads
// nowhere by it.
func (v *view) nothingPasses(l *lost) (most pair) {
	if !v.Has(model.SourceConntrack) {
		return most
	}
	byPair := map[pair]*lost{}
	for _, d := range l.drops {
		if wordsOf(d).ordinary || wasFull(d) || !model.Unicast(d.Src) || !model.Unicast(d.Dst) ||
			d.Src.Is6() && d.LookupRefused() && !hasDefault(v, true) {
			continue
		}
		entry(byPair, pair{d.Src, d.Dst}).add(v, d)
	}
	maps.DeleteFunc(byPair, func(_ pair, of *lost) bool { return !of.lasting() })
	for f := range model.Each(v.Flows) {
		if f.Replied && len(byPair) > 0 {
			for _, t := range []model.Tuple{f.Original, f.Reply} {
				delete(byPair, pair{t.Src, t.Dst})
				delete(byPair, pair{t.Dst, t.Src})
			}
		}
	}
	var packets uint64
	for k, of := range byPair {
		if of.packets > packets || of.packets == packets && cmp.Or(k.local.Compare(most.local), k.remote.Compare(most.remote)) < 0 {
			most, packets = k, of.packets
		}
	}
	return most
}
