package files

import (
	"cmp"
	"errors"
	"path/filepath"
	"regexp"
	"unicode/utf8"

	"github.com/lasthop/lasthop/probe/model"
)

// azureCloud is the file from which Azure's cloud provider on the node takes
// where the node is. AKS writes it on every node, readable by root only.
const azureCloud = "etc/kubernetes/azure.json"

// maxCloud limits that file's size; AKS writes some 2 KiB.
const maxCloud = 1 << 20

// cloud is what is read of that file. It has secrets as well (aadClientSecret),
// which have no field here and so are never decoded.
type cloud struct {
	SubscriptionID          string `json:"subscriptionId"`
	ResourceGroup           string `json:"resourceGroup"`
	VNetName                string `json:"vnetName"`
	VNetResourceGroup       string `json:"vnetResourceGroup"`
	SubnetName              string `json:"subnetName"`
	RouteTableName          string `json:"routeTableName"`
	RouteTableResourceGroup string `json:"routeTableResourceGroup"`
	Identity                string `json:"userAssignedIdentityID"`
}

// AzureIdentity is the client ID of the managed identity that the node has for the cloud provider; empty if it has another, or the
// file cannot be read.
func AzureIdentity(root string) string {
	var c cloud
	if text, err := read(filepath.Join(root, azureCloud), maxCloud); err != nil || DecodeJSON(azureCloud, text, "", &c) != nil {
		return ""
	}
	return c.Identity
}

var resourceName = regexp.MustCompile(`^[\pL\pN_.()-]+$`)

// isResourceName reports whether Azure allows the name for groups and network resources.
func isResourceName(name string) bool {
	// As {1,90} in the expression, the bound would take 3 MiB of every process.
	return utf8.RuneCountInString(name) <= 90 && resourceName.MatchString(name)
}

func (f *Files) readAzureCloud(root string) error {
	path := filepath.Join(root, azureCloud)
	text, err := read(path, maxCloud)
	if err != nil {
		return err
	}
	var c cloud
	if err := DecodeJSON(path, text, "an Azure cloud provider configuration", &c); err != nil {
		return err
	}
	for _, name := range []string{c.SubscriptionID, c.ResourceGroup, c.VNetName, c.VNetResourceGroup, c.SubnetName, c.RouteTableName, c.RouteTableResourceGroup} {
		if name != "" && !isResourceName(name) {
			return ValueError(path, text, name, "an Azure resource name", errors.New("found invalid characters"))
		}
	}
	f.Names = append(f.Names, azureCloud)
	f.Cloud = model.AzureNode{
		SubscriptionID: c.SubscriptionID, ResourceGroup: c.ResourceGroup,
		VNet: c.VNetName, VNetResourceGroup: cmp.Or(c.VNetResourceGroup, c.ResourceGroup), Subnet: c.SubnetName,
		RouteTable: c.RouteTableName, RouteTableResourceGroup: cmp.Or(c.RouteTableResourceGroup, c.ResourceGroup),
	}
	return nil
}
