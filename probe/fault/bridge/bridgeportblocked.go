package bridge

import (
	"net/netip"
	"slices"

	"github.com/lasthop/lasthop/probe/fault"
	"github.com/lasthop/lasthop/probe/model"
	"github.com/lasthop/lasthop/probe/node"
	"github.com/lasthop/lasthop/probe/words"
)

// PortBlocked reports ports that a bridge does not forward for: their state, isolation, VLANs, or the bridge itself is down.
var PortBlocked = fault.Kind{Code: "BridgePortBlocked", Severity: model.Critical, Find: findPortBlocked,
	Needs:   fault.Sources{model.SourceLinks, model.SourcePods},
	Ends:    fault.Hops{model.HopBridge, model.HopLink, model.HopNeighbor, model.HopPod},
	Objects: fault.Objects{"link.Name", "nic.Name", "bridge.Name"}}

func findPortBlocked(v *fault.Input) {
	for b := range model.Each(v.Links) {
		if b.Kind != "bridge" {
			continue
		}
		pods := slices.DeleteFunc(bridgePods(v.Index, b), func(p *model.Pod) bool {
			l := v.ByIndex[p.LinkIndex]
			return !p.Up || !l.Up || !l.Carrier || len(p.Addresses) == 0 || !v.PresentWholeWindow(p)
		})
		if !b.Up {
			bridgeDown(v, b, pods)
			continue
		}
		for _, p := range pods {
			x, addrs := blockedPort(v, b, p, pods), node.PodAddrs(p)
			if x == nil {
				x, addrs = unflooded(v, b, p)
			}
			// What gets out of a locked port says nothing of what comes in by it, and whoever has the MAC need not ask for it.
			if x != nil && (x["locked"] != nil || x["target"] != nil || !receivesTraffic(v.Index, p, addrs)) {
				portBlocked(v, b, p, addrs, x)
			}
		}
		isolatedPorts(v, b, pods)
		nicOffBridge(v, b)
	}
}

// blockedPort finds the setting that blocks a pod's port; nil for none.
func blockedPort(v *fault.Input, b *model.Link, p *model.Pod, pods []*model.Pod) words.Facts {
	l := v.ByIndex[p.LinkIndex]
	if l.Port == nil {
		return nil
	}
	if state := l.Port.State; state != model.PortForwarding && state != "" {
		switch stp := b.Bridge != nil && b.Bridge.STP; {
		case !stp:
			return words.Facts{"stuck": true}
		case l.Port.Settling:
			return words.Facts{"delay": true}
		case state != model.PortBlocking && state != model.PortDisabled:
			return nil // A daemon's forward delay may run.
		}
		return words.Facts{"stp": true}
	}
	if x := vlanBlock(v.Index, b, p, pods); x != nil {
		return x
	}
	known := model.First(v.FDB, func(e *model.FDBEntry) bool { return e.MAC == p.MAC && e.IfIndex == l.Index && !e.Local })
	switch {
	case !v.Has(model.SourceBridge) || known != nil:
		return nil
	case l.Port.Locked:
		return words.Facts{"locked": true}
	case !l.Port.Learning && !l.Port.Flood:
		return words.Facts{"deaf": true}
	case !l.Port.Flood && v.Dropped(strayFrom(p)) >= node.MinDrops:
		return words.Facts{"unlearnt": true}
	}
	return nil
}

// strayFrom accounts for frames for a pod that other hosts freed, while none left by the pod's port.
func strayFrom(p *model.Pod) func(*model.Drop) bool {
	return func(d *model.Drop) bool { return d.Is(model.OtherHost) && d.DstMAC == p.MAC }
}

// unflooded finds the setting that keeps the requests for a pod's MAC from its port, as they came to the bridge and did
// not leave there: those of ARP are broadcasts, those of IPv6 multicasts. It harms where the MAC is not known otherwise.
func unflooded(v *fault.Input, b *model.Link, p *model.Pod) (words.Facts, []netip.Addr) {
	port := v.ByIndex[p.LinkIndex].Port
	for _, a := range node.PodAddrs(p) {
		if port == nil || !v.Withheld(p, a) ||
			v.Dropped(func(d *model.Drop) bool { return d.Dst == a && d.Is(model.NeighborFailed) }) < node.MinDrops {
			continue
		}
		x := words.Facts{"target": a}
		switch {
		case a.Is4() && !port.BroadcastFlood:
			x["unflooded"] = "bcast_flood"
		case a.Is6() && port.MulticastOff:
			x["unflooded"] = "mcast_flood"
		case a.Is6() && b.Bridge != nil && b.Bridge.Snooping:
			x["snooping"] = true
		default:
			continue
		}
		return x, node.SameFamily(node.PodAddrs(p), a)
	}
	return nil, nil
}

