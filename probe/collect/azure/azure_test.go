package azure

import (
	"errors"
	"net/netip"
	"os"
	"path/filepath"
	"reflect"
	"strings"
	"testing"

	"github.com/lasthop/lasthop/probe/collect/files"
	"github.com/lasthop/lasthop/probe/model"
)

const (
	group    = "/subscriptions/s/resourceGroups/g/providers/Microsoft.Network"
	tableID  = group + "/routeTables/aks-rt"
	subnetID = group + "/virtualNetworks/v/subnets/nodes"
	nicID    = group + "/networkInterfaces/nic-1"

	routeList = `[
  {"addressPrefix": "10.244.1.0/24", "etag": "W/1", "hasBgpOverride": false, "id": "` + tableID + `/routes/aks-2",
   "name": "aks-2", "nextHopIpAddress": "10.240.0.5", "nextHopType": "VirtualAppliance", "provisioningState": "Succeeded"},
  {"addressPrefix": "fd00:1::/64", "id": "` + tableID + `/routes/aks-2____6", "name": "aks-2____6",
   "nextHop": {"nextHopIpAddresses": ["fd00::5"]}, "nextHopType": "VirtualApplianceEcmp"},
  {"addressPrefix": "Storage.WestEurope", "id": "` + tableID + `/routes/tag", "name": "tag", "nextHopType": "Internet", "nextHopIpAddress": null}
]`
	table = `{"id": "` + tableID + `", "name": "aks-rt", "routes": [
    {"addressPrefix": "10.244.1.0/24", "name": "aks-2", "nextHopIpAddress": "10.240.0.5", "nextHopType": "VirtualAppliance"}],
  "subnets": [{"id": "` + subnetID + `", "resourceGroup": "g"}]}`
	rawTable = `{"id": "` + tableID + `", "properties": {"routes": [
    {"name": "aks-2", "id": "x", "properties": {"addressPrefix": "10.244.1.0/24", "nextHopIpAddress": "10.240.0.5", "nextHopType": "VirtualAppliance"}}],
  "subnets": [{"id": "` + subnetID + `"}]}}`
	subnet = `{"addressPrefix": "10.240.0.0/16", "id": "` + subnetID + `", "name": "nodes", "ipConfigurations": [{"id": "x"}],
  "networkSecurityGroup": {"id": "` + group + `/networkSecurityGroups/nsg"}, "routeTable": {"id": "` + tableID + `"}}`
	rawSubnet = `{"id": "` + subnetID + `", "properties": {"addressPrefixes": ["10.240.0.0/16"], "routeTable": null}}`
	effective = `{"nextLink": null, "value": [
  {"addressPrefix": ["10.240.0.0/16", "10.241.0.0/16"], "nextHopIpAddress": [], "nextHopType": "VnetLocal", "source": "Default", "state": "Active", "name": null},
  {"addressPrefix": ["10.244.1.0/24"], "nextHopIpAddress": ["10.240.0.5"], "nextHopType": "VirtualAppliance", "source": "User", "state": "Invalid", "name": "aks-2"}]}`
	nic = `{"enableIPForwarding": false, "id": "` + nicID + `", "ipConfigurations": [
  {"name": "a", "privateIPAddress": "10.240.0.4", "subnet": {"id": "` + subnetID + `"}},
  {"name": "b", "privateIpAddress": "10.240.0.40"}]}`
	rawNIC = `[{"id": "` + nicID + `", "properties": {"enableIPForwarding": true, "ipConfigurations": [
  {"properties": {"privateIPAddress": "10.240.0.4", "subnet": {"id": "` + subnetID + `"}}}]}}]`
	network = `{"id": "` + group + `/virtualNetworks/v", "addressSpace": {"addressPrefixes": ["10.240.0.0/16"]}, "subnets": [` + subnet + `]}`
)

func prefixes(list ...string) []netip.Prefix {
	var out []netip.Prefix
	for _, s := range list {
		out = append(out, netip.MustParsePrefix(s))
	}
	return out
}

func addrs(list ...string) []netip.Addr {
	var out []netip.Addr
	for _, s := range list {
		out = append(out, netip.MustParseAddr(s))
	}
	return out
}

