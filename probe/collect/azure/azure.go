// Package azure reads what the az command line prints of a virtual network:
// route tables and their routes, subnets, network cards and the routes that
// apply to them. Both forms are taken, that of the command line and the one of
// the resource manager, which has most fields under "properties".
package azure

import (
	"errors"
	"net/netip"
	"strings"

	"github.com/lasthop/lasthop/probe/collect/files"
	"github.com/lasthop/lasthop/probe/model"
)

// want is what a file should be.
const want = "what `az network route-table list|show`, `route-table route list`, `vnet subnet show`, `nic show` or " +
	"`nic show-effective-route-table` prints with -o json"

// Read reads the files and joins what they tell of the same resource. An error
// about a file is a *files.Error.
func Read(paths []string) (model.Azure, error) {
	var a model.Azure
	for _, path := range paths {
		text, err := files.ReadText(path)
		var bad *files.Error
		if err != nil && !errors.As(err, &bad) {
			err = &files.Error{Path: path, Want: "a readable file", Err: err}
		}
		if err != nil {
			return model.Azure{}, err
		}
		more, err := Decode(path, text)
		if err != nil {
			return model.Azure{}, err
		}
		join(&a, more)
	}
	return a, nil
}

// Decode reads the text of one file. path is what errors call it.
func Decode(path string, text []byte) (model.Azure, error) {
	d := &decoder{document: document{path, text}}
	v, err := d.parse()
	if err != nil {
		return model.Azure{}, err
	}
	if err := d.top(v); err != nil {
		return model.Azure{}, err
	}
	return d.a, nil
}

// join adds what another file tells.
func join(a *model.Azure, more model.Azure) {
	for _, t := range more.Tables {
		addTable(a, t)
	}
	a.Subnets = append(a.Subnets, more.Subnets...)
	a.Effective = append(a.Effective, more.Effective...)
	a.NICs = append(a.NICs, more.NICs...)
}

// addTable adds a table, or what is new of one that is there. A table that was
// printed itself has all its routes; it replaces a list of them.
func addTable(a *model.Azure, t model.RouteTable) {
	for i := range a.Tables {
		have := &a.Tables[i]
		if !model.SameResource(have.ID, t.ID) {
			continue
		}
		switch {
		case t.Whole && !have.Whole:
			*have = t
		case !t.Whole && !have.Whole && have.Part && !t.Part:
			*have = t
		case !t.Whole && !have.Whole && (have.File == t.File || have.Part && t.Part):
			have.Routes = append(have.Routes, t.Routes...)
		}
		return
	}
	a.Tables = append(a.Tables, t)
}

// decoder collects what one file tells.
type decoder struct {
	document
	a model.Azure
}

// fields are those of an object and of its properties.
type fields struct {
	at         *value
	own, inner object
}

func (d *decoder) fields(v *value) (fields, error) {
	o, ok := v.any.(object)
	if !ok {
		return fields{}, d.errorf(v, "an object", "found %s", v.kind())
	}
	f := fields{at: v, own: o}
	if p := o["properties"]; p != nil {
		f.inner, _ = p.any.(object)
	}
	return f, nil
}

// get is the value of a field, nil where it is absent or null.
func (f fields) get(name string) *value {
	name = strings.ToLower(name)
	for _, o := range []object{f.own, f.inner} {
		if v := o[name]; v != nil && v.any != nil {
			return v
		}
	}
	return nil
}

// is reports whether a field is there and not null.
func (f fields) is(name string) bool { return f.get(name) != nil }

// text is a field's text, empty where it is absent.
func (d *decoder) text(f fields, name string) (string, error) {
	v := f.get(name)
	if v == nil {
		return "", nil
	}
	s, ok := v.any.(string)
	if !ok {
		return "", d.errorf(v, "a string at \""+name+"\"", "found %s", v.kind())
	}
	return s, nil
}

// list is a field's items; one that stands alone is the only item.
func (f fields) list(name string) []*value {
	v := f.get(name)
	if v == nil {
		return nil
	}
	if list, ok := v.any.([]*value); ok {
		return list
	}
	return []*value{v}
}

