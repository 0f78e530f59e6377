package model

import (
	"net/netip"
	"strings"
)

// Azure is what files tell of the Azure network beyond the node, as the az
// command line printed it. What no file tells is not in it.
type Azure struct {
	Tables    []RouteTable
	Subnets   []Subnet
	Effective []EffectiveRoutes
	NICs      []NIC
}

// RouteTable is a table of user-defined routes.
type RouteTable struct {
	// ID is the resource's, empty for a list of routes without ids.
	ID     string
	Routes []UDR
	// Whole is true when the table itself was printed, with all of its
	// routes and subnets; a list of routes alone says nothing of the latter.
	Whole bool
	// Part is true where only some of the routes may be known: one that was
	// printed alone.
	Part bool
	// Subnets are the ids of those that it is associated with.
	Subnets []string
	// File is what told so.
	File string
}

// Name is the last part of the table's id, or empty.
func (t *RouteTable) Name() string { return lastPart(t.ID) }

// UDR is a route of a table, or of a network card's effective ones.
type UDR struct {
	Name string
	// Prefixes hold no service tags.
	Prefixes []netip.Prefix
	// Type is VirtualAppliance, VirtualApplianceEcmp, VnetLocal, Internet,
	// None, …
	Type     string
	NextHops []netip.Addr
	// Active is false for an effective route that is overridden.
	Active bool
}

// EffectiveRoutes are those that apply to one network card.
type EffectiveRoutes struct {
	Routes []UDR
	File   string
}

// Subnet is a part of the virtual network.
type Subnet struct {
	ID       string
	Prefixes []netip.Prefix
	// RouteTable and SecurityGroup are ids, empty where none is associated.
	RouteTable    string
	SecurityGroup string
	File          string
}

// Name is the last part of the subnet's id, or empty.
func (s *Subnet) Name() string { return lastPart(s.ID) }

// NIC is a network card.
type NIC struct {
	ID string
	// Forwards is IP forwarding: whether the card takes and sends what is not
	// for or from its own addresses. ForwardsKnown is false where the file
	// does not say.
	Forwards, ForwardsKnown bool
	Addresses               []netip.Addr
	// Subnets are the ids of those that its addresses are of.
	Subnets []string
	File    string
}

// Name is the last part of the card's id, or empty.
func (n *NIC) Name() string { return lastPart(n.ID) }

// SameResource reports whether two ids name one resource of Azure, which
// compares them without case. The empty id names none.
func SameResource(a, b string) bool {
	return a != "" && strings.EqualFold(strings.Trim(a, "/"), strings.Trim(b, "/"))
}

// ResourcePart is the name behind a kind in an id: the group of
// ".../resourceGroups/group/..." for "resourceGroups"; empty if there is none.
func ResourcePart(id, kind string) string {
	parts := strings.Split(id, "/")
	for i := 0; i+1 < len(parts); i++ {
		if strings.EqualFold(parts[i], kind) {
			return parts[i+1]
		}
	}
	return ""
}

func lastPart(id string) string {
	id = strings.TrimRight(id, "/")
	return id[strings.LastIndexByte(id, '/')+1:]
}
