package azure

import (
	"context"
	"encoding/pem"
	"fmt"
	"io"
	"net/http"
	"net/http/httptest"
	"net/netip"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/lasthop/lasthop/probe/model"
)

const (
	secret   = "eyJ0eXAi.secret.token"
	mc       = "/subscriptions/s/resourceGroups/MC_g"
	set      = mc + "/providers/Microsoft.Compute/virtualMachineScaleSets/aks-pool"
	machine  = set + "/virtualMachines/0"
	own      = machine + "/networkInterfaces/nic"
	vnet     = "/subscriptions/s/resourceGroups/net/providers/Microsoft.Network/virtualNetworks/v/subnets/nodes"
	byoTable = "/subscriptions/s/resourceGroups/net/providers/Microsoft.Network/routeTables/byo"
	nsg      = "/subscriptions/s/resourceGroups/net/providers/Microsoft.Network/networkSecurityGroups/nsg"
)

// rawGroup is as the resource manager answers, shortened.
const rawGroup = `{"id": "` + nsg + `", "name": "nsg", "type": "Microsoft.Network/networkSecurityGroups", "properties": {
  "provisioningState": "Succeeded",
  "securityRules": [{"name": "deny-db", "id": "` + nsg + `/securityRules/deny-db", "properties": {"protocol": "Tcp", "sourcePortRange": "*",
    "destinationPortRanges": ["5432", "8000-8080"], "sourceAddressPrefix": "10.244.0.0/24", "destinationAddressPrefixes": ["10.244.1.2", "10.244.2.0/24"],
    "sourceAddressPrefixes": [], "access": "Deny", "priority": 200, "direction": "Outbound"}},
   {"name": "from-asg", "properties": {"protocol": "*", "sourcePortRange": "*", "destinationPortRange": "*", "destinationAddressPrefix": "*",
    "sourceApplicationSecurityGroups": [{"id": "/x/applicationSecurityGroups/a"}], "access": "Allow", "priority": 110, "direction": "Inbound"}}],
  "defaultSecurityRules": [{"name": "AllowVnetOutBound", "properties": {"protocol": "*", "sourcePortRange": "*", "destinationPortRange": "*",
    "sourceAddressPrefix": "VirtualNetwork", "destinationAddressPrefix": "VirtualNetwork", "access": "Allow", "priority": 65000, "direction": "Outbound"}}]}}`

// rawEffective is the answer of effectiveNetworkSecurityGroups, shortened.
const rawEffective = `{"value": [{"association": {"subnet": {"id": "` + vnet + `"}}, "networkSecurityGroup": {"id": "` + nsg + `"}, "effectiveSecurityRules": [
  {"name": "defaultSecurityRules/AllowVnetOutBound", "protocol": "All", "sourcePortRange": "0-65535", "destinationPortRange": "0-65535",
   "sourcePortRanges": ["0-65535"], "destinationPortRanges": ["0-65535"], "sourceAddressPrefix": "VirtualNetwork", "destinationAddressPrefix": "VirtualNetwork",
   "expandedSourceAddressPrefix": ["10.240.0.0/16", "168.63.129.16/32"], "expandedDestinationAddressPrefix": ["10.240.0.0/16"],
   "access": "Allow", "priority": 65000, "direction": "Outbound"},
  {"name": "securityRules/deny-db", "protocol": "Tcp", "sourcePortRange": "0-65535", "destinationPortRange": "5432-5432", "sourceAddressPrefix": "10.244.0.0/24",
   "destinationAddressPrefix": "10.244.1.2/32", "access": "Deny", "priority": 200, "direction": "Outbound"}]}]}`

// fakeCloud is the metadata service and the resource manager of one scale set's machine.
type fakeCloud struct {
	url         string
	environment string
	// answers are by path. refused are the statuses of those that are refused.
	answers map[string]string
	refused map[string]int
	// polls is how often an operation is asked for before it is done.
	polls int

	mu   sync.Mutex
	seen []string
}

