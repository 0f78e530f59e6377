package join

import (
	"cmp"
	"net/netip"
	"slices"
	"time"

	"github.com/lasthop/lasthop/probe/diagnose"
	"github.com/lasthop/lasthop/probe/model"
)

// state is what became of the packets of a way.
type state uint8

const (
	// unsure: the receiving node would not have seen them all.
	unsure state = iota
	arrived
	lost
)

// way is what went from an address of one node to an address of another.
type way struct {
	from, to *node
	// pair is the sender's.
	pair *diagnose.EndPair
	// near is what the sender counted of the pair, far what the receiver did.
	near, far *diagnose.Counts
	state     state
	// shared: what was sent and what arrived are of one time.
	shared bool
}

// hasArrived and isLost report whether packets went that way, and what became of them.
func (w *way) hasArrived() bool { return w != nil && w.state == arrived }
func (w *way) isLost() bool     { return w != nil && w.state == lost }

func (w *way) src() netip.Addr { return w.pair.Local }
func (w *way) dst() netip.Addr { return w.pair.Remote }
func (w *way) sent() uint64    { return w.near.Out.Packets }
func (w *way) got() uint64     { return w.far.In.Packets }

// volumes are what left for the range of the destination, and what arrived from that of the source.
func (w *way) volumes() (leaving, arriving diagnose.Volume) {
	from, to := w.from.whole, w.to.whole
	if w.shared {
		from, to = w.from.inner, w.to.outer
	}
	_, leaving = narrowest(from.leaving, w.dst())
	_, arriving = narrowest(to.arriving, w.src())
	return leaving, arriving
}

// talk is a pair of addresses of which one waits for replies in vain.
type talk struct {
	asker, far *node
	a, b       netip.Addr
	pair       *diagnose.EndPair
	// there and back are nil where nothing went that way.
	there, back *way
}

// minLost is how many packets must be lost before that is worth a word: single ones
// get lost everywhere.
const minLost = 3

// fewReplies is how many packets must arrive for each reply before the replies are as
// good as none.
const fewReplies = 10

// overlap is how long the packets must have left for within the receiver's window.
const overlap = 2 * time.Second

// follow compares what each node sent to the addresses of others with what these
// counted of it. Where that asks for it, they are compared again in the time common to both.
func (j *joint) follow() {
	ways := j.allWays()
	if j.cut(ways) {
		ways = j.allWays()
	}
	slices.SortFunc(ways, compareWays)
	j.ways = ways
	j.wait()
}

// way is that from one address to another; nil where nothing went.
func (j *joint) way(src, dst netip.Addr) *way {
	i, found := slices.BinarySearchFunc(j.ways, ends{src, dst}, func(w *way, e ends) int {
		return cmp.Or(w.src().Compare(e.local), w.dst().Compare(e.remote))
	})
	if !found {
		return nil
	}
	return j.ways[i]
}

// allWays are those from one node to another.
func (j *joint) allWays() []*way {
	var out []*way
	for _, n := range j.in {
		for i := range n.Pairs {
			p := &n.Pairs[i]
			far := j.at[p.Remote]
			if far == nil || far == n || j.at[p.Local] != n {
				continue
			}
			if w := follow(n, far, i); w != nil {
				out = append(out, w)
			}
		}
	}
	return out
}

// wait finds who waits for replies.
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
			t := &talk{asker: n, far: far, a: p.Local, b: p.Remote, pair: p}
			t.there, t.back = j.way(p.Local, p.Remote), j.way(p.Remote, p.Local)
			if b := t.back; b != nil && b.state == unsure && t.there != nil && fewReplies*b.sent() <= t.there.got() {
				// They were sent before the asker was watched: what is asked now gets none.
				t.back = nil
			}
			j.talks = append(j.talks, t)
		}
	}
}

// follow is the way of a pair's packets; nil where none left. Without anybody who
// waits for replies nothing is lost for sure: datagrams may want none.
func follow(n, far *node, i int) *way {
	p := &n.Pairs[i]
	if p.Out.Packets == 0 {
		return nil
	}
	there := far.Index(p.Remote, p.Local)
	w := &way{from: n, to: far, pair: p, near: &p.Counts, far: far.counts(far.whole, there)}
	waits, within := p.Silent || there >= 0 && far.Pairs[there].Silent, w.got()
	if w.shared = n.inner != nil && far.outer != nil; w.shared {
		w.near, w.far = n.counts(n.inner, i), far.counts(far.outer, there)
		within = far.counts(far.inner, there).In.Packets
	}
	switch {
	case within > 0 || fewReplies*w.got() > w.sent():
		w.state = arrived
	case w.got() == 0 && waits && w.sent() >= minLost && far.blind == "" && far.Sees(p.Remote, p.Local) &&
		overlaps(n, far, p.First, p.Last):
		w.state = lost
	}
	return w
}

