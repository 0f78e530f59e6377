package join

import (
	"cmp"
	"maps"
	"net/netip"
	"slices"
	"time"

	faults "github.com/lasthop/lasthop/probe/fault"
	"github.com/lasthop/lasthop/probe/model"
	nodeindex "github.com/lasthop/lasthop/probe/node"
)

// state is what became of the packets of a leg.
type state uint8

const (
	// unsure: the receiving node would not have seen them all.
	unsure state = iota
	arrived
	lost
)

// leg is what went from an address of one node to an address of another.
type leg struct {
	from, to *node
	// pair is the sender's.
	pair *model.EndPair
	// near is what the sender counted of the pair, far what the receiver did.
	near, far *model.Counts
	state     state
	// shared: what was sent and what arrived are of one time.
	shared bool
	// flows are those of some ports of which the packets are lost, if others arrive.
	flows lostFlows
}

// hasArrived and isLost report whether packets took a leg, and what became of them.
func (w *leg) hasArrived() bool { return w != nil && w.state == arrived }
func (w *leg) isLost() bool     { return w != nil && w.state == lost }

func (w *leg) src() netip.Addr { return w.pair.Local }
func (w *leg) dst() netip.Addr { return w.pair.Remote }
func (w *leg) sent() uint64    { return w.near.Out.Packets }
func (w *leg) got() uint64     { return w.far.In.Packets }

// died is how many of its packets the leg's nodes dropped themselves between the counts of their uplinks.
func (w *leg) died() uint64 {
	k := nodeindex.Pair{Local: w.src(), Remote: w.dst()}
	return w.from.diedOut[k] + w.to.diedIn[k]
}

// volumes are what left for the range of the destination, and what arrived from that of the source.
func (w *leg) volumes() (leaving, arriving model.Volume) {
	from, to := w.from.whole, w.to.whole
	if w.shared {
		from, to = w.from.inner, w.to.outer
	}
	_, leaving = narrowest(from.leaving, w.dst())
	_, arriving = narrowest(to.arriving, w.src())
	return leaving, arriving
}

// conversation is a pair of addresses of which one waits for replies in vain.
type conversation struct {
	asker, far *node
	a, b       netip.Addr
	pair       *model.EndPair
	// forward and reverse are nil where nothing took them.
	forward, reverse *leg
}

// minLost is how many packets must be lost before that is worth a word: single ones get lost everywhere. minUnasked is how
// many, where nobody waits for replies.
const minLost, minUnasked = 3, 10

// fewReplies is how many packets must arrive for each reply before the replies are as good as none.
const fewReplies = 10

// overlap is how long the packets must have left for within the receiver's window.
const overlap = 2 * time.Second

// follow compares what each node sent to the addresses of others with what these
// counted of it. Where that asks for it, they are compared again in the time common to both.
func (j *joint) follow() {
	legs := j.allLegs()
	if j.cut(legs) {
		legs = j.allLegs()
	}
	slices.SortFunc(legs, func(a, b *leg) int { return cmp.Or(a.src().Compare(b.src()), a.dst().Compare(b.dst())) })
	j.legs = legs
	j.wait()
}

// leg is that from one address to another; nil where nothing went.
func (j *joint) leg(src, dst netip.Addr) *leg {
	i, found := slices.BinarySearchFunc(j.legs, nodeindex.Pair{Local: src, Remote: dst}, func(w *leg, e nodeindex.Pair) int {
		return cmp.Or(w.src().Compare(e.Local), w.dst().Compare(e.Remote))
	})
	if !found {
		return nil
	}
	return j.legs[i]
}

func (j *joint) allLegs() []*leg {
	var out []*leg
	for _, n := range j.in {
		for i := range n.Pairs {
			p := &n.Pairs[i]
			if far := j.at[p.Remote]; far != nil && far != n && j.at[p.Local] == n && p.Out.Packets > 0 {
				out = append(out, j.legOf(n, far, i))
			}
		}
	}
	return out
}

func (j *joint) wait() {
	for _, n := range j.in {
		for p := range model.Each(n.Pairs) {
			if !p.Silent || j.at[p.Local] != n {
				continue
			}
			far, known := j.at[p.Remote]
			if !known {
				far = j.owner(p.Remote)
			}
			if far == nil || far == n {
				continue
			}
			t := &conversation{asker: n, far: far, a: p.Local, b: p.Remote, pair: p}
			t.forward, t.reverse = j.leg(p.Local, p.Remote), j.leg(p.Remote, p.Local)
			if b := t.reverse; b != nil && b.state == unsure && t.forward != nil && fewReplies*b.sent() <= t.forward.got() {
				// They were sent before the asker was watched: what is asked now gets none.
				t.reverse = nil
			}
			j.conversations = append(j.conversations, t)
		}
	}
}

