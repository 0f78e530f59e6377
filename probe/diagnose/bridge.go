package diagnose

import (
	"net/netip"
	"slices"
	"time"

	"github.com/lasthop/lasthop/probe/model"
	"github.com/lasthop/lasthop/probe/words"
)

// bridgePods are the running pods whose links are ports of a bridge.
func (v *view) bridgePods(b *model.Link) []*model.Pod {
	var out []*model.Pod
	for p := range model.Each(v.Pods) {
		if v.bridgeOf(p) == b {
			out = append(out, p)
		}
	}
	return out
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
	const lately = 3 * time.Second
	return slices.ContainsFunc(p.Addresses, func(a netip.Prefix) bool {
		h := v.hop(a.Addr(), p.LinkIndex, model.Egress, model.AsDestination)
		return h != nil && h.Packets > 0 && (h.Last.IsZero() || v.Window.End.Sub(h.Last) < lately)
	})
}

// cutOff is what was seen of a pod that exchanges no packet with its bridge: its
// requests for MACs without a reply, and packets that waited for its MAC or for
// that of its next hop. None: nothing was lost, or the pod hears somebody.
func (v *view) cutOff(p *model.Pod) (shown []model.Evidence, packets uint64) {
	if v.hears(p) {
		return nil, 0
	}
	var t talk
	for q, n := range resolutions(v) {
		if q.ifindex == p.LinkIndex {
			t.requests += n.requests
			t.replies += n.replies
		}
	}
	if t.requests >= minDrops && t.replies == 0 {
		shown = append(shown, seen(model.SourceTC, "%s ingress: %s for MACs; egress: no reply", p.Link, words.Count(t.requests, "request")))
	}
	if packets = v.dropped(unresolvedFor(podAddrs(p))); packets >= minDrops {
		shown = append(shown, seen(model.SourceDrops, "%s from or to the pod dropped: neighbour resolution failed", words.Count(packets, "packet")))
	}
	return shown, packets
}

// unresolvedFor accounts for packets from or to the addresses that waited for a MAC
// in vain.
func unresolvedFor(pods []netip.Addr) func(*model.Drop) bool {
	return func(d *model.Drop) bool {
		return d.NeighborFailed() && (slices.Contains(pods, d.Src) || slices.Contains(pods, d.Dst))
	}
}

// commonest is the value that most of the list have, the first of several; the
// zero value for an empty list.
func commonest[T comparable](list []T) (best T) {
	n := map[T]int{}
	for _, x := range list {
		n[x]++
	}
	for _, x := range list {
		if n[x] > n[best] {
			best = x
		}
	}
	return best
}
