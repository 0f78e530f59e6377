// Package ledger balances what was counted: for each pod, what came into the
// node against what left it and what was dropped. It is pure.
package ledger

import (
	"cmp"
	"math"
	"net/netip"
	"slices"

	"github.com/lasthop/lasthop/probe/loss"
	"github.com/lasthop/lasthop/probe/model"
)

// Balance makes the ledger of a snapshot: two rows for each pod and family of addresses. causes are those of the
// snapshot's drops, in their order; where there are fewer the cause is unknown. Without counters there is no ledger.
func Balance(s *model.Snapshot, causes []model.DropCause) []model.LedgerRow {
	if s.Status(model.SourceTC) == model.Missing {
		return nil
	}
	b := newBalance(s, causes)
	for _, r := range b.rows {
		if r.direction == model.FromPod {
			b.sent(r)
		} else {
			b.received(r)
		}
	}
	b.bound()
	return model.Map(b.rows, (*row).ledgerRow)
}

// balance is a snapshot, its counts indexed, and the rows that are being made.
type balance struct {
	*model.Snapshot
	classes *loss.Classifier
	hops    map[hopKey]*hop
	byLink  map[int][]*hop
	byAddr  map[netip.Addr][]*hop
	// arrived are packets from a remote address, or a range of them, to an address of the node.
	arrived map[netip.Prefix]tally
	ranges  []netip.Prefix
	drops   map[netip.Addr][]dropTally // by either address

	links map[int]*model.Link
	node  map[netip.Addr]bool
	// outer are the links that lead off the node, podLinks those to pods.
	outer    []int
	podLinks map[int]*model.Pod
	// netns are the namespaces of the pods that have an address.
	netns   map[netip.Addr]map[uint32]bool
	podMACs map[model.MAC]bool
	nat     translations
	// doubts are reasons why missing packets may not be lost, in any row.
	doubts []string
	rows   []*row
}

type hopKey struct {
	addr   netip.Addr
	link   int
	egress bool
	dst    bool // the address is the destination
}

// hop is what was counted there; inner and forwarded are parts of all, see model.HopCount.
type hop struct {
	hopKey
	all, inner, forwarded tally
	// macs are the frames by destination.
	macs map[model.MAC]tally
}

func keyOf(a netip.Addr, link int, d model.Direction, side model.Side) hopKey {
	return hopKey{a, link, d == model.Egress, side == model.AsDestination}
}

// hop is what was counted at a place, an empty hop where nothing was.
func (b *balance) hop(a netip.Addr, link int, d model.Direction, side model.Side) *hop {
	if h := b.hops[keyOf(a, link, d, side)]; h != nil {
		return h
	}
	return &noHop
}

var noHop hop

type dropTally struct {
	*model.Drop
	model.DropCause
	tally
}

type row struct {
	pod       *model.Pod
	direction model.LedgerDirection
	addrs     []netip.Addr
	in, out   []part
	drops     map[model.LedgerDrop]uint64
	// copies are drops of what may be copies of the packets.
	copies []*dropTally
	// rest is how many packets are missing for sure: those that came in between the readings at the window's edges, less
	// all that may have been these. counted is what is missing between the first readings of both edges.
	rest, counted   int64
	edgeIn, edgeOut uint64
	// slack is how much more the rest can be: packets that were counted as
	// the node's own and may have been translated and forwarded.
	slack int64
	// again is how much of what the pod sent the network returned to the node.
	again int64
	// translated are packets whose address was changed on the path, as far as
	// the counts of others show: all that are missing, or too many.
	translated int64
	// least and most bound the unexplained packets. shared says that the counts of other pods are part of it.
	least, most int64
	shared      bool
	why         []string
}

const unbounded = math.MaxInt64

type part struct {
	place model.LedgerPlace
	tally
}

