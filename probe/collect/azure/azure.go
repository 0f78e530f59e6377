// Package azure reads files that the az command line printed about a virtual network: route tables and their
// routes, subnets, NICs, security groups, and the effective routes and security rules of a NIC. It takes the output of
// az itself and that of the resource manager, which has most fields under "properties". Client asks for the same.
//
// A file that cannot be read, or is none of these, is an error with its place and
// what was expected there. What no file describes is not in the result.
package azure

import (
	"errors"
	"net/netip"
	"strings"

	"github.com/lasthop/lasthop/probe/collect/files"
	"github.com/lasthop/lasthop/probe/model"
)

// want is what a file should be.
const want = "the output of `az network route-table list|show`, `route-table route list`, `vnet subnet show`, `nic show`, " +
	"`nsg list|show`, `nic list-effective-nsg` or `nic show-effective-route-table`, with -o json"

// Read reads files and merges what they hold of one resource. Every error is a *files.Error.
func Read(given files.Given, paths []string) (model.Azure, error) {
	var a model.Azure
	for _, path := range paths {
		name, text, err := given.Read(path)
		if err != nil {
			return model.Azure{}, err
		}
		more, err := Decode(name, text)
		if err != nil {
			return model.Azure{}, err
		}
		Merge(&a, &more)
	}
	return a, nil
}

// Merge adds what one source holds to that of others.
func Merge(a, more *model.Azure) {
	for _, t := range more.Tables {
		addTable(a, t)
	}
	a.Subnets = append(a.Subnets, more.Subnets...)
	a.Effective = append(a.Effective, more.Effective...)
	a.NICs = append(a.NICs, more.NICs...)
	a.Groups = append(a.Groups, more.Groups...)
	a.Rules = append(a.Rules, more.Rules...)
}

// Decode reads the text of one file, whose name errors hold as path.
func Decode(path string, text []byte) (model.Azure, error) {
	d := &decoder{path: path, text: text}
	var v any
	if d.err = files.DecodeJSON(path, text, want, &v); d.err == nil {
		d.top(fold(v))
	}
	if d.err != nil {
		return model.Azure{}, d.err
	}
	return d.a, nil
}

// addTable adds a table, or what is new of one that is there already. A table that
// was printed itself has all its routes and replaces a list of them.
func addTable(a *model.Azure, t model.RouteTable) {
	for have := range model.Each(a.Tables) {
		if !model.SameResource(have.ID, t.ID) {
			continue
		}
		switch {
		case have.Whole:
		case t.Whole, have.Part && !t.Part:
			*have = t
		case have.File == t.File, have.Part && t.Part:
			have.Routes = append(have.Routes, t.Routes...)
		}
		return
	}
	a.Tables = append(a.Tables, t)
}

// decoder decodes one file. The first error stands; what is decoded after it is not used.
type decoder struct {
	path string
	text []byte
	a    model.Azure
	err  error
}

// fail notes what is wrong with a value, and what was expected there. A text, or an object's id, shows where that is.
func (d *decoder) fail(at any, want, wrong string) {
	if o, is := at.(object); is {
		at = o["id"]
	}
	if d.err == nil {
		d.err = files.NewError(d.path, d.text, 0, want, errors.New(wrong))
		text, _ := at.(string)
		if e := files.ValueError(d.path, d.text, text, want, errors.New(wrong)); e.Line > 0 {
			d.err = e
		}
	}
}

func as[T any](d *decoder, v any, want string) T {
	t, ok := v.(T)
	if !ok {
		d.fail(v, want, "found "+found(v))
	}
	return t
}

// fields are those of an object and of its properties.
type fields struct {
	own, inner object
}

func (d *decoder) fields(v any) fields {
	f := fields{own: as[object](d, v, "an object")}
	f.inner, _ = f.own["properties"].(object)
	return f
}

// get returns the value of a field, nil if it is absent or null.
func (f fields) get(name string) any {
	name = strings.ToLower(name)
	if v := f.own[name]; v != nil {
		return v
	}
	return f.inner[name]
}

// has reports whether a field is there and not null.
func (f fields) has(name string) bool { return f.get(name) != nil }

// string returns a field's text, empty if it is absent.
func (d *decoder) string(f fields, name string) string {
	v := f.get(name)
	if v == nil {
		return ""
	}
	return as[string](d, v, "a string at \""+name+"\"")
}

// list returns a field's items. A value that is no list is the only item.
func (f fields) list(name string) []any {
	v := f.get(name)
	if list, ok := v.([]any); ok || v == nil {
		return list
	}
	return []any{v}
}

