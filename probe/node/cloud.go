package node

import (
	"cmp"
	"net/netip"
	"slices"
	"strings"

	"github.com/lasthop/lasthop/probe/model"
)

// RouteState is what the files of the cloud tell of the route to one range.
type RouteState int

const (
	// RouteUnknown is that no file says, or that they contradict each other.
	RouteUnknown RouteState = iota
	// RouteCorrect is that the route that applies to the sender leads to the node.
	RouteCorrect
	// RouteMissing is that no route that applies to the sender leads to the range.
	RouteMissing
	// routeWrong is that the route that applies to the sender leads elsewhere.
	routeWrong
	// routeListed, RouteUnlisted and RouteListedWrong are the same of a table of which no file says whether it applies.
	routeListed
	// RouteUnlisted is that such a table has no row for the range.
	RouteUnlisted
	// RouteListedWrong is that the row of such a table leads elsewhere.
	RouteListedWrong
)

// RouteFact is a state with what told it.
type RouteFact struct {
	State RouteState
	// Unassociated: it is missing because no table applies to the sender.
	Unassociated bool
	// Row leads to Range, or none of Rows: of a Table, which Applies to the Subnet or is the Only
	// one that any has, or those in the file Effective.
	Range         netip.Prefix
	Row           *model.UDR
	Rows          int
	Table         *model.RouteTable
	Applies, Only bool
	Subnet        *model.Subnet
	SubnetName    string
	Effective     string
}

// findSelf is this node: as the nodes file has it, or as its own links tell.
func (v *Index) findSelf() *model.ClusterNode {
	if n := model.First(v.Cluster.Nodes, func(n *model.ClusterNode) bool { return isSelf(v, n) }); n != nil {
		return n
	}
	n := &model.ClusterNode{Name: v.Node.Name}
	for _, l := range v.Links {
		for _, a := range l.Addresses {
			switch {
			case model.InAny(v.OnLink, a.Addr()):
				n.Addresses = append(n.Addresses, a.Addr())
			case l.Role == model.RoleBridge && !a.IsSingleIP() && v.HoldsPods(a.Masked()):
				n.PodCIDRs = append(n.PodCIDRs, a.Masked())
			}
		}
	}
	return n
}

func isSelf(v *Index, n *model.ClusterNode) bool {
	return slices.ContainsFunc(n.Addresses, func(a netip.Addr) bool { return v.Own[a] != nil })
}

// Unlisted are the ranges of this node's pods that the nodes file contradicts: it gives this node others of that family.
func (v *Index) Unlisted() (ranges, listed []netip.Prefix) {
	self := model.First(v.Cluster.Nodes, func(n *model.ClusterNode) bool { return isSelf(v, n) && len(n.PodCIDRs) > 0 })
	if self == nil {
		return nil, nil
	}
	for _, own := range v.Ranges.Local {
		family := model.Filter(self.PodCIDRs, func(p netip.Prefix) bool { return p.Addr().Is4() == own.Addr().Is4() })
		if len(family) > 0 && v.HoldsPods(own) && !slices.ContainsFunc(family, own.Overlaps) {
			ranges, listed = append(ranges, own), model.With(listed, family...)
		}
	}
	return ranges, listed
}

// findOwnCIDRs are the ranges of this node's pods where each node has its own and the fabric needs a route to it:
// ranges that hold a running pod and are not of the node's subnet. Empty where the network works in another way.
func (v *Index) findOwnCIDRs() []netip.Prefix {
	if Overlay(v.Node.Plugin) {
		return nil
	}
	return slices.DeleteFunc(slices.Clone(v.Self().PodCIDRs), func(p netip.Prefix) bool {
		return !v.HoldsPods(p) || model.InAny(v.OnLink, p.Addr())
	})
}

// Internal are the node's addresses that a route can have for a next hop.
func Internal(n *model.ClusterNode) []netip.Addr {
	return slices.DeleteFunc(slices.Clone(n.Addresses), func(a netip.Addr) bool { return slices.Contains(n.External, a) })
}

// RouteTo tells whether what the sender sends to the range gets to its owner. owner is nil where it is not known.
func (v *Index) RouteTo(cidr netip.Prefix, owner, sender *model.ClusterNode) RouteFact {
	if !v.Told() {
		return RouteFact{}
	}
	listed := v.listedRoute(cidr, owner, sender)
	if isSelf(v, sender) {
		// Azure's own word counts. A table that says the same is what a fix has to name.
		if f := effectiveRoute(v, cidr, owner); f.State != RouteUnknown && f.State != listed.State {
			return f
		}
	}
	return listed
}

// listedRoute is what route tables and their associations tell.
func (v *Index) listedRoute(cidr netip.Prefix, owner, sender *model.ClusterNode) RouteFact {
	subnet, id := subnetOf(v, sender)
	switch table, known, agreed := appliedTable(v, subnet, id); {
	case !agreed:
		return RouteFact{}
	case table != nil:
		f := judgeTable(table, cidr, owner)
		f.Applies, f.Subnet, f.SubnetName = true, subnet, id[strings.LastIndexByte(id, '/')+1:]
		return f
	case known && subnet != nil && subnet.RouteTable == "":
		return RouteFact{State: RouteMissing, Unassociated: true, Subnet: subnet, Table: unusedTable(v)}
	case known && (len(v.ClusterTables()) != 1 || v.ClusterTables()[0].ID != ""):
		// The table that applies was not given.
		return RouteFact{}
	}
	return looseRoute(v, cidr, owner)
}

