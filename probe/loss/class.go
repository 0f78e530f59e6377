// Package loss tells which packets that the kernel freed were lost, and what excuses the others.
package loss

import (
	"cmp"
	"math"
	"net/netip"
	"slices"
	"sync"
	"time"

	"github.com/lasthop/lasthop/probe/model"
)

// Class says whether packets that the kernel freed were lost; if they were not it says why the kernel freed them.
type Class = model.Excuse

// The classes. All but Lost are frees that are no loss.
const (
	// Lost packets were freed before they were delivered.
	Lost Class = ""
	// Delivered packets had been delivered: a transport or a socket frees them when it is done with them.
	Delivered Class = "delivered"
	// Copy packets are copies of frames for another: a bridge floods frames until it has learnt the port, and
	// hands them to the node while it is promiscuous; a packet socket gets one of each, such as tcpdump's.
	Copy Class = "copy"
	// Group packets went to a multicast or broadcast address, and this
	// receiver has not joined the group or has no socket for it.
	Group Class = "group"
	// NeighborDiscovery packets are neighbour discovery messages that bring nothing new, or are about another's address.
	NeighborDiscovery Class = "neighborDiscovery"
	// PodGone packets were for a pod that went away during the window.
	PodGone Class = "podGone"
	// PodStarting packets were dropped by rules that the network plugin had not yet written for a new pod.
	PodStarting Class = "podStarting"
	// Redirect packets are ICMP redirects, which tell a sender of a shorter way and change nothing when they
	// are lost. The kernel itself drops those about a connection whose addresses it translates.
	Redirect Class = "redirect"
	// Closed packets are segments of connections that their sockets have closed already, and datagrams in reply,
	// as where a client gives up before the reply comes.
	Closed Class = "closed"
	// ByDesign packets were dropped by a rule that a healthy node has for that.
	ByDesign Class = "byDesign"
	// Foreign packets came from off the node with the address of one of its own pods, which had not sent them: the
	// reverse path filter is right to refuse them.
	Foreign Class = "foreign"
)

// frame is an address and the MAC that its frames are for.
type frame struct {
	addr netip.Addr
	mac  model.MAC
}

// startupTime is how long a network plugin may take to write a new pod's rules.
const startupTime = time.Second

// Classifier classifies the drops of one snapshot.
type Classifier struct {
	window model.Window
	links  map[int]*model.Link
	// pods are the running ones by address, Past the addresses of those that went away.
	pods map[netip.Addr][]*model.Pod
	Past map[netip.Addr]bool
	// broadcasts are the IPv4 broadcast addresses of links and pods.
	broadcasts map[netip.Addr]bool
	// flooded is the class of a frame that a receiver with another MAC frees, by the frame's destination.
	flooded map[model.MAC]Class
	// holders are the links by which frames for a MAC get to who has it, frames those at which they were counted. A bridge
	// with all its ports, or a link without one, is the negative number of it, as bridge has it of each link.
	holders map[model.MAC][]int
	bridge  map[int]int
	frames  map[frame][]int
	// dropped are the pairs of which packets were dropped for another reason.
	dropped map[[2]netip.Addr]bool
	// BridgeMACs are those of bridges and their ports: a bridge delivers frames for them to the node.
	BridgeMACs map[model.MAC]bool
	// Samples are those of the drops.
	Samples Samples
	// excused are the drops that samples or the rules' own counts show to be harmless.
	excused map[model.Drop]Class
}

// NewClassifier indexes a snapshot. It keeps references into it.
func NewClassifier(s *model.Snapshot) *Classifier {
	c := &Classifier{
		window: s.Window, links: make(map[int]*model.Link, len(s.Links)),
		pods: make(map[netip.Addr][]*model.Pod, len(s.Pods)),
		Past: map[netip.Addr]bool{}, broadcasts: map[netip.Addr]bool{}, flooded: map[model.MAC]Class{},
		BridgeMACs: map[model.MAC]bool{}, Samples: newSamples(&s.Traffic),
	}
	for p := range model.Each(s.PastPods) {
		c.flooded[p.MAC] = PodGone
		for _, a := range p.Addresses {
			c.Past[a.Addr()] = true
		}
	}
	for l := range model.Each(s.Links) {
		c.links[l.Index], c.flooded[l.MAC] = l, Copy
		c.BridgeMACs[l.MAC] = c.BridgeMACs[l.MAC] || l.Master != 0 || l.Kind == "bridge"
		for _, a := range l.Addresses {
			c.broadcasts[model.BroadcastOf(a)] = true
		}
	}
	for p := range model.Each(s.Pods) {
		c.flooded[p.MAC] = Copy
		for _, a := range p.Addresses {
			c.pods[a.Addr()] = append(c.pods[a.Addr()], p)
			c.broadcasts[model.BroadcastOf(a)] = true
		}
	}
	c.originals(s)
	delete(c.flooded, model.MAC{})
	delete(c.BridgeMACs, model.MAC{})
	delete(c.broadcasts, netip.Addr{})
	c.excused = c.excuses(s)
	return c
}

