package diagnose

import (
	"net/netip"
	"slices"
	"strings"

	"github.com/lasthop/lasthop/probe/model"
)

// azureFabric is the MAC by which Azure's network answers every ARP.
var azureFabric = model.MAC{0x12, 0x34, 0x56, 0x78, 0x9a, 0xbc}

// inAzure reports whether something tells that the node is one of Azure's: the
// fabric's MAC, a plugin that only runs there, files given, or the node's own.
func (v *index) inAzure() bool {
	az := &v.Cluster.Azure
	return v.isGatewayMAC(azureFabric) || v.Node.Plugin == "kubenet" || strings.HasPrefix(v.Node.Plugin, "azure-") ||
		len(az.Tables)+len(az.Subnets)+len(az.Effective)+len(az.NICs) > 0 || az.Node != model.AzureNode{}
}

// tableRow associates a route table with the subnet, where the network has such.
func (v *index) tableRow() []model.Row {
	if !v.inAzure() {
		return nil
	}
	return []model.Row{v.associate(nil, nil)}
}

// associate gives a subnet its table: those that the files of the cloud name, or else
// those of the node's own configuration.
func (v *index) associate(s *model.Subnet, t *model.RouteTable) model.Row {
	node := &v.Cluster.Azure.Node
	r := model.Row{Azure: true, Group: node.VNetResourceGroup, VNet: node.VNet, Subnet: node.Subnet}
	if s != nil && s.ID != "" {
		r.Group, r.VNet = model.ResourcePart(s.ID, "resourceGroups"), model.ResourcePart(s.ID, "virtualNetworks")
		r.Subnet = model.ResourcePart(s.ID, "subnets")
	}
	r.Table = ownTable(node, r.Group)
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

// rangeRow is the row that leads to another node's pods.
func (v *index) rangeRow(cidr netip.Prefix, t *model.RouteTable) model.Row {
	name, hop := unknownNode, NodeIP
	if n := v.nodeOf(cidr); n != nil {
		name, hop = n.Name, nextHop(n, cidr)
	}
	return v.row(t, name, cidr, hop)
}

// nextHop is the node's address that a route to its pods needs.
func nextHop(n *model.ClusterNode, cidr netip.Prefix) string {
	if list := sameFamily(internal(n), cidr.Addr()); len(list) > 0 {
		return list[0].String()
	}
	return NodeIP
}

// NodeIP stands in a fix for the address of a node that is not known, or is one of several.
const NodeIP = "NODE_IP"

// unknownNode stands for its name.
const unknownNode = "NODE"

// ownRows are the rows that lead to this node's own pods, of the IP versions of the silent ranges.
func (v *index) ownRows(silent []*remoteRange, t *model.RouteTable) []model.Row {
	var out []model.Row
	for _, p := range v.ranges.local {
		if slices.ContainsFunc(silent, func(r *remoteRange) bool { return r.six() == p.Addr().Is6() }) {
			out = append(out, v.row(t, v.Node.Name, p, v.ownHop(p)))
		}
	}
	return out
}

// ownHop is this node's address that a route to its pods needs: the one that the nodes file has, or else the
// one that the default route sends with. THIS_NODE_IP stands for one of several.
func (v *index) ownHop(cidr netip.Prefix) string {
	if n := v.self(); slices.ContainsFunc(v.Cluster.Nodes, func(c model.ClusterNode) bool { return c.Name == n.Name }) {
		if hop := nextHop(n, cidr); hop != NodeIP {
			return hop
		}
	}
	byDefault := v.defaultRoute(cidr.Addr().Is6())
	if byDefault.Src.IsValid() {
		return byDefault.Src.String()
	}
	var all, here []netip.Addr
	for _, l := range v.Links {
		for _, a := range l.Addresses {
			if !a.Addr().IsGlobalUnicast() || !model.InAny(v.onLink, a.Addr()) || a.Addr().Is4() != cidr.Addr().Is4() {
				continue
			}
			if all = append(all, a.Addr()); l.Index == byDefault.IfIndex {
				here = append(here, a.Addr())
			}
			if l.Index == byDefault.IfIndex && a.Contains(byDefault.Gateway) {
				// The kernel lists the one first that it sends with.
				return a.Addr().String()
			}
		}
	}
	for _, list := range [][]netip.Addr{here, all} {
		if len(list) == 1 {
			return list[0].String()
		}
	}
	return "THIS_NODE_IP"
}

// defaultRoute is the one of the main table that comes first, of one IP version; zero without any.
func (v *index) defaultRoute(six bool) model.Route {
	var best model.Route
	for _, r := range v.Routes {
		if r.Table == mainTable && r.Type == "unicast" && r.Dst.IsValid() && r.Dst.Bits() == 0 && r.Dst.Addr().Is6() == six &&
			(!best.Dst.IsValid() || r.Priority < best.Priority) {
			best = r
		}
	}
	return best
}

// row is a row of a table of Azure's, the cluster's where none is given, or of whatever
// another network keeps such routes in, which a node does not tell.
func (v *index) row(t *model.RouteTable, name string, cidr netip.Prefix, hop string) model.Row {
	node := &v.Cluster.Azure.Node
	r := model.Row{Range: cidr, Node: name, Hop: hop, Azure: v.inAzure()}
	r.Group, r.Table = node.RouteTableResourceGroup, node.RouteTable
	if t != nil && t.ID != "" {
		r.Group, r.Table = model.ResourcePart(t.ID, "resourceGroups"), t.Name()
	}
	return r
}

// AddRows has the fix of a finding add rows.
func AddRows(f *model.Finding, rows ...model.Row) { f.Rows = model.With(f.Rows, rows...) }
