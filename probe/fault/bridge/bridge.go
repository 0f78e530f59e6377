// Package bridge finds faults of bridges: their ports, forwarding entries, addresses and ebtables rules.
package bridge

import (
	"net/netip"
	"slices"

	"github.com/lasthop/lasthop/probe/fault"
	"github.com/lasthop/lasthop/probe/model"
	"github.com/lasthop/lasthop/probe/node"
)

func bridgePods(v *node.Index, b *model.Link) []*model.Pod {
	return model.Chosen(v.Pods, func(p *model.Pod) bool { return v.BridgeOf(p) == b })
}

// podOnly reports whether every port of the bridge is a running pod's link, so that nobody else can be behind it.
func podOnly(v *node.Index, b *model.Link) bool {
	ofPods := model.Table(v.Pods, func(p *model.Pod) (int, bool) { return p.LinkIndex, true })
	return !slices.ContainsFunc(v.Links, func(l model.Link) bool { return l.Master == b.Index && !ofPods[l.Index] })
}

// receivesTraffic reports whether packets for addresses of the pod still left by its link at the end of
// the window, on whatever path they came.
func receivesTraffic(v *node.Index, p *model.Pod, addrs []netip.Addr) bool {
	return slices.ContainsFunc(addrs, func(a netip.Addr) bool {
		h := v.Hop(a, p.LinkIndex, model.Egress, model.AsDestination)
		return h != nil && h.Packets > 0 && v.Lately(h.Last)
	})
}

// addIsolation adds what was seen of a pod that exchanges no packet with its bridge: its requests for MACs without a
// reply, and packets that waited for its MAC or for that of its next hop. It reports whether there was any.
func addIsolation(v *fault.Input, f *fault.Fault, p *model.Pod) bool {
	t := v.Resolutions(model.Ingress)[node.Question{Ifindex: p.LinkIndex}]
	f.Packets = v.Dropped(unresolvedFor(node.PodAddrs(p)))
	asked, waited := t.InVain(), f.Packets >= node.MinDrops
	f.Facts["asked"], f.Facts["requests"], f.Facts["waited"] = asked, t.Requests, waited
	return asked || waited
}

// unresolvedFor accounts for packets from or to the addresses whose MAC was not resolved.
func unresolvedFor(pods []netip.Addr) func(*model.Drop) bool {
	return func(d *model.Drop) bool { return d.Is(model.NeighborFailed) && d.FromOrTo(pods) }
}
