package collect

import (
	"maps"
	"net/netip"
	"slices"

	"golang.org/x/sys/unix"

	"github.com/lasthop/lasthop/probe/collect/link"
	"github.com/lasthop/lasthop/probe/collect/pods"
	"github.com/lasthop/lasthop/probe/model"
)

// tunnels are the kinds of links that encapsulate packets.
var tunnels = []string{
	"vxlan", "geneve", "gre", "gretap", "ip6gre", "ip6gretap", "erspan", "ip6erspan",
	"ipip", "ip6tnl", "sit", "vti", "vti6", "wireguard", "bareudp", "xfrm",
}

// taps are the kinds of links that lead to a program, such as a virtual machine,
// or nowhere. None is an uplink by itself.
var taps = []string{"tun", "dummy", "ifb", "macvtap", "ipvtap"}

// view is the plain data that uplinks and roles are derived from.
type view struct {
	links     []model.Link
	routes    []model.Route
	neighbors []model.Neighbor
	fdb       []model.FDBEntry
	frames    []model.FrameRule
	// far are the namespaces behind links, by number.
	far map[int]*pods.Namespace
	// given are the names of --uplink. They override all signs.
	given []string
}

func (v *view) link(index int) *model.Link {
	return model.First(v.links, func(l *model.Link) bool { return l.Index == index })
}

// defaults returns the next hops of the default routes of the main table, and of those default routes in other
// tables whose gateway is in a network of their link: policy routing to a second NIC. Plugins have
// tables with default routes too, through links of their own, whose addresses are in no network. Two halves of
// all addresses are a default route as well: so VPNs get ahead of the node's own.
func defaults(routes []model.Route, links []model.Link) []model.Route {
	var out []model.Route
	for _, r := range routes {
		if !r.Dst.IsValid() || r.Type != "unicast" || r.Dst.Bits() > 1 {
			continue
		}
		for _, hop := range append([]model.Route{r}, r.NextHops...) {
			if r.Table == unix.RT_TABLE_MAIN || networked(hop, links) {
				out = append(out, hop)
			}
		}
	}
	return out
}

// networked reports whether the next hop's gateway is in a network of its link, and
// the link is of a kind that leads off the node.
func networked(hop model.Route, links []model.Link) bool {
	return slices.ContainsFunc(links, func(l model.Link) bool {
		if l.Index != hop.IfIndex || l.Kind == "bridge" || isVirtual(&l) ||
			link.Paired(l.Kind) && l.PeerNetNSID < 0 {
			return false
		}
		return slices.ContainsFunc(networks(&l), func(p netip.Prefix) bool { return p.Contains(hop.Gateway) })
	})
}

// networks returns the link's addresses that are in a network of more machines.
func networks(l *model.Link) []netip.Prefix {
	return model.Filter(l.Addresses, func(a netip.Prefix) bool { return !a.IsSingleIP() && a.Addr().IsGlobalUnicast() })
}

// isNIC reports whether the link is a NIC, a bond, or the NIC of a container: a veth to what is no pod.
func (v *view) isNIC(l *model.Link) bool {
	switch l.Kind {
	case "", "bond", "team":
		// The loopback device has no MAC.
		return !l.MAC.IsZero()
	}
	ns, far := pods.Far(v.far, l)
	return link.Paired(l.Kind) && l.PeerNetNSID >= 0 && (ns == nil || !ns.IsPod(far))
}

// nics returns the NICs that are in a network or have a route to a gateway, whether or not a default route
// leads there, and the NICs in a bridge that is in a network. A default route by a link on top of another, such
// as a VLAN, may pass any of them: then its packets would count twice, and no NIC is returned.
func (v *view) nics(found map[int]bool) (out []int) {
	for l := range model.Each(v.links) {
		if found[l.Index] && l.Kind != "bridge" && !v.isNIC(l) {
			return nil
		}
	}
	routed := func(l *model.Link) bool {
		return !link.Paired(l.Kind) && slices.ContainsFunc(v.routes, func(r model.Route) bool {
			return r.IfIndex == l.Index && r.Type == "unicast" && r.Gateway.IsValid()
		})
	}
	for l := range model.Each(v.links) {
		switch {
		case l.Kind == "bridge" && len(networks(l)) > 0:
			out = append(out, v.portsWith(l, func(p *model.Link) bool { return !link.Paired(p.Kind) && v.isNIC(p) })...)
		case l.Master == 0 && v.isNIC(l) && (len(networks(l)) > 0 || routed(l)):
			out = append(out, l.Index)
		}
	}
	return out
}