// RouteBack tells whether what the owner of a range sends to this node's pods gets here. An owner
// that is not known is supposed to be in this node's subnet.
func (v *Index) RouteBack(cidr netip.Prefix) (back RouteFact) {
	self := v.Self()
	for _, p := range v.OwnCIDRs() {
		if p.Addr().Is4() == cidr.Addr().Is4() {
			back = v.RouteTo(p, self, cmp.Or(v.NodeOf(cidr), self))
		}
	}
	return back
}

// effectiveRoute asks the routes that apply to this node's NIC.
func effectiveRoute(v *Index, cidr netip.Prefix, owner *model.ClusterNode) RouteFact {
	var out RouteFact
	several := false
	for e := range model.Each(v.Cluster.Azure.Effective) {
		if e.NIC != "" && !v.ownNIC(e.NIC) {
			continue
		}
		f := judgeRows(e.Routes, cidr, owner)
		f.Effective = e.File
		if several && f.State != out.State {
			return RouteFact{}
		}
		out, several = f, true
	}
	return out
}

// OwnNICs are this node's NICs, as far as the cloud told of them.
func (v *Index) OwnNICs() []*model.NIC {
	return model.Chosen(v.Cluster.Azure.NICs, func(n *model.NIC) bool {
		return v.Told() && slices.ContainsFunc(n.Addresses, func(a netip.Addr) bool { return v.Own[a] != nil })
	})
}

func (v *Index) ownNIC(id string) bool {
	return slices.ContainsFunc(v.OwnNICs(), func(n *model.NIC) bool { return model.SameResource(n.ID, id) })
}

// NoOutbound is this node's subnet where nothing there leads to the internet: Azure gives its machines no address of their own,
// and it has no NAT gateway, the NIC no public address and no load balancer.
type NoOutbound struct {
	Subnet *model.Subnet
	NIC    *model.NIC
	// Effective is where the routes that apply are from, by Azure's own word; empty where they are those of the subnet's table.
	Effective string
	routes    []model.UDR
}

// FindNoOutbound returns nil where there is a way, or where too little was read.
func (v *Index) FindNoOutbound() *NoOutbound {
	nics := v.OwnNICs()
	s, id := subnetOf(v, v.Self())
	if len(nics) == 0 || s == nil || !s.Private || s.NATGateway != "" ||
		slices.ContainsFunc(nics, func(n *model.NIC) bool { return n.Translated }) {
		return nil
	}
	o := &NoOutbound{Subnet: s, NIC: nics[0]}
	for e := range model.Each(v.Cluster.Azure.Effective) {
		if e.NIC == "" || slices.ContainsFunc(nics, func(n *model.NIC) bool { return model.SameResource(n.ID, e.NIC) }) {
			o.Effective, o.routes = e.File, e.Routes
			return o
		}
	}
	t, _, agreed := appliedTable(v, s, id)
	if !agreed || t == nil && s.RouteTable != "" || t != nil && !t.Whole {
		return nil
	}
	if t != nil {
		o.routes = t.Routes
	}
	return o
}

// Concerns reports whether packets to an address would go straight to the internet, and by no firewall or endpoint of a service.
// IPv6 has other ways.
func (o *NoOutbound) Concerns(a netip.Addr) bool {
	hop := HopType(o.routes, a)
	return a.Is4() && model.Public(a) && (hop == "" || strings.EqualFold(hop, "Internet"))
}

// HopType is the type of the most specific of some routes to an address, empty without any.
func HopType(routes []model.UDR, a netip.Addr) (hop string) {
	best := -1
	for _, r := range routes {
		for _, p := range r.Prefixes {
			if r.Active && p.Contains(a) && p.Bits() > best {
				best, hop = p.Bits(), r.Type
			}
		}
	}
	return hop
}

// looseRoute asks the tables where no file says which of them applies.
func looseRoute(v *Index, cidr netip.Prefix, owner *model.ClusterNode) RouteFact {
	tables := v.ClusterTables()
	whole := !slices.ContainsFunc(tables, func(t *model.RouteTable) bool { return !t.Whole })
	associated := slices.DeleteFunc(slices.Clone(tables), func(t *model.RouteTable) bool { return len(t.Subnets) == 0 })
	switch {
	case len(tables) == 0:
		return RouteFact{}
	case whole && len(associated) == 1:
		f := judgeTable(associated[0], cidr, owner)
		f.Only = true
		return f
	case whole && len(associated) == 0:
		return RouteFact{State: RouteMissing, Unassociated: true, Table: tables[0]}
	}
	var out RouteFact
	for _, t := range tables {
		f := judgeTable(t, cidr, owner)
		switch f.State {
		case RouteCorrect:
			f.State = routeListed
			return f
		case routeWrong:
			f.State = RouteListedWrong
			out = f
		case RouteMissing:
			f.State = RouteUnlisted
			if out.State == RouteUnknown {
				out = f
			}
		}
	}
	return out
}

