package diagnose

import (
	"fmt"
	"net/netip"
	"slices"

	"github.com/lasthop/lasthop/probe/model"
	"github.com/lasthop/lasthop/probe/words"
)

// PodLinkDown is the code of this finding.
const PodLinkDown model.Code = "PodLinkDown"

var podLinkDown = kind{
	code:     PodLinkDown,
	severity: model.Critical,
	find:     needing(findPodLinkDown, model.SourceLinks, model.SourcePods),
	ends:     []model.HopKind{model.HopLink, model.HopPod, model.HopRoute}, // the link's route goes with it
}

func findPodLinkDown(v *view) []finding {
	var out []finding
	for p := range model.Each(v.Pods) {
		l := v.links[p.LinkIndex]
		// A pod that is being made has its link up last, one that is being
		// deleted loses its link as a whole.
		if l == nil || !v.stood(p) || l.Up && p.Up && l.Carrier {
			continue
		}
		// An address that another living pod has is not lost with this one.
		var pods []netip.Addr
		for _, a := range podAddrs(p) {
			if len(v.pods[a]) == 1 {
				pods = append(pods, a)
			}
		}
		if !p.Up {
			pods = append(pods, routedTo(v, l)...)
		}
		if len(pods) > 0 {
			out = append(out, linkDown(v, p, l, pods))
		}
	}
	return out
}

func linkDown(v *view, p *model.Pod, l *model.Link, pods []netip.Addr) finding {
	lost := func(d *model.Drop) bool {
		return slices.Contains(pods, d.Dst) || slices.Contains(pods, d.Src) || hadAddress(v, p, d)
	}
	f := model.Finding{
		Confidence:   model.Proven,
		Pods:         pods,
		LastHopAlive: model.Place{Link: l.Name, Role: model.RolePodLink, Direction: model.Egress},
		Packets:      v.dropped(func(d *model.Drop) bool { return slices.Contains(pods, d.Dst) }),
		Evidence: []model.Evidence{
			seen(model.SourceLinks, "%s is %s, %s", l.Name, upDown(l.Up), carrier(l.Carrier)),
			seen(model.SourcePods, "its other end, %s in the pod, is %s", p.Interface, upDown(p.Up)),
		},
	}
	switch {
	case !l.Up:
		f.Title = l.Name + " is down"
		f.Why = fmt.Sprintf("The host side of %s's link, %s, was taken down.", words.PodName(p), l.Name)
		f.Fix = append([]string{raise(l)}, lostRoutes(v, p, pods)...)
		if !p.Up {
			f.Fix = append(f.Fix, revive(v, p, pods)...)
		}
	case !p.Up:
		f.Title = "the peer interface of " + l.Name + " is down"
		f.Why = fmt.Sprintf("The pod's own interface %s was taken down, so that %s on the node has no carrier.", p.Interface, l.Name)
		f.Fix = revive(v, p, pods)
	default:
		f.Title = l.Name + " has no carrier"
		f.Why = fmt.Sprintf("Both ends of %s's link are set up, and %s has no carrier.", words.PodName(p), l.Name)
		f.Confidence = model.Likely
		f.Unseen = []string{"why there is no carrier"}
		f.Fix = []string{"ip -d link show dev " + words.Quote(l.Name)}
	}
	if f.Packets > 0 {
		observe(&f, model.SourceDrops, "%s for the pod dropped", words.Count(f.Packets, "packet"))
	} else {
		f.Unseen = append(f.Unseen, "a packet that was dropped at the link")
	}
	return finding{Finding: f, claims: lost, silences: silencesAll(f.Pods)}
}

// routedTo are the addresses that no pod has and that the node sends by this
// link: an interface that is down has lost its IPv6 addresses, and the routes
// to them are still there.
func routedTo(v *view, l *model.Link) []netip.Addr {
	var out []netip.Addr
	for r := range model.Each(v.Routes) {
		a := r.Dst.Addr()
		if r.IfIndex == l.Index && r.Table == mainTable && r.Type == "unicast" && r.Dst.IsSingleIP() && len(v.pods[a]) == 0 &&
			!v.nodeAddrs[a] && !slices.Contains(out, a) {
			out = append(out, a)
		}
	}
	return out
}