// top decodes a file's outermost value: an object, or a list of them, which may be under "value".
func (d *decoder) top(v any) {
	list, ok := v.([]any)
	if o, is := v.(object); is && o["value"] != nil {
		list, ok = as[[]any](d, o["value"], "a list at \"value\""), true
	}
	if !ok {
		d.resource(v)
		for i := range d.a.Tables {
			d.a.Tables[i].Part = !d.a.Tables[i].Whole
		}
		return
	}
	if _, bare := v.([]any); len(list) == 0 && bare {
		// It may be an empty list of anything; take it for a table without routes. Under "value" it is no table's.
		d.a.Tables = append(d.a.Tables, model.RouteTable{File: d.path})
	}
	for _, item := range list {
		d.resource(item)
	}
}

// resource decodes an object by its kind, which its id or its fields show.
func (d *decoder) resource(v any) {
	f := d.fields(v)
	id := d.string(f, "id")
	switch {
	case d.err != nil:
	case f.has(effectiveRoutes), f.has(effectiveRules):
		d.ofNIC(f)
	case f.has("nextHopType") && f.has("addressPrefix"):
		d.route(f, id)
	case kindOf(id, "subnets"):
		d.subnet(f, id)
	case kindOf(id, "routeTables"), f.has("routes"):
		d.table(f, id)
	case kindOf(id, "networkInterfaces"), f.has("enableIPForwarding"):
		d.nic(f, id)
	case kindOf(id, "networkSecurityGroups"), f.has("defaultSecurityRules"):
		d.group(f, id)
	case f.has("effectiveSecurityRules"):
		if len(d.a.Rules) == 0 {
			d.a.Rules = append(d.a.Rules, model.EffectiveRules{File: d.path})
		}
		d.a.Rules[0].Groups = append(d.a.Rules[0].Groups, d.effectiveGroup(f))
	case kindOf(id, "virtualNetworks"), f.has("addressSpace"):
		for _, s := range f.list("subnets") {
			d.resource(s)
		}
	case f.has("addressPrefix"), f.has("addressPrefixes"):
		d.subnet(f, id)
	default:
		d.fail(v, want, "an object of an unknown kind")
	}
}

// kindOf reports whether the id's last resource is of a kind.
func kindOf(id, kind string) bool {
	parts := strings.Split(strings.Trim(id, "/"), "/")
	return len(parts) >= 2 && strings.EqualFold(parts[len(parts)-2], kind)
}

func (d *decoder) table(f fields, id string) {
	t := model.RouteTable{ID: id, Whole: true, File: d.path}
	for _, r := range f.list("routes") {
		t.Routes = append(t.Routes, d.udr(d.fields(r)))
	}
	for _, s := range f.list("subnets") {
		t.Subnets = append(t.Subnets, d.id(s))
	}
	addTable(&d.a, t)
}

// id returns the id of a reference to a resource, which needs one.
func (d *decoder) id(v any) string {
	id := d.string(d.fields(v), "id")
	if id == "" {
		d.fail(v, "an object with an \"id\"", "no id")
	}
	return id
}

// reference returns the id of the resource that a field refers to, empty if the field is absent.
func (d *decoder) reference(f fields, name string) string {
	if v := f.get(name); v != nil {
		return d.id(v)
	}
	return ""
}

// route decodes an item of a list of routes: those of a table, or the effective
// ones of a NIC, which have no id and lists of prefixes and next hops.
func (d *decoder) route(f fields, id string) {
	r := d.udr(f)
	if _, many := f.get("addressPrefix").([]any); many || f.has("state") {
		if len(d.a.Effective) == 0 {
			d.a.Effective = append(d.a.Effective, model.EffectiveRoutes{File: d.path})
		}
		d.a.Effective[0].Routes = append(d.a.Effective[0].Routes, r)
		return
	}
	table := ""
	if kindOf(id, "routes") {
		parts := strings.Split(strings.TrimRight(id, "/"), "/")
		table = strings.Join(parts[:len(parts)-2], "/")
	}
	if table == "" && len(d.a.Tables) > 0 && d.a.Tables[0].ID == "" {
		d.a.Tables[0].Routes = append(d.a.Tables[0].Routes, r)
		return
	}
	addTable(&d.a, model.RouteTable{ID: table, Routes: []model.UDR{r}, File: d.path})
}

func (d *decoder) udr(f fields) model.UDR {
	state := d.string(f, "state")
	prefixes, _ := d.prefixes(f, "addressPrefix")
	r := model.UDR{
		Name: d.string(f, "name"), Type: d.string(f, "nextHopType"), Prefixes: prefixes,
		NextHops: d.addresses(f, "nextHopIpAddress"), Active: state == "" || strings.EqualFold(state, "Active"),
	}
	if r.Type == "" {
		d.fail(f.own, "a route with a \"nextHopType\"", "no nextHopType")
	}
	if hop := f.get("nextHop"); hop != nil {
		r.NextHops = append(r.NextHops, d.addresses(d.fields(hop), "nextHopIpAddresses")...)
	}
	return r
}

