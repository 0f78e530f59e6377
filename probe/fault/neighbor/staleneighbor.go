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

// StaleNeighbor reports neighbor entries of pods with a MAC that is not the pod's.
var StaleNeighbor = fault.Kind{Code: "StaleNeighbor", Severity: model.Critical, Find: staleNeighbor,
	Needs: fault.Sources{model.SourceNeighbors, model.SourceRoutes, model.SourceLinks, model.SourcePods},
	Rests: fault.Sources{model.SourceTC, model.SourceEbtables},
	Ends:  fault.Hops{model.HopNeighbor, model.HopBridge}, Objects: fault.Objects{"entry.Addr link"}, Traits: model.ByNextHop,
	Else: fault.Else{"StaleNeighbor-none"}}

func staleNeighbor(v *fault.Input) {
	silent := map[int][]unresolved{} // by the link, where several may have one cause
	// Whose replies a rule drops is no fault of the pod or its entry.
	refused := node.AddrSet{}
	for d := range model.Each(v.Traffic.Drops) {
		if d.Is(model.Netfilter) && v.Classifier.Samples.Advertised(d) {
			refused.Add(d.Src)
		}
	}
	for n := range model.Each(v.Neighbors) {
		if n.Proxy || len(v.Owners[n.Addr]) == 0 {
			continue
		}
		// Only the link by which the node sends to the pod matters. Where
		// the pod is not behind that link, the route is what is wrong.
		if r := v.Lookup(n.Addr); r == nil || r.IfIndex != n.IfIndex || r.Gateway.IsValid() {
			continue
		}
		owners := v.Behind(n.Addr, n.IfIndex)
		if len(owners) == 0 {
			continue
		}
		if path.Resolved(n) {
			misdirected(v, n)
			continue
		}
		// Without packets lost to it the entry is only a memory.
		p, drops := owners[0], v.Dropped(func(d *model.Drop) bool { return d.Dst == n.Addr && d.Is(model.NeighborFailed) })
		if drops >= node.MinDrops && !refused[n.Addr] && v.PresentWholeWindow(p) && p.Up {
			silent[n.IfIndex] = append(silent[n.IfIndex], unresolved{n, p, drops})
		}
	}
	for _, link := range slices.Sorted(maps.Keys(silent)) {
		v.Report(noneOn(v.Index, v.LinkName(link), silent[link]))
	}
	missent(v)
}

// missent reports MACs that pods send to for others of their bridge, and that these do not have: what comes in by a pod's
// link has the MACs that the pod itself holds.
func missent(v *fault.Input) {
	if !v.Has(model.SourceEbtables, model.SourceConntrack) {
		return // A rule may write the MAC.
	}
	behind := model.Table(v.Pods, func(p *model.Pod) (int, *model.Pod) { return p.LinkIndex, p })
	for m := range model.Each(v.Traffic.MACs) {
		p, owners := behind[m.IfIndex], v.Owners[m.Addr]
		if p == nil || len(owners) != 1 || m.Direction != model.Ingress || m.Side != model.AsDestination || m.Packets < node.MinPackets {
			continue
		}
		to, from := owners[0], node.SameFamily(node.PodAddrs(p), m.Addr)
		if len(from) > 0 && to != p && v.BridgeOf(p) != nil && v.BridgeOf(p) == v.BridgeOf(to) && v.PresentWholeWindow(to) &&
			v.FramesBetween(m.Addr, m.IfIndex, m.Direction, m.Side, to.MAC) == 0 && v.Astray(p, m.Dst) &&
			!v.Silenced(from[0], model.Host(m.Addr)) && !takes(v.Index, to, m, from) {
			v.Report(sentAstray(v, p, to, model.Neighbor{Addr: m.Addr, MAC: m.Dst}, m.Packets))
		}
	}
}

// takes reports whether what is behind a pod's link has the MAC of frames for the pod, such as a virtual machine in it:
// that announces it there, or replies to who sends them.
func takes(v *node.Index, to *model.Pod, m *model.MACPair, from []netip.Addr) bool {
	return slices.ContainsFunc(v.Traffic.ARP, func(a model.ARPCount) bool {
		return a.Reply && a.Direction == model.Ingress && a.IfIndex == to.LinkIndex && a.Addr == m.Addr && a.MAC == m.Dst
	}) || slices.ContainsFunc(v.Flows, func(f model.Flow) bool {
		return f.Replied && !f.Start.IsZero() && f.Reply.Src == m.Addr && slices.Contains(from, f.Original.Src)
	})
}

// sentAstray is the finding on frames that a pod sends for another's address to a MAC.
func sentAstray(v *fault.Input, p, to *model.Pod, n model.Neighbor, sent uint64) fault.Fault {
	f := faultOfEntry(v, &n, sent, node.SentToWrongMAC(node.Binding{Addr: n.Addr, MAC: n.MAC}))
	f.Page, f.LastHopAlive = "StaleNeighbor-pod", v.Place(p.Link, model.Ingress)
	f.Pods, f.Peers = node.SameFamily(node.PodAddrs(p), n.Addr), model.Hosts([]netip.Addr{n.Addr})
	f.Facts["link"], f.Facts["pod"], f.Facts["to"] = p.Link, p, to
	return f
}

// misdirected reports an entry with a MAC that no owner has.
func misdirected(v *fault.Input, n *model.Neighbor) {
	p := v.MissedPod(n)
	if p == nil || !v.PresentWholeWindow(p) && n.State != "PERMANENT" {
		return
	}
	sent, link := v.FramesBetween(n.Addr, n.IfIndex, model.Egress, model.AsDestination, n.MAC), v.LinkName(n.IfIndex)
	frames := node.SentToWrongMAC(node.Binding{Addr: n.Addr, MAC: n.MAC})
	f := faultOfEntry(v, n, sent, func(d *model.Drop) bool {
		// By IPv6 these are also the answers to the pod's own requests for its gateway's MAC,
		// so that the pod has no neighbour either.
		return frames(d) || d.Src == n.Addr && d.Src.Is6() && d.Link == "" && d.Is(model.NeighborFailed)
	})
	f.Pods, f.LastHopAlive = []netip.Addr{n.Addr}, v.Place(link, model.Egress)
	f.Facts["link"], f.Facts["pod"] = link, p
	if f.Facts["announced"] == nil {
		from := model.Find(v.Peers, func(x model.Peer) bool { return x.Local == n.Addr })
		f.Undoes, f.Packet = n, path.Packet{Src: from.Remote, Dst: n.Addr}
	}
	v.Report(f)
}

// unresolved is an entry without a MAC for a pod that is there.
type unresolved struct {
	*model.Neighbor
	Pod   *model.Pod
	Drops uint64
}

// noneOn is the finding on the entries of a link that have no MAC.
func noneOn(v *node.Index, link string, list []unresolved) fault.Fault {
	f := fault.Fault{Page: "StaleNeighbor-none"}
	f.Severity, f.LastHopAlive = model.Warning, v.Place(link, model.Egress)
	var shown []model.Evidence
	var families []netip.Addr
	for _, n := range list {
		f.Pods, f.Packets = append(f.Pods, n.Addr), f.Packets+n.Drops
		shown = append(shown, words.Say("unresolved", words.Facts{"entry": n, "link": link})...)
		if len(node.SameFamily(families, n.Addr)) == 0 {
			families = append(families, n.Addr)
		}
	}
	f.Claims = func(d *model.Drop) bool { return slices.Contains(f.Pods, d.Dst) && d.Is(model.NeighborFailed) }
	f.Facts = words.Facts{"link": link, "list": list, "families": families, "shown": shown}
	return f
}
