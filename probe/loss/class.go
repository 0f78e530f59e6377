package loss

import (
	"encoding/binary"
	"net/netip"
	"slices"
	"sync"
	"time"

	"github.com/lasthop/lasthop/probe/model"
)

// Class says whether packets that the kernel freed were lost; if they were
// not it says why the kernel freed them.
type Class string

// The classes. All but Lost are harmless frees.
const (
	// Lost packets were freed before they were delivered.
	Lost Class = ""
	// Delivered packets had been delivered: a transport or a socket
	// frees them when it is done with them.
	Delivered Class = "delivered"
	// Copy packets are copies of frames for another: a bridge floods
	// frames until it has learnt the port, and hands them to the node while it is
	// promiscuous; a packet socket gets one of each, such as tcpdump's.
	Copy Class = "copy"
	// Group packets went to a multicast or broadcast address, and this
	// receiver has not joined the group or has no socket for it.
	Group Class = "group"
	// NeighborDiscovery packets are neighbour discovery messages that
	// bring nothing new, or are about another's address.
	NeighborDiscovery Class = "neighborDiscovery"
	// PodGone packets were for a pod that went away during the window.
	PodGone Class = "podGone"
	// PodStarting packets were dropped by rules that the network plugin had
	// not yet written for a new pod.
	PodStarting Class = "podStarting"
	// Redirect packets are ICMP redirects, which tell a sender of a shorter way
	// and change nothing when they are lost. The kernel itself drops those about a
	// connection whose addresses it translates.
	Redirect Class = "redirect"
	// Closed packets are segments of connections that their sockets have closed already,
	// as where a client gives up before the reply comes.
	Closed Class = "closed"
	// ByDesign packets were dropped by a rule that a healthy node has for that.
	ByDesign Class = "byDesign"
)

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
	// flooded is the class of a frame that a receiver with another MAC frees, by
	// the frame's destination.
	flooded map[model.MAC]Class
	// BridgeMACs are those of bridges and their ports: a bridge delivers frames
	// for them to the node.
	BridgeMACs map[model.MAC]bool
	// Samples are those of the drops.
	Samples Samples
	// excused are the drops that samples or the rules' own counts show to be harmless.
	excused map[model.Drop]Class
}

// NewClassifier indexes a snapshot. It keeps references into it.
func NewClassifier(s *model.Snapshot) *Classifier {
	c := &Classifier{
		window: s.Window, links: make(map[int]*model.Link, len(s.Links)), pods: make(map[netip.Addr][]*model.Pod, len(s.Pods)),
		Past: map[netip.Addr]bool{}, broadcasts: map[netip.Addr]bool{}, flooded: map[model.MAC]Class{}, BridgeMACs: map[model.MAC]bool{},
		Samples: newSamples(&s.Traffic),
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
			c.broadcasts[broadcast(a)] = true
		}
	}
	for p := range model.Each(s.Pods) {
		c.flooded[p.MAC] = Copy
		for _, a := range p.Addresses {
			c.pods[a.Addr()] = append(c.pods[a.Addr()], p)
			c.broadcasts[broadcast(a)] = true
		}
	}
	gateways := s.DefaultGateways()
	for _, n := range s.Neighbors {
		if gateways[n.Addr] {
			c.flooded[n.MAC] = Copy
		}
	}
	delete(c.flooded, model.MAC{})
	delete(c.BridgeMACs, model.MAC{})
	delete(c.broadcasts, netip.Addr{})
	c.excused = c.excuses(s)
	return c
}

// excuses finds the drops that their samples, or what rules counted, excuse.
func (c *Classifier) excuses(s *model.Snapshot) map[model.Drop]Class {
	out := map[model.Drop]Class{}
	rules := sync.OnceValue(func() allowances { return byDesign(s) })
	for d := range model.Each(s.Traffic.Drops) {
		sample := c.Samples.Of(d)
		switch {
		case c.Class(d) != Lost:
		case slices.ContainsFunc(c.Samples.All(d), redirects):
			out[*d] = Redirect
		case len(c.pods[d.Src])+len(c.pods[d.Dst]) == 0:
		case d.NoSocket() && Late(sample):
			out[*d] = Closed
		case d.Netfilter() && !d.Range.IsValid() && rules().take(d):
			out[*d] = ByDesign
		}
	}
	return out
}