func newBalance(s *model.Snapshot, causes []model.DropCause) *balance {
	b := &balance{
		Snapshot: s, classes: loss.NewClassifier(s), hops: map[hopKey]*hop{}, byLink: map[int][]*hop{}, byAddr: map[netip.Addr][]*hop{},
		arrived: map[netip.Prefix]tally{}, drops: map[netip.Addr][]dropTally{}, links: map[int]*model.Link{},
		node: map[netip.Addr]bool{}, podLinks: map[int]*model.Pod{}, netns: map[netip.Addr]map[uint32]bool{},
		podMACs: map[model.MAC]bool{},
	}
	for l := range model.Each(s.Links) {
		b.links[l.Index] = l
		if l.Role == model.RoleUplink || l.Role == model.RoleTunnel {
			b.outer = append(b.outer, l.Index)
		}
		for _, p := range l.Addresses {
			if l.Counted(p) {
				b.node[p.Addr()] = true
			}
		}
	}
	for p := range model.Each(slices.Concat(s.PastPods, s.Pods)) {
		b.addPod(p)
	}
	slices.SortStableFunc(b.rows, func(x, y *row) int {
		return cmp.Or(x.addrs[0].Compare(y.addrs[0]), cmp.Compare(x.pod.LinkIndex, y.pod.LinkIndex), cmp.Compare(x.direction, y.direction))
	})
	b.countHops()
	for far := range b.arrived {
		if !far.IsSingleIP() {
			b.ranges = append(b.ranges, far)
		}
	}
	b.countDrops(causes)
	b.translations()
	b.findDoubts()
	return b
}

func (b *balance) addPod(p *model.Pod) {
	b.podLinks[p.LinkIndex], b.podMACs[p.MAC] = p, !p.MAC.IsZero()
	families := map[bool][]netip.Addr{}
	for _, prefix := range p.Addresses {
		a := prefix.Addr()
		model.Include(b.netns, a, p.Netns, true)
		families[a.Is4()] = append(families[a.Is4()], a)
	}
	for _, addrs := range families {
		slices.SortFunc(addrs, netip.Addr.Compare)
		for _, d := range []model.LedgerDirection{model.FromPod, model.ToPod} {
			b.rows = append(b.rows, &row{pod: p, direction: d, addrs: addrs, drops: map[model.LedgerDrop]uint64{}})
		}
	}
}

func (r *row) is4() bool { return r.addrs[0].Is4() }

func (b *balance) sum(r *row, link int, d model.Direction, side model.Side) tally {
	var t tally
	for _, a := range r.addrs {
		t = t.plus(b.hop(a, link, d, side).all)
	}
	return t
}

// frames sums the frames at a hop whose destination MAC is of a kind.
func (b *balance) frames(r *row, link int, d model.Direction, side model.Side, of func(model.MAC) bool) tally {
	var t tally
	for _, a := range r.addrs {
		t = t.plus(b.hop(a, link, d, side).frames(of))
	}
	return t
}

func (h *hop) frames(of func(model.MAC) bool) tally {
	var t tally
	for mac, n := range h.macs {
		if of(mac) {
			t = t.plus(n)
		}
	}
	return t
}

// sent counts what a pod sends. It comes in by the pod's link, and again where the fabric returns it.
func (b *balance) sent(r *row) {
	link := r.pod.LinkIndex
	groups := b.frames(r, link, model.Ingress, model.AsSource, model.MAC.IsMulticast)
	var outside, again, pods, own tally
	for _, u := range b.outer {
		outside = outside.plus(b.left(r, u, model.AsSource))
		again = again.plus(b.sum(r, u, model.Ingress, model.AsSource))
	}
	for l := range b.podLinksOf(r) {
		pods = pods.plus(b.toPod(r, l))
	}
	for n := range b.node {
		if n.Is4() == r.is4() {
			own = own.plus(b.hop(n, link, model.Ingress, model.AsDestination).all)
		}
	}
	if r.anyIn(b.nat.throughNode) {
		r.slack = int64(own.late())
	}
	r.again = int64(again.late())
	r.in = []part{{model.PlacePods, b.sum(r, link, model.Ingress, model.AsSource)}, {model.PlaceOutsideAgain, again}}
	r.out = []part{{model.PlaceOutside, outside}, {model.PlacePods, pods}, {model.PlaceNode, own}, {model.PlaceGroups, groups}}
	r.addParts()
	b.subtractDrops(r, func(d *model.Drop) netip.Addr { return d.Src })
}

// podLinksOf are the links of pods at which a row's addresses were counted.
func (b *balance) podLinksOf(r *row) map[int]bool {
	out := map[int]bool{}
	for _, a := range r.addrs {
		for _, h := range b.byAddr[a] {
			if b.podLinks[h.link] != nil {
				out[h.link] = true
			}
		}
	}
	return out
}

// toPod is what the row's pod sent that left by a pod's link, for that pod. A
// bridge also floods frames for others out of a port.
func (b *balance) toPod(r *row, podLink int) tally {
	copies := model.MAC.IsMulticast
	if l := b.links[podLink]; l != nil && l.Master != 0 {
		copies = b.forOthers(podLink)
	}
	return b.sum(r, podLink, model.Egress, model.AsSource).minus(b.frames(r, podLink, model.Egress, model.AsSource, copies))
}