func TestFormats(t *testing.T) {
	row := model.UDR{Name: "aks-2", Prefixes: prefixes("10.244.1.0/24"), Type: "VirtualAppliance", NextHops: addrs("10.240.0.5"), Active: true}
	rows := []model.UDR{
		row,
		{Name: "aks-2____6", Prefixes: prefixes("fd00:1::/64"), Type: "VirtualApplianceEcmp", NextHops: addrs("fd00::5"), Active: true},
		{Name: "tag", Type: "Internet", Active: true},
	}
	whole := model.Azure{Tables: []model.RouteTable{{ID: tableID, Routes: []model.UDR{row}, Whole: true, Subnets: []string{subnetID}, File: "f"}}}
	nodes := model.Subnet{ID: subnetID, Prefixes: prefixes("10.240.0.0/16"), RouteTable: tableID, SecurityGroup: group + "/networkSecurityGroups/nsg", File: "f"}
	inherited := row
	inherited.Active = false
	for _, tt := range []struct {
		name, text string
		want       model.Azure
	}{
		{"route list", routeList, model.Azure{Tables: []model.RouteTable{{ID: tableID, Routes: rows, File: "f"}}}},
		{"one route", strings.Split(routeList, ",\n  {")[0][1:], model.Azure{Tables: []model.RouteTable{{ID: tableID, Routes: rows[:1], Part: true, File: "f"}}}},
		{"routes without ids", `[{"addressPrefix": "10.244.1.0/24", "name": "aks-2", "nextHopIpAddress": "10.240.0.5", "nextHopType": "VirtualAppliance"}]`,
			model.Azure{Tables: []model.RouteTable{{Routes: []model.UDR{row}, File: "f"}}}},
		{"no routes", "[]", model.Azure{Tables: []model.RouteTable{{File: "f"}}}},
		{"table", table, whole},
		{"list of tables", "[" + table + "]", whole},
		{"table, raw", rawTable, whole},
		{"list of tables, raw", `{"value": [` + rawTable + `]}`, whole},
		{"subnet", subnet, model.Azure{Subnets: []model.Subnet{nodes}}},
		{"subnet, raw, without a table", rawSubnet, model.Azure{Subnets: []model.Subnet{{ID: subnetID, Prefixes: prefixes("10.240.0.0/16"), File: "f"}}}},
		{"network", network, model.Azure{Subnets: []model.Subnet{nodes}}},
		{"effective routes", effective, model.Azure{Effective: []model.EffectiveRoutes{{File: "f", Routes: []model.UDR{
			{Prefixes: prefixes("10.240.0.0/16", "10.241.0.0/16"), Type: "VnetLocal", Active: true}, inherited,
		}}}}},
		{"card", nic, model.Azure{NICs: []model.NIC{{ID: nicID, ForwardsKnown: true, Addresses: addrs("10.240.0.4", "10.240.0.40"), Subnets: []string{subnetID}, File: "f"}}}},
		{"NIC, raw", rawNIC, model.Azure{NICs: []model.NIC{{ID: nicID, Forwards: true, ForwardsKnown: true, Addresses: addrs("10.240.0.4"), Subnets: []string{subnetID}, File: "f"}}}},
		{"a NIC with blocks and a load balancer", `{"id": "` + nicID + `", "properties": {"ipConfigurations": [
  {"properties": {"privateIPAddress": "10.240.0.4", "loadBalancerBackendAddressPools": [{"id": "x"}]}},
  {"properties": {"privateIPAddress": "10.225.0.16", "privateIPAddressPrefixLength": 28}},
  {"properties": {"privateIPAddress": "10.225.0.32/28", "privateIPAddressPrefixLength": 28}}]}}`, model.Azure{NICs: []model.NIC{{
			ID: nicID, Addresses: addrs("10.240.0.4"), Blocks: prefixes("10.225.0.16/28", "10.225.0.32/28"), Translated: true, File: "f"}}}},
		{"a private subnet", `{"id": "` + subnetID + `", "properties": {"addressPrefix": "10.240.0.0/16", "defaultOutboundAccess": false,
  "natGateway": {"id": "n"}}}`, model.Azure{Subnets: []model.Subnet{{
			ID: subnetID, Prefixes: prefixes("10.240.0.0/16"), NATGateway: "n", Private: true, File: "f"}}}},
	} {
		t.Run(tt.name, func(t *testing.T) {
			got, err := Decode("f", []byte(tt.text))
			if err != nil {
				t.Fatal(err)
			}
			if !reflect.DeepEqual(got, tt.want) {
				t.Errorf("got  %+v\nwant %+v", got, tt.want)
			}
		})
	}
}

