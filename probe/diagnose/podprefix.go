package diagnose

import (
	"fmt"
	"net/netip"
	"slices"

	"github.com/lasthop/lasthop/probe/model"
	"github.com/lasthop/lasthop/probe/words"
)

// PodPrefix is the code of this finding.
const PodPrefix model.Code = "PodPrefix"

var podPrefix = kind{
	code:     PodPrefix,
	severity: model.Critical,
	find:     findPodPrefix,
	ends:     []model.HopKind{model.HopPod},
}

func findPodPrefix(v *view) []finding {
	var out []finding
	for p := range v.enterablePods() {
		for _, a := range slices.Concat(ownIn(p, false), ownIn(p, true)) {
			if from, want := v.usualPrefix(p, a); from != nil {
				out = append(out, wrongPrefix(v, p, a, want, from)...)
			}
		}
	}
	return out
}

// usualPrefix is the prefix that an address would have with the length that the
// bridge's and another pod's have or, without such an address of the bridge, with
// that of more pods than have any other; and a pod of that length. Nil where there
// is none, or the address has that length.
func (v *view) usualPrefix(p *model.Pod, a netip.Prefix) (*model.Pod, netip.Prefix) {
	isIPv6 := a.Addr().Is6()
	bits := func(o *model.Pod) int { return firstIn(o, isIPv6).Bits() }
	others := slices.DeleteFunc(v.alike(p), func(o *model.Pod) bool { return !firstIn(o, isIPv6).IsValid() })
	from, votes := typicalPod(others, bits)
	if from == nil {
		return nil, netip.Prefix{}
	}
	want := bits(from)
	if own := v.bridgePrefix(p, a.Addr()); own.IsValid() {
		want = own.Bits()
	} else if votes <= len(others)-votes+1 {
		// The pod's own is a vote too.
		return nil, netip.Prefix{}
	}
	if want == a.Bits() {
		return nil, netip.Prefix{}
	}
	from = pattern(slices.DeleteFunc(others, func(o *model.Pod) bool { return bits(o) != want }), isIPv6)
	return from, netip.PrefixFrom(a.Addr(), want)
}

// bridgePrefix is the address of the pod's bridge with the network that holds an
// address of the pod.
func (v *view) bridgePrefix(p *model.Pod, a netip.Addr) netip.Prefix {
	if b := v.bridgeOf(p); b != nil {
		for _, x := range b.Addresses {
			if x.Contains(a) && !x.IsSingleIP() && x.Addr().IsGlobalUnicast() {
				return x
			}
		}
	}
	return netip.Prefix{}
}

func wrongPrefix(v *view, p *model.Pod, a, want netip.Prefix, from *model.Pod) []finding {
	isIPv6 := a.Addr().Is6()
	m := missent{asked: map[netip.Addr]talk{}}
	var harm string
	if a.Bits() < want.Bits() {
		if !prefixRoute(p, a) {
			return nil
		}
		m = v.askedBeyond(p, a, want)
		harm = fmt.Sprintf("it asks on its link for addresses of %s that are behind its gateway", a.Masked())
	} else {
		// A pod of ptp asks its gateway for its neighbours too, whatever its prefix.
		if reachesOnLink(p, want) || !reachesOnLink(from, want) {
			return nil
		}
		m = v.sentToGateway(p, a, want)
		harm = fmt.Sprintf("it does not look on its link for the other addresses of %s", want.Masked())
	}
	if m.answered {
		return nil
	}
	f := model.Finding{
		Confidence:   model.Proven,
		Pods:         []netip.Addr{a.Addr()},
		LastHopAlive: model.Place{Link: p.Interface, Role: model.RolePod, Direction: model.Egress},
		Title:        fmt.Sprintf("%s has %s, not /%d", words.PodName(p), a, want.Bits()),
		Why:          fmt.Sprintf("The pod's address has the prefix length %d, and that of the pods like it is %d: %s.", a.Bits(), want.Bits(), harm),
		Evidence: []model.Evidence{
			seen(model.SourcePods, "in the pod: %s on %s; %s: %s", a, p.Interface, words.PodName(from), ownIn(from, isIPv6)[0]),
		},
		Packets: m.drops,
	}
	if x := v.bridgePrefix(p, a.Addr()); x.IsValid() {
		observe(&f, model.SourceLinks, "%s has %s", v.bridgeOf(p).Name, x)
	}
	if list := sorted(m.asked); len(list) > 0 {
		f.Peers = hosts(list)
		var requests uint64
		for _, t := range m.asked {
			requests += t.requests
		}
		observe(&f, model.SourceTC, "%s ingress: %s for %s; egress: no reply", p.Link, words.Count(requests, words.Request(a.Addr())), words.Addrs(list))
	}
	observeSome(&f, m.drops, model.SourceDrops, "%s of the pod freed", words.Count(m.drops, "packet"))
	if m.drops < minDrops && len(m.asked) == 0 {
		stateAlone(&f, "a packet that was lost to it", "the pod is to have this prefix length")
	}
	f.Fix = prefixFix(p, from, a, want)
	return []finding{{Finding: f, cutOff: f.Pods, claims: func(d *model.Drop) bool {
		return d.Src == a.Addr() && a.Contains(d.Dst) != want.Contains(d.Dst) && (d.NeighborFailed() || m.gateway)
	}}}
}

