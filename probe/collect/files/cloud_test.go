package files

import (
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"golang.org/x/sys/unix"

	"github.com/lasthop/lasthop/probe/model"
)

// aksConfig is what AKS writes, shortened, with a secret where older clusters have
// one.
const aksConfig = `{
    "cloud":"AzurePublicCloud",
    "tenantId":"72f988bf-0000-0000-0000-000000000000",
    "subscriptionId":"8ecadfc9-0000-0000-0000-000000000000",
    "aadClientId":"msi",
    "aadClientSecret":"hunter2~s3cret",
    "resourceGroup":"MC_shop_cluster_westeurope",
    "location":"westeurope",
    "vmType":"vmss",
    "subnetName":"aks-subnet",
    "securityGroupName":"aks-agentpool-12345678-nsg",
    "vnetName":"aks-vnet-12345678",
    "vnetResourceGroup":"",
    "routeTableName":"aks-agentpool-12345678-routetable",
    "routeTableResourceGroup":null,
    "cloudProviderBackoff":true,
    "cloudProviderBackoffRetries":6,
    "useManagedIdentityExtension":true
}`

func TestAzureCloud(t *testing.T) {
	aks := model.AzureNode{
		SubscriptionID: "8ecadfc9-0000-0000-0000-000000000000", ResourceGroup: "MC_shop_cluster_westeurope",
		VNet: "aks-vnet-12345678", VNetResourceGroup: "MC_shop_cluster_westeurope", Subnet: "aks-subnet",
		RouteTable: "aks-agentpool-12345678-routetable", RouteTableResourceGroup: "MC_shop_cluster_westeurope",
	}
	own := aks
	own.VNetResourceGroup = "corp.net_(1)"
	for name, tt := range map[string]struct {
		text string
		want model.AzureNode
	}{
		"as AKS writes it":        {aksConfig, aks},
		"a byte order mark":       {"\ufeff" + aksConfig, aks},
		"Windows lines":           {strings.ReplaceAll(aksConfig, "\n", "\r\n"), aks},
		"a network of one's own":  {strings.Replace(aksConfig, `"vnetResourceGroup":""`, `"vnetResourceGroup":"corp.net_(1)"`, 1), own},
		"no field":                {`{}`, model.AzureNode{}},
		"all empty":               {`{"resourceGroup": "", "vnetName": null, "routeTableName": ""}`, model.AzureNode{}},
		"null":                    {`null`, model.AzureNode{}},
		"a subnet alone":          {`{"subnetName": "s"}`, model.AzureNode{Subnet: "s"}},
		"wrong types elsewhere":   {`{"vnetName": "v", "cloud": 7, "aadClientSecret": {"a": [1]}}`, model.AzureNode{VNet: "v"}},
		"a field twice: the last": {`{"vnetName": "v", "vnetName": "w"}`, model.AzureNode{VNet: "w"}},
	} {
		got, err := Read(root(t, map[string]string{azureCloud: tt.text}))
		if err != nil || got.Cloud != tt.want {
			t.Errorf("%s: %v\n got %+v\nwant %+v", name, err, got.Cloud, tt.want)
		}
		if len(got.Names) != 1 || got.Names[0] != azureCloud {
			t.Errorf("%s: names %q", name, got.Names)
		}
		if strings.Contains(fmt.Sprintf("%+v", got), "hunter2") {
			t.Errorf("%s: the secret was read: %+v", name, got)
		}
	}
}