func newCloud(t *testing.T) *fakeCloud {
	c := &fakeCloud{environment: "AzurePublicCloud", polls: 2, refused: map[string]int{}}
	server := httptest.NewServer(c)
	t.Cleanup(server.Close)
	c.url = server.URL
	nic := `{"id": "` + own + `", "properties": {"enableIPForwarding": true, "virtualMachine": {"id": "` + strings.ToUpper(machine) + `"},
	  "networkSecurityGroup": {"id": "` + nsg + `"}, "ipConfigurations": [{"properties": {"privateIPAddress": "10.240.0.4", "subnet": {"id": "` + vnet + `"}}}]}}`
	other := strings.NewReplacer("virtualMachines/0", "virtualMachines/1", "VIRTUALMACHINES/0", "VIRTUALMACHINES/1", "10.240.0.4", "10.240.0.5").Replace(nic)
	c.answers = map[string]string{
		mc + "/providers/Microsoft.Network/networkInterfaces":       `{"value": []}`,
		mc + "/providers/Microsoft.Compute/virtualMachineScaleSets": `{"value": [{"id": "` + set + `", "properties": {"orchestrationMode": "Uniform"}}, {"id": "` + set + `-flex", "properties": {"orchestrationMode": "Flexible"}}]}`,
		set + "/networkInterfaces":                                  `{"value": [` + nic + `], "nextLink": "` + c.url + `/next?page=2"}`,
		"/next":                                                     `{"value": [` + other + `]}`,
		mc + "/providers/Microsoft.Network/routeTables":             `{"value": [` + rawTable + `]}`,
		vnet:                                    `{"id": "` + vnet + `", "properties": {"addressPrefix": "10.240.0.0/16", "routeTable": {"id": "` + byoTable + `"}, "networkSecurityGroup": {"id": "` + nsg + `"}}}`,
		byoTable:                                strings.ReplaceAll(rawTable, tableID, byoTable),
		nsg:                                     rawGroup,
		own + "/effectiveRouteTable":            effective,
		own + "/effectiveNetworkSecurityGroups": rawEffective,
	}
	return c
}

func (c *fakeCloud) ServeHTTP(w http.ResponseWriter, r *http.Request) {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.seen = append(c.seen, r.Method+" "+r.URL.Path)
	metadata := strings.HasPrefix(r.URL.Path, "/metadata/")
	if metadata && r.Header.Get("Metadata") != "true" || !metadata && r.Header.Get("Authorization") != "Bearer "+secret {
		w.WriteHeader(http.StatusUnauthorized)
		return
	}
	for path, status := range c.refused {
		if strings.EqualFold(r.URL.Path, path) {
			w.WriteHeader(status)
			fmt.Fprint(w, `{"error": {"code": "AuthorizationFailed", "message": "The client 'someone' with object id 'x' does not have it"}}`)
			return
		}
	}
	operation, isResult := strings.CutPrefix(r.URL.Path, "/operations")
	switch {
	case r.URL.Path == "/metadata/instance":
		fmt.Fprintf(w, `{"compute": {"azEnvironment": %q, "resourceId": %q, "name": "aks-pool_0", "userData": ""}}`, c.environment, machine)
	case r.URL.Path == "/metadata/identity/oauth2/token":
		if r.URL.Query().Get("client_id") != "kubelet" {
			w.WriteHeader(http.StatusBadRequest)
			fmt.Fprint(w, `{"error": "invalid_request", "error_description": "Multiple user assigned identities exist"}`)
			return
		}
		fmt.Fprintf(w, `{"access_token": %q, "expires_in": "86399", "resource": %q, "token_type": "Bearer"}`, secret, r.URL.Query().Get("resource"))
	case r.Method == http.MethodPost, isResult && c.polls > 0:
		// A URL as the resource manager has it: its query signs it.
		if isResult {
			c.polls--
		} else {
			operation = r.URL.Path
		}
		w.Header().Set("Location", c.url+"/operations"+operation+"?api-version=2024-05-01&t=1&s=signature")
		w.Header().Set("Retry-After", "0")
		w.WriteHeader(http.StatusAccepted)
	default:
		if isResult {
			r.URL.Path = operation
		}
		for path, answer := range c.answers {
			if strings.EqualFold(r.URL.Path, path) && (isResult || !strings.Contains(path, "/effective")) {
				_, _ = io.WriteString(w, answer)
				return
			}
		}
		w.WriteHeader(http.StatusNotFound)
	}
}

