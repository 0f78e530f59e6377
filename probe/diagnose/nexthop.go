package diagnose

import (
	"cmp"
	"maps"
	"net/netip"
	"slices"

	"github.com/lasthop/lasthop/probe/model"
	"github.com/lasthop/lasthop/probe/path"
	"github.com/lasthop/lasthop/probe/words"
)

// silentHop is a next hop beyond a link that does not tell its MAC, and what was lost to it. The link is an
// uplink, a bridge that holds one, or another that does not lead to this node's pods, such as a tunnel.
type silentHop struct {
	// gateway says that packets for other addresses go by it.
	gateway bool
	// askers are the addresses of pods that ask themselves.
	pods, askers addrSet
	packets      uint64
	// flows are those of the window that go by it with the node's address.
	flows uint64
	resolution
}

// silentNextHops finds the next hops of the node that nothing answers for: the packets that waited for their
// MAC are freed, and never reach the uplink's hook.
func (v *view) silentNextHops() map[question]*silentHop {
	found := map[question]*silentHop{}
	if !v.Has(model.SourceTC, model.SourceDrops) {
		return found
	}
	for d := range model.Each(v.Traffic.Drops) {
		l := v.ByIndex[d.IfIndex]
		if !d.Is(model.NeighborFailed) || l == nil || l.Role == model.RolePodLink || v.inPod(d).IsValid() || v.explained(d) {
			continue
		}
		hop, ok := awaitedHop(v.index, d)
		if !ok || model.InAny(v.ranges.local, hop) {
			continue
		}
		m := model.GetOrInsert(found, question{d.IfIndex, hop})
		m.gateway = m.gateway || hop != d.Dst
		m.packets += d.Packets
		if len(v.Owners[d.Src]) > 0 {
			m.pods.add(d.Src)
		} else {
			m.pods.add(v.translatedPods()[pair{d.Src, d.Dst}]...)
		}
	}
	v.awaitTranslated(found)
	for k, m := range found {
		m.resolution = askedBeyond(v.index, k)
		if m.packets+m.flows < minDrops || m.requests < minDrops || m.replies > 0 || len(m.pods) == 0 {
			delete(found, k)
		}
	}
	return found
}

// awaitTranslated adds what pods send with the node's address: its drops bear that address, and are not
// counted. That no flow by a next hop is replied to, and that the hop has no MAC, tells as much.
func (v *index) awaitTranslated(found map[question]*silentHop) {
	for n := range model.Each(v.Neighbors) {
		k := question{n.IfIndex, n.Addr}
		if !v.Outer[n.IfIndex] || path.Resolved(n) || found[k] != nil || !askedBeyond(v, k).inVain() {
			continue
		}
		m, replied := silentHop{gateway: v.nextHops[n.Addr]}, false
		for f := range model.Each(v.Flows) {
			if f.Start.IsZero() || f.Reply.Dst == f.Original.Src || len(v.Owners[f.Original.Src]) == 0 || !v.leavesBy(f, k) {
				continue
			}
			replied = replied || f.Replied
			m.pods.add(f.Original.Src)
			m.flows++
		}
		if !replied && m.flows > 0 {
			found[k] = &m
		}
	}
}

// leavesBy reports whether the packets of a translated flow go by a next hop. Where rules lead them to another
// link than their addresses do, as by a mark, the address that they got tells.
func (v *index) leavesBy(f *model.Flow, k question) bool {
	d := v.Routing().Lookup(path.Query{Src: f.Reply.Dst, Dst: f.Reply.Src})
	if !d.Through(k.ifindex) {
		return (v.nextHops[k.addr] || f.Reply.Src == k.addr) && v.holds(v.linkName(k.ifindex), f.Reply.Dst)
	}
	return slices.ContainsFunc(d.Hops, func(h path.NextHop) bool {
		return h.IfIndex == k.ifindex && cmp.Or(h.Gateway, f.Reply.Src) == k.addr
	})
}

