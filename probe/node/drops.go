package node

import (
	"cmp"
	"maps"
	"net/netip"
	"slices"

	"github.com/lasthop/lasthop/probe/model"
	"github.com/lasthop/lasthop/probe/words"
)

// MinDrops is how many packets of one kind must be dropped before it is a finding: a pod that comes or goes
// loses one or two in flight. All of them stay in the report's list of drops.
const MinDrops = 3

// Pod is the address of the drop that a running pod of this node has: the receiver's where both have one. If neither
// has, it is the sender that waits for a reply on another node, as that node knows. The zero Addr: nobody is known to.
func (v *Index) Pod(d *model.Drop) netip.Addr {
	own := model.Find([]netip.Addr{d.Dst, d.Src}, func(a netip.Addr) bool { return len(v.Owners[a]) > 0 })
	return model.Either(!own.IsValid() && v.Others.Waits[Pair{d.Src, d.Dst}], d.Src, own)
}

// Sender is the address of the drop that a running pod has: the sender's where both have one.
func (v *Index) Sender(d *model.Drop) netip.Addr {
	return model.Either(len(v.Owners[d.Src]) > 0, d.Src, d.Dst)
}

// OfPod reports whether a running pod of this node has an end of the drop, or somebody waits for it elsewhere.
func (v *Index) OfPod(d *model.Drop) bool { return v.Pod(d).IsValid() }

// InPod is the pod in whose own namespace a packet was dropped.
func (v *Index) InPod(d *model.Drop) netip.Addr {
	if d.Netns == 0 || d.Netns == v.Node.Netns {
		return netip.Addr{}
	}
	here := func(p *model.Pod) bool { return p.Netns == d.Netns }
	return model.Find([]netip.Addr{d.Dst, d.Src}, func(a netip.Addr) bool { return slices.ContainsFunc(v.Owners[a], here) })
}

// OtherEnd is the drop's address that is not the pod's.
func OtherEnd(d *model.Drop, pod netip.Addr) netip.Addr {
	return model.Either(d.Dst == pod, d.Src, d.Dst)
}

// LostPackets sums the drops that match.
func (v *Index) LostPackets(match func(*model.Drop) bool) uint64 {
	var n uint64
	for d := range model.Each(v.Traffic.Drops) {
		if !d.Is(model.Delivered) && match(d) {
			n += d.Packets
		}
	}
	return n
}

// Dropping reports whether the node drops packets of pods, but for ordinary losses.
func (v *Index) Dropping() bool {
	return v.LostPackets(func(d *model.Drop) bool { return v.OfPod(d) && v.Classifier.Lost(d) }) > 0
}

// Lost sums up drops, or pairs without a reply: the pods, their peers, and the packets.
type Lost struct {
	Pods, Peers AddrSet
	Ranges      []netip.Prefix // of peers that were not counted one by one
	Packets     uint64
	Drops       []*model.Drop
	// Requests and errors are those of pairs, link is one by which their packets left.
	Requests, Errors uint64
	Link             int
}

// Add adds a drop, for the pod that it concerns.
func (l *Lost) Add(v *Index, d *model.Drop) { l.AddFor(v.Pod(d), d) }

// AddFor adds a drop that concerns one of its ends above the other.
func (l *Lost) AddFor(pod netip.Addr, d *model.Drop) {
	l.About(pod, d)
	l.Packets += d.Packets
	l.Drops = append(l.Drops, d)
}

// About notes a pod that a drop concerns, and its other end.
func (l *Lost) About(pod netip.Addr, d *model.Drop) {
	far := OtherEnd(d, pod)
	if l.With(pod, far); !far.IsValid() && d.Range.Bits() > 0 {
		l.Ranges = model.With(l.Ranges, d.Range)
	}
}

// Merge adds what another of one cause lost.
func (l *Lost) Merge(o *Lost) {
	l.Pods.AddAll(o.Pods)
	l.Peers.AddAll(o.Peers)
	l.Packets, l.Requests = l.Packets+o.Packets, l.Requests+o.Requests
	l.Drops, l.Ranges = append(l.Drops, o.Drops...), model.With(l.Ranges, o.Ranges...)
}

// With notes a pod and its other end, where they are known.
func (l *Lost) With(pod, far netip.Addr) {
	if pod.IsValid() {
		l.Pods.Add(pod)
	}
	if far.IsValid() {
		l.Peers.Add(far)
	}
}

// Common narrows the pods down to the one that is an end of all the drops, where these have several other ends.
func (l *Lost) Common() {
	var both AddrSet
	for i, d := range l.Drops {
		ends := SetOf([]netip.Addr{d.Src, d.Dst})
		maps.DeleteFunc(ends, func(a netip.Addr, _ bool) bool { return !l.Pods[a] || i > 0 && !both[a] })
		both = ends
	}
	if len(both) == 1 && len(l.Pods) > 1 {
		l.Peers.AddAll(l.Pods)
		l.Pods = both
		delete(l.Peers, Sorted(both)[0])
	}
}

// Evidence is the reasons and places of the drops, as evidence.
func (l *Lost) Evidence() []model.Evidence {
	return words.Say("drops", words.Facts{"reasons": MostDropped(l.Drops)})
}

// MostDropped are the few pairs of addresses that lost most, as evidence. Drops that differ in the protocol
// alone are one row, with the other fields of the first.
func MostDropped(drops []*model.Drop) []*model.Drop {
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

// Entering is where packets of pods enter the node, those of the first.
func (v *Index) Entering(pods map[netip.Addr]bool) model.Place {
	if list := Sorted(pods); len(list) > 0 && len(v.Owners[list[0]]) > 0 {
		return v.Place(v.Owners[list[0]][0].Link, model.Ingress)
	}
	return model.Place{Direction: model.Ingress}
}

// SampledPorts are the ports that samples of the drops were for, by name.
func (v *Index) SampledPorts(l *Lost) []string {
	return slices.Compact(slices.Sorted(slices.Values(model.Map(v.SampledServices(l), Service.Name))))
}

// ErrorDropped reports whether a rule dropped what the node would tell one of the senders by ICMP.
func (v *Index) ErrorDropped(d *model.Drop, l *Lost) bool {
	return (d.Proto == model.ICMP || d.Proto == model.ICMPv6) && d.Is(model.Netfilter) && v.Own[d.Src] != nil && l.Pods[d.Dst]
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

// FoldedReply reports whether packets from a peer may be among those that came from
// the far ends that were not counted one by one.
func (v *Index) FoldedReply(p *model.Peer) bool {
	return slices.ContainsFunc(v.Folded,
		func(q *model.Peer) bool { return q.Local == p.Local && q.Range.Contains(p.Remote) })
}

// Sending reports whether the packet was to leave by its device: it waited for
// the next hop's MAC, or was handed to the device.
func Sending(d *model.Drop) bool {
	return d.Is(model.NeighborFailed | model.Transmitting | model.Leaving)
}

// ManyRefused is more packets than bad luck spoils in a window.
const ManyRefused = 9

// Lasting reports whether drops went on for a while.
func (l *Lost) Lasting() bool { return l.Packets >= ManyRefused && l.Lasted() }

// Lasted reports whether the drops went on for long enough to be no passing one.
func (l *Lost) Lasted() bool {
	first := slices.MinFunc(l.Drops, func(a, b *model.Drop) int { return a.First.Compare(b.First) }).First
	return model.Lasted(first, slices.MaxFunc(l.Drops, func(a, b *model.Drop) int { return a.Last.Compare(b.Last) }).Last)
}
