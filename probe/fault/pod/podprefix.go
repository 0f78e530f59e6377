package pod

import (
	"net/netip"
	"slices"

	"github.com/lasthop/lasthop/probe/fault"
	"github.com/lasthop/lasthop/probe/model"
	"github.com/lasthop/lasthop/probe/node"
	"github.com/lasthop/lasthop/probe/words"
)

// Prefix reports pods whose prefix length differs from that of the pods beside them.
var Prefix = fault.Kind{Code: "PodPrefix", Severity: model.Critical, Find: findPrefix,
	Rests: fault.Sources{model.SourceTC}, Ends: fault.Hops{model.HopPod}, Objects: fault.Objects{"pod.Link"}}

func findPrefix(v *fault.Input) {
	for _, p := range enterablePods(v.Index) {
		for _, a := range slices.Concat(node.OwnIn(p, false), node.OwnIn(p, true)) {
			if from, want := usualPrefix(v.Index, p, a); from != nil {
				wrongPrefix(v, p, a, want, from)
			}
		}
	}
}

// usualPrefix is the prefix that an address would have with the length that the bridge's and another pod's have
// or, without such an address of the bridge, with that of more pods than have any other; and a pod of that
// length. Nil where there is none, or the address has that length.
func usualPrefix(v *node.Index, p *model.Pod, a netip.Prefix) (*model.Pod, netip.Prefix) {
	isIPv6 := a.Addr().Is6()
	bits := func(o *model.Pod) int { return node.FirstIn(o, isIPv6).Bits() }
	others := slices.DeleteFunc(alike(v, p), func(o *model.Pod) bool { return !node.FirstIn(o, isIPv6).IsValid() })
	from, votes := model.Commonest(others, bits)
	if from == nil {
		return nil, netip.Prefix{}
	}
	want, own := bits(from), bridgePrefix(v, p, a.Addr())
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
func bridgePrefix(v *node.Index, p *model.Pod, a netip.Addr) netip.Prefix {
	b := v.BridgeOf(p)
	if b == nil {
		return netip.Prefix{}
	}
	return model.Find(b.Addresses, func(x netip.Prefix) bool {
		return x.Contains(a) && !x.IsSingleIP() && x.Addr().IsGlobalUnicast()
	})
}

func wrongPrefix(v *fault.Input, p *model.Pod, a, want netip.Prefix, from *model.Pod) {
	pod, wide := a.Addr(), a.Bits() < want.Bits()
	own := node.SameFamily(node.PodAddrs(p), pod)
	sends := func(from, to netip.Addr) bool {
		return slices.Contains(own, from) && a.Contains(to) != want.Contains(to)
	}
	missent := func(d *model.Drop) bool { return sends(d.Src, d.Dst) }
	asked := map[netip.Addr]bool{}
	var requests, drops uint64
	if wide {
		answered := false
		for q, t := range v.Resolutions(model.Ingress) {
			switch {
			case q.Ifindex != p.LinkIndex || !a.Contains(q.Addr) || want.Contains(q.Addr) || t.Requests < node.MinPackets:
			case t.Replies > 0:
				answered = true
			default:
				asked[q.Addr] = true
				requests += t.Requests
			}
		}
		// Where somebody answers (proxy_arp) nothing is lost.
		if !p.PrefixRoute(a) || answered && len(asked) == 0 {
			return
		}
		drops = v.Dropped(func(d *model.Drop) bool { return missent(d) && d.Is(model.NeighborFailed) })
	} else {
		// A pod of ptp asks its gateway for its neighbours too, whatever its prefix.
		if reachesOnLink(p, want) || !reachesOnLink(from, want) {
			return
		}
		drops = v.Dropped(func(d *model.Drop) bool { return missent(d) && v.Classifier.Lost(d) })
	}
	f := fault.Fault{
		Facts: words.Facts{
			"pod": p, "prefix": a, "want": want, "from": from, "usual": node.FirstIn(from, pod.Is6()), "wide": wide,
			"asked": node.Sorted(asked), "requests": requests, "drops": drops,
		},
		Claims: func(d *model.Drop) bool { return missent(d) && (d.Is(model.NeighborFailed) || !wide) },
		Silences: func(asker netip.Addr, asked netip.Prefix) bool {
			return sends(asker, asked.Addr()) || sends(asked.Addr(), asker)
		},
	}
	if !wide {
		f.CutOff = own // also from its gateway
	}
	f.Pods, f.Peers, f.Packets = own, model.Hosts(node.Sorted(asked)), drops
	f.LastHopAlive = model.Place{Link: p.Interface, Role: model.RolePod, Direction: model.Egress}
	if x := bridgePrefix(v.Index, p, pod); x.IsValid() {
		f.Facts["bridge"], f.Facts["own"] = v.BridgeOf(p), x
	}
	if drops < node.MinDrops && len(asked) == 0 {
		f.StateAlone()
	}
	f.TakeAfter(p, from, pod.Is6(), want)
	v.Report(f)
}

// reachesOnLink reports whether a pod looks for the whole of a network on its link.
func reachesOnLink(p *model.Pod, net netip.Prefix) bool {
	return slices.ContainsFunc(p.Routes, func(r model.Route) bool {
		return r.Dst.IsValid() && !r.Gateway.IsValid() && r.Dst.Bits() <= net.Bits() && r.Dst.Contains(net.Addr())
	})
}
