// Package ledger balances what was counted: for each pod, what came into the
// node against what left it and what was dropped. It is pure.
package ledger

import (
	"cmp"
	"math"
	"net/netip"
	"slices"

	"github.com/lasthop/lasthop/probe/model"
)

// Balance makes the ledger of a snapshot: two rows for each pod and family of
// addresses. causes are those of the snapshot's drops, in their order; what is
// missing of them is unknown. Without counters there is no ledger.
func Balance(s *model.Snapshot, causes []model.DropCause) []model.LedgerRow {
	if s.Status(model.SourceTC) == model.Missing {
		return nil
	}
	b := newBooks(s, causes)
	for i := range b.accounts {
		a := &b.accounts[i]
		if a.direction == model.FromPod {
			b.sent(a)
		} else {
			b.received(a)
		}
	}
	b.settle()
	rows := make([]model.LedgerRow, 0, len(b.accounts))
	for i := range b.accounts {
		rows = append(rows, b.row(&b.accounts[i]))
	}
	return rows
}

// books are a snapshot's counts, by what the accounts ask for.
type books struct {
	*model.Snapshot
	hops map[hopKey]*hop
	// at are the hops of a link.
	at map[int][]*hop
	// arrived are packets from a remote address to one of the node's.
	arrived map[netip.Addr]tally
	drops   map[netip.Addr][]dropTally // by either end

	links map[int]*model.Link
	node  map[netip.Addr]bool
	// outer are the links that lead off the node, doors those to pods.
	outer []int
	doors map[int]*model.Pod
	// owners are the namespaces of an address's pods.
	owners  map[netip.Addr]map[uint32]bool
	podMACs map[model.MAC]bool
	nat     translations
	// doubts are reasons for which nothing missing is surely lost.
	doubts   []string
	accounts []account
}

// hopKey is a place where packets of an address are counted.
type hopKey struct {
	addr   netip.Addr
	link   int
	egress bool
	dst    bool // the address is the destination
}

// hop is what was counted there; inner and forwarded are parts of all, see
// model.HopCount.
type hop struct {
	hopKey
	all, inner, forwarded tally
	macs                  []macTally
}

func keyOf(a netip.Addr, link int, d model.Direction, side model.Side) hopKey {
	return hopKey{a, link, d == model.Egress, side == model.AsDestination}
}

// hop finds what was counted at a place; nothing where there is no count.
func (b *books) hop(a netip.Addr, link int, d model.Direction, side model.Side) *hop {
	if h := b.hops[keyOf(a, link, d, side)]; h != nil {
		return h
	}
	return &nothing
}

var nothing hop

type macTally struct {
	dst model.MAC
	tally
}

type dropTally struct {
	*model.Drop
	model.DropCause
	tally
}

// account is a row that is being made.
type account struct {
	pod       *model.Pod
	direction model.LedgerDirection
	addrs     []netip.Addr
	// in and out are known parts; rest is what they and the drops leave.
	in, out []part
	drops   map[model.LedgerDrop]uint64
	// copies are drops of what may be copies of the packets.
	copies []*dropTally
	// rest is certain: what came in between the readings of the window's
	// edges, less all that may have been of it. counted is between the
	// first readings of both edges, as the row shows it.
	rest, counted   int64
	edgeIn, edgeOut uint64
	// slack is how much more the rest can be: packets that were taken for
	// the node's own and may have been translated and gone on.
	slack int64
	// translated are packets whose address was changed on the way, as far as
	// others tell it: all of what is missing, or too much.
	translated int64
	// least and most bound the unexplained; most is unbounded for no bound.
	least, most int64
	why         []string
}

// unbounded is more than any count.
const unbounded = math.MaxInt64

type part struct {
	place model.LedgerPlace
	tally
}

func newBooks(s *model.Snapshot, causes []model.DropCause) *books {
	b := &books{
		Snapshot: s, hops: map[hopKey]*hop{}, at: map[int][]*hop{},
		arrived: map[netip.Addr]tally{}, drops: map[netip.Addr][]dropTally{}, links: map[int]*model.Link{},
		node: map[netip.Addr]bool{}, doors: map[int]*model.Pod{}, owners: map[netip.Addr]map[uint32]bool{},
		podMACs: map[model.MAC]bool{},
	}
	for i := range s.Links {
		l := &s.Links[i]
		b.links[l.Index] = l
		if l.Role == model.RoleUplink || l.Role == model.RoleTunnel {
			b.outer = append(b.outer, l.Index)
		}
		for _, p := range l.Addresses {
			if counted(l, p) {
				b.node[p.Addr()] = true
			}
		}
	}
	for _, pods := range [][]model.Pod{s.PastPods, s.Pods} {
		for i := range pods {
			b.enter(&pods[i])
		}
	}
	slices.SortStableFunc(b.accounts, func(x, y account) int {
		return cmp.Or(x.addrs[0].Compare(y.addrs[0]), cmp.Compare(x.pod.LinkIndex, y.pod.LinkIndex), cmp.Compare(x.direction, y.direction))
	})
	b.countHops()
	b.countDrops(causes)
	b.nat = b.translations()
	b.doubt()
	return b
}