// hadAddress reports whether a drop is for an IPv6 address that the pod may have
// had: its interface is down and has none any more, and nobody else has this one.
func hadAddress(v *view, p *model.Pod, d *model.Drop) bool {
	if p.Up || !d.Dst.Is6() || !d.NeighborFailed() || len(v.pods[d.Dst]) > 0 || !inAny(v.ranges.local, d.Dst) {
		return false
	}
	return !slices.ContainsFunc(podAddrs(p), netip.Addr.Is6)
}

// lostRoutes are the commands for what a routed pod's link took along when it went
// down: the routes to the pod, and the IPv6 addresses that other pods' links have
// too, such as the gateway's.
func lostRoutes(v *view, p *model.Pod, pods []netip.Addr) []string {
	if !v.routed(p) || !v.Has(model.SourceRoutes) {
		return nil
	}
	var fix []string
	for _, o := range siblings(v, p) {
		for _, a := range v.links[o.LinkIndex].Addresses {
			add := fmt.Sprintf("ip -6 addr add %s dev %s", a, words.Quote(p.Link))
			if a.Addr().Is6() && a.IsSingleIP() && a.Addr().IsGlobalUnicast() && !v.links[p.LinkIndex].Has(a.Addr()) && !slices.Contains(fix, add) {
				fix = append(fix, add)
			}
		}
	}
	for _, a := range pods {
		if r := v.lookup(a); r == nil || r.IfIndex != p.LinkIndex {
			fix = append(fix, fmt.Sprintf("%s route replace %s dev %s", words.IP(a), host(a), words.Quote(p.Link)))
		}
	}
	return fix
}

// siblings are the other pods that are connected as this one is and are up: by
// links of their own, or as ports of the same bridge.
func siblings(v *view, p *model.Pod) []*model.Pod {
	var out []*model.Pod
	for o := range model.Each(v.Pods) {
		l := v.links[o.LinkIndex]
		if o != p && l != nil && l.Up && o.Up && len(o.Gateways) > 0 && l.Master == v.links[p.LinkIndex].Master {
			out = append(out, o)
		}
	}
	return out
}

// revive are the commands that bring a pod's own interface up, with what it lost when
// it went down: its routes, which are as those of the next pod, and its IPv6
// addresses, where the node still has routes to them.
func revive(v *view, p *model.Pod, pods []netip.Addr) []string {
	in, dev := words.Inside(p), words.Quote(p.Interface)
	fix := []string{fmt.Sprintf("%sip link set dev %s up", in, dev)}
	like := siblings(v, p)
	if len(like) == 0 {
		fix[0] += " # its default route went with it, and perhaps an IPv6 address: add them, or delete the pod"
		return fix
	}
	o := like[0]
	i := slices.IndexFunc(o.Addresses, func(a netip.Prefix) bool { return a.Addr().Is6() && a.Addr().IsGlobalUnicast() })
	if i >= 0 && !slices.ContainsFunc(podAddrs(p), netip.Addr.Is6) {
		at := slices.IndexFunc(pods, netip.Addr.Is6)
		if at < 0 {
			fix[0] += " # its IPv6 address went with it, and nothing on the node holds it: rather delete the pod"
		} else {
			fix = append(fix, fmt.Sprintf("%sip -6 addr add %s/%d dev %s nodad", in, pods[at], o.Addresses[i].Bits(), dev))
		}
	}
	// A gateway needs the route to it.
	var direct, via []string
	for r := range model.Each(o.Routes) {
		if r.Type != "unicast" || r.Protocol == "kernel" || r.Link != "" && r.Link != o.Interface || len(r.NextHops) > 0 || o.Has(r.Dst.Addr()) ||
			slices.ContainsFunc(p.Routes, func(x model.Route) bool { return x.Dst == r.Dst }) {
			continue
		}
		dst := r.Dst.String()
		if r.Dst.Bits() == 0 {
			dst = "default"
		}
		text := fmt.Sprintf("%s%s route replace %s", in, words.IP(r.Dst.Addr()), dst)
		if r.Gateway.IsValid() {
			via = append(via, fmt.Sprintf("%s via %s dev %s", text, r.Gateway, dev))
		} else {
			direct = append(direct, fmt.Sprintf("%s dev %s scope link", text, dev))
		}
	}
	return slices.Concat(fix, direct, via)
}

func upDown(up bool) string {
	if up {
		return "up"
	}
	return "down"
}

func carrier(has bool) string {
	if has {
		return "with carrier"
	}
	return "without carrier"
}
