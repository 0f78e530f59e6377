package diagnose

import (
	"net/netip"
	"slices"

	"github.com/lasthop/lasthop/probe/model"
)

// bridgePods are the running pods whose links are ports of a bridge.
func (v *view) bridgePods(b *model.Link) []*model.Pod {
	return chosen(v.Pods, func(p *model.Pod) bool { return v.bridgeOf(p) == b })
}

// podOnly reports whether every port of the bridge is a running pod's link, so that
// nobody else can be behind it.
func (v *view) podOnly(b *model.Link) bool {
	ofPods := map[int]bool{}
	for p := range model.Each(v.Pods) {
		ofPods[p.LinkIndex] = true
	}
	return !slices.ContainsFunc(v.Links, func(l model.Link) bool { return l.Master == b.Index && !ofPods[l.Index] })
}

// hears reports whether packets for the pod still left by its link at the end of
// the window, on whatever path they came.
func (v *view) hears(p *model.Pod) bool {
	return slices.ContainsFunc(p.Addresses, func(a netip.Prefix) bool {
		h := v.hop(a.Addr(), p.LinkIndex, model.Egress, model.AsDestination)
		return h != nil && h.Packets > 0 && v.lately(h.Last)
	})
}

// addIsolation adds what was seen of a pod that exchanges no packet with its bridge: its
// requests for MACs without a reply, and packets that waited for its MAC or for that of its
// next hop. It reports whether there was any.
func (v *view) addIsolation(f *finding, p *model.Pod) bool {
	t := v.resolutions(model.Ingress)[question{ifindex: p.LinkIndex}]
	f.Packets = v.dropped(unresolvedFor(podAddrs(p)))
	asked, waited := t.inVain(), f.Packets >= minDrops
	f.facts["asked"], f.facts["requests"], f.facts["waited"] = asked, t.requests, waited
	return asked || waited
}

// unresolvedFor accounts for packets from or to the addresses that waited for a MAC
// in vain.
func unresolvedFor(pods []netip.Addr) func(*model.Drop) bool {
	return func(d *model.Drop) bool { return d.NeighborFailed() && fromOrTo(pods, d) }
}

// commonest is the first element of a list of the shape that most of it have, and how many
// have that; the zero value for an empty list.
func commonest[E any, K comparable](list []E, shape func(E) K) (best E, votes int) {
	n := map[K]int{}
	for _, e := range list {
		n[shape(e)]++
	}
	for _, e := range list {
		if x := n[shape(e)]; x > votes {
			best, votes = e, x
		}
	}
	return best, votes
}
