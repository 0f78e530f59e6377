package route

import (
	"math/bits"
	"net/netip"
	"slices"

	"github.com/lasthop/lasthop/probe/fault"
	"github.com/lasthop/lasthop/probe/model"
	"github.com/lasthop/lasthop/probe/node"
	"github.com/lasthop/lasthop/probe/words"
)

// loopTTLs is how many different TTLs make a loop: a packet loses two on each round through this node and the
// next router, while the answers that reach one address come with a few.
const loopTTLs = 6

// loop is a pod's packets at an uplink that pass it in the wrong direction.
type loop struct {
	Wrong, Right *model.HopCount
	TTLs         uint64
}

// loops are those at one uplink, of packets from pods or for them. once: the reverse path filter ends them when they come
// back first. own: they have the node's address as source, and no node takes its own from a link.
type loops struct {
	ifindex   int
	side      model.Side
	once, own bool
}

// RoutingLoop reports packets that come back to the node until their TTL ends.
var RoutingLoop = fault.Kind{Code: "RoutingLoop", Severity: model.Critical, Find: routingLoop,
	Rests: fault.Sources{model.SourceRoutes, model.SourceLinks}, Ends: fault.Hops{model.HopRoute, model.HopBeyond},
	Traits: model.Astray, Else: fault.Else{"once", "nobody"}}

func routingLoop(v *fault.Input) {
	// known are pods whose packets loop for another cause: the route to the pod is gone, or
	// went with its link, or a wrong route beyond the node brings them back; or nothing of a pair of links delivers them.
	known := node.AddrSet{}
	known.Add(circling(v)...)
	known.AddAll(v.Returned)
	for p := range model.Each(v.Pods) {
		if l := v.ByIndex[p.LinkIndex]; l != nil && !l.Up {
			known.Add(node.PodAddrs(p)...)
		}
	}
	type looped struct {
		addr    netip.Addr
		ifindex int
	}
	filtered := map[looped]uint64{}
	for d := range model.Each(v.Traffic.Drops) {
		if d.Is(model.ReverseFiltered) && v.Classifier.Lost(d) && v.IsUplink(d.IfIndex) && d.Link != "" && !v.Explained(d) {
			filtered[looped{d.Src, d.IfIndex}] += d.Packets
		}
	}
	found := map[loops][]loop{}
	for h := range model.Each(v.Traffic.Hops) {
		// What is from a pod leaves by the uplink and what is for one
		// arrives by it; the other direction is the loop's.
		forward := model.Either(h.Side == model.AsDestination, model.Ingress, model.Egress)
		own := v.Own[h.Addr] != nil && h.Side == model.AsSource
		if len(v.Owners[h.Addr]) == 0 && !own || known[h.Addr] || !v.IsUplink(h.IfIndex) && !v.IsTunnel(h.IfIndex) || h.Direction == forward {
			continue
		}
		falls := bits.OnesCount64(h.TTLs) >= loopTTLs
		once := !falls && h.Side == model.AsSource && (filtered[looped{h.Addr, h.IfIndex}] >= node.MinDrops || own && h.Packets >= node.MinDrops)
		if !falls && !once || h.Side == model.AsSource && mayReturn(v, h) {
			continue
		}
		if first := v.Hop(h.Addr, h.IfIndex, forward, h.Side); first != nil && !flooded(v.Index, h, first) {
			k := loops{h.IfIndex, h.Side, once, own}
			found[k] = append(found[k], loop{h, first, h.TTLs | first.TTLs})
		}
	}
	for k, list := range found {
		// So do those that other pods send to it.
		if f := looping(v.Index, k, list); len(known) == 0 && !k.own || k.side == model.AsDestination || len(f.Peers) > 0 {
			v.Report(f)
		}
	}
}

// circling reports pods for which packets leave by one end of a pair of links and come back by the other, or by a program
// to the same, into the node's own routing, until their TTL ends.
func circling(v *fault.Input) (pods []netip.Addr) {
	for h := range model.Each(v.Traffic.Hops) {
		l := v.ByIndex[h.IfIndex]
		if l == nil || l.Role != model.RoleRouter || v.ByIndex[l.Peer] == nil || h.Side != model.AsDestination ||
			h.Direction != model.Ingress || len(v.Owners[h.Addr]) == 0 || bits.OnesCount64(h.TTLs) < loopTTLs {
			continue
		}
		expired := func(d *model.Drop) bool { return d.Dst == h.Addr && d.IfIndex == h.IfIndex && d.Is(model.Expired) }
		n := v.Dropped(expired)
		if n < node.MinDrops {
			continue
		}
		entry, route := v.ByIndex[l.Peer], v.Lookup(h.Addr)
		if route != nil && route.IfIndex == l.Index {
			entry = l
		}
		// What may hand packets to pods, up to Cilium's program, which does.
		programs, cilium := model.Chosen(v.Programs, func(p *model.Program) bool {
			return p.Netns == v.Node.Netns && p.IfIndex == entry.Index && p.Direction == model.Egress
		}), false
		if i := slices.IndexFunc(programs, func(p *model.Program) bool { return p.Owner() == model.OwnerCilium }); i >= 0 {
			programs, cilium = programs[:i+1], true
		}
		f := fault.Fault{Page: "RoutingLoop-circle", Claims: expired, Facts: words.Facts{
			"addr": h.Addr, "entry": entry, "link": l, "hop": h, "to": v.Owners[h.Addr][0].Link,
			"route": v.Shown(route), "programs": programs, "cilium": cilium,
			"endpoint": model.First(v.Cilium.Endpoints,
				func(e *model.CiliumEndpoint) bool { return slices.Contains(e.Addresses, h.Addr) }),
			"delivers": v.CiliumDelivers(h.Addr), "lacks": cilium && len(v.Cilium.Local) > 0 && !v.CiliumDelivers(h.Addr),
		}}
		f.Pods, f.Packets, f.LastHopAlive = []netip.Addr{h.Addr}, n, v.Place(entry.Name, model.Egress)
		v.Report(f)
		pods = append(pods, h.Addr)
	}
	return pods
}

