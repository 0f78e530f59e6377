package node

import (
	"cmp"
	"net/netip"
	"slices"

	"github.com/lasthop/lasthop/probe/model"
)

// Pair is a local address and an address off the node.
type Pair struct{ Local, Remote netip.Addr }

// Unanswered reports whether packets that want a reply left for a peer and nothing proves that they arrived: no answer
// on the wire, no reply that connection tracking saw, no ICMP error about them.
func (v *Index) Unanswered(p *model.Peer) bool { return !v.Answered(p) && v.Untold(p) == "" }

// Untold is why it says nothing that a peer does not answer; empty where it does. Where not every peer of the local
// address was counted by itself, a reply may be among the others: then connection tracking must have seen none either.
func (v *Index) Untold(p *model.Peer) model.Excuse {
	switch {
	case v.Others.Explains[Pair{p.Local, p.Remote}]:
		return model.ExcusedElsewhere
	case !wanting(v, p):
		return model.ExcusedFew
	case !v.Window.Settled(p.FirstOut):
		return model.ExcusedRecent
	case (v.Traffic.Lost.Of(p.Local).Peers > 0 || v.FoldedReply(p)) && len(v.FlowsOf(p).Silent) == 0:
		return model.ExcusedUncounted
	}
	return ""
}

// wanting reports whether packets of the pair, of which some left, want a reply: a TCP SYN or an echo request,
// a datagram of a kind that is replied to, and the SYN-ACK to a peer whose connections stay half open, even one
// that it only asks for again. Other datagrams may want none, such as those of statsd or syslog, however many
// flows they make. Nor does TCP that goes on want one here: what acknowledges it may take another path.
func wanting(v *Index, p *model.Peer) bool {
	if p.Out.Packets == 0 {
		return false
	}
	st := v.FlowsOf(p)
	return p.Out.Requests >= MinPackets || st.Asking+st.Older > 0 && p.Out.Packets >= MinPackets ||
		st.HalfOpen >= MinPackets || st.HalfOpen > 0 && p.In.Requests > MinPackets && p.In.Replies == 0
}

// Asked is how many of the pair's packets want a reply. A half-open connection counts
// once, and so does a datagram flow, unless all of them are questions and nothing came.
func (v *Index) Asked(p *model.Peer) uint64 {
	st := v.FlowsOf(p)
	datagrams := uint64(st.Asking + st.Older)
	if st.questions > 0 && st.questions == st.datagrams && p.In.Packets == 0 {
		datagrams = p.Out.Other
	}
	return min(p.Out.Requests+datagrams+uint64(st.HalfOpen), p.Out.Packets)
}

// MinPackets is how many packets must go unanswered; fewer are not reported.
const MinPackets = 2

// Answered reports whether something proves that packets of the pair reach the peer: replies at an uplink or,
// whatever link they came by, replies to flows of the window and connections that became established
// (connection tracking). For packets that tell neither (UDP) connection tracking says which side began. Where
// they are of no flow that it holds, since no rule makes it track, it has forgotten, or the packets do not come
// to it, they count as an answer, unless questions that answers would be told from went without.
func (v *Index) Answered(p *model.Peer) bool {
	st := v.FlowsOf(p)
	if p.In.Replies > 0 || st.NewReplied || st.accepted || p.In.ICMPErrors > 0 && !v.Refused(p) ||
		v.RepliesToNode[p.Remote] && v.Own[p.Local] == nil {
		return true
	}
	return p.In.Other > 0 && (st.OldReplied && st.Asking == 0 || !st.OldReplied && !st.begunThere && p.Out.Requests < MinPackets)
}

// indexReplies finds the peers that reply to the node's own address where programs behind
// lasthop's give it to what pods send, as Cilium's do: then their replies may be to pods. That
// such a program is there, replies show that are of no flow which connection tracking holds.
func (v *Index) indexReplies() {
	if !v.ProgramBehind() {
		return
	}
	replies, translated := map[netip.Addr]bool{}, !v.Has(model.SourceConntrack)
	for p := range model.Each(v.Peers) {
		if v.Own[p.Local] != nil && p.In.Replies > 0 {
			replies[p.Remote], translated = true, translated || !v.FlowsOf(p).Known
		}
	}
	if translated {
		v.RepliesToNode = replies
	}
}

// ProgramBehind reports whether programs may change what leaves by an uplink after it was counted.
func (v *Index) ProgramBehind() bool {
	return !v.Has(model.SourcePrograms) || slices.ContainsFunc(v.Programs, func(p model.Program) bool {
		return p.Direction == model.Egress && !p.Classic && v.IsUplink(p.IfIndex) && p.Netns == v.Node.Netns
	})
}

// Refused reports whether all that comes back for packets that want a reply are ICMP errors: a router on the
// path knows no route, or the last one no such machine. A closed port would answer a connection with a reset.
// An error about a datagram may be the receiver's own, which proves that it arrived.
func (v *Index) Refused(p *model.Peer) bool {
	if p.In.ICMPErrors == 0 || p.In.Replies > 0 {
		return false
	}
	return !v.FlowsOf(p).NewReplied && v.Asked(p) >= MinAsks
}

