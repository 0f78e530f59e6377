package diagnose

import (
	"cmp"
	"net/netip"

	"github.com/lasthop/lasthop/probe/model"
	"github.com/lasthop/lasthop/probe/path"
	"github.com/lasthop/lasthop/probe/words"
)

// shownRoute is a route with the name of its link, empty where it has none: in a page it is as
// ip(8) prints it, and Typed as ip(8) takes it from a shell.
type shownRoute struct {
	*model.Route
	Link string
}

// shown is nil for no route.
func (v *index) shown(r *model.Route) *shownRoute {
	if r == nil {
		return nil
	}
	if l := v.ByIndex[r.IfIndex]; l != nil && r.IfIndex != 0 {
		return &shownRoute{r, l.Name}
	}
	return &shownRoute{r, ""}
}

func (r *shownRoute) String() string { return words.RouteText(r.Route, r.Link) }

// Typed are the words that ip(8) adds or deletes it by.
func (r *shownRoute) Typed() words.Command { return words.TypedRoute(r.Route, r.Link) }

func (v *index) routeText(r *model.Route) string { return v.shown(r).String() }

// shownRule is the same for a routing rule.
type shownRule struct{ *model.RoutingRule }

func showRule(r *model.RoutingRule) *shownRule {
	if r == nil {
		return nil
	}
	return &shownRule{r}
}

func (r *shownRule) String() string { return words.RoutingRuleText(r.RoutingRule) }

// Typed are the same of a rule.
func (r *shownRule) Typed() words.Command { return words.RoutingRule(r.RoutingRule) }

// sentBy is a packet as the node's routing gets it: a pod's comes by a link, the node's own by none.
func (v *index) sentBy(src, dst netip.Addr) path.Query {
	q := path.Query{Src: src, Dst: dst}
	for _, p := range v.Owners[src] {
		q.In = cmp.Or(v.natLink(p.LinkIndex), q.In)
	}
	return q
}

// arrived is a dropped packet as the node's routing got it.
func (v *index) arrived(d *model.Drop) path.Query {
	return path.Query{Src: d.Src, Dst: d.Dst, In: d.Link}
}

// lookup is the route that the node takes to an address; nil when it has none.
func (v *index) lookup(a netip.Addr) *model.Route {
	return v.Routing().Lookup(path.Query{Dst: a}).Route
}

// mainTable is RT_TABLE_MAIN.
const mainTable = 254

// byDefaultRoute reports whether the node sends to the address through a default
// route, or one for half of all addresses. With the routes unread it is supposed to.
func (v *index) byDefaultRoute(a netip.Addr) bool {
	d := v.Routing().Lookup(path.Query{Dst: a})
	return !d.Discards() && (d.Route == nil || d.Route.Dst.Bits() <= 1)
}

// returnPath is the decision by which the filter judged a packet.
func (v *index) returnPath(d *model.Drop) path.Decision { return v.Routing().ReturnPath(v.arrived(d)) }

// unroutable is the address that no route leads to, because of which the kernel
// refused a packet: where it was for or, to the reverse path filter, its source.
func (v *index) unroutable(d *model.Drop) (netip.Addr, bool) {
	var a netip.Addr
	var decision path.Decision
	switch {
	case d.Link == "":
		return a, false
	case d.Is(model.NoRoute):
		a, decision = d.Dst, v.Routing().Lookup(v.arrived(d))
	case d.Is(model.ReverseFiltered) && !v.nodeAddrs[d.Src]:
		a, decision = d.Src, v.returnPath(d)
	default:
		return a, false
	}
	return a, decision.Route == nil && !decision.Discards()
}
