// Package path predicts what a node's tables do with a packet. It is pure: everything it knows is in a snapshot.
package path

import (
	"net/netip"
	"slices"
	"strings"

	"github.com/lasthop/lasthop/probe/loss"
	"github.com/lasthop/lasthop/probe/model"
	"github.com/lasthop/lasthop/probe/words"
)

// Ends are those of the packets that Trace follows: of a pod, and of what it
// sends to. Port and Proto are 0 where they are not known.
type Ends struct {
	Pod, To netip.Addr
	Port    uint16
	Proto   uint8
}

// Trace predicts, hop by hop, what the tables of a node do with the packets from a pod to a destination and
// with the replies, adds what was counted at each hop, and marks the hops where packets die, by prediction or
// by one of the findings. What was not read is called unknown.
//
// Counts are of the pair alone where pairs were counted for the pod
// (Traffic.PairAddrs), else of all that the pod sends and receives.
func Trace(s *model.Snapshot, findings []model.Finding, e Ends) model.Path {
	return NewState(s).Trace(findings, e)
}

// Trace is Trace in this state.
func (st *State) Trace(findings []model.Finding, e Ends) model.Path {
	e.Pod, e.To = e.Pod.Unmap().WithZone(""), e.To.Unmap().WithZone("")
	asked := e
	e, socket := st.atSocket(e)
	t := newTracer(st, e)
	t.socket, t.drops, t.answers = socket, loss.NewClassifier(st.Snapshot), t.replies()
	forward := &journey{tracer: t, src: e.Pod, dst: e.To, dstPort: e.Port}
	forward.from()
	back := &journey{tracer: t, src: forward.dst, dst: forward.src, srcPort: forward.dstPort, reply: true,
		arrival: forward.exit}
	back.from()
	p := model.Path{Pod: e.Pod, To: asked.To, Port: asked.Port, Proto: e.Proto, Pair: t.pair}
	forward.measure()
	back.measure()
	for _, j := range []*journey{forward, back} {
		for _, s := range j.steps {
			j.noteCilium(s)
		}
	}
	t.place(findings, forward, back)
	p.Forward, p.Return = forward.count(), back.count()
	t.noteReplies(p.Forward, p.Return, forward.dst)
	return p
}

// replies reports whether all that was seen of a pod at another end are replies. Who asks for a port asks of new connections.
func (t *tracer) replies() bool {
	e := t.ends
	return e.Port == 0 && len(t.flows) == 0 &&
		slices.ContainsFunc(t.Flows, func(f model.Flow) bool { return f.Original.Src == e.To && f.Reply.Src == e.Pod }) &&
		!slices.ContainsFunc(t.Traffic.Peers, func(p model.Peer) bool {
			return p.Local == e.Pod && p.Remote == e.To && p.Out.Requests > 0
		})
}

// noteReplies says at the end of the forward path how many packets came back: of the pair alone where
// an uplink counted it, although the hops count all that the pod sends.
func (t *tracer) noteReplies(out, back []model.PathHop, to netip.Addr) {
	if len(out) == 0 || len(back) == 0 || out[len(out)-1].Kind != model.HopBeyond || back[0].Kind != model.HopBeyond {
		return
	}
	end := &out[len(out)-1]
	var sent, came model.PeerCount
	for p := range model.Each(t.Traffic.Peers) {
		if p.Local == t.ends.Pod && p.Remote == to {
			sent.Packets += p.Out.Packets
			came.Packets, came.Replies, came.Other = came.Packets+p.In.Packets, came.Replies+p.In.Replies, came.Other+p.In.Other
		}
	}
	switch {
	case sent.Packets > 0:
		replied := came.Replies+came.Other > 0
		end.Unanswered = model.Either(replied, 0, sent.Packets)
		facts := words.Facts{"sent": sent.Packets, "came": came.Packets, "replied": replied}
		end.Decision = words.Text("hop/answered", facts) + "; " + end.Decision
	case end.In.N > 0 && back[0].Out.Known:
		end.Decision = words.Text("hop/came", words.Facts{"packets": back[0].Out.N}) + "; " + end.Decision
	}
}

