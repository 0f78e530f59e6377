package diagnose

import (
	"cmp"
	"iter"
	"maps"
	"net/netip"
	"slices"

	"github.com/lasthop/lasthop/probe/model"
	"github.com/lasthop/lasthop/probe/words"
)

// minDrops is how many packets of one kind must be dropped before it is a finding: a pod that comes or goes
// loses one or two in flight. All of them stay in the report's list of drops.
const minDrops = 3

// causes says for each drop which finding claims it, or that a healthy node frees such packets too.
func (v *view) causes() []model.DropCause {
	out := make([]model.DropCause, len(v.whole.Traffic.Drops))
	next := 0 // of the drops of single addresses
	for i := range out {
		if d := &v.whole.Traffic.Drops[i]; d.Range.IsValid() {
			out[i] = v.foldedCause(d)
			continue
		}
		out[i] = v.causeOf(&v.Traffic.Drops[next])
		next++
	}
	return out
}

func (v *view) causeOf(d *model.Drop) model.DropCause {
	if code := v.byDrop[d].code; code != "" && v.drops.Lost(d) {
		return model.DropCause{Code: code}
	}
	return model.DropCause{Ordinary: cmp.Or(v.drops.Class(d), v.inconclusive(d), model.ExcusedFew)}
}

// inconclusive is why nothing can be concluded from a packet that was lost, however many were; empty where it can.
func (v *index) inconclusive(d *model.Drop) model.Excuse {
	switch {
	case d.Reason == "" && d.Is(model.NoSocket):
		// NoListener tells of requests.
		return model.ExcusedNoReason
	case !v.ofPod(d):
		return model.ExcusedNoPod
	case d.Is(model.OtherHost) && !v.Has(model.SourceLinks, model.SourcePods) && len(v.Owners[d.Dst]) == 0,
		d.Is(model.Netfilter) && !v.Has(model.SourceEbtables):
		return model.ExcusedUnread
	}
	return ""
}

// pod is the address of the drop that a running pod of this node has: the
// receiver's where both have one. The zero Addr: neither has.
func (v *index) pod(d *model.Drop) netip.Addr {
	return model.Find([]netip.Addr{d.Dst, d.Src}, func(a netip.Addr) bool { return len(v.Owners[a]) > 0 })
}

// sender is the address of the drop that a running pod has: the sender's where both have one.
func (v *index) sender(d *model.Drop) netip.Addr {
	return model.Either(len(v.Owners[d.Src]) > 0, d.Src, d.Dst)
}

func (v *index) ofPod(d *model.Drop) bool { return v.pod(d).IsValid() }

// inPod is the pod in whose own namespace a packet was dropped.
func (v *index) inPod(d *model.Drop) netip.Addr {
	if d.Netns == 0 || d.Netns == v.Node.Netns {
		return netip.Addr{}
	}
	here := func(p *model.Pod) bool { return p.Netns == d.Netns }
	return model.Find([]netip.Addr{d.Dst, d.Src}, func(a netip.Addr) bool { return slices.ContainsFunc(v.Owners[a], here) })
}

// otherEnd is the drop's address that is not the pod's.
func otherEnd(d *model.Drop, pod netip.Addr) netip.Addr {
	return model.Either(d.Dst == pod, d.Src, d.Dst)
}

// sameDrops explains these drops and no others; there may be thousands.
func sameDrops(list []*model.Drop) func(*model.Drop) bool {
	set := model.SetOf(list)
	return func(d *model.Drop) bool { return set[d] }
}

// dropped sums the drops that match and that no finding explains yet.
func (v *view) dropped(match func(*model.Drop) bool) uint64 {
	return v.lostPackets(func(d *model.Drop) bool { return match(d) && !v.explained(d) })
}

// lostPackets sums the drops that match.
func (v *index) lostPackets(match func(*model.Drop) bool) uint64 {
	var n uint64
	for d := range model.Each(v.Traffic.Drops) {
		if !d.Is(model.Delivered) && match(d) {
			n += d.Packets
		}
	}
	return n
}

// lost sums up drops, or pairs without a reply: the pods, their peers, and the packets.
type lost struct {
	pods, peers addrSet
	ranges      []netip.Prefix // of peers that were not counted one by one
	packets     uint64
	drops       []*model.Drop
	// requests and errors are those of pairs, link is one by which their packets left.
	requests, errors uint64
	link             int
}

func (l *lost) add(v *index, d *model.Drop) { l.addFor(v.pod(d), d) }

