package join

import (
	"cmp"
	"fmt"
	"slices"

	"github.com/lasthop/lasthop/probe/model"
)

// lostFlows are flows of a leg between addresses that reach each other: the sender's connection tracking has them, or
// replied to them, and the receiver's does not.
type lostFlows struct {
	// ports are of the sender if Here: then the replies are lost.
	ports []model.Asked
	n     int
	// some others of the same ports are well.
	some bool
}

// untracked are the flows that the sender has and the receiver, which tracks others of the pair, has not, and those
// that the sender replied to and for which the receiver waits.
func (w *leg) untracked() (l lostFlows) {
	there := w.to.Pair(w.dst(), w.src()).Asked
	if w.state != arrived || !w.from.Tracked || !w.to.Tracked || w.to.blind != "" ||
		!w.to.Sees(w.dst(), w.src()) || !overlaps(w.from, w.to, w.pair.First, w.pair.Last) {
		return l
	}
	tracks := slices.ContainsFunc(there, func(a model.Asked) bool { return a.Here })
	for _, a := range w.pair.Asked {
		other := model.Find(there, model.Asked{Proto: a.Proto, Port: a.Port, Here: !a.Here}.Same)
		waits, n := a, a.Replied+a.Unreplied-other.Replied-other.Unreplied
		if a.Here {
			waits, n = other, a.Replied-other.Replied
		}
		n = min(n, waits.Unreplied)
		switch {
		case a.Proto != model.TCP && a.Proto != model.UDP, n <= 0, 2*n < waits.Unreplied,
			!a.Here && (!tracks || other.Proto == 0 && len(there) == model.MaxAsked),
			a.Proto == model.UDP && w.isNode() && waits.Replied == 0 && len(w.pair.Behind) == 0: // it may carry a tunnel
			continue
		}
		l.ports, l.n = append(l.ports, model.Asked{Proto: a.Proto, Port: a.Port, Here: a.Here}), l.n+n
		l.some = l.some || waits.Replied > 0
	}
	if l.n < minLost {
		return lostFlows{}
	}
	return l
}

// inPart makes causes of flows that are lost between addresses which reach each other, where as many packets of their kind did
// not arrive: a node does not track what its own filter drops, though it arrives; and of legs on which large packets alone are
// lost. Where the way back is lost, a flow that waits says nothing of the way there; and where two nodes lose large packets, a
// port of which all are large is no cause of its own.
func (j *joint) inPart() {
	var ports, sized, thinned []*leg
	isLarge, large := map[*leg]bool{}, map[[2]*node]bool{}
	for _, w := range j.legs {
		if isLarge[w] = w.losesLarge(); isLarge[w] && (w.flows.n == 0 || w.flows.some || w.losesOnlyFragments()) {
			large[[2]*node{w.from, w.to}], large[[2]*node{w.to, w.from}] = true, true
		}
	}
	for _, w := range j.legs {
		switch {
		case w.flows.n > 0 && w.comparable() && !w.diesThere() && w.misses() && !j.leg(w.dst(), w.src()).isLost() &&
			!(isLarge[w] && large[[2]*node{w.from, w.to}]):
			ports = append(ports, w)
		case isLarge[w]:
			sized = append(sized, w)
		case w.isThinned():
			thinned = append(thinned, w)
		}
	}
	for _, set := range united(ports, (*leg).likeFlows) {
		ports := model.With(nil, model.Flat(set, func(w *leg) []model.Asked { return w.flows.ports })...)
		j.causes = append(j.causes, &cause{guess: &guess{suspect: suspect{shape: filtered}, ports: ports}, lost: set})
	}
	for _, set := range united(sized, (*leg).touches) {
		j.causes = append(j.causes, &cause{guess: &guess{suspect: suspect{shape: filtered}, large: true}, lost: set})
	}
	for _, set := range united(thinned, (*leg).touches) {
		j.causes = append(j.causes, &cause{guess: &guess{suspect: suspect{shape: filtered}, some: true}, lost: set})
	}
}

// united are legs, those together that have something in common, also by others: the first one first.
func united(legs []*leg, common func(a, b *leg) bool) (sets [][]*leg) {
	for _, w := range legs {
		var set []*leg
		sets = slices.DeleteFunc(sets, func(o []*leg) bool {
			is := slices.ContainsFunc(o, func(x *leg) bool { return common(x, w) })
			set = append(set, model.Either(is, o, nil)...)
			return is
		})
		sets = append(sets, append(set, w))
	}
	return sets
}

// likeFlows reports whether one filter may lose flows of both legs: those to the same ports, or of one protocol and
// direction from or to one node.
func (w *leg) likeFlows(o *leg) bool {
	a, b := w.flows.ports[0], o.flows.ports[0]
	return model.Meet(w.flows.ports, o.flows.ports) || a.Proto == b.Proto && a.Here == b.Here && (w.from == o.from || w.to == o.to)
}

// touches reports whether two legs have a node in common.
func (w *leg) touches(o *leg) bool {
	return w.from == o.from || w.from == o.to || w.to == o.from || w.to == o.to
}

// portTexts are ports in words, those in a row as one range.
func portTexts(ports []model.Asked) (out []string) {
	ports = slices.SortedFunc(slices.Values(ports), func(a, b model.Asked) int {
		return cmp.Or(cmp.Compare(a.Proto, b.Proto), cmp.Compare(a.Port, b.Port))
	})
	for i := 0; i < len(ports); {
		first, last := ports[i], ports[i].Port
		for i++; i < len(ports) && ports[i].Proto == first.Proto && ports[i].Port == last+1; i++ {
			last++
		}
		text := kindText(first)
		if last > first.Port {
			text = fmt.Sprintf("ports %d-%d/%s", first.Port, last, model.ProtoName(first.Proto))
		}
		out = append(out, text)
	}
	return out
}

// misses reports whether packets of the kinds that the lost flows are of did not arrive, at least one for each two of
// these flows in the time that is compared. The packets that both counted of the other direction say how much longer
// one node was watched; the edges of windows leave a small difference. What the nodes dropped is not lost between them.
func (w *leg) misses() bool {
	began := float64(w.flows.n)
	if w.shared {
		began *= w.from.inner.window.Duration().Seconds() / w.from.seen.Window.Duration().Seconds()
	}
	sent, arrive := float64(w.flows.of(w.near.Out)), float64(w.flows.of(w.far.In))
	if w.near.In.Packets > 0 && w.far.Out.Packets > 0 {
		arrive *= float64(w.near.In.Packets) / float64(w.far.Out.Packets)
	}
	return sent-arrive-float64(w.died()) >= max(minLost, began/2, sent/200)
}

// of is how many packets are of the kinds that the lost flows are of.
func (l *lostFlows) of(c model.PeerCount) (n uint64) {
	counted := map[int]bool{}
	for _, a := range l.ports {
		kind := model.Either(a.Proto == model.UDP, 2, model.Either(a.Here, 1, 0))
		n += model.Either(counted[kind], 0, [...]uint64{c.Requests, c.Replies, c.Other}[kind])
		counted[kind] = true
	}
	return n
}
