package below

import (
	"net/netip"
	"slices"

	"github.com/lasthop/lasthop/probe/fault"
	"github.com/lasthop/lasthop/probe/model"
	"github.com/lasthop/lasthop/probe/node"
	"github.com/lasthop/lasthop/probe/path"
	"github.com/lasthop/lasthop/probe/words"
)

// QueueDrop reports queues (qdiscs) of links, and inside pods, that drop pods' packets.
var QueueDrop = fault.Kind{Code: "QueueDrop", Severity: model.Warning, Find: queueDrop,
	Ends:    fault.Hops{model.HopQueue, model.HopLink, model.HopPod},
	Objects: fault.Objects{"queue.Link queue.Kind", "pod.Link", "route.Link"}}

func queueDrop(v *fault.Input) {
	byLink, untold := map[int]*node.Lost{}, node.UntoldDrops(v.Whole)
	for _, d := range node.QueuedDrops(v.Snapshot) {
		if v.OfPod(d) && !v.Explained(d) {
			model.GetOrInsert(byLink, d.IfIndex).Add(v.Index, d)
		}
	}
	for q := range model.Each(v.Queues) {
		l := model.GetOrInsert(byLink, q.IfIndex)
		if v.Unconnected(q.IfIndex) && l.Packets >= node.MinDrops {
			v.Report(leadsNowhere(v.Index, q.IfIndex, l))
			continue
		}
		rest := model.Either(untold[q.IfIndex] < node.MinDrops, 0, untold[q.IfIndex])
		if v.ByIndex[q.IfIndex] != nil && l.Packets+rest >= node.MinDrops {
			v.Report(queueDropped(v.Index, q, l, rest))
		}
	}
	queuesInPods(v)
}

// leadsNowhere is the finding on packets that a route leads to a link without a carrier.
func leadsNowhere(v *node.Index, ifindex int, l *node.Lost) fault.Fault {
	most := node.MostDropped(l.Drops)[0]
	of := v.PacketOf(most)
	of.Src = v.Pod(most)
	sent := v.Sent(of)
	r := v.Routing().Lookup(sent).Route
	rest := path.NewTrial(v.State).Without([]any{r})
	f := fault.Fault{Page: "QueueDrop-unconnected", Lost: l, Facts: words.Facts{
		"link": v.ByIndex[ifindex], "route": v.Shown(r), "asked": most.Dst, "instead": v.Shown(rest.Routing().Lookup(sent).Route),
	}}
	f.Severity, f.LastHopAlive = model.Critical, v.Place(v.LinkName(ifindex), model.Egress)
	mine := model.SetOf(l.Drops)
	f.Claims = func(d *model.Drop) bool {
		// No reply would get there.
		back := v.ReturnPath(d)
		return mine[d] || d.Is(model.ReverseFiltered) && back.Through(ifindex)
	}
	return f
}

// queuesInPods reports queues in pods' own namespaces: these are not read, and
// the drops tell. What such a queue dropped was never counted as sent.
func queuesInPods(v *fault.Input) {
	fault.ReportBy(v, func(d *model.Drop) (p *model.Pod, pod netip.Addr) {
		i := slices.IndexFunc(v.Owners[d.Src], func(p *model.Pod) bool { return p.Netns == d.Netns })
		if !d.Is(model.Queued) || v.InPod(d) != d.Src || i < 0 {
			return p, pod
		}
		return v.Owners[d.Src][i], d.Src
	}, func(p *model.Pod, l *node.Lost) fault.Fault {
		sent := uint64(0)
		for a := range l.Pods {
			if h := v.Hop(a, p.LinkIndex, model.Ingress, model.AsSource); h != nil {
				sent += h.Packets
			}
		}
		f := fault.Fault{Page: "QueueDrop-pod", Lost: l, Facts: words.Facts{"pod": p, "sent": sent}}
		f.LastHopAlive = model.Place{Link: p.Interface, Role: model.RolePod, Direction: model.Egress}
		f.InfoUnless(l.Packets*node.DroppedShare >= sent+l.Packets && l.Lasting())
		return f
	})
}

