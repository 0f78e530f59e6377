package silence

import (
	"cmp"
	"net/netip"

	"github.com/lasthop/lasthop/probe/fault"
	"github.com/lasthop/lasthop/probe/model"
	"github.com/lasthop/lasthop/probe/node"
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
			list := byRemote.Of(d.Remote)
			*list = append(*list, d)
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
		list := groups.Of(by)
		*list = append(*list, d)
	}
	for _, list := range byHop.All() {
		v.Report(dyingFlows(v.Index, *list))
	}
	for _, list := range byRemote.All() {
		v.Report(stalled(v.Index, *list))
	}
}

// stalled is the finding on connections to one address that open, and of which nothing more is acknowledged.
func stalled(v *node.Index, list []*node.Dying) fault.Fault {
	d := list[0]
	f := fault.Fault{Page: "NoReply-data"}
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
	var returned uint64
	for d := range model.Each(v.Traffic.Drops) {
		if d.Is(model.OwnSource) && locals[d.Src] {
			returned += d.Packets
		}
	}
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
	if d := v.Routing().Lookup(v.SentBy(list[0].Pod, remotes[0])); inner && len(d.Hops) > 0 {
		f.Facts["inner"], f.Facts["neighbor"] = v.Shown(d.Route), v.NeighborAt(cmp.Or(d.Hops[0].Gateway, remotes[0]), list[0].Link)
	}
	f.Flows = node.ToPorts(list)
	return f
}