// askedBeyond counts what left the node by a link, or by the uplinks that are ports of it, to ask for an address, and
// the replies that came in. A question of the node passes the bridge and the port, a pod's the port alone.
func askedBeyond(v *index, k question) resolution {
	asked := v.resolutions(model.Egress)
	link, ports := asked[k], resolution{}
	for _, l := range v.ByIndex {
		if l.Master == k.ifindex && l.Role == model.RoleUplink {
			t := asked[question{l.Index, k.addr}]
			ports = resolution{ports.requests + t.requests, ports.replies + t.replies}
		}
	}
	return resolution{max(link.requests, ports.requests), max(link.replies, ports.replies)}
}

// asksBeyond adds a pod that is bridged to the network and asks there for its
// gateway, in vain: nobody on this node should answer it.
func (v *index) asksBeyond(found map[question]*silentHop, p *model.Pod, g *model.Neighbor, asked resolution) bool {
	b := v.bridgeOf(p)
	if !v.Has(model.SourceTC) || b == nil || !v.Outer[b.Index] || v.nodeAddrs[g.Addr] || len(v.Owners[g.Addr]) > 0 ||
		asked.requests < minDrops || asked.replies > 0 {
		return false
	}
	k := question{b.Index, g.Addr}
	t := askedBeyond(v, k)
	if t.requests < minDrops || t.replies > 0 {
		return false
	}
	m, pods := model.GetOrInsert(found, k), sameFamily(podAddrs(p), g.Addr)
	m.gateway, m.resolution = true, t
	m.pods.add(pods...)
	m.askers.add(pods...)
	for d := range model.Each(v.Traffic.Drops) {
		if !slices.Contains(pods, d.Src) || !d.Is(model.NeighborFailed) {
			continue
		}
		// What is on its own link a pod asks for itself too.
		to, own := m, question{b.Index, d.Dst}
		if r := path.PodRoute(p, d.Dst); r != nil && !r.Gateway.IsValid() {
			if t := askedBeyond(v, own); t.requests >= minDrops && t.replies == 0 {
				to = model.GetOrInsert(found, own)
				to.resolution = t
				to.pods.add(d.Src)
				to.askers.add(d.Src)
			}
		}
		to.packets += d.Packets
	}
	return true
}

// silentBeyond reports next hops. Those of one link are one finding, since they may have one cause.
func (v *view) silentBeyond(found map[question]*silentHop) {
	links := map[int]map[netip.Addr]*silentHop{}
	for k, m := range found {
		include(links, k.ifindex, k.addr, m)
	}
	for _, link := range slices.Sorted(maps.Keys(links)) {
		v.report(nobodyBeyond(v.index, link, links[link]))
	}
}

// findTranslated are the pods whose packets go with the node's address, by that and the remote one.
func (v *index) findTranslated() map[pair][]netip.Addr {
	out := map[pair][]netip.Addr{}
	for f := range model.Each(v.Flows) {
		if src := f.Original.Src; src != f.Reply.Dst && len(v.Owners[src]) > 0 {
			k := pair{f.Reply.Dst, f.Reply.Src}
			out[k] = append(out[k], src)
		}
	}
	return out
}

