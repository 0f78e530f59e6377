package diagnose

import (
	"cmp"
	"fmt"
	"maps"
	"net/netip"
	"slices"
	"strings"

	"github.com/lasthop/lasthop/probe/loss"
	"github.com/lasthop/lasthop/probe/model"
	"github.com/lasthop/lasthop/probe/words"
)

// minDrops is how many packets of one kind must be dropped before it is a
// finding: a pod that comes or goes loses one or two in flight. All of them
// stay in the report's list of drops.
const minDrops = 3

// causes says for each drop which finding claims it, or that a healthy node frees such
// packets too.
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
	if !v.drops.Lost(d) {
		return model.DropCause{Expected: true}
	}
	code := v.byDrop[d]
	return model.DropCause{Code: code, Expected: code == "" && v.drops.Class(d) == loss.ByDesign}
}

// pod is the address of the drop that a running pod of this node has: the
// receiver's where both have one. The zero Addr: neither has.
func (v *view) pod(d *model.Drop) netip.Addr {
	for _, a := range []netip.Addr{d.Dst, d.Src} {
		if len(v.pods[a]) > 0 {
			return a
		}
	}
	return netip.Addr{}
}

// ofPod reports whether the packet was from or to a running pod.
func (v *view) ofPod(d *model.Drop) bool { return v.pod(d).IsValid() }

// inPod is the pod in whose own namespace a packet was dropped.
func (v *view) inPod(d *model.Drop) netip.Addr {
	if d.Netns == 0 || d.Netns == v.Node.Netns {
		return netip.Addr{}
	}
	for _, a := range []netip.Addr{d.Dst, d.Src} {
		for _, p := range v.pods[a] {
			if p.Netns == d.Netns {
				return a
			}
		}
	}
	return netip.Addr{}
}

// otherEnd is the drop's address that is not the pod's.
func otherEnd(d *model.Drop, pod netip.Addr) netip.Addr {
	if d.Dst == pod {
		return d.Src
	}
	return d.Dst
}

// sameDrops explains these drops and no others; there may be thousands.
func sameDrops(list []*model.Drop) func(*model.Drop) bool {
	set := make(map[*model.Drop]bool, len(list))
	for _, d := range list {
		set[d] = true
	}
	return func(d *model.Drop) bool { return set[d] }
}

// dropped sums the drops that match and that no finding explains yet.
func (v *view) dropped(match func(*model.Drop) bool) uint64 {
	var n uint64
	for i := range v.Traffic.Drops {
		if d := &v.Traffic.Drops[i]; !d.Delivered() && match(d) && !v.explained(d) {
			n += d.Packets
		}
	}
	return n
}

// lost sums up drops: the pods, their peers, the number of packets and the drops
// themselves.
type lost struct {
	pods    map[netip.Addr]bool
	peers   map[netip.Addr]bool
	ranges  map[netip.Prefix]bool // of peers that were not counted one by one
	packets uint64
	drops   []*model.Drop
}

func (l *lost) add(v *view, d *model.Drop) { l.addFor(v.pod(d), d) }

// addFor adds a drop that concerns one of its ends above the other.
func (l *lost) addFor(pod netip.Addr, d *model.Drop) {
	l.about(pod, d)
	l.packets += d.Packets
	l.drops = append(l.drops, d)
}

// about notes a pod that a drop concerns, and its other end.
func (l *lost) about(pod netip.Addr, d *model.Drop) {
	if l.pods == nil {
		l.pods, l.peers, l.ranges = map[netip.Addr]bool{}, map[netip.Addr]bool{}, map[netip.Prefix]bool{}
	}
	l.pods[pod] = true
	switch far := otherEnd(d, pod); {
	case far.IsValid():
		l.peers[far] = true
	case d.Range.Bits() > 0:
		l.ranges[d.Range] = true
	}
}

// finding is a proven one with the pods, peers and packets, and without any words.
func (l *lost) finding() model.Finding {
	return model.Finding{
		Confidence: model.Proven, Packets: l.packets, Pods: slices.SortedFunc(maps.Keys(l.pods), netip.Addr.Compare),
		Peers: append(hosts(slices.SortedFunc(maps.Keys(l.peers), netip.Addr.Compare)), slices.SortedFunc(maps.Keys(l.ranges), comparePrefix)...),
	}
}

// evidence are the pairs of addresses that lost most, with the kernel's reasons.
func (l *lost) evidence() []model.Evidence {
	return words.Evidence("drops", facts{"reasons": mostDropped(l.drops)})
}

// dropEvidence are the pairs of addresses that lost most.
func dropEvidence(drops []*model.Drop) []model.Evidence {
	return words.Evidence("drops", facts{"lost": mostDropped(drops)})
}

