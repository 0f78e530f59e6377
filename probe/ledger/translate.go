package ledger

import (
	"fmt"
	"net/netip"
	"slices"

	"github.com/lasthop/lasthop/probe/model"
)

// translations are what connection tracking says of pods' flows whose
// addresses are changed on the way.
type translations struct {
	// throughNode are pods that send to an address of the node what is then
	// sent on to somebody else.
	throughNode map[netip.Addr]bool
	// foreign are pods whose packets get, or are sent to, an address that is
	// neither theirs nor the node's, nor of a service for pods of the node:
	// such packets are not counted elsewhere.
	foreign map[netip.Addr]bool
	// inward are pods that send to another address what is then the node's.
	inward map[netip.Addr]bool
	// diverted are pods whose own address is translated to another.
	diverted map[netip.Addr]bool
	// remotes are the ends off the node from which packets for a pod arrive
	// for an address of the node.
	remotes map[netip.Addr]map[netip.Addr]bool
	// local are pods to which pods of the node send by another address than
	// the pod's own.
	local map[netip.Addr]bool
	// services says that pods answer each other with a service's address.
	services bool
	// transit says that others' packets leave with the node's address too.
	transit bool
}

func (b *books) translations() translations {
	t := translations{
		throughNode: map[netip.Addr]bool{}, foreign: map[netip.Addr]bool{},
		inward: map[netip.Addr]bool{}, diverted: map[netip.Addr]bool{},
		remotes: map[netip.Addr]map[netip.Addr]bool{}, local: map[netip.Addr]bool{},
	}
	for i := range b.Flows {
		f := &b.Flows[i]
		if b.owners[f.Original.Src] != nil {
			b.asked(&t, f)
		}
		if b.owners[f.Reply.Src] != nil && f.Original.Dst != f.Reply.Src {
			b.served(&t, f)
		}
		if f.Original.Dst != f.Reply.Src {
			t.diverted[f.Original.Dst] = true
		}
		if b.owners[f.Original.Src] == nil && !b.node[f.Original.Src] && b.node[f.Reply.Dst] {
			t.transit = true
		}
	}
	return t
}

// asked takes a flow that a pod began.
func (b *books) asked(t *translations, f *model.Flow) {
	pod, peer := f.Original.Src, f.Reply.Src
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
	case b.owners[peer] != nil:
		// The peer's answers go to the node's address, and from there to
		// the pod.
		t.throughNode[peer], t.local[pod] = true, true
	default:
		add(t.remotes, pod, peer)
	}
}

// served takes a flow that came to a pod by another address.
func (b *books) served(t *translations, f *model.Flow) {
	pod, client := f.Reply.Src, f.Original.Src
	switch {
	case b.node[client]:
	case b.owners[client] != nil:
		t.local[pod], t.services = true, true
	case b.node[f.Original.Dst]:
		add(t.remotes, pod, client)
	default:
		t.foreign[pod] = true
	}
	if b.node[f.Reply.Dst] && !b.node[client] {
		t.throughNode[pod] = true
	}
}

func add(m map[netip.Addr]map[netip.Addr]bool, k, v netip.Addr) {
	if m[k] == nil {
		m[k] = map[netip.Addr]bool{}
	}
	m[k][v] = true
}

// has reports whether the account's pod is in a set.
func (a *account) has(set map[netip.Addr]bool) bool {
	return slices.ContainsFunc(a.addrs, func(p netip.Addr) bool { return set[p] })
}

func (a *account) hasRemotes(of map[netip.Addr]map[netip.Addr]bool) bool {
	return slices.ContainsFunc(a.addrs, func(p netip.Addr) bool { return len(of[p]) > 0 })
}

// settle bounds what is unexplained in each family: first what pods send, since
// what they are sent by services is known by that.
func (b *books) settle() {
	for _, is4 := range []bool{true, false} {
		var from, to []*account
		for i := range b.accounts {
			a := &b.accounts[i]
			switch {
			case a.addrs[0].Is4() != is4:
			case a.direction == model.FromPod:
				from = append(from, a)
			default:
				to = append(to, a)
			}
		}
		b.settleSent(from, b.disguised(is4))
		b.settleReceived(to, !slices.ContainsFunc(from, func(a *account) bool { return a.most > 0 }))
	}
	for i := range b.accounts {
		b.judge(&b.accounts[i])
	}
}

