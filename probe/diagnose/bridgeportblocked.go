package diagnose

import (
	"fmt"
	"net/netip"
	"slices"

	"github.com/lasthop/lasthop/probe/model"
	"github.com/lasthop/lasthop/probe/words"
)

// BridgePortBlocked is the code of this finding.
const BridgePortBlocked model.Code = "BridgePortBlocked"

var bridgePortBlocked = kind{
	code:     BridgePortBlocked,
	severity: model.Critical,
	find:     needing(findBridgePortBlocked, model.SourceLinks, model.SourcePods),
	ends:     []model.HopKind{model.HopBridge, model.HopLink, model.HopNeighbor, model.HopPod},
}

func findBridgePortBlocked(v *view) []finding {
	var out []finding
	for b := range model.Each(v.Links) {
		if b.Kind != "bridge" {
			continue
		}
		pods := slices.DeleteFunc(v.bridgePods(b), func(p *model.Pod) bool {
			l := v.links[p.LinkIndex]
			return !p.Up || !l.Up || !l.Carrier || len(p.Addresses) == 0 || !v.stood(p)
		})
		if !b.Up {
			out = append(out, bridgeDown(v, b, pods)...)
			continue
		}
		for _, p := range pods {
			x := v.blockedPort(b, p, pods)
			if x == nil || v.hears(p) {
				continue
			}
			// A delay that costs nothing is nothing.
			if f := portBlocked(v, b, p, x); !x.passing || len(f.Unseen) == 0 {
				out = append(out, f)
			}
		}
		out = append(out, isolatedPorts(v, b, pods)...)
	}
	return out
}

// block is what keeps a port from passing frames.
type block struct {
	// title and why complete a sentence that begins with the port's name; shown
	// is the setting.
	title, why, shown string
	fix               []string
	// sure: a port of a pod cannot be meant to be so. passing: it ends by itself.
	sure, passing bool
}

// blockedPort finds the setting that blocks a pod's port; nil for none.
func (v *view) blockedPort(b *model.Link, p *model.Pod, pods []*model.Pod) *block {
	l := v.links[p.LinkIndex]
	if l.Port == nil {
		return nil
	}
	set := "bridge link set dev " + words.Quote(l.Name)
	stp := b.Bridge != nil && b.Bridge.STP
	switch {
	case l.Port.State == model.PortForwarding, l.Port.State == "":
	case stp && l.Port.Settling:
		return &block{title: "is " + string(l.Port.State) + ", and will forward soon", why: "STP's forward delay runs, as for every port that came up lately",
			shown: "state " + string(l.Port.State) + ", and the bridge runs STP; the forward delay runs", passing: true,
			fix: []string{"wait for the forward delay to end, at most a minute: bridge -d link show dev " + words.Quote(l.Name)}}
	case stp && l.Port.State != model.PortBlocking && l.Port.State != model.PortDisabled:
		return nil // A daemon's forward delay may run.
	case stp:
		return &block{title: "is " + string(l.Port.State) + " by STP", why: "STP keeps it " + string(l.Port.State) + ", as where it sees a loop",
			shown: "state " + string(l.Port.State) + ", and the bridge runs STP",
			fix:   []string{"find the loop: what beside " + words.PodName(p) + " connects " + words.Quote(l.Name) + " to " + words.Quote(b.Name) + ": bridge -d link show"}}
	default:
		return &block{title: "does not forward: its state is " + string(l.Port.State),
			why:   "it is in the state " + string(l.Port.State) + ", though the bridge runs no STP that could be about to change it",
			shown: "state " + string(l.Port.State) + ", and the bridge runs no STP", fix: []string{set + " state 3"}, sure: true}
	}
	if x := v.vlanBlock(b, p, pods); x != nil {
		return x
	}
	if !v.Has(model.SourceBridge) || slices.ContainsFunc(v.FDB, func(e model.FDBEntry) bool {
		return e.MAC == p.MAC && e.IfIndex == l.Index && !e.Local
	}) {
		return nil
	}
	switch {
	case l.Port.Locked:
		return &block{title: "is locked, and has no entry for its pod", why: "it is locked: only MACs with a forwarding entry may send, and the pod's has none",
			shown: "locked on; no forwarding entry for " + p.MAC.String(), fix: []string{set + " locked off"}}
	case !l.Port.Learning && !l.Port.Flood:
		return &block{title: "neither learns nor floods", why: "the bridge learns no MAC there and floods no unknown one to it, so that frames for the pod go nowhere",
			shown: "learning off, flood off; no forwarding entry for " + p.MAC.String(), fix: []string{set + " learning on flood on"}}
	}
	return nil
}

