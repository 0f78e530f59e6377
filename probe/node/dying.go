package node

import (
	"cmp"
	"maps"
	"net/netip"
	"slices"

	"github.com/lasthop/lasthop/probe/model"
	"github.com/lasthop/lasthop/probe/path"
)

// Dying are a pod's flows of the window to one port elsewhere, of which a part steadily gets no reply: beside others to the same
// address that do, by a link whose packets are not counted by pairs, or where a rule takes the replies.
type Dying struct {
	Pod, Remote netip.Addr
	Port        ProtoPort
	// Silent had no reply though they began well before the window's end; Replied are those to the same port that had one.
	Silent, Replied []*model.Flow
	// Locals are the addresses with which the silent ones leave, Link is that by which they are routed.
	Locals AddrSet
	Link   int
	// Half: the silent ones are half: connection tracking saw a reply, which the pod did not acknowledge.
	Half bool
	half []*model.Flow
	// Refused is the rule that drops their replies before they are translated back, or one that may: in Doubt.
	Refused *model.PacketRule
	Doubt   bool
}

// target is a port of an address that a pod asks.
type target struct {
	pod, remote netip.Addr
	port        ProtoPort
}

// ToPorts matches flows to the ports of a list.
func ToPorts(list []*Dying) func(*model.Flow) bool {
	return func(f *model.Flow) bool {
		return slices.ContainsFunc(list, func(d *Dying) bool {
			return d.Remote == f.Reply.Src && d.Port == ProtoPort{Proto: f.Proto, Number: f.Reply.SrcPort}
		})
	}
}

// findDying lists these. The first SYNs of a connection get lost now and then, and are sent again after a second; a server that
// is away for a moment loses some in a row.
func (v *Index) findDying() []*Dying {
	half := func(f *model.Flow) bool { return f.State == "SYN_RECV" }
	late := func(f *model.Flow) bool {
		return (!f.Replied || half(f)) && (f.Proto == model.TCP || v.DatagramAsks(f)) && model.Lasted(f.Start, v.Window.End)
	}
	remotes := v.remotesOf(late)
	if len(remotes) == 0 {
		return nil
	}
	groups, answered := map[target]*Dying{}, map[Pair]bool{}
	for f := range model.Each(v.Flows) {
		pod, remote := f.Original.Src, f.Reply.Src
		if !remotes[remote] || f.Proto != model.TCP && !v.DatagramAsks(f) || f.Start.IsZero() || v.Swept[Pair{pod, remote}] {
			continue
		}
		lives := f.Replied && !half(f)
		if answered[Pair{pod, remote}] = lives || answered[Pair{pod, remote}]; !v.mayDie(f) {
			continue
		}
		d := model.GetOrInsert(groups, target{pod, remote, ProtoPort{f.Proto, f.Reply.SrcPort}})
		d.Pod, d.Remote, d.Port = pod, remote, ProtoPort{f.Proto, f.Reply.SrcPort}
		if lives {
			d.Replied = append(d.Replied, f)
		} else if late(f) {
			list := model.Either(half(f), &d.half, &d.Silent)
			*list = append(*list, f)
			d.Locals.Add(f.Reply.Dst)
		}
	}
	list := slices.DeleteFunc(slices.Collect(maps.Values(groups)), func(d *Dying) bool {
		if d.Half = len(d.half) > len(d.Silent); d.Half {
			d.Silent, d.half = d.half, d.Silent
		}
		// Replies that came and a rule that surely drops these need no more.
		return len(d.Silent) < MinAsks || !v.follow(d, answered[Pair{d.Pod, d.Remote}]) ||
			(d.Refused == nil || d.Doubt) && !v.steadily(d, d.Port.Proto == model.TCP)
	})
	return sorted(list)
}

// remotesOf are the addresses elsewhere to which pods began enough of some flows in the window: on most nodes few.
func (v *Index) remotesOf(some func(*model.Flow) bool) AddrSet {
	flows := map[netip.Addr]int{}
	for f := range model.Each(v.Flows) {
		if !f.Start.IsZero() && some(f) && v.mayDie(f) {
			flows[f.Reply.Src]++
		}
	}
	out := AddrSet{}
	for a, n := range flows {
		if n >= MinAsks && (v.Elsewhere(a) || OfCloud(a)) {
			out.Add(a)
		}
	}
	return out
}

// mayDie reports whether the flow's silence would be a loss. That of other ports of a cloud's own addresses may be meant, and
// connection tracking sees no replies of datagrams that a rule has it track in one direction alone: the counts tell of these.
func (v *Index) mayDie(f *model.Flow) bool {
	return v.Asks(f) && (f.Reply.SrcPort == DNSPort || !OfCloud(f.Reply.Src)) && (f.Proto != model.UDP || len(v.OneSided(f)) == 0)
}

