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
type state int

const (
	// unsure: the receiving node would not have seen them all.
	unsure state = iota
	arrived
	lost
)

// way is what went from an address of one node to an address of another.
type way struct {
	from, to  *node
	src, dst  netip.Addr
	sent, got uint64
	state     state
	// out and in are sent and got by kind of packet.
	out, in model.PeerCount
	// back is what the receiver sent the other way, came what the sender got of that.
	back, came uint64
	// routed: the sender hands it to its default gateway, which needs a route.
	routed bool
	// kinds are the protocols and ports of its flows.
	kinds []diagnose.Asked
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
// counted of it.
func (j *joint) follow() {
	ways := map[ends]*way{}
	for _, n := range j.nodes {
		if n.out {
			continue
		}
		for p := range model.Each(n.Pairs) {
			far := j.at[p.Remote]
			if far == nil || far == n || j.at[p.Local] != n {
				continue
			}
			if w := follow(n, far, p); w != nil {
				j.ways, ways[ends{w.src, w.dst}] = append(j.ways, w), w
			}
		}
	}
	for _, n := range j.nodes {
		if n.out {
			continue
		}
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
			t.there, t.back = ways[ends{p.Local, p.Remote}], ways[ends{p.Remote, p.Local}]
			if b := t.back; b != nil && b.state != arrived && b.state != lost && t.there != nil && fewReplies*b.sent <= t.there.got {
				// They were sent before the asker was watched: what is asked now gets none.
				t.back = nil
			}
			j.talks = append(j.talks, t)
		}
	}
}

// follow is the way of a pair's packets; nil where none left. Without anybody who
// waits for replies nothing is lost for sure: datagrams may want none.
func follow(n, far *node, p *diagnose.EndPair) *way {
	if p.Out.Packets == 0 {
		return nil
	}
	w := &way{from: n, to: far, src: p.Local, dst: p.Remote, sent: p.Out.Packets, out: p.Out, came: p.In.Packets, routed: p.Routed, kinds: p.Asked}
	there := far.pairs[ends{p.Remote, p.Local}]
	if there != nil {
		w.got, w.in, w.back = there.In.Packets, there.In, there.Out.Packets
	}
	waits := p.Silent || there != nil && there.Silent
	switch {
	case w.got > 0:
		w.state = arrived
	case waits && w.sent >= minLost && far.blind == "" && far.Sees(p.Remote, p.Local) && overlaps(n, far, p.First, p.Last):
		w.state = lost
	}
	return w
}

// lostPorts are the ways between addresses that reach each other of which packets for
// one port of a node are lost: the sender's connections to it stay without a reply, the other
// node, which tracks those to other ports, has none of them, and as many requests did not
// arrive. A node does not track what its own filter drops, though it arrives.
func (j *joint) lostPorts() []*cause {
	type port struct {
		to     *node
		number uint16
	}
	by := map[port]*cause{}
	var out []*cause
	for _, w := range j.ways {
		there := w.to.pairs[ends{w.dst, w.src}]
		if w.state != arrived || there == nil || len(there.Asked) == diagnose.MaxAsked || !w.from.Tracked || !w.to.Tracked || w.to.blind != "" {
			continue
		}
		if !slices.ContainsFunc(there.Asked, func(a diagnose.Asked) bool { return a.Here }) || w.diesThere() {
			continue
		}
		unreplied := 0
		kinds := slices.DeleteFunc(slices.Clone(w.kinds), func(a diagnose.Asked) bool {
			const tcp = 6
			found := !a.Here && a.Proto == tcp && a.Replied == 0 && a.Unreplied >= minLost && overlaps(w.from, w.to, a.First, a.Last) &&
				!slices.ContainsFunc(there.Asked, diagnose.Asked{Proto: a.Proto, Port: a.Port, Here: true}.Same)
			if found {
				unreplied += a.Unreplied
			}
			return !found
		})
		if w.missed() < float64(unreplied) {
			continue
		}
		for _, a := range kinds {
			k := port{w.to, a.Port}
			if by[k] == nil {
				by[k] = &cause{guess: &guess{fault: fault{shape: filtered, to: w.to}, port: &diagnose.Asked{Proto: a.Proto, Port: a.Port}}, flows: map[*node]int{}}
				out = append(out, by[k])
			}
			by[k].lost = append(by[k].lost, w)
			by[k].flows[w.from] += a.Unreplied
		}
	}
	return out
}

// missed is how many of the requests did not arrive. Where the sender got more replies
// than the receiver sent, it was watched for longer, and as large a share of the
// requests left while the receiver was not.
func (w *way) missed() float64 {
	arrive := float64(w.in.Requests)
	if w.came > w.back && w.back > 0 {
		arrive *= float64(w.came) / float64(w.back)
	}
	return float64(w.out.Requests) - arrive
}

// diesThere reports whether the receiver has a finding about both ends of the way: what
// is lost between these may be lost there.
func (w *way) diesThere() bool {
	return slices.ContainsFunc(w.to.findings, func(f model.Finding) bool {
		return !slices.Contains(silences, f.Code) && !f.Passes && names(&f, w.src) && names(&f, w.dst)
	})
}

// isNode reports whether the way is between the nodes' own addresses.
func (w *way) isNode() bool { return w.from.Node[w.src] && w.to.Node[w.dst] }

// mayCarry reports whether packets of the way may carry a tunnel.
func (w *way) mayCarry() bool { return w.isNode() && len(w.from.Tunnel.Links) > 0 }

// toRange is the pod range that the way leads to, which the network needs a route
// for; not valid where none is needed.
func (w *way) toRange() netip.Prefix { return w.to.rangeOf(w.dst) }

// fromRange is the pod range that it comes from.
func (w *way) fromRange() netip.Prefix { return w.from.rangeOf(w.src) }

// lostWays are those on which talks lose their packets, sorted.
func (j *joint) lostWays() []*way {
	seen := map[*way]bool{}
	var out []*way
	for _, t := range j.talks {
		for _, w := range []*way{t.there, t.back} {
			if w != nil && w.state == lost && !seen[w] {
				seen[w], out = true, append(out, w)
			}
		}
	}
	slices.SortFunc(out, compareWays)
	return out
}

func compareWays(a, b *way) int {
	return cmp.Or(a.src.Compare(b.src), a.dst.Compare(b.dst))
}
