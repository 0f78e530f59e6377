package ledger

import (
	"fmt"
	"net/netip"
	"slices"

	"github.com/lasthop/lasthop/probe/model"
)

type addrSet = map[netip.Addr]bool

// translations are what connection tracking says of pods' flows whose addresses are changed on the path.
type translations struct {
	// throughNode are pods that send to an address of the node packets that are then forwarded to another.
	throughNode addrSet
	// foreign are pods whose packets get, or are sent to, an address that is neither theirs nor the node's, nor of a
	// service for pods of the node: such packets are not counted elsewhere.
	foreign addrSet
	// inward are pods that send to another address packets that are then the node's.
	inward addrSet
	// diverted are pods whose own address is translated to another.
	diverted addrSet
	// remotes are the addresses off the node from which packets for a pod arrive for an address of the node.
	remotes map[netip.Addr]addrSet
	// local are pods to which pods of the node send by another address than the pod's own.
	local addrSet
	// services is set where pods reply to each other with a service's address.
	services bool
	// transit is set where others' packets leave with the node's address too.
	transit bool
}

func (b *balance) translations() {
	t := &b.nat
	*t = translations{
		throughNode: addrSet{}, foreign: addrSet{}, inward: addrSet{}, diverted: addrSet{}, remotes: map[netip.Addr]addrSet{}, local: addrSet{},
	}
	for f := range model.Each(b.Flows) {
		if b.netns[f.Original.Src] != nil {
			b.addOutgoing(f)
		}
		if f.Original.Dst != f.Reply.Src {
			t.diverted[f.Original.Dst] = true
			if b.netns[f.Reply.Src] != nil {
				b.addIncoming(f)
			}
		}
		if b.netns[f.Original.Src] == nil && !b.node[f.Original.Src] && b.node[f.Reply.Dst] {
			t.transit = true
		}
	}
}

func (b *balance) addOutgoing(f *model.Flow) {
	t, pod, peer := &b.nat, f.Original.Src, f.Reply.Src
	if b.node[f.Original.Dst] && !b.node[peer] {
		t.throughNode[pod] = true
	}
	if b.node[peer] && !b.node[f.Original.Dst] {
		t.inward[pod] = true
	}
	switch {
	case f.Reply.Dst == pod:
	case !b.node[f.Reply.Dst]:
		t.foreign[pod] = true
	case b.netns[peer] != nil:
		// The peer's replies go to the node's address, and from there to the pod.
		t.throughNode[peer], t.local[pod] = true, true
	default:
		model.Include(t.remotes, pod, peer, true)
	}
}

// addIncoming adds a flow that came to a pod by another address.
func (b *balance) addIncoming(f *model.Flow) {
	t, pod, client := &b.nat, f.Reply.Src, f.Original.Src
	switch {
	case b.node[client]:
	case b.netns[client] != nil:
		t.local[pod], t.services = true, true
	case b.node[f.Original.Dst]:
		model.Include(t.remotes, pod, client, true)
	default:
		t.foreign[pod] = true
	}
	if b.node[f.Reply.Dst] && !b.node[client] {
		t.throughNode[pod] = true
	}
}

func (r *row) anyIn(set addrSet) bool {
	return slices.ContainsFunc(r.addrs, func(a netip.Addr) bool { return set[a] })
}

// bound bounds the unexplained packets in each family: first of what pods send,
// since that says what services send to pods.
func (b *balance) bound() {
	for _, is4 := range []bool{true, false} {
		var from, to []*row
		for _, r := range b.rows {
			switch {
			case r.is4() != is4:
			case r.direction == model.FromPod:
				from = append(from, r)
			default:
				to = append(to, r)
			}
		}
		b.boundSent(from, b.leftTranslated(is4))
		b.boundReceived(to, !slices.ContainsFunc(from, func(r *row) bool { return r.most > 0 }))
	}
	for _, r := range b.rows {
		b.weigh(r)
	}
}

// leftTranslated is what left with another source than a pod's, and was not the node's own: with an address of the node
// or, by the link of a pod, with that of a service.
func (b *balance) leftTranslated(is4 bool) tally {
	var t tally
	for _, h := range b.hops {
		if !h.egress || h.addr.Is4() != is4 {
			continue
		}
		pod := b.podLinks[h.link]
		switch {
		case !h.dst && b.node[h.addr] && (pod != nil || slices.Contains(b.outer, h.link)):
			t = t.plus(h.inner)
		case b.nat.services && h.dst && pod != nil && pod.Has(h.addr):
			t = t.plus(h.inner.minus(b.leftUntranslated(h.link, is4)))
		}
	}
	return t
}

