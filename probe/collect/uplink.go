package collect

import (
	"net/netip"
	"slices"

	"github.com/lasthop/lasthop/probe/collect/link"
	"github.com/lasthop/lasthop/probe/collect/pods"
	"github.com/lasthop/lasthop/probe/model"
	"golang.org/x/sys/unix"
)

// tunnels are the kinds of links that wrap packets into others.
var tunnels = []string{
	"vxlan", "geneve", "gre", "gretap", "ip6gre", "ip6gretap", "erspan", "ip6erspan",
	"ipip", "ip6tnl", "sit", "vti", "vti6", "wireguard", "bareudp", "xfrm",
}

// taps are links to programs, such as virtual machines; they lead off the
// node through something else.
var taps = []string{"tun", "dummy", "ifb", "macvtap", "ipvtap"}

// view is what uplinks and roles are told from. It is plain data.
type view struct {
	links     []model.Link
	routes    []model.Route
	neighbors []model.Neighbor
	fdb       []model.FDBEntry
	frames    []model.FrameRule
	// far are the namespaces behind links, by number.
	far map[int]*pods.Namespace
	// given are the names of --uplink, which overrule all else.
	given []string
}

func (v *view) link(index int) *model.Link {
	for i := range v.links {
		if v.links[i].Index == index {
			return &v.links[i]
		}
	}
	return nil
}

// defaults are the hops of the default routes of the main table, and of others
// that lead to a gateway in a network of their link: what policy routing sends
// out by a second card. Plugins too have tables with default routes, by way of
// links of their own, whose addresses are in no network. Where no route is a
// default one (a network of its own, without a way out) they are the hops of all
// such routes.
func defaults(routes []model.Route, links []model.Link) []model.Route {
	var out, others []model.Route
	for _, r := range routes {
		if !r.Dst.IsValid() || r.Type != "unicast" {
			continue
		}
		for _, hop := range append([]model.Route{r}, r.NextHops...) {
			switch {
			case r.Dst.Bits() > 0:
				if networked(hop, links) {
					others = append(others, hop)
				}
			case r.Table == unix.RT_TABLE_MAIN || networked(hop, links):
				out = append(out, hop)
			}
		}
	}
	if len(out) == 0 {
		return others
	}
	return out
}

// networked reports whether the hop's gateway is in a network of its link, which
// leads off the node by itself.
func networked(hop model.Route, links []model.Link) bool {
	return slices.ContainsFunc(links, func(l model.Link) bool {
		if l.Index != hop.IfIndex || l.Kind == "bridge" || slices.Contains(tunnels, l.Kind) || slices.Contains(taps, l.Kind) ||
			link.Paired(l.Kind) && l.PeerNetNSID < 0 {
			return false
		}
		return slices.ContainsFunc(l.Addresses, func(a netip.Prefix) bool {
			return !a.IsSingleIP() && !a.Addr().IsLinkLocalUnicast() && a.Contains(hop.Gateway)
		})
	})
}

// uplinks are the names of the links that lead off the node, in the order of
// their indexes.
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
			for _, i := range v.ports(l, hop.Gateway) {
				found[i] = true
			}
		default:
			found[l.Index] = true
		}
	}
	var out []string
	for i := range v.links {
		if found[v.links[i].Index] {
			out = append(out, v.links[i].Name)
		}
	}
	return out
}

// ports are the ports of a bridge that lead off the node: the bridge holds the
// default route, and the node's own device is one of its ports. The first of
// these signs that names any port decides.
func (v *view) ports(bridge *model.Link, gateway netip.Addr) []int {
	signs := []func(*model.Link) bool{
		func(p *model.Link) bool {
			return !link.Paired(p.Kind) && !slices.Contains(tunnels, p.Kind) && !slices.Contains(taps, p.Kind)
		},
		func(p *model.Link) bool { return v.learnt(p, gateway) },
		func(p *model.Link) bool { return v.holdsGateway(p, gateway) },
		func(p *model.Link) bool {
			ns, far := pods.Far(v.far, p)
			return ns != nil && !ns.IsPod(far)
		},
		v.rewrittenSource,
	}
	for _, sign := range signs {
		var out []int
		for i := range v.links {
			if p := &v.links[i]; p.Master == bridge.Index && sign(p) {
				out = append(out, p.Index)
			}
		}
		if len(out) > 0 {
			return out
		}
	}
	return v.loneStranger(bridge)
}

// loneStranger is the one port of a bridge behind which nobody sends what it has
// no better route for to this node; none where there are several.
func (v *view) loneStranger(bridge *model.Link) []int {
	var out []int
	for i := range v.links {
		p := &v.links[i]
		if p.Master != bridge.Index || slices.Contains(tunnels, p.Kind) || slices.Contains(taps, p.Kind) {
			continue
		}
		ns, _ := pods.Far(v.far, p)
		if ns == nil || !slices.ContainsFunc(ns.Routes, func(r model.Route) bool { return r.Dst.IsValid() && r.Dst.Bits() == 0 }) {
			out = append(out, p.Index)
		}
	}
	if len(out) != 1 {
		return nil
	}
	return out
}

// holdsGateway reports whether the gateway's address is behind the port, as far
// as that can be seen: it need not answer.
func (v *view) holdsGateway(port *model.Link, gateway netip.Addr) bool {
	ns, _ := pods.Far(v.far, port)
	return ns != nil && gateway.IsValid() && slices.ContainsFunc(ns.Links, func(l model.Link) bool {
		return slices.ContainsFunc(l.Addresses, func(a netip.Prefix) bool { return a.Addr() == gateway })
	})
}

// learnt reports whether the gateway's MAC was last seen behind the port.
func (v *view) learnt(port *model.Link, gateway netip.Addr) bool {
	for _, n := range v.neighbors {
		if n.Addr != gateway || n.IfIndex != port.Master || n.MAC.IsZero() {
			continue
		}
		for _, e := range v.fdb {
			if e.MAC == n.MAC && e.IfIndex == port.Index && !e.Local {
				return true
			}
		}
	}
	return false
}

// rewrittenSource reports whether frames that leave by the port get the
// node's own MAC.
func (v *view) rewrittenSource(port *model.Link) bool {
	return slices.ContainsFunc(v.frames, func(r model.FrameRule) bool {
		return r.Table == "nat" && r.Chain == "POSTROUTING" && r.Target == model.TargetSNAT &&
			r.Out.Name != "" && r.Out.Matches(port.Name)
	})
}

// assign sets the links' roles and returns the pods behind them.
func (v *view) assign(uplinks []string) []model.Pod {
	var out []model.Pod
	for i := range v.links {
		l := &v.links[i]
		ns, far := pods.Far(v.far, l)
		switch {
		case slices.Contains(uplinks, l.Name):
			l.Role = model.RoleUplink
		case l.Kind == "bridge":
			l.Role = model.RoleBridge
		case slices.Contains(tunnels, l.Kind):
			l.Role = model.RoleTunnel
		case link.Paired(l.Kind) && l.PeerNetNSID < 0 && v.link(l.Peer) != nil:
			// Both ends are in the node, as of cilium_host.
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
