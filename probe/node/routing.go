package node

import (
	"net/netip"

	"github.com/lasthop/lasthop/probe/model"
	"github.com/lasthop/lasthop/probe/path"
	"github.com/lasthop/lasthop/probe/words"
)

// HasDefault reports whether the node has a default route of a version of IP.
func HasDefault(v *Index, six bool) bool { return v.DefaultRoute(six).Dst.IsValid() }

// Directly reports whether the node reaches an address without a router: within
// a network on a link that leads off the node, or by a route of its own.
func Directly(v *Index, a netip.Addr) bool { return v.onLinkAlone[a] || model.InAny(v.OnLink, a) }

// ShownRoute is a route with the name of its link, empty where it has none: in a page it is as
// ip(8) prints it, and Typed as ip(8) takes it from a shell.
type ShownRoute struct {
	*model.Route
	Link string
}

// Shown is nil for no route.
func (v *Index) Shown(r *model.Route) *ShownRoute {
	if r == nil {
		return nil
	}
	if l := v.ByIndex[r.IfIndex]; l != nil && r.IfIndex != 0 {
		return &ShownRoute{r, l.Name}
	}
	return &ShownRoute{r, ""}
}

func (r *ShownRoute) String() string { return words.RouteText(r.Route, r.Link) }

// Typed are the words that ip(8) adds or deletes it by.
func (r *ShownRoute) Typed() words.Command { return words.TypedRoute(r.Route, r.Link) }

// Delete is the command that deletes it, or says where to if a daemon keeps it.
func (r *ShownRoute) Delete() words.Command { return words.DeleteRoute(r.Route, r.Link) }

// RouteText is a route as ip prints it.
func (v *Index) RouteText(r *model.Route) string { return v.Shown(r).String() }

// ShownRule is the same for a routing rule.
type ShownRule struct{ *model.RoutingRule }

// ShowRule is a routing rule for a page of words.
func ShowRule(r *model.RoutingRule) *ShownRule {
	return model.Either(r == nil, nil, &ShownRule{r})
}

func (r *ShownRule) String() string { return words.RoutingRuleText(r.RoutingRule) }

// Typed are the same of a rule.
func (r *ShownRule) Typed() words.Command { return words.RoutingRule(r.RoutingRule) }

// SentBy is a packet as the node's routing gets it: a pod's comes by a link, the node's own by none. It is one of a flow
// without a reply, if there is one: rules may look at its ports.
func (v *Index) SentBy(src, dst netip.Addr) path.Query {
	p := path.Packet{Src: src, Dst: dst}
	if st := v.FlowStates[Pair{src, dst}]; st != nil && len(st.Silent) > 0 {
		p = FlowPacket(st.Silent[0])
	}
	return v.Sent(p)
}

// Sent is a given packet as the node's routing gets it.
func (v *Index) Sent(p path.Packet) path.Query {
	for _, pod := range v.Owners[p.Src] {
		if l := v.NatLink(pod.LinkIndex); l != "" {
			p.In = []string{l}
		}
	}
	return v.Query(p)
}

// PacketOf is one packet of a drop.
func (v *Index) PacketOf(d *model.Drop) path.Packet {
	p := path.Packet{Src: d.Src, Dst: d.Dst, Proto: d.Proto}
	p.SrcPort, p.DstPort, _ = v.Classifier.Samples.Of(d).Ports()
	return p
}

// Arrived is a dropped packet as the node's routing got it.
func (v *Index) Arrived(d *model.Drop) path.Query {
	p := v.PacketOf(d)
	p.In = []string{d.Link}
	return v.Query(p)
}

// Lookup is the route that the node takes to an address; nil when it has none.
func (v *Index) Lookup(a netip.Addr) *model.Route {
	return v.Routing().Lookup(path.Query{Dst: a}).Route
}

// MainTable is RT_TABLE_MAIN.
const MainTable = 254

// ByDefaultRoute reports whether the node sends to the address through a default
// route, or one for half of all addresses. With the routes unread it is supposed to.
func (v *Index) ByDefaultRoute(a netip.Addr) bool {
	d := v.Routing().Lookup(path.Query{Dst: a})
	return !d.Discards() && (d.Route == nil || d.Route.Dst.Bits() <= 1)
}

// ReturnPath is the decision by which the filter judged a packet.
func (v *Index) ReturnPath(d *model.Drop) path.Decision { return v.Routing().ReturnPath(v.Arrived(d)) }