// top reads a file's outermost value: an object, or a list of them, itself or
// under "value".
func (d *decoder) top(v *value) error {
	list, ok := v.any.([]*value)
	if o, is := v.any.(object); is && o["value"] != nil {
		if list, ok = o["value"].any.([]*value); !ok {
			return d.errorf(o["value"], "a list at \"value\"", "found %s", o["value"].kind())
		}
	}
	if !ok {
		err := d.resource(v)
		for i := range d.a.Tables {
			d.a.Tables[i].Part = !d.a.Tables[i].Whole
		}
		return err
	}
	if len(list) == 0 {
		// Nothing says of what; the least that it can be is a table's routes.
		d.a.Tables = append(d.a.Tables, model.RouteTable{File: d.path})
	}
	for _, item := range list {
		if err := d.resource(item); err != nil {
			return err
		}
	}
	return nil
}

// resource reads one object by what it is: its id tells, or its fields.
func (d *decoder) resource(v *value) error {
	f, err := d.fields(v)
	if err != nil {
		return err
	}
	id, err := d.text(f, "id")
	if err != nil {
		return err
	}
	switch {
	case f.is("nextHopType") && f.is("addressPrefix"):
		return d.route(f, id)
	case kindOf(id, "subnets"):
		return d.subnet(f, id)
	case kindOf(id, "routeTables"), f.is("routes"):
		return d.table(f, id)
	case kindOf(id, "networkInterfaces"), f.is("enableIPForwarding"):
		return d.nic(f, id)
	case kindOf(id, "virtualNetworks"), f.is("addressSpace"):
		for _, s := range f.list("subnets") {
			if err := d.resource(s); err != nil {
				return err
			}
		}
		return nil
	case f.is("addressPrefix"), f.is("addressPrefixes"):
		return d.subnet(f, id)
	}
	return d.errorf(v, want, "an object of another kind")
}

// kindOf reports whether the id's last resource is of a kind.
func kindOf(id, kind string) bool {
	parts := strings.Split(strings.Trim(id, "/"), "/")
	return len(parts) >= 2 && strings.EqualFold(parts[len(parts)-2], kind)
}

func (d *decoder) table(f fields, id string) error {
	t := model.RouteTable{ID: id, Whole: true, File: d.path}
	for _, r := range f.list("routes") {
		inner, err := d.fields(r)
		if err != nil {
			return err
		}
		route, err := d.udr(inner)
		if err != nil {
			return err
		}
		t.Routes = append(t.Routes, route)
	}
	var err error
	if t.Subnets, err = d.ids(f.list("subnets")); err != nil {
		return err
	}
	addTable(&d.a, t)
	return nil
}

// ids are those of references to resources.
func (d *decoder) ids(list []*value) ([]string, error) {
	var out []string
	for _, v := range list {
		id, err := d.id(v)
		if err != nil {
			return nil, err
		}
		out = append(out, id)
	}
	return out, nil
}

// id is that of a reference to a resource, which needs one.
func (d *decoder) id(v *value) (string, error) {
	f, err := d.fields(v)
	if err != nil {
		return "", err
	}
	id, err := d.text(f, "id")
	if err == nil && id == "" {
		err = d.errorf(v, "an object with an \"id\"", "no id")
	}
	return id, err
}

// reference is the id of the resource that a field refers to, empty where the
// field is absent.
func (d *decoder) reference(f fields, name string) (string, error) {
	v := f.get(name)
	if v == nil {
		return "", nil
	}
	return d.id(v)
}

// route reads an entry of a list of routes: of a table, or of those that apply
// to a network card, which come without an id and in lists of addresses.
func (d *decoder) route(f fields, id string) error {
	r, err := d.udr(f)
	if err != nil {
		return err
	}
	_, many := f.get("addressPrefix").any.([]*value)
	if many || f.is("state") {
		if len(d.a.Effective) == 0 {
			d.a.Effective = append(d.a.Effective, model.EffectiveRoutes{File: d.path})
		}
		e := &d.a.Effective[0]
		e.Routes = append(e.Routes, r)
		return nil
	}
	table := ""
	if kindOf(id, "routes") {
		parts := strings.Split(strings.TrimRight(id, "/"), "/")
		table = strings.Join(parts[:len(parts)-2], "/")
	}
	if table == "" && len(d.a.Tables) > 0 && d.a.Tables[0].ID == "" {
		d.a.Tables[0].Routes = append(d.a.Tables[0].Routes, r)
		return nil
	}
	addTable(&d.a, model.RouteTable{ID: table, Routes: []model.UDR{r}, File: d.path})
	return nil
}

