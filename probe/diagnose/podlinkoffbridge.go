package diagnose

import (
	"fmt"
	"net/netip"
	"slices"

	"github.com/lasthop/lasthop/probe/model"
	"github.com/lasthop/lasthop/probe/words"
)

// PodLinkOffBridge is the code of this finding.
const PodLinkOffBridge model.Code = "PodLinkOffBridge"

var podLinkOffBridge = kind{
	code:     PodLinkOffBridge,
	severity: model.Critical,
	find:     needing(findPodLinkOffBridge, model.SourceLinks, model.SourcePods, model.SourceRoutes),
	ends:     []model.HopKind{model.HopLink, model.HopNeighbor, model.HopBridge, model.HopRoute, model.HopPod},
}

func findPodLinkOffBridge(v *view) []finding {
	var out []finding
	for p := range model.Each(v.Pods) {
		l := v.links[p.LinkIndex]
		if l == nil || !l.Up || !l.Carrier || !p.Up || !v.stood(p) || v.leadsOff(l) {
			continue
		}
		master := v.links[l.Master]
		if master != nil && master.Kind != "bridge" {
			continue
		}
		b, signs := v.bridgeMeant(p)
		if b == nil || b == master || v.hears(p) {
			continue
		}
		shown, packets := v.cutOff(p)
		if master != nil && len(shown) == 0 {
			continue // One bridge may be connected to the other.
		}
		out = append(out, offBridge(v, p, l, b, append(signs, shown...), packets, len(shown) > 0))
	}
	return out
}

// bridgeMeant is the bridge that a pod belongs to, and what shows it; nil where none
// does, or the node reaches the pod without one. The bridge has the pod's gateway,
// or pods on it have the same gateway and prefix as this one.
func (v *view) bridgeMeant(p *model.Pod) (*model.Link, []model.Evidence) {
	link := v.links[p.LinkIndex]
	for _, a := range p.Addresses {
		if a.IsSingleIP() || !a.Addr().IsGlobalUnicast() || len(v.pods[a.Addr()]) > 1 {
			continue
		}
		if r := v.lookup(a.Addr()); r != nil && r.IfIndex == link.Index {
			return nil, nil
		}
		for g := range model.Each(p.Gateways) {
			if g.Addr.Is4() != a.Addr().Is4() || !a.Contains(g.Addr) || link.Has(g.Addr) {
				continue
			}
			if b := v.bridgeWith(p, a, g.Addr); b != nil {
				return b, []model.Evidence{
					seen(model.SourcePods, "%s has %s and the gateway %s, as pods of %s have", words.PodName(p), a, g.Addr, b.Name),
				}
			}
		}
	}
	return nil, nil
}

// bridgeWith is the bridge that has the gateway for its own address, or that pods
// with the same gateway and prefix are on.
func (v *view) bridgeWith(p *model.Pod, a netip.Prefix, gateway netip.Addr) *model.Link {
	for b := range model.Each(v.Links) {
		if b.Kind == "bridge" && slices.ContainsFunc(b.Addresses, func(x netip.Prefix) bool {
			return x.Addr() == gateway && x.Contains(a.Addr()) && !x.IsSingleIP()
		}) {
			return b
		}
	}
	for o := range model.Each(v.Pods) {
		b := v.bridgeOf(o)
		if b == nil || o.LinkIndex == p.LinkIndex || !slices.ContainsFunc(o.Gateways, func(g model.Neighbor) bool { return g.Addr == gateway }) {
			continue
		}
		if slices.ContainsFunc(o.Addresses, func(x netip.Prefix) bool { return x.Masked() == a.Masked() }) {
			return b
		}
	}
	return nil
}

func offBridge(v *view, p *model.Pod, l, b *model.Link, shown []model.Evidence, packets uint64, confirmed bool) finding {
	pods := podAddrs(p)
	f := model.Finding{
		Confidence:   model.Proven,
		Pods:         pods,
		LastHopAlive: v.place(l.Name, model.Ingress),
		Title:        fmt.Sprintf("%s is no port of %s", l.Name, b.Name),
		Why: fmt.Sprintf("%s has an address of the range of %s, and its link %s is no port of that bridge: no frame passes between the two.",
			words.PodName(p), b.Name, l.Name),
		Packets: packets,
	}
	where := "no master"
	if l.Master != 0 {
		where = "master " + v.linkName(l.Master)
	}
	observe(&f, model.SourceLinks, "%s: %s; ports of %s: %d", l.Name, where, b.Name, len(v.bridgePods(b)))
	f.Evidence = append(f.Evidence, shown...)
	if r := v.lookup(pods[0]); r != nil {
		observe(&f, model.SourceRoutes, "the node looks for %s by: %s", pods[0], v.routeText(r))
	}
	if !confirmed {
		stateAlone(&f, "a packet from or to the pod that was lost: there was none in the window",
			"a program on the link takes the place of the bridge")
	}
	f.Fix = []string{fmt.Sprintf("ip link set dev %s master %s", words.Quote(l.Name), words.Quote(b.Name))}
	var hairpin []bool
	for _, o := range v.bridgePods(b) {
		hairpin = append(hairpin, v.links[o.LinkIndex].Hairpin)
	}
	if commonest(hairpin) {
		f.Fix = append(f.Fix, fmt.Sprintf("bridge link set dev %s hairpin on", words.Quote(l.Name)))
	}
	return finding{Finding: f, cutOff: pods, claims: func(d *model.Drop) bool {
		mine := slices.Contains(pods, d.Src) || slices.Contains(pods, d.Dst)
		return mine && (d.NeighborFailed() || d.ReverseFiltered() || d.OtherHost() || d.OwnSource())
	}}
}
