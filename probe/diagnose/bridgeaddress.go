package diagnose

import (
	"cmp"
	"net/netip"
	"slices"

	"github.com/lasthop/lasthop/probe/model"
	"github.com/lasthop/lasthop/probe/path"
)

func findBridgeAddress(v *view) {
	for b := range model.Each(v.Links) {
		if b.Kind != "bridge" || !b.Up {
			continue
		}
		byGateway := map[netip.Addr][]*model.Pod{}
		for _, p := range v.bridgePods(b) {
			for g := range model.Each(p.Gateways) {
				if v.presentWholeWindow(p) && p.Up && !v.nodeAddrs[g.Addr] && len(v.Owners[g.Addr]) == 0 &&
					len(sameFamily(podAddrs(p), g.Addr)) > 0 {
					byGateway[g.Addr] = append(byGateway[g.Addr], p)
				}
			}
		}
		for _, g := range sorted(byGateway) {
			gatewayGone(v, b, g, byGateway[g])
		}
	}
}

// gatewayGone reports a bridge that lacks its pods' gateway. The gateway was the bridge's own if pods still
// have the bridge's MAC for it, or nobody but pods is behind a port of the bridge.
func gatewayGone(v *view, b *model.Link, gateway netip.Addr, pods []*model.Pod) {
	var was []*model.Pod
	for _, p := range pods {
		for g := range model.Each(p.Gateways) {
			switch {
			case g.Addr != gateway || !path.Resolved(g):
			case g.MAC == b.MAC:
				was = append(was, p)
			case g.State == "REACHABLE" || g.State == "PERMANENT":
				return // Somebody else has it.
			}
		}
	}
	// Beside an address of the bridge in its network, the gateway may be of something else.
	near := func(x netip.Prefix) bool { return !x.IsSingleIP() && x.Contains(gateway) }
	if len(was) == 0 && (!v.podOnly(b) || slices.ContainsFunc(b.Addresses, near)) {
		return
	}
	f := finding{facts: facts{"bridge": b, "gateway": gateway, "pods": pods, "was": cmp.Or(was...)}}
	asked, requests := v.resolutions(model.Ingress), uint64(0)
	for _, p := range pods {
		t := asked[question{p.LinkIndex, gateway}]
		if t.replies > 0 {
			return
		}
		requests += t.requests
		f.Pods = append(f.Pods, sameFamily(podAddrs(p), gateway)...)
	}
	f.cutOff, f.claims = f.Pods, lostWithoutGateway(f.Pods)
	f.LastHopAlive, f.Packets = v.place(pods[0].Link, model.Ingress), v.dropped(f.claims)
	if r := v.lookup(f.Pods[0]); r == nil {
		f.facts["strays"] = true
	} else if r.IfIndex != b.Index {
		f.facts["strays"], f.facts["route"] = true, v.routeText(r)
	}
	if requests >= minDrops {
		f.facts["requests"] = requests
	} else if f.Packets < minDrops {
		f.stateAlone()
	}
	prefix := gatewayPrefix(pods, gateway)
	f.facts["prefix"] = prefix
	f.facts["uncovered"] = model.Hosts(slices.DeleteFunc(slices.Clone(f.Pods), prefix.Contains))
	v.report(f)
}

// lostWithoutGateway accounts for packets from and to pods whose bridge is no link of the node's routing any more.
func lostWithoutGateway(pods []netip.Addr) func(*model.Drop) bool {
	return func(d *model.Drop) bool {
		return slices.Contains(pods, d.Src) != slices.Contains(pods, d.Dst) &&
			d.Is(model.NeighborFailed|model.LookupRefused|model.Expired|model.OwnSource|model.ReverseFiltered)
	}
}

// gatewayPrefix is a gateway with the prefix length that most of its pods have for its network.
func gatewayPrefix(pods []*model.Pod, gateway netip.Addr) netip.Prefix {
	all := model.Flat(pods, func(p *model.Pod) []netip.Prefix { return p.Addresses })
	all = slices.DeleteFunc(append(all, model.Host(gateway)), func(a netip.Prefix) bool { return !a.Contains(gateway) })
	most, _ := model.Commonest(all, netip.Prefix.Bits)
	return netip.PrefixFrom(gateway, most.Bits())
}