// leftUntranslated is what left by a pod's link, for that pod, with an address of another pod or of the node.
func (b *balance) leftUntranslated(podLink int, is4 bool) tally {
	var t tally
	for _, h := range b.byLink[podLink] {
		if h.egress && !h.dst && h.addr.Is4() == is4 {
			t = t.plus(h.inner.minus(h.frames(b.forOthers(podLink))))
		}
	}
	return t
}

// boundSent compares what is missing of all pods with what left translated. Where both are equal nothing is missing of
// any pod, since no pod can miss less than nothing.
func (b *balance) boundSent(rows []*row, out tally) {
	var rest, slack int64
	for _, r := range rows {
		rest, slack = rest+max(r.rest, 0), slack+r.slack
	}
	left := int64(out.late())
	total := max(0, rest-left)
	for _, r := range rows {
		r.least, r.most = max(0, r.rest-left), min(max(0, r.rest)+r.slack, total+slack)
		r.shared = total+slack < max(0, r.rest)+r.slack
		switch {
		case r.rest <= 0 && r.slack == 0:
			// The edges hide what was translated, if any was.
			r.translated = min(max(0, r.counted), int64(out.window()))
			continue
		case left > rest+slack+int64(out.edge()+sumEdges(rows)) || b.nat.transit && b.mixes():
			r.most = max(0, r.rest) + r.slack
			r.doubt("other packets leave with the node's address too: up to %[2]d of %[1]d may be the pod's", left, min(left, max(0, r.rest)))
		case r.slack > 0:
			r.doubt("some of %d packets to the node's own address are translated and forwarded", r.slack)
		case r.least < r.most:
			r.doubt("after translation, pods cannot be told apart: %d packets of all of them are missing", total)
		}
		if r.most > 0 && slices.ContainsFunc(r.addrs, func(a netip.Addr) bool { return len(b.nat.remotes[a]) > 0 }) {
			r.doubt("packets dropped after translation have the node's address and are not counted for the pod")
		}
		why := ""
		switch {
		case r.anyIn(b.nat.foreign):
			why = "packets are translated to an address that is neither the pod's nor the node's"
		case r.anyIn(b.nat.inward):
			why = "packets to other addresses are translated to the node's own"
		}
		if why != "" {
			r.least, r.most = 0, max(0, r.rest)+r.slack
			r.doubt("%s", why)
		} else if r.again > 0 && r.anyIn(b.nat.local) {
			r.least, r.most = max(0, r.rest-r.again), max(0, r.rest)+r.slack
			r.doubt("the pods' own service traffic leaves and returns through the uplink, where replies get the service's address")
		}
		if r.least == r.most {
			r.translated = max(0, r.counted-r.most)
		}
	}
}

// mixes reports whether what came in from outside may be taken for what pods
// sent: by a bridge that holds an uplink, or by a tunnel.
func (b *balance) mixes() bool {
	return slices.ContainsFunc(b.outer, func(i int) bool { return b.links[i].Master != 0 || b.links[i].Role == model.RoleTunnel })
}

func sumEdges(rows []*row) uint64 {
	return model.Sum(rows, func(r *row) uint64 { return r.edgeIn + r.edgeOut })
}

// boundReceived compares what reached pods and is not known to have come in with what arrived for the node's address
// from the remotes of their translated flows. lossless is set where nothing is missing of what pods send: then it is
// known what they send each other by services.
func (b *balance) boundReceived(rows []*row, lossless bool) {
	bounds, seen := make([]int64, len(rows)), map[netip.Prefix]bool{}
	var total, bound int64
	for i, r := range rows {
		for far := range b.farOf(r) {
			n := int64(b.arrived[far].early())
			if !seen[far] {
				seen[far] = true
				bound += n
			}
			bounds[i] += n
			r.edgeIn += b.arrived[far].edge()
		}
		local := b.byServices(r, lossless)
		bounds[i], bound = bounds[i]+local, bound+local
		if bounds[i] > 0 {
			total += r.rest
		}
	}
	edges := int64(sumEdges(rows))
	for i, r := range rows {
		r.least = max(0, r.rest)
		r.most = r.least
		if bounds[i] != 0 {
			r.shared = true
			r.most = min(max(0, r.rest+bounds[i]), max(r.least, total+bound))
		}
		switch {
		case r.anyIn(b.nat.diverted):
			r.least, r.most = 0, unbounded
			r.doubt("packets to the pod's address are translated to another")
		case r.anyIn(b.nat.foreign), r.rest+bounds[i]+edges < 0:
			r.most = unbounded
			r.doubt("packets arrive by translations that connection tracking no longer lists, or were resegmented")
		case r.most > r.least:
			r.doubt("up to %d packets for the node's address may have been for the pod, or for the node itself", bounds[i])
		default:
			r.translated = max(0, r.most-r.counted)
		}
	}
}

