package node

import (
	"net/netip"
	"strings"

	"github.com/lasthop/lasthop/probe/model"
)

// azureFabric is the MAC by which Azure's network answers every ARP.
var azureFabric = model.MAC{0x12, 0x34, 0x56, 0x78, 0x9a, 0xbc}

// InAzure reports whether something tells that the node is one of Azure's: the
// fabric's MAC, a plugin that only runs there, files given, or the node's own.
func (v *Index) InAzure() bool {
	az := &v.Cluster.Azure
	return v.IsGatewayMAC(azureFabric) || v.Node.Plugin == "kubenet" || strings.HasPrefix(v.Node.Plugin, "azure-") ||
		len(az.Tables)+len(az.Subnets)+len(az.Effective)+len(az.NICs)+len(az.Groups)+len(az.Rules) > 0 || az.Node != model.AzureNode{}
}

// TableRow associates a route table with the subnet, where the network has such.
func (v *Index) TableRow() []model.Row {
	if !v.InAzure() {
		return nil
	}
	return []model.Row{v.Associate(nil, nil)}
}

// Associate gives a subnet its table: those that the files of the cloud name, or else
// those of the node's own configuration.
func (v *Index) Associate(s *model.Subnet, t *model.RouteTable) model.Row {
	node := &v.Cluster.Azure.Node
	r := model.Row{Azure: true, Group: node.VNetResourceGroup, VNet: node.VNet, Subnet: node.Subnet}
	_, id := subnetOf(v, v.Self())
	if s != nil && s.ID != "" {
		id = s.ID
	}
	if id != "" {
		r.Group, r.VNet, r.Subnet = model.ResourcePart(id, "resourceGroups"), model.ResourcePart(id, "virtualNetworks"), model.ResourcePart(id, "subnets")
	}
	r.Table = ownTable(node, r.Group)
	if node.RouteTable == "" && t == nil {
		t = unusedTable(v)
	}
	if t != nil && t.ID != "" {
		r.Table = t.ID
	}
	return r
}

// ownTable is the cluster's route table for a command about something of a resource
// group. Of another group it takes the whole ID.
func ownTable(node *model.AzureNode, group string) string {
	switch {
	case node.RouteTable == "" || group != "" && strings.EqualFold(node.RouteTableResourceGroup, group):
		return node.RouteTable
	case node.SubscriptionID == "" || node.RouteTableResourceGroup == "":
		return "ROUTE_TABLE_ID"
	}
	return "/subscriptions/" + node.SubscriptionID + "/resourceGroups/" + node.RouteTableResourceGroup +
		"/providers/Microsoft.Network/routeTables/" + node.RouteTable
}

// NodeIP stands in a fix for the address of a node that is not known, or is one of several.
const NodeIP = "NODE_IP"

// DefaultRoute is the one of the main table that comes first, of one IP version; zero without any.
func (v *Index) DefaultRoute(six bool) model.Route {
	var best model.Route
	for _, r := range v.Routes {
		if r.Table == MainTable && r.Type == "unicast" && r.Dst.IsValid() && r.Dst.Bits() == 0 && r.Dst.Addr().Is6() == six &&
			(!best.Dst.IsValid() || r.Priority < best.Priority) {
			best = r
		}
	}
	return best
}

// Row is a row of a table of Azure's, the cluster's where none is given, or of whatever
// another network keeps such routes in, which a node does not tell.
func (v *Index) Row(t *model.RouteTable, name string, cidr netip.Prefix, hop string) model.Row {
	node, r := &v.Cluster.Azure.Node, model.Row{Range: cidr, Node: name, Hop: hop, Azure: v.InAzure()}
	r.Group, r.Table = node.RouteTableResourceGroup, node.RouteTable
	if t == nil {
		s, id := subnetOf(v, v.Self())
		t, _, _ = appliedTable(v, s, id)
	}
	if t == nil && node.RouteTable == "" {
		t = unusedTable(v)
	}
	if t != nil && t.ID != "" {
		r.Group, r.Table = model.ResourcePart(t.ID, "resourceGroups"), t.Name()
	}
	return r
}