// vlanBlock finds a VLAN that keeps a port's untagged frames from the pod's gateway.
func vlanBlock(v *node.Index, b *model.Link, p *model.Pod, pods []*model.Pod) words.Facts {
	l := v.ByIndex[p.LinkIndex]
	if b.VLANs == nil || l.VLANs == nil {
		return nil
	}
	own := l.VLANs.PVID
	// Of as many ports, those in the bridge's own VLAN count.
	all := []*model.VLANs{b.VLANs}
	for _, o := range pods {
		if x := v.ByIndex[o.LinkIndex]; x.VLANs != nil && x.VLANs.PVID != 0 && sharesGateway(o, p) {
			all = append(all, x.VLANs)
		}
	}
	most, _ := model.Commonest(all, func(x *model.VLANs) int { return x.PVID })
	onBridge := slices.ContainsFunc(p.Gateways, func(g model.Neighbor) bool { return b.Has(g.Addr) })
	out := words.Facts{"own": own, "want": most.PVID}
	switch {
	case own == most.PVID && (!onBridge || own == b.VLANs.PVID), own != 0 && !onBridge:
		return nil
	case own == most.PVID:
		out["notOfBridge"] = true
	case own == 0:
		out["untagged"] = true
	default:
		out["otherVLAN"] = true
	}
	return out
}

func sharesGateway(a, b *model.Pod) bool {
	return slices.ContainsFunc(a.Gateways, func(g model.Neighbor) bool {
		return slices.ContainsFunc(b.Gateways, func(o model.Neighbor) bool { return o.Addr == g.Addr })
	})
}

func portBlocked(v *fault.Input, b *model.Link, p *model.Pod, pods []netip.Addr, x words.Facts) {
	l := v.ByIndex[p.LinkIndex]
	f := fault.Fault{Facts: x}
	if x["target"] == nil || !receivesTraffic(v.Index, p, pods) {
		f.CutOff = pods
	}
	waits, strays := stuckAtPort(pods), strayFrom(p)
	f.Claims = func(d *model.Drop) bool { return waits(d) || strays(d) }
	f.Pods, f.LastHopAlive = pods, v.Place(l.Name, model.Ingress)
	x["bridge"], x["link"], x["pod"], x["others"] = b, l, p, model.Chosen(v.Links, func(o *model.Link) bool {
		return o.Master == b.Index && o != l && o.Port != nil && o.Port.State == model.PortForwarding
	})
	lost := addIsolation(v, &f, p)
	refused := v.Dropped(func(d *model.Drop) bool { return d.Is(model.PortBlocked) && d.FromOrTo(pods) })
	if refused >= node.MinDrops {
		lost, x["refused"] = true, refused
	}
	astray := v.Dropped(strays)
	if astray >= node.MinDrops {
		lost, x["astray"] = true, astray
	}
	f.Packets += refused + astray
	switch {
	case x["delay"] != nil && !lost:
		return // A delay that costs nothing is nothing.
	case x["delay"] != nil:
		f.Severity = model.Info
	case x["stuck"] != nil:
		// A pod's port cannot be meant to be so.
		x["idle"] = !lost
	case !lost:
		f.StateAlone()
	}
	v.Report(f)
}

// stuckAtPort accounts for packets from and to pods whose ports pass nothing.
func stuckAtPort(pods []netip.Addr) func(*model.Drop) bool {
	waits := unresolvedFor(pods)
	return func(d *model.Drop) bool {
		return d.FromOrTo(pods) && (waits(d) || d.Is(model.NotBridged|model.PortBlocked))
	}
}

// bridgeDown reports a bridge that was taken down with its pods' ports. The
// kernel keeps its IPv4 addresses, and adds their routes again when it is up.
func bridgeDown(v *fault.Input, b *model.Link, pods []*model.Pod) {
	if len(pods) == 0 {
		return
	}
	f := fault.Fault{Facts: words.Facts{"bridge": b, "pods": pods}}
	f.LastHopAlive = v.Place(pods[0].Link, model.Ingress)
	var gateways []netip.Prefix
	for _, p := range pods {
		f.Pods = append(f.Pods, node.PodAddrs(p)...)
		for g := range model.Each(p.Gateways) {
			own := gatewayPrefix(pods, g.Addr)
			// The kernel takes IPv6 addresses from a link that goes down.
			if g.Addr.Is6() && !g.Addr.IsLinkLocalUnicast() && v.Own[g.Addr] == nil && podOnly(v.Index, b) &&
				!slices.Contains(gateways, own) {
				gateways = append(gateways, own)
			}
		}
	}
	alone, waits := lostWithoutGateway(f.Pods), stuckAtPort(f.Pods)
	f.Facts["gateways"], f.CutOff = gateways, f.Pods
	f.Claims = func(d *model.Drop) bool { return alone(d) || waits(d) }
	f.Packets, f.Page = v.Dropped(f.Claims), "BridgePortBlocked-down"
	v.Report(f)
}

