package neighbor

import (
	"maps"
	"net/netip"
	"slices"

	"github.com/lasthop/lasthop/probe/fault"
	"github.com/lasthop/lasthop/probe/model"
	"github.com/lasthop/lasthop/probe/node"
	"github.com/lasthop/lasthop/probe/path"
	"github.com/lasthop/lasthop/probe/words"
)

// asksBeyond adds a pod that is bridged to the network and asks there for its
// gateway, in vain: nobody on this node should answer it.
func asksBeyond(v *node.Index, found map[node.Question]*node.SilentHop, p *model.Pod, g *model.Neighbor, asked node.Resolution) bool {
	b := v.BridgeOf(p)
	if !v.Has(model.SourceTC) || b == nil || !v.Outer[b.Index] || v.Own[g.Addr] != nil || len(v.Owners[g.Addr]) > 0 ||
		asked.Requests < node.MinDrops || asked.Replies > 0 {
		return false
	}
	k := node.Question{Ifindex: b.Index, Addr: g.Addr}
	t := node.AskedBeyond(v, k)
	if t.Requests < node.MinDrops || t.Replies > 0 {
		return false
	}
	m, pods := model.GetOrInsert(found, k), node.SameFamily(node.PodAddrs(p), g.Addr)
	m.Gateway, m.Resolution = true, t
	m.Pods.Add(pods...)
	m.Askers.Add(pods...)
	for d := range model.Each(v.Traffic.Drops) {
		if !slices.Contains(pods, d.Src) || !d.Is(model.NeighborFailed) {
			continue
		}
		// What is on its own link a pod asks for itself too.
		to, own := m, node.Question{Ifindex: b.Index, Addr: d.Dst}
		if r := path.PodRoute(p, d.Dst); r != nil && !r.Gateway.IsValid() {
			if t := node.AskedBeyond(v, own); t.Requests >= node.MinDrops && t.Replies == 0 {
				to = model.GetOrInsert(found, own)
				to.Resolution = t
				to.Pods.Add(d.Src)
				to.Askers.Add(d.Src)
			}
		}
		to.Packets += d.Packets
	}
	return true
}

// silentBeyond reports next hops. Those of one link are one finding, since they may have one cause.
func silentBeyond(v *fault.Input, found map[node.Question]*node.SilentHop) {
	links := map[int]map[netip.Addr]*node.SilentHop{}
	for k, m := range found {
		model.Include(links, k.Ifindex, k.Addr, m)
	}
	for _, link := range slices.Sorted(maps.Keys(links)) {
		v.Report(nobodyBeyond(v.Index, link, links[link]))
	}
}

