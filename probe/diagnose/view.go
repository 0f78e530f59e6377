package diagnose

import (
	"encoding/binary"
	"fmt"
	"net/netip"
	"slices"
	"strings"
	"time"

	"github.com/lasthop/lasthop/probe/model"
	"github.com/lasthop/lasthop/probe/path"
)

// view is what one kind of finding is judged by: the indexed snapshot, and the
// findings of the kinds that may explain its own.
type view struct {
	*index
	prior []finding
}

// index is a snapshot with what the findings look up in it. It is built once, in
// time linear in the snapshot, and does not depend on any finding.
type index struct {
	*model.Snapshot
	// drops says which drops were lost packets, and which were harmless frees.
	drops *model.DropClassifier

	// pods holds the living owners of each pod address.
	pods map[netip.Addr][]*model.Pod
	// past are addresses of pods that went away during the window.
	past map[netip.Addr]bool
	// nodeAddrs are the node's own addresses.
	nodeAddrs map[netip.Addr]bool
	// broadcasts are the addresses for all on a link of the node or a pod.
	broadcasts map[netip.Addr]bool
	// macs says whose each Ethernet address is, in words.
	macs map[model.MAC]string
	// bridgeMACs are those of bridges and their ports: a bridge gives
	// frames for one of them to the node.
	bridgeMACs map[model.MAC]bool
	links      map[int]*model.Link
	byName     map[string]*model.Link
	// macPairs are the frames seen of each address.
	macPairs map[netip.Addr][]*model.MACPair
	// peers are the pairs of addresses at the uplinks, summed over these.
	peers    []model.Peer
	gateways []model.Neighbor
	// gatewayAddrs are the next hops of the default routes.
	gatewayAddrs map[netip.Addr]bool
	// tunnel are the MACs that rules give to whatever pods send: the
	// fabric's, in tunnel mode.
	tunnel map[model.MAC]bool
	// outer are the uplinks and the bridges that hold them.
	outer map[int]bool
	// onLink are the networks on these links, onLinkAlone the single addresses
	// that have a route of their own, as where nodes' addresses are /32 or /128.
	onLink      []netip.Prefix
	onLinkAlone map[netip.Addr]bool
	// flows holds an entry for every pair of peers, and for no other.
	flows map[pair]*flowState
	// translated are the pods whose packets go with the node's address, by
	// that and the remote one; built when it is first asked for.
	translated map[pair][]netip.Addr
	ranges     ranges
	// tables and settings are built when they are first asked for.
	tables   *path.Routing
	settings map[string]string
	// strays are pods' addresses that the node routes elsewhere.
	strays     []astray
	strayKnown bool
	// beyond is what remoteRanges and clusterTables have found.
	beyond beyond
}

// pair is a local address and an address off the node.
type pair struct{ local, remote netip.Addr }

func newView(s *model.Snapshot) *view {
	v := &view{index: &index{
		Snapshot:   s,
		drops:      model.NewDropClassifier(s),
		pods:       map[netip.Addr][]*model.Pod{},
		past:       map[netip.Addr]bool{},
		nodeAddrs:  map[netip.Addr]bool{},
		broadcasts: map[netip.Addr]bool{},
		macs:       map[model.MAC]string{},
		bridgeMACs: map[model.MAC]bool{},
		links:      map[int]*model.Link{},
		byName:     map[string]*model.Link{},
		macPairs:   map[netip.Addr][]*model.MACPair{},
		tunnel:     map[model.MAC]bool{},
		outer:      map[int]bool{},

		gatewayAddrs: map[netip.Addr]bool{},
		onLinkAlone:  map[netip.Addr]bool{},
	}}
	for i := range s.Links {
		l := &s.Links[i]
		v.links[l.Index], v.byName[l.Name] = l, l
		if !l.MAC.IsZero() {
			v.macs[l.MAC] = l.Name
			v.bridgeMACs[l.MAC] = v.bridgeMACs[l.MAC] || l.Master != 0 || l.Kind == "bridge"
		}
		for _, a := range l.Addresses {
			v.nodeAddrs[a.Addr()] = true
			v.broadcasts[broadcast(a)] = true
		}
	}
	for i := range s.Pods {
		p := &s.Pods[i]
		for _, a := range p.Addresses {
			v.pods[a.Addr()] = append(v.pods[a.Addr()], p)
			v.broadcasts[broadcast(a)] = true
		}
		if !p.MAC.IsZero() {
			v.macs[p.MAC] = podName(p)
		}
	}
	for i := range s.PastPods {
		p := &s.PastPods[i]
		for _, a := range p.Addresses {
			v.past[a.Addr()] = true
		}
		if _, living := v.macs[p.MAC]; !living && !p.MAC.IsZero() {
			v.macs[p.MAC] = "a pod that went away"
		}
	}
	for i := range s.Traffic.MACs {
		p := &s.Traffic.MACs[i]
		v.macPairs[p.Addr] = append(v.macPairs[p.Addr], p)
	}
	delete(v.broadcasts, netip.Addr{})
	v.indexUplinks()
	v.peers = mergePeers(s.Traffic.Peers, v.isUplink)
	v.indexFlows()
	v.ranges = newRanges(v)
	return v
}