// enter opens a pod's accounts.
func (b *books) enter(p *model.Pod) {
	b.doors[p.LinkIndex] = p
	b.podMACs[p.MAC] = !p.MAC.IsZero()
	families := map[bool][]netip.Addr{}
	for _, a := range p.Addresses {
		addr := a.Addr()
		if b.owners[addr] == nil {
			b.owners[addr] = map[uint32]bool{}
		}
		b.owners[addr][p.Netns] = true
		families[addr.Is4()] = append(families[addr.Is4()], addr)
	}
	for _, is4 := range []bool{true, false} {
		if addrs := families[is4]; len(addrs) > 0 {
			slices.SortFunc(addrs, netip.Addr.Compare)
			for _, d := range []model.LedgerDirection{model.FromPod, model.ToPod} {
				b.accounts = append(b.accounts, account{pod: p, direction: d, addrs: addrs, drops: map[model.LedgerDrop]uint64{}})
			}
		}
	}
}

// sum adds one hop's counts over an account's addresses.
func (b *books) sum(a *account, link int, d model.Direction, side model.Side) tally {
	var t tally
	for _, addr := range a.addrs {
		t = t.plus(b.hop(addr, link, d, side).all)
	}
	return t
}

// frames sums the frames at a hop whose destination MAC is of a kind.
func (b *books) frames(a *account, link int, d model.Direction, side model.Side, of func(model.MAC) bool) tally {
	var t tally
	for _, addr := range a.addrs {
		for _, m := range b.hop(addr, link, d, side).macs {
			if of(m.dst) {
				t = t.plus(m.tally)
			}
		}
	}
	return t
}

// sent accounts for what a pod sends. It comes in by the pod's link, and again
// where the fabric takes it round.
func (b *books) sent(a *account) {
	door := a.pod.LinkIndex
	groups := b.frames(a, door, model.Ingress, model.AsSource, isGroup)
	a.in = append(a.in, part{model.PlacePods, b.sum(a, door, model.Ingress, model.AsSource)})
	var outside, again, pods, own tally
	for _, u := range b.outer {
		outside = outside.plus(b.left(a, u, model.AsSource))
		again = again.plus(b.sum(a, u, model.Ingress, model.AsSource))
	}
	for link := range b.doors {
		pods = pods.plus(b.through(a, link))
	}
	for n := range b.node {
		if n.Is4() == a.addrs[0].Is4() {
			own = own.plus(b.hop(n, door, model.Ingress, model.AsDestination).all)
		}
	}
	if a.has(b.nat.throughNode) {
		a.slack = int64(own.late())
	}
	a.in = append(a.in, part{model.PlaceOutsideAgain, again})
	a.out = []part{{model.PlaceOutside, outside}, {model.PlacePods, pods}, {model.PlaceNode, own}, {model.PlaceGroups, groups}}
	a.balance()
	b.takeDrops(a, func(d *model.Drop) bool { return slices.Contains(a.addrs, d.Src) })
}

// through is what the account's pod sent that left by a pod's link, for that
// pod. Out of a port a bridge also floods what is for others.
func (b *books) through(a *account, door int) tally {
	copies := isGroup
	if l := b.links[door]; l != nil && l.Master != 0 {
		copies = b.others(door)
	}
	return b.sum(a, door, model.Egress, model.AsSource).minus(b.frames(a, door, model.Egress, model.AsSource, copies))
}

// left is what left by a link that leads off the node, but for copies: what a
// bridge floods while it has not learnt where a pod is, and what is for groups.
func (b *books) left(a *account, link int, side model.Side) tally {
	copies := b.frames(a, link, model.Egress, side, func(m model.MAC) bool { return isGroup(m) || b.podMACs[m] })
	return b.sum(a, link, model.Egress, side).minus(copies)
}

// others tells the MACs that are not of the pod behind a link.
func (b *books) others(door int) func(model.MAC) bool {
	pod := b.doors[door]
	return func(m model.MAC) bool { return isGroup(m) || !pod.MAC.IsZero() && m != pod.MAC }
}

// own is how much of what left for a pod by a link the node itself sent.
func (b *books) own(a *account, link int, left tally) tally {
	for _, addr := range a.addrs {
		left = left.minus(b.hop(addr, link, model.Egress, model.AsDestination).forwarded)
	}
	return left
}

// received accounts for what a pod is sent. What the node itself sends is seen
// first where it leaves.
func (b *books) received(a *account) {
	door := a.pod.LinkIndex
	out := b.sum(a, door, model.Egress, model.AsDestination)
	own := b.own(a, door, out)
	var outside, again, pods tally
	for _, u := range b.outer {
		outside = outside.plus(b.sum(a, u, model.Ingress, model.AsDestination))
		left := b.left(a, u, model.AsDestination)
		again = again.plus(left)
		own = own.plus(b.own(a, u, left))
	}
	// Flooded, such a frame passes the pod's own link besides.
	again = again.minus(b.frames(a, door, model.Egress, model.AsDestination, b.others(door)))
	for link := range b.doors {
		pods = pods.plus(b.sum(a, link, model.Ingress, model.AsDestination))
	}
	a.in = []part{{model.PlaceOutside, outside}, {model.PlacePods, pods}, {model.PlaceNode, own}}
	a.out = []part{{model.PlacePods, out}, {model.PlaceOutsideAgain, again}}
	a.balance()
	b.takeDrops(a, func(d *model.Drop) bool { return slices.Contains(a.addrs, d.Dst) })
}

// balance is what the known parts leave.
func (a *account) balance() {
	for _, p := range a.in {
		a.rest, a.counted = a.rest+int64(p.early()), a.counted+int64(p.window())
		a.edgeIn += p.edge()
	}
	for _, p := range a.out {
		a.take(p.tally)
	}
}

// take takes what came out, or was dropped.
func (a *account) take(t tally) {
	a.rest, a.counted = a.rest-int64(t.late()), a.counted-int64(t.window())
	a.edgeOut += t.edge()
}

func isGroup(m model.MAC) bool { return m[0]&1 != 0 }