// excuses finds the drops that their samples, or what rules counted, excuse.
func (c *Classifier) excuses(s *model.Snapshot) map[model.Drop]Class {
	out := map[model.Drop]Class{}
	rules := sync.OnceValue(func() allowances { return c.byDesign(s) })
	began := sync.OnceValue(func() map[netip.AddrPort]bool { return udpEnds(s) })
	left := sync.OnceValue(func() departures { return c.departures(&s.Traffic) })
	for d := range model.Each(s.Traffic.Drops) {
		switch {
		case c.Class(d) != Lost:
		case slices.ContainsFunc(c.Samples.All(d), (*model.Sample).Redirects):
			out[*d] = Redirect
		case len(c.pods[d.Src])+len(c.pods[d.Dst]) == 0:
		case d.Is(model.NoSocket) && (c.Samples.Of(d).Late() || c.lateReplies(d, began)):
			out[*d] = Closed
		case d.Is(model.Netfilter) && !d.Range.IsValid() && rules().take(d):
			out[*d] = ByDesign
		case d.Is(model.ReverseFiltered) && len(c.pods[d.Src]) > 0 && c.atUplink(d.IfIndex):
			if class := c.arrived(d, left()); class != Lost {
				out[*d] = class
			}
		}
	}
	return out
}

// departures are what left by the uplinks, and came in there.
type departures struct {
	// pairs are the packets between two addresses, by whether they came in; to are the receivers of what left.
	pairs map[[2]netip.Addr][2]uint64
	to    map[netip.Addr]bool
	// ttls are those of a sender's packets at a link, by direction.
	ttls map[sent]uint64
}

type sent struct {
	by        netip.Addr
	ifindex   int
	direction model.Direction
}

func (c *Classifier) departures(t *model.Traffic) departures {
	x := departures{map[[2]netip.Addr][2]uint64{}, map[netip.Addr]bool{}, map[sent]uint64{}}
	for p := range model.Each(t.Peers) {
		k := [2]netip.Addr{p.Local, p.Remote}
		x.pairs[k] = [2]uint64{x.pairs[k][0] + p.Out.Packets, x.pairs[k][1] + p.In.Packets}
	}
	for h := range model.Each(t.Hops) {
		if h.Side == model.AsSource {
			x.ttls[sent{h.Addr, h.IfIndex, h.Direction}] = h.TTLs
		} else if h.Direction == model.Egress && h.Packets > 0 && c.atUplink(h.IfIndex) {
			x.to[h.Addr] = true
		}
	}
	return x
}

func (c *Classifier) atUplink(ifindex int) bool {
	l := c.links[ifindex]
	return l != nil && l.Role == model.RoleUplink
}

// arrived is what the reverse path filter refused at an uplink of packets with the source of one of the node's pods: Lost
// where they had left the node before and returned with a lower TTL, Copy where with the same one.
func (c *Classifier) arrived(d *model.Drop, x departures) Class {
	pair, back := x.pairs[[2]netip.Addr{d.Src, d.Dst}], x.ttls[sent{d.Src, d.IfIndex, model.Ingress}]
	switch {
	case len(c.pods[d.Dst]) > 0 && !x.to[d.Dst], pair[0] == 0 && pair[1] > 0:
		return Foreign
	case back != 0 && back&^x.ttls[sent{d.Src, d.IfIndex, model.Egress}] == 0:
		return Copy
	}
	return Lost
}

// firstEphemeral is where the ports begin that Linux gives to clients (net.ipv4.ip_local_port_range).
const firstEphemeral = 32768