// flowState is what connection tracking knows of the flows that one local
// address began towards one remote address.
type flowState struct {
	// known is true when there is any flow of the pair, whoever began it.
	known bool
	// oldReplied flows were there when the window began, so their reply
	// may be from long ago; the others began in it.
	oldReplied, newReplied bool
	// newSilent counts datagram flows of the window without a reply, dns
	// those of them that ask a name server.
	newSilent, dns int
	// halfOpen counts TCP connections that the remote end began and whose
	// answer it does not acknowledge.
	halfOpen int
	// silent is one of the flows without a reply.
	silent *model.Flow
}

// indexFlows sums up the flows of the peers by their ends as the uplink sees
// them, that is after translation: the reply tuple.
func (v *view) indexFlows() {
	states := make([]flowState, len(v.peers))
	v.flows = make(map[pair]*flowState, len(v.peers))
	for i, p := range v.peers {
		v.flows[pair{p.Local, p.Remote}] = &states[i]
	}
	for i := range v.Flows {
		f := &v.Flows[i]
		if back := v.flows[pair{local: f.Reply.Src, remote: f.Reply.Dst}]; back != nil {
			back.known = true
			if f.State == "SYN_RECV" {
				back.halfOpen++
			}
		}
		st := v.flows[pair{local: f.Reply.Dst, remote: f.Reply.Src}]
		if st == nil {
			continue
		}
		st.known = true
		if !f.Replied {
			st.silent = f
		}
		switch {
		case f.Start.IsZero():
			st.oldReplied = st.oldReplied || f.Replied
		case f.Replied:
			st.newReplied = true
		case f.Proto == udp:
			st.newSilent++
			if f.Original.DstPort == dnsPort {
				st.dns++
			}
		}
	}
}

// flowsOf is what connection tracking knows of the flows from the local address
// to the remote one, for one of v.peers.
func (v *view) flowsOf(p *model.Peer) *flowState { return v.flows[pair{p.Local, p.Remote}] }

// mergePeers sums what went between two addresses over all uplinks: an answer
// may return by another than the question left by. The link is the one that
// most left by.
func mergePeers(list []model.Peer, uplink func(ifindex int) bool) []model.Peer {
	at := make(map[pair]int, len(list))
	out := make([]model.Peer, 0, len(list))
	// most is how much left by the link of each of out.
	var most []uint64
	for _, p := range list {
		if !uplink(p.IfIndex) {
			continue
		}
		k := pair{p.Local, p.Remote}
		i, seen := at[k]
		if !seen {
			at[k] = len(out)
			out, most = append(out, p), append(most, p.Out.Packets)
			continue
		}
		m := &out[i]
		if p.Out.Packets > most[i] {
			most[i], m.IfIndex, m.Link = p.Out.Packets, p.IfIndex, p.Link
		}
		if m.FirstOut.IsZero() || !p.FirstOut.IsZero() && p.FirstOut.Before(m.FirstOut) {
			m.FirstOut = p.FirstOut
		}
		if p.LastOut.After(m.LastOut) {
			m.LastOut = p.LastOut
		}
		if p.LastIn.After(m.LastIn) {
			m.LastIn = p.LastIn
		}
		m.Out, m.In = addCounts(m.Out, p.Out), addCounts(m.In, p.In)
	}
	return out
}