// uplinks returns the names of the uplinks, in the order of their indexes: where the
// default routes lead, and the node's other NICs.
func (v *view) uplinks() []string {
	if len(v.given) > 0 {
		return v.given
	}
	found := map[int]bool{}
	for _, hop := range defaults(v.routes, v.links) {
		l := v.link(hop.IfIndex)
		switch {
		case l == nil:
		case l.Kind == "bridge":
			maps.Copy(found, model.SetOf(v.ports(l, hop.Gateway)))
		default:
			found[l.Index] = true
		}
	}
	maps.Copy(found, model.SetOf(v.nics(found)))
	return model.Flat(v.links, func(l model.Link) []string { return model.Either(found[l.Index], []string{l.Name}, nil) })
}

// ports returns the ports that are uplinks of a bridge that has the default route.
// The first sign that holds for any port decides.
func (v *view) ports(bridge *model.Link, gateway netip.Addr) []int {
	signs := []func(*model.Link) bool{
		func(p *model.Link) bool { return !link.Paired(p.Kind) && !isVirtual(p) },
		func(p *model.Link) bool { return v.learnt(p, gateway) },
		func(p *model.Link) bool { return v.holdsGateway(p, gateway) },
		func(p *model.Link) bool {
			ns, far := pods.Far(v.far, p)
			return ns != nil && !ns.IsPod(far)
		},
		v.rewrittenSource,
	}
	for _, sign := range signs {
		if out := v.portsWith(bridge, sign); len(out) > 0 {
			return out
		}
	}
	out := v.portsWith(bridge, v.noDefault)
	return model.Either(len(out) == 1, out, nil)
}

func (v *view) portsWith(bridge *model.Link, sign func(*model.Link) bool) []int {
	ports := model.Chosen(v.links, func(p *model.Link) bool { return p.Master == bridge.Index && sign(p) })
	return model.Map(ports, func(p *model.Link) int { return p.Index })
}

// isVirtual reports whether the link is a tunnel or leads to a program.
func isVirtual(l *model.Link) bool {
	return slices.Contains(tunnels, l.Kind) || slices.Contains(taps, l.Kind)
}

// noDefault reports whether nothing behind the port has a default route.
func (v *view) noDefault(port *model.Link) bool {
	ns, _ := pods.Far(v.far, port)
	return !isVirtual(port) &&
		(ns == nil || !slices.ContainsFunc(ns.Routes, func(r model.Route) bool { return r.Dst.IsValid() && r.Dst.Bits() == 0 }))
}

// holdsGateway reports whether a link behind the port has the gateway's address. The gateway need not answer.
func (v *view) holdsGateway(port *model.Link, gateway netip.Addr) bool {
	ns, _ := pods.Far(v.far, port)
	return ns != nil && gateway.IsValid() && slices.ContainsFunc(ns.Links, func(l model.Link) bool {
		return slices.ContainsFunc(l.Addresses, func(a netip.Prefix) bool { return a.Addr() == gateway })
	})
}

// learnt reports whether the bridge has learnt the gateway's MAC at the port.
func (v *view) learnt(port *model.Link, gateway netip.Addr) bool {
	return slices.ContainsFunc(v.neighbors, func(n model.Neighbor) bool {
		return n.Addr == gateway && n.IfIndex == port.Master && !n.MAC.IsZero() &&
			slices.ContainsFunc(v.fdb, func(e model.FDBEntry) bool { return e.MAC == n.MAC && e.IfIndex == port.Index && !e.Local })
	})
}

// rewrittenSource reports whether a rule rewrites the source MAC of frames that leave by the port.
func (v *view) rewrittenSource(port *model.Link) bool {
	return slices.ContainsFunc(v.frames, func(r model.FrameRule) bool {
		return r.Table == "nat" && r.Chain == "POSTROUTING" && r.Target == model.TargetSNAT &&
			r.Out.Name != "" && r.Out.Matches(port.Name)
	})
}

// assign sets the links' roles and returns the pods behind them.
func (v *view) assign(uplinks []string) []model.Pod {
	var out []model.Pod
	for l := range model.Each(v.links) {
		ns, far := pods.Far(v.far, l)
		switch {
		case slices.Contains(uplinks, l.Name):
			l.Role = model.RoleUplink
		case l.Kind == "bridge":
			l.Role = model.RoleBridge
		case slices.Contains(tunnels, l.Kind), l.Kind == "tun" && l.MAC.IsZero():
			// A tun without a MAC is a VPN's, one with a MAC a virtual machine's.
			l.Role = model.RoleTunnel
		case link.Paired(l.Kind) && l.PeerNetNSID < 0 && v.link(l.Peer) != nil:
			// Both ends are in the node, such as cilium_host's.
			l.Role = model.RoleRouter
		case ns != nil && ns.IsPod(far):
			l.Role = model.RolePodLink
			out = append(out, ns.Pod(l, far))
		default:
			l.Role = model.RoleOther
		}
	}
	return out
}