// ask asks the fake cloud, whose resource manager is at the same address.
func (c *fakeCloud) ask(ctx context.Context, change ...func(*Client)) (*Answer, error) {
	client := &Client{Metadata: c.url, Management: c.url, Identity: "kubelet"}
	for _, f := range change {
		f(client)
	}
	return client.AskNode(ctx)
}

func TestAskNode(t *testing.T) {
	c := newCloud(t)
	got, err := c.ask(t.Context())
	if err != nil || len(got.Unread) > 0 {
		t.Fatalf("%v, unread %q", err, got.Unread)
	}
	a := got.Azure
	ids := func(list []model.RouteTable) []string {
		return model.Map(list, func(t model.RouteTable) string { return t.ID })
	}
	if !slices.Equal(ids(a.Tables), []string{tableID, byoTable}) || len(a.Subnets) != 1 || a.Subnets[0].RouteTable != byoTable ||
		len(a.NICs) != 2 || a.NICs[0].SecurityGroup != nsg || !a.NICs[0].Forwards ||
		len(a.Effective) != 1 || a.Effective[0].NIC != own || len(a.Effective[0].Routes) != 2 ||
		len(a.Rules) != 1 || a.Rules[0].NIC != own || len(a.Rules[0].Groups) != 1 || len(a.Groups) != 1 {
		t.Errorf("got %+v", a)
	}
	deny := model.SecurityRule{
		Name: "deny-db", Priority: 200, Outbound: true, Deny: true, Protocol: 6, From: model.SecurityEnd{Prefixes: prefixes("10.244.0.0/24")},
		To: model.SecurityEnd{Prefixes: prefixes("10.244.1.2/32", "10.244.2.0/24"), Ports: []model.PortRange{{First: 5432, Last: 5432}, {First: 8000, Last: 8080}}},
	}
	if rules := a.Groups[0].Rules; len(rules) != 3 || fmt.Sprint(rules[1]) != fmt.Sprint(deny) || rules[0].From.Names[0] != "/x/applicationSecurityGroups/a" ||
		rules[2].To.Names[0] != "VirtualNetwork" || len(rules[0].To.Prefixes) != 2 {
		t.Errorf("group %+v", rules)
	}
	if rules := a.Rules[0].Groups[0].Rules; rules[0].Name != "deny-db" || len(rules[1].To.Names) > 0 ||
		!model.InAny(rules[1].To.Prefixes, netip.MustParseAddr("10.240.9.9")) || rules[1].To.Ports != nil {
		t.Errorf("effective %+v", rules)
	}
	for _, seen := range c.seen {
		if method, path, _ := strings.Cut(seen, " "); method != "GET" && (method != "POST" || !strings.Contains(path, "/effective")) {
			t.Errorf("asked by %s", seen)
		}
	}
	// The document is a file for --routes.
	again, err := Decode(Source, got.Document())
	if err != nil || len(again.NICs) != 2 || len(again.Rules) != 1 || again.Rules[0].NIC != own || len(again.Tables) != 2 {
		t.Errorf("document: %+v, %v", again, err)
	}
	if strings.Contains(string(got.Document()), secret) {
		t.Error("the document has the token")
	}
}