func addCounts(a, b model.PeerCount) model.PeerCount {
	return model.PeerCount{
		Packets: a.Packets + b.Packets, Requests: a.Requests + b.Requests, Replies: a.Replies + b.Replies,
		Other: a.Other + b.Other, ICMPErrors: a.ICMPErrors + b.ICMPErrors,
	}
}

// indexUplinks finds the gateways of the default routes and the prefixes that
// are on link at the uplinks: the node's own subnet.
func (v *view) indexUplinks() {
	for i := range v.Links {
		if l := &v.Links[i]; l.Role == model.RoleUplink {
			v.outer[l.Index] = true
			if l.Master != 0 {
				v.outer[l.Master] = true
			}
		}
	}
	for _, r := range v.Routes {
		if r.Dst.Bits() == 0 {
			for _, h := range append([]model.Route{r}, r.NextHops...) {
				v.gatewayAddrs[h.Gateway] = true
			}
		}
		if v.outer[r.IfIndex] && r.Type == "unicast" && !r.Gateway.IsValid() && r.Dst.Bits() > 0 {
			if r.Dst.IsSingleIP() {
				v.onLinkAlone[r.Dst.Addr()] = true
			} else {
				v.onLink = append(v.onLink, r.Dst)
			}
		}
	}
	for _, n := range v.Neighbors {
		if v.gatewayAddrs[n.Addr] && !n.MAC.IsZero() {
			v.gateways = append(v.gateways, n)
		}
		if _, known := v.macs[n.MAC]; !known && !n.MAC.IsZero() && v.gatewayAddrs[n.Addr] {
			v.macs[n.MAC] = "the gateway " + n.Addr.String()
		}
	}
	for i := range v.FrameRules {
		if r := &v.FrameRules[i]; r.SendsToFabric() {
			v.tunnel[r.MAC] = true
		}
	}
}

// isGatewayMAC reports whether a default gateway has this address, or the
// fabric to which all that pods send is sent.
func (v *view) isGatewayMAC(m model.MAC) bool {
	return v.tunnel[m] || slices.ContainsFunc(v.gateways, func(n model.Neighbor) bool { return n.MAC == m })
}

// owner says in words whose an Ethernet address is.
func (v *view) owner(m model.MAC) string {
	if s, ok := v.macs[m]; ok {
		return s
	}
	return "nobody on this node"
}

// podMACs are the addresses of the living interfaces that hold an address.
func (v *view) podMACs(a netip.Addr) []model.MAC {
	var out []model.MAC
	for _, p := range v.pods[a] {
		if !p.MAC.IsZero() {
			out = append(out, p.MAC)
		}
	}
	return out
}

// podName is how a pod is called in a sentence.
func podName(p *model.Pod) string {
	switch {
	case p.Name != "" && p.Namespace != "":
		return p.Namespace + "/" + p.Name
	case p.Name != "":
		return p.Name
	}
	return "the pod behind " + p.Link
}

// uplink is the name that stands for the uplinks in a sentence.
func (v *view) uplink() string {
	if len(v.Node.Uplinks) == 0 {
		return "the uplink"
	}
	return strings.Join(v.Node.Uplinks, ", ")
}

// isUplink reports whether packets leave the node through the link.
func (v *view) isUplink(ifindex int) bool {
	l := v.links[ifindex]
	return l != nil && l.Role == model.RoleUplink
}

// settled is how long before the window's end a packet must have left for its
// missing answer to mean anything.
const settled = time.Second