// addFor adds a drop that concerns one of its ends above the other.
func (l *lost) addFor(pod netip.Addr, d *model.Drop) {
	l.about(pod, d)
	l.packets += d.Packets
	l.drops = append(l.drops, d)
}

// about notes a pod that a drop concerns, and its other end.
func (l *lost) about(pod netip.Addr, d *model.Drop) {
	far := otherEnd(d, pod)
	if l.with(pod, far); !far.IsValid() && d.Range.Bits() > 0 {
		l.ranges = model.With(l.ranges, d.Range)
	}
}

// merge adds what another of one cause lost.
func (l *lost) merge(o *lost) {
	l.pods.addAll(o.pods)
	l.peers.addAll(o.peers)
	l.packets, l.drops, l.ranges = l.packets+o.packets, append(l.drops, o.drops...), model.With(l.ranges, o.ranges...)
}

// with notes a pod and its other end, where they are known.
func (l *lost) with(pod, far netip.Addr) {
	if pod.IsValid() {
		l.pods.add(pod)
	}
	if far.IsValid() {
		l.peers.add(far)
	}
}

// common narrows the pods down to the one that is an end of all the drops, where these have several other ends.
func (l *lost) common() {
	var both addrSet
	for i, d := range l.drops {
		ends := setOf([]netip.Addr{d.Src, d.Dst})
		maps.DeleteFunc(ends, func(a netip.Addr, _ bool) bool { return !l.pods[a] || i > 0 && !both[a] })
		both = ends
	}
	if len(both) == 1 && len(l.pods) > 1 {
		l.peers.addAll(l.pods)
		l.pods = both
		delete(l.peers, sorted(both)[0])
	}
}

func (l *lost) evidence() []model.Evidence {
	return words.Say("drops", facts{"reasons": mostDropped(l.drops)})
}

// dropEvidence are the pairs of addresses that lost most.
func dropEvidence(drops []*model.Drop) []model.Evidence {
	return words.Say("drops", facts{"lost": mostDropped(drops)})
}

// mostDropped are the few pairs of addresses that lost most, as evidence. Drops that differ in the protocol
// alone are one row, with the other fields of the first.
func mostDropped(drops []*model.Drop) []*model.Drop {
	const most = 3
	rows := map[model.Drop]*model.Drop{}
	for _, d := range drops {
		k := model.Drop{Src: d.Src, Dst: d.Dst, Range: d.Range, Link: d.Link, Location: d.Location, Reason: d.Reason}
		if rows[k] == nil {
			rows[k] = new(model.Drop)
			*rows[k] = *d
			continue
		}
		rows[k].Packets += d.Packets
	}
	list := slices.SortedFunc(maps.Values(rows), func(a, b *model.Drop) int {
		return cmp.Or(cmp.Compare(b.Packets, a.Packets), a.Src.Compare(b.Src), a.Dst.Compare(b.Dst),
			a.Range.Compare(b.Range), cmp.Compare(a.Link, b.Link),
			cmp.Compare(a.Location, b.Location), cmp.Compare(a.Reason, b.Reason))
	})
	return list[:min(most, len(list))]
}

// cameBy is where a packet that netfilter dropped was seen last: the link that it came in by. The kernel names that
// link, but in POSTROUTING (ip_output) and for packets that a bridge forwards the one by which it was to leave: these
// have their way out before FORWARD is asked (__br_forward), with or without translation.
func (v *index) cameBy(d *model.Drop) model.Place {
	out := v.byName[d.Link]
	leadsTo := func(a netip.Addr, l *model.Link) bool {
		return slices.ContainsFunc(v.Owners[a], func(p *model.Pod) bool { return p.LinkIndex == l.Index })
	}
	if out == nil || !leadsTo(d.Dst, out) && !(v.isUplink(out.Index) && len(v.Owners[d.Src]) > 0 && !leadsTo(d.Src, out)) {
		return v.place(d.Link, model.Ingress)
	}
	in := model.First(v.Links, func(l *model.Link) bool {
		own := leadsTo(d.Src, l) || len(v.Owners[d.Src]) == 0 && v.Outer[l.Index]
		return own && l != out && (out.Master == 0 || l.Master == out.Master)
	})
	if in == nil {
		in = &model.Link{Name: v.linkName(out.Master)}
	}
	return v.place(in.Name, model.Ingress)
}

// entering is where packets of pods enter the node, those of the first.
func (v *index) entering(pods map[netip.Addr]bool) model.Place {
	if list := sorted(pods); len(list) > 0 && len(v.Owners[list[0]]) > 0 {
		return v.place(v.Owners[list[0]][0].Link, model.Ingress)
	}
	return model.Place{Direction: model.Ingress}
}