// left is what left by a link that leads off the node, without copies: frames
// that a bridge floods until it has learnt a pod's port, and those for groups.
func (b *balance) left(r *row, link int, side model.Side) tally {
	copies := b.frames(r, link, model.Egress, side, func(m model.MAC) bool { return m.IsMulticast() || b.podMACs[m] })
	return b.sum(r, link, model.Egress, side).minus(copies)
}

// forOthers matches the MACs that are not those of the pod behind a link.
func (b *balance) forOthers(podLink int) func(model.MAC) bool {
	pod := b.podLinks[podLink]
	return func(m model.MAC) bool { return m.IsMulticast() || !pod.MAC.IsZero() && m != pod.MAC }
}

// own is how much of what left for a pod by a link the node itself sent.
func (b *balance) own(r *row, link int, left tally) tally {
	for _, a := range r.addrs {
		left = left.minus(b.hop(a, link, model.Egress, model.AsDestination).forwarded)
	}
	return left
}

// received counts what is sent to a pod. What the node itself sends is first seen where it leaves.
func (b *balance) received(r *row) {
	link := r.pod.LinkIndex
	out := b.sum(r, link, model.Egress, model.AsDestination)
	own := b.own(r, link, out)
	var outside, again, pods tally
	for _, u := range b.outer {
		outside = outside.plus(b.sum(r, u, model.Ingress, model.AsDestination))
		left := b.left(r, u, model.AsDestination)
		again = again.plus(left)
		own = own.plus(b.own(r, u, left))
	}
	// A flooded frame passes the pod's own link as well.
	again = again.minus(b.frames(r, link, model.Egress, model.AsDestination, b.forOthers(link)))
	for l := range b.podLinksOf(r) {
		pods = pods.plus(b.sum(r, l, model.Ingress, model.AsDestination))
	}
	r.in = []part{{model.PlaceOutside, outside}, {model.PlacePods, pods}, {model.PlaceNode, own}}
	r.out = []part{{model.PlacePods, out}, {model.PlaceOutsideAgain, again}}
	r.addParts()
	b.subtractDrops(r, func(d *model.Drop) netip.Addr { return d.Dst })
}

// addParts takes the rest from the parts.
func (r *row) addParts() {
	for _, p := range r.in {
		r.rest, r.counted = r.rest+int64(p.early()), r.counted+int64(p.window())
		r.edgeIn += p.edge()
	}
	for _, p := range r.out {
		r.subtract(p.tally)
	}
}

// subtract takes what came out, or was dropped, from the rest.
func (r *row) subtract(t tally) {
	r.rest, r.counted = r.rest-int64(t.late()), r.counted-int64(t.window())
	r.edgeOut += t.edge()
}

// ledgerRow is the row as the report has it. What a pod sends is listed by where
// it went, what it is sent by where it came from.
func (r *row) ledgerRow() model.LedgerRow {
	out := model.LedgerRow{
		Addrs: r.addrs, Link: r.pod.Link, Direction: r.direction, In: model.Counted(total(r.in)), Out: model.Counted(total(r.out)),
		Edge: max(r.edgeIn, r.edgeOut), Least: uint64(r.least), Why: r.why,
	}
	if r.most != unbounded {
		out.Most = model.Counted(uint64(r.most))
	}
	// Translated packets are on the far side, which only the unexplained tell.
	parts, far := r.out, &out.Out
	if r.direction == model.ToPod {
		parts, far = r.in, &out.In
	}
	for _, p := range parts {
		if n := p.window(); n > 0 {
			out.Parts = append(out.Parts, model.LedgerPart{Place: p.place, Packets: n})
		}
	}
	switch {
	case !out.Unexplained().Known:
		*far = model.Count{}
	case r.translated > 0:
		far.N += uint64(r.translated)
		out.Parts = append(out.Parts, model.LedgerPart{Place: model.PlaceTranslated, Packets: uint64(r.translated)})
	}
	for d, n := range r.drops {
		d.Packets = n
		out.Drops = append(out.Drops, d)
		out.Dropped += n
	}
	slices.SortFunc(out.Drops, func(x, y model.LedgerDrop) int {
		return cmp.Or(cmp.Compare(y.Packets, x.Packets), cmp.Compare(x.Reason, y.Reason), cmp.Compare(x.Location, y.Location), cmp.Compare(x.Code, y.Code))
	})
	return out
}

func total(parts []part) uint64 { return model.Sum(parts, part.window) }
