package diagnose

import (
	"net/netip"
	"slices"

	"github.com/lasthop/lasthop/probe/model"
)

func findPodPrefix(v *view) {
	for _, p := range v.enterablePods() {
		for _, a := range slices.Concat(ownIn(p, false), ownIn(p, true)) {
			if from, want := v.usualPrefix(p, a); from != nil {
				wrongPrefix(v, p, a, want, from)
			}
		}
	}
}

// usualPrefix is the prefix that an address would have with the length that the bridge's and another pod's have
// or, without such an address of the bridge, with that of more pods than have any other; and a pod of that
// length. Nil where there is none, or the address has that length.
func (v *index) usualPrefix(p *model.Pod, a netip.Prefix) (*model.Pod, netip.Prefix) {
	isIPv6 := a.Addr().Is6()
	bits := func(o *model.Pod) int { return firstIn(o, isIPv6).Bits() }
	others := slices.DeleteFunc(v.alike(p), func(o *model.Pod) bool { return !firstIn(o, isIPv6).IsValid() })
	from, votes := model.Commonest(others, bits)
	if from == nil {
		return nil, netip.Prefix{}
	}
	want, own := bits(from), v.bridgePrefix(p, a.Addr())
	if own.IsValid() {
		want = own.Bits()
	}
	// The pod's own is a vote too.
	if want == a.Bits() || !own.IsValid() && votes <= len(others)-votes+1 {
		return nil, netip.Prefix{}
	}
	from = pattern(slices.DeleteFunc(others, func(o *model.Pod) bool { return bits(o) != want }), isIPv6)
	return from, netip.PrefixFrom(a.Addr(), want)
}

// bridgePrefix is the address of the pod's bridge with the network that holds an address of the pod.
func (v *index) bridgePrefix(p *model.Pod, a netip.Addr) netip.Prefix {
	b := v.bridgeOf(p)
	if b == nil {
		return netip.Prefix{}
	}
	return model.Find(b.Addresses, func(x netip.Prefix) bool {
		return x.Contains(a) && !x.IsSingleIP() && x.Addr().IsGlobalUnicast()
	})
}

func wrongPrefix(v *view, p *model.Pod, a, want netip.Prefix, from *model.Pod) {
	pod, wide := a.Addr(), a.Bits() < want.Bits()
	own := sameFamily(podAddrs(p), pod)
	missent := func(d *model.Drop) bool {
		return slices.Contains(own, d.Src) && a.Contains(d.Dst) != want.Contains(d.Dst)
	}
	asked := map[netip.Addr]bool{}
	var requests, drops uint64
	if wide {
		answered := false
		for q, t := range v.resolutions(model.Ingress) {
			switch {
			case q.ifindex != p.LinkIndex || !a.Contains(q.addr) || want.Contains(q.addr) || t.requests < minPackets:
			case t.replies > 0:
				answered = true
			default:
				asked[q.addr] = true
				requests += t.requests
			}
		}
		// Where somebody answers (proxy_arp) nothing is lost.
		if !prefixRoute(p, a) || answered && len(asked) == 0 {
			return
		}
		drops = v.dropped(func(d *model.Drop) bool { return missent(d) && d.Is(model.NeighborFailed) })
	} else {
		// A pod of ptp asks its gateway for its neighbours too, whatever its prefix.
		if reachesOnLink(p, want) || !reachesOnLink(from, want) {
			return
		}
		drops = v.dropped(func(d *model.Drop) bool { return missent(d) && v.drops.Lost(d) })
	}
	f := finding{
		facts: facts{
			"pod": p, "prefix": a, "want": want, "from": from, "usual": firstIn(from, pod.Is6()), "wide": wide,
			"asked": sorted(asked), "requests": requests, "drops": drops,
		},
		cutOff: own,
		claims: func(d *model.Drop) bool { return missent(d) && (d.Is(model.NeighborFailed) || !wide) },
	}
	f.Pods, f.Peers, f.Packets = f.cutOff, model.Hosts(sorted(asked)), drops
	f.LastHopAlive = model.Place{Link: p.Interface, Role: model.RolePod, Direction: model.Egress}
	if x := v.bridgePrefix(p, pod); x.IsValid() {
		f.facts["bridge"], f.facts["own"] = v.bridgeOf(p), x
	}
	if drops < minDrops && len(asked) == 0 {
		f.stateAlone()
	}
	f.takeAfter(p, from, pod.Is6(), want)
	v.report(f)
}

// reachesOnLink reports whether a pod looks for the whole of a network on its link.
func reachesOnLink(p *model.Pod, net netip.Prefix) bool {
	return slices.ContainsFunc(p.Routes, func(r model.Route) bool {
		return r.Dst.IsValid() && !r.Gateway.IsValid() && r.Dst.Bits() <= net.Bits() && r.Dst.Contains(net.Addr())
	})
}
