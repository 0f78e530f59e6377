package diagnose

import (
	"cmp"
	"net/netip"
	"slices"
	"testing"

	"github.com/lasthop/lasthop/probe/agree"
	"github.com/lasthop/lasthop/probe/model"
	"github.com/lasthop/lasthop/probe/node"
)

// agreed are the findings of a node, which the paths of its packets agree with.
func agreed(t *testing.T, n *testNode) []model.Finding {
	t.Helper()
	v := Judge(&n.Snapshot)
	for _, d := range agree.Disagreements(whole(n), v.Findings, v.Causes) {
		t.Error(d)
	}
	for _, u := range agree.Unaccounted(&n.Snapshot, v) {
		t.Error("no name for", u)
	}
	proven, _ := agree.Accusations(&n.Snapshot, Judge)
	for _, a := range proven {
		t.Error(a)
	}
	return v.Findings
}

// whole is a fixture's snapshot with what fixtures leave out: the node's namespace and local
// routes, and of pods that send the network of the bridge that they hang on, and the default
// route by this or by the node's own gateway.
func whole(n *testNode) *model.Snapshot {
	const host, localTable = 1 << 30, 255
	s := n.Snapshot
	s.Node.Netns = cmp.Or(s.Node.Netns, host)
	s.Routes, s.Pods, s.PastPods = slices.Clone(s.Routes), slices.Clone(s.Pods), slices.Clone(s.PastPods)
	for l := range model.Each(s.Links) {
		for _, a := range l.Addresses {
			s.Routes = append(s.Routes, model.Route{Type: "local", Table: localTable, Dst: netip.PrefixFrom(a.Addr(), a.Addr().BitLen()), IfIndex: l.Index})
		}
	}
	for p := range model.Each(s.PastPods) {
		p.Up = true
	}
	for _, list := range [][]model.Pod{s.Pods, s.PastPods} {
		for p := range model.Each(list) {
			for _, a := range p.Known() {
				addPodRoutes(&s, p, a)
			}
		}
	}
	return &s
}

func addPodRoutes(s *model.Snapshot, p *model.Pod, a netip.Addr) {
	all := netip.PrefixFrom(a, 0).Masked()
	left := slices.DeleteFunc(slices.Clone(p.Routes), func(r model.Route) bool { return r.Dst == all && !r.Gateway.IsValid() })
	if slices.ContainsFunc(left, func(r model.Route) bool { return r.Dst.Addr().Is4() == a.Is4() }) {
		return
	}
	via := netip.Addr{}
	for _, r := range s.Routes {
		if r.Dst == all {
			via = r.Gateway
		}
	}
	links := map[int]model.Link{}
	for _, l := range s.Links {
		links[l.Index] = l
	}
	for _, x := range links[links[p.LinkIndex].Master].Addresses {
		if x.Addr().Is4() != a.Is4() {
			continue
		}
		if !x.Contains(via) {
			via = x.Addr()
		}
		if x.Contains(a) && !x.IsSingleIP() {
			left = append(left, model.Route{Type: "unicast", Table: node.MainTable, Dst: x.Masked()})
		}
	}
	p.Routes = append(left, model.Route{Type: "unicast", Table: node.MainTable, Dst: all, Gateway: via})
}