// findStalled lists connections of which the other end acknowledges nothing once they are open. Connection tracking gives an
// open connection the shorter timeout while data of it is not acknowledged (nf_conntrack_proto_tcp.c), as it is for moments of any;
// but for these hardly more came than the replies that opened them.
func (v *Index) findStalled() []*Dying {
	short, known := v.timeout("tcp_timeout_unacknowledged")
	long, also := v.timeout("tcp_timeout_established")
	if !known || !also || long <= short || !v.Has(model.SourceConntrack, model.SourceTC) {
		return nil
	}
	waits := func(f *model.Flow) bool {
		return f.Proto == model.TCP && f.Replied && f.Timeout <= short && f.State == "ESTABLISHED" && model.Lasted(f.Start, v.Window.End)
	}
	remotes := v.remotesOf(waits)
	if len(remotes) == 0 {
		return nil
	}
	type pair struct {
		begun, opened uint64
		lives         bool
	}
	pairs, groups := map[Pair]*pair{}, map[target]*Dying{}
	for f := range model.Each(v.Flows) {
		k := Pair{f.Reply.Dst, f.Reply.Src}
		if f.Proto != model.TCP || !remotes[k.Remote] || v.RepliesToNode[k.Remote] || v.FlowStates[k] == nil {
			continue
		}
		n := model.GetOrInsert(pairs, k)
		if f.Start.IsZero() {
			// What comes may be of this one.
			n.lives = n.lives || f.State == "ESTABLISHED" && f.Timeout > short
			continue
		}
		n.begun++
		if f.Replied {
			n.opened++
		}
		if pod := f.Original.Src; f.Replied && v.mayDie(f) {
			d := model.GetOrInsert(groups, target{pod, k.Remote, ProtoPort{model.TCP, f.Reply.SrcPort}})
			d.Pod, d.Remote, d.Port, d.Link = pod, k.Remote, ProtoPort{model.TCP, f.Reply.SrcPort}, v.FlowStates[k].Peer.IfIndex
			switch {
			case waits(f):
				d.Silent = append(d.Silent, f)
				d.Locals.Add(k.Local)
			case f.State == "ESTABLISHED" && f.Timeout <= short, f.State == "FIN_WAIT", f.State == "SYN_RECV":
				// It is young, or was given up.
			default:
				d.Replied = append(d.Replied, f)
			}
		}
	}
	list := slices.DeleteFunc(slices.Collect(maps.Values(groups)), func(d *Dying) bool {
		return len(d.Silent) < MinAsks || len(d.Replied) > 0 || !v.steadily(d, false)
	})
	// What opens a connection, and two that acknowledge nothing new. Pings are no more than the requests that opened none. Where a
	// pod is asked as well, more comes: it goes by the others.
	port := func(d *Dying) target { return target{remote: d.Remote, port: d.Port} }
	alike := map[target]bool{}
	for _, d := range list {
		alike[port(d)] = alike[port(d)] || !slices.ContainsFunc(Sorted(d.Locals), func(a netip.Addr) bool {
			k := Pair{a, d.Remote}
			p, n := v.FlowStates[k].Peer, pairs[k]
			echoes := p.Out.Requests - min(p.Out.Requests, n.begun)
			return n.lives || p.In.Replies > 3*n.opened+echoes || p.Out.Replies < 3*n.opened
		})
	}
	return sorted(slices.DeleteFunc(list, func(d *Dying) bool { return !alike[port(d)] }))
}

func sorted(list []*Dying) []*Dying {
	return slices.SortedFunc(slices.Values(list), func(a, b *Dying) int {
		return cmp.Or(a.Pod.Compare(b.Pod), a.Remote.Compare(b.Remote), cmp.Compare(a.Port.Proto, b.Port.Proto),
			cmp.Compare(a.Port.Number, b.Port.Number))
	})
}

// follow finds out by which link the flows leave, and which rule drops their replies. It reports whether nothing else tells
// why the other end is silent.
func (v *Index) follow(d *Dying, answered bool) bool {
	f := d.Silent[0]
	st := v.FlowStates[Pair{f.Reply.Dst, d.Remote}]
	if st == nil {
		hops := v.Routing().Lookup(v.SentBy(d.Pod, d.Remote)).Hops
		if len(hops) != 1 || d.Half {
			return false
		}
		d.Link = hops[0].IfIndex
		l := v.ByIndex[d.Link]
		return l != nil && (l.Role == model.RoleBridge || l.Role == model.RoleOther) && v.Has(model.SourceRoutes, model.SourceLinks)
	}
	d.Link = st.Peer.IfIndex
	if f.Reply.Dst != d.Pod && v.Has(model.SourceConntrack, model.SourceDrops) && v.inward(d) >= uint64(len(d.Silent)) {
		if r, doubt := v.RefusesReply(f, d.Link); r != nil && r.Counter.Delta >= uint64(len(d.Silent)) {
			d.Refused, d.Doubt = r, doubt
		}
	}
	return answered && !d.Half || d.Refused != nil
}