// tracer holds what both directions look up.
type tracer struct {
	*State
	ends Ends
	// pods are the pods that have an address, else those that had it, else those that it was given to.
	pods map[netip.Addr]*model.Pod
	// flows are the entries of connection tracking for the packets, served those that the destination began towards the
	// pod, by an address that is translated to the pod's, such as a service's: what the pod sends are their replies.
	flows, served []*model.Flow
	// known is a packet of the flows that get no reply, where there are any, or else of all.
	known Packet
	// socket translates what the pod's processes connect to; nil where nothing does.
	socket *translation
	drops  *loss.Classifier
	// pair: counts are of the pair alone. answers: the pod only replies to the other end. untracked: a rule excludes what it sends
	// from connection tracking.
	pair, answers, untracked bool
}

func newTracer(st *State, e Ends) *tracer {
	s := st.Snapshot
	t := &tracer{State: st, ends: e, pods: st.holders(), pair: slices.Contains(s.Traffic.PairAddrs, e.Pod)}
	ours := func(f *model.Flow, x model.Tuple) bool {
		return x.Src == e.Pod && x.Dst == e.To && (e.Port == 0 || x.DstPort == e.Port) && (e.Proto == 0 || f.Proto == e.Proto)
	}
	for f := range model.Each(s.Flows) {
		// What is led there and gets no reply goes where that goes.
		if ours(f, f.Original) || !f.Replied && ours(f, model.Tuple{Src: f.Reply.Dst, Dst: f.Reply.Src, DstPort: f.Reply.SrcPort}) {
			t.flows = append(t.flows, f)
		}
		if ours(f, f.Reply) && f.Original.Dst != e.Pod {
			t.served = append(t.served, f)
		}
	}
	silent := model.Filter(t.flows, func(f *model.Flow) bool { return !f.Replied })
	t.known = Packet{}.Of(model.Either(len(silent) > 0, silent, t.flows)...)
	return t
}

func (t *tracer) filtersBridged(isIPv6 bool) bool { return t.Settings[BridgeCalls(isIPv6)] == "1" }

// journey is one direction of a path while it is being followed.
type journey struct {
	*tracer
	// src and dst are the packet's addresses at this hop.
	src, dst         netip.Addr
	srcPort, dstPort uint16
	reply            bool
	// dstMAC and srcMAC are those of the frame, zero where not known.
	srcMAC, dstMAC model.MAC
	// wrongMAC says why the frame's destination is wrong: it is not the gateway's MAC. Nil where it is right.
	wrongMAC words.Facts
	// through is the port of a bridge by which the packet came in, nil where it did not come by one.
	through *model.Link
	// arrival is the link by which replies are expected, exit the one by which the packet left the node.
	arrival, exit *model.Link
	// mark is what rules gave the packet before its destination was translated.
	mark Mark
	// returned: the fabric gave the packet back once.
	returned bool
	steps    []*step
	// counts are those between hops: the i-th before hop i, one more behind the last.
	counts []model.Count
	// over: nothing is known of the path beyond this hop.
	over bool
}

// step is a hop with what is needed to count and to place findings.
type step struct {
	model.PathHop
	// direction is how packets pass the hop's link.
	direction model.Direction
	// before and after are where packets are counted as they come to the hop
	// and as they leave it, nil where they are not counted.
	before, after *point
	src, dst      netip.Addr
	// next is the next hop that the hop decides on, where it does.
	next netip.Addr
	// netns is where the hop is, 0 for the node's.
	netns uint32
	// cut: what comes in and what goes out are not the same packets alone.
	cut bool
	// ended says that the tables let packets end here, by what rule, chain or route.
	ended bool
	by    any
	// dropped are the journey's packets that the kernel freed here, byDesign those of them that
	// are lost only where a finding has its place here.
	dropped, byDesign uint64
	// says are what is decided here, in their order, shows the rules and entries that decide, behind those in Rules.
	says, shows []said
}

