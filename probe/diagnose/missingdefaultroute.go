package diagnose

import (
	"fmt"
	"net/netip"
	"slices"

	"github.com/lasthop/lasthop/probe/model"
	"github.com/lasthop/lasthop/probe/words"
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
	groups := map[bool]*lost{}
	for d := range model.Each(v.Traffic.Drops) {
		a, is := v.unroutable(d)
		if !is || a.Is6() && has6 || !v.elsewhere(a) || inAny(v.ranges.local, a) || !v.ofPod(d) || v.explained(d) {
			continue
		}
		entry(groups, a.Is6()).add(v, d)
	}
	var out []finding
	for six, l := range groups {
		if l.packets >= minDrops {
			out = append(out, withoutDefault(v, six, l))
		}
	}
	return out
}

// hasDefault reports whether the main table has a default route of the family.
func hasDefault(v *view, six bool) bool { return v.defaultRoute(six).Dst.IsValid() }

func withoutDefault(v *view, six bool, l *lost) finding {
	f, peers := l.finding(), sorted(l.peers)
	f.LastHopAlive = v.place(mostDropped(l.drops)[0].Link, model.Ingress)
	f.Title = "no default route for " + words.Family(six)
	f.Why = "The node has no default route: what its pods send beyond its own networks it drops."
	f.Evidence = append(l.evidence(), seen(model.SourceRoutes, "no default route for %s in the main table", words.Family(six)))
	link := "UPLINK"
	if i := slices.IndexFunc(l.drops, (*model.Drop).ReverseFiltered); i >= 0 {
		link = l.drops[i].Link
		f.Why += " What comes from there the reverse path filter refuses, since no way leads back."
	} else if card := downCard(v); card != nil {
		link = card.Name
		f.Why += fmt.Sprintf(" %s %s, and the routes by it went with it.", link, dead(card))
		observe(&f, model.SourceLinks, "%s %s", link, dead(card))
		f.Fix = append(f.Fix, raise(card))
	} else if i := v.anUplink(); i != 0 {
		link = v.linkName(i)
	}
	if !slices.ContainsFunc(f.Peers, func(p netip.Prefix) bool { return !v.remote(p.Addr()).IsValid() }) {
		f.Confidence = model.Likely
		f.Alternatives = []string{"the node is to have none, and its routes to other nodes' pods are gone"}
	}
	f.Fix = append(f.Fix, fmt.Sprintf("%s route add default via GATEWAY dev %s", words.IP(peers[0]), words.Quote(link)))
	return finding{Finding: f, claims: func(d *model.Drop) bool {
		a, is := v.unroutable(d)
		return is && a.Is6() == six && v.elsewhere(a)
	}}
}

// downCard is a link that is down and has an address of the node's, such as a
// network card: not what is down on purpose, to hold addresses alone.
func downCard(v *view) *model.Link {
	cards := []string{"", "veth", "vlan", "bond", "macvlan"}
	i := slices.IndexFunc(v.Links, func(l model.Link) bool {
		return !l.Up && l.Role != model.RolePodLink && slices.Contains(cards, l.Kind) &&
			slices.ContainsFunc(l.Addresses, func(a netip.Prefix) bool { return a.Addr().IsGlobalUnicast() })
	})
	if i < 0 {
		return nil
	}
	return &v.Links[i]
}