// RefusesReply is the rule that drops replies of a flow that come by a link, as they come, or that may; nil for none.
func (v *Index) RefusesReply(f *model.Flow, link int) (r *model.PacketRule, doubt bool) {
	p := v.ReplyOf(f, link)
	if r, _ = v.Tables().Refused(p, "PREROUTING"); r == nil {
		r, doubt = v.Tables().Doubtful(p, "PREROUTING"), true
	}
	return r, doubt
}

// ReplyOf is a reply of a flow as it comes by a link.
func (v *Index) ReplyOf(f *model.Flow, link int) path.Packet {
	p := ReplyPacket(f)
	p.In = []string{v.NatLink(link)}
	return p
}

// inward is how many packets came that may be replies to the silent flows.
func (v *Index) inward(d *Dying) (n uint64) {
	for a := range d.Locals {
		if st := v.FlowStates[Pair{a, d.Remote}]; st != nil {
			n += model.Either(d.Port.Proto == model.TCP, st.Peer.In.Replies, st.Peer.In.Other)
		}
	}
	return n
}

// steadily reports whether flows die all the while, with others that live in between, and not by drops of this node that were
// counted. repeated: each sent its first packet again.
func (v *Index) steadily(d *Dying, repeated bool) bool {
	// Each lost two packets at least.
	n := len(d.Silent) - int(min(v.droppedOf(d)/2, uint64(len(d.Silent))))
	if n < MinAsks || n*DroppedShare < len(d.Silent)+len(d.Replied) {
		return false
	}
	byStart := func(a, b *model.Flow) int { return a.Start.Compare(b.Start) }
	first, last := slices.MinFunc(d.Silent, byStart).Start, slices.MaxFunc(d.Silent, byStart).Start
	between := func(f *model.Flow) bool { return f.Start.After(first) && f.Start.Before(last) }
	requests, counted := uint64(0), repeated
	for a := range d.Locals {
		st := v.FlowStates[Pair{a, d.Remote}]
		if counted = counted && st != nil; counted {
			requests += st.Peer.Out.Requests
		}
	}
	// They are listed once a second.
	return model.Window{End: last}.Settled(first) && (len(d.Replied) == 0 || slices.ContainsFunc(d.Replied, between)) &&
		(!counted || requests >= 2*uint64(len(d.Silent)))
}

// droppedOf is how many packets that were lost on this node may be of these connections: all between the two addresses but
// those of which every sample has another port.
func (v *Index) droppedOf(d *Dying) uint64 {
	of := func(s *model.Sample) bool {
		src, dst, ok := s.Ports()
		return !ok || s.Proto() == d.Port.Proto && (src == d.Port.Number || dst == d.Port.Number)
	}
	return v.LostPackets(func(x *model.Drop) bool {
		if !(x.Between(d.Pod, d.Remote) || x.Between(d.Remote, d.Pod)) || !v.Classifier.Lost(x) {
			return false
		}
		samples := v.Classifier.Samples.All(x)
		return len(samples) == 0 || slices.ContainsFunc(samples, of)
	})
}

// Apart are the values that silent flows have and none that lives has; nil where they share one.
func Apart[T comparable](silent, replied []*model.Flow, of func(*model.Flow) T) (out []T) {
	lived := model.SetOf(model.Map(replied, of))
	for _, f := range silent {
		if lived[of(f)] {
			return nil
		}
		out = model.With(out, of(f))
	}
	return model.Either(len(replied) > 0, out, nil)
}

// PortsApart is the range of the source ports of silent flows, as they leave, where all that live are on one side of it.
func PortsApart(silent, replied []*model.Flow) (out model.PortRange) {
	port := func(f *model.Flow) uint16 { return f.Reply.DstPort }
	dead, lived := model.Map(silent, port), model.Map(replied, port)
	if len(lived) >= MinAsks && (slices.Max(dead) < slices.Min(lived) || slices.Min(dead) > slices.Max(lived)) {
		out.First, out.Last = slices.Min(dead), slices.Max(dead)
	}
	return out
}

// HopFrames is a next hop with the frames that left for it, and whether any frame comes from it.
type HopFrames struct {
	*model.Neighbor
	Packets uint64
	Sends   bool
}

// HopFrames are those of a route that has several next hops, each with its MAC, and the one of them from which nothing comes
// while it comes from others.
func (v *Index) HopFrames(d *Dying) (out []HopFrames, dead *model.Neighbor) {
	hops, sends := v.Routing().Lookup(v.SentBy(d.Pod, d.Remote)).Hops, 0
	for _, h := range hops {
		n := v.NeighborAt(h.Gateway, h.IfIndex)
		if n == nil || n.MAC.IsZero() || len(hops) < 2 {
			return nil, nil
		}
		x := HopFrames{n, v.FramesBetween(Sorted(d.Locals)[0], h.IfIndex, model.Egress, model.AsSource, n.MAC), v.SendersOn(h.IfIndex)[n.MAC]}
		if out = append(out, x); x.Sends {
			sends++
		} else if x.Packets > 0 {
			dead = n
		}
	}
	return out, model.Either(sends > 0 && sends == len(hops)-1, dead, nil)
}