// unanswered reports whether packets that must be answered left for a peer and
// nothing proves that they arrived: no answer on the wire, no reply that
// connection tracking saw, no ICMP error about them. Where the probe had no
// room for every pair an answer may be among what it did not count: then
// connection tracking must have seen none either.
func (v *view) unanswered(p *model.Peer) bool {
	if v.answered(p) || !v.wanting(p) || p.FirstOut.After(v.Window.End.Add(-settled)) {
		return false
	}
	return v.Traffic.Lost.Counters == 0 || v.flowsOf(p).silent != nil
}

// wanting reports whether the pair's packets, of which some left, must be
// answered. A datagram need not be, but for a name server's; a client that waits
// in vain begins flow after flow. What answers a stranger needs no answer either,
// unless nothing comes in although TCP goes out, or the stranger's connections
// stay half open.
func (v *view) wanting(p *model.Peer) bool {
	if p.Out.Packets == 0 {
		return false
	}
	st := v.flowsOf(p)
	return p.Out.Requests >= minPackets || p.In.Packets == 0 && p.Out.Replies >= minPackets ||
		st.newSilent >= minSilent || st.dns > 0 && p.Out.Packets >= minPackets || st.halfOpen >= minPackets
}

// minSilent is how many datagram flows without a reply show a client that wants
// one: what only sends keeps to one.
const minSilent = 3

// minPackets is how many packets must be silent before it is worth a word.
const minPackets = 2

// answered reports whether something proves that packets of the pair reach
// the peer. For packets that tell neither (UDP) connection tracking says
// which side began. Where it holds no flow of the pair, since no rule makes it
// track or it has forgotten, they count as an answer, unless questions that
// answers would be told from went without.
func (v *view) answered(p *model.Peer) bool {
	if p.In.Replies > 0 || p.In.ICMPErrors > 0 && !v.refused(p) {
		return true
	}
	if p.In.Other == 0 {
		return false
	}
	st := v.flowsOf(p)
	return st.newReplied || st.oldReplied && st.newSilent == 0 || !st.known && p.Out.Requests < minPackets
}

// broadcast is the last address of an IPv4 network, which is for all in it; the
// zero address where there is none.
func broadcast(p netip.Prefix) netip.Addr {
	if !p.Addr().Is4() || p.Bits() < 0 || p.Bits() > 30 {
		return netip.Addr{}
	}
	a := p.Masked().Addr().As4()
	host := uint32(1)<<(32-p.Bits()) - 1
	binary.BigEndian.PutUint32(a[:], binary.BigEndian.Uint32(a[:])|host)
	return netip.AddrFrom4(a)
}

// refused reports whether all that comes back for what must be answered are ICMP
// errors: a router on the way knows no route, or the last one no such machine. A
// closed port would answer a connection with a reset. An error about a datagram
// may be the receiver's own, which proves that it arrived.
func (v *view) refused(p *model.Peer) bool {
	if p.In.ICMPErrors == 0 || p.In.Replies > 0 {
		return false
	}
	st := v.flowsOf(p)
	return !st.newReplied && (p.Out.Requests >= minAsks || st.dns >= minAsks)
}

// inAny reports whether a prefix of the list holds the address.
func inAny(list []netip.Prefix, a netip.Addr) bool {
	return slices.ContainsFunc(list, func(p netip.Prefix) bool { return p.Contains(a) })
}

// count is a number with its noun.
func count(n uint64, noun string) string { return plural(n, noun, noun+"s") }

func plural(n uint64, one, many string) string {
	if n == 1 {
		return "1 " + one
	}
	return fmt.Sprintf("%d %s", n, many)
}

// place is a link with its role.
func (v *view) place(link string, d model.Direction) model.Place {
	p := model.Place{Link: link, Direction: d}
	if l := v.byName[link]; l != nil {
		p.Role = l.Role
	}
	return p
}

// addrs lists addresses in words, the first few of many.
func addrs[T fmt.Stringer](list []T) string {
	const most = 4
	var b strings.Builder
	for i, a := range list {
		if i == most {
			fmt.Fprintf(&b, " and %d more", len(list)-most)
			break
		}
		if i > 0 {
			b.WriteString(", ")
		}
		b.WriteString(a.String())
	}
	return b.String()
}
