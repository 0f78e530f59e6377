package bridge

import (
	"cmp"
	"net/netip"
	"slices"

	"github.com/lasthop/lasthop/probe/fault"
	"github.com/lasthop/lasthop/probe/model"
	"github.com/lasthop/lasthop/probe/node"
	"github.com/lasthop/lasthop/probe/path"
	"github.com/lasthop/lasthop/probe/words"
)

// Address reports bridges that lack the address that their pods take for their gateway.
var Address = fault.Kind{Code: "BridgeAddress", Severity: model.Critical, Find: findAddress,
	Needs:   fault.Sources{model.SourceLinks, model.SourcePods, model.SourceRoutes},
	Ends:    fault.Hops{model.HopPod, model.HopNeighbor, model.HopBridge, model.HopRoute},
	Objects: fault.Objects{"bridge.Name gateway"}}

func findAddress(v *fault.Input) {
	for b := range model.Each(v.Links) {
		if b.Kind != "bridge" || !b.Up {
			continue
		}
		byGateway := map[netip.Addr][]*model.Pod{}
		for _, p := range bridgePods(v.Index, b) {
			for g := range model.Each(p.Gateways) {
				if v.PresentWholeWindow(p) && p.Up && v.Own[g.Addr] == nil && len(v.Owners[g.Addr]) == 0 &&
					len(node.SameFamily(node.PodAddrs(p), g.Addr)) > 0 {
					byGateway[g.Addr] = append(byGateway[g.Addr], p)
				}
			}
		}
		for _, g := range node.Sorted(byGateway) {
			gatewayGone(v, b, g, byGateway[g])
		}
	}
}

// gatewayGone reports a bridge that lacks its pods' gateway. The gateway was the bridge's own if pods still
// have the bridge's MAC for it, or nobody but pods is behind a port of the bridge.
func gatewayGone(v *fault.Input, b *model.Link, gateway netip.Addr, pods []*model.Pod) {
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
	// And beside that of other pods, one in no network of the pods themselves is a wrong route in them.
	prefix := gatewayPrefix(pods, gateway)
	others := prefix.IsSingleIP() && slices.ContainsFunc(bridgePods(v.Index, b), func(p *model.Pod) bool {
		return slices.ContainsFunc(p.Gateways, func(g model.Neighbor) bool { return g.Addr.Is4() == gateway.Is4() && b.Has(g.Addr) })
	})
	if len(was) == 0 && (!podOnly(v.Index, b) || others || slices.ContainsFunc(b.Addresses, near)) {
		return
	}
	f := fault.Fault{Facts: words.Facts{"bridge": b, "gateway": gateway, "pods": pods, "was": cmp.Or(was...)}}
	asked, requests := v.Resolutions(model.Ingress), uint64(0)
	for _, p := range pods {
		t := asked[node.Question{Ifindex: p.LinkIndex, Addr: gateway}]
		if t.Replies > 0 {
			return
		}
		requests += t.Requests
		f.Pods = append(f.Pods, node.SameFamily(node.PodAddrs(p), gateway)...)
	}
	f.CutOff, f.Claims = f.Pods, lostWithoutGateway(f.Pods)
	f.LastHopAlive, f.Packets = v.Place(pods[0].Link, model.Ingress), v.Dropped(f.Claims)
	if r := v.Lookup(f.Pods[0]); r == nil {
		f.Facts["strays"] = true
	} else if r.IfIndex != b.Index {
		f.Facts["strays"], f.Facts["route"] = true, v.RouteText(r)
	}
	if requests >= node.MinDrops {
		f.Facts["requests"] = requests
	} else if f.Packets < node.MinDrops {
		f.StateAlone()
	}
	f.Facts["prefix"] = prefix
	f.Facts["uncovered"] = model.Hosts(slices.DeleteFunc(slices.Clone(f.Pods), prefix.Contains))
	v.Report(f)
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