// TestDenied: each denied read is named with the action that a role needs, and the others stand.
func TestDenied(t *testing.T) {
	for path, want := range map[string]string{
		mc + "/providers/Microsoft.Network/networkInterfaces":       "networkInterfaces: denied (HTTP status 403 AuthorizationFailed): needs a role with Microsoft.Network/networkInterfaces/read",
		mc + "/providers/Microsoft.Compute/virtualMachineScaleSets": "Microsoft.Compute/virtualMachineScaleSets/read",
		set + "/networkInterfaces":                                  "Microsoft.Compute/virtualMachineScaleSets/networkInterfaces/read",
		vnet:                                                        "nodes: denied (HTTP status 403 AuthorizationFailed): needs a role with Microsoft.Network/virtualNetworks/subnets/read",
		byoTable:                                                    "Microsoft.Network/routeTables/read",
		mc + "/providers/Microsoft.Network/routeTables":             "Microsoft.Network/routeTables/read",
		nsg:                                     "Microsoft.Network/networkSecurityGroups/read",
		own + "/effectiveRouteTable":            "Microsoft.Network/networkInterfaces/effectiveRouteTable/action",
		own + "/effectiveNetworkSecurityGroups": "Microsoft.Network/networkInterfaces/effectiveNetworkSecurityGroups/action",
	} {
		c := newCloud(t)
		c.refused[path] = http.StatusForbidden
		got, err := c.ask(t.Context())
		if err != nil || len(got.Unread) != 1 || !strings.Contains(got.Unread[0].String(), want) || strings.Contains(got.Unread[0].String(), "someone") {
			t.Errorf("%s: %v, unread %q, want %q", path, err, got.Unread, want)
		}
	}
}

// TestUnassociated: where no subnet could be read, a table of the group that is associated with none says nothing: theirs may be another.
func TestUnassociated(t *testing.T) {
	c := newCloud(t)
	c.refused[vnet] = http.StatusForbidden
	list := mc + "/providers/Microsoft.Network/routeTables"
	c.answers[list] = strings.ReplaceAll(c.answers[list], subnetID, "/x/subnets/of-others")
	if got, err := c.ask(t.Context()); err != nil || len(got.Azure.Tables) != 0 {
		t.Errorf("%v: %+v", err, got.Azure.Tables)
	}
	c.answers[list] = strings.ReplaceAll(c.answers[list], "/x/subnets/of-others", strings.ToUpper(vnet))
	if got, err := c.ask(t.Context()); err != nil || len(got.Azure.Tables) != 1 {
		t.Errorf("%v: %+v", err, got.Azure.Tables)
	}
}

// TestAskErrors: no error has a token or a signed URL.
func TestAskErrors(t *testing.T) {
	expired, cancel := context.WithDeadline(t.Context(), time.Now().Add(-time.Second))
	defer cancel()
	for _, tt := range []struct {
		name   string
		ctx    context.Context
		cloud  func(*fakeCloud)
		client func(*Client)
		want   string
	}{
		{"no metadata service", t.Context(), nil, func(c *Client) { c.Metadata = "http://127.0.0.1:1" }, "ask the instance metadata service which machine this is"},
		{"several identities", t.Context(), nil, func(c *Client) { c.Identity = "" }, "managed identity: HTTP status 400 invalid_request"},
		{"another cloud", t.Context(), func(c *fakeCloud) { c.environment = "AzureStackCloud" }, func(c *Client) { c.Management = "" }, `"AzureStackCloud" is not known: want one of AzureChinaCloud`},
		{"no time", expired, nil, nil, "deadline exceeded"},
		{"a page elsewhere", t.Context(), func(c *fakeCloud) {
			c.answers[set+"/networkInterfaces"] = `{"value": [], "nextLink": "http://192.0.2.1/next"}`
		}, nil, "networkInterfaces: the answer refers to another host"},
		{"an answer that is none", t.Context(), func(c *fakeCloud) {
			c.answers[nsg] = `{"id": "` + nsg + `", "properties": {"securityRules": [{"name": "x"}]}}`
		}, nil, "nsg: Azure:1:"},
		{"no route table there", t.Context(), func(c *fakeCloud) { delete(c.answers, own+"/effectiveRouteTable") }, nil, "effectiveRouteTable: HTTP status 404"},
	} {
		t.Run(tt.name, func(t *testing.T) {
			c := newCloud(t)
			if tt.cloud != nil {
				tt.cloud(c)
			}
			got, err := c.ask(tt.ctx, func(client *Client) {
				if tt.client != nil {
					tt.client(client)
				}
			})
			text := fmt.Sprint(err)
			if err == nil {
				text = fmt.Sprint(got.Unread)
			}
			if !strings.Contains(text, tt.want) || strings.Contains(text, secret) || strings.Contains(text, "signature") {
				t.Errorf("got %q, want %q", text, tt.want)
			}
		})
	}
}