// lateReplies reports whether all samples of a drop are datagrams for ports from which the receiver itself asked: its
// socket is closed, and the reply came too late. Connection tracking knows who began; where it has no such flow, the
// ports say so.
func (c *Classifier) lateReplies(d *model.Drop, began func() map[netip.AddrPort]bool) bool {
	list := c.Samples.All(d)
	return len(list) > 0 && !slices.ContainsFunc(list, func(s *model.Sample) bool {
		from, to, ok := s.Ports()
		if !ok || s.Proto() != model.UDP {
			return true
		}
		asked, known := began()[netip.AddrPortFrom(d.Dst, to)]
		return !model.Either(known, asked, from < firstEphemeral && to >= firstEphemeral)
	})
}

// udpEnds are the ends of the flows of UDP: whether packets from there began one.
func udpEnds(s *model.Snapshot) map[netip.AddrPort]bool {
	out := map[netip.AddrPort]bool{}
	for f := range model.Each(s.Flows) {
		if f.Proto == model.UDP {
			if end := netip.AddrPortFrom(f.Reply.Src, f.Reply.SrcPort); !out[end] {
				out[end] = false
			}
			out[netip.AddrPortFrom(f.Original.Src, f.Original.SrcPort)] = true
		}
	}
	return out
}

// Lost reports whether the packets were lost. What a rule drops by design is, until no
// cause is found that brings it to that rule.
func (c *Classifier) Lost(d *model.Drop) bool {
	class := c.Class(d)
	return class == Lost || class == ByDesign
}

// Class says whether the packets were lost or, if not, why they were freed.
func (c *Classifier) Class(d *model.Drop) Class {
	switch {
	case d.Is(model.Delivered):
		return Delivered
	case d.Is(model.SocketCopy):
		return Copy
	case d.Is(model.AtICMPv6) && (d.Src.IsLinkLocalUnicast() || d.Dst.IsLinkLocalUnicast()),
		d.Is(model.ForOtherNeighbor) && d.Dst.IsMulticast():
		return NeighborDiscovery
	case c.ToGroup(d.Dst) && d.Is(model.NoMember), d.Dst.Is4() && d.Dst.IsMulticast() && d.Is(model.Netfilter) && c.forNode(d):
		return Group
	case d.Is(model.NeighborFailed | model.NoSocket | model.LookupRefused | model.ReverseFiltered | model.OwnSource |
		model.Expired | model.Transmitting):
		// A pod closes its sockets before its link goes, and its route goes with the link. Without that route
		// packets for it leave the node, and the network may send them back.
		if c.Past[d.Dst] {
			return PodGone
		}
	case d.Is(model.Netfilter):
		switch {
		case c.starting(d):
			return PodStarting
		case c.bridgedCopy(d):
			return Copy
		}
	case d.Is(model.OtherHost):
		return model.Either(c.Past[d.Dst], PodGone, model.Either(c.strayed(d), Lost, c.flooded[d.DstMAC]))
	}
	return c.excused[*d]
}

// originals notes where frames for each MAC should get, and where they did. An address of which some were not counted is
// left out.
func (c *Classifier) originals(s *model.Snapshot) {
	c.holders, c.frames = make(map[model.MAC][]int, len(s.Links)+len(s.Pods)), make(map[frame][]int, len(s.Traffic.MACs))
	c.dropped = make(map[[2]netip.Addr]bool, len(s.Traffic.Drops))
	for d := range model.Each(s.Traffic.Drops) {
		if !d.Is(model.OtherHost) {
			c.dropped[[2]netip.Addr{d.Src, d.Dst}] = true
		}
	}
	var uplinks []int
	outer, podLinks := map[int]bool{}, map[int]bool{}
	c.bridge = make(map[int]int, len(s.Links))
	for l := range model.Each(s.Links) {
		if l.Role == model.RoleUplink {
			uplinks, outer[l.Index], outer[l.Master] = append(uplinks, l.Index), true, l.Master != 0
		}
		c.bridge[l.Index] = -cmp.Or(l.Master, l.Index)
		c.holders[l.MAC] = append(c.holders[l.MAC], c.bridge[l.Index])
	}
	for p := range model.Each(s.Pods) {
		c.holders[p.MAC], podLinks[p.LinkIndex] = append(c.holders[p.MAC], p.LinkIndex), true
	}
	gateways := s.DefaultGateways()
	for _, n := range s.Neighbors {
		// So are frames for other machines that answered beyond an uplink.
		answered := outer[n.IfIndex] && (n.State == "REACHABLE" || n.State == "STALE") && len(c.holders[n.MAC]) == 0
		if gateways[n.Addr] || answered {
			c.flooded[n.MAC] = Copy
			c.holders[n.MAC] = append(append(c.holders[n.MAC], n.IfIndex), uplinks...)
		}
	}
	whole := s.Has(model.SourceTC, model.SourceLinks, model.SourcePods)
	for m := range model.Each(s.Traffic.MACs) {
		if k := (frame{m.Addr, m.Dst}); whole && (s.Traffic.Lost.MACs == 0 || s.Traffic.Lost.Of(m.Addr).MACs == 0) {
			at := m.IfIndex
			if m.Direction == model.Ingress && podLinks[at] && slices.Contains(c.holders[m.Dst], at) {
				at = 0 // It came from who has the MAC.
			}
			c.frames[k] = append(c.frames[k], at)
		}
	}
}

