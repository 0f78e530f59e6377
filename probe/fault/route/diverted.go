package route

import (
	"net/netip"
	"slices"

	"github.com/lasthop/lasthop/probe/fault"
	"github.com/lasthop/lasthop/probe/model"
	"github.com/lasthop/lasthop/probe/node"
	"github.com/lasthop/lasthop/probe/path"
	"github.com/lasthop/lasthop/probe/words"
)

// diversion is a routing rule before that of the main table, and the route that it leads to.
type diversion struct {
	rule  *model.RoutingRule
	route *model.Route
}

// diverted reports rules that lead packets to a link from which nothing comes, while by the link that the main table has for
// them something does: the table of a VPN has more than what is behind the VPN.
func diverted(v *fault.Input) {
	var ways node.Groups[diversion, inVain]
	of := func(q path.Query) (w diversion) {
		d := v.Routing().Lookup(q)
		if d.Rule != nil && d.Type == "unicast" && d.Table != node.MainTable && d.Rule.Priority > 0 && !d.Rule.From.IsSingleIP() && len(d.Unsure) == 0 {
			w = diversion{d.Rule, d.Route}
		}
		return w
	}
	heard, arrives := map[int]bool{}, map[netip.Addr]int{}
	for p := range model.Each(v.Traffic.Peers) {
		if p.In.Packets > 0 {
			heard[p.IfIndex], arrives[p.Remote] = true, p.IfIndex
		}
	}
	for p := range model.Each(v.Peers) {
		if w := of(v.SentBy(p.Local, p.Remote)); w.rule != nil && v.Answered(p) {
			ways.Of(w).answered = true
		} else if w.rule != nil && v.Unanswered(p) && v.Elsewhere(p.Remote) {
			ways.Of(w).silent = append(ways.Of(w).silent, p)
		}
	}
	for w, g := range ways.All() {
		if g.answered || len(g.silent) == 0 || heard[w.route.IfIndex] {
			continue
		}
		to := g.silent[0].Remote
		main := v.Routing().Covering(node.MainTable, to)
		if len(main) == 0 || main[0].Type != "unicast" || main[0].IfIndex == w.route.IfIndex || !heard[main[0].IfIndex] {
			continue
		}
		var near []netip.Prefix
		for _, p := range g.silent {
			if r := v.Remote(p.Remote); r.IsValid() || model.InAny(v.OnLink, p.Remote) {
				near = model.With(near, model.Either(r.IsValid(), r, model.Host(p.Remote)))
			}
		}
		l := v.SumPeers(g.silent)
		f := fault.Fault{Page: "MissingTableRoute-diverted", Lost: l, Facts: words.Facts{
			"rule": node.ShowRule(w.rule), "route": v.Shown(w.route), "right": v.Shown(main[0]), "near": near, "before": w.rule.Priority - 1,
			"arrives": arrives[to] == main[0].IfIndex, "to": to,
			"far": slices.DeleteFunc(node.Sorted(l.Peers), func(a netip.Addr) bool { return model.InAny(near, a) }),
		}}
		f.LastHopAlive = v.Place(v.LinkName(w.route.IfIndex), model.Egress)
		f.Claims = func(d *model.Drop) bool { return d.Is(model.ReverseFiltered) && v.ReturnPath(d).Route == w.route }
		f.Silences = func(asker netip.Addr, asked netip.Prefix) bool {
			return l.Peers[asked.Addr()] || l.Peers[asker] || of(v.SentBy(asker, asked.Addr())) == w
		}
		v.Report(f)
	}
}
