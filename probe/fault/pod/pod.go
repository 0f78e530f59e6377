// Package pod finds faults inside pods' network namespaces: addresses, default routes, sockets.
package pod

import (
	"net/netip"
	"slices"

	"github.com/lasthop/lasthop/probe/fault"
	"github.com/lasthop/lasthop/probe/model"
	"github.com/lasthop/lasthop/probe/node"
	"github.com/lasthop/lasthop/probe/words"
)

// atSockets are the findings on pods whose sockets did not take the packets that match.
func atSockets(v *fault.Input, match func(*model.Drop) bool, find func(netip.Addr, *node.Lost) fault.Fault) {
	fault.ReportBy(v, func(d *model.Drop) (pod, _ netip.Addr) {
		if match(d) && len(v.Owners[d.Dst]) > 0 && (d.Netns == 0 || v.InPod(d) == d.Dst) {
			return d.Dst, d.Dst
		}
		return pod, pod
	}, find)
}

// atSocket is a finding on these, by a page. It has the ports that samples of the drops were for.
func atSocket(v *node.Index, page string, l *node.Lost) fault.Fault {
	d := l.Drops[0]
	f := fault.Fault{Page: page, Lost: l, Facts: words.Facts{"addr": d.Dst, "ports": v.SampledPorts(l)}}
	if pods := v.Owners[d.Dst]; len(pods) > 0 {
		f.Facts["pod"], f.LastHopAlive = pods[0],
			model.Place{Link: pods[0].Interface, Role: model.RolePod, Direction: model.Ingress}
	}
	return f
}

// enterablePods are the pods whose own state can be judged; none where pods could not be read.
func enterablePods(v *node.Index) []*model.Pod {
	if v.Status(model.SourcePods) == model.Missing {
		return nil
	}
	return model.Chosen(v.Pods, v.Enterable)
}

// alike are the other pods that hang on the node as a pod does: on the same bridge,
// or each on a link of its own. Interfaces that plugins for further networks make
// have other names than the first one, and are compared among themselves.
func alike(v *node.Index, p *model.Pod) []*model.Pod {
	l := v.ByIndex[p.LinkIndex]
	return model.Chosen(v.Pods, func(o *model.Pod) bool {
		x := v.ByIndex[o.LinkIndex]
		return x != nil && l != nil && o.Netns != p.Netns && x.Master == l.Master && o.Interface == p.Interface &&
			v.Enterable(o)
	})
}

func podDefault(p *model.Pod, isIPv6 bool) *model.Route {
	return model.First(p.Routes, func(r *model.Route) bool { return model.RoutesAll(r.Dst, isIPv6) })
}

func sendsBeyond(p *model.Pod, isIPv6 bool) bool {
	return podDefault(p, isIPv6) != nil ||
		slices.ContainsFunc(p.Elsewhere, func(x netip.Prefix) bool { return model.RoutesAll(x, isIPv6) })
}

// pattern is the pod of a list that another is to be like: one that shares prefix length and gateway with most,
// among those that have a default route where any has one.
func pattern(list []*model.Pod, isIPv6 bool) *model.Pod {
	type shape struct {
		bits    int
		gateway netip.Addr
	}
	routed := slices.DeleteFunc(slices.Clone(list), func(p *model.Pod) bool { return podDefault(p, isIPv6) == nil })
	if len(routed) > 0 {
		list = routed
	}
	from, _ := model.Commonest(list, func(p *model.Pod) shape {
		s := shape{bits: node.FirstIn(p, isIPv6).Bits()}
		if r := podDefault(p, isIPv6); r != nil {
			s.gateway = r.Gateway
		}
		return s
	})
	return from
}
