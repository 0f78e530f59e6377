// Package policy finds what netfilter rules, connection tracking and BPF programs drop.
package policy

import (
	"net/netip"
	"slices"

	"github.com/lasthop/lasthop/probe/fault"
	"github.com/lasthop/lasthop/probe/model"
	"github.com/lasthop/lasthop/probe/node"
)

// cameBy is where a packet that netfilter dropped was seen last: the link that it came in by. The kernel names that
// link, but in POSTROUTING (ip_output) and for packets that a bridge forwards the one by which it was to leave: these
// have their way out before FORWARD is asked (__br_forward), with or without translation.
func cameBy(v *node.Index, d *model.Drop) model.Place {
	out := v.LinkByName[d.Link]
	leadsTo := func(a netip.Addr, l *model.Link) bool {
		return slices.ContainsFunc(v.Owners[a], func(p *model.Pod) bool { return p.LinkIndex == l.Index })
	}
	if out == nil || !leadsTo(d.Dst, out) && !(v.IsUplink(out.Index) && len(v.Owners[d.Src]) > 0 && !leadsTo(d.Src, out)) {
		return v.Place(d.Link, model.Ingress)
	}
	in := model.First(v.Links, func(l *model.Link) bool {
		own := leadsTo(d.Src, l) || len(v.Owners[d.Src]) == 0 && v.Outer[l.Index]
		return own && l != out && (out.Master == 0 || l.Master == out.Master)
	})
	if in == nil {
		in = &model.Link{Name: v.LinkName(out.Master)}
	}
	return v.Place(in.Name, model.Ingress)
}

// ruleObjects are the objects of a kind about firewall rules.
var ruleObjects = fault.Objects{"rule.Pod.Link rule.Backend rule.Family rule.Table rule.Chain rule.Rule",
	"rule.Backend rule.Family rule.Table rule.Chain rule.Rule", "rule.Table rule.Chain rule.Frame",
	"rule.Backend rule.Family rule.Table rule.Chain"}