// legOf is the leg of a pair's packets. Where nobody waits for replies, as of datagrams that want none, more must be
// lost; and what nodes send each other then may carry a tunnel, whose losses are counted at its link.
func (j *joint) legOf(n, far *node, i int) *leg {
	p := &n.Pairs[i]
	there := far.Index(p.Remote, p.Local)
	w := &leg{from: n, to: far, pair: p, near: &p.Counts, far: far.counts(far.whole, there)}
	waits, within := p.Silent || there >= 0 && far.Pairs[there].Silent, w.got()
	if w.shared = n.inner != nil && far.outer != nil; w.shared {
		w.near, w.far = n.counts(n.inner, i), far.counts(far.outer, there)
		within = far.counts(far.inner, there).In.Packets
	}
	switch {
	case within > 0 || fewReplies*w.got() > w.sent():
		w.state = arrived
	case w.got() == 0 && (waits || !w.isNode() && w.sent() >= minUnasked) && w.sent() >= minLost && far.blind == "" && far.Sees(p.Remote, p.Local) &&
		overlaps(n, far, p.First, p.Last) && (!far.Elsewhere[p.Remote] || far.getsOthers(p.Remote)):
		w.state = lost
	}
	w.flows = w.untracked()
	return w
}

// diesThere reports whether the receiver has a finding about both ends of the leg: what
// is lost between these may be lost there.
func (w *leg) diesThere() bool {
	return slices.ContainsFunc(w.to.findings, func(f model.Finding) bool {
		return !f.Is(model.Unheard) && !f.Passes && names(&f, w.src()) && names(&f, w.dst())
	})
}

func (w *leg) isNode() bool { return w.from.Node[w.src()] && w.to.Node[w.dst()] }

// bare is how many packets arrived that carry no tunnel for sure.
func (w *leg) bare() uint64 {
	return model.Either(w.isNode() && len(w.from.Tunnel.Links) > 0, w.far.In.Requests+w.far.In.Replies, w.got())
}

// toRange is the pod range that the leg leads to, which the network needs a route
// for; not valid where none is needed. fromRange is the one that it comes from.
func (w *leg) toRange() netip.Prefix   { return w.to.rangeOf(w.dst()) }
func (w *leg) fromRange() netip.Prefix { return w.from.rangeOf(w.src()) }

// nextHops finds the address of each node that routes to its pods have for a next hop:
// of several the one in a network of other nodes, and that these talk with.
func (j *joint) nextHops() {
	talked := map[netip.Addr]bool{}
	for _, o := range j.in {
		for p := range model.Each(o.Pairs) {
			if far := j.at[p.Remote]; o.Node[p.Local] && far != nil && far != o {
				talked[p.Remote] = true
			}
		}
	}
	for _, n := range j.in {
		n.hops = map[bool]netip.Addr{}
		near := func(a netip.Addr) bool {
			return slices.ContainsFunc(j.in, func(o *node) bool { return o != n && model.InAny(o.Networks, a) })
		}
		for _, is4 := range []bool{true, false} {
			found := model.Filter(slices.Collect(maps.Keys(n.Node)), func(a netip.Addr) bool {
				return a.IsGlobalUnicast() && a.Is4() == is4 && model.InAny(n.Networks, a)
			})
			for _, better := range []func(netip.Addr) bool{near, func(a netip.Addr) bool { return talked[a] }} {
				if some := model.Filter(found, better); len(some) > 0 {
					found = some
				}
			}
			if len(found) == 1 {
				n.hops[is4] = found[0]
			}
		}
		n.Rows = model.Map(n.Rows, n.withHop)
	}
}

// withHop is a row to pods of the node with the next hop that it needs, where that is known.
func (n *node) withHop(row model.Row) model.Row {
	if row.Hop == nodeindex.NodeIP {
		row.Hop = hopText(n.hops[row.Range.Addr().Is4()])
	}
	return row
}

// hopText is a next hop in words.
func hopText(hop netip.Addr) string {
	return model.Either(hop.IsValid(), hop.String(), nodeindex.NodeIP)
}

// hopOr is the next hop of a row to the node's pods, for a finding, which is likely at most where that is not known.
func (n *node) hopOr(row netip.Prefix, f *faults.Fault) string {
	if !n.hops[row.Addr().Is4()].IsValid() {
		nodes, _ := f.Facts["unknownHops"].([]*node)
		f.Facts["unknownHops"] = append(nodes, n)
	}
	return hopText(n.hops[row.Addr().Is4()])
}

// minLarge is how many packets other than requests a pair must have sent for the share that arrives to mean anything.
const minLarge = 10