// mostDropped are the few pairs of addresses that lost most, as evidence. Drops
// that differ in the protocol alone are one row, with the other fields of the
// first.
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
		return cmp.Or(cmp.Compare(b.Packets, a.Packets), a.Src.Compare(b.Src), a.Dst.Compare(b.Dst), a.Range.Compare(b.Range), cmp.Compare(a.Link, b.Link),
			cmp.Compare(a.Location, b.Location), cmp.Compare(a.Reason, b.Reason))
	})
	return list[:min(most, len(list))]
}

// cameBy is where a packet that netfilter dropped was seen last: the link that it
// came in by. The kernel names that link, but for packets that a bridge forwards: these
// have their way out before FORWARD is asked (__br_forward), with or without translation.
func (v *view) cameBy(d *model.Drop) model.Place {
	out := v.byName[d.Link]
	if out == nil || out.Master == 0 || !v.leadsTo(out, d.Dst) {
		return v.place(d.Link, model.Ingress)
	}
	for _, p := range v.pods[d.Src] {
		if l := v.links[p.LinkIndex]; l != nil && l != out && l.Master == out.Master {
			return v.place(l.Name, model.Ingress)
		}
	}
	for l := range model.Each(v.Links) {
		if l != out && l.Master == out.Master && v.outer[l.Index] {
			return v.place(l.Name, model.Ingress)
		}
	}
	return v.place(v.linkName(out.Master), model.Ingress)
}

// entering is where packets of pods enter the node, those of the first.
func (v *view) entering(pods map[netip.Addr]bool) model.Place {
	if list := sorted(pods); len(list) > 0 && len(v.pods[list[0]]) > 0 {
		return v.place(v.pods[list[0]][0].Link, model.Ingress)
	}
	return model.Place{Direction: model.Ingress}
}

// leadsTo reports whether a link is that of the pod with the address.
func (v *view) leadsTo(l *model.Link, a netip.Addr) bool {
	return slices.ContainsFunc(v.pods[a], func(p *model.Pod) bool { return p.LinkIndex == l.Index })
}

// atSockets makes a finding for each living pod whose sockets did not take the
// packets that match.
func (v *view) atSockets(match func(*model.Drop) bool, judge func(*model.Pod, *lost) model.Finding) []finding {
	byPod := map[netip.Addr]*lost{}
	for d := range model.Each(v.Traffic.Drops) {
		if match(d) && len(v.pods[d.Dst]) > 0 && !v.explained(d) && (d.Netns == 0 || v.inPod(d) == d.Dst) {
			if byPod[d.Dst] == nil {
				byPod[d.Dst] = &lost{}
			}
			byPod[d.Dst].addFor(d.Dst, d)
		}
	}
	var out []finding
	for _, pod := range slices.SortedFunc(maps.Keys(byPod), netip.Addr.Compare) {
		l, p := byPod[pod], v.pods[pod][0]
		if l.packets < minDrops {
			continue
		}
		f := judge(p, l)
		f.LastHopAlive = model.Place{Link: p.Interface, Role: model.RolePod, Direction: model.Ingress}
		out = append(out, finding{Finding: f, claims: sameDrops(l.drops)})
	}
	return out
}

// sampledPorts is the pod's address with the ports that samples of the drops were for, and
// these.
func (v *view) sampledPorts(l *lost) (at string, ports []string) {
	seen := map[string]bool{}
	for _, d := range l.drops {
		if s := v.samples.Of(d); s != nil {
			if _, port, ok := s.Ports(); ok {
				seen[fmt.Sprintf("%s/%d", model.ProtoName(d.Proto), port)] = true
			}
		}
	}
	at, ports = l.drops[0].Dst.String(), slices.Sorted(maps.Keys(seen))
	if len(ports) > 0 {
		at += " " + strings.Join(ports, ", ")
	}
	return at, ports
}

// silenced reports whether a rule dropped what the node would tell one of the
// senders by ICMP.
func (v *view) errorDropped(d *model.Drop, l *lost) bool {
	return (d.Proto == icmp4 || d.Proto == icmp6) && d.Netfilter() && v.nodeAddrs[d.Src] && l.pods[d.Dst]
}

// whatWasFull says which queue or buffer had no room for the packet. It is empty for
// other drops.
func whatWasFull(d *model.Drop) string {
	if d.CookieRefused() {
		return fullReasons["TCP_LISTEN_OVERFLOW"]
	}
	return fullReasons[d.Reason]
}

var fullReasons = map[model.Reason]string{
	"SOCKET_RCVBUFF":      "the socket's receive buffer was full",
	"SOCKET_BACKLOG":      "the socket's backlog was full",
	"PROTO_MEM":           "the protocol's memory limit was reached",
	"TCP_LISTEN_OVERFLOW": "the queue of connections to be accepted was full",
}
