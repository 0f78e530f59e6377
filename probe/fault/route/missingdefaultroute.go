package route

import (
	"net/netip"
	"slices"

	"github.com/lasthop/lasthop/probe/fault"
	"github.com/lasthop/lasthop/probe/model"
	"github.com/lasthop/lasthop/probe/node"
	"github.com/lasthop/lasthop/probe/words"
)

// MissingDefaultRoute reports a node without a default route.
var MissingDefaultRoute = fault.Kind{Code: "MissingDefaultRoute", Severity: model.Critical, Find: missingDefaultRoute,
	Objects: fault.Objects{"link to.Is4", "link"}, Traits: model.Astray, Else: fault.Else{"fallback", "nodes"}}

func missingDefaultRoute(v *fault.Input) {
	if !v.Has(model.SourceRoutes) {
		return
	}
	has := map[bool]bool{false: node.HasDefault(v.Index, false), true: node.HasDefault(v.Index, true)}
	fault.ReportBy(v, func(d *model.Drop) (six bool, pod netip.Addr) {
		if g := unlearned(v.Index, d); g.IsValid() {
			return g.Is6(), d.Src
		}
		a, is := unroutable(v.Index, d)
		if is && !has[a.Is6()] && v.Elsewhere(a) && !model.InAny(v.Ranges.Local, a) {
			pod = v.Pod(d)
		}
		return a.Is6(), pod
	}, func(six bool, l *node.Lost) fault.Fault { return withoutDefault(v.Index, six, l) })
}

func withoutDefault(v *node.Index, six bool, l *node.Lost) fault.Fault {
	f := fault.Fault{Lost: l, Lacks: node.LacksRoute, Claims: func(d *model.Drop) bool {
		a, is := unroutable(v, d)
		return is && a.Is6() == six && v.Elsewhere(a) || !six && unlearned(v, d).IsValid()
	}}
	f.LastHopAlive = v.Place(node.MostDropped(l.Drops)[0].Link, model.Ingress)
	f.Facts = words.Facts{"link": "UPLINK", "drops": l.Evidence(), "to": node.Sorted(l.Peers)[0]}
	if i := slices.IndexFunc(l.Drops, func(d *model.Drop) bool { return d.Is(model.ReverseFiltered) }); i >= 0 {
		f.Facts["link"], f.Facts["filtered"] = l.Drops[i].Link, true
	} else if nic := downNIC(v); nic != nil {
		f.Facts["link"], f.Facts["card"] = nic.Name, nic
	} else if i := v.AnUplink(); i != 0 {
		f.Facts["link"] = v.LinkName(i)
	}
	f.Facts["bare"] = !six && f.Facts["card"] == nil && unaddressed(v)
	if at := slices.IndexFunc(l.Drops, func(d *model.Drop) bool { return unlearned(v, d).IsValid() }); at >= 0 {
		from := l.Drops[at].Src
		f.Facts["proxied"], f.LastHopAlive = v.Unrouted(from), v.Place(v.Owners[from][0].Link, model.Ingress)
	}
	if six && node.HasDefault(v, false) {
		besideIPv4(v, &f, l)
	}
	f.Facts["nodes"] = !slices.ContainsFunc(node.Sorted(l.Peers), func(a netip.Addr) bool { return !v.Remote(a).IsValid() })
	return f
}

// unlearned is the gateway of a pod that waited in vain for its MAC, which the node does not answer for without a route; else
// invalid.
func unlearned(v *node.Index, d *model.Drop) (none netip.Addr) {
	if d.Is(model.NeighborFailed) {
		return v.Unrouted(d.Src)
	}
	return none
}

// besideIPv4 judges that only IPv4 has a default route. Where a node is not meant to reach the internet by IPv6, as its
// address may tell, applications try it and fall back. Nobody falls back for the network's own addresses.
func besideIPv4(v *node.Index, f *fault.Fault, l *node.Lost) {
	if slices.ContainsFunc(node.Sorted(l.Peers), func(a netip.Addr) bool { return !model.Public(a) }) {
		return
	}
	own := slices.ContainsFunc(node.Sorted(v.Own), func(a netip.Addr) bool { return a.Is6() && model.Public(a) })
	f.Severity, f.Facts["fallback"] = model.Either(own && l.Lasting(), model.Warning, model.Info), true
}

// downNIC is a link that is down and has an address of the node's, such as a
// NIC: not what is down on purpose, to hold addresses alone.
func downNIC(v *node.Index) *model.Link {
	kinds := []string{"", "veth", "vlan", "bond", "macvlan"}
	return model.First(v.Links, func(l *model.Link) bool {
		return !l.Up && l.Role != model.RolePodLink && slices.Contains(kinds, l.Kind) &&
			slices.ContainsFunc(l.Addresses, func(a netip.Prefix) bool { return a.Addr().IsGlobalUnicast() })
	})
}

// unaddressed reports whether the node has no network of IPv4 beside those of its pods: no route can have a next hop then.
func unaddressed(v *node.Index) bool {
	return !slices.ContainsFunc(v.OnLink, func(p netip.Prefix) bool { return p.Addr().Is4() })
}