// findTables are the tables with a row about a known node or its pods; all tables where there is none.
func (v *Index) findTables() []*model.RouteTable {
	cidrs, hops := map[netip.Prefix]bool{}, AddrSet{}
	for _, n := range append([]model.ClusterNode{*v.Self()}, v.Cluster.Nodes...) {
		for _, p := range n.PodCIDRs {
			cidrs[p] = true
		}
		hops.Add(n.Addresses...)
	}
	tables := v.Cluster.Azure.Tables
	some := model.Chosen(tables, func(t *model.RouteTable) bool {
		return slices.ContainsFunc(t.Routes, func(r model.UDR) bool {
			return slices.ContainsFunc(r.Prefixes, func(p netip.Prefix) bool { return cidrs[p] }) ||
				slices.ContainsFunc(r.NextHops, func(a netip.Addr) bool { return hops[a] })
		})
	})
	return model.Either(len(some) > 0, some, slices.Collect(model.Each(tables)))
}

// unusedTable is the one table that the cluster has, if it is one.
func unusedTable(v *Index) *model.RouteTable {
	if tables := v.ClusterTables(); len(tables) == 1 && tables[0].ID != "" {
		return tables[0]
	}
	return nil
}

// subnetOf finds a node's subnet, by its NIC or by its address. The subnet is nil where only its id is known.
func subnetOf(v *Index, n *model.ClusterNode) (*model.Subnet, string) {
	a, id := &v.Cluster.Azure, ""
	for c := range model.Each(a.NICs) {
		if len(c.Subnets) > 0 && slices.ContainsFunc(c.Addresses,
			func(x netip.Addr) bool { return slices.Contains(n.Addresses, x) }) {
			id = c.Subnets[0]
		}
	}
	var found *model.Subnet
	best := -1
	for s := range model.Each(a.Subnets) {
		if model.SameResource(s.ID, id) {
			return s, id
		}
		for _, p := range s.Prefixes {
			if p.Bits() > best && slices.ContainsFunc(n.Addresses, p.Contains) {
				found, best = s, p.Bits()
			}
		}
	}
	if id != "" || found == nil {
		return nil, id
	}
	return found, found.ID
}

// appliedTable is the table that applies to a subnet, nil where none does or it was not given; known is false
// where no file says which one applies, agreed is false where the files contradict each other.
func appliedTable(v *Index, s *model.Subnet, id string) (table *model.RouteTable, known, agreed bool) {
	want := ""
	if s != nil {
		want = s.RouteTable
	}
	for t := range model.Each(v.Cluster.Azure.Tables) {
		if model.SameResource(t.ID, want) {
			return t, true, true
		}
		if slices.ContainsFunc(t.Subnets, func(x string) bool { return model.SameResource(x, id) }) {
			return t, true, s == nil
		}
	}
	return nil, s != nil, true
}

// judgeTable looks for the range among the routes of a table.
func judgeTable(t *model.RouteTable, cidr netip.Prefix, owner *model.ClusterNode) RouteFact {
	f := judgeRows(t.Routes, cidr, owner)
	f.Table = t
	if t.Part && f.State == RouteMissing {
		f.State = RouteUnknown
	}
	return f
}

// judgeRows looks for the range among routes that apply together.
func judgeRows(rows []model.UDR, cidr netip.Prefix, owner *model.ClusterNode) RouteFact {
	var right, covering *model.UDR
	for r := range model.Each(rows) {
		if !r.Active {
			continue
		}
		for _, p := range r.Prefixes {
			switch {
			case p.Bits() >= cidr.Bits() && cidr.Contains(p.Addr()):
				if !leadsTo(r, owner) {
					return RouteFact{State: routeWrong, Row: r, Range: p}
				}
				if p == cidr || owner == nil {
					right = r
				}
			case p.Bits() > 0 && p.Contains(cidr.Addr()) && r.Type != "None" && !strings.EqualFold(r.Type, "VnetLocal"):
				covering = r
			}
		}
	}
	switch {
	case right != nil:
		return RouteFact{State: RouteCorrect, Row: right, Range: cidr}
	case covering != nil:
		// A machine of its own may know a route.
		return RouteFact{}
	}
	return RouteFact{State: RouteMissing, Rows: len(rows), Range: cidr}
}

// leadsTo reports whether the route ends at the owner; where the owner is not known, at any machine.
func leadsTo(r *model.UDR, owner *model.ClusterNode) bool {
	if !strings.EqualFold(r.Type, "VirtualAppliance") && !strings.EqualFold(r.Type, "VirtualApplianceEcmp") ||
		len(r.NextHops) == 0 {
		return false
	}
	if owner == nil {
		return true
	}
	hops := Internal(owner)
	return !slices.ContainsFunc(r.NextHops, func(a netip.Addr) bool { return !slices.Contains(hops, a) })
}

// Wrong reports whether the route leads elsewhere.
func (f RouteFact) Wrong() bool { return f.State == routeWrong || f.State == RouteListedWrong }
