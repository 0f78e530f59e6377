package bridge

import (
	"net/netip"
	"slices"

	"github.com/lasthop/lasthop/probe/fault"
	"github.com/lasthop/lasthop/probe/model"
	"github.com/lasthop/lasthop/probe/node"
	"github.com/lasthop/lasthop/probe/path"
	"github.com/lasthop/lasthop/probe/words"
)

// PodLinkOffBridge reports pods' links that are no port of the bridge that the others are on, and those whose bridge is gone.
var PodLinkOffBridge = fault.Kind{Code: "PodLinkOffBridge", Severity: model.Critical, Find: podLinkOffBridge,
	Needs:   fault.Sources{model.SourceLinks, model.SourcePods, model.SourceRoutes},
	Ends:    fault.Hops{model.HopLink, model.HopNeighbor, model.HopBridge, model.HopRoute, model.HopPod},
	Objects: fault.Objects{"link.Name", "lost"}}

func podLinkOffBridge(v *fault.Input) {
	var bridgeless node.Groups[netip.Prefix, []*model.Pod]
	for p := range model.Each(v.Pods) {
		l := v.ByIndex[p.LinkIndex]
		if l == nil || !l.Up || !l.Carrier || !p.Up || !v.PresentWholeWindow(p) || v.Outer[l.Index] {
			continue
		}
		master := v.ByIndex[l.Master]
		if master != nil && master.Kind != "bridge" {
			continue
		}
		switch b, x := bridgeMeant(v.Index, p); {
		case x == nil || b == master && b != nil || receivesTraffic(v.Index, p, node.PodAddrs(p)):
		case b != nil:
			offBridge(v, p, l, b, x)
		case master == nil:
			node.Put(&bridgeless, x["lost"].(netip.Prefix), p)
		}
	}
	for lost, pods := range bridgeless.All() {
		bridgeGone(v, lost, *pods)
	}
}

// bridgeMeant is the bridge that a pod belongs to, and by which address; no facts where the node reaches the pod without
// one. The bridge has the pod's gateway, or pods on it have the same gateway and prefix as this one; it is nil if it is gone.
func bridgeMeant(v *node.Index, p *model.Pod) (*model.Link, words.Facts) {
	link := v.ByIndex[p.LinkIndex]
	for _, a := range p.Addresses {
		if a.IsSingleIP() || !a.Addr().IsGlobalUnicast() || len(v.Owners[a.Addr()]) > 1 {
			continue
		}
		if r := v.Lookup(a.Addr()); r != nil && r.IfIndex == link.Index {
			return nil, nil
		}
		for g := range model.Each(p.Gateways) {
			near := g.Addr.Is4() == a.Addr().Is4() && a.Contains(g.Addr) && !link.Has(g.Addr)
			if b := bridgeWith(v, p, a, g.Addr); near && b != nil {
				return b, words.Facts{"pod": p, "bridge": b, "addr": a, "gateway": g.Addr}
			} else if lost := v.LostBridge(p, g.Addr); near && lost.IsValid() {
				return nil, words.Facts{"lost": lost}
			}
		}
	}
	return nil, nil
}

// bridgeWith is the bridge that has the gateway for its own address, or that pods
// with the same gateway and prefix are on.
func bridgeWith(v *node.Index, p *model.Pod, a netip.Prefix, gateway netip.Addr) *model.Link {
	own := model.First(v.Links, func(b *model.Link) bool {
		return b.Kind == "bridge" && slices.ContainsFunc(b.Addresses, func(x netip.Prefix) bool {
			return x.Addr() == gateway && x.Contains(a.Addr()) && !x.IsSingleIP()
		})
	})
	if own != nil {
		return own
	}
	o := model.First(v.Pods, func(o *model.Pod) bool {
		return v.BridgeOf(o) != nil && o.LinkIndex != p.LinkIndex &&
			slices.ContainsFunc(o.Gateways, func(g model.Neighbor) bool { return g.Addr == gateway }) &&
			slices.ContainsFunc(o.Addresses, func(x netip.Prefix) bool { return x.Masked() == a.Masked() })
	})
	if o == nil {
		return nil
	}
	return v.BridgeOf(o)
}

func offBridge(v *fault.Input, p *model.Pod, l, b *model.Link, x words.Facts) {
	pods, ports := node.PodAddrs(p), bridgePods(v.Index, b)
	f := fault.Fault{Facts: x, CutOff: pods, Claims: func(d *model.Drop) bool {
		return d.FromOrTo(pods) && d.Is(model.NeighborFailed|model.ReverseFiltered|model.OtherHost|model.OwnSource)
	}}
	f.Pods, f.LastHopAlive = pods, v.Place(l.Name, model.Ingress)
	if !addIsolation(v, &f, p) {
		if v.ByIndex[l.Master] != nil {
			return // One bridge may be connected to the other.
		}
		f.StateAlone()
	}
	x["link"], x["ports"] = l, len(ports)
	if l.Master != 0 {
		x["master"] = v.LinkName(l.Master)
	}
	if r := v.Lookup(pods[0]); r != nil {
		x["route"] = v.RouteText(r)
	}
	x["hairpin"] = hairpins(v.Index, ports)
	v.Report(f)
}

// bridgeGone reports the bridge that had a gateway's address, of which nothing is left but what its pods remember.
func bridgeGone(v *fault.Input, lost netip.Prefix, pods []*model.Pod) {
	f := fault.Fault{Page: "PodLinkOffBridge-gone", Facts: words.Facts{"lost": lost, "engine": pods[0].Engine}}
	f.Pods = model.Flat(pods, node.PodAddrs)
	links := model.Map(pods, func(p *model.Pod) string { return p.Link })
	f.CutOff, f.LastHopAlive = f.Pods, v.Place(links[0], model.Ingress)
	f.Claims = func(d *model.Drop) bool {
		return d.FromOrTo(f.Pods) && d.Is(model.OtherHost|model.NeighborFailed|model.ReverseFiltered|model.NoRoute)
	}
	// The rule that masquerades a network of Docker's names its bridge.
	rule := model.Find(v.PacketRules, func(r model.PacketRule) bool { return r.Out.Not && r.Src.Prefix == lost.Masked() })
	name := model.Either(pods[0].Engine == "", v.Node.Bridge, rule.Out.Name)
	name = model.Either(v.LinkByName[name] == nil, name, "")
	switch f.Packets = v.Dropped(f.Claims); {
	case f.Packets >= node.MinDrops:
	case name == "":
		return // A BPF program may take its place.
	default:
		f.StateAlone()
	}
	if f.Facts["name"], f.Facts["links"] = name, links; name != "" && pods[0].Engine == "" {
		f.Facts["moves"] = links
	}
	if g := model.First(pods[0].Gateways, path.Resolved); g != nil {
		f.Facts["mac"] = g.MAC
	}
	v.Report(f)
}
