package diagnose

import (
	"net/netip"
	"slices"

	"github.com/lasthop/lasthop/probe/model"
	"github.com/lasthop/lasthop/probe/words"
)

func findQueueDrop(v *view) {
	byLink, untold := map[int]*lost{}, untoldDrops(v.whole)
	for _, d := range queuedDrops(v.Snapshot) {
		if v.ofPod(d) && !v.explained(d) {
			model.GetOrInsert(byLink, d.IfIndex).add(v.index, d)
		}
	}
	for q := range model.Each(v.Queues) {
		l := model.GetOrInsert(byLink, q.IfIndex)
		rest := model.Either(untold[q.IfIndex] < minDrops, 0, untold[q.IfIndex])
		if v.ByIndex[q.IfIndex] != nil && l.packets+rest >= minDrops {
			v.report(v.queueDropped(q, l, rest))
		}
	}
	v.queuesInPods()
}

// queuesInPods reports queues in pods' own namespaces: these are not read, and
// the drops tell. What such a queue dropped was never counted as sent.
func (v *view) queuesInPods() {
	reportBy(v, func(d *model.Drop) (p *model.Pod, pod netip.Addr) {
		i := slices.IndexFunc(v.Owners[d.Src], func(p *model.Pod) bool { return p.Netns == d.Netns })
		if !d.Is(model.Queued) || v.inPod(d) != d.Src || i < 0 {
			return p, pod
		}
		return v.Owners[d.Src][i], d.Src
	}, func(p *model.Pod, l *lost) finding {
		sent := uint64(0)
		for a := range l.pods {
			if h := v.hop(a, p.LinkIndex, model.Ingress, model.AsSource); h != nil {
				sent += h.Packets
			}
		}
		f := finding{page: "QueueDrop-pod", lost: l, facts: facts{"pod": p, "sent": sent}}
		f.LastHopAlive = model.Place{Link: p.Interface, Role: model.RolePod, Direction: model.Egress}
		f.infoUnless(l.packets*droppedShare >= sent+l.packets && l.lasting())
		return f
	})
}

// queueDropped is the finding on a queue that dropped packets of pods, and untold others.
func (v *index) queueDropped(q *model.Queue, l *lost, untold uint64) finding {
	if untold > 0 {
		v.addMasqueraded(l, q.IfIndex)
	}
	// The fix is a queue for twice what came to it. Where most is dropped TCP has backed off, and connections do not
	// even open: much more will come.
	times := 2 * ((q.SentDelta+q.DropsDelta)/max(q.SentDelta, 1) + 1)
	if q.DropsDelta > q.SentDelta {
		times *= backedOff
	}
	larger := *q
	larger.Rate, larger.Burst, larger.Limit = times*q.Rate, times*q.Burst, times*q.Limit
	f := finding{lost: l, facts: facts{"queue": q, "untold": untold, "settings": words.Command(larger.Settings()), "times": times,
		"link": v.ByIndex[q.IfIndex]}}
	f.LastHopAlive = v.place(q.Link, model.Egress)
	f.infoUnless(untold > 0 || overfull(q) && l.lasting() || v.starves(q, l))
	if len(l.drops) == 0 {
		f.Packets, f.Confidence = untold, model.Likely
		for p := range model.Each(v.Pods) {
			if p.LinkIndex == q.IfIndex {
				f.Pods = podAddrs(p)
			}
		}
	}
	return f
}

// addMasqueraded adds to what a link lost the pods whose packets leave by it with the node's own
// address and got no reply, and their peers: the drops do not tell which of them lost packets.
func (v *index) addMasqueraded(l *lost, link int) {
	flows := v.unrepliedFlows()
	for p := range model.Each(v.whole.Traffic.Peers) {
		if m := flows[pair{p.Local, p.Remote}]; m != nil && p.IfIndex == link && v.nodeAddrs[p.Local] {
			for pod := range m.pods {
				l.with(pod, p.Remote)
			}
		}
	}
}