// prefixes decodes address ranges and, apart from them, service tags, which are names.
func (d *decoder) prefixes(f fields, name string) (out []netip.Prefix, tags []string) {
	want := "a range such as 10.244.1.0/24 at \"" + name + "\""
	for _, v := range f.list(name) {
		if s, ok := v.(string); !ok {
			d.fail(v, want, "found "+found(v))
		} else if p, err := netip.ParsePrefix(s); err == nil {
			out = append(out, p.Masked())
		} else if a, err := netip.ParseAddr(s); err == nil {
			out = append(out, model.Host(a))
		} else if s == "*" {
			out = append(out, netip.PrefixFrom(netip.IPv4Unspecified(), 0), netip.PrefixFrom(netip.IPv6Unspecified(), 0))
		} else if isTag(s) {
			tags = append(tags, s)
		} else if s != "" { // which stands for none
			d.fail(v, want, "found "+found(v))
		}
	}
	return out, tags
}

// isTag reports whether the text may be a service tag, such as AzureCloud.westeurope.
func isTag(s string) bool {
	return s != "" && (s[0] >= 'A' && s[0] <= 'Z' || s[0] >= 'a' && s[0] <= 'z') && !strings.ContainsAny(s, ":/ ")
}

func (d *decoder) addresses(f fields, name string) []netip.Addr {
	var out []netip.Addr
	for _, v := range f.list(name) {
		s, ok := v.(string)
		if ok && s == "" {
			continue
		}
		a, err := netip.ParseAddr(s)
		if err != nil {
			d.fail(v, "an IP address at \""+name+"\"", "found "+found(v))
		}
		out = append(out, a.Unmap())
	}
	return out
}

func (d *decoder) subnet(f fields, id string) {
	s := model.Subnet{
		ID: id, File: d.path, RouteTable: d.reference(f, "routeTable"), SecurityGroup: d.reference(f, "networkSecurityGroup"),
		NATGateway: d.reference(f, "natGateway"),
	}
	outbound, known := d.bool(f, "defaultOutboundAccess")
	s.Private = known && !outbound
	s.Prefixes, _ = d.prefixes(f, "addressPrefixes")
	if one, _ := d.prefixes(f, "addressPrefix"); len(s.Prefixes) == 0 {
		s.Prefixes = one
	}
	if len(s.Prefixes) == 0 {
		d.fail(f.own, "a subnet with an \"addressPrefix\" or \"addressPrefixes\"", "no address range")
	}
	d.a.Subnets = append(d.a.Subnets, s)
}

// bool returns whether a field is true, and whether it is there.
func (d *decoder) bool(f fields, name string) (is, known bool) {
	v := f.get(name)
	if v == nil {
		return false, false
	}
	return as[bool](d, v, "true or false at \""+name+"\""), true
}

// own adds what a NIC has by one configuration: an address, or a block, whose length is behind or beside it.
func (d *decoder) own(n *model.NIC, c fields) {
	if block, err := netip.ParsePrefix(d.string(c, "privateIPAddress")); err == nil {
		n.Blocks = append(n.Blocks, block.Masked())
		return
	}
	for _, a := range d.addresses(c, "privateIPAddress") {
		v := c.get("privateIPAddressPrefixLength")
		if v == nil {
			n.Addresses = append(n.Addresses, a)
			continue
		}
		want := "a length such as 28 at \"privateIPAddressPrefixLength\""
		block, err := a.Prefix(int(as[float64](d, v, want)))
		if err != nil {
			d.fail(v, want, "found another")
		}
		n.Blocks = append(n.Blocks, block)
	}
}

func (d *decoder) nic(f fields, id string) {
	n := model.NIC{ID: id, File: d.path, SecurityGroup: d.reference(f, "networkSecurityGroup")}
	n.Forwards, n.ForwardsKnown = d.bool(f, "enableIPForwarding")
	for _, v := range f.list("ipConfigurations") {
		c := d.fields(v)
		d.own(&n, c)
		n.Translated = n.Translated || c.has("publicIPAddress") || len(c.list("loadBalancerBackendAddressPools")) > 0
		if subnet := d.reference(c, "subnet"); subnet != "" {
			n.Subnets = append(n.Subnets, subnet)
		}
	}
	d.a.NICs = append(d.a.NICs, n)
}