// farOf are the counts of what arrived for the node's address in which that from the
// remotes of a row's translated flows is.
func (b *balance) farOf(r *row) map[netip.Prefix]bool {
	out := map[netip.Prefix]bool{}
	for _, a := range r.addrs {
		for remote := range b.nat.remotes[a] {
			out[netip.PrefixFrom(remote, remote.BitLen())] = true
			for _, far := range b.ranges {
				if far.Contains(remote) {
					out[far] = true
				}
			}
		}
	}
	return out
}

// byServices is how many packets from the node's pods may have come to a pod by another address than its own.
func (b *balance) byServices(r *row, lossless bool) int64 {
	if !r.anyIn(b.nat.local) {
		return 0
	}
	came := b.leftUntranslated(r.pod.LinkIndex, r.is4())
	for _, p := range r.in {
		if lossless && p.place == model.PlacePods {
			came = came.minus(p.tally)
		}
	}
	return int64(came.late())
}

func (r *row) doubt(format string, args ...any) { r.why = append(r.why, fmt.Sprintf(format, args...)) }

// findDoubts notes why missing packets may not be lost, in any row.
func (b *balance) findDoubts() {
	switch {
	case !b.MayRedirect():
	case b.Has(model.SourcePrograms):
		b.doubts = append(b.doubts, "BPF programs on the node's links may redirect packets past other links' hooks")
	default:
		b.doubts = append(b.doubts, "not all BPF programs on the node's links were read; they may redirect packets past other links' hooks")
	}
	if !b.Has(model.SourceConntrack) {
		b.doubts = append(b.doubts, "connection tracking was not read, so translated packets are unknown")
	}
	if slices.ContainsFunc(b.Neighbors, func(n model.Neighbor) bool { return n.State == "INCOMPLETE" }) {
		b.doubts = append(b.doubts, "packets may wait for neighbour resolution")
	}
}

// uncounted finds an address of the node that packets are not counted for.
func (b *balance) uncounted(is4 bool) (netip.Addr, bool) {
	for _, l := range b.Links {
		for _, p := range l.Addresses {
			if a := p.Addr(); a.Is4() == is4 && !l.Counted(p) && !a.IsLoopback() && !(a.Is6() && a.IsLinkLocalUnicast()) {
				return a, true
			}
		}
	}
	return netip.Addr{}, false
}

// weigh widens a row's bounds by what could not be seen.
func (b *balance) weigh(r *row) {
	// Packets that are surely missing, and of which copies were dropped, were dropped.
	for _, d := range r.copies {
		if n := min(r.least, int64(d.late())); n > 0 {
			r.drop(d, uint64(n))
			r.least -= n
			if r.most != unbounded {
				r.most -= n
			}
		}
	}
	young := r.pod.Since.After(b.Window.Start)
	ended, why := !r.pod.Until.IsZero() && r.pod.Until.Before(b.Window.End), ""
	switch {
	case young || ended:
		why = "the pod started or ended within the window"
	case r.pod.Late(b.Window):
		why = "the pod's packets were counted in a part of the window only"
	case slices.ContainsFunc(r.addrs, func(a netip.Addr) bool { return len(b.netns[a]) > 1 }):
		why = "another pod has the same address"
	case b.Status(model.SourceTC) != model.OK, b.Traffic.Lost.Gaps > 0:
		why = "not every link or address is watched"
	}
	doubts := slices.Clip(b.doubts)
	if a, ok := b.uncounted(r.is4()); ok && r.direction == model.FromPod {
		doubts = append(doubts, fmt.Sprintf("packets to %s, which the node itself receives, are not counted separately", a))
	}
	if why != "" {
		r.least, r.most, r.translated, r.why = 0, unbounded, 0, []string{why}
	} else if r.most > 0 && len(doubts) > 0 {
		r.least, r.translated = 0, 0
		r.why = append(r.why, doubts...)
		if !b.Has(model.SourceConntrack) {
			r.most = unbounded
		}
	}
	if n := b.lostOf(r); r.most != unbounded && n > 0 {
		r.least, r.translated = 0, 0
		r.most += int64(n)
		r.doubt("lasthop could not count all packets")
	}
	if b.Status(model.SourceDrops) != model.OK && r.most > 0 {
		r.why = append(r.why, "drops are not watched")
	}
}

// lostOf is how many packets may be missing from the counts that a row is made of:
// those of its own addresses, of the node's, and of other pods where these matter.
func (b *balance) lostOf(r *row) uint64 {
	l := &b.Traffic.Lost
	if r.shared {
		return l.Counters + l.MACs + l.Unparsed
	}
	n, own := l.Anyone(), model.SetOf(r.addrs)
	for _, o := range l.Addrs {
		if own[o.Addr] || b.node[o.Addr] {
			n += o.Hops + o.Peers + o.Drops + o.MACs
		}
	}
	return n
}