// broadcast is the broadcast address of an IPv4 network, the zero Addr where
// there is none.
func broadcast(p netip.Prefix) netip.Addr {
	if !p.Addr().Is4() || p.Bits() < 0 || p.Bits() > 30 {
		return netip.Addr{}
	}
	a := p.Masked().Addr().As4()
	host := uint32(1)<<(32-p.Bits()) - 1
	binary.BigEndian.PutUint32(a[:], binary.BigEndian.Uint32(a[:])|host)
	return netip.AddrFrom4(a)
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
	case d.Delivered():
		return Delivered
	case sniffed(d), cut(d):
		return Copy
	case d.Location == "icmpv6_rcv" && (d.Src.IsLinkLocalUnicast() || d.Dst.IsLinkLocalUnicast()):
		return NeighborDiscovery
	case c.toGroup(d.Dst) && noMember(d):
		return Group
	case d.NeighborFailed(), d.NoSocket(), d.LookupRefused(), d.ReverseFiltered(), d.OwnSource(), d.Expired(), d.Transmitting():
		// A pod closes its sockets before its link goes, and its route goes with
		// the link. Without that route packets for it leave the node, and the
		// network may send them back.
		if c.Past[d.Dst] {
			return PodGone
		}
	case d.Location == "ip6_mc_input" && d.Dst.IsMulticast():
		return Group
	case d.Reason == "IPV6_NDISC_NS_OTHERHOST" && d.Dst.IsMulticast():
		return NeighborDiscovery
	case d.Netfilter():
		switch {
		case c.starting(d):
			return PodStarting
		case c.bridgedCopy(d):
			return Copy
		}
	case d.Reason == "OTHERHOST":
		if c.Past[d.Dst] {
			return PodGone
		}
		return c.flooded[d.DstMAC]
	}
	return c.excused[*d]
}

// toGroup reports whether an address is a multicast or broadcast address.
func (c *Classifier) toGroup(a netip.Addr) bool {
	return a.IsMulticast() || a == netip.AddrFrom4([4]byte{255, 255, 255, 255}) || c.broadcasts[a]
}

// starting reports whether netfilter dropped only the first packets of a pod that
// came during the window.
func (c *Classifier) starting(d *model.Drop) bool {
	if d.Last.IsZero() || d.Last.After(c.window.End.Add(-2*startupTime)) {
		return false
	}
	young := func(p *model.Pod) bool { return p.Since.After(c.window.Start.Add(startupTime)) }
	return slices.ContainsFunc(c.pods[d.Src], young) || slices.ContainsFunc(c.pods[d.Dst], young)
}

// bridgedCopy reports whether netfilter dropped the copy that a promiscuous
// bridge hands to the node of a frame that it forwards to the pod itself. Packets
// for the node, and those that return to the pod that sent them, take no other
// path.
func (c *Classifier) bridgedCopy(d *model.Drop) bool {
	bridge := c.links[d.IfIndex]
	if bridge == nil || bridge.Kind != "bridge" || !bridge.Promisc || d.Src == d.Dst || d.DstMAC.IsZero() || c.BridgeMACs[d.DstMAC] {
		return false
	}
	return slices.ContainsFunc(c.pods[d.Dst], func(p *model.Pod) bool {
		l := c.links[p.LinkIndex]
		return p.MAC == d.DstMAC && l != nil && l.Master == bridge.Index
	})
}

// sniffed reports whether a packet socket had no room for its copy of a packet. The
// packet itself goes on. Older kernels give no reason.
func sniffed(d *model.Drop) bool {
	return d.Reason == "PACKET_SOCK_ERROR" ||
		d.Unspecified() && slices.Contains([]string{"packet_rcv", "packet_rcv_spkt", "tpacket_rcv"}, d.Location)
}

// cut reports whether a queue with a limit by rate freed a large packet that it had cut
// into pieces. Each piece that it drops counts by itself.
func cut(d *model.Drop) bool {
	return d.Unspecified() && (d.Location == "tbf_enqueue" || d.Location == "tbf_segment")
}

// noMember reports whether a receiver that has not joined the packet's group, or
// has no socket for it, freed the packet.
func noMember(d *model.Drop) bool {
	switch d.Location {
	case "ip_rcv_finish_core", "ip_rcv_finish", "__udp4_lib_rcv", "__udp4_lib_mcast_deliver", "__udp6_lib_rcv", "__udp6_lib_mcast_deliver":
		return d.Unspecified() || d.NoSocket()
	}
	return false
}