// nobodyBeyond is the finding on a link's next hops that do not answer.
func nobodyBeyond(v *node.Index, ifindex int, hops map[netip.Addr]*node.SilentHop) fault.Fault {
	link, port, remotes := v.LinkName(ifindex), portOf(v, ifindex), node.Sorted(hops)
	f := fault.Fault{Page: "UnansweredARP-beyond"}
	f.Severity, f.Confidence, f.LastHopAlive = model.Warning, model.Proven, v.Place(port, model.Egress)
	var pods, askers node.AddrSet
	var flows uint64
	var shown []model.Evidence
	for _, a := range remotes {
		hop := hops[a]
		pods.AddAll(hop.Pods)
		askers.AddAll(hop.Askers)
		flows += hop.Flows
		f.Packets += hop.Packets
		if hop.Gateway {
			f.Severity = model.Critical
		}
		shown = append(shown, words.Say("nexthop", words.Facts{
			"addr": a, "link": link, "port": port, "requests": hop.Requests, "gateway": hop.Gateway,
			"askers":  node.Sorted(hop.Askers),
			"entries": model.Chosen(v.Neighbors, func(n *model.Neighbor) bool { return n.IfIndex == ifindex && n.Addr == a }),
		})...)
	}
	f.Pods, f.Peers = node.Sorted(pods), model.Hosts(remotes)
	f.Facts = words.Facts{"link": link, "port": port, "remotes": remotes, "askers": askers, "flows": flows, "shown": shown}
	l := v.LinkByName[port]
	if len(remotes) > node.Sweep && f.Severity == model.Warning {
		// As a scan does.
		f.Severity = model.Info
	}
	if taken := takenRange(v, ifindex, hops, remotes[0]); taken.IsValid() {
		f.Severity, f.Facts["taken"], f.Facts["route"] = model.Critical, taken, v.RouteText(v.Lookup(remotes[0]))
	} else if l != nil && !(l.Up && l.Carrier) {
		f.Facts["dead"] = l
	} else {
		f.Facts["tunnel"] = l != nil && l.Role == model.RoleTunnel
	}
	if model.InAny(v.Ranges.Local, remotes[0]) {
		f.Facts["gone"] = v.Shown(model.First(v.Routes, func(r *model.Route) bool {
			return r.IfIndex == ifindex && r.Gateway == remotes[0]
		}))
	} else if l != nil && l.Role == model.RoleBridge && !v.Outer[ifindex] && f.Facts["taken"] == nil {
		inner := model.Find(l.Addresses, func(p netip.Prefix) bool { return p.Contains(remotes[0]) }).Masked()
		f.Facts["inner"] = inner
		if r := v.Lookup(remotes[0]); r != nil && r.IfIndex == ifindex && !r.Gateway.IsValid() && !inner.IsValid() {
			f.Facts["stray"], f.Undoes = v.Shown(r), r
		}
	}
	f.Facts["bad"], f.Facts["instead"] = spareOf(v, ifindex, hops)
	// Rules may look at ports and marks: which flows go there is asked of each.
	led := map[node.Pair]bool{}
	goes := func(x *model.Flow) bool {
		return slices.ContainsFunc(remotes, func(a netip.Addr) bool { return v.LeavesBy(x, node.Question{Ifindex: ifindex, Addr: a}) })
	}
	for x := range model.Each(v.Flows) {
		if !x.Replied && goes(x) {
			led[node.Pair{Local: x.Original.Src, Remote: x.Reply.Src}] = true
		}
	}
	peers := node.SilencesPeers(&f.Finding)
	f.Silences = func(asker netip.Addr, asked netip.Prefix) bool {
		return peers(asker, asked) || asked.IsSingleIP() && led[node.Pair{Local: asker, Remote: asked.Addr()}]
	}
	f.Flows = func(x *model.Flow) bool { return askers[x.Original.Src] || goes(x) }
	f.Claims = func(d *model.Drop) bool {
		if d.Is(model.ReverseFiltered) && d.Link != "" {
			back := v.ReturnPath(d)
			return back.Through(ifindex) && hops[back.Hops[0].Gateway] != nil
		}
		if !d.Is(model.NeighborFailed) || d.IfIndex != ifindex || v.InPod(d).IsValid() {
			return d.Is(model.NeighborFailed) && askers[d.Src]
		}
		hop, ok := node.AwaitedHop(v, d)
		return ok && hops[hop] != nil || askers[d.Src]
	}
	return f
}

// spareOf is a route by one of the next hops, and one for the same addresses by another that answers, which its
// metric keeps from use; nil where there are none.
func spareOf(v *node.Index, ifindex int, hops map[netip.Addr]*node.SilentHop) (bad, spare *node.ShownRoute) {
	for r := range model.Each(v.Routes) {
		if r.IfIndex != ifindex || hops[r.Gateway] == nil {
			continue
		}
		spare := model.First(v.Routes, func(o *model.Route) bool {
			n := v.NeighborAt(o.Gateway, o.IfIndex)
			return o.Dst == r.Dst && o.Table == r.Table && o.Priority > r.Priority && n != nil && path.Resolved(n)
		})
		if spare != nil {
			return v.Shown(r), v.Shown(spare)
		}
	}
	return nil, nil
}

// takenRange is the network of a link that leads neither off the node nor to its pods and that holds addresses
// of other nodes' pods, which nobody answers for there. It is not valid where there is none.
func takenRange(v *node.Index, link int, hops map[netip.Addr]*node.SilentHop, remote netip.Addr) netip.Prefix {
	l := v.ByIndex[link]
	if l == nil || v.Outer[link] || l.Role == model.RoleTunnel {
		return netip.Prefix{}
	}
	for a, hop := range hops {
		if hop.Gateway || !v.SurelyPods(a) {
			return netip.Prefix{}
		}
	}
	return model.Find(l.Addresses, func(p netip.Prefix) bool { return p.Contains(remote) }).Masked()
}

// portOf is the link by which a link's packets leave the node: itself, or the one port of a bridge that is an uplink.
func portOf(v *node.Index, ifindex int) string {
	ports := model.Chosen(v.Links, func(l *model.Link) bool { return l.Role == model.RoleUplink && l.Master == ifindex })
	if len(ports) == 1 && !v.IsUplink(ifindex) {
		return ports[0].Name
	}
	return v.LinkName(ifindex)
}
