package diagnose

import (
	"net/netip"
	"slices"

	"github.com/lasthop/lasthop/probe/model"
)

func findMissingDefaultRoute(v *view) {
	if !v.Has(model.SourceRoutes) {
		return
	}
	has := map[bool]bool{false: hasDefault(v.index, false), true: hasDefault(v.index, true)}
	reportBy(v, func(d *model.Drop) (six bool, pod netip.Addr) {
		a, is := v.unroutable(d)
		if is && !has[a.Is6()] && v.elsewhere(a) && !model.InAny(v.ranges.local, a) {
			pod = v.pod(d)
		}
		return a.Is6(), pod
	}, func(six bool, l *lost) finding { return v.withoutDefault(six, l) })
}

func hasDefault(v *index, six bool) bool { return v.defaultRoute(six).Dst.IsValid() }

func (v *index) withoutDefault(six bool, l *lost) finding {
	f := finding{lost: l, claims: func(d *model.Drop) bool {
		a, is := v.unroutable(d)
		return is && a.Is6() == six && v.elsewhere(a)
	}}
	f.LastHopAlive = v.place(mostDropped(l.drops)[0].Link, model.Ingress)
	f.facts = facts{"link": "UPLINK", "drops": l.evidence(), "to": sorted(l.peers)[0]}
	if i := slices.IndexFunc(l.drops, func(d *model.Drop) bool { return d.Is(model.ReverseFiltered) }); i >= 0 {
		f.facts["link"], f.facts["filtered"] = l.drops[i].Link, true
	} else if nic := downNIC(v); nic != nil {
		f.facts["link"], f.facts["card"] = nic.Name, nic
	} else if i := v.anUplink(); i != 0 {
		f.facts["link"] = v.linkName(i)
	}
	if six && hasDefault(v, false) {
		v.besideIPv4(&f, l)
	}
	f.facts["nodes"] = !slices.ContainsFunc(sorted(l.peers), func(a netip.Addr) bool { return !v.remote(a).IsValid() })
	return f
}

// besideIPv4 judges that only IPv4 has a default route. Where a node is not meant to reach the internet by IPv6, as its
// address may tell, applications try it and fall back. Nobody falls back for the network's own addresses.
func (v *index) besideIPv4(f *finding, l *lost) {
	if slices.ContainsFunc(sorted(l.peers), func(a netip.Addr) bool { return !model.Public(a) }) {
		return
	}
	own := slices.ContainsFunc(sorted(v.nodeAddrs), func(a netip.Addr) bool { return a.Is6() && model.Public(a) })
	f.Severity, f.facts["fallback"] = model.Either(own && l.lasting(), model.Warning, model.Info), true
}

// downNIC is a link that is down and has an address of the node's, such as a
// NIC: not what is down on purpose, to hold addresses alone.
func downNIC(v *index) *model.Link {
	kinds := []string{"", "veth", "vlan", "bond", "macvlan"}
	return model.First(v.Links, func(l *model.Link) bool {
		return !l.Up && l.Role != model.RolePodLink && slices.Contains(kinds, l.Kind) &&
			slices.ContainsFunc(l.Addresses, func(a netip.Prefix) bool { return a.Addr().IsGlobalUnicast() })
	})
}
