package diagnose

import (
	"fmt"
	"maps"
	"math/bits"
	"net/netip"
	"slices"

	"github.com/lasthop/lasthop/probe/model"
	"github.com/lasthop/lasthop/probe/words"
)

// RoutingLoop is the code of this finding.
const RoutingLoop model.Code = "RoutingLoop"

var routingLoop = kind{
	code:     RoutingLoop,
	severity: model.Critical,
	find:     findRoutingLoop,
	ends:     []model.HopKind{model.HopRoute, model.HopBeyond},
}

// loopTTLs is how many different TTLs make a loop: a packet loses two on each
// round through this node and the next router, while the answers that reach
// one address come with a few.
const loopTTLs = 6

// loop is a pod's packets at an uplink that pass it in the wrong direction.
type loop struct {
	wrong, right *model.HopCount
	// once: the reverse path filter ends it when they come back first.
	once bool
}

// sentBack are the addresses of pods whose packets loop for another cause: the
// route to the pod is gone, or went with its link, or a wrong route beyond the
// node brings them back.
func sentBack(v *view) map[netip.Addr]bool {
	known := map[netip.Addr]bool{}
	for p := range model.Each(v.Pods) {
		if l := v.links[p.LinkIndex]; l != nil && !l.Up {
			for _, a := range p.Addresses {
				known[a.Addr()] = true
			}
		}
	}
	maps.Copy(known, v.returned)
	return known
}

func findRoutingLoop(v *view) []finding {
	known := sentBack(v)
	filtered := map[looped]uint64{}
	for d := range model.Each(v.Traffic.Drops) {
		if d.ReverseFiltered() && v.drops.Lost(d) && v.isUplink(d.IfIndex) && d.Link != "" && !v.explained(d) {
			filtered[looped{d.Src, d.IfIndex}] += d.Packets
		}
	}
	type key struct {
		ifindex int
		side    model.Side
		once    bool
	}
	loops := map[key][]loop{}
	for h := range model.Each(v.Traffic.Hops) {
		if len(v.pods[h.Addr]) == 0 || known[h.Addr] || !v.isUplink(h.IfIndex) {
			continue
		}
		// What is from a pod leaves by the uplink and what is for one
		// arrives by it; the other direction is the loop's.
		forward := model.Egress
		if h.Side == model.AsDestination {
			forward = model.Ingress
		}
		if h.Direction == forward {
			continue
		}
		falls := bits.OnesCount64(h.TTLs) >= loopTTLs
		once := !falls && h.Side == model.AsSource && filtered[looped{h.Addr, h.IfIndex}] >= minDrops
		if !falls && !once {
			continue
		}
		if h.Side == model.AsSource && forNobody(v, h) {
			continue
		}
		if first := v.hop(h.Addr, h.IfIndex, forward, h.Side); first != nil {
			k := key{h.IfIndex, h.Side, once}
			loops[k] = append(loops[k], loop{wrong: h, right: first, once: once})
		}
	}
	var out []finding
	for k, list := range loops {
		f := looping(v, k.ifindex, k.side, list)
		// So do those that other pods send to it.
		if len(known) == 0 || k.side == model.AsDestination || len(f.Peers) > 0 {
			out = append(out, f)
		}
	}
	return append(out, circling(v)...)
}

