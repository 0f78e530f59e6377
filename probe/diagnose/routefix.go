package diagnose

import (
	"cmp"
	"fmt"
	"net/netip"
	"regexp"
	"slices"
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
	name, hop := "NODE", NodeIP
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
	return NodeIP
}

// NodeIP stands in a fix for the address of a node that is not known, or is one of several.
const NodeIP = "NODE_IP"

// ownRouteFix are the rows that lead to this node's own pods, of the IP versions of the
// silent ranges.
func (v *view) ownRouteFix(silent []*remoteRange, t *model.RouteTable) []string {
	own := slices.DeleteFunc(slices.Clone(v.ranges.local), func(p netip.Prefix) bool {
		return !slices.ContainsFunc(silent, func(r *remoteRange) bool { return r.six() == p.Addr().Is6() })
	})
	return v.ownRoutes(own, t, v.ownHop)
}

// ownHop is this node's address that a route to its pods needs: the one that the nodes file
// has, or else the one that the default route sends with. THIS_NODE_IP stands for one of
// several.
func (v *view) ownHop(cidr netip.Prefix) string {
	if n := v.self(); slices.ContainsFunc(v.Cluster.Nodes, func(c model.ClusterNode) bool { return c.Name == n.Name }) {
		if hop := nextHop(n, cidr); hop != NodeIP {
			return hop
		}
	}
	way := v.defaultRoute(cidr.Addr().Is6())
	if way.Src.IsValid() {
		return way.Src.String()
	}
	var all, here []netip.Addr
	for _, l := range v.Links {
		for _, a := range l.Addresses {
			if !a.Addr().IsGlobalUnicast() || !inAny(v.onLink, a.Addr()) || a.Addr().Is4() != cidr.Addr().Is4() {
				continue
			}
			if all = append(all, a.Addr()); l.Index == way.IfIndex {
				here = append(here, a.Addr())
			}
			if l.Index == way.IfIndex && a.Contains(way.Gateway) {
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

// defaultRoute is the one of the main table that comes first, of one IP version; zero
// without any.
func (v *view) defaultRoute(six bool) model.Route {
	var best model.Route
	for _, r := range v.Routes {
		if r.Table == mainTable && r.Type == "unicast" && r.Dst.IsValid() && r.Dst.Bits() == 0 && r.Dst.Addr().Is6() == six &&
			(!best.Dst.IsValid() || r.Priority < best.Priority) {
			best = r
		}
	}
	return best
}

// ownRoutes are rows that lead to ranges of this node's own pods.
func (v *view) ownRoutes(ranges []netip.Prefix, t *model.RouteTable, hop func(netip.Prefix) string) []string {
	var fix []string
	for _, p := range ranges {
		fix = append(fix, routeFix(v, t, v.Node.Name, p, hop(p)))
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

var fixedRoute = regexp.MustCompile(`(?:^az network route-table route (?:create|update) .*--address-prefix |^add a route to )([0-9a-fA-F.:]+/[0-9]+) `)

// FixedRoutes are the ranges to which the fix of a finding adds or corrects routes.
func FixedRoutes(f *model.Finding) []netip.Prefix {
	var out []netip.Prefix
	for _, line := range f.Fix {
		if m := fixedRoute.FindStringSubmatch(line); m != nil {
			if p, err := netip.ParsePrefix(m[1]); err == nil {
				out = append(out, p)
			}
		}
	}
	return out
}
