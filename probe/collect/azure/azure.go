// Package azure reads files that the az command line printed about a virtual network: route tables and their
// routes, subnets, NICs, security groups, and the effective routes and security rules of a NIC. It takes the output of
// az itself and that of the resource manager, which has most fields under "properties". Client asks for the same.
//
// A file that cannot be read, or is none of these, is an error with its place and
// what was expected there. What no file describes is not in the result.
package azure

import (
	"bytes"
	"encoding/json"
	"errors"
	"fmt"
	"iter"
	"net/netip"
	"reflect"
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
	d.top()
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

// resource is an object of any kind. az prints its fields beside each other, the resource manager has most of them in its
// properties. Versions of az differ in the case of some names, of which the decoder takes any.
type resource struct {
	fields
	Properties *fields
}

// list is of resources, decoded one at a time: decoded, an empty one takes hundreds of times as much memory as its text.
type list []json.RawMessage

// each gives the resources of a list, up to the first that cannot be decoded.
func (d *decoder) each(l list) iter.Seq[*resource] {
	return func(yield func(*resource) bool) {
		for _, text := range l {
			var r resource
			if json.Unmarshal(text, &r) != nil && d.err == nil {
				// In its place in the file, which the error names.
				at := max(bytes.Index(d.text, text), 0)
				before := bytes.Map(func(c rune) rune { return model.Either(c == '\n', c, ' ') }, d.text[:at])
				d.err = files.DecodeJSON(d.path, append(before, text...), want, &r)
			}
			if d.err != nil || !yield(&r) {
				return
			}
		}
	}
}

// fields are those that are read of any kind. What may be one text or a list of them is of any type.
type fields struct {
	ID, Name                                                                   string
	AddressPrefix, AddressPrefixes, AddressSpace                               any
	Routes, Subnets                                                            list
	RouteTable, NetworkSecurityGroup, NATGateway, Subnet                       *resource
	DefaultOutboundAccess, EnableIPForwarding                                  *bool
	NextHopType, State                                                         string
	NextHopIPAddress, NextHopIPAddresses                                       any
	NextHop                                                                    *fields
	IPConfigurations, LoadBalancerBackendAddressPools                          list
	PublicIPAddress, NetworkInterface                                          *resource
	PrivateIPAddress                                                           string
	PrivateIPAddressPrefixLength                                               *int
	SecurityRules, DefaultSecurityRules, EffectiveSecurityRules                list
	Direction, Access, Protocol                                                string
	Priority                                                                   int
	SourceAddressPrefix, SourceAddressPrefixes, ExpandedSourceAddressPrefix    any
	SourcePortRange, SourcePortRanges                                          any
	SourceApplicationSecurityGroups, DestinationApplicationSecurityGroups      list
	DestinationAddressPrefix, DestinationAddressPrefixes, DestinationPortRange any
	DestinationPortRanges, ExpandedDestinationAddressPrefix                    any
	// What applies to a NIC, as Client has it.
	EffectiveRoutes, EffectiveSecurityGroups *struct{ Value list }
}

// all are the object's fields, with those that its properties have.
func (r *resource) all() fields {
	out := r.fields
	if r.Properties != nil {
		own, inner := reflect.ValueOf(&out).Elem(), reflect.ValueOf(*r.Properties)
		for i := range own.NumField() {
			if own.Field(i).IsZero() {
				own.Field(i).Set(inner.Field(i))
			}
		}
	}
	return out
}

// decoder decodes one file. The first error stands; what is decoded after it is not used.
type decoder struct {
	path string
	text []byte
	a    model.Azure
	err  error
}

// fail notes what is wrong, and what was expected there. A text of the file shows where that is, such as an id.
func (d *decoder) fail(at, want, wrong string) {
	if d.err == nil {
		d.err = files.NewError(d.path, d.text, 0, want, errors.New(wrong))
		if e := files.ValueError(d.path, d.text, at, want, errors.New(wrong)); e.Line > 0 {
			d.err = e
		}
	}
}

// texts are those of a field, or of several. A value that is no list is the only item, an empty one stands for none.
func (d *decoder) texts(v any, want string) (out []string) {
	switch v := v.(type) {
	case nil:
	case []any:
		for _, x := range v {
			out = append(out, d.texts(x, want)...)
		}
	case string:
		out = model.Either(v == "", nil, []string{v})
	default:
		d.fail("", want, fmt.Sprintf("found %v", v))
	}
	return out
}

// top decodes a file's outermost value: an object, or a list of them, which may be under "value".
func (d *decoder) top() {
	if bytes.HasPrefix(bytes.TrimSpace(d.text), []byte("[")) {
		var l list
		if d.err = files.DecodeJSON(d.path, d.text, want, &l); len(l) == 0 {
			// It may be an empty list of anything; take it for a table without routes. Under "value" it is no table's.
			d.a.Tables = append(d.a.Tables, model.RouteTable{File: d.path})
		}
		d.list(l)
		return
	}
	var one struct {
		resource
		Value list
	}
	if d.err = files.DecodeJSON(d.path, d.text, want, &one); one.Value != nil {
		d.list(one.Value)
		return
	}
	d.resource(&one.resource)
	for i := range d.a.Tables {
		d.a.Tables[i].Part = !d.a.Tables[i].Whole
	}
}

func (d *decoder) list(l list) {
	for r := range d.each(l) {
		d.resource(r)
	}
}

// resource decodes an object by its kind, which its id or its fields show.
func (d *decoder) resource(r *resource) {
	f := r.all()
	switch {
	case d.err != nil:
	case f.EffectiveRoutes != nil, f.EffectiveSecurityGroups != nil:
		d.ofNIC(f)
	case f.NextHopType != "" && f.AddressPrefix != nil:
		d.route(f)
	case kindOf(f.ID, "subnets"):
		d.subnet(f)
	case kindOf(f.ID, "routeTables"), f.Routes != nil:
		d.table(f)
	case kindOf(f.ID, "networkInterfaces"), f.EnableIPForwarding != nil:
		d.nic(f)
	case kindOf(f.ID, "networkSecurityGroups"), f.DefaultSecurityRules != nil:
		d.group(f)
	case f.EffectiveSecurityRules != nil:
		if len(d.a.Rules) == 0 {
			d.a.Rules = append(d.a.Rules, model.EffectiveRules{File: d.path})
		}
		d.a.Rules[0].Groups = append(d.a.Rules[0].Groups, d.effectiveGroup(f))
	case kindOf(f.ID, "virtualNetworks"), f.AddressSpace != nil:
		d.list(f.Subnets)
	case f.AddressPrefix != nil, f.AddressPrefixes != nil:
		d.subnet(f)
	default:
		d.fail(f.ID, want, "an object of an unknown kind")
	}
}

// kindOf reports whether the id's last resource is of a kind.
func kindOf(id, kind string) bool {
	parts := strings.Split(strings.Trim(id, "/"), "/")
	return len(parts) >= 2 && strings.EqualFold(parts[len(parts)-2], kind)
}

func (d *decoder) table(f fields) {
	t := model.RouteTable{ID: f.ID, Whole: true, File: d.path, Subnets: d.ids(f.Subnets)}
	for r := range d.each(f.Routes) {
		t.Routes = append(t.Routes, d.udr(r.all()))
	}
	addTable(&d.a, t)
}

// id returns the id of a reference to a resource, empty if there is none; a reference needs one.
func (d *decoder) id(r *resource) string {
	if r == nil {
		return ""
	}
	if r.ID == "" {
		d.fail("", "an object with an \"id\"", "no id")
	}
	return r.ID
}

func (d *decoder) ids(l list) (out []string) {
	for r := range d.each(l) {
		out = append(out, d.id(r))
	}
	return out
}

// route decodes an item of a list of routes: those of a table, or the effective
// ones of a NIC, which have no id and lists of prefixes and next hops.
func (d *decoder) route(f fields) {
	r := d.udr(f)
	if _, many := f.AddressPrefix.([]any); many || f.State != "" {
		if len(d.a.Effective) == 0 {
			d.a.Effective = append(d.a.Effective, model.EffectiveRoutes{File: d.path})
		}
		d.a.Effective[0].Routes = append(d.a.Effective[0].Routes, r)
		return
	}
	table := ""
	if kindOf(f.ID, "routes") {
		parts := strings.Split(strings.TrimRight(f.ID, "/"), "/")
		table = strings.Join(parts[:len(parts)-2], "/")
	}
	if table == "" && len(d.a.Tables) > 0 && d.a.Tables[0].ID == "" {
		d.a.Tables[0].Routes = append(d.a.Tables[0].Routes, r)
		return
	}
	addTable(&d.a, model.RouteTable{ID: table, Routes: []model.UDR{r}, File: d.path})
}

func (d *decoder) udr(f fields) model.UDR {
	r := model.UDR{
		Name: f.Name, Type: f.NextHopType, NextHops: d.addresses(f.NextHopIPAddress, "nextHopIpAddress"),
		Active: f.State == "" || strings.EqualFold(f.State, "Active"),
	}
	r.Prefixes, _ = d.prefixes(f.AddressPrefix, "addressPrefix")
	if r.Type == "" {
		d.fail(f.ID, "a route with a \"nextHopType\"", "no nextHopType")
	}
	if f.NextHop != nil {
		r.NextHops = append(r.NextHops, d.addresses(f.NextHop.NextHopIPAddresses, "nextHopIpAddresses")...)
	}
	return r
}

// prefixes decodes address ranges and, apart from them, service tags, which are names.
func (d *decoder) prefixes(v any, name string) (out []netip.Prefix, tags []string) {
	want := "a range such as 10.244.1.0/24 at \"" + name + "\""
	for _, s := range d.texts(v, want) {
		if p, err := netip.ParsePrefix(s); err == nil {
			out = append(out, p.Masked())
		} else if a, err := netip.ParseAddr(s); err == nil {
			out = append(out, model.Host(a))
		} else if s == "*" {
			out = append(out, netip.PrefixFrom(netip.IPv4Unspecified(), 0), netip.PrefixFrom(netip.IPv6Unspecified(), 0))
		} else if isTag(s) {
			tags = append(tags, s)
		} else {
			d.fail(s, want, fmt.Sprintf("found %q", s))
		}
	}
	return out, tags
}

// isTag reports whether the text may be a service tag, such as AzureCloud.westeurope.
func isTag(s string) bool {
	return (s[0] >= 'A' && s[0] <= 'Z' || s[0] >= 'a' && s[0] <= 'z') && !strings.ContainsAny(s, ":/ ")
}

func (d *decoder) addresses(v any, name string) (out []netip.Addr) {
	want := "an IP address at \"" + name + "\""
	for _, s := range d.texts(v, want) {
		a, err := netip.ParseAddr(s)
		if err != nil {
			d.fail(s, want, fmt.Sprintf("found %q", s))
		}
		out = append(out, a.Unmap())
	}
	return out
}

func (d *decoder) subnet(f fields) {
	s := model.Subnet{
		ID: f.ID, File: d.path, RouteTable: d.id(f.RouteTable), SecurityGroup: d.id(f.NetworkSecurityGroup),
		NATGateway: d.id(f.NATGateway), Private: f.DefaultOutboundAccess != nil && !*f.DefaultOutboundAccess,
	}
	s.Prefixes, _ = d.prefixes(f.AddressPrefixes, "addressPrefixes")
	if one, _ := d.prefixes(f.AddressPrefix, "addressPrefix"); len(s.Prefixes) == 0 {
		s.Prefixes = one
	}
	if len(s.Prefixes) == 0 {
		d.fail(f.ID, "a subnet with an \"addressPrefix\" or \"addressPrefixes\"", "no address range")
	}
	d.a.Subnets = append(d.a.Subnets, s)
}

// own adds what a NIC has by one configuration: an address, or a block, whose length is behind or beside it.
func (d *decoder) own(n *model.NIC, c fields) {
	if block, err := netip.ParsePrefix(c.PrivateIPAddress); err == nil {
		n.Blocks = append(n.Blocks, block.Masked())
		return
	}
	for _, a := range d.addresses(c.PrivateIPAddress, "privateIPAddress") {
		if c.PrivateIPAddressPrefixLength == nil {
			n.Addresses = append(n.Addresses, a)
			continue
		}
		block, err := a.Prefix(*c.PrivateIPAddressPrefixLength)
		if err != nil {
			d.fail(c.PrivateIPAddress, "a length such as 28 at \"privateIPAddressPrefixLength\"", "found another")
		}
		n.Blocks = append(n.Blocks, block)
	}
}

func (d *decoder) nic(f fields) {
	n := model.NIC{ID: f.ID, File: d.path, SecurityGroup: d.id(f.NetworkSecurityGroup), ForwardsKnown: f.EnableIPForwarding != nil}
	n.Forwards = n.ForwardsKnown && *f.EnableIPForwarding
	for r := range d.each(f.IPConfigurations) {
		c := r.all()
		d.own(&n, c)
		n.Translated = n.Translated || c.PublicIPAddress != nil || len(c.LoadBalancerBackendAddressPools) > 0
		if subnet := d.id(c.Subnet); subnet != "" {
			n.Subnets = append(n.Subnets, subnet)
		}
	}
	d.a.NICs = append(d.a.NICs, n)
}
