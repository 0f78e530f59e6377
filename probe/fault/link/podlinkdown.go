package link

import (
	"net/netip"
	"slices"

	"github.com/lasthop/lasthop/probe/fault"
	"github.com/lasthop/lasthop/probe/model"
	"github.com/lasthop/lasthop/probe/node"
	"github.com/lasthop/lasthop/probe/words"
)

// PodLinkDown reports pods whose link is down, at either end.
var PodLinkDown = fault.Kind{Code: "PodLinkDown", Severity: model.Critical, Find: podLinkDown,
	Needs: fault.Sources{model.SourceLinks, model.SourcePods}, Objects: fault.Objects{"link.Name"},
	Ends: fault.Hops{model.HopLink, model.HopPod, model.HopRoute}, Else: fault.Else{"unplugged"}}

func podLinkDown(v *fault.Input) {
	for p := range model.Each(v.Pods) {
		l := v.ByIndex[p.LinkIndex]
		// A pod that is being made has its link up last, one that is being deleted loses its link as a whole.
		if l == nil || !v.PresentWholeWindow(p) || l.Up && p.Up && l.Carrier {
			continue
		}
		// An address that was handed over to another living pod is not lost with this one.
		pods := slices.DeleteFunc(node.PodAddrs(p), func(a netip.Addr) bool {
			return slices.ContainsFunc(v.Owners[a], func(o *model.Pod) bool { return o != p && node.FirstIn(o, a.Is6()).Addr() == a })
		})
		if !p.Up {
			pods = append(pods, routedTo(v.Index, l)...)
		}
		if len(pods) > 0 {
			v.Report(linkDown(v, p, l, pods))
		}
	}
}

func linkDown(v *fault.Input, p *model.Pod, l *model.Link, pods []netip.Addr) fault.Fault {
	// What was dropped for the last time before the link was first set down is of something else.
	set := model.Find(v.Changes, func(c model.Change) bool { return c.Kind == model.ChangedLink && c.Link == l.Index })
	since := func(d *model.Drop) bool { return !set.Deleted || !d.Last.Before(set.At.Add(-fault.Notified)) }
	f := fault.Fault{
		Facts: words.Facts{"pod": p, "link": l, "unplugged": l.Up && p.Up},
		Claims: func(d *model.Drop) bool {
			// What a rule dropped, the link did not.
			return since(d) && (d.FromOrTo(pods) && !d.Is(model.Netfilter) || hadAddress(v.Index, p, d))
		},
		Silences: node.SilencesAll(pods),
	}
	f.Pods, f.LastHopAlive = pods, model.Place{Link: l.Name, Role: model.RolePodLink, Direction: model.Egress}
	f.Packets = v.Dropped(func(d *model.Drop) bool { return since(d) && slices.Contains(pods, d.Dst) })
	if !l.Up {
		addLostRoutes(v.Index, &f, p)
	}
	if !p.Up {
		addLostInside(v.Index, &f, p)
	}
	return f
}

// routedTo are the addresses that no pod has and that the node sends by this link: an interface that is down
// has lost its IPv6 addresses, and the routes to them are still there.
func routedTo(v *node.Index, l *model.Link) []netip.Addr {
	var out []netip.Addr
	for r := range model.Each(v.Routes) {
		a := r.Dst.Addr()
		if r.IfIndex == l.Index && r.Table == node.MainTable && r.Type == "unicast" && r.Dst.IsSingleIP() && len(v.Owners[a]) == 0 &&
			v.Own[a] == nil && !slices.Contains(out, a) {
			out = append(out, a)
		}
	}
	return out
}

// hadAddress reports whether a drop is for an IPv6 address that the pod may have
// had: its interface is down and has none any more, and nobody else has this one.
func hadAddress(v *node.Index, p *model.Pod, d *model.Drop) bool {
	if p.Up || !d.Dst.Is6() || !d.Is(model.NeighborFailed) || len(v.Owners[d.Dst]) > 0 || !model.InAny(v.Ranges.Local, d.Dst) {
		return false
	}
	return !slices.ContainsFunc(node.PodAddrs(p), netip.Addr.Is6)
}

// addLostRoutes adds what a routed pod's link took along when it went down: the routes to
// the pod, and the IPv6 addresses that other pods' links have too, such as the gateway's.
func addLostRoutes(v *node.Index, f *fault.Fault, p *model.Pod) {
	if !v.Routed(p) || !v.Has(model.SourceRoutes) {
		return
	}
	var addrs, routes []netip.Prefix
	for _, o := range siblings(v, p) {
		for _, a := range v.ByIndex[o.LinkIndex].Addresses {
			if a.Addr().Is6() && a.IsSingleIP() && a.Addr().IsGlobalUnicast() && !v.ByIndex[p.LinkIndex].Has(a.Addr()) &&
				!slices.Contains(addrs, a) {
				addrs = append(addrs, a)
			}
		}
	}
	for _, a := range f.Pods {
		if r := v.Lookup(a); r == nil || r.IfIndex != p.LinkIndex {
			routes = append(routes, model.Host(a))
		}
	}
	f.Facts["addrs"], f.Facts["routes"] = addrs, routes
}

// siblings are the other pods that are connected as this one is and are up: by
// links of their own, or as ports of the same bridge.
func siblings(v *node.Index, p *model.Pod) []*model.Pod {
	return model.Chosen(v.Pods, func(o *model.Pod) bool {
		l := v.ByIndex[o.LinkIndex]
		return o != p && l != nil && l.Up && o.Up && len(o.Gateways) > 0 && l.Master == v.ByIndex[p.LinkIndex].Master
	})
}

// addLostInside adds what a pod's own interface lost when it went down: its routes, which
// are as those of the next pod, and its IPv6 address, where the node still has a route to it.
func addLostInside(v *node.Index, f *fault.Fault, p *model.Pod) {
	like := siblings(v, p)
	if f.Facts["alone"] = len(like) == 0; len(like) == 0 {
		return
	}
	o := like[0]
	if usual := node.FirstIn(o, true); usual.IsValid() && !slices.ContainsFunc(node.PodAddrs(p), netip.Addr.Is6) {
		at := slices.IndexFunc(f.Pods, netip.Addr.Is6)
		if f.Facts["forgotten"] = at < 0; at >= 0 {
			f.Facts["addr"] = netip.PrefixFrom(f.Pods[at], usual.Bits())
		}
	}
	f.Facts["inside"] = append(node.LackedRoutes(p, o, false), node.LackedRoutes(p, o, true)...)
}
