package diagnose

import (
	"cmp"
	"fmt"
	"net/netip"
	"strings"

	"github.com/lasthop/lasthop/probe/model"
)

// azureFabric is the MAC by which Azure's network answers every ARP.
var azureFabric = model.MAC{0x12, 0x34, 0x56, 0x78, 0x9a, 0xbc}

// inAzure reports whether something tells that the node is one of Azure's: the
// fabric's MAC, a plugin that only runs there, files given, or the node's own.
func (v *view) inAzure() bool {
	az := &v.Cluster.Azure
	return v.isGatewayMAC(azureFabric) || v.Node.Plugin == "kubenet" || strings.HasPrefix(v.Node.Plugin, "azure-") ||
		len(az.Tables)+len(az.Subnets)+len(az.Effective)+len(az.NICs) > 0 || az.Node != model.AzureNode{}
}

// tableFix associates a route table with the subnet, where the network has such.
func (v *view) tableFix() []string {
	if !v.inAzure() {
		return nil
	}
	return []string{v.associateFix(nil, nil)}
}

// associateFix is the command that gives a subnet its table: those that the files
// of the cloud name, or else those of the node's own configuration.
func (v *view) associateFix(s *model.Subnet, t *model.RouteTable) string {
	node := &v.Cluster.Azure.Node
	group, vnet, subnet := node.VNetResourceGroup, node.VNet, node.Subnet
	if s != nil && s.ID != "" {
		group, vnet, subnet = model.ResourcePart(s.ID, "resourceGroups"), model.ResourcePart(s.ID, "virtualNetworks"), model.ResourcePart(s.ID, "subnets")
	}
	table := ownTable(node, group)
	if t != nil && t.ID != "" {
		table = t.ID
	}
	return fmt.Sprintf("az network vnet subnet update --resource-group %s --vnet-name %s --name %s --route-table %s",
		shellWord(cmp.Or(group, "RESOURCE_GROUP")), shellWord(cmp.Or(vnet, "VNET")), shellWord(cmp.Or(subnet, "SUBNET")), shellWord(table))
}

// ownTable is the cluster's route table for a command about something of a resource
// group. Of another group it takes the whole ID.
func ownTable(node *model.AzureNode, group string) string {
	switch {
	case node.RouteTable == "":
		return "ROUTE_TABLE"
	case group != "" && strings.EqualFold(node.RouteTableResourceGroup, group):
		return node.RouteTable
	case node.SubscriptionID == "" || node.RouteTableResourceGroup == "":
		return "ROUTE_TABLE_ID"
	}
	return fmt.Sprintf("/subscriptions/%s/resourceGroups/%s/providers/Microsoft.Network/routeTables/%s",
		node.SubscriptionID, node.RouteTableResourceGroup, node.RouteTable)
}

// routeArgs names a table for az route-table route commands: the one that a file of
// the cloud has, or else the cluster's.
func (v *view) routeArgs(t *model.RouteTable) string {
	node := &v.Cluster.Azure.Node
	group, table := node.RouteTableResourceGroup, node.RouteTable
	if t != nil && t.ID != "" {
		group, table = model.ResourcePart(t.ID, "resourceGroups"), t.Name()
	}
	return fmt.Sprintf("--resource-group %s --route-table-name %s", shellWord(cmp.Or(group, "RESOURCE_GROUP")), shellWord(cmp.Or(table, "ROUTE_TABLE")))
}

// rangeRouteFix is the row that leads to another node's pods.
func (v *view) rangeRouteFix(cidr netip.Prefix, t *model.RouteTable) string {
	name, hop := "NODE", "NODE_IP"
	if n := v.nodeOf(cidr); n != nil {
		name, hop = n.Name, nextHop(n, cidr)
	}
	return routeFix(v, t, name, cidr, hop)
}

// nextHop is the node's address that a route to its pods needs.
func nextHop(n *model.ClusterNode, cidr netip.Prefix) string {
	for _, a := range internal(n) {
		if a.Is4() == cidr.Addr().Is4() {
			return a.String()
		}
	}
	return "NODE_IP"
}

// ownRouteFix is the row that leads to this node's own pods.
func (v *view) ownRouteFix(t *model.RouteTable) []string {
	var fix []string
	for _, p := range v.ranges.local {
		hop := "THIS_NODE_IP"
		for _, l := range v.Links {
			for _, a := range l.Addresses {
				if inAny(v.onLink, a.Addr()) && a.Addr().Is4() == p.Addr().Is4() {
					hop = a.Addr().String()
				}
			}
		}
		fix = append(fix, routeFix(v, t, v.Node.Name, p, hop))
	}
	return fix
}

// routeFix adds the route: as a row of Azure's table, or wherever another network
// keeps such routes, which a node does not tell.
func routeFix(v *view, t *model.RouteTable, name string, cidr netip.Prefix, hop string) string {
	if t == nil && !v.inAzure() {
		return fmt.Sprintf("add a route to %s by %s on the next router, or to the route table of the cloud, "+
			"or where nodes announce their pods by BGP look at the sessions of that node: calicoctl node status, cilium bgp peers", cidr, hop)
	}
	return strings.Join([]string{
		"az network route-table route create " + v.routeArgs(t),
		"--name", shellWord(name), "--address-prefix", cidr.String(),
		"--next-hop-type VirtualAppliance --next-hop-ip-address", hop,
	}, " ")
}