// circling are the findings on pods for which packets leave by one end of a pair of links
// and come back by the other into the node's own routing, until their TTL ends.
func circling(v *view) []finding {
	var out []finding
	for h := range model.Each(v.Traffic.Hops) {
		l := v.links[h.IfIndex]
		if l == nil || l.Role != model.RoleRouter || v.links[l.Peer] == nil || h.Side != model.AsDestination || h.Direction != model.Ingress ||
			len(v.pods[h.Addr]) == 0 || bits.OnesCount64(h.TTLs) < loopTTLs {
			continue
		}
		expired := func(d *model.Drop) bool { return d.Dst == h.Addr && d.IfIndex == h.IfIndex && d.Expired() }
		n := v.dropped(expired)
		if n < minDrops {
			continue
		}
		entry := v.links[l.Peer]
		f := model.Finding{
			Confidence: model.Proven, Pods: []netip.Addr{h.Addr}, Packets: n, LastHopAlive: v.place(entry.Name, model.Egress),
			Title: fmt.Sprintf("packets for %s circle between %s and %s", h.Addr, entry.Name, l.Name),
			Why: fmt.Sprintf("The node routes %s to %s. %s is the other end of that in this node: packets come back into the node's routing "+
				"there, which sends them to %s again, until their TTL ends. Nothing hands them to the pod's link %s.",
				h.Addr, entry.Name, l.Name, entry.Name, v.pods[h.Addr][0].Link),
		}
		observe(&f, model.SourceTC, "%s ingress: %s for %s, with %s", l.Name, words.Count(h.Packets, "packet"), h.Addr, words.TTLs(h.TTLs))
		observe(&f, model.SourceDrops, "%s for it freed on %s, since the TTL ended", words.Count(n, "packet"), l.Name)
		if r := v.lookup(h.Addr); r != nil {
			observe(&f, model.SourceRoutes, "the lookup for %s ends at: %s", h.Addr, v.routeText(r))
		}
		f.Fix = v.handOver(&f, entry, h.Addr)
		out = append(out, finding{Finding: f, claims: expired})
	}
	return out
}

// handOver is how the programs of a link get to know a pod that they should hand packets to.
func (v *view) handOver(f *model.Finding, entry *model.Link, pod netip.Addr) []string {
	for p := range model.Each(v.Programs) {
		if p.Netns != v.Node.Netns || p.IfIndex != entry.Index || p.Direction != model.Egress {
			continue
		}
		observe(f, model.SourcePrograms, "on %s egress: %s", entry.Name, p)
		if programOwner(p) == "Cilium" {
			f.Why += " Cilium's program there would, and has no endpoint with this address."
			return []string{
				fmt.Sprintf("kubectl -n kube-system exec CILIUM-POD-OF-THIS-NODE -- sh -c 'cilium-dbg bpf endpoint list; cilium-dbg endpoint list' | grep %s # "+
					"missing in the first alone: restart the agent, which writes its endpoints anew; in both: delete the pod", pod),
				"kubectl -n kube-system delete pod CILIUM-POD-OF-THIS-NODE",
			}
		}
	}
	return []string{fmt.Sprintf("find what should hand packets for %s to the pod: bpftool net show dev %s; %s route get %s", pod, words.Quote(entry.Name), words.IP(pod), pod)}
}

// forNobody reports whether most of a pod's packets that come back at an uplink
// are for addresses of this node's pods that nobody has: of a service's dead
// backend, as was found, or of a pod that is gone. The network is right to
// return what is for this node's range.
func forNobody(v *view, h *model.HopCount) bool {
	var back uint64
	for p := range model.Each(v.peers) {
		if p.Local == h.Addr && (v.past[p.Remote] || v.vacant(p.Remote) && v.ownRange(p.Remote) || v.silenced(p.Local, host(p.Remote)) || justLeft(v, p)) {
			back += p.In.Packets
		}
	}
	return 2*back > h.Packets
}

// justLeft reports whether the pair's remote end is where this node's pods are, is
// none, and was asked for a moment only: a pod that went as the window began.
func justLeft(v *view, p *model.Peer) bool {
	near := v.vacant(p.Remote) || inAny(v.onLink, p.Remote) && len(v.pods[p.Remote]) == 0
	return near && p.In.Replies == 0 && p.LastOut.Before(v.Window.End.Add(-2*settled)) && p.Out.Packets > 0 && !p.LastOut.IsZero()
}

// looped is an address and the uplink where it was seen.
type looped struct {
	addr    netip.Addr
	ifindex int
}