// vlanBlock finds a VLAN that keeps a port's untagged frames from the pod's gateway.
func (v *view) vlanBlock(b *model.Link, p *model.Pod, pods []*model.Pod) *block {
	l := v.links[p.LinkIndex]
	if b.VLANs == nil || l.VLANs == nil {
		return nil
	}
	own := l.VLANs.PVID
	// Of as many ports, those in the bridge's own VLAN count.
	all := []int{b.VLANs.PVID}
	for _, o := range pods {
		if x := v.links[o.LinkIndex]; x.VLANs != nil && x.VLANs.PVID != 0 && sharesGateway(o, p) {
			all = append(all, x.VLANs.PVID)
		}
	}
	want := commonest(all)
	onBridge := slices.ContainsFunc(p.Gateways, func(g model.Neighbor) bool { return b.Has(g.Addr) })
	switch {
	case own == want && (!onBridge || own == b.VLANs.PVID), own != 0 && !onBridge:
		return nil
	case own == want:
		return &block{title: fmt.Sprintf("is in VLAN %d, and %s is not", own, b.Name),
			why:   fmt.Sprintf("its frames are of VLAN %d, and %s, which has the gateway, takes VLAN %d for untagged frames", own, b.Name, b.VLANs.PVID),
			shown: fmt.Sprintf("PVID %d; that of %s: %d", own, b.Name, b.VLANs.PVID),
			fix:   []string{fmt.Sprintf("bridge vlan add dev %s vid %d pvid untagged self", words.Quote(b.Name), own)}}
	case own == 0:
		return &block{title: "has no VLAN for untagged frames", why: "it has no VLAN for untagged frames, and the bridge, which filters by VLAN, drops them",
			shown: fmt.Sprintf("no PVID; that of the others: %d", want),
			fix:   []string{fmt.Sprintf("bridge vlan add dev %s vid %d pvid untagged", words.Quote(l.Name), want)}}
	}
	return &block{title: fmt.Sprintf("is in VLAN %d, and its gateway in VLAN %d", own, want),
		why:   fmt.Sprintf("its frames are of VLAN %d, those of the gateway and of the pods that share it of VLAN %d", own, want),
		shown: fmt.Sprintf("PVID %d; that of the others: %d", own, want),
		fix: []string{fmt.Sprintf("bridge vlan add dev %s vid %d pvid untagged # and bridge vlan del dev %s vid %d, unless the pod is meant to be apart",
			words.Quote(l.Name), want, words.Quote(l.Name), own)}}
}

// sharesGateway reports whether two pods have a gateway in common.
func sharesGateway(a, b *model.Pod) bool {
	return slices.ContainsFunc(a.Gateways, func(g model.Neighbor) bool {
		return slices.ContainsFunc(b.Gateways, func(o model.Neighbor) bool { return o.Addr == g.Addr })
	})
}

func portBlocked(v *view, b *model.Link, p *model.Pod, x *block) finding {
	l, pods := v.links[p.LinkIndex], podAddrs(p)
	f := model.Finding{
		Confidence:   model.Proven,
		Pods:         pods,
		LastHopAlive: v.place(l.Name, model.Ingress),
		Title:        l.Name + " " + x.title,
		Why:          fmt.Sprintf("%s is the port of %s on %s: %s. No frame passes between the pod and the bridge.", l.Name, words.PodName(p), b.Name, x.why),
		Fix:          x.fix,
	}
	observe(&f, model.SourceLinks, "%s, a port of %s: %s", l.Name, b.Name, x.shown)
	if others := forwarding(v, b, l); others > 0 {
		observe(&f, model.SourceLinks, "%s of %s in the state forwarding", words.Count(uint64(others), "other port"), b.Name)
	}
	shown, packets := v.cutOff(p)
	f.Evidence, f.Packets = append(f.Evidence, shown...), packets
	if len(shown) == 0 {
		f.Unseen = append(f.Unseen, "a packet from or to the pod that was lost: there was none in the window")
		if !x.sure {
			f.Confidence, f.Severity = model.Possible, model.Warning
		}
	}
	if x.passing {
		f.Severity = model.Info
	}
	return finding{Finding: f, cutOff: pods, claims: stuckAtPort(pods)}
}

// stuckAtPort accounts for packets from and to pods whose ports pass nothing.
func stuckAtPort(pods []netip.Addr) func(*model.Drop) bool {
	waits := unresolvedFor(pods)
	return func(d *model.Drop) bool {
		mine := slices.Contains(pods, d.Src) || slices.Contains(pods, d.Dst)
		return mine && (waits(d) || d.NotBridged() || d.Location == "br_handle_frame")
	}
}

// forwarding is how many other ports of the bridge forward.
func forwarding(v *view, b, but *model.Link) int {
	n := 0
	for l := range model.Each(v.Links) {
		if l.Master == b.Index && l != but && l.Port != nil && l.Port.State == model.PortForwarding {
			n++
		}
	}
	return n
}