// queueDropped is the finding on a queue that dropped packets of pods, and untold others.
func queueDropped(v *node.Index, q *model.Queue, l *node.Lost, untold uint64) fault.Fault {
	if untold > 0 {
		addMasqueraded(v, l, q.IfIndex)
	}
	// The fix is a queue for twice what came to it. Where most is dropped TCP has backed off, and connections do not
	// even open: much more will come.
	times := 2 * ((q.SentDelta+q.DropsDelta)/max(q.SentDelta, 1) + 1)
	if q.Rate > 0 && q.DropsDelta > q.SentDelta {
		times *= backedOff
	}
	larger := *q
	larger.Rate, larger.Burst, larger.Limit = times*q.Rate, times*q.Burst, times*q.Limit
	f := fault.Fault{Lost: l, Facts: words.Facts{"queue": q, "untold": untold, "settings": words.Command(larger.Settings()), "times": times,
		"link": v.ByIndex[q.IfIndex]}}
	f.LastHopAlive = v.Place(q.Link, model.Egress)
	f.InfoUnless(!shapes(v, q) && (untold > 0 || node.Overfull(q) && l.Lasting() || starves(v, q, l)))
	// ARP/ND has no other queue: what waits for an answer that it dropped fails, on the node and in the pod behind it.
	mine, master := model.SetOf(l.Drops), v.ByIndex[q.IfIndex].Master
	waited := func(d *model.Drop) bool {
		return d.Is(model.NeighborFailed) && f.Severity != model.Info &&
			(d.IfIndex == q.IfIndex || d.IfIndex == master && v.Outer[master] || slices.ContainsFunc(v.Owners[d.Src], func(p *model.Pod) bool {
				return p.LinkIndex == q.IfIndex && p.Netns == d.Netns
			}))
	}
	f.Claims = func(d *model.Drop) bool { return mine[d] || waited(d) }
	for d := range model.Each(v.Traffic.Drops) {
		if waited(d) && len(v.Owners[d.Src]) > 0 && len(l.Drops) > 0 {
			l.Pods.Add(d.Src)
			l.Peers.Add(d.Dst)
		}
	}
	if len(l.Drops) == 0 {
		f.Packets, f.Confidence = untold, model.Likely
		for p := range model.Each(v.Pods) {
			if p.LinkIndex == q.IfIndex {
				f.Pods = node.PodAddrs(p)
			}
		}
	}
	return f
}

// addMasqueraded adds to what a link lost the pods whose packets leave by it with the node's own
// address and got no reply, and their peers: the drops do not tell which of them lost packets.
func addMasqueraded(v *node.Index, l *node.Lost, link int) {
	for p := range model.Each(v.Whole.Traffic.Peers) {
		if st := v.FlowsOf(p); st != nil && p.IfIndex == link && v.Own[p.Local] != nil {
			for pod := range st.Pods {
				l.With(pod, p.Remote)
			}
		}
	}
}

// shapes reports whether a queue limits a rate as it is meant to: it sends at about that rate, and drops a small part, by
// which the senders find it.
func shapes(v *node.Index, q *model.Queue) bool {
	const mostOf, few = 0.75, 4
	bytes := map[model.Side]uint64{}
	for h := range model.Each(v.Whole.Traffic.Hops) {
		if h.IfIndex == q.IfIndex && h.Direction == model.Egress {
			bytes[h.Side] += h.Bytes
		}
	}
	came := q.SentDelta + q.DropsDelta
	sent := float64(max(bytes[model.AsSource], bytes[model.AsDestination])) * float64(q.SentDelta) / float64(max(came, 1))
	return q.Rate > 0 && q.DropsDelta*few <= came && sent >= mostOf*float64(q.Rate)*v.Window.End.Sub(v.Window.Start).Seconds()
}

// starves reports whether the queue dropped a notable part of what one address sent or got there.
func starves(v *node.Index, q *model.Queue, l *node.Lost) bool {
	return slices.ContainsFunc(v.Whole.Traffic.Hops, func(h model.HopCount) bool {
		if h.IfIndex != q.IfIndex || h.Direction != model.Egress || !h.Addr.IsValid() {
			return false
		}
		of := node.Lost{}
		for _, d := range l.Drops {
			if h.Side == model.AsSource && d.Src == h.Addr || h.Side == model.AsDestination && d.Dst == h.Addr {
				of.Packets, of.Drops = of.Packets+d.Packets, append(of.Drops, d)
			}
		}
		return of.Packets*node.DroppedShare >= h.Packets && of.Lasting()
	})
}

// backedOff is how much more is sent once the packets of a queue that dropped most get through: handshakes become
// connections, and these grow.
const backedOff = 8
