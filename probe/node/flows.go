package node

import (
	"maps"
	"math"
	"net/netip"
	"slices"
	"strconv"
	"time"

	"github.com/lasthop/lasthop/probe/model"
	"github.com/lasthop/lasthop/probe/path"
)

// FlowState is what connection tracking knows of the flows that one local address began towards one remote address.
type FlowState struct {
	Peer *model.Peer
	// Known is true when there is any flow of the pair, whoever began it.
	Known bool
	// OldReplied flows were there when the window began, so their reply may be from long ago; the others began in it.
	OldReplied, NewReplied bool
	// Asking counts datagram flows of the window that want a reply and saw none,
	// older those from before it that want replies and had a packet in it, and the segments of connections that go on in vain.
	Asking, Older int
	// datagrams counts the datagram flows, whoever began them, that had or may have had a packet in the window,
	// questions those of them of which each packet of the local end's wants a reply.
	datagrams, questions int
	// HalfOpen counts TCP connections that the remote end began and whose answer it does not acknowledge.
	HalfOpen int
	// accepted is true when the remote end began a TCP connection in the window and acknowledged the reply to it.
	accepted bool
	// begunThere is true when the remote end began any flow.
	begunThere bool
	// Silent are the flows without a reply.
	Silent []*model.Flow
	// Pods, or the node with its questions for names, began flows whose first packet wants a reply, and that never saw one,
	// or saw one before the window and go on: of these wanted are what the uplink counts as requests, datagrams the others.
	// Own: the node itself began others, whose silence is not judged.
	Pods              AddrSet
	Wanted, Datagrams uint64
	Own               bool
}

// addUnreplied adds a flow whose first packet wants a reply.
func (st *FlowState) addUnreplied(judged, datagram bool, from netip.Addr) {
	switch {
	case !judged:
		st.Own = true
		return
	case datagram:
		st.Datagrams++
	default:
		st.Wanted++
	}
	st.Pods.Add(from)
}

// indexFlows sums up the flows of the peers by their ends as the uplink sees
// them, that is after translation: the reply tuple.
func (v *Index) indexFlows() {
	states := make([]FlowState, len(v.Peers))
	v.FlowStates = make(map[Pair]*FlowState, len(v.Peers))
	local := map[netip.Addr]bool{}
	for i, p := range v.Peers {
		states[i].Peer, local[p.Local] = &v.Peers[i], true
		v.FlowStates[Pair{p.Local, p.Remote}] = &states[i]
	}
	v.repliedPorts = map[uint16]bool{DNSPort: true}
	for f := range model.Each(v.Flows) {
		if f.Proto == model.UDP && f.Replied {
			v.repliedPorts[f.Original.DstPort] = true
		}
	}
	for p := range model.Each(v.Peers) {
		if v.untrackedServer(p.Remote) {
			// Nothing else counts them one by one.
			v.FlowsOf(p).Asking = int(min(p.Out.Other, math.MaxInt32))
		}
	}
	for f := range model.Each(v.Flows) {
		passed, certain := v.Passed(f)
		// A look at the few local ends is quicker than one at all pairs.
		var back *FlowState
		if local[f.Reply.Src] {
			back = v.FlowStates[Pair{Local: f.Reply.Src, Remote: f.Reply.Dst}]
		}
		if back != nil {
			back.Known, back.begunThere = true, true
			if f.Proto == model.UDP {
				back.datagrams++
			}
			if f.State == "SYN_RECV" {
				back.HalfOpen++
			}
			back.accepted = back.accepted || f.Established() && !f.Start.IsZero()
		}
		st := v.FlowStates[Pair{Local: f.Reply.Dst, Remote: f.Reply.Src}]
		if st == nil {
			continue
		}
		st.Known = true
		if !f.Replied {
			st.Silent = append(st.Silent, f)
		}
		asks := v.DatagramAsks(f)
		if (!f.Replied || asks && passed && f.Start.IsZero()) &&
			(asks || f.Proto == model.TCP || f.Proto == model.ICMP || f.Proto == model.ICMPv6) {
			st.addUnreplied(v.Asks(f), asks, f.Original.Src)
		}
		if f.Proto == model.UDP && (passed || !certain) {
			st.datagrams++
			if asks && passed && (f.Replied || f.Original.DstPort == DNSPort) {
				st.questions++
			}
		}
		switch {
		case f.Start.IsZero():
			st.OldReplied = st.OldReplied || f.Replied
			if asks && passed {
				st.Older++
			} else if v.goesOn(f, st.Peer) {
				st.Older = int(min(st.Peer.Out.Replies, math.MaxInt32))
				st.addUnreplied(true, false, f.Original.Src)
			}
		case f.Replied:
			st.NewReplied = true
		case asks:
			st.Asking++
		}
	}
}

