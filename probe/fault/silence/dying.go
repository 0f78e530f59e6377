package silence

import (
	"cmp"
	"net/netip"
	"slices"

	"github.com/lasthop/lasthop/probe/fault"
	"github.com/lasthop/lasthop/probe/model"
	"github.com/lasthop/lasthop/probe/node"
	"github.com/lasthop/lasthop/probe/path"
	"github.com/lasthop/lasthop/probe/words"
)

// dying reports flows that die beside others to the same addresses, by what tells them apart, but for those whose replies the
// node keeps. It adds the pairs.
func dying(v *fault.Input, kept map[*model.Flow]bool, pairs map[node.Pair]bool) {
	var byHop, byRemote node.Groups[netip.Addr, []*node.Dying]
	told := func(d *node.Dying) bool { return v.SilencedBy(d.Pod, model.Host(d.Remote), d.Silent[0]) != "" }
	half := node.AddrSet{}
	for _, d := range v.Stalled() {
		if !told(d) {
			half.Add(d.Remote)
			node.Put(&byRemote, d.Remote, d)
		}
	}
	for _, d := range v.Dying() {
		if told(d) || kept[d.Silent[0]] {
			continue
		}
		for a := range d.Locals {
			pairs[node.Pair{Local: a, Remote: d.Remote}] = true
		}
		// What a next hop swallows is one finding, whoever it was for, and so is what is lost of datagrams and connections alike.
		groups, by := &byHop, d.Remote
		if _, dead := v.HopFrames(d); dead != nil {
			by = dead.Addr
		} else if half[d.Remote] && d.Port.Proto == model.UDP {
			groups = &byRemote
		}
		node.Put(groups, by, d)
	}
	for _, list := range byHop.All() {
		v.Report(dyingFlows(v.Index, *list))
	}
	for _, list := range byRemote.All() {
		v.Report(stalled(v.Index, *list))
	}
}

// otherLink reports connections that others begin, of which the replies leave by another uplink than the requests came by and
// are never acknowledged: networks take no packets with an address of another NIC.
func otherLink(v *fault.Input) {
	type ends struct{ local, remote, pod netip.Addr }
	type links struct{ in, out int }
	var half node.Groups[ends, []*model.Flow]
	var groups node.Groups[links, []*model.Flow]
	lives := map[ends]bool{}
	for f := range model.Each(v.Flows) {
		k := ends{f.Original.Dst, f.Original.Src, f.Reply.Src}
		switch {
		case f.Proto != model.TCP || f.Start.IsZero() || len(v.Owners[k.pod]) == 0 || len(v.Owners[k.remote]) > 0:
		case f.Established():
			lives[k] = true
		case f.State == "SYN_RECV" && model.Lasted(f.Start, v.Window.End) && v.SilencedBy(k.pod, model.Host(k.remote), f) == "":
			node.Put(&half, k, f)
		}
	}
	for k, list := range half.All() {
		var by links
		n := uint64(len(*list))
		if lives[k] || n < node.MinAsks {
			continue
		}
		for p := range model.Each(v.Traffic.Peers) {
			switch {
			case p.Local != k.local || p.Remote != k.remote || !v.IsUplink(p.IfIndex):
			case p.Out.Replies >= n && p.In.Packets == 0:
				by.out = p.IfIndex
			case p.In.Requests >= n:
				by.in = p.IfIndex
			}
		}
		if by.in != 0 && by.out != 0 {
			node.Put(&groups, by, *list...)
		}
	}
	for by, flows := range groups.All() {
		v.Report(byOtherLink(v.Index, by.in, by.out, *flows))
	}
}

// byOtherLink says which rule leads the replies, and what would lead them by the mark of their connections.
func byOtherLink(v *node.Index, in, out int, flows []*model.Flow) fault.Fault {
	first, q := flows[0], v.Sent(node.ReplyPacket(flows[0]))
	d := v.Routing().Lookup(q)
	f := fault.Fault{Page: "NoReply-replies", Facts: words.Facts{"in": v.LinkName(in), "out": v.LinkName(out), "flows": flows, "first": first,
		"local": first.Original.Dst, "of": v.Own[first.Original.Dst], "route": v.Shown(d.Route)}}
	if d.Rule != nil && d.Through(out) && d.Rule.Priority > 0 {
		f.Facts["rule"] = node.ShowRule(d.Rule)
	}
	if first.Mark != 0 && q.Mark == (path.Mark{}) {
		f.Facts["marked"] = node.ShowRule(model.First(v.Rules, func(r *model.RoutingRule) bool { return r.Mask != 0 && first.Mark&r.Mask == r.Mark }))
		f.Facts["restores"] = model.Chosen(v.PacketRules, func(r *model.PacketRule) bool { return r.SetMark.Copied&first.Mark != 0 && !r.SetMark.OfFlow })
	}
	f.Pods, f.Peers, f.Packets = node.Servers(flows), model.Hosts(node.Clients(flows)), uint64(len(flows))
	f.LastHopAlive, f.Flows = v.Place(v.LinkName(out), model.Egress), func(x *model.Flow) bool { return slices.Contains(flows, x) }
	return f
}

