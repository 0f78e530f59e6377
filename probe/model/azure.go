package model

import (
	"net/netip"
	"slices"
	"strings"
)

// Azure describes the Azure network beyond the node, as far as output of the az command line was given, or Azure was asked.
type Azure struct {
	// Node is known from a file of the node itself.
	Node      AzureNode
	Tables    []RouteTable
	Subnets   []Subnet
	Effective []EffectiveRoutes
	NICs      []NIC
	Groups    []SecurityGroup
	Rules     []EffectiveRules
}

// AzureNode is where Azure has a node, by the configuration of the cloud provider on it (/etc/kubernetes/azure.json). A
// name that the file does not have is empty. That of a route table need not mean that there is one.
type AzureNode struct {
	SubscriptionID string `redact:"uid"`
	// ResourceGroup is that of the node.
	ResourceGroup           string `redact:"rg"`
	VNet                    string `redact:"vnet"`
	VNetResourceGroup       string `redact:"rg"`
	Subnet                  string `redact:"subnet"`
	RouteTable              string `redact:"table"`
	RouteTableResourceGroup string `redact:"rg"`
}

// RouteTable is a table of user-defined routes.
type RouteTable struct {
	// ID is the resource ID, empty for a list of routes without IDs.
	ID     string `redact:"azureID"`
	Routes []UDR
	// Whole says that the table itself was given, with all of its routes and
	// subnets. A list of routes does not include the subnets.
	Whole bool
	// Part says that routes may be missing: a single route was given.
	Part bool
	// Subnets are the IDs of the associated subnets.
	Subnets []string `redact:"azureID"`
	// File is the source.
	File string `redact:"file"`
}

// Name returns the last part of the table's ID, or an empty string.
func (t *RouteTable) Name() string { return lastPart(t.ID) }

// UDR is a route of a route table, or an effective route of a NIC.
type UDR struct {
	Name string `redact:"route"`
	// Prefixes are the destinations, without service tags.
	Prefixes []netip.Prefix
	// Type is VirtualAppliance, VirtualApplianceEcmp, VnetLocal, Internet, None, …
	Type     string `redact:"keep"`
	NextHops []netip.Addr
	// Active is false for an effective route that another overrides.
	Active bool
}

// EffectiveRoutes are the routes that apply to one NIC.
type EffectiveRoutes struct {
	// NIC is the ID; empty is this node's.
	NIC    string `redact:"azureID"`
	Routes []UDR
	File   string `redact:"file"`
}

// SecurityGroup is a network security group.
type SecurityGroup struct {
	ID string `redact:"azureID"`
	// Rules are its own and Azure's default ones. Of each direction, the one with the lowest priority that matches decides.
	Rules []SecurityRule
	File  string `redact:"file"`
}

// Name returns the last part of the group's ID, or an empty string.
func (g *SecurityGroup) Name() string { return lastPart(g.ID) }

// EffectiveRules are all security groups that apply to one NIC, with Azure's expansion of names to addresses.
type EffectiveRules struct {
	// NIC is the ID; empty is this node's.
	NIC    string `redact:"azureID"`
	Groups []SecurityGroup
	File   string `redact:"file"`
}

// SecurityRule is a rule of a network security group.
type SecurityRule struct {
	Name           string `redact:"rule"`
	Priority       int
	Outbound, Deny bool
	// Protocol is the number of the IP protocol, 0 for any.
	Protocol uint8
	From, To SecurityEnd
}

// SecurityEnd is what a rule matches of one end. Names are service tags and application security groups, of which the
// addresses are not known. Without Ports all match.
type SecurityEnd struct {
	Prefixes []netip.Prefix
	Names    []string `redact:"tag"`
	Ports    []PortRange
}

// Subnet is a part of the virtual network.
type Subnet struct {
	ID       string `redact:"azureID"`
	Prefixes []netip.Prefix
	// RouteTable, SecurityGroup and NATGateway are IDs, empty if none is associated.
	RouteTable    string `redact:"azureID"`
	SecurityGroup string `redact:"azureID"`
	NATGateway    string `redact:"azureID"`
	// Private: Azure gives its machines no address of its own towards the internet (defaultOutboundAccess is false).
	Private bool
	File    string `redact:"file"`
}

// Name returns the last part of the subnet's ID, or an empty string.
func (s *Subnet) Name() string { return lastPart(s.ID) }

// NIC is a virtual network interface of the cloud.
type NIC struct {
	ID string `redact:"azureID"`
	// Forwards is Azure's IP forwarding: whether the NIC receives and sends packets for addresses that are not its own.
	// ForwardsKnown is false if the file does not say.
	Forwards, ForwardsKnown bool
	Addresses               []netip.Addr
	// Blocks are the ranges that it has as a whole, as nodes with static blocks of pods' addresses do.
	Blocks []netip.Prefix
	// Translated: an address of its has a public one, or is of a load balancer, which may translate what it sends.
	Translated bool
	// Subnets are the IDs of its addresses' subnets.
	Subnets []string `redact:"azureID"`
	// SecurityGroup is an ID, empty if none is associated.
	SecurityGroup string `redact:"azureID"`
	File          string `redact:"file"`
}

// Name returns the last part of the NIC's ID, or an empty string.
func (n *NIC) Name() string { return lastPart(n.ID) }

// Has reports whether an address is the NIC's, by itself or in a block.
func (n *NIC) Has(a netip.Addr) bool { return slices.Contains(n.Addresses, a) || InAny(n.Blocks, a) }

// SameResource reports whether two IDs name the same Azure resource. IDs are case-insensitive. An empty ID names none.
func SameResource(a, b string) bool {
	return a != "" && strings.EqualFold(strings.Trim(a, "/"), strings.Trim(b, "/"))
}

// ResourcePart returns the name after kind in an ID, for example "group" for
// "resourceGroups" in ".../resourceGroups/group/...", or an empty string.
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