// goesOn reports whether a pod's connection from before the window sends on, and nothing of the pair comes back by any
// uplink. A receiver acknowledges every second segment at once, and each within half a second (RFC 9293, 3.8.6.3).
func (v *Index) goesOn(f *model.Flow, p *model.Peer) bool {
	const segments = 4
	return f.Established() && f.Replied && len(v.Owners[f.Original.Src]) > 0 && p.In.Packets == 0 && p.Out.Requests == 0 &&
		p.Out.Replies >= segments && !p.FirstOut.IsZero() && Lasted(p)
}

// Passed reports whether a datagram of the flow, in either direction, passed in the
// window, and whether that is certain: each renews the entry's timeout.
func (v *Index) Passed(f *model.Flow) (did, certain bool) {
	if !f.Start.IsZero() || f.Proto != model.UDP {
		return !f.Start.IsZero(), !f.Start.IsZero()
	}
	whole, known := v.timeout(model.Either(f.Assured, "udp_timeout_stream", "udp_timeout"))
	return known && whole-f.Timeout <= v.Window.End.Sub(v.Window.Start), known
}

// timeout is a setting of connection tracking, as far as it was read.
func (v *Index) timeout(name string) (time.Duration, bool) {
	seconds, err := strconv.Atoi(v.Settings["net.netfilter.nf_conntrack_"+name])
	return time.Duration(seconds) * time.Second, err == nil
}

// untrackedServer reports whether a rule keeps what is sent to a name server from
// connection tracking, as NodeLocal DNSCache does.
func (v *Index) untrackedServer(a netip.Addr) bool {
	return a.Is4() && a.IsLinkLocalUnicast() && slices.ContainsFunc(v.PacketRules, func(r model.PacketRule) bool {
		return r.IsNotrack() && !r.Dst.Not && r.Dst.Prefix.IsSingleIP() && r.Dst.Prefix.Addr() == a &&
			slices.ContainsFunc(r.DstPorts, func(p model.PortRange) bool { return p.Has(DNSPort) })
	})
}

// FlowsOf is what connection tracking knows of the flows from the local address to the remote one, for one of v.peers.
func (v *Index) FlowsOf(p *model.Peer) *FlowState { return v.FlowStates[Pair{p.Local, p.Remote}] }

// DatagramAsks reports whether the flow is of datagrams that want a reply: such to a
// port where connection tracking saw some flow replied to, or a name server's.
func (v *Index) DatagramAsks(f *model.Flow) bool {
	return f.Proto == model.UDP && v.repliedPorts[f.Original.DstPort]
}

// Asks reports whether a pod began the flow, or the node itself one to a name server: what its DNS cache is not told, the
// pods that ask that are not told either.
func (v *Index) Asks(f *model.Flow) bool {
	return len(v.Owners[f.Original.Src]) > 0 || f.Reply.SrcPort == DNSPort && v.Own[f.Original.Src] != nil
}

// DNSPort is where a datagram always wants a reply.
const DNSPort = 53

// UnrepliedCount counts the flows of pods that never saw a reply and match. Where they
// are to a few ports alone, it names these.
func UnrepliedCount(v *Index, match func(pod, remote netip.Addr) bool) (n uint64, to []string) {
	ports := map[string]bool{}
	for f := range model.Each(v.Flows) {
		if !f.Replied && v.Asks(f) && match(f.Original.Src, f.Reply.Src) {
			n++
			ports[ProtoPort{Proto: f.Proto, Number: f.Reply.SrcPort}.String()] = true
		}
	}
	if len(ports) <= 3 {
		to = slices.Sorted(maps.Keys(ports))
	}
	return n, to
}

// UntrackedBy are the rules that exclude a packet from connection tracking, or have another zone for it.
func (v *Index) UntrackedBy(x path.Packet) []*model.PacketRule {
	return model.Filter(v.Untracking(), func(r *model.PacketRule) bool {
		return (r.Family == "inet" || (r.Family == "ip6") == x.Dst.Is6()) && x.Fits(r) >= path.Maybe
	})
}

// OneSided are those that do so with a flow's packets, in either direction.
func (v *Index) OneSided(f *model.Flow) (rules []*model.PacketRule) {
	for _, t := range []model.Tuple{f.Original, f.Reply} {
		x := path.Packet{Src: t.Src, Dst: t.Dst, Proto: f.Proto, SrcPort: t.SrcPort, DstPort: t.DstPort}
		rules = model.With(rules, v.UntrackedBy(x)...)
	}
	return rules
}