// lostPorts makes causes of ways between addresses that reach each other of which packets for
// one port of a node are lost: the sender's connections to it stay without a reply, the other
// node, which tracks those to other ports, has none of them, and as many requests did not
// arrive. A node does not track what its own filter drops, though it arrives.
func (j *joint) lostPorts() {
	for _, w := range j.ways {
		kinds := w.untracked()
		if !w.comparable() || w.diesThere() || !w.misses(kinds) {
			continue
		}
		for _, a := range kinds {
			g := &guess{fault: fault{shape: filtered, to: w.to}, port: &diagnose.Asked{Proto: a.Proto, Port: a.Port}}
			c := j.cause([2]any{w.to, a.Port}, cause{guess: g, flows: map[*node]int{}})
			c.lost = append(c.lost, w)
			c.flows[w.from] += a.Unreplied
		}
	}
}

// untracked are the ports of the destination of which the sender's connections stay without
// a reply, and of which the other node, which tracks those to other ports, has none.
func (w *way) untracked() []diagnose.Asked {
	there := w.to.Pair(w.dst(), w.src())
	here := func(a diagnose.Asked) bool { return a.Here }
	if w.state != arrived || len(there.Asked) == diagnose.MaxAsked || !w.from.Tracked || !w.to.Tracked || w.to.blind != "" ||
		!slices.ContainsFunc(there.Asked, here) {
		return nil
	}
	return chosen(w.pair.Asked, func(a diagnose.Asked) bool {
		const tcp = 6
		return !a.Here && a.Proto == tcp && a.Replied == 0 && a.Unreplied >= minLost && overlaps(w.from, w.to, a.First, a.Last) &&
			!slices.ContainsFunc(there.Asked, diagnose.Asked{Proto: a.Proto, Port: a.Port, Here: true}.Same)
	})
}

// misses reports whether as many requests did not arrive as connections to some ports began
// in the time that is compared. The replies that both counted say how much longer one of
// them was watched: as large a share of the requests left or arrived then.
func (w *way) misses(ports []diagnose.Asked) bool {
	began := 0
	for _, a := range ports {
		began += a.Unreplied
	}
	if w.shared {
		part := w.from.inner.window.Duration().Seconds() / w.from.seen.Window.Duration().Seconds()
		began = max(minLost, int(part*float64(began)))
	}
	arrive := float64(w.far.In.Requests)
	if w.near.In.Packets > 0 && w.far.Out.Packets > 0 {
		arrive *= float64(w.near.In.Packets) / float64(w.far.Out.Packets)
	}
	return len(ports) > 0 && float64(w.near.Out.Requests)-arrive >= float64(began)
}

// diesThere reports whether the receiver has a finding about both ends of the way: what
// is lost between these may be lost there.
func (w *way) diesThere() bool {
	return slices.ContainsFunc(w.to.findings, func(f model.Finding) bool {
		return !slices.Contains(silences, f.Code) && !f.Passes && names(&f, w.src()) && names(&f, w.dst())
	})
}

// isNode reports whether the way is between the nodes' own addresses.
func (w *way) isNode() bool { return w.from.Node[w.src()] && w.to.Node[w.dst()] }

// bare is how many packets arrived that carry no tunnel for sure.
func (w *way) bare() uint64 {
	if w.isNode() && len(w.from.Tunnel.Links) > 0 {
		return w.far.In.Requests + w.far.In.Replies
	}
	return w.got()
}

// toRange is the pod range that the way leads to, which the network needs a route
// for; not valid where none is needed. fromRange is the one that it comes from.
func (w *way) toRange() netip.Prefix   { return w.to.rangeOf(w.dst()) }
func (w *way) fromRange() netip.Prefix { return w.from.rangeOf(w.src()) }

func compareWays(a, b *way) int {
	return cmp.Or(a.src().Compare(b.src()), a.dst().Compare(b.dst()))
}