// losesLarge reports whether small packets of a leg arrive and large ones do not: of the requests, which are
// small, or of datagrams among which fragments are large, a larger share than of all bytes, and what arrives is smaller
// than what left. Offloads may merge or
// cut packets on either node, but then of the bytes none is missing. What came back shows that both nodes
// watched the same: a burst in one window alone has replies there.
func (w *leg) losesLarge() bool {
	if w.watched() && w.losesFragments() {
		return true
	}
	small, of := w.far.In.Requests, w.near.Out.Requests
	if w.onlyDatagrams() {
		small, of = w.far.In.Other, w.near.Out.Other
	}
	if !w.weighed() || of < minLost || small < minLost || w.near.Out.Replies+w.near.Out.Other < minLarge {
		return false
	}
	came, back := float64(w.near.In.Packets), float64(w.far.Out.Packets)
	// So much arrives of what is small, and was sent while both watched.
	out, in := w.volumes()
	passes, arrive := min(1, share(small, of)), float64(in.Bytes)
	if came > 0 {
		passes, arrive = min(passes, back/came), arrive*min(1, came/back)
	}
	return arrive < 0.6*passes*float64(out.Bytes) && w.shrinks()
}

// watched reports whether the other node watched what arrived of the leg.
func (w *leg) watched() bool {
	return w.state == arrived && w.to.blind == "" && w.to.Sees(w.dst(), w.src()) && w.comparable()
}

// weighed reports whether both nodes watched the same of what arrives and comes back, and most of what is missing died on
// neither: then shares of what left may be compared with shares of what arrived.
func (w *leg) weighed() bool {
	if !w.watched() || 2*w.died() > w.sent()-min(w.sent(), w.got()) {
		return false
	}
	// Readings are so far apart that windows cut to one time still differ by some.
	apart := model.Either(!w.shared, 1.1, 1.5)
	came, back := float64(w.near.In.Packets), float64(w.far.Out.Packets)
	return came <= apart*back && back <= apart*came
}

// minThin is how many requests must be missing, of which a quarter or more is lost, for a network that loses some.
const minThin = 20

// isThinned reports whether a part of a leg's requests does not arrive, whatever their size: offloads merge and cut no requests.
// What came back shows that both nodes watched the same, and that the sender repeats its requests that these were not
// sent at another time.
func (w *leg) isThinned() bool {
	sent, got, begun := w.near.Out.Requests, w.far.In.Requests, 0
	for _, a := range w.pair.Asked {
		if begun += model.Either(a.Here, 0, a.Replied+a.Unreplied); a.Proto != model.TCP {
			// Each echo of a flow is a request.
			return false
		}
	}
	return begun > 0 && len(w.pair.Asked) < model.MaxAsked && 4*w.pair.Out.Requests >= uint64(5*begun) &&
		got+minThin <= sent && 4*got <= 3*sent && w.weighed()
}

// losesFragments reports whether fragments of a leg's datagrams are lost: those after the first, which the nodes count.
func (w *leg) losesFragments() bool {
	sent, got := w.near.Out.Fragments, w.far.In.Fragments
	return sent >= minUnasked && fewReplies*(got+w.died()) <= sent && w.got() > got
}

// losesOnlyFragments reports whether the first fragments arrive too, as no filter of ports would have them.
func (w *leg) losesOnlyFragments() bool {
	lost, fragments := w.sent()-min(w.sent(), w.got()), w.near.Out.Fragments-min(w.near.Out.Fragments, w.far.In.Fragments)
	return w.losesFragments() && 2*lost < 2*fragments+uint64(max(minLost, w.flows.n))
}

func (w *leg) onlyDatagrams() bool { return w.near.Out.Requests == 0 && w.near.Out.Replies == 0 }

func (w *leg) shrinks() bool {
	out, in := w.volumes()
	return out.Packets > 0 && in.Packets > 0 && share(in.Bytes, in.Packets) < 0.6*share(out.Bytes, out.Packets)
}

func share(part, of uint64) float64 { return float64(part) / float64(of) }

// largeLoss is how many small and large packets left one node and arrived at the other, and how
// many bytes packets between the two ranges have.
type largeLoss struct {
	Asked, Others, GotAsked, GotOthers uint64
	Size, GotSize                      uint64
	// Fragments are of the others, those after the first of a datagram.
	Fragments, GotFragments uint64
}

func largeLost(legs []*leg) *largeLoss {
	var l largeLoss
	for _, w := range legs {
		l.Asked, l.Others = l.Asked+w.near.Out.Requests, l.Others+w.near.Out.Replies+w.near.Out.Other
		l.GotAsked, l.GotOthers = l.GotAsked+w.far.In.Requests, l.GotOthers+w.far.In.Replies+w.far.In.Other
		l.Fragments, l.GotFragments = l.Fragments+w.near.Out.Fragments, l.GotFragments+w.far.In.Fragments
	}
	out, in := legs[0].volumes()
	l.Size, l.GotSize = out.Bytes/max(1, out.Packets), in.Bytes/max(1, in.Packets)
	return &l
}