// strayed reports whether frames for a MAC that is known passed links, and none by which they get to who has it. Where the
// originals were dropped on their way, they are counted there.
func (c *Classifier) strayed(d *model.Drop) bool {
	if c.dropped[[2]netip.Addr{d.Src, d.Dst}] {
		return false
	}
	from, to, holders := c.frames[frame{d.Src, d.DstMAC}], c.frames[frame{d.Dst, d.DstMAC}], c.holders[d.DstMAC]
	held := func(i int) bool { return slices.Contains(holders, i) || slices.Contains(holders, c.bridge[i]) }
	return len(from)+len(to) > 0 && len(holders) > 0 && !slices.ContainsFunc(from, held) && !slices.ContainsFunc(to, held)
}

// forNode reports whether netfilter dropped the node's own copy of what a pod sent: the other members get theirs by the
// ports of the bridge.
func (c *Classifier) forNode(d *model.Drop) bool {
	l := c.links[d.IfIndex]
	return l != nil && l.Master == 0 && len(c.pods[d.Src]) > 0
}

// ToGroup reports whether an address is of several receivers: multicast or broadcast.
func (c *Classifier) ToGroup(a netip.Addr) bool {
	return a.IsMulticast() || a == netip.AddrFrom4([4]byte{255, 255, 255, 255}) || c.broadcasts[a]
}

// starting reports whether netfilter dropped only the first packets of a pod that came during the window.
func (c *Classifier) starting(d *model.Drop) bool {
	if d.Last.IsZero() || d.Last.After(c.window.End.Add(-2*startupTime)) {
		return false
	}
	young := func(p *model.Pod) bool { return p.Since.After(c.window.Start.Add(startupTime)) }
	return slices.ContainsFunc(c.pods[d.Src], young) || slices.ContainsFunc(c.pods[d.Dst], young)
}

// bridgedCopy reports whether netfilter dropped the copy that a promiscuous bridge hands to the node of a frame
// that it forwards to the pod itself. Packets for the node, and those that return to the pod that sent them,
// take no other path.
func (c *Classifier) bridgedCopy(d *model.Drop) bool {
	bridge := c.links[d.IfIndex]
	if bridge == nil || bridge.Kind != "bridge" || !bridge.Promisc || d.Src == d.Dst || d.DstMAC.IsZero() ||
		c.BridgeMACs[d.DstMAC] {
		return false
	}
	return slices.ContainsFunc(c.pods[d.Dst], func(p *model.Pod) bool {
		l := c.links[p.LinkIndex]
		return p.MAC == d.DstMAC && l != nil && l.Master == bridge.Index
	})
}

// allowances are what the rules of a healthy node drop by design.
type allowances []allowance

type allowance struct {
	takes func(*model.Drop) bool
	// left is how many packets the rule counted, less those taken.
	left uint64
}

// take reports whether the drop is by design, and uses up what it takes.
func (list allowances) take(d *model.Drop) bool {
	for i := range list {
		if d.Is(model.Netfilter) && list[i].left >= d.Packets && list[i].takes(d) {
			list[i].left -= d.Packets
			return true
		}
	}
	return false
}