// stalled is the finding on connections to one address that open, and of which nothing more is acknowledged.
func stalled(v *node.Index, list []*node.Dying) fault.Fault {
	d, f := list[0], fault.Fault{Page: "NoReply-data"}
	var ports []string
	silent, datagrams := 0, 0
	for _, d := range list {
		f.Pods = model.With(f.Pods, d.Pod)
		if d.Port.Proto == model.UDP {
			datagrams += len(d.Silent)
			continue
		}
		ports, silent = model.With(ports, d.Port.String()), silent+len(d.Silent)
	}
	link := v.LinkName(d.Link)
	f.Peers, f.Packets, f.LastHopAlive = []netip.Prefix{model.Host(d.Remote)}, uint64(silent+datagrams), v.Place(link, model.Egress)
	f.Facts = words.Facts{"remote": d.Remote, "ports": ports, "silent": silent, "datagrams": datagrams, "link": link,
		"example": d.Silent[0]}
	if l := v.ByIndex[d.Link]; l != nil {
		f.Facts["mtu"] = l.MTU
	}
	f.Flows = node.ToPorts(list)
	return f
}

func dyingFlows(v *node.Index, list []*node.Dying) fault.Fault {
	var f fault.Fault
	var silent, replied []*model.Flow
	var ports []string
	var remotes []netip.Addr
	locals := node.AddrSet{}
	for _, d := range list {
		silent, replied = append(silent, d.Silent...), append(replied, d.Replied...)
		f.Pods, remotes, ports = model.With(f.Pods, d.Pod), model.With(remotes, d.Remote), model.With(ports, d.Port.String())
		locals.AddAll(d.Locals)
	}
	hops, dead := v.HopFrames(list[0])
	addrs := node.Apart(silent, replied, func(x *model.Flow) netip.Addr { return x.Reply.Dst })
	asked := node.Apart(silent, replied, func(x *model.Flow) netip.AddrPort { return netip.AddrPortFrom(x.Original.Dst, x.Original.DstPort) })
	marks := node.Apart(silent, replied, func(x *model.Flow) uint32 { return x.Mark })
	span := node.PortsApart(silent, replied)
	returned := v.LostPackets(func(d *model.Drop) bool { return d.Is(model.OwnSource) && locals[d.Src] })
	// An uplink's packets are counted by pairs; of another link the route is known.
	link, inner := v.LinkName(list[0].Link), !v.IsUplink(list[0].Link) && !v.IsTunnel(list[0].Link)
	f.Page, f.Peers, f.Packets = "NoReply-flows", model.Hosts(remotes), uint64(len(silent))
	f.LastHopAlive = v.Place(link, model.Egress)
	f.Facts = words.Facts{
		"remotes": remotes, "link": link, "silent": len(silent), "replied": len(replied), "ports": ports, "hops": hops, "dead": dead,
		"addrs": addrs, "asked": asked, "marks": marks, "range": span, "returned": returned, "example": silent[0],
		"tcp": list[0].Port.Proto == model.TCP, "node": ofNode(v, f.Pods),
		"known": inner || dead != nil || returned > 0 || len(addrs)+len(asked)+len(marks) > 0 || span.Last > 0 || len(replied) == 0,
	}
	if !inner {
		// Marks, ports or protocols may lead them another way than those that live, or a ping.
		q, other := v.Sent(node.FlowPacket(silent[0])), path.Packet{Src: list[0].Pod, Dst: remotes[0], Proto: model.ICMP}
		if len(replied) > 0 {
			other = node.FlowPacket(replied[0])
		}
		d, o := v.Routing().Lookup(q), v.Routing().Lookup(v.Sent(other))
		if d.Rule != nil && d.Rule != o.Rule && len(d.Unsure)+len(o.Unsure) == 0 && len(d.Hops) == 1 && len(o.Hops) == 1 && d.Hops[0] != o.Hops[0] {
			f.LastHopAlive = v.Place(d.Hops[0].Link, model.Egress)
			f.Facts["rule"], f.Facts["route"], f.Facts["rulers"], f.Facts["other"] = node.ShowRule(d.Rule), v.Shown(d.Route), q.MarkedBy, o.Hops[0].Link
			f.Facts["link"], f.Facts["known"] = d.Hops[0].Link, true
		}
	}
	if d := v.Routing().Lookup(v.SentBy(list[0].Pod, remotes[0])); inner && len(d.Hops) > 0 {
		f.Facts["inner"], f.Facts["neighbor"] = v.Shown(d.Route), v.NeighborAt(cmp.Or(d.Hops[0].Gateway, remotes[0]), list[0].Link)
	}
	f.Flows = node.ToPorts(list)
	return f
}