// LeftWithWrongMAC reports whether the pair's packets left with a destination MAC that is neither the next hop's nor a
// gateway's, or that the node wrongly takes for one, so that nobody beyond the link had to route them.
func (v *Index) LeftWithWrongMAC(p *model.Peer) bool {
	if slices.ContainsFunc(v.WrongHops(), func(w *WrongHop) bool { return slices.Contains(w.Silent, p) }) {
		return true
	}
	if len(v.Gateways) == 0 {
		return false
	}
	hops, known := nextHopMACs(v, p)
	left := slices.DeleteFunc(slices.Clone(v.MACPairs[p.Local]), func(m *model.MACPair) bool {
		return m.IfIndex != p.IfIndex || m.Side != model.AsSource || m.Direction != model.Egress
	})
	right := func(m *model.MACPair) bool { return !known || hops[m.Dst] || v.IsGatewayMAC(m.Dst) }
	return len(left) > 0 && !slices.ContainsFunc(left, right)
}

// nextHopMACs are the MACs of those that the node hands the pair's packets to: other nodes' where routes lead
// to these. They are not known where no route is, or a neighbour's MAC is not. A pod on the uplink's own bridge
// sends past the node, to gateways only.
func nextHopMACs(v *Index, p *model.Peer) (macs map[model.MAC]bool, known bool) {
	if BesideUplink(v, p) {
		return nil, true
	}
	d := v.Routing().Lookup(v.SentBy(p.Local, p.Remote))
	macs = map[model.MAC]bool{}
	for _, h := range d.Hops {
		n := v.NeighborAt(cmp.Or(h.Gateway, p.Remote), h.IfIndex)
		if n == nil || n.MAC.IsZero() {
			return nil, false
		}
		macs[n.MAC] = true
	}
	return macs, len(macs) > 0
}

// BesideUplink reports whether the pair's pod is a port of the bridge that holds the uplink.
func BesideUplink(v *Index, p *model.Peer) bool {
	up := v.ByIndex[p.IfIndex]
	return up != nil && up.Master != 0 && slices.ContainsFunc(v.Owners[p.Local], func(pod *model.Pod) bool {
		l := v.ByIndex[pod.LinkIndex]
		return l != nil && l.Master == up.Master
	})
}

// findReflected are the addresses whose packets leave again through an uplink that they came in by, sent back by a
// bridge or a router: they are counted as if the address had sent them.
func (v *Index) findReflected() map[netip.Addr]bool {
	out := map[netip.Addr]bool{}
	for h := range model.Each(v.Traffic.Hops) {
		if h.Addr.IsValid() && h.Side == model.AsDestination && h.Direction == model.Egress && h.Packets > 0 &&
			v.IsUplink(h.IfIndex) {
			out[h.Addr] = true
		}
	}
	return out
}

// Elsewhere reports whether an address is off this node and can answer.
func (v *Index) Elsewhere(a netip.Addr) bool {
	return model.Unicast(a) && !OfCloud(a) && v.Own[a] == nil && len(v.Owners[a]) == 0 && !v.Classifier.Past[a]
}

// metadataServer is where clouds tell machines about themselves. Pods are often kept from
// it, by rules or by the hop limit of its replies.
var metadataServer = netip.AddrFrom4([4]byte{169, 254, 169, 254})

// OfCloud reports whether an address is of a cloud's services for its machines, whose silence may be meant.
func OfCloud(a netip.Addr) bool { return a == model.WireServer || a == metadataServer }

// SumPeers sums up pairs of addresses.
func (v *Index) SumPeers(list []*model.Peer) *Lost {
	x := &Lost{}
	for _, p := range list {
		x.AddPair(p, v.Senders(p), v.Asked(p))
	}
	return x
}

// AddPair adds a pair, by the pods that it is of and how many requests these sent.
func (l *Lost) AddPair(p *model.Peer, pods AddrSet, requests uint64) {
	l.Pods.AddAll(pods)
	l.Peers.Add(p.Remote)
	l.Link = p.IfIndex
	l.Packets += p.Out.Packets
	l.Requests += requests
	l.Errors += p.In.ICMPErrors
}

// Senders are the pods that a pair's local end is or, with an address of the node's, stands for.
func (v *Index) Senders(p *model.Peer) AddrSet {
	if len(v.Owners[p.Local]) > 0 {
		return AddrSet{p.Local: true}
	}
	if st := v.FlowsOf(p); st != nil && v.Own[p.Local] != nil {
		return st.Pods
	}
	return nil
}

// Answering are the addresses that answer at the uplinks, but for some.
func Answering(v *Index, but func(netip.Addr) bool) []netip.Addr {
	found := map[netip.Addr]bool{}
	for p := range model.Each(v.Peers) {
		if !but(p.Remote) && v.Answered(p) {
			found[p.Remote] = true
		}
	}
	return Sorted(found)
}