func TestErrors(t *testing.T) {
	for _, tt := range []struct{ name, text, want string }{
		{"empty", "", "f:1:1: unexpected end of JSON input: want the output of `az network"},
		{"a table of text", "AddressPrefix  Name\n", "f:1:1: invalid character 'A'"},
		{"cut", table[:120], "f:1:120: unexpected end"},
		{"a number", "7", "f:1:1: found number: want an object"},
		{"another object", "\n {\"kind\": \"List\"}", "f:1:1: an object of an unknown kind: want the output"},
		{"prefix", strings.Replace(routeList, "10.244.1.0/24", "10.244.1.0/33", 1), "f:2:21: found \"10.244.1.0/33\": want a range such as 10.244.1.0/24"},
		{"hop", strings.Replace(routeList, `"10.240.0.5"`, `"aks-2"`, 1), `found "aks-2": want an IP address at "nextHopIpAddress"`},
		{"hops", strings.Replace(routeList, `["fd00::5"]`, `[true]`, 1), "f:1:1: found true: want an IP address"},
		{"forwarding", strings.Replace(nic, "false", `"no"`, 1), `f:1:27: found string: want true or false at "EnableIPForwarding"`},
		{"association", strings.Replace(subnet, `{"id": "`+tableID+`"}`, `{}`, 1), "no id: want an object with an \"id\""},
		{"value", `{"value": {}}`, "f:1:11: found object: want a list at \"Value\""},
	} {
		t.Run(tt.name, func(t *testing.T) {
			_, err := Decode("f", []byte(tt.text))
			var bad *files.Error
			if !errors.As(err, &bad) || !strings.Contains(err.Error(), tt.want) {
				t.Errorf("error %v, want %q", err, tt.want)
			}
		})
	}
}

// TestSeveral: what several files tell of one table is joined, whatever the
// case of its id and the order of the files.
func TestSeveral(t *testing.T) {
	dir := t.TempDir()
	write := func(name, text string) string {
		path := filepath.Join(dir, name)
		if err := os.WriteFile(path, []byte(text), 0o600); err != nil {
			t.Fatal(err)
		}
		return path
	}
	list := write("list.json", strings.ReplaceAll(routeList, "routeTables/aks-rt", "ROUTETABLES/AKS-RT"))
	one, other := write("table.json", table), write("subnet.json", subnet)
	for _, paths := range [][]string{{list, one, other}, {one, list, other}} {
		a, err := Read(files.Given{}, paths)
		if err != nil || len(a.Tables) != 1 || len(a.Subnets) != 1 || !a.Tables[0].Whole || len(a.Tables[0].Subnets) != 1 {
			t.Errorf("got %+v, %v", a, err)
		}
	}
	var bad *files.Error
	if _, err := Read(files.Given{}, []string{one, filepath.Join(dir, "none.json")}); !errors.As(err, &bad) || !errors.Is(err, os.ErrNotExist) {
		t.Errorf("error %v", err)
	}
}

func FuzzDecode(f *testing.F) {
	for _, text := range []string{routeList, table, rawTable, subnet, rawSubnet, effective, nic, rawNIC, network, rawGroup, rawEffective, "[]", `{"value": [{}]}`} {
		f.Add([]byte(text))
	}
	f.Fuzz(func(t *testing.T, text []byte) {
		_, err := Decode("f", text)
		var bad *files.Error
		if err != nil && (!errors.As(err, &bad) || bad.Want == "" || bad.Line == 0) {
			t.Errorf("error without what was expected and where: %v", err)
		}
	})
}
