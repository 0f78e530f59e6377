package diagnose

import (
	"fmt"
	"net/netip"
	"slices"

	"github.com/lasthop/lasthop/probe/model"
)

// PodLinkDown is the code of this finding.
const PodLinkDown model.Code = "PodLinkDown"

var podLinkDown = kind{
	page: Page{
		Code:     PodLinkDown,
		Severity: model.Critical,
		Title:    "a living pod's link is down at one of its ends",
		Meaning: "A pod hangs on a pair of interfaces, one in its namespace and one on the node. When either is down, neither " +
			"passes a packet. The kernel takes the routes by that link along, so that packets for a routed pod may follow another " +
			"route, out of the node again or in a circle; a bridge forgets the port and floods.",
		Evidence: "the state of both ends; QDISC_DROP or NEIGH_FAILED drops of the pod's packets.",
		Fix:      "ip link set dev LINK up, on the side that is down, and the routes that went with it; or delete the pod.",
	},
	find: findPodLinkDown,
	explains: []model.Code{MissingPodRoute, RoutingLoop, BlackholeRoute, MissingDefaultRoute, ReversePathFilter, PathMTU,
		WrongGatewayMAC, BridgeRuleDrop, StaleNeighbor, HairpinDrop, UnansweredARP, ConntrackRace, PolicyDrop, BPFDrop,
		NoListener, ReceiveOverflow},
	ends: []model.HopKind{model.HopLink, model.HopPod, model.HopRoute}, // the link's route goes with it
}

func findPodLinkDown(v *view) []finding {
	if !v.Has(model.SourceLinks, model.SourcePods) {
		return nil
	}
	var out []finding
	for p := range each(v.Pods) {
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
		f.Why = fmt.Sprintf("The host side of %s's link, %s, was taken down.", podName(p), l.Name)
		f.Fix = append([]string{raise(l)}, lostRoutes(v, p, pods)...)
	case !p.Up:
		f.Title = l.Name + " has no peer up"
		f.Why = fmt.Sprintf("The pod's own interface %s was taken down, so that %s on the node has no carrier.", p.Interface, l.Name)
		f.Fix = []string{fmt.Sprintf("%sip link set dev %s up # its default route went with it", inside(p), shellWord(p.Interface))}
	default:
		f.Title = l.Name + " has no carrier"
		f.Why = fmt.Sprintf("Both ends of %s's link are set up, and %s has no carrier.", podName(p), l.Name)
		f.Confidence = model.Likely
		f.Unseen = []string{"why there is no carrier"}
		f.Fix = []string{"ip -d link show dev " + shellWord(l.Name)}
	}
	if f.Packets > 0 {
		observe(&f, model.SourceDrops, "%s for the pod freed", count(f.Packets, "packet"))
	} else {
		f.Unseen = append(f.Unseen, "a packet that was dropped at the link")
	}
	return finding{Finding: f, explains: lost}
}

// routedTo are the addresses that no pod has and that the node sends by this
// link: an interface that is down has lost its IPv6 addresses, and the routes
// to them are still there.
func routedTo(v *view, l *model.Link) []netip.Addr {
	var out []netip.Addr
	for r := range each(v.Routes) {
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

// lostRoutes are the commands for the routes that a routed pod's link took
// along when it went down.
func lostRoutes(v *view, p *model.Pod, pods []netip.Addr) []string {
	if !v.routed(p) || !v.Has(model.SourceRoutes) {
		return nil
	}
	var fix []string
	for _, a := range pods {
		if r := v.lookup(a); r == nil || r.IfIndex != p.LinkIndex {
			fix = append(fix, fmt.Sprintf("%s route replace %s dev %s", ip(a), host(a), shellWord(p.Link)))
		}
	}
	return fix
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
