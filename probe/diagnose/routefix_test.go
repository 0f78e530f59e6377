package diagnose

import (
	"net/netip"
	"slices"
	"testing"

	"github.com/lasthop/lasthop/probe/model"
	"github.com/lasthop/lasthop/probe/node"
	"github.com/lasthop/lasthop/probe/words"
)

// TestAzureNames: az commands name what the files of the cloud have, else what the
// node's own configuration has, and only else want it from the user.
func TestAzureNames(t *testing.T) {
	const ids = "/subscriptions/5ub/resourceGroups/net/providers/Microsoft.Network/"
	aks := model.AzureNode{SubscriptionID: "5ub", ResourceGroup: "MC_rg", VNet: "vnet", VNetResourceGroup: "MC_rg", Subnet: "nodes", RouteTable: "rt", RouteTableResourceGroup: "mc_RG"}
	ownVNet := aks
	ownVNet.VNetResourceGroup = "corp"
	noSubscription := ownVNet
	noSubscription.SubscriptionID = ""
	hostile := aks
	hostile.Subnet = "a'b;$(reboot)"
	table, subnet := &model.RouteTable{ID: ids + "routeTables/given"}, &model.Subnet{ID: ids + "virtualNetworks/v/subnets/s"}
	for _, tt := range []struct {
		name             string
		node             model.AzureNode
		subnet           *model.Subnet
		table            *model.RouteTable
		associate, route string
	}{
		{"nothing is known", model.AzureNode{}, nil, nil,
			"--resource-group RESOURCE_GROUP --vnet-name VNET --name SUBNET --route-table ROUTE_TABLE # if the subnet has none yet", "--resource-group RESOURCE_GROUP --route-table-name ROUTE_TABLE"},
		{"all in the cluster's group", aks, nil, nil,
			"--resource-group MC_rg --vnet-name vnet --name nodes --route-table rt", "--resource-group mc_RG --route-table-name rt"},
		{"the network is in another group", ownVNet, nil, nil,
			"--resource-group corp --vnet-name vnet --name nodes --route-table /subscriptions/5ub/resourceGroups/mc_RG/providers/Microsoft.Network/routeTables/rt", "--resource-group mc_RG --route-table-name rt"},
		{"in another group, without a subscription", noSubscription, nil, nil,
			"--resource-group corp --vnet-name vnet --name nodes --route-table ROUTE_TABLE_ID", "--resource-group mc_RG --route-table-name rt"},
		{"only the group", model.AzureNode{ResourceGroup: "g", VNetResourceGroup: "g", RouteTableResourceGroup: "g"}, nil, nil,
			"--resource-group g --vnet-name VNET --name SUBNET --route-table ROUTE_TABLE # if the subnet has none yet", "--resource-group g --route-table-name ROUTE_TABLE"},
		{"files given", aks, subnet, table,
			"--resource-group net --vnet-name v --name s --route-table " + table.ID, "--resource-group net --route-table-name given"},
		{"a subnet given, no table", aks, subnet, &model.RouteTable{},
			"--resource-group net --vnet-name v --name s --route-table /subscriptions/5ub/resourceGroups/mc_RG/providers/Microsoft.Network/routeTables/rt", "--resource-group mc_RG --route-table-name rt"},
		{"a name that a shell would read", hostile, nil, nil,
			`--resource-group MC_rg --vnet-name vnet --name 'a'\''b;$(reboot)' --route-table rt`, "--resource-group mc_RG --route-table-name rt"},
	} {
		n := plain()
		n.Neighbors = nil // the fabric's MAC tells too
		n.Cluster.Azure.Node = tt.node
		v := newInput(&n.Snapshot)
		row := v.Row(tt.table, "n", netip.MustParsePrefix("10.1.1.0/24"), node.NodeIP)
		row.Azure = true
		f := model.Finding{Rows: []model.Row{v.Associate(tt.subnet, tt.table), row}}
		words.PutRows(&f)
		want := []string{
			"az network vnet subnet update " + tt.associate,
			"az network route-table route create " + tt.route + " --name n --address-prefix 10.1.1.0/24 --next-hop-type VirtualAppliance --next-hop-ip-address NODE_IP",
		}
		if !slices.Equal(f.Fix, want) {
			t.Errorf("%s:\n got %s\nwant %s", tt.name, f.Fix, want)
		}
		if v.InAzure() != (tt.node != model.AzureNode{}) {
			t.Errorf("%s: in Azure: %v", tt.name, v.InAzure())
		}
	}
}
