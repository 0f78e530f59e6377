package diagnose

import (
	"net/netip"
	"slices"

	"github.com/lasthop/lasthop/probe/model"
)

// MissingDefaultRoute is the code of this finding.
const MissingDefaultRoute model.Code = "MissingDefaultRoute"

var missingDefaultRoute = kind{
	code:     MissingDefaultRoute,
	severity: model.Critical,
	find:     findMissingDefaultRoute,
}

func findMissingDefaultRoute(v *view) []finding {
	if !v.Has(model.SourceRoutes) || hasDefault(v, false) {
		return nil
	}
	has6 := hasDefault(v, true)
	return foundBy(v, func(d *model.Drop) (six bool, pod netip.Addr) {
		a, is := v.unroutable(d)
		if is && !(a.Is6() && has6) && v.elsewhere(a) && !inAny(v.ranges.local, a) {
			pod = v.pod(d)
		}
		return a.Is6(), pod
	}, v.withoutDefault)
}

// hasDefault reports whether the main table has a default route of the family.
func hasDefault(v *view, six bool) bool { return v.defaultRoute(six).Dst.IsValid() }

func (v *view) withoutDefault(six bool, l *lost) finding {
	f := finding{lost: l, claims: func(d *model.Drop) bool {
		a, is := v.unroutable(d)
		return is && a.Is6() == six && v.elsewhere(a)
	}}
	f.LastHopAlive = v.place(mostDropped(l.drops)[0].Link, model.Ingress)
	f.facts = facts{"link": "UPLINK", "drops": l.evidence(), "to": sorted(l.peers)[0]}
	if i := slices.IndexFunc(l.drops, (*model.Drop).ReverseFiltered); i >= 0 {
		f.facts["link"], f.facts["filtered"] = l.drops[i].Link, true
	} else if card := downCard(v); card != nil {
		f.facts["link"], f.facts["card"] = card.Name, card
	} else if i := v.anUplink(); i != 0 {
		f.facts["link"] = v.linkName(i)
	}
	f.facts["nodes"] = !slices.ContainsFunc(sorted(l.peers), func(a netip.Addr) bool { return !v.remote(a).IsValid() })
	return f
}

// downCard is a link that is down and has an address of the node's, such as a
// network card: not what is down on purpose, to hold addresses alone.
func downCard(v *view) *model.Link {
	cards := []string{"", "veth", "vlan", "bond", "macvlan"}
	return model.First(v.Links, func(l *model.Link) bool {
		return !l.Up && l.Role != model.RolePodLink && slices.Contains(cards, l.Kind) &&
			slices.ContainsFunc(l.Addresses, func(a netip.Prefix) bool { return a.Addr().IsGlobalUnicast() })
	})
}
