package diagnose

import (
	"maps"
	"math"
	"net/netip"
	"slices"
	"strconv"
	"time"

	"github.com/lasthop/lasthop/probe/model"
)

// Numbers of IP protocols.
const (
	icmp4 = 1
	tcp   = 6
	udp   = 17
	icmp6 = 58
)

// flowState is what connection tracking knows of the flows that one local address began towards one remote address.
type flowState struct {
	peer *model.Peer
	// known is true when there is any flow of the pair, whoever began it.
	known bool
	// oldReplied flows were there when the window began, so their reply may be from long ago; the others began in it.
	oldReplied, newReplied bool
	// asking counts datagram flows of the window that want a reply and saw none,
	// older those from before it that want replies and had a packet in it.
	asking, older int
	// datagrams counts the datagram flows, whoever began them, that had or may have had a packet in the window,
	// questions those of them of which each packet of the local end's wants a reply.
	datagrams, questions int
	// halfOpen counts TCP connections that the remote end began and whose answer it does not acknowledge.
	halfOpen int
	// accepted is true when the remote end began a TCP connection in the window and acknowledged the reply to it.
	accepted bool
	// begunThere is true when the remote end began any flow.
	begunThere bool
	// silent are the flows without a reply.
	silent []*model.Flow
}

// indexFlows sums up the flows of the peers by their ends as the uplink sees
// them, that is after translation: the reply tuple.
func (v *index) indexFlows() {
	states := make([]flowState, len(v.peers))
	v.flows = make(map[pair]*flowState, len(v.peers))
	local := map[netip.Addr]bool{}
	for i, p := range v.peers {
		states[i].peer, local[p.Local] = &v.peers[i], true
		v.flows[pair{p.Local, p.Remote}] = &states[i]
	}
	v.repliedPorts = map[uint16]bool{dnsPort: true}
	for f := range model.Each(v.Flows) {
		if f.Proto == udp && f.Replied {
			v.repliedPorts[f.Original.DstPort] = true
		}
	}
	for p := range model.Each(v.peers) {
		if v.untrackedServer(p.Remote) {
			// Nothing else counts them one by one.
			v.flowsOf(p).asking = int(min(p.Out.Other, math.MaxInt32))
		}
	}
	for f := range model.Each(v.Flows) {
		passed, certain := v.passed(f)
		// A look at the few local ends is quicker than one at all pairs.
		var back *flowState
		if local[f.Reply.Src] {
			back = v.flows[pair{local: f.Reply.Src, remote: f.Reply.Dst}]
		}
		if back != nil {
			back.known, back.begunThere = true, true
			if f.Proto == udp {
				back.datagrams++
			}
			if f.State == "SYN_RECV" {
				back.halfOpen++
			}
			back.accepted = back.accepted || f.Established() && !f.Start.IsZero()
		}
		st := v.flows[pair{local: f.Reply.Dst, remote: f.Reply.Src}]
		if st == nil {
			continue
		}
		st.known = true
		if !f.Replied {
			st.silent = append(st.silent, f)
		}
		asks := v.datagramAsks(f)
		if f.Proto == udp && (passed || !certain) {
			st.datagrams++
			if asks && passed && (f.Replied || f.Original.DstPort == dnsPort) {
				st.questions++
			}
		}
		switch {
		case f.Start.IsZero():
			st.oldReplied = st.oldReplied || f.Replied
			if asks && passed {
				st.older++
			}
		case f.Replied:
			st.newReplied = true
		case asks:
			st.asking++
		}
	}
}

// passed reports whether a datagram of the flow, in either direction, passed in the
// window, and whether that is certain: each renews the entry's timeout.
func (v *index) passed(f *model.Flow) (did, certain bool) {
	if !f.Start.IsZero() || f.Proto != udp {
		return !f.Start.IsZero(), !f.Start.IsZero()
	}
	name := "net.netfilter.nf_conntrack_udp_timeout"
	if f.Assured {
		name += "_stream"
	}
	text := v.Settings[name]
	whole, err := strconv.Atoi(text)
	return err == nil && time.Duration(whole)*time.Second-f.Timeout <= v.Window.End.Sub(v.Window.Start), err == nil
}

// untrackedServer reports whether a rule keeps what is sent to a name server from
// connection tracking, as NodeLocal DNSCache does.
func (v *index) untrackedServer(a netip.Addr) bool {
	return a.Is4() && a.IsLinkLocalUnicast() && slices.ContainsFunc(v.PacketRules, func(r model.PacketRule) bool {
		return r.IsNotrack() && !r.Dst.Not && r.Dst.Prefix.IsSingleIP() && r.Dst.Prefix.Addr() == a &&
			slices.ContainsFunc(r.DstPorts, func(p model.PortRange) bool { return p.First <= dnsPort && dnsPort <= p.Last })
	})
}

// flowsOf is what connection tracking knows of the flows from the local address to the remote one, for one of v.peers.
func (v *index) flowsOf(p *model.Peer) *flowState { return v.flows[pair{p.Local, p.Remote}] }

// datagramAsks reports whether the flow is of datagrams that want a reply: such to a
// port where connection tracking saw some flow replied to, or a name server's.
func (v *index) datagramAsks(f *model.Flow) bool {
	return f.Proto == udp && v.repliedPorts[f.Original.DstPort]
}

// dnsPort is where a datagram always wants a reply.
const dnsPort = 53

// unreplied is what connection tracking holds of flows between two ends, as the
// uplink sees them, that never saw a reply, or saw one before the window and go on.
type unreplied struct {
	// pods began flows whose first packet wants a reply: asks are those that
	// the uplink counts as requests, datagrams the others.
	pods            addrSet
	asks, datagrams uint64
	// own is true when the node itself began some.
	own bool
}

func (v *index) findUnreplied() map[pair]*unreplied {
	out := map[pair]*unreplied{}
	for f := range model.Each(v.Flows) {
		datagram := v.datagramAsks(f)
		if passed, _ := v.passed(f); f.Replied && !(datagram && passed && f.Start.IsZero()) ||
			!datagram && f.Proto != tcp && f.Proto != icmp4 && f.Proto != icmp6 {
			continue
		}
		k := pair{f.Reply.Dst, f.Reply.Src}
		m := model.GetOrInsert(out, k)
		switch {
		case len(v.Owners[f.Original.Src]) == 0:
			m.own = true
			continue
		case datagram:
			m.datagrams++
		default:
			m.asks++
		}
		m.pods.add(f.Original.Src)
	}
	return out
}

// unrepliedCount counts the flows of pods that never saw a reply and match. Where they
// are to a few ports alone, it names these.
func unrepliedCount(v *index, match func(pod, remote netip.Addr) bool) (n uint64, to []string) {
	ports := map[string]bool{}
	for f := range model.Each(v.Flows) {
		if !f.Replied && len(v.Owners[f.Original.Src]) > 0 && match(f.Original.Src, f.Reply.Src) {
			n++
			ports[protoPort{proto: f.Proto, number: f.Reply.SrcPort}.String()] = true
		}
	}
	if len(ports) <= 3 {
		to = slices.Sorted(maps.Keys(ports))
	}
	return n, to
}