// nobodyBeyond is the finding on a link's next hops that do not answer.
func nobodyBeyond(v *index, ifindex int, hops map[netip.Addr]*silentHop) finding {
	link, port, remotes := v.linkName(ifindex), portOf(v, ifindex), sorted(hops)
	f := finding{page: "UnansweredARP-beyond"}
	f.Severity, f.Confidence, f.LastHopAlive = model.Warning, model.Proven, v.place(port, model.Egress)
	var pods, askers addrSet
	var flows uint64
	var shown []model.Evidence
	for _, a := range remotes {
		hop := hops[a]
		pods.addAll(hop.pods)
		askers.addAll(hop.askers)
		flows += hop.flows
		f.Packets += hop.packets
		if hop.gateway {
			f.Severity = model.Critical
		}
		shown = append(shown, words.Say("nexthop", facts{
			"addr": a, "link": link, "port": port, "requests": hop.requests, "gateway": hop.gateway,
			"askers":  sorted(hop.askers),
			"entries": model.Chosen(v.Neighbors, func(n *model.Neighbor) bool { return n.IfIndex == ifindex && n.Addr == a }),
		})...)
	}
	f.Pods, f.Peers = sorted(pods), model.Hosts(remotes)
	f.facts = facts{"link": link, "port": port, "remotes": remotes, "askers": askers, "flows": flows, "shown": shown}
	l := v.byName[port]
	if len(remotes) > sweep && f.Severity == model.Warning {
		// As a scan does.
		f.Severity = model.Info
	}
	if taken := v.takenRange(ifindex, hops, remotes[0]); taken.IsValid() {
		f.Severity, f.facts["taken"], f.facts["route"] = model.Critical, taken, v.routeText(v.lookup(remotes[0]))
	} else if l != nil && !(l.Up && l.Carrier) {
		f.facts["dead"] = l
	} else {
		f.facts["tunnel"] = l != nil && l.Role == model.RoleTunnel
	}
	f.facts["bad"], f.facts["instead"] = v.spareOf(ifindex, hops)
	f.claims = func(d *model.Drop) bool {
		if d.Is(model.ReverseFiltered) && d.Link != "" {
			back := v.returnPath(d)
			return back.Through(ifindex) && hops[back.Hops[0].Gateway] != nil
		}
		if !d.Is(model.NeighborFailed) || d.IfIndex != ifindex || v.inPod(d).IsValid() {
			return d.Is(model.NeighborFailed) && askers[d.Src]
		}
		hop, ok := awaitedHop(v, d)
		return ok && hops[hop] != nil || askers[d.Src]
	}
	return f
}

// spareOf is a route by one of the next hops, and one for the same addresses by another that answers, which its
// metric keeps from use; nil where there are none.
func (v *index) spareOf(ifindex int, hops map[netip.Addr]*silentHop) (bad, spare *shownRoute) {
	for r := range model.Each(v.Routes) {
		if r.IfIndex != ifindex || hops[r.Gateway] == nil {
			continue
		}
		spare := model.First(v.Routes, func(o *model.Route) bool {
			n := v.NeighborAt(o.Gateway, o.IfIndex)
			return o.Dst == r.Dst && o.Table == r.Table && o.Priority > r.Priority && n != nil && path.Resolved(n)
		})
		if spare != nil {
			return v.shown(r), v.shown(spare)
		}
	}
	return nil, nil
}

// takenRange is the network of a link that leads neither off the node nor to its pods and that holds addresses
// of other nodes' pods, which nobody answers for there. It is not valid where there is none.
func (v *index) takenRange(link int, hops map[netip.Addr]*silentHop, remote netip.Addr) netip.Prefix {
	l := v.ByIndex[link]
	if l == nil || v.Outer[link] || l.Role == model.RoleTunnel {
		return netip.Prefix{}
	}
	for a, hop := range hops {
		if hop.gateway || !v.surelyPods(a) {
			return netip.Prefix{}
		}
	}
	return model.Find(l.Addresses, func(p netip.Prefix) bool { return p.Contains(remote) }).Masked()
}

// portOf is the link by which a link's packets leave the node: itself, or the one port of a bridge that is an uplink.
func portOf(v *index, ifindex int) string {
	ports := model.Chosen(v.Links, func(l *model.Link) bool { return l.Role == model.RoleUplink && l.Master == ifindex })
	if len(ports) == 1 && !v.isUplink(ifindex) {
		return ports[0].Name
	}
	return v.linkName(ifindex)
}

// awaitedHop is the address whose MAC a freed packet waited for. Of several hops
// over the same link it is the one that is not resolved.
func awaitedHop(v *index, d *model.Drop) (netip.Addr, bool) {
	decision := v.Routing().Lookup(v.sentBy(d.Src, d.Dst))
	var hops []netip.Addr
	for _, h := range decision.Hops {
		if h.IfIndex == d.IfIndex {
			hops = append(hops, cmp.Or(h.Gateway, d.Dst))
		}
	}
	if len(hops) > 1 {
		hops = slices.DeleteFunc(hops, func(a netip.Addr) bool {
			n := v.NeighborAt(a, d.IfIndex)
			return n != nil && path.Resolved(n)
		})
	}
	if len(hops) != 1 || len(v.Owners[hops[0]]) > 0 || v.past[hops[0]] {
		return netip.Addr{}, false
	}
	return hops[0], true
}
