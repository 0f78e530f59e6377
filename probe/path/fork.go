package path

import (
	"cmp"
	"net/netip"
	"slices"

	"github.com/lasthop/lasthop/probe/model"
	"github.com/lasthop/lasthop/probe/words"
)

// branch is one of a route's next hops, with what is known to have gone there.
type branch struct {
	NextHop
	// sent are the packets of these ends that left by its link, lost those that were dropped on their way out of it.
	sent, lost uint64
}

func (b *branch) String() string {
	return model.Either(b.Gateway.IsValid(), b.Gateway.String()+" dev "+b.Link, "dev "+b.Link)
}

// fork is the next hop that a packet takes. Of several the kernel takes one by a hash of the flow with a seed
// that it does not disclose, so that only counts and drops show which. Where packets took several, the path is
// the one on which some were lost. It is false where nothing was counted.
func (j *journey) fork(s *step, d *Decision) (NextHop, bool) {
	if len(d.Hops) == 1 {
		return d.Hops[0], true
	}
	all := j.branches(d.Hops)
	used := slices.DeleteFunc(slices.Clone(all), func(b branch) bool { return b.sent+b.lost == 0 })
	slices.SortStableFunc(used, func(a, b branch) int {
		return cmp.Or(cmp.Compare(b.lost, a.lost), cmp.Compare(b.sent, a.sent))
	})
	var most NextHop
	facts := words.Facts{"all": all}
	if len(used) > 0 {
		most = used[0].NextHop
		others := used[1:]
		// Packets that come in here may go on by another next hop. What leaves by one link is counted as one.
		s.cut = slices.ContainsFunc(others, func(b branch) bool { return b.IfIndex != most.IfIndex })
		facts["shared"] = slices.ContainsFunc(others, func(b branch) bool { return b.IfIndex == most.IfIndex })
		facts["taken"], facts["others"] = true, others
	}
	// The next hop that is taken stands in the place of the route's first.
	taken := *d.Route
	taken.Gateway = most.Gateway
	for i, x := range s.says {
		if x.name == "route" {
			s.says[i].facts = words.Facts{"route": words.RouteText(&taken, most.Link)}
		}
	}
	s.say("forks", facts)
	return most, len(used) > 0
}

// branches counts what went to each of the next hops. Where several are behind one link, the packets that left
// it went to those whose MAC is known, and those that were dropped there for want of a MAC to the others.
func (j *journey) branches(hops []NextHop) []branch {
	out := make([]branch, len(hops))
	// Translation may write another source.
	ours := map[netip.Addr]bool{j.src: true}
	for _, f := range j.flows {
		if !j.reply && f.Reply.Src == j.dst {
			ours[f.Reply.Dst] = true
		}
	}
	for i, h := range hops {
		b := &out[i]
		b.NextHop = h
		shared := slices.ContainsFunc(hops, func(o NextHop) bool { return o != h && o.IfIndex == h.IfIndex })
		n := j.NeighborAt(h.Gateway, h.IfIndex)
		resolved := !h.Gateway.IsValid() || n != nil && Resolved(n)
		if !shared || resolved {
			b.sent = j.sentBy(h.IfIndex, ours)
		}
		for d := range model.Each(j.Traffic.Drops) {
			if d.IfIndex == h.IfIndex && d.Dst == j.dst && ours[d.Src] &&
				(!shared || (d.Hop() == model.HopNeighbor) != resolved) {
				b.lost += d.Packets
			}
		}
	}
	return out
}

// sentBy is how many packets from these sources left by a link.
func (j *journey) sentBy(ifindex int, sources map[netip.Addr]bool) uint64 {
	var pairs, peers uint64
	for c := range model.Each(j.Traffic.Pairs) {
		if c.IfIndex == ifindex && c.Direction == model.Egress && c.Dst == j.dst && sources[c.Src] {
			pairs += c.Packets
		}
	}
	for p := range model.Each(j.Traffic.Peers) {
		if p.IfIndex == ifindex && p.Remote == j.dst && sources[p.Local] {
			peers += p.Out.Packets
		}
	}
	return max(pairs, peers)
}
