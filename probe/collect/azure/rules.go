package azure

import (
	"cmp"
	"fmt"
	"slices"
	"strconv"
	"strings"

	"github.com/lasthop/lasthop/probe/model"
)

// ofNIC decodes what applies to a NIC, with its name.
func (d *decoder) ofNIC(f fields) {
	nic := d.id(f.NetworkInterface)
	if f.EffectiveRoutes != nil {
		e := model.EffectiveRoutes{NIC: nic, File: d.path}
		for r := range d.each(f.EffectiveRoutes.Value) {
			e.Routes = append(e.Routes, d.udr(r.all()))
		}
		d.a.Effective = append(d.a.Effective, e)
	}
	if f.EffectiveSecurityGroups != nil {
		e := model.EffectiveRules{NIC: nic, File: d.path}
		for r := range d.each(f.EffectiveSecurityGroups.Value) {
			e.Groups = append(e.Groups, d.effectiveGroup(r.all()))
		}
		d.a.Rules = append(d.a.Rules, e)
	}
}

func (d *decoder) group(f fields) {
	d.a.Groups = append(d.a.Groups, model.SecurityGroup{ID: f.ID, File: d.path, Rules: d.rules(append(f.SecurityRules, f.DefaultSecurityRules...))})
}

// effectiveGroup decodes what applies of a group, whose rules have names such as defaultSecurityRules/DenyAllInBound.
func (d *decoder) effectiveGroup(f fields) model.SecurityGroup {
	g := model.SecurityGroup{ID: d.id(f.NetworkSecurityGroup), File: d.path, Rules: d.rules(f.EffectiveSecurityRules)}
	for r := range model.Each(g.Rules) {
		if _, name, found := strings.Cut(r.Name, "/"); found {
			r.Name = name
		}
	}
	return g
}

func (d *decoder) rules(l list) (out []model.SecurityRule) {
	for r := range d.each(l) {
		out = append(out, d.rule(r.all()))
	}
	slices.SortStableFunc(out, func(a, b model.SecurityRule) int { return cmp.Compare(a.Priority, b.Priority) })
	return out
}

// ruleProtocols are Azure's names of protocols.
var ruleProtocols = map[string]uint8{"*": 0, "all": 0, "tcp": 6, "udp": 17, "icmp": 1, "icmpv6": 58, "esp": 50, "ah": 51}

func (d *decoder) rule(f fields) model.SecurityRule {
	protocol, known := ruleProtocols[strings.ToLower(f.Protocol)]
	r := model.SecurityRule{
		Name: f.Name, Priority: f.Priority, Protocol: protocol,
		Outbound: strings.EqualFold(f.Direction, "Outbound"), Deny: strings.EqualFold(f.Access, "Deny"),
		From: d.end("source", []any{f.SourceAddressPrefix, f.SourceAddressPrefixes}, f.ExpandedSourceAddressPrefix,
			[]any{f.SourcePortRange, f.SourcePortRanges}, f.SourceApplicationSecurityGroups),
		To: d.end("destination", []any{f.DestinationAddressPrefix, f.DestinationAddressPrefixes}, f.ExpandedDestinationAddressPrefix,
			[]any{f.DestinationPortRange, f.DestinationPortRanges}, f.DestinationApplicationSecurityGroups),
	}
	known = known && (r.Outbound || strings.EqualFold(f.Direction, "Inbound")) && (r.Deny || strings.EqualFold(f.Access, "Allow"))
	if !known || r.Priority == 0 {
		d.fail(f.ID, "a security rule with a known \"direction\", \"access\", \"protocol\" and \"priority\"", "found none or another")
	}
	return r
}

// end decodes one end of a rule. Azure's expansion takes the place of the names.
func (d *decoder) end(which string, addresses, expanded, ports any, groups list) (e model.SecurityEnd) {
	if e.Prefixes, _ = d.prefixes(expanded, "expanded"+which+"AddressPrefix"); len(e.Prefixes) == 0 {
		prefixes, tags := d.prefixes(addresses, which+"AddressPrefix")
		e.Prefixes, e.Names = model.With(nil, prefixes...), model.With(nil, tags...)
	}
	e.Names = append(e.Names, d.ids(groups)...)
	want := "ports such as 80 or 8000-8080 at \"" + which + "PortRange\""
	for _, s := range d.texts(ports, want) {
		first, last, _ := strings.Cut(s, "-")
		from, err := strconv.ParseUint(first, 10, 16)
		to, err2 := strconv.ParseUint(cmp.Or(last, first), 10, 16)
		switch {
		case s == "*" || s == "0-65535":
			e.Ports = nil
			return e
		case err != nil || err2 != nil:
			d.fail(s, want, fmt.Sprintf("found %q", s))
		}
		e.Ports = model.With(e.Ports, model.PortRange{First: uint16(from), Last: uint16(to)})
	}
	return e
}
