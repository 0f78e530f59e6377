package diagnose

import (
	"fmt"
	"net/netip"
	"slices"

	"github.com/lasthop/lasthop/probe/model"
	"github.com/lasthop/lasthop/probe/path"
	"github.com/lasthop/lasthop/probe/words"
)

// BridgeAddress is the code of this finding.
const BridgeAddress model.Code = "BridgeAddress"

var bridgeAddress = kind{
	code:     BridgeAddress,
	severity: model.Critical,
	find:     needing(findBridgeAddress, model.SourceLinks, model.SourcePods, model.SourceRoutes),
	ends:     []model.HopKind{model.HopPod, model.HopNeighbor, model.HopBridge, model.HopRoute},
}

func findBridgeAddress(v *view) []finding {
	var out []finding
	for b := range model.Each(v.Links) {
		if b.Kind != "bridge" || !b.Up {
			continue
		}
		byGateway := map[netip.Addr][]*model.Pod{}
		for _, p := range v.bridgePods(b) {
			for g := range model.Each(p.Gateways) {
				if v.stood(p) && p.Up && g.Addr.IsValid() && !v.nodeAddrs[g.Addr] && len(v.pods[g.Addr]) == 0 {
					byGateway[g.Addr] = append(byGateway[g.Addr], p)
				}
			}
		}
		for _, g := range sorted(byGateway) {
			out = append(out, gatewayGone(v, b, g, byGateway[g])...)
		}
	}
	return out
}

// gatewayGone is the finding on a bridge that lacks its pods' gateway. The gateway
// was the bridge's own if pods still have the bridge's MAC for it, or nobody but
// pods is behind a port of the bridge.
func gatewayGone(v *view, b *model.Link, gateway netip.Addr, pods []*model.Pod) []finding {
	var was []*model.Pod
	for _, p := range pods {
		for g := range model.Each(p.Gateways) {
			switch {
			case g.Addr != gateway || !path.Resolved(g):
			case g.MAC == b.MAC:
				was = append(was, p)
			case g.State == "REACHABLE" || g.State == "PERMANENT":
				return nil // Somebody else has it.
			}
		}
	}
	if len(was) == 0 && (!v.podOnly(b) || within(b, gateway)) {
		return nil
	}
	var f model.Finding
	asked, requests := resolutions(v), uint64(0)
	for _, p := range pods {
		t := asked[question{p.LinkIndex, gateway}]
		if t.replies > 0 {
			return nil
		}
		requests += t.requests
		f.Pods = append(f.Pods, sameFamily(podAddrs(p), gateway)...)
	}
	if len(f.Pods) == 0 {
		return nil
	}
	bits := gatewayBits(pods, gateway)
	lost := leftAlone(v, b, f.Pods)
	f.Confidence = model.Proven
	f.LastHopAlive = v.place(pods[0].Link, model.Ingress)
	f.Title = fmt.Sprintf("%s has lost its pods' gateway %s", b.Name, gateway)
	f.Why = fmt.Sprintf("%s of %s have the gateway %s, which no link of the node and no pod has. They reach nobody beyond the bridge.",
		words.Count(uint64(len(pods)), "pod"), b.Name, gateway)
	f.Packets = v.dropped(lost)
	observe(&f, model.SourceLinks, "%s: %s", b.Name, addressesOf(b))
	observe(&f, model.SourcePods, "the gateway of %s is %s", words.Addrs(f.Pods), gateway)
	if len(was) > 0 {
		observe(&f, model.SourcePods, "in %s, neighbour %s still has the MAC of %s", words.PodName(was[0]), gateway, b.Name)
	}
	if r := v.lookup(f.Pods[0]); r == nil || r.IfIndex != b.Index {
		text := "no route"
		if r != nil {
			text = v.routeText(r)
		}
		observe(&f, model.SourceRoutes, "the node looks for %s by: %s", f.Pods[0], text)
	}
	if requests >= minDrops {
		observe(&f, model.SourceTC, "%s for %s from pods; no reply", words.Count(requests, words.Request(gateway)), gateway)
	}
	observeSome(&f, f.Packets, model.SourceDrops, "%s from or to these pods freed", words.Count(f.Packets, "packet"))
	if requests < minDrops && f.Packets < minDrops {
		stateAlone(&f, "a packet that was lost for want of the gateway",
			"the gateway is a machine or pod that is away, or the network is not meant to have one")
	}
	f.Fix = []string{fmt.Sprintf("%s addr add %s/%d dev %s", words.IP(gateway), gateway, bits, words.Quote(b.Name))}
	covered := netip.PrefixFrom(gateway, bits)
	for _, a := range f.Pods {
		if !covered.Contains(a) {
			f.Fix = append(f.Fix, fmt.Sprintf("%s route replace %s dev %s", words.IP(a), host(a), words.Quote(b.Name)))
		}
	}
	return []finding{{Finding: f, cutOff: f.Pods, claims: lost}}
}

// within reports whether a bridge has an address of its own in the gateway's network: then
// the gateway may be of something else.
func within(b *model.Link, gateway netip.Addr) bool {
	return slices.ContainsFunc(b.Addresses, func(x netip.Prefix) bool { return !x.IsSingleIP() && x.Contains(gateway) })
}

// leftAlone accounts for packets from and to pods whose bridge is no link of the
// node's routing any more.
func leftAlone(v *view, b *model.Link, pods []netip.Addr) func(*model.Drop) bool {
	return func(d *model.Drop) bool {
		from, to := slices.Contains(pods, d.Src), slices.Contains(pods, d.Dst)
		if from == to {
			return false
		}
		return d.NeighborFailed() || d.LookupRefused() || d.Expired() || d.OwnSource() || d.ReverseFiltered() ||
			to && v.nodeAddrs[d.Src] && d.Location == "ip_rcv_finish_core"
	}
}

// gatewayBits is the prefix length that most of the pods have for their gateway's
// network.
func gatewayBits(pods []*model.Pod, gateway netip.Addr) int {
	var bits []int
	for _, p := range pods {
		for _, a := range p.Addresses {
			if a.Contains(gateway) {
				bits = append(bits, a.Bits())
			}
		}
	}
	if len(bits) == 0 {
		return gateway.BitLen()
	}
	return commonest(bits)
}

func addressesOf(l *model.Link) string {
	if len(l.Addresses) == 0 {
		return "no address"
	}
	return words.Addrs(l.Addresses)
}