// reachesOnLink reports whether a pod looks for the whole of a network on its link.
func reachesOnLink(p *model.Pod, net netip.Prefix) bool {
	return slices.ContainsFunc(p.Routes, func(r model.Route) bool {
		return r.Dst.IsValid() && !r.Gateway.IsValid() && r.Dst.Bits() <= net.Bits() && r.Dst.Contains(net.Addr())
	})
}

// missent is what a pod sent by its link, or to its gateway, and should not have.
type missent struct {
	// asked are addresses that it asked for in vain.
	asked    map[netip.Addr]talk
	drops    uint64
	gateway  bool
	answered bool
}

// askedBeyond sums up the requests for addresses that the pod takes for being on
// its link. Where somebody answers for them (proxy_arp) nothing is lost.
func (v *view) askedBeyond(p *model.Pod, a, want netip.Prefix) missent {
	m := missent{asked: map[netip.Addr]talk{}}
	for q, t := range resolutions(v) {
		if q.ifindex != p.LinkIndex || !a.Contains(q.addr) || want.Contains(q.addr) || t.requests < minPackets {
			continue
		}
		if t.replies > 0 {
			m.answered = true
			continue
		}
		m.asked[q.addr] = t
	}
	m.drops = v.dropped(func(d *model.Drop) bool {
		return d.Src == a.Addr() && a.Contains(d.Dst) && !want.Contains(d.Dst) && d.NeighborFailed()
	})
	m.answered = m.answered && len(m.asked) == 0
	return m
}

// sentToGateway sums up the drops of what the pod sent to its neighbours by way of
// the gateway.
func (v *view) sentToGateway(p *model.Pod, a, want netip.Prefix) missent {
	return missent{gateway: true, drops: v.dropped(func(d *model.Drop) bool {
		return d.Src == a.Addr() && want.Contains(d.Dst) && !a.Contains(d.Dst) && v.drops.Lost(d)
	})}
}

// prefixFix changes the prefix length and gives the pod the routes that it lacks.
// IPv4 keeps the routes by an address that stays under another length; IPv6 takes
// an address once, and keeps routes without one.
func prefixFix(p, from *model.Pod, a, want netip.Prefix) []string {
	isIPv6 := a.Addr().Is6()
	add := fmt.Sprintf("%sip addr add %s dev %s", words.Inside(p), want, words.Quote(p.Interface))
	var held []netip.Prefix
	if prefixRoute(from, ownIn(from, isIPv6)[0]) {
		held = append(held, want.Masked())
	} else if !want.IsSingleIP() {
		add += " noprefixroute"
	}
	fix := []string{add, fmt.Sprintf("%sip addr del %s dev %s", words.Inside(p), a, words.Quote(p.Interface))}
	if isIPv6 {
		slices.Reverse(fix)
	}
	return append(fix, copyRoutes(p, from, isIPv6, held...)...)
}