// TestBrokenAzureCloud wants a gap for each file that is not what it should be, with
// nothing of it used or quoted, and the other files read.
func TestBrokenAzureCloud(t *testing.T) {
	for name, tt := range map[string]struct{ text, want string }{
		"truncated":      {aksConfig[:300], "unexpected end of JSON input"},
		"empty":          {"", "unexpected end of JSON input"},
		"not JSON":       {"hunter2~s3cret", "invalid character"},
		"a list":         {"[" + aksConfig + "]", "found array"},
		"a string":       {`"hunter2~s3cret"`, "found string"},
		"a wrong type":   {strings.Replace(aksConfig, `"aks-subnet"`, `["hunter2~s3cret"]`, 1), `want a string at "subnetName"`},
		"a number":       {strings.Replace(aksConfig, `"aks-subnet"`, `7`, 1), `want a string at "subnetName"`},
		"no name":        {strings.Replace(aksConfig, `"aks-subnet"`, `"a b; reboot"`, 1), "want an Azure resource name"},
		"a control code": {strings.Replace(aksConfig, `"aks-subnet"`, `"\u001b[31m"`, 1), "want an Azure resource name"},
		"too long":       {strings.Replace(aksConfig, "aks-subnet", strings.Repeat("a", 91), 1), "want an Azure resource name"},
		"huge":           {aksConfig + strings.Repeat(" ", maxCloud), "the file is too large"},
		"UTF-16":         {"\xff\xfe{\x00}\x00", "invalid character"},
	} {
		dir := root(t, map[string]string{azureCloud: tt.text, azureVNet: vnetState})
		got, err := Read(dir)
		var bad *Error
		if err == nil || !strings.Contains(err.Error(), tt.want) || !errors.As(err, &bad) || bad.Path != filepath.Join(dir, azureCloud) {
			t.Errorf("%s: error %v, want %q", name, err, tt.want)
		}
		if (got.Cloud != model.AzureNode{}) || len(got.Owners) != 1 {
			t.Errorf("%s: cloud %+v, %d owners", name, got.Cloud, len(got.Owners))
		}
		if err != nil && strings.Contains(err.Error(), "hunter2") {
			t.Errorf("%s: the error quotes the secret: %v", name, err)
		}
	}
}

// TestOddAzureCloud has things in the file's place that are no plain file.
func TestOddAzureCloud(t *testing.T) {
	for name, make := range map[string]func(path string) error{
		"a directory":          func(path string) error { return os.Mkdir(path, 0o755) },
		"a pipe":               func(path string) error { return unix.Mkfifo(path, 0o600) },
		"a link to itself":     func(path string) error { return os.Symlink(path, path) },
		"a device without end": func(path string) error { return os.Symlink("/dev/zero", path) },
	} {
		dir := root(t, map[string]string{azureVNet: vnetState})
		path := filepath.Join(dir, azureCloud)
		if err := errors.Join(os.MkdirAll(filepath.Dir(path), 0o755), make(path)); err != nil {
			t.Fatal(err)
		}
		got, err := Read(dir)
		if err == nil || (got.Cloud != model.AzureNode{}) || len(got.Owners) != 1 {
			t.Errorf("%s: %v, %+v", name, err, got)
		}
	}
	// A link to nothing is a file that is not there.
	dir := root(t, map[string]string{azureVNet: vnetState})
	path := filepath.Join(dir, azureCloud)
	if err := errors.Join(os.MkdirAll(filepath.Dir(path), 0o755), os.Symlink("gone", path)); err != nil {
		t.Fatal(err)
	}
	if _, err := Read(dir); err != nil {
		t.Errorf("a link to nothing: %v", err)
	}
}

func FuzzAzureCloud(f *testing.F) {
	f.Add([]byte(aksConfig))
	f.Add([]byte(`{"vnetName": null}`))
	f.Fuzz(func(t *testing.T, text []byte) {
		got, err := Read(root(t, map[string]string{azureCloud: string(text)}))
		if (err == nil) != (len(got.Names) == 1) || err != nil && got.Cloud != (model.AzureNode{}) {
			t.Errorf("%v: %+v", err, got)
		}
		for _, name := range []string{got.Cloud.VNet, got.Cloud.Subnet, got.Cloud.RouteTable, got.Cloud.SubscriptionID} {
			if name != "" && !isResourceName(name) {
				t.Errorf("the name %q", name)
			}
		}
	})
}