// starves reports whether the queue dropped a notable part of what one address sent or got there.
func (v *index) starves(q *model.Queue, l *lost) bool {
	return slices.ContainsFunc(v.whole.Traffic.Hops, func(h model.HopCount) bool {
		if h.IfIndex != q.IfIndex || h.Direction != model.Egress || !h.Addr.IsValid() {
			return false
		}
		of := lost{}
		for _, d := range l.drops {
			if h.Side == model.AsSource && d.Src == h.Addr || h.Side == model.AsDestination && d.Dst == h.Addr {
				of.packets, of.drops = of.packets+d.Packets, append(of.drops, d)
			}
		}
		return of.packets*droppedShare >= h.Packets && of.lasting()
	})
}

// sentTraffic are the counts without the packets that were dropped in the queue of a
// link at whose egress they had been counted: what is left was sent. Which of the
// packets these are is not known, so that none of what is told apart is surely left.
func sentTraffic(s *model.Snapshot) model.Traffic {
	t := s.Traffic
	queued, untold := queuedDrops(s), untoldDrops(s)
	if len(queued)+len(untold) == 0 {
		return t
	}
	node := model.SetOf(model.Flat(s.Links, func(l model.Link) []netip.Addr {
		return model.Map(l.Addresses, netip.Prefix.Addr)
	}))
	type end struct {
		addr    netip.Addr
		ifindex int
		side    model.Side
	}
	type ends struct {
		pair
		ifindex int
	}
	byEnd, byPair := map[end]uint64{}, map[ends]uint64{}
	for _, d := range queued {
		byEnd[end{d.Src, d.IfIndex, model.AsSource}] += d.Packets
		byEnd[end{d.Dst, d.IfIndex, model.AsDestination}] += d.Packets
		byPair[ends{pair{d.Src, d.Dst}, d.IfIndex}] += d.Packets
	}
	t.Hops, t.Peers = slices.Clone(t.Hops), slices.Clone(t.Peers)
	less := func(by uint64, counts ...*uint64) {
		for _, n := range counts {
			*n -= min(*n, by)
		}
	}
	for h := range model.Each(t.Hops) {
		if h.Direction == model.Egress {
			less(byEnd[end{h.Addr, h.IfIndex, h.Side}], &h.Packets, &h.SYN, &h.SYNACK, &h.FromInside, &h.FromUplink)
		}
	}
	for p := range model.Each(t.Peers) {
		n := byPair[ends{pair{p.Local, p.Remote}, p.IfIndex}]
		if node[p.Local] {
			n += untold[p.IfIndex]
		}
		less(n, &p.Out.Packets, &p.Out.Requests, &p.Out.Replies, &p.Out.Other)
	}
	return t
}

// queuedDrops are the node's drops in the queues of links.
func queuedDrops(s *model.Snapshot) []*model.Drop {
	return model.Chosen(s.Traffic.Drops, func(d *model.Drop) bool {
		return d.Is(model.Queued) && (d.Netns == 0 || s.Node.Netns == 0 || d.Netns == s.Node.Netns)
	})
}

// untoldDrops are, by link, what overfull queues dropped beside the packets of pods:
// packets with an address of the node's, which are counted for no pod.
func untoldDrops(s *model.Snapshot) map[int]uint64 {
	out := map[int]uint64{}
	for q := range model.Each(s.Queues) {
		if overfull(q) {
			out[q.IfIndex] = q.DropsDelta
		}
	}
	for _, d := range queuedDrops(s) {
		if n, ok := out[d.IfIndex]; ok {
			out[d.IfIndex] = n - min(n, d.Packets)
		}
	}
	return out
}

// droppedShare is the part of the packets, one in so many, from which on a queue's drops
// are a fault: TCP finds the rate of a limit by fewer.
const droppedShare = 10

// backedOff is how much more is sent once the packets of a queue that dropped most get through: handshakes become
// connections, and these grow.
const backedOff = 8

// overfull reports whether a queue dropped a notable part of what came to it.
func overfull(q *model.Queue) bool {
	return q.DropsDelta >= manyRefused && q.DropsDelta*droppedShare >= q.SentDelta+q.DropsDelta
}
