package pod

import (
	"net/netip"
	"slices"

	"github.com/lasthop/lasthop/probe/model"
	"github.com/lasthop/lasthop/probe/node"
)

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