// disguised is what left with another source than a pod's, and was not the
// node's own: with an address of the node, or, by the link of a pod, with that
// of a service.
func (b *books) disguised(is4 bool) tally {
	var t tally
	for _, h := range b.hops {
		if !h.egress || h.addr.Is4() != is4 {
			continue
		}
		door := b.doors[h.link]
		switch {
		case !h.dst && b.node[h.addr] && (door != nil || slices.Contains(b.outer, h.link)):
			t = t.plus(h.inner)
		case b.nat.services && h.dst && door != nil && door.Has(h.addr):
			t = t.plus(h.inner.minus(b.undisguised(h.link, is4)))
		}
	}
	return t
}

// undisguised is what left by a pod's link, for that pod, with an address of
// another pod or of the node.
func (b *books) undisguised(door int, is4 bool) tally {
	var t tally
	for _, h := range b.at[door] {
		if !h.egress || h.dst || h.addr.Is4() != is4 {
			continue
		}
		n := h.inner
		for _, m := range h.macs {
			if b.others(door)(m.dst) {
				n = n.minus(m.tally)
			}
		}
		t = t.plus(n)
	}
	return t
}

// settleSent lays what is missing of all pods against what left in disguise.
// Where both are equal nothing is missing of any pod, since of none it can be
// less than nothing.
func (b *books) settleSent(rows []*account, out tally) {
	var rest, slack int64
	for _, a := range rows {
		rest, slack = rest+max(a.rest, 0), slack+a.slack
	}
	left := int64(out.late())
	total := max(0, rest-left)
	for _, a := range rows {
		a.least, a.most = max(0, a.rest-left), min(max(0, a.rest)+a.slack, total+slack)
		switch {
		case a.rest <= 0 && a.slack == 0:
			// The edges hide what was translated, if any was.
			a.translated = min(max(0, a.counted), int64(out.window()))
			continue
		case left > rest+slack+int64(out.edge()+sumEdges(rows)) || b.nat.transit && b.mixes():
			a.most = max(0, a.rest) + a.slack
			a.doubt("others' packets leave with the node's address as well: of %d, up to %d may be the pod's", left, min(left, max(0, a.rest)))
		case a.slack > 0:
			a.doubt("of %d packets to the node's own address, some are translated and go on", a.slack)
		case a.least < a.most:
			a.doubt("after translation pods cannot be told apart: %d packets of all of them are missing", total)
		}
		if a.most > 0 && a.hasRemotes(b.nat.remotes) {
			a.doubt("what is dropped after translation bears the node's address, and is not counted as the pod's")
		}
		switch {
		case a.has(b.nat.foreign):
			a.least, a.most = 0, max(0, a.rest)+a.slack
			a.doubt("packets are translated to an address that is neither the pod's nor the node's")
		case a.has(b.nat.inward):
			a.least, a.most = 0, max(0, a.rest)+a.slack
			a.doubt("packets to other addresses are translated to the node's own")
		}
		if a.least == a.most {
			a.translated = max(0, a.counted-a.most)
		}
	}
}

// mixes reports whether what came in from outside may be taken for what pods
// sent: by a bridge that holds an uplink, or by a tunnel.
func (b *books) mixes() bool {
	return slices.ContainsFunc(b.outer, func(i int) bool { return b.links[i].Master != 0 || b.links[i].Role == model.RoleTunnel })
}

func sumEdges(rows []*account) uint64 {
	var n uint64
	for _, a := range rows {
		n += a.edgeIn + a.edgeOut
	}
	return n
}

// settleReceived lays what came to pods and is not known to have come in
// against what arrived for the node's address from the other ends of their
// translated flows. lossless says that nothing is missing of what pods send, so
// that what they send each other by services is known.
func (b *books) settleReceived(rows []*account, lossless bool) {
	bounds := make([]int64, len(rows))
	remotes := map[netip.Addr]bool{}
	var total, bound int64
	for i, a := range rows {
		for _, addr := range a.addrs {
			for r := range b.nat.remotes[addr] {
				if !remotes[r] {
					remotes[r] = true
					bound += int64(b.arrived[r].early())
				}
				bounds[i] += int64(b.arrived[r].early())
				a.edgeIn += b.arrived[r].edge()
			}
		}
		local := b.byServices(a, lossless)
		bounds[i], bound = bounds[i]+local, bound+local
		if bounds[i] > 0 {
			total += a.rest
		}
	}
	edges := sumEdges(rows)
	for i, a := range rows {
		a.least = max(0, a.rest)
		a.most = min(max(0, a.rest+bounds[i]), max(a.least, total+bound))
		if bounds[i] == 0 {
			a.most = a.least
		}
		switch {
		case a.has(b.nat.diverted):
			a.least, a.most = 0, unbounded
			a.doubt("packets to the pod's address are translated to another")
		case a.has(b.nat.foreign), a.rest+bounds[i]+int64(edges) < 0:
			a.most = unbounded
			a.doubt("packets come by translations that connection tracking does not tell of any more, or in other sizes than they came in")
		case a.most > a.least:
			a.doubt("of what came for the node's address, up to %d packets may have been the pod's, or the node's own", bounds[i])
		default:
			a.translated = max(0, a.most-a.counted)
		}
	}
}