// lostBy sums up the drops that nothing explains by what they have in common, where enough
// were lost. of tells that of a drop, and the pod that it concerns: none where it is no such drop.
func lostBy[K comparable](v *view, of func(*model.Drop) (K, netip.Addr)) iter.Seq2[K, *lost] {
	var all groups[K, lost]
	for d := range model.Each(v.Traffic.Drops) {
		if k, pod := of(d); pod.IsValid() && !v.explained(d) {
			all.of(k).addFor(pod, d)
		}
	}
	return func(yield func(K, *lost) bool) {
		for k, l := range all.all() {
			if l.packets >= minDrops && !yield(k, l) {
				return
			}
		}
	}
}

// lostTo sums up the drops of pods' packets that match and that nothing explains.
func (v *view) lostTo(match func(*model.Drop) bool) *lost {
	l := &lost{}
	for d := range model.Each(v.Traffic.Drops) {
		if match(d) && v.ofPod(d) && !v.explained(d) {
			l.add(v.index, d)
		}
	}
	return l
}

// reportBy reports a finding on each of these.
func reportBy[K comparable](v *view, of func(*model.Drop) (K, netip.Addr), find func(K, *lost) finding) {
	for k, l := range lostBy(v, of) {
		v.report(find(k, l))
	}
}

// atSockets are the findings on pods whose sockets did not take the packets that match.
func (v *view) atSockets(match func(*model.Drop) bool, find func(netip.Addr, *lost) finding) {
	reportBy(v, func(d *model.Drop) (pod, _ netip.Addr) {
		if match(d) && len(v.Owners[d.Dst]) > 0 && (d.Netns == 0 || v.inPod(d) == d.Dst) {
			return d.Dst, d.Dst
		}
		return pod, pod
	}, find)
}

// atSocket is a finding on these, by a page. It has the ports that samples of the drops were for.
func (v *index) atSocket(page string, l *lost) finding {
	d := l.drops[0]
	f := finding{page: page, lost: l, facts: facts{"addr": d.Dst, "ports": v.sampledPorts(l)}}
	if pods := v.Owners[d.Dst]; len(pods) > 0 {
		f.facts["pod"], f.LastHopAlive = pods[0],
			model.Place{Link: pods[0].Interface, Role: model.RolePod, Direction: model.Ingress}
	}
	return f
}

func (v *index) sampledPorts(l *lost) []string {
	names := slices.Values(model.Map(v.sampledServices(l), service.name))
	return slices.Compact(slices.Sorted(names))
}

// errorDropped reports whether a rule dropped what the node would tell one of the senders by ICMP.
func (v *index) errorDropped(d *model.Drop, l *lost) bool {
	return (d.Proto == icmp4 || d.Proto == icmp6) && d.Is(model.Netfilter) && v.nodeAddrs[d.Src] && l.pods[d.Dst]
}

// single is the snapshot with the counts of single addresses only. Those of ranges come from the busiest pods,
// beyond the many of their far ends that were counted one by one: findings are about these. What they explain
// of one far end they explain of a range too, and a reply that a range sent may be of any address in it.
func single(s *model.Snapshot) *model.Snapshot {
	out := *s
	out.Traffic.Peers = slices.DeleteFunc(slices.Clone(s.Traffic.Peers),
		func(p model.Peer) bool { return p.Range.IsValid() })
	out.Traffic.Drops = slices.DeleteFunc(slices.Clone(s.Traffic.Drops),
		func(d model.Drop) bool { return d.Range.IsValid() })
	return &out
}

// foldedReply reports whether packets from a peer may be among those that came from
// the far ends that were not counted one by one.
func (v *index) foldedReply(p *model.Peer) bool {
	return slices.ContainsFunc(v.folded,
		func(q *model.Peer) bool { return q.Local == p.Local && q.Range.Contains(p.Remote) })
}

// foldedCause is the cause of the drops of a range: that of those of the same pod, for the same
// reason at the same place, whose far ends were counted one by one.
func (v *view) foldedCause(d *model.Drop) model.DropCause {
	own := v.causeOf(d)
	if own.Code != "" || !v.drops.Lost(d) {
		return own
	}
	for e := range model.Each(v.Traffic.Drops) {
		like := (d.Src.IsValid() && e.Src == d.Src || d.Dst.IsValid() && e.Dst == d.Dst) && e.Reason == d.Reason &&
			e.Location == d.Location && e.Netns == d.Netns && e.IfIndex == d.IfIndex
		if c := v.causeOf(e); like && c.Code != "" {
			return c
		}
	}
	return own
}