// flooded reports whether frames for a pod that leave by an uplink on the pod's own bridge have the TTLs with which
// others came: the bridge floods them, and nobody routed them.
func flooded(v *node.Index, h, first *model.HopCount) bool {
	if h.Side != model.AsDestination {
		return false
	}
	b := v.BridgeOf(v.Owners[h.Addr][0])
	return b != nil && b == v.Bridge(v.ByIndex[h.IfIndex]) && h.TTLs&^first.TTLs == 0
}

// mayReturn reports whether most of a pod's packets that come in at an uplink never left by one, so that another machine
// sends with the pod's address; or are for addresses of this node's pods that nobody has: of a service's dead backend,
// as was found, or of a pod that is gone. The network is right to return what is for this node's range.
func mayReturn(v *fault.Input, h *model.HopCount) bool {
	var back uint64
	for p := range model.Each(v.Peers) {
		if p.Local == h.Addr && (p.Out.Packets == 0 || v.Classifier.Past[p.Remote] || v.Vacant(p.Remote) && v.OwnRange(p.Remote) ||
			v.Silenced(p.Local, model.Host(p.Remote)) || justLeft(v.Index, p)) {
			back += p.In.Packets
		}
	}
	return 2*back > h.Packets
}

// justLeft reports whether the pair's remote end is where this node's pods are, is
// none, and was asked for a moment only: a pod that went as the window began.
func justLeft(v *node.Index, p *model.Peer) bool {
	near := v.Vacant(p.Remote) || model.InAny(v.OnLink, p.Remote) && len(v.Owners[p.Remote]) == 0
	return near && p.In.Replies == 0 && model.Lasted(p.LastOut, v.Window.End) && p.Out.Packets > 0 &&
		!p.LastOut.IsZero()
}

func looping(v *node.Index, k loops, list []loop) fault.Fault {
	name := v.LinkName(k.ifindex)
	f := fault.Fault{Facts: words.Facts{"link": name, "for": k.side == model.AsDestination, "loops": list, "once": k.once, "own": k.own,
		"tunnel": v.IsTunnel(k.ifindex)}}
	f.LastHopAlive = v.Place(name, model.Egress)
	var looped node.AddrSet
	for _, l := range list {
		looped.Add(l.Wrong.Addr)
		f.Packets += l.Wrong.Packets
	}
	pods := looped
	if k.side == model.AsSource {
		if senders := targets(v, &f, k.ifindex, looped); k.own {
			pods = senders
		}
	}
	f.Pods = node.Sorted(pods)
	if k.once && amongPods(v, f.Peers) {
		f.Severity, f.Facts["nobody"], f.Facts["first"] = model.Warning, true, f.Peers[:min(len(f.Peers), node.MostEvidence)]
	}
	f.Claims = func(d *model.Drop) bool {
		return model.Either(k.side == model.AsDestination, pods[d.Dst] && d.Is(model.Expired),
			pods[d.Src] && (d.Is(model.Expired) || d.Is(model.ReverseFiltered) && d.IfIndex == k.ifindex))
	}
	return f
}

// amongPods reports whether all these addresses are where this node's pods are, by the
// size that a node's range has, and none is a machine's on the node's own network.
func amongPods(v *node.Index, list []netip.Prefix) bool {
	return len(list) > 0 && !slices.ContainsFunc(list, func(p netip.Prefix) bool {
		around, err := p.Addr().Prefix(v.Ranges.PodBits(p.Addr()))
		return err != nil || !p.IsSingleIP() || model.InAny(v.OnLink, p.Addr()) || !v.HoldsPods(around) ||
			len(v.Owners[p.Addr()]) > 0 || v.Ranges.NodeAt(p.Addr()).IsValid()
	})
}

// targets names where looping packets wanted to go: what came in at the uplink
// on that pair was no answer, and left about as often: the two are not read at one instant.
// It returns the pods that send it.
func targets(v *node.Index, f *fault.Fault, ifindex int, looped node.AddrSet) (pods node.AddrSet) {
	peers := map[netip.Addr]bool{}
	for p := range model.Each(v.Peers) {
		if p.IfIndex == ifindex && looped[p.Local] && p.In.Packets >= node.MinPackets &&
			10*p.Out.Packets >= 9*p.In.Packets && v.Unanswered(p) {
			peers[p.Remote] = true
			pods.AddAll(v.Senders(p))
		}
	}
	type target struct {
		netip.Addr
		Route *node.ShownRoute
	}
	var routes []target
	for _, a := range node.Sorted(peers) {
		f.Peers = append(f.Peers, model.Host(a))
		if r := v.Routing().Lookup(v.SentBy(node.Sorted(looped)[0], a)).Route; r != nil {
			routes = append(routes, target{a, v.Shown(r)})
		}
	}
	f.Facts["routes"] = routes
	return pods
}