// looping is the finding on pods whose packets loop at one uplink.
func looping(v *view, ifindex int, side model.Side, list []loop) finding {
	name := v.linkName(ifindex)
	whose := map[model.Side]string{model.AsSource: "from", model.AsDestination: "for"}[side]
	f := model.Finding{
		Confidence:   model.Proven,
		LastHopAlive: v.place(name, model.Egress),
		Title:        "packets loop through " + name,
		Why: fmt.Sprintf("Packets %s pods leave %s and come back to it, and the node sends them out again, until their TTL ends: "+
			"the router beyond has this node for the way.", whose, name),
	}
	pods := map[netip.Addr]bool{}
	for _, l := range list {
		pods[l.wrong.Addr] = true
		f.Pods = append(f.Pods, l.wrong.Addr)
		f.Packets += l.wrong.Packets
		observe(&f, model.SourceTC,
			"packets %s %s: %s %s %d, %s %d, with %s", whose, l.wrong.Addr, name, l.right.Direction, l.right.Packets, l.wrong.Direction, l.wrong.Packets, words.TTLs(l.wrong.TTLs|l.right.TTLs))
	}
	if list[0].once {
		f.Confidence = model.Likely
		f.Title = "packets come back to " + name
		f.Why = fmt.Sprintf("Packets from pods leave %s and come back to it, where the reverse path filter ends what would be a loop: "+
			"the router beyond has this node for the way.", name)
		f.Alternatives = []string{"another machine sends with the pods' addresses"}
	}
	if side == model.AsSource {
		targets(v, &f, ifindex)
	}
	f.Fix = []string{"in the network's route tables, find the route to " + loopTarget(&f) + " whose next hop is this node, and delete it"}
	if list[0].once && v.amongPods(f.Peers) {
		f.Severity = model.Warning
		var gone []netip.Addr
		for _, p := range f.Peers {
			gone = append(gone, p.Addr())
		}
		f.Title = "no pod of the node has " + words.Addrs(gone)
		f.Why += fmt.Sprintf(" No pod of this node has %s, but those around do: so the network may be right to send here what is for it.", words.Addrs(gone))
		f.Alternatives = append(f.Alternatives, "a pod of another node has it, and the network's route to it leads here: then delete that route")
		f.Fix = nil
		for _, a := range gone[:min(len(gone), mostEvidence)] {
			f.Fix = append(f.Fix, "kubectl get pods,endpointslices -A -o wide | grep "+a.String())
		}
	}
	return finding{Finding: f, claims: func(d *model.Drop) bool {
		if side == model.AsDestination {
			return pods[d.Dst] && d.Expired()
		}
		return pods[d.Src] && (d.Expired() || d.ReverseFiltered() && d.IfIndex == ifindex)
	}}
}

// amongPods reports whether all these addresses are where this node's pods are, by the
// size that a node's range has, and none is a machine's on the node's own network.
func (v *view) amongPods(list []netip.Prefix) bool {
	return len(list) > 0 && !slices.ContainsFunc(list, func(p netip.Prefix) bool {
		around, err := p.Addr().Prefix(v.ranges.podBits(p.Addr()))
		return err != nil || !p.IsSingleIP() || inAny(v.onLink, p.Addr()) || !v.holdsPods(around) || len(v.pods[p.Addr()]) > 0 || v.ranges.nodeAt(p.Addr()).IsValid()
	})
}

// targets names where looping packets wanted to go: what came in at the uplink
// on that pair was no answer, and left about as often: the two are not read at one instant.
func targets(v *view, f *model.Finding, ifindex int) {
	peers := map[netip.Addr]bool{}
	for p := range model.Each(v.peers) {
		if p.IfIndex == ifindex && slices.Contains(f.Pods, p.Local) && p.In.Packets >= minPackets && 10*p.Out.Packets >= 9*p.In.Packets && v.unanswered(p) {
			peers[p.Remote] = true
		}
	}
	for _, a := range sorted(peers) {
		f.Peers = append(f.Peers, host(a))
		if d := v.routing().Lookup(v.fromPod(f.Pods[0], a)); d.Route != nil {
			observe(f, model.SourceRoutes, "the node's route to %s: %s", a, v.routeText(d.Route))
		}
	}
}

func loopTarget(f *model.Finding) string {
	if len(f.Peers) == 0 {
		return "the target"
	}
	return words.Addrs(f.Peers)
}