func (d *decoder) udr(f fields) (model.UDR, error) {
	var r model.UDR
	var err error
	if r.Name, err = d.text(f, "name"); err != nil {
		return r, err
	}
	if r.Type, err = d.text(f, "nextHopType"); err != nil {
		return r, err
	}
	if r.Type == "" {
		return r, d.errorf(f.at, "a route with a \"nextHopType\"", "no nextHopType")
	}
	if r.Prefixes, err = d.prefixes(f, "addressPrefix"); err != nil {
		return r, err
	}
	if r.NextHops, err = d.addresses(f, "nextHopIpAddress"); err != nil {
		return r, err
	}
	if hop := f.get("nextHop"); hop != nil {
		inner, err := d.fields(hop)
		if err != nil {
			return r, err
		}
		more, err := d.addresses(inner, "nextHopIpAddresses")
		if err != nil {
			return r, err
		}
		r.NextHops = append(r.NextHops, more...)
	}
	state, err := d.text(f, "state")
	r.Active = state == "" || strings.EqualFold(state, "Active")
	return r, err
}

// prefixes reads ranges, without service tags, which are names.
func (d *decoder) prefixes(f fields, name string) ([]netip.Prefix, error) {
	var out []netip.Prefix
	for _, v := range f.list(name) {
		s, ok := v.any.(string)
		if !ok {
			return nil, d.errorf(v, "a range as 10.244.1.0/24 at \""+name+"\"", "found %s", v.kind())
		}
		if p, err := netip.ParsePrefix(s); err == nil {
			out = append(out, p.Masked())
		} else if a, err := netip.ParseAddr(s); err == nil {
			out = append(out, netip.PrefixFrom(a, a.BitLen()))
		} else if !isTag(s) {
			return nil, d.errorf(v, "a range as 10.244.1.0/24 at \""+name+"\"", "found %q", s)
		}
	}
	return out, nil
}

// isTag reports whether the text can be a service tag, as AzureCloud.westeurope.
func isTag(s string) bool {
	return s != "" && (s[0] >= 'A' && s[0] <= 'Z' || s[0] >= 'a' && s[0] <= 'z') && !strings.ContainsAny(s, ":/ ")
}

func (d *decoder) addresses(f fields, name string) ([]netip.Addr, error) {
	var out []netip.Addr
	for _, v := range f.list(name) {
		s, ok := v.any.(string)
		if ok && s == "" {
			continue
		}
		a, err := netip.ParseAddr(s)
		if !ok || err != nil {
			found := v.kind()
			if ok {
				found = s
			}
			return nil, d.errorf(v, "an IP address at \""+name+"\"", "found %s", found)
		}
		out = append(out, a.Unmap())
	}
	return out, nil
}

func (d *decoder) subnet(f fields, id string) error {
	s := model.Subnet{ID: id, File: d.path}
	for _, name := range []string{"addressPrefixes", "addressPrefix"} {
		p, err := d.prefixes(f, name)
		if err != nil {
			return err
		}
		if len(s.Prefixes) == 0 {
			s.Prefixes = p
		}
	}
	if len(s.Prefixes) == 0 {
		return d.errorf(f.at, "a subnet with an \"addressPrefix\" or \"addressPrefixes\"", "no address range")
	}
	var err error
	if s.RouteTable, err = d.reference(f, "routeTable"); err != nil {
		return err
	}
	if s.SecurityGroup, err = d.reference(f, "networkSecurityGroup"); err != nil {
		return err
	}
	d.a.Subnets = append(d.a.Subnets, s)
	return nil
}

func (d *decoder) nic(f fields, id string) error {
	n := model.NIC{ID: id, File: d.path}
	if v := f.get("enableIPForwarding"); v != nil {
		if n.Forwards, n.ForwardsKnown = v.any.(bool); !n.ForwardsKnown {
			return d.errorf(v, "true or false at \"enableIPForwarding\"", "found %s", v.kind())
		}
	}
	for _, v := range f.list("ipConfigurations") {
		c, err := d.fields(v)
		if err != nil {
			return err
		}
		a, err := d.addresses(c, "privateIPAddress")
		if err != nil {
			return err
		}
		n.Addresses = append(n.Addresses, a...)
		subnet, err := d.reference(c, "subnet")
		if err != nil {
			return err
		}
		if subnet != "" {
			n.Subnets = append(n.Subnets, subnet)
		}
	}
	d.a.NICs = append(d.a.NICs, n)
	return nil
}