// byDesign finds the rules that drop on a healthy node: kubelet's deduplication of frames between two pods that a
// promiscuous bridge delivers twice, and AKS's bans of the wire server and of the metadata service. A rule whose counter
// restarted in the window may have dropped any number.
func (c *Classifier) byDesign(s *model.Snapshot) allowances {
	var out allowances
	add := func(n model.Counter, takes func(*model.Drop) bool) {
		if n.Restarted {
			n.Delta = math.MaxUint64
		}
		out = append(out, allowance{takes, n.Delta})
	}
	for i := range s.FrameRules {
		if r := &s.FrameRules[i]; Deduplicates(s, r) {
			add(r.Counter, func(d *model.Drop) bool {
				return r.IPSrc.Matches(d.Src) && r.Out.Matches(d.Link) && (c.neighbors(d.Src, d.Dst) || !s.Has(model.SourcePods))
			})
		}
	}
	for i := range s.PacketRules {
		if r := &s.PacketRules[i]; r.OfAKS() {
			add(r.Counter, func(d *model.Drop) bool {
				return r.Dst.Matches(d.Dst) && r.Src.Matches(d.Src) && (r.Proto == 0 || r.Proto == d.Proto)
			})
		}
	}
	return out
}

// neighbors reports whether two addresses are of pods on one bridge, which takes frames from one to the other itself, or
// the other is of no pod here, so that the bridge floods what is for it.
func (c *Classifier) neighbors(a, b netip.Addr) bool {
	bridge := func(p *model.Pod) int {
		if l := c.links[p.LinkIndex]; l != nil {
			return l.Master
		}
		return 0
	}
	return slices.ContainsFunc(c.pods[a], func(p *model.Pod) bool {
		return bridge(p) != 0 && (len(c.pods[b]) == 0 || slices.ContainsFunc(c.pods[b], func(o *model.Pod) bool { return bridge(o) == bridge(p) }))
	})
}

// Deduplicates reports whether a rule drops the second copy of what the node itself sent through its bridge, as
// kubelet's rules do, among which may be more.
func Deduplicates(s *model.Snapshot, r *model.FrameRule) bool {
	return r.Target == model.TargetDrop && r.SrcMAC.Set && !r.IPSrc.IsZero() &&
		slices.ContainsFunc(s.Links, func(l model.Link) bool {
			return l.MAC == r.SrcMAC.Addr && (l.Master != 0 || l.Kind == "bridge")
		})
}

// Samples are the samples of a snapshot's drops.
type Samples map[sampleKey][]*model.Sample

type sampleKey struct {
	src, dst netip.Addr
	proto    uint8
	reason   model.Reason
	netns    uint32
	ifindex  int
}

func newSamples(t *model.Traffic) Samples {
	return model.Grouped(t.Samples, func(s *model.Sample) sampleKey {
		return sampleKey{s.Src, s.Dst, s.Proto(), s.Reason, s.Netns, s.IfIndex}
	})
}

// All are the samples of a drop.
func (x Samples) All(d *model.Drop) []*model.Sample {
	return x[sampleKey{d.Src, d.Dst, d.Proto, d.Reason, d.Netns, d.IfIndex}]
}

// Advertised reports whether a drop's packets were neighbour advertisements, as far as samples show.
func (x Samples) Advertised(d *model.Drop) bool {
	return d.Proto == model.ICMPv6 && slices.ContainsFunc(x.All(d), (*model.Sample).Advertises)
}

// Of is the latest sample of a drop, nil where there is none.
func (x Samples) Of(d *model.Drop) *model.Sample {
	list := x.All(d)
	if len(list) == 0 {
		return nil
	}
	return list[len(list)-1]
}

// Peer is the far end of most packets that a pod lost; not valid where it lost none.
func (c *Classifier) Peer(s *model.Snapshot, pod netip.Addr) netip.Addr {
	packets := map[netip.Addr]uint64{}
	var most netip.Addr
	for d := range model.Each(s.Traffic.Drops) {
		far := model.Either(d.Src == pod, d.Dst, d.Src)
		if d.Src != pod && d.Dst != pod || !far.IsValid() || !c.Lost(d) {
			continue
		}
		if packets[far] += d.Packets; packets[far] > packets[most] || packets[far] == packets[most] && far.Less(most) {
			most = far
		}
	}
	return most
}
