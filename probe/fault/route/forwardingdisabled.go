package route

import (
	"maps"
	"net/netip"
	"slices"

	"github.com/lasthop/lasthop/probe/fault"
	"github.com/lasthop/lasthop/probe/model"
	"github.com/lasthop/lasthop/probe/node"
	"github.com/lasthop/lasthop/probe/path"
	"github.com/lasthop/lasthop/probe/words"
)

// ForwardingDisabled reports that the node does not forward packets between links, for all or for one of them.
var ForwardingDisabled = fault.Kind{Code: "ForwardingDisabled", Severity: model.Critical, Find: forwardingDisabled,
	Ends: fault.Hops{model.HopRoute, model.HopPod}, Objects: fault.Objects{"all", "links", "router.Link"}}

func forwardingDisabled(v *fault.Input) {
	unforwarded(v, refused4, path.Forward4)
	if v.Proposed == nil {
		unforwardedUnseen(v)
	}
	unforwarded(v, refused6, path.Forward6)
	unforwardedByPods(v)
}

// unforwardedByPods reports pods that are next hops of routes and do not forward.
func unforwardedByPods(v *fault.Input) {
	type router struct {
		*model.Pod
		isIPv6 bool
	}
	fault.ReportBy(v, func(d *model.Drop) (by router, pod netip.Addr) {
		if !d.Is(model.NotForwarded) || d.Netns == 0 || d.Netns == v.Node.Netns {
			return by, pod
		}
		if p := model.First(v.Pods, func(p *model.Pod) bool { return p.Netns == d.Netns }); p != nil && leadsBy(v.Index, d, p) {
			by, pod = router{p, d.Dst.Is6()}, v.Sender(d)
		}
		return by, pod
	}, func(by router, l *node.Lost) fault.Fault {
		f := fault.Fault{Page: "ForwardingDisabled-pod", Lost: l, Facts: words.Facts{
			"router": by.Pod, "setting": model.Either(by.isIPv6, path.Forward6, path.Forward4), "drops": l.Evidence()}}
		f.Severity, f.LastHopAlive = model.Warning, v.Place(by.Link, model.Egress)
		return f
	})
}

// leadsBy reports whether a route of the sender, or of the node, has an address of a pod for the next hop of a packet.
func leadsBy(v *node.Index, d *model.Drop, by *model.Pod) bool {
	if r := v.Lookup(d.Dst); r != nil && by.Has(r.Gateway) {
		return true
	}
	return slices.ContainsFunc(v.Owners[d.Src], func(p *model.Pod) bool {
		r := path.PodLed(p, path.Packet{Src: d.Src, Dst: d.Dst, Proto: d.Proto})
		return r != nil && by.Has(r.Gateway)
	})
}

// refused4 is the link by which an IPv4 packet arrived that the node dropped because that link does not
// forward; empty for another drop. Only that link's setting counts. A link that does not forward does not
// answer for a gateway either that is not the node's own address: then the pod drops the packet.
func refused4(v *node.Index, d *model.Drop) string {
	link := ""
	switch {
	case d.Is(model.NotForwarded) && d.Dst.Is4():
		link = d.Link
	case d.Is(model.NeighborFailed) && d.Link == "" && d.Src.Is4():
		for _, p := range v.Owners[d.Src] {
			for g := range model.Each(p.Gateways) {
				if v.Unproxied(p, g) {
					link = v.ByIndex[p.LinkIndex].Name
				}
			}
		}
	}
	return model.Either(v.Settings.NotForwarding(link, false) == "", "", link)
}

// refused6 is the same for IPv6, where one setting counts for all links. A
// gateway is not answered for by proxy either that the link itself has not.
func refused6(v *node.Index, d *model.Drop) string {
	if v.Settings.NotForwarding("", true) == "" {
		return ""
	}
	if d.Is(model.NotForwarded) && d.Dst.Is6() {
		return d.Link
	}
	if !d.Is(model.NeighborFailed) || d.Link != "" || !d.Src.Is6() {
		return ""
	}
	for _, p := range v.Owners[d.Src] {
		l := v.ByIndex[p.LinkIndex]
		if l != nil && l.Master == 0 && slices.ContainsFunc(p.Gateways, func(g model.Neighbor) bool {
			return g.Addr.Is6() && !path.Resolved(&g) && !v.Holds(l.Name, g.Addr)
		}) {
			return l.Name
		}
	}
	return ""
}

func unforwarded(v *fault.Input, refused func(*node.Index, *model.Drop) string, global string) {
	fault.ReportBy(v, func(d *model.Drop) (all struct{}, pod netip.Addr) {
		link := refused(v.Index, d)
		if link == "" {
			return all, pod
		}
		// Of two pods the one is meant whose link it is.
		for _, p := range v.Owners[d.Src] {
			if own := v.Router(p); own != nil && own.Name == link {
				return all, d.Src
			}
		}
		return all, v.Pod(d)
	}, func(_ struct{}, l *node.Lost) fault.Fault {
		links := model.SetOf(model.Map(l.Drops, func(d *model.Drop) string { return refused(v.Index, d) }))
		f := withoutForwarding(v.Index, refused, links, global)
		pods := maps.Clone(l.Pods)
		if global == path.Forward4 {
			maps.Copy(pods, v.Stuck())
		}
		f.Pods = node.Sorted(pods)
		f.Lost, f.Silences, f.Facts["drops"] = l, node.SilencesAll(f.Pods), l.Evidence()
		f.LastHopAlive = v.Place(refused(v.Index, node.MostDropped(l.Drops)[0]), model.Ingress)
		return f
	})
}

// withoutForwarding is a finding with the settings to blame: the node's, or those of links.
func withoutForwarding(v *node.Index, refused func(*node.Index, *model.Drop) string, links map[string]bool, global string) fault.Fault {
	names, settings, all := slices.Sorted(maps.Keys(links)), []string{global}, v.Settings[global] == "0"
	if !all {
		settings = model.Map(names, func(link string) string { return path.LinkSetting(link, "forwarding") })
	}
	f := fault.Fault{Facts: words.Facts{"links": names, "settings": settings, "all": all}}
	f.Claims = func(d *model.Drop) bool { return refused(v, d) != "" }
	f.LastHopAlive = v.Place(names[0], model.Ingress)
	return f
}

// unforwardedUnseen reports the settings alone: pods have the node for their gateway, the link by which their
// packets arrive does not forward, and none of them was seen to leave by other means. Pods that do not learn their
// gateway make it likely.
func unforwardedUnseen(v *fault.Input) {
	pods, links, stuck := map[netip.Addr]bool{}, map[string]bool{}, v.Stuck()
	for p := range model.Each(v.Pods) {
		if link := v.Router(p); link != nil && v.Settings.NotForwarding(link.Name, false) != "" {
			for _, a := range node.PodAddrs(p) {
				if a.Is4() {
					pods[a], links[link.Name] = true, true
				}
			}
		}
	}
	leaves := func(p model.Peer) bool { return p.Out.Packets > 0 && pods[p.Local] }
	if len(pods) == 0 || len(stuck) == 0 && slices.ContainsFunc(v.Peers, leaves) {
		return
	}
	f := withoutForwarding(v.Index, refused4, links, path.Forward4)
	f.Confidence, f.Pods = model.Either(len(stuck) > 0, model.Likely, model.Possible), node.Sorted(pods)
	f.Silences = node.SilencesAll(node.Sorted(stuck))
	v.Report(f)
}