// bridgeDown is the finding on a bridge that was taken down with its pods' ports. The
// kernel keeps its IPv4 addresses, and adds their routes again when it is up.
func bridgeDown(v *view, b *model.Link, pods []*model.Pod) []finding {
	if len(pods) == 0 {
		return nil
	}
	f := model.Finding{
		Confidence:   model.Proven,
		LastHopAlive: v.place(pods[0].Link, model.Ingress),
		Title:        b.Name + " is down",
		Why: fmt.Sprintf("The bridge %s was taken down. Its ports, those of %s among them, pass nothing, and the node's routes by it are gone.",
			b.Name, words.Count(uint64(len(pods)), "pod")),
		Fix: []string{fmt.Sprintf("ip link set dev %s up", words.Quote(b.Name))},
	}
	for _, p := range pods {
		f.Pods = append(f.Pods, podAddrs(p)...)
		for g := range model.Each(p.Gateways) {
			fix := fmt.Sprintf("ip -6 addr add %s/%d dev %s", g.Addr, gatewayBits(pods, g.Addr), words.Quote(b.Name))
			// The kernel takes IPv6 addresses from a link that goes down.
			if g.Addr.Is6() && !g.Addr.IsLinkLocalUnicast() && !v.nodeAddrs[g.Addr] && v.podOnly(b) && !slices.Contains(f.Fix, fix) {
				f.Fix = append(f.Fix, fix)
			}
		}
	}
	lost := leftAlone(v, b, f.Pods)
	waits := stuckAtPort(f.Pods)
	observe(&f, model.SourceLinks, "%s is down", b.Name)
	f.Packets = v.dropped(func(d *model.Drop) bool { return lost(d) || waits(d) })
	if f.Packets > 0 {
		observe(&f, model.SourceDrops, "%s from or to these pods freed", words.Count(f.Packets, "packet"))
	} else {
		f.Unseen = append(f.Unseen, "a packet that was lost")
	}
	return []finding{{Finding: f, cutOff: f.Pods, claims: func(d *model.Drop) bool { return lost(d) || waits(d) }}}
}

// isolatedPorts is the finding on pods that ask each other in vain since their ports
// are isolated. Isolation alone may be meant: a port that only the gateway may be
// reached by.
func isolatedPorts(v *view, b *model.Link, pods []*model.Pod) []finding {
	isolated := map[netip.Addr]*model.Pod{}
	alone := func(p *model.Pod) bool {
		l := v.links[p.LinkIndex]
		return l.Port != nil && l.Port.Isolated
	}
	for _, p := range pods {
		if alone(p) {
			for _, a := range podAddrs(p) {
				isolated[a] = p
			}
		}
	}
	between := func(d *model.Drop) bool {
		from, to := isolated[d.Src], isolated[d.Dst]
		return from != nil && to != nil && from != to && (d.NeighborFailed() || d.NotBridged())
	}
	var l lost
	for d := range model.Each(v.Traffic.Drops) {
		if between(d) && !v.explained(d) {
			l.addFor(d.Src, d)
			l.pods[d.Dst] = true
		}
	}
	asked := resolutions(v)
	var shown []model.Evidence
	for _, a := range sorted(isolated) {
		for _, p := range pods {
			t := asked[question{p.LinkIndex, a}]
			if isolated[a] == p || !alone(p) || t.requests < minDrops || t.replies > 0 {
				continue
			}
			shown = append(shown, seen(model.SourceTC, "%s ingress: %s for %s; egress: no reply", p.Link, words.Count(t.requests, words.Request(a)), a))
			if l.pods == nil {
				l.pods = map[netip.Addr]bool{}
			}
			l.pods[a] = true
			for _, own := range sameFamily(podAddrs(p), a) {
				l.pods[own] = true
			}
		}
	}
	if len(shown) == 0 && l.packets < minDrops {
		return nil
	}
	f := l.finding()
	// Each is another's far end, and what they exchange with others passes.
	f.Severity, f.Peers = model.Warning, hosts(f.Pods)
	ports, all := map[string]bool{}, len(isolated) > 0
	for a := range l.pods {
		ports[isolated[a].Link] = true
	}
	for _, p := range pods {
		all = all && alone(p)
	}
	f.LastHopAlive = v.place(isolated[f.Pods[0]].Link, model.Ingress)
	f.Title = fmt.Sprintf("%s keeps %s apart", b.Name, words.Addrs(f.Pods))
	f.Why = fmt.Sprintf("The ports of %s on %s are isolated: the bridge forwards nothing from one to another. They reach all others.", words.Addrs(f.Pods), b.Name)
	for _, p := range pods {
		if ports[p.Link] {
			observe(&f, model.SourceLinks, "%s, a port of %s: isolated on", p.Link, b.Name)
			f.Fix = append(f.Fix, fmt.Sprintf("bridge link set dev %s isolated off # unless these pods are meant to be kept apart", words.Quote(p.Link)))
		}
	}
	if all {
		f.Alternatives = append(f.Alternatives, "it is meant: the ports of all pods are isolated")
	} else {
		f.Alternatives = append(f.Alternatives, "it is meant: these pods are to be kept apart")
	}
	f.Evidence = append(f.Evidence, shown...)
	if l.packets > 0 {
		f.Evidence = append(f.Evidence, l.evidence()...)
	}
	return []finding{{Finding: f, claims: between}}
}
