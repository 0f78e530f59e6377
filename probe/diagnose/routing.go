package diagnose

import (
	"net/netip"

	"github.com/lasthop/lasthop/probe/model"
	"github.com/lasthop/lasthop/probe/path"
	"github.com/lasthop/lasthop/probe/words"
)

// routing predicts what the node's tables do.
func (v *view) routing() *path.Routing { return v.Routing() }

// shownRoute is a route with the name of its link, empty where it has none: in a page it is as
// ip(8) prints it, and Typed as ip(8) takes it from a shell.
type shownRoute struct {
	*model.Route
	Link string
}

// shown is nil for no route.
func (v *view) shown(r *model.Route) *shownRoute {
	if r == nil {
		return nil
	}
	if l := v.links[r.IfIndex]; l != nil && r.IfIndex != 0 {
		return &shownRoute{r, l.Name}
	}
	return &shownRoute{r, ""}
}

func (r *shownRoute) String() string { return words.RouteText(r.Route, r.Link) }

// Typed quotes the link.
func (r *shownRoute) Typed() string {
	if r.Link == "" {
		return r.String()
	}
	return words.RouteText(r.Route, words.Quote(r.Link))
}

// routeText is a route as ip(8) prints it.
func (v *view) routeText(r *model.Route) string { return v.shown(r).String() }

// shownRule is the same for a routing rule.
type shownRule struct{ *model.RoutingRule }

func showRule(r *model.RoutingRule) *shownRule {
	if r == nil {
		return nil
	}
	return &shownRule{r}
}

func (r *shownRule) String() string { return words.RoutingRuleText(r.RoutingRule) }

// Typed are the words that ip(8) adds or deletes it by.
func (r *shownRule) Typed() string { return words.RoutingRule(r.RoutingRule) }

// fromPod is a packet of a pod as it arrives at the node's routing.
func (v *view) fromPod(pod, dst netip.Addr) path.Query {
	q := path.Query{Src: pod, Dst: dst}
	for _, p := range v.pods[pod] {
		l := v.links[p.LinkIndex]
		if l != nil && v.links[l.Master] != nil {
			l = v.links[l.Master]
		}
		if l != nil {
			q.In = l.Name
		}
	}
	return q
}

// arrived is a dropped packet as the node's routing got it.
func (v *view) arrived(d *model.Drop) path.Query {
	return path.Query{Src: d.Src, Dst: d.Dst, In: d.Link}
}

// lookup is the route that the node takes to an address; nil when it has none.
func (v *view) lookup(a netip.Addr) *model.Route {
	return v.routing().Lookup(path.Query{Dst: a}).Route
}

// mainTable is RT_TABLE_MAIN.
const mainTable = 254

// byDefaultRoute reports whether the node sends to the address through a default
// route, or one for half of all addresses. With the routes unread it is supposed to.
func (v *view) byDefaultRoute(a netip.Addr) bool {
	d := v.routing().Lookup(path.Query{Dst: a})
	return !d.Discards() && (d.Route == nil || d.Route.Dst.Bits() <= 1)
}

// wayBack is the decision by which the filter judged a packet.
func (v *view) wayBack(d *model.Drop) path.Decision { return v.routing().WayBack(v.arrived(d)) }

// unroutable is the address that no route leads to, because of which the kernel
// refused a packet: where it was for or, to the reverse path filter, its source.
func (v *view) unroutable(d *model.Drop) (netip.Addr, bool) {
	var a netip.Addr
	var way path.Decision
	switch {
	case d.Link == "":
		return a, false
	case d.LookupRefusedFor("IP_INNOROUTES") || d.LookupRefused6():
		a, way = d.Dst, v.routing().Lookup(v.arrived(d))
	case d.ReverseFiltered() && !v.nodeAddrs[d.Src]:
		a, way = d.Src, v.wayBack(d)
	default:
		return a, false
	}
	return a, way.Route == nil && !way.Discards()
}
