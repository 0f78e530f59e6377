package diagnose

import (
	"fmt"
	"net/netip"
	"slices"

	"github.com/lasthop/lasthop/probe/model"
)

// QueueDrop is the code of this finding.
const QueueDrop model.Code = "QueueDrop"

var queueDrop = kind{
	page: Page{
		Code:     QueueDrop,
		Severity: model.Warning,
		Title:    "the queue of a link drops packets of pods",
		Meaning: "Behind its egress hook each link has a queue (qdisc). One that limits the rate, such as tbf, drops what comes faster for longer " +
			"than it can hold; the CNI plugin bandwidth sets such limits by a pod's annotations. TCP slows down and recovers, datagrams and " +
			"new connections are lost. A few drops beside traffic that flows are how a limit works, and information only.",
		Evidence: "the queue's own count of drops in the window (tc -s qdisc), and QDISC_DROP drops of pods' packets on that link. It is a warning " +
			"where a tenth of what came to the queue, or of what one pod sends or receives there, was dropped.",
		Fix: "tc qdisc change dev LINK root handle HANDLE: with a larger rate or limit; where an annotation of the pod sets the limit, change that.",
	},
	find:  findQueueDrop,
	after: []model.Code{PodLinkDown},
	ends:  []model.HopKind{model.HopQueue, model.HopLink},
}

// droppedShare is the part of the packets, one in so many, from which on a queue's drops
// are a fault: TCP finds the rate of a limit by fewer.
const droppedShare = 10

func findQueueDrop(v *view) []finding {
	byLink := map[int]*lost{}
	for d := range model.Each(v.Traffic.Drops) {
		if !d.Queued() || d.Netns != 0 && v.Node.Netns != 0 && d.Netns != v.Node.Netns || v.explained(d) || v.queue(d.IfIndex) == nil {
			continue
		}
		if l := entry(byLink, d.IfIndex); v.ofPod(d) {
			l.add(v, d)
		} else if pods := v.behindNode(d); len(pods) > 0 {
			l.add(v, d)
			delete(l.pods, netip.Addr{})
			for _, p := range pods {
				l.pods[p] = true
			}
		}
	}
	var out []finding
	for q := range model.Each(v.Queues) {
		l := byLink[q.IfIndex]
		if l == nil {
			l = &lost{}
		}
		if link := v.links[q.IfIndex]; l.packets >= minDrops || q.DropsDelta >= minDrops && !v.Has(model.SourceDrops) && link != nil {
			out = append(out, v.queueDropped(q, l))
		}
	}
	return out
}

// behindNode are the pods whose packets a drop with the node's own address is of.
func (v *view) behindNode(d *model.Drop) []netip.Addr {
	pods := map[netip.Addr]bool{}
	for f := range model.Each(v.Flows) {
		if f.Reply.Dst == d.Src && f.Reply.Src == d.Dst && f.Original.Src != d.Src && len(v.pods[f.Original.Src]) > 0 && v.nodeAddrs[d.Src] {
			pods[f.Original.Src] = true
		}
	}
	return sorted(pods)
}

func (v *view) queueDropped(q *model.Queue, l *lost) finding {
	f := l.finding()
	f.LastHopAlive = v.place(q.Link, model.Egress)
	f.Title = fmt.Sprintf("the queue of %s (%s) drops packets", q.Link, q.Kind)
	f.Why = fmt.Sprintf("%s on %s drops what comes to it faster than it sends, for longer than it can hold.", q.Kind, q.Link)
	if q.Rate > 0 {
		f.Why = fmt.Sprintf("%s on %s lets %s pass and drops what comes faster for longer than it can hold.", q.Kind, q.Link, q.RateText())
	}
	f.Why += " The packets had been counted at the link's egress and were not sent."
	observe(&f, model.SourceQueues, "%s: dropped %s in the window, sent %d, %d waiting", q, count(q.DropsDelta, "packet"), q.SentDelta, q.Backlog)
	f.Evidence = append(f.Evidence, l.evidence()...)
	if !v.overfull(q, l) {
		f.Severity = model.Info
	}
	if len(l.drops) == 0 {
		f.Packets, f.Confidence = q.DropsDelta, model.Likely
		f.Unseen = []string{"whose packets these are: drops were not watched"}
		for p := range model.Each(v.Pods) {
			if p.LinkIndex == q.IfIndex {
				f.Pods = podAddrs(p)
			}
		}
	}
	f.Fix = v.queueFix(q)
	return finding{Finding: f, explains: sameDrops(l.drops)}
}

// overfull reports whether the queue dropped a notable part of all that came to it, or
// of what one address sent or got there.
func (v *view) overfull(q *model.Queue, l *lost) bool {
	if q.DropsDelta >= manyRefused && q.DropsDelta*droppedShare >= q.SentDelta+q.DropsDelta && (len(l.drops) == 0 || l.lasting()) {
		return true
	}
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
			shellWord(q.Link), q.Handle, q.Kind, larger.Settings(), times))
	}
	l := v.links[q.IfIndex]
	switch {
	case l == nil:
	case l.Role == model.RolePodLink:
		fix = append(fix, "if the pod has the annotation kubernetes.io/ingress-bandwidth, the CNI plugin bandwidth made this queue: change it there, and let the pod be made anew")
	case l.Kind == "ifb":
		fix = append(fix, "if the pod has the annotation kubernetes.io/egress-bandwidth, the CNI plugin bandwidth made this queue: change it there, and let the pod be made anew")
	}
	return append(fix, "tc -s -d qdisc show dev "+shellWord(q.Link)+" # and the classes below: tc -s class show")
}