// isolatedPorts reports pods that ask each other in vain since their ports are isolated. Isolation alone may be
// meant: a port that only the gateway may be reached by.
func isolatedPorts(v *fault.Input, b *model.Link, pods []*model.Pod) {
	isolated := map[netip.Addr]*model.Pod{}
	alone := slices.DeleteFunc(slices.Clone(pods), func(p *model.Pod) bool {
		l := v.ByIndex[p.LinkIndex]
		return l.Port == nil || !l.Port.Isolated
	})
	for _, p := range alone {
		for _, a := range node.PodAddrs(p) {
			isolated[a] = p
		}
	}
	between := func(d *model.Drop) bool {
		from, to := isolated[d.Src], isolated[d.Dst]
		return from != nil && to != nil && from != to && d.Is(model.NeighborFailed|model.NotBridged)
	}
	var l node.Lost
	var concerned node.AddrSet
	for d := range model.Each(v.Traffic.Drops) {
		if between(d) && !v.Explained(d) {
			l.AddFor(d.Src, d)
			concerned.Add(d.Src, d.Dst)
		}
	}
	type request struct {
		Link  string
		Addr  netip.Addr
		Count uint64
	}
	var requests []request
	asked := v.Resolutions(model.Ingress)
	for _, a := range node.Sorted(isolated) {
		for _, p := range alone {
			t := asked[node.Question{Ifindex: p.LinkIndex, Addr: a}]
			if isolated[a] == p || !t.InVain() {
				continue
			}
			requests = append(requests, request{p.Link, a, t.Requests})
			concerned.Add(append(node.SameFamily(node.PodAddrs(p), a), a)...)
		}
	}
	if len(requests) == 0 && l.Packets < node.MinDrops {
		return
	}
	f := fault.Fault{Page: "BridgePortBlocked-isolated", Claims: between}
	// Each is another's far end, and what they exchange with others passes.
	f.Pods, f.Peers, f.Packets = node.Sorted(concerned), model.Hosts(node.Sorted(concerned)), l.Packets
	f.Severity, f.Confidence = model.Warning, model.Proven
	f.LastHopAlive = v.Place(isolated[f.Pods[0]].Link, model.Ingress)
	f.Facts = words.Facts{
		"bridge": b, "requests": requests, "drops": l.Evidence(), "all": len(alone) == len(pods),
		"ports": slices.DeleteFunc(alone, func(p *model.Pod) bool {
			return !slices.ContainsFunc(f.Pods, func(a netip.Addr) bool { return isolated[a].Link == p.Link })
		}),
	}
	v.Report(f)
}

// nicOffBridge reports a bridge that the default route leads to, of which only pods' links are ports, where there is one
// link that can be the NIC. An agent that manages links may have taken that off.
func nicOffBridge(v *fault.Input, b *model.Link) {
	leads := func(r model.Route) bool {
		return r.IfIndex == b.Index && r.Gateway.IsValid() && len(v.Owners[r.Gateway]) == 0
	}
	route := v.DefaultRoute(false)
	if !leads(route) {
		route = v.DefaultRoute(true)
	}
	ports := bridgePods(v.Index, b)
	if !leads(route) || len(ports) == 0 || !podOnly(v.Index, b) {
		return
	}
	nics := model.Chosen(v.Links, func(l *model.Link) bool {
		kind := l.Kind == "" && l.Name != "lo" || slices.Contains([]string{"bond", "team", "veth", "vlan"}, l.Kind)
		return kind && l.Role == model.RoleOther && l.Up && l.Carrier && l.Master == 0 && !l.HasIPv4()
	})
	if len(nics) != 1 {
		return
	}
	nic := nics[0]
	f := fault.Fault{Page: "BridgePortBlocked-nic", Facts: words.Facts{"nic": nic, "bridge": b, "ports": len(ports), "route": v.RouteText(&route)}}
	f.LastHopAlive, f.Facts["hairpin"] = v.Place(b.Name, model.Egress), hairpins(v.Index, ports)
	f.Pods = model.Flat(ports, node.PodAddrs)
	f.CutOff, f.Claims = f.Pods, func(d *model.Drop) bool {
		between := len(v.Owners[d.Src]) > 0 && len(v.Owners[d.Dst]) > 0
		return !between && (d.Is(model.NeighborFailed|model.OtherHost) || d.Is(model.ReverseFiltered) && d.IfIndex == nic.Index)
	}
	if f.Packets = v.Dropped(f.Claims); f.Packets == 0 {
		f.StateAlone()
	}
	// Rules that answer for the node's addresses on the bridge give a MAC that nobody has there now.
	f.Effects = model.Map(node.Sorted(v.Own), func(a netip.Addr) any { return node.Binding{Addr: a, MAC: nic.MAC} })
	v.Report(f)
}

// hairpins reports whether most of the ports send frames back out of their port.
func hairpins(v *node.Index, ports []*model.Pod) bool {
	return 2*len(model.Filter(ports, func(o *model.Pod) bool { return v.ByIndex[o.LinkIndex].Hairpin })) > len(ports)
}
