//go:build unix

package main

import (
	"context"
	"errors"
	"fmt"
	"net/http"
	"net/http/httptest"
	"strings"
	"testing"

	"github.com/lasthop/lasthop/probe/collect/azure"
)

// TestAzure: what Azure tells here is a file of the node's lasthop, and what it denies is said here.
func TestAzure(t *testing.T) {
	const (
		token = "eyJ0eXAi.persons.token"
		group = "/subscriptions/5ec2e700/resourceGroups/MC_secret/providers/"
		set   = group + "Microsoft.Compute/virtualMachineScaleSets/aks-pool"
	)
	nic := fmt.Sprintf(`{"id": "%[1]s/virtualMachines/0/networkInterfaces/nic", "properties": {"enableIPForwarding": true, "virtualMachine": {"id": "%[1]s/virtualMachines/0"},
	  "ipConfigurations": [{"properties": {"privateIPAddress": "10.240.0.4", "subnet": {"id": "/x/subnets/secret-subnet"}}}]}}`, set)
	server := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		switch path := strings.ToLower(r.URL.Path); {
		case r.Header.Get("Authorization") != "Bearer "+token || path == "/x/subnets/secret-subnet":
			w.WriteHeader(http.StatusForbidden)
		case path == strings.ToLower(set+"/networkInterfaces"):
			fmt.Fprintf(w, `{"value": [%s]}`, nic)
		default:
			fmt.Fprint(w, `{"value": []}`)
		}
	}))
	defer server.Close()
	asked := ""
	var failure error
	known := newAzure
	defer func() { newAzure = known }()
	newAzure = func(region string) (*azure.Client, error) {
		asked = region
		return &azure.Client{Management: server.URL, Token: func(context.Context) (string, error) { return token, failure }}, nil
	}
	a := newAPI(t)
	t.Setenv(pretended, "0")
	r := plugin(t, "check", "node1", "--azure")
	if r.status != exitUsage || !strings.Contains(r.stderr, "--azure: these nodes are not Azure's") {
		t.Errorf("nodes of another cloud: status %d: %s", r.status, r.stderr)
	}
	for i := range a.nodes {
		a.nodes[i].Spec.ProviderID = fmt.Sprintf("azure://%s/virtualMachines/%d", set, i)
		a.nodes[i].Labels = map[string]string{"topology.kubernetes.io/region": "usgovvirginia"}
	}
	r = plugin(t, "check", "node1", "--azure")
	if r.status != 0 || asked != "usgovvirginia" || !strings.Contains(r.stdout, "--routes=Azure") ||
		!strings.Contains(r.stdout, `--routes has [{"id":"`+set+"/virtualMachines/0/networkInterfaces/nic") ||
		!strings.Contains(r.stderr, "secret-subnet: denied (HTTP status 403): needs a role with Microsoft.Network/virtualNetworks/subnets/read") ||
		strings.Contains(r.stdout+r.stderr, token) {
		t.Errorf("status %d, region %q: %s%s", r.status, asked, r.stdout, r.stderr)
	}
	if r = plugin(t, "check", "node1", "--azure", "--redact"); strings.Contains(r.stderr, "secret") || !strings.Contains(r.stderr, "a resource: denied") {
		t.Errorf("redacted: %s", r.stderr)
	}
	if r = plugin(t, "check", "node1"); strings.Contains(r.stdout, "Azure") {
		t.Errorf("asked without the flag: %s", r.stdout)
	}
	failure = errors.New("nobody is logged in")
	if r = plugin(t, "check", "node1", "--azure"); r.status != 0 || !strings.Contains(r.stderr, "without what Azure knows: nobody is logged in") {
		t.Errorf("without credentials: status %d: %s", r.status, r.stderr)
	}
	a.removed()
}

// TestPersonsAzure: the resource manager is that of the region's cloud.
func TestPersonsAzure(t *testing.T) {
	for region, want := range map[string]string{
		"westeurope": "https://management.azure.com", "": "https://management.azure.com",
		"usgovvirginia": "https://management.usgovcloudapi.net", "usdodeast": "https://management.usgovcloudapi.net",
		"chinaeast2": "https://management.chinacloudapi.cn",
	} {
		if c, err := personsAzure(region); err != nil || strings.TrimSuffix(c.Management, "/") != want {
			t.Errorf("%s: %+v, %v, want %s", region, c, err, want)
		}
	}
}
