package diagnose

import (
	"fmt"
	"maps"
	"net/netip"
	"slices"

	"github.com/lasthop/lasthop/probe/model"
	"github.com/lasthop/lasthop/probe/words"
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
		l := byLink[q.IfIndex]
		if l == nil {
			l = &lost{pods: map[netip.Addr]bool{}, peers: map[netip.Addr]bool{}}
		}
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
	byPod := map[*model.Pod]*lost{}
	for d := range model.Each(v.Traffic.Drops) {
		if pod := v.inPod(d); d.Queued() && pod == d.Src && !v.explained(d) {
			i := slices.IndexFunc(v.pods[pod], func(p *model.Pod) bool { return p.Netns == d.Netns })
			entry(byPod, v.pods[pod][i]).addFor(pod, d)
		}
	}
	var out []finding
	for p, l := range byPod {
		if l.packets < minDrops {
			continue
		}
		f, sent := l.finding(), uint64(0)
		for a := range l.pods {
			if h := v.hop(a, p.LinkIndex, model.Ingress, model.AsSource); h != nil {
				sent += h.Packets
			}
		}
		f.LastHopAlive = model.Place{Link: p.Interface, Role: model.RolePod, Direction: model.Egress}
		f.Title = fmt.Sprintf("the queue of %s in %s drops packets", p.Interface, words.PodName(p))
		f.Why = fmt.Sprintf("A queue inside the pod drops what the pod sends faster than the queue lets pass. %s came out of the pod in the window.",
			words.Count(sent, "packet"))
		f.Evidence = l.evidence()
		f.Unseen = []string{"the queue's settings: those in pods are not read"}
		if l.packets*droppedShare < sent+l.packets || !l.lasting() {
			f.Severity = model.Info
		}
		f.Fix = []string{words.Inside(p) + "tc -s -d qdisc show # give the queue that drops a larger rate or limit, or delete it; find what in the pod made it"}
		out = append(out, finding{Finding: f, claims: sameDrops(l.drops)})
	}
	return out
}

// behindNode adds the pods whose packets leave by a link with the node's own address, and
// the peers that did not reply to them.
func (l *lost) behindNode(v *view, ifindex int) {
	flows := v.unrepliedFlows()
	for p := range model.Each(v.whole.Traffic.Peers) {
		if m := flows[pair{p.Local, p.Remote}]; m != nil && p.IfIndex == ifindex && v.nodeAddrs[p.Local] && len(m.pods) > 0 {
			maps.Copy(l.pods, m.pods)
			l.peers[p.Remote] = true
		}
	}
}

// queueDropped is the finding on a queue that dropped packets of pods, and untold others.
func (v *view) queueDropped(q *model.Queue, l *lost, untold uint64) finding {
	if untold > 0 {
		l.behindNode(v, q.IfIndex)
	}
	f := l.finding()
	f.LastHopAlive = v.place(q.Link, model.Egress)
	f.Title = fmt.Sprintf("the queue of %s (%s) drops packets", q.Link, q.Kind)
	f.Why = fmt.Sprintf("%s on %s drops what comes to it faster than it sends, for longer than it can hold.", q.Kind, q.Link)
	if q.Rate > 0 {
		f.Why = fmt.Sprintf("%s on %s lets %s pass and drops what comes faster for longer than it can hold.", q.Kind, q.Link, q.RateText())
	}
	f.Why += " The packets had been counted at the link's egress and were not sent."
	observe(&f, model.SourceQueues, "%s: dropped %s in the window, sent %d, %d waiting", q, words.Count(q.DropsDelta, "packet"), q.SentDelta, q.Backlog)
	f.Evidence = append(f.Evidence, l.evidence()...)
	if untold == 0 && !(overfull(q) && l.lasting()) && !v.starves(q, l) {
		f.Severity = model.Info
	}
	if untold > 0 {
		f.Unseen = []string{"whose packets the other " + words.Plural(untold, "drop is", "drops are") + ": they are not counted by pod, as with the node's own address"}
	}
	if len(l.drops) == 0 {
		f.Packets, f.Confidence = untold, model.Likely
		for p := range model.Each(v.Pods) {
			if p.LinkIndex == q.IfIndex {
				f.Pods = podAddrs(p)
			}
		}
	}
	f.Fix = v.queueFix(q)
	return finding{Finding: f, claims: sameDrops(l.drops)}
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

// queueFix enlarges the queue by what came to it, twice.
func (v *view) queueFix(q *model.Queue) []string {
	times := max(2, 2*((q.SentDelta+q.DropsDelta)/max(q.SentDelta, 1)+1))
	larger := *q
	larger.Rate, larger.Burst, larger.Limit = times*q.Rate, times*q.Burst, times*q.Limit
	var fix []string
	if q.Limit > 0 {
		fix = append(fix, fmt.Sprintf("tc qdisc change dev %s root handle %s %s %s # %d times as much; somebody may have meant the limit",
			words.Quote(q.Link), q.Handle, q.Kind, larger.Settings(), times))
	}
	l := v.links[q.IfIndex]
	switch {
	case l == nil:
	case l.Role == model.RolePodLink:
		fix = append(fix, "if the pod has the annotation kubernetes.io/ingress-bandwidth, the CNI plugin bandwidth made this queue: change it there, and let the pod be made anew")
	case l.Kind == "ifb":
		fix = append(fix, "if the pod has the annotation kubernetes.io/egress-bandwidth, the CNI plugin bandwidth made this queue: change it there, and let the pod be made anew")
	}
	return append(fix, "tc -s -d qdisc show dev "+words.Quote(q.Link)+" # and the classes below: tc -s class show")
}