// byServices is how many packets from the node's pods may have come to a pod by
// another address than its own.
func (b *books) byServices(a *account, lossless bool) int64 {
	if !a.has(b.nat.local) {
		return 0
	}
	came := b.undisguised(a.pod.LinkIndex, a.addrs[0].Is4())
	if !lossless {
		return int64(came.late())
	}
	for _, p := range a.in {
		if p.place == model.PlacePods {
			came = came.minus(p.tally)
		}
	}
	return int64(came.late())
}

func (a *account) doubt(format string, args ...any) {
	a.why = append(a.why, fmt.Sprintf(format, args...))
}

// doubt notes what keeps a missing packet on any row from being lost for sure.
func (b *books) doubt() {
	switch {
	case !b.MayRedirect():
	case b.Has(model.SourcePrograms):
		b.doubts = append(b.doubts, "programs on the node's links may redirect packets past other links' hooks")
	default:
		b.doubts = append(b.doubts, "programs on the node's links were not all read, and may redirect packets past other links' hooks")
	}
	if !b.Has(model.SourceConntrack) {
		b.doubts = append(b.doubts, "connection tracking was not read, so that translated packets are not known")
	}
	if slices.ContainsFunc(b.Neighbors, func(n model.Neighbor) bool { return n.State == "INCOMPLETE" }) {
		b.doubts = append(b.doubts, "packets may wait for a neighbour that has not answered yet")
	}
}

// doubtsOf are the doubts about one row.
func (b *books) doubtsOf(a *account) []string {
	addr, ok := b.uncounted(a.addrs[0].Is4())
	if !ok || a.direction == model.ToPod {
		return b.doubts
	}
	return append(slices.Clone(b.doubts), fmt.Sprintf("packets to %s, which the node itself takes, are not counted apart", addr))
}

// uncounted finds an address of the node that packets are not counted for.
func (b *books) uncounted(is4 bool) (netip.Addr, bool) {
	for _, l := range b.Links {
		for _, p := range l.Addresses {
			a := p.Addr()
			if a.Is4() == is4 && !counted(&l, p) && !a.IsLoopback() && !(a.Is6() && a.IsLinkLocalUnicast()) {
				return a, true
			}
		}
	}
	return netip.Addr{}, false
}

// counted reports whether packets of an address of the node are counted apart.
// Those of services, which a dummy link may hold, are not.
func counted(l *model.Link, p netip.Prefix) bool {
	service := (l.Kind == "dummy" || l.Name == "lo") && p.IsSingleIP()
	return p.Addr().IsGlobalUnicast() && !service
}

// judge weighs what was found against what could not be seen.
func (b *books) judge(a *account) {
	whole := a.pod.Since.IsZero() || !a.pod.Since.After(b.Window.Start)
	alive := a.pod.Until.IsZero() || !a.pod.Until.Before(b.Window.End)
	// What is surely missing and was dropped as a copy was dropped.
	for _, d := range a.copies {
		if n := min(a.least, int64(d.late())); n > 0 {
			a.drop(d, uint64(n))
			a.least -= n
			if a.most != unbounded {
				a.most -= n
			}
		}
	}
	switch {
	case !whole || !alive:
		a.least, a.most, a.translated = 0, unbounded, 0
		a.why = []string{"the pod came or went within the window"}
	case slices.ContainsFunc(a.addrs, func(p netip.Addr) bool { return len(b.owners[p]) > 1 }):
		a.least, a.most, a.translated = 0, unbounded, 0
		a.why = []string{"another pod has the same address"}
	case b.Status(model.SourceTC) != model.OK:
		a.least, a.most, a.translated = 0, unbounded, 0
		a.why = []string{"not every link or address is watched"}
	case a.most > 0 && len(b.doubtsOf(a)) > 0:
		a.least, a.translated = 0, 0
		a.why = append(a.why, b.doubtsOf(a)...)
		if !b.Has(model.SourceConntrack) {
			a.most = unbounded
		}
	}
	if l := b.Traffic.Lost; a.most != unbounded && l.Counters+l.MACs+l.Unparsed > 0 {
		a.least, a.translated = 0, 0
		a.most += int64(l.Counters + l.MACs + l.Unparsed)
		a.doubt("lasthop itself could not count every packet")
	}
	if b.Status(model.SourceDrops) != model.OK && a.most > 0 {
		a.why = append(a.why, "drops are not watched")
	}
}