type said struct {
	name  string
	facts words.Facts
}

// say adds to what is decided at a hop.
func (s *step) say(name string, facts words.Facts) *step {
	s.says = append(s.says, said{name, facts})
	return s
}

// instead is what is decided at a hop in place of anything else.
func (s *step) instead(name string, facts words.Facts) { s.says = []said{{name, facts}} }

// show adds to the rules and entries that decide at a hop.
func (s *step) show(name string, facts words.Facts) { s.shows = append(s.shows, said{name, facts}) }

func (s *step) showRule(r *model.PacketRule) { s.show("packet-rule", words.Facts{"rule": r}) }

// showFlows shows the first few of them.
func (s *step) showFlows(flows []*model.Flow) {
	const few = 3
	for _, f := range flows[:min(few, len(flows))] {
		s.show("flow", words.Facts{"flow": f})
	}
}

// isSaid reports whether nothing but the sentences of these names is said.
func (s *step) isSaid(names ...string) bool {
	return slices.EqualFunc(s.says, names, func(x said, name string) bool { return x.name == name })
}

// decision is all that is decided at a hop, in words.
func (s *step) decision() string {
	var out string
	for _, x := range s.says {
		text := words.Text("hop/"+x.name, x.facts)
		if out != "" && strings.IndexAny(text, ",: ") != 0 {
			out += "; "
		}
		out += text
	}
	return out
}

func (j *journey) add(h model.PathHop) *step {
	s := &step{PathHop: h, src: j.src, dst: j.dst}
	j.steps = append(j.steps, s)
	return s
}

// die marks a hop as the packets' end by what the tables say.
func (j *journey) die(s *step, why string, facts words.Facts) {
	s.Dead, s.ended, s.by, s.Reason = true, true, deciding(facts), why
	s.instead(why, facts)
	j.over = true
}

// from begins where the packet's source is.
func (j *journey) from() {
	switch {
	case !j.src.IsValid() || !j.dst.IsValid():
		j.add(model.PathHop{Kind: model.HopBeyond}).say("not-known", nil)
	case j.src.IsLoopback() && j.pods[j.dst] != nil:
		j.inside(j.pods[j.dst], j.src)
	case j.pods[j.src] != nil:
		j.fromPod(j.pods[j.src])
	case j.Own[j.src] != nil:
		j.fromNode()
	default:
		j.fromBeyond()
	}
}

// fromBeyond begins at the uplink by which the packet is expected.
func (j *journey) fromBeyond() {
	l := j.expected()
	s := j.add(model.PathHop{Kind: model.HopBeyond})
	switch {
	case l == nil:
		s.say("beyond", words.Facts{"src": j.src, "unknown": true})
		return
	case l.Role == model.RoleBridge:
		s.say("behind-bridge", words.Facts{"src": j.src, "link": l.Name})
		return
	}
	s.say("beyond", words.Facts{"src": j.src})
	if to := j.delivers(); l.Role == model.RoleRouter && to != nil {
		s.say("cilium-delivers", words.Facts{"link": to.Name})
		j.toPort(to)
		return
	}
	s.after = j.at(l, model.Ingress)
	j.arrive(l)
}

// expected is the link by which packets of a source off the node come in: that
// by which most did, else that by which packets to it leave.
func (j *journey) expected() *model.Link {
	if l := j.entry(); l != nil {
		return l
	}
	if j.arrival != nil {
		return j.arrival
	}
	d := j.Routing().Lookup(Query{Src: j.dst, Dst: j.src})
	if slices.ContainsFunc(d.Hops, func(h NextHop) bool { return h.IfIndex != d.Hops[0].IfIndex }) {
		return nil
	}
	for _, h := range d.Hops {
		if l := j.ByIndex[h.IfIndex]; l != nil && l.Role != model.RolePodLink {
			return j.uplinkOf(l)
		}
	}
	return model.First(j.Links, func(l *model.Link) bool { return l.Role == model.RoleUplink })
}