// TestClouds: the resource manager is that of the cloud in which the machine is, and the token is for it alone.
func TestClouds(t *testing.T) {
	for environment, host := range map[string]string{"AzurePublicCloud": "management.azure.com", "AzureUSGovernmentCloud": "management.usgovcloudapi.net", "AzureChinaCloud": "management.chinacloudapi.cn"} {
		c := newCloud(t)
		c.environment = environment
		var hosts []string
		got, err := c.ask(t.Context(), func(client *Client) {
			client.Management = ""
			client.HTTP = &http.Client{Transport: roundTrip(func(r *http.Request) (*http.Response, error) {
				hosts = model.With(hosts, r.URL.Scheme+"://"+r.URL.Host)
				return &http.Response{StatusCode: http.StatusForbidden, Body: http.NoBody, Request: r}, nil
			})}
		})
		if err != nil || !slices.Equal(hosts, []string{"https://" + host}) || len(got.Unread) == 0 {
			t.Errorf("%s: asked %q, %v", environment, hosts, err)
		}
	}
}

type roundTrip func(*http.Request) (*http.Response, error)

func (f roundTrip) RoundTrip(r *http.Request) (*http.Response, error) { return f(r) }

// TestHostClient: a container without certificates has those of the node.
func TestHostClient(t *testing.T) {
	server := httptest.NewTLSServer(http.NotFoundHandler())
	defer server.Close()
	root := t.TempDir()
	if _, err := HostClient(root).Get(server.URL); err == nil {
		t.Error("trusts a stranger")
	}
	file := filepath.Join(root, "etc/ssl/certs/ca-certificates.crt")
	if err := os.MkdirAll(filepath.Dir(file), 0o700); err != nil {
		t.Fatal(err)
	}
	if err := os.WriteFile(file, pem.EncodeToMemory(&pem.Block{Type: "CERTIFICATE", Bytes: server.Certificate().Raw}), 0o600); err != nil {
		t.Fatal(err)
	}
	resp, err := HostClient(root).Get(server.URL)
	if err != nil {
		t.Fatal(err)
	}
	resp.Body.Close()
}

func TestRuleErrors(t *testing.T) {
	rule := strings.ReplaceAll(rawGroup, "\n", " ")
	for _, tt := range []struct{ name, text, want string }{
		{"direction", strings.Replace(rule, `"Outbound"`, `"Sideways"`, 1), "a security rule with a known"},
		{"protocol", strings.Replace(rule, `"Tcp"`, `"Quic"`, 1), "a security rule with a known"},
		{"priority", strings.Replace(rule, `"priority": 200`, `"priority": "first"`, 1), `found string: want a number at "Priority"`},
		{"ports", strings.Replace(rule, `"5432"`, `"postgres"`, 1), `found "postgres": want ports such as 80`},
	} {
		if _, err := Decode("f", []byte(tt.text)); err == nil || !strings.Contains(err.Error(), tt.want) {
			t.Errorf("%s: %v, want %q", tt.name, err, tt.want)
		}
	}
	// What az prints of the effective rules of a NIC is a file as well.
	a, err := Decode("f", []byte(rawEffective))
	if err != nil || len(a.Rules) != 1 || a.Rules[0].NIC != "" || len(a.Rules[0].Groups) != 1 {
		t.Errorf("effective rules: %+v, %v", a, err)
	}
}
