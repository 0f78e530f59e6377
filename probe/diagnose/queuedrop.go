package diagnose

import (
	"net/netip"
	"slices"

	"github.com/lasthop/lasthop/probe/model"
)

// QueueDrop is the code of this finding.
const QueueDrop model.Code = "QueueDrop"

var queueDrop = kind{
	code:     QueueDrop,
	severity: model.Warning,
	find:     findQueueDrop,
	ends:     []model.HopKind{model.HopQueue, model.HopLink, model.HopPod},
}

func findQueueDrop(v *view) []finding {
	byLink, untold := map[int]*lost{}, untoldDrops(v.whole)
	for _, d := range queuedDrops(v.Snapshot) {
		if v.ofPod(d) && !v.explained(d) {
			entry(byLink, d.IfIndex).add(v, d)
		}
	}
	var out []finding
	for q := range model.Each(v.Queues) {
		l := entry(byLink, q.IfIndex)
		rest := untold[q.IfIndex]
		if rest < minDrops {
			rest = 0
		}
		if v.links[q.IfIndex] != nil && l.packets+rest >= minDrops {
			out = append(out, v.queueDropped(q, l, rest))
		}
	}
	return append(out, v.queuesInPods()...)
}

// queuesInPods are the findings on queues in pods' own namespaces: these are not read, and
// the drops tell. What such a queue dropped was never counted as sent.
func (v *view) queuesInPods() []finding {
	return foundBy(v, func(d *model.Drop) (p *model.Pod, pod netip.Addr) {
		i := slices.IndexFunc(v.pods[d.Src], func(p *model.Pod) bool { return p.Netns == d.Netns })
		if !d.Queued() || v.inPod(d) != d.Src || i < 0 {
			return p, pod
		}
		return v.pods[d.Src][i], d.Src
	}, func(p *model.Pod, l *lost) finding {
		sent := uint64(0)
		for a := range l.pods {
			if h := v.hop(a, p.LinkIndex, model.Ingress, model.AsSource); h != nil {
				sent += h.Packets
			}
		}
		f := finding{page: "QueueDrop-pod", lost: l, facts: facts{"pod": p, "sent": sent}}
		f.LastHopAlive = model.Place{Link: p.Interface, Role: model.RolePod, Direction: model.Egress}
		if l.packets*droppedShare < sent+l.packets || !l.lasting() {
			f.Severity = model.Info
		}
		return f
	})
}

// queueDropped is the finding on a queue that dropped packets of pods, and untold others.
func (v *view) queueDropped(q *model.Queue, l *lost, untold uint64) finding {
	if untold > 0 {
		v.addMasqueraded(l, q.IfIndex)
	}
	// The fix is a queue for what came to it, twice.
	times := max(2, 2*((q.SentDelta+q.DropsDelta)/max(q.SentDelta, 1)+1))
	larger := *q
	larger.Rate, larger.Burst, larger.Limit = times*q.Rate, times*q.Burst, times*q.Limit
	f := finding{lost: l, facts: facts{"queue": q, "untold": untold, "larger": &larger, "times": times, "link": v.links[q.IfIndex]}}
	f.LastHopAlive = v.place(q.Link, model.Egress)
	if untold == 0 && !(overfull(q) && l.lasting()) && !v.starves(q, l) {
		f.Severity = model.Info
	}
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
func (v *view) addMasqueraded(l *lost, link int) {
	flows := v.unrepliedFlows()
	for p := range model.Each(v.whole.Traffic.Peers) {
		if m := flows[pair{p.Local, p.Remote}]; m != nil && p.IfIndex == link && v.nodeAddrs[p.Local] {
			for pod := range m.pods {
				l.with(pod, p.Remote)
			}
		}
	}
}

// starves reports whether the queue dropped a notable part of what one address sent or
// got there.
func (v *view) starves(q *model.Queue, l *lost) bool {
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