// entry is the uplink by which most packets came in, nil where none was counted. A link and those below it (of
// a bond or VLAN) count the same packets: then it is the one that the requests left by.
func (j *journey) entry() *model.Link {
	var most uint64
	var best *model.Link
	by := func(ifindex int, packets uint64) {
		if l := j.ByIndex[ifindex]; l != nil && (packets > most || packets == most && packets > 0 && l == j.arrival) {
			most, best = packets, l
		}
	}
	for i := range j.Traffic.Peers {
		if p := &j.Traffic.Peers[i]; p.Remote == j.src && p.Local == j.dst {
			by(p.IfIndex, p.In.Packets)
		}
	}
	if best != nil {
		return best
	}
	for c := range model.Each(j.Traffic.Pairs) {
		if l := j.ByIndex[c.IfIndex]; l != nil && l.Role == model.RoleUplink && c.Direction == model.Ingress &&
			c.Src == j.src && c.Dst == j.dst {
			by(c.IfIndex, c.Packets)
		}
	}
	for d := range model.Each(j.Traffic.Drops) {
		if l := j.ByIndex[d.IfIndex]; l != nil && l.Role == model.RoleUplink && d.Is(model.ReverseFiltered) && d.Src == j.src &&
			d.Dst == j.dst {
			by(d.IfIndex, d.Packets)
		}
	}
	return best
}

// uplinkOf is the uplink among a bridge's ports, or the link itself.
func (t *tracer) uplinkOf(l *model.Link) *model.Link {
	isPort := func(u *model.Link) bool {
		return u.Role == model.RoleUplink && u.Master == l.Index && l.Kind == "bridge"
	}
	if u := model.First(t.Links, isPort); u != nil {
		return u
	}
	return l
}

// arrive takes a packet in at a link that leads off the node.
func (j *journey) arrive(l *model.Link) {
	s := j.add(model.PathHop{Kind: model.HopLink, Role: l.Role, Link: l.Name}).say("comes-in", nil)
	s.direction, s.before = model.Ingress, j.at(l, model.Ingress)
	if !l.Up {
		j.die(s, "link-down", nil)
		return
	}
	j.dstMAC, j.srcMAC = l.MAC, model.MAC{}
	if m := j.seenMAC(l); !m.IsZero() {
		j.dstMAC = m
	}
	if b := j.Bridge(l); b != nil {
		j.enterBridge(b, l)
		return
	}
	j.atIP(l)
}

// seenMAC is the destination MAC with which most frames for the address came in at the link.
func (j *journey) seenMAC(l *model.Link) model.MAC {
	var most uint64
	var out model.MAC
	for p := range model.Each(j.Traffic.MACs) {
		if p.Addr == j.dst && p.IfIndex == l.Index && p.Direction == model.Ingress && p.Side == model.AsDestination &&
			p.Packets > most {
			most, out = p.Packets, p.Dst
		}
	}
	return out
}

func (j *journey) fromNode() {
	j.over = j.balancer(j.src) != nil
	s := j.add(model.PathHop{Kind: model.HopLocal})
	if s.say(model.Either(j.over, "balanced", "node-sends"), words.Facts{"src": j.src}); !j.over {
		j.atIP(nil)
	}
}

// leave ends the path where packets leave the node.
func (j *journey) leave(l *model.Link) {
	j.exit = l
	end := j.throughQueue(l)
	s := j.add(model.PathHop{Kind: model.HopBeyond}).say("not-visible", words.Facts{"tunnel": l.Role == model.RoleTunnel})
	s.before = end
	if p := j.pods[j.dst]; p != nil && !j.returned && p.LinkIndex != l.Index {
		// azure-vnet's tunnel mode sends packets for pods of the same node through the fabric.
		s.instead("given-back", nil)
		s.after, j.returned = j.at(l, model.Ingress), true
		j.arrive(l)
	}
}
