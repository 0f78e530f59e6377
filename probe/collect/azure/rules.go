package azure

import (
	"cmp"
	"slices"
	"strconv"
	"strings"

	"github.com/lasthop/lasthop/probe/model"
)

// effectiveRoutes and effectiveRules are the fields, in lower case, of what Client makes of the answers about a NIC,
// which do not name it.
const (
	effectiveRoutes = "effectiveroutes"
	effectiveRules  = "effectivesecuritygroups"
)

// ofNIC decodes what applies to a NIC, with its name.
func (d *decoder) ofNIC(f fields) {
	nic := d.reference(f, "networkInterface")
	answer := func(name string) []any { return d.fields(f.get(name)).list("value") }
	if f.has(effectiveRoutes) {
		e := model.EffectiveRoutes{NIC: nic, File: d.path}
		for _, v := range answer(effectiveRoutes) {
			e.Routes = append(e.Routes, d.udr(d.fields(v)))
		}
		d.a.Effective = append(d.a.Effective, e)
	}
	if f.has(effectiveRules) {
		e := model.EffectiveRules{NIC: nic, File: d.path}
		for _, v := range answer(effectiveRules) {
			e.Groups = append(e.Groups, d.effectiveGroup(d.fields(v)))
		}
		d.a.Rules = append(d.a.Rules, e)
	}
}

func (d *decoder) group(f fields, id string) {
	g := model.SecurityGroup{ID: id, File: d.path}
	for _, name := range []string{"securityRules", "defaultSecurityRules"} {
		for _, v := range f.list(name) {
			g.Rules = append(g.Rules, d.rule(d.fields(v)))
		}
	}
	sortRules(g.Rules)
	d.a.Groups = append(d.a.Groups, g)
}

// effectiveGroup decodes what applies of a group, whose rules have names such as defaultSecurityRules/DenyAllInBound.
func (d *decoder) effectiveGroup(f fields) model.SecurityGroup {
	g := model.SecurityGroup{ID: d.reference(f, "networkSecurityGroup"), File: d.path}
	for _, v := range f.list("effectiveSecurityRules") {
		r := d.rule(d.fields(v))
		if _, name, found := strings.Cut(r.Name, "/"); found {
			r.Name = name
		}
		g.Rules = append(g.Rules, r)
	}
	sortRules(g.Rules)
	return g
}

func sortRules(list []model.SecurityRule) {
	slices.SortStableFunc(list, func(a, b model.SecurityRule) int { return cmp.Compare(a.Priority, b.Priority) })
}

// ruleProtocols are Azure's names of protocols.
var ruleProtocols = map[string]uint8{"*": 0, "all": 0, "tcp": 6, "udp": 17, "icmp": 1, "icmpv6": 58, "esp": 50, "ah": 51}

func (d *decoder) rule(f fields) model.SecurityRule {
	r := model.SecurityRule{Name: d.string(f, "name"), From: d.end(f, "source"), To: d.end(f, "destination")}
	var known [3]bool
	r.Outbound, known[0] = d.oneOf(f, "direction", "Inbound", "Outbound")
	r.Deny, known[1] = d.oneOf(f, "access", "Allow", "Deny")
	r.Protocol, known[2] = ruleProtocols[strings.ToLower(d.string(f, "protocol"))]
	r.Priority = int(as[float64](d, f.get("priority"), "a number at \"priority\""))
	if known != [3]bool{true, true, true} {
		d.fail(f.own, "a security rule with a known \"direction\", \"access\", \"protocol\" and \"priority\"", "found none or another")
	}
	return r
}

// oneOf reports whether a field has the second of two values, and whether it has one of them.
func (d *decoder) oneOf(f fields, name, first, second string) (is, known bool) {
	s := d.string(f, name)
	is = strings.EqualFold(s, second)
	return is, is || strings.EqualFold(s, first)
}

// end decodes one end of a rule. Azure's expansion takes the place of the names.
func (d *decoder) end(f fields, which string) model.SecurityEnd {
	var e model.SecurityEnd
	if expanded := "expanded" + which + "AddressPrefix"; f.has(expanded) && len(f.list(expanded)) > 0 {
		e.Prefixes, _ = d.prefixes(f, expanded)
	} else {
		for _, name := range []string{"AddressPrefix", "AddressPrefixes"} {
			prefixes, tags := d.prefixes(f, which+name)
			e.Prefixes, e.Names = model.With(e.Prefixes, prefixes...), model.With(e.Names, tags...)
		}
	}
	for _, v := range f.list(which + "ApplicationSecurityGroups") {
		e.Names = append(e.Names, d.id(v))
	}
	for _, v := range append(f.list(which+"PortRange"), f.list(which+"PortRanges")...) {
		s := as[string](d, v, "a string at \""+which+"PortRange\"")
		if s == "" {
			continue
		}
		first, last, _ := strings.Cut(s, "-")
		from, err := strconv.ParseUint(first, 10, 16)
		to, err2 := strconv.ParseUint(cmp.Or(last, first), 10, 16)
		switch {
		case s == "*" || s == "0-65535":
			e.Ports = nil
			return e
		case err != nil || err2 != nil:
			d.fail(v, "ports such as 80 or 8000-8080 at \""+which+"PortRange\"", "found "+found(v))
		}
		e.Ports = model.With(e.Ports, model.PortRange{First: uint16(from), Last: uint16(to)})
	}
	return e
}
